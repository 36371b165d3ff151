# SPDX-License-Identifier: Apache-2.0
"""Which subscription may dispatch next while a dispatch limit is in debt.

Subscriptions wait in a fair line: they get equal parts of the rate, whatever their messages cost. A subscription
that is woken may have to read the log first. If others use up the balance meanwhile, it waits again, before them.
Where: one per group (`groups`), and one per dispatch rate (`limiters`); in a broker, the gates of subscriptions
(`dispatch_gate`) ask and charge it, in a proxy the permits of consumers (`held_permits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import Amount
from penstock.groups.limit import Limit

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.resource_group import ClassLimiter


class Waiting(Protocol):
    """A subscription, or what a proxy has of one."""

    def wake(self) -> None:
        """It may dispatch now."""


class DispatchLimit(Limit[Waiting]):
    """A dispatch limit, and the subscriptions that wait for it.

    Attributes:
        kind: whose limit it is: "Group", or "Subscription", "Topic" or "Broker".
        consumers: of a proxy, in this group; and `permits`, which brokers may use of theirs at this moment.
    """

    hold: ClassVar[HoldKind] = HoldKind.GROUP_QUOTA
    serves_all: ClassVar[bool] = False
    # Whether it is a rate of Pulsar's: settings may excuse subscriptions that have caught up, and count entries.
    is_rate: ClassVar[bool] = False
    kind: str = "Group"

    __slots__ = ("consumers", "permits")

    def __init__(self, owner: str, limiter: ClassLimiter, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, limiter, clock, loop)
        self.consumers = 0
        self.permits = 0

    def follow(self, now_ns: int) -> None:
        """The time is now; a rate that is relative to another one is updated."""

    def left(self, now_ns: int) -> tuple[int | None, int | None]:
        """Messages and bytes allowed before the next wait, at least one; None: no limit."""
        messages, nbytes = self.limiter.left(now_ns)
        return None if messages is None else max(1, messages), None if nbytes is None else max(1, nbytes)

    def charge(self, subscription: Waiting, messages: int, nbytes: int, now_ns: int, entries: int = 1) -> None:
        """Charge what a subscription dispatched."""
        self.limiter.charge(messages, nbytes, now_ns, entries)
        self._used(subscription, messages, nbytes)

    def charge_reserved(self, subscription: Waiting, messages: int, nbytes: int, reserved: Amount, now_ns: int) -> None:
        """Charge what passed, of which so much was reserved before."""
        self.limiter.charge(messages, nbytes, now_ns)
        self.reserve(Amount(-reserved.messages, -reserved.bytes), now_ns)
        self._used(subscription, messages, nbytes)

    def reserve(self, amount: Amount, now_ns: int) -> None:
        """Take what will pass from the balance, or give back what did not (negative)."""
        self.limiter.consume(amount.messages, amount.bytes, now_ns)

    def _used(self, subscription: Waiting, messages: int, nbytes: int) -> None:
        if self._line is not None:
            self._line.used(subscription, self.limiter.cost_s(messages, nbytes))

    def _serve(self, member: Waiting, now_ns: int) -> None:  # noqa: ARG002 - what it takes is charged later
        member.wake()
