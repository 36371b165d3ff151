# SPDX-License-Identifier: Apache-2.0
"""State of topics and payers in adaptive throttling: the controller's state, and the limit that producers wait for.

Why a line of its own and not the topic's publish rate: both limits may stop the same producer, and neither may undo the
other. The adaptive one holds SENDs like that of a resource group, so other producers of a connection go on (A11).

Where: `adaptive_throttling` makes one per topic that receives messages, and one per payer. The broker's `rates`, and a
proxy's `relayed_sends`, add the lines to the limiters of topics while they are enforced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import ClassLimiter, GroupRate
from penstock.groups.limit import PublishLimit

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import Account, Throttle


class AdaptivePublish(PublishLimit):
    """The limit of one topic, or of all topics of a payer; their producers wait in turn."""

    hold: ClassVar[HoldKind] = HoldKind.ADAPTIVE_RATE

    __slots__ = ("throttle",)

    def __init__(self, throttle: Throttle, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(throttle.topic or throttle.payer, ClassLimiter(), clock, loop)
        self.throttle = throttle

    @property
    def owner_text(self) -> str:
        """Owner of the limit, for sentences."""
        return self.throttle.topic or f"all topics of {self.throttle.payer}"


class Throttled:
    """A topic or a payer.

    Attributes:
        throttle: the controller's state.
        line: the limit, once there was one. It is kept, so that its debt is.
    """

    __slots__ = ("line", "throttle")

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.line: AdaptivePublish | None = None

    @property
    def limiter(self) -> AdaptivePublish | None:
        """The limit, while it is enforced."""
        return self.line if self.throttle.enforced else None

    def limited_ns(self, now_ns: int) -> int:
        """For how long something has been waiting for the limit, in all."""
        return self.line.limiter.limited_ns(now_ns) if self.line is not None else 0

    def set_rates(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        """Give the limit the rates of the throttle. Its debt stays (A4)."""
        if self.line is None:
            self.line = AdaptivePublish(self.throttle, clock, loop)
        self.line.set_share(GroupRate(self.throttle.messages.rate, self.throttle.bytes.rate))


class AdaptiveTopic(Throttled):
    """One topic.

    Attributes:
        backlog: the broker's measure of its backlog (`backlog_sizes`); None without a quota.
    """

    __slots__ = ("backlog",)

    def __init__(self, throttle: Throttle) -> None:
        super().__init__(throttle)
        self.backlog: MeasuredBacklog | None = None


class AdaptivePayer(Throttled):
    """One payer, with its account."""

    __slots__ = ("account",)

    def __init__(self, account: Account) -> None:
        super().__init__(account.throttle)
        self.account = account


@dataclass(eq=False, slots=True)
class MeasuredBacklog:
    """The size of a topic's backlog at a moment, and what has to be added since.

    Attributes:
        nbytes: of the slowest durable subscription.
        bytes_in: the topic's counter then.
        mark: the last entry that this subscription had acknowledged.
        measuring: whether a newer size is being read.
    """

    nbytes: int = 0
    bytes_in: int = 0
    mark: int | None = None  # None: not measured
    measuring: bool = False
