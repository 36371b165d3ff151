# SPDX-License-Identifier: Apache-2.0
"""What a topic has for adaptive throttling: the controller's state, and the limit that its producers wait for.

Why a line of its own and not the topic's publish rate: both limits may stop the same producer, and neither may undo the
other. The adaptive one holds SENDs like that of a resource group, so other producers of a connection go on (A11).

Where: `adaptive_throttling` makes one per topic that receives messages. The broker's `rates`, and a proxy's
`relayed_sends`, add the line to the topic's limiters while the throttle is enforced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.governance.adaptive_throttle import Seen
from penstock.governance.muting import MuteReason
from penstock.governance.resource_group import ClassLimiter, GroupRate
from penstock.groups.group_publish import GroupPublish

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import TopicThrottle
    from penstock.groups.ports import ThrottledTopic


class AdaptivePublish(GroupPublish):
    """The limit of one topic; its producers wait in turn."""

    reason: ClassVar[MuteReason] = MuteReason.ADAPTIVE_RATE

    __slots__ = ()

    def __init__(self, topic: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(topic, ClassLimiter(), clock, loop, _evenly)


class AdaptiveTopic:
    """One topic.

    Attributes:
        throttle: the controller's state.
        line: the limit, once there was one. It is kept, so that its debt is.
        backlog: what a broker knows of its backlog (`backlog_sizes`); None without a quota.
    """

    __slots__ = ("backlog", "line", "throttle")

    def __init__(self, throttle: TopicThrottle) -> None:
        self.throttle = throttle
        self.line: AdaptivePublish | None = None
        self.backlog: MeasuredBacklog | None = None

    @property
    def limiter(self) -> AdaptivePublish | None:
        """The limit, while it is enforced."""
        return self.line if self.throttle.enforced else None

    def seen(self, topic: ThrottledTopic, now_ns: int) -> Seen:
        """Return the topic's counters."""
        if self.line is None:
            return Seen(topic.messages_in, topic.bytes_in)
        limiter = self.line.limiter
        return Seen(topic.messages_in, topic.bytes_in, *limiter.held, limiter.limited_ns(now_ns))

    def set_rates(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        """Give the limit the rates of the throttle. Its debt stays (A4)."""
        if self.line is None:
            self.line = AdaptivePublish(self.throttle.topic, clock, loop)
        share = GroupRate(self.throttle.messages.rate, self.throttle.bytes.rate)
        self.line.limiter.set_share(share, clock.monotonic_ns())
        self.line.look_again()


class MeasuredBacklog:
    """The size of a topic's backlog at a moment, and what has to be added since.

    Attributes:
        nbytes: of the slowest durable subscription.
        bytes_in: the topic's counter then.
        mark: the last entry that this subscription had acknowledged.
        measuring: whether a newer size is being read.
    """

    __slots__ = ("bytes_in", "mark", "measuring", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self.bytes_in = 0
        self.mark: int | None = None  # None: not measured
        self.measuring = False


def _evenly() -> bool:
    return False
