# SPDX-License-Identifier: Apache-2.0
"""Rates of topics, subscriptions and the broker, as limits.

Where: `rates` makes them from policies; `publish` charges publish rates, `dispatch_gate` dispatch rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.broker.policies.policy_values import Rate
from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import UNLIMITED, ClassLimiter, GroupRate
from penstock.groups.dispatch_limit import DispatchLimit
from penstock.groups.publish_limit import PublishLimit

if TYPE_CHECKING:
    import asyncio

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock


class RatePublish(PublishLimit):
    """Publish rate of one topic or of the broker: its producers wait in turn, and others on their connections go on.

    Attributes:
        rate: as it was set.
    """

    hold: ClassVar[HoldKind] = HoldKind.PUBLISH_RATE

    __slots__ = ("rate",)

    def __init__(self, owner: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, ClassLimiter(burst_ns=NS_PER_S), clock, loop)
        self.rate = Rate()

    def set_rate(self, rate: Rate) -> None:
        """Change the rate; debts remain. Waiters that may pass now do."""
        if rate != self.rate:
            self.rate = rate
            self.limiter.set_share(_share(rate), self._clock.monotonic_ns())
            self.look_again()


class DispatchRate(DispatchLimit):
    """Dispatch rate of a subscription, a topic or the broker: its subscriptions wait in turn.

    Attributes:
        base: as it was set.
        rate: as it is in force: a relative rate has the publish rate added.
    """

    hold: ClassVar[HoldKind] = HoldKind.DISPATCH_RATE
    is_rate: ClassVar[bool] = True

    __slots__ = ("_published", "_published_ns", "_topic", "base", "kind", "rate")

    def __init__(
        self, kind: str, owner: str, topic: PublishedTopic | None, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(owner, ClassLimiter(), clock, loop)
        self.kind = kind
        self.base = self.rate = Rate()
        self._topic = topic
        self._published = (0, 0)
        self._published_ns = 0

    def vacate(self) -> None:
        """Wake all subscriptions that wait; the balance stays."""
        self._topic = None
        while self._line:
            self._line.pop().wake()
        self._rest_if_nobody_waits()

    def adopt(self, owner: str, topic: PublishedTopic | None) -> None:
        """Limit another topic or subscription from now on; the balance stays."""
        self.owner = owner
        self._topic = topic
        self.base = Rate()

    def close(self) -> None:
        """Remove the limit, and wake all subscriptions that wait."""
        self.limiter.set_share(UNLIMITED, self._clock.monotonic_ns())
        self.vacate()

    def set_base(self, rate: Rate) -> None:
        """Set the rate; a relative one is added to the publish rate."""
        if rate == self.base:
            return
        self.base = rate
        if rate.relative and self._topic is not None:
            self._published = (self._topic.messages_in, self._topic.bytes_in)
            self._published_ns = self._clock.monotonic_ns()
        self._set_rate(rate)

    def _set_rate(self, rate: Rate) -> None:
        if rate != self.rate:
            self.rate = rate
            self.limiter.set_share(_share(rate), self._clock.monotonic_ns(), rate.period_s * NS_PER_S)
            self.look_again()

    def follow(self, now_ns: int) -> None:
        """Once a period, update the publish rate that a relative rate is based on."""
        topic, base = self._topic, self.base
        passed_ns = now_ns - self._published_ns
        if topic is None or not base.relative or passed_ns < base.period_s * NS_PER_S:
            return
        messages, nbytes = topic.messages_in - self._published[0], topic.bytes_in - self._published[1]
        self._published, self._published_ns = (topic.messages_in, topic.bytes_in), now_ns
        period_ns = base.period_s * NS_PER_S
        self._set_rate(
            base._replace(
                messages=base.messages and base.messages + messages * period_ns // passed_ns,
                bytes=base.bytes and base.bytes + nbytes * period_ns // passed_ns,
            )
        )


def _share(rate: Rate) -> GroupRate:
    return GroupRate(rate.messages or None, rate.bytes or None)
