# SPDX-License-Identifier: Apache-2.0
"""Who may publish next while a publish limit is in debt: the order of its waiting topics.

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

from penstock.governance.holds import HoldKind
from penstock.groups.limit import Limit

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


class PublishLimit(Limit[object]):
    """A publish limit, and the topics that wait for it."""

    hold: ClassVar[HoldKind] = HoldKind.GROUP_QUOTA
    serves_all: ClassVar[bool] = True

    __slots__ = ("_by_usage", "_waiters", "throttled")

    def __init__(
        self,
        owner: str,
        limiter: ClassLimiter,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        by_usage: Callable[[], bool] = lambda: False,
    ) -> None:
        """Receive what this uses. Args: by_usage: whether topics have weights, as above."""
        super().__init__(owner, limiter, clock, loop)
        self.throttled = 0  # how often a producer began to wait
        self._by_usage = by_usage
        self._waiters: dict[object, dict[Waiter, None]] = {}  # by topic, in order

    def accepted(self, messages: int, nbytes: int, entries: int) -> None:
        """Charge an accepted run."""
        self.limiter.charge(messages, nbytes, self._clock.monotonic_ns(), entries)

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
        self.wait(waiter.topic, self._clock.monotonic_ns())

    def remove(self, waiter: Waiter) -> None:
        """A producer does not wait any more."""
        waiters = self._waiters.get(waiter.topic)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[waiter.topic]
                self.forget(waiter.topic)

    def _serve(self, member: object, now_ns: int) -> None:
        assert self._line is not None, "somebody waits"
        waiters, waiting = self._waiters[member], len(self._waiters)
        waiter = next(iter(waiters))
        weight = max(1, sum(one.rows for one in waiters)) if self._by_usage() else 1
        messages, nbytes = self.limiter.left(now_ns)
        del waiters[waiter]  # It is added again if it holds more.
        passed = waiter.go(_part(messages, waiting), _part(nbytes, waiting))
        self._line.used(member, self.limiter.cost_s(*passed), weight)
        if waiters:
            self._line.join(member)
        else:
            del self._waiters[member]


def _part(left: int | None, waiting: int) -> int | None:
    return None if left is None else max(1, left // waiting)
