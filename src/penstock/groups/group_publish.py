# SPDX-License-Identifier: Apache-2.0
"""Who may publish next in a resource group that is in debt: the order of its waiting topics.

Why not muted connections alone: a connection is shared by producers of many topics, and by consumers. If it were muted
for one group, all others on it would stand still. So SENDs of a group in debt are held in memory (`held_sends`), and
others go on.

Topics wait in a fair line, and the producers of a topic take turns. Topics get parts of the group's rate in proportion
to their weights (`resourceGroupTopicShares`): `even`, all the same; `usage`, the number of SENDs that they hold.

Where: one per group (`groups`), one per publish rate (`rates`), and one per topic or payer that is throttled adaptively
(`adaptive_publish`). `HeldSends` adds producers; they publish when `wake` tells them how much.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.fair_line import FairLine
from penstock.governance.muting import MuteReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.resource_group import ClassLimiter


class Waiter(Protocol):
    """A producer with held SENDs, or one that only waits to be read again."""

    @property
    def topic(self) -> object: ...

    @property
    def rows(self) -> int:
        """SENDs that are held."""

    def go(self, messages: int | None, nbytes: int | None) -> tuple[int, int]:
        """Publish held SENDs up to these amounts, at least one; returns messages and bytes that passed.

        The producer then waits again, in this or another line, if there are more.
        """


class GroupPublish:
    """The publish limit of one group, and the topics that wait for it."""

    # Why a connection is muted that holds as many SENDs as it may.
    reason: ClassVar[MuteReason] = MuteReason.GROUP_QUOTA

    __slots__ = ("_by_usage", "_clock", "_line", "_loop", "_timer", "_waiters", "limiter", "owner", "throttled")

    def __init__(
        self,
        owner: str,
        limiter: ClassLimiter,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        by_usage: Callable[[], bool],
    ) -> None:
        self.owner = owner
        self.limiter = limiter
        self.throttled = 0  # how often a producer began to wait
        self._by_usage = by_usage
        self._clock = clock
        self._loop = loop
        self._line: FairLine[object] | None = None  # of topics; made for the first one, most groups never need it
        self._waiters: dict[object, dict[Waiter, None]] = {}  # by topic, in order
        self._timer: asyncio.Handle | None = None

    # -- as a limiter of a topic

    def accepted(self, messages: int, nbytes: int, entries: int) -> None:
        """Charge an accepted run."""
        self.limiter.charge(messages, nbytes, self._clock.monotonic_ns(), entries)

    def short_of(self, now_ns: int) -> str | None:
        """Which limit is in debt, "msg" or "bytes"; None if neither is."""
        return self.limiter.short_of(now_ns)

    # -- waiting

    @property
    def waiting(self) -> int:
        """How many topics wait."""
        return len(self._waiters)

    @property
    def left(self) -> tuple[float, float]:
        """Messages and bytes that may pass now without waiting; nothing while others wait."""
        if self._waiters:
            return 0, 0
        messages, nbytes = self.limiter.left(self._clock.monotonic_ns())
        return math.inf if messages is None else messages, math.inf if nbytes is None else nbytes

    def add(self, waiter: Waiter) -> None:
        """Let a producer wait for its turn."""
        self._waiters.setdefault(waiter.topic, {})[waiter] = None
        if self._line is None:
            self._line = FairLine()
        self._line.join(waiter.topic)
        now_ns = self._clock.monotonic_ns()
        self.limiter.waits(now_ns)
        if self._timer is None:
            self._set_timer(now_ns)

    def remove(self, waiter: Waiter) -> None:
        """A producer does not wait any more."""
        waiters = self._waiters.get(waiter.topic, {})
        waiters.pop(waiter, None)
        if not waiters and waiter.topic in self._waiters:
            self._leave(waiter.topic)

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""
        return self.limiter.full(now_ns)

    def look_again(self) -> None:
        """The share has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        """Let waiting producers publish, as far as the balance goes; each topic about once in a turn of the loop."""
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        for _ in range(len(self._waiters)):
            if not self._waiters or not self.limiter.ready(now_ns):
                break
            self._serve_next(now_ns)
        if self._waiters and self._timer is None:
            self._set_timer(now_ns)

    def _serve_next(self, now_ns: int) -> None:
        line = self._line
        assert line is not None, "somebody waits"
        topic = line.pop()
        waiters = self._waiters[topic]
        waiter = next(iter(waiters))
        weight = max(1, sum(one.rows for one in waiters)) if self._by_usage() else 1
        messages, nbytes = self.limiter.left(now_ns)
        waiting = len(self._waiters)
        del waiters[waiter]  # It is added again if it holds more.
        passed = waiter.go(_part(messages, waiting), _part(nbytes, waiting))
        line.used(topic, self.limiter.cost_s(*passed), weight)
        if self._waiters.get(topic):
            line.join(topic)
        elif topic in self._waiters:
            self._leave(topic)

    def _leave(self, topic: object) -> None:
        del self._waiters[topic]
        if self._line is not None:
            self._line.leave(topic)
        if not self._waiters:
            self.limiter.waits_no_more(self._clock.monotonic_ns())
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _set_timer(self, now_ns: int) -> None:
        delay_ns = self.limiter.delay_ns(now_ns)
        if delay_ns:
            self._timer = self._loop.call_later(delay_ns / NS_PER_S, self.wake)
        else:
            self._timer = self._loop.call_soon(self.wake)


def _part(left: int | None, waiting: int) -> int | None:
    return None if left is None else max(1, left // waiting)
