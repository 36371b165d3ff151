# SPDX-License-Identifier: Apache-2.0
"""Deadlines of waiting futures, with one timer for all of them.

Why not a timer each: thousands of requests that came together would expire together, in one turn of the loop. Where:
`loop`. All methods are called on the loop.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.core.clock import Clock

Waiting: TypeAlias = "asyncio.Future[Any]"

# Each woken caller takes about 0.05 ms.
DUE_PER_TURN: Final = 20
# Deadlines of done futures are removed when they are more than half of all, and more than this many.
_STALE_MAX: Final = 64


class Deadlines:
    """Calls `due` for each future that is not done at its deadline, a few in each turn of the loop."""

    __slots__ = ("_clock", "_due", "_entries", "_joined", "_live", "_loop", "_timer", "_timer_ns")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, due: Callable[[Waiting], None]) -> None:
        self._clock = clock
        self._loop = loop
        self._due = due
        self._entries: list[tuple[int, int, Waiting]] = []
        self._joined = self._live = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None  # the deadline it is set for

    def add(self, deadline_ns: int, future: Waiting) -> None:
        """Call `due` for this future at that time. The caller calls `ended` in any case."""
        self._joined += 1
        self._live += 1
        heappush(self._entries, (deadline_ns, self._joined, future))
        self._set_timer()

    def ended(self) -> None:
        """One of the futures is done."""
        self._live -= 1
        if len(self._entries) > 2 * self._live + _STALE_MAX:
            self._entries = [entry for entry in self._entries if not entry[2].done()]
            heapify(self._entries)
        self._set_timer()

    def _set_timer(self) -> None:
        while self._entries and self._entries[0][2].done():
            heappop(self._entries)
        deadline_ns = self._entries[0][0] if self._entries else None
        if deadline_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns = None, deadline_ns
        if deadline_ns is not None:
            delay_s = max(0, deadline_ns - self._clock.monotonic_ns()) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._expire, deadline_ns)

    def _expire(self, deadline_ns: int) -> None:
        # The timer counts, not the clock: if the clock is a little behind, the timer must not be set again and again.
        self._timer = self._timer_ns = None
        now_ns = max(deadline_ns, self._clock.monotonic_ns())
        told = 0
        while self._entries and self._entries[0][0] <= now_ns and told < DUE_PER_TURN:
            future = heappop(self._entries)[2]
            if not future.done():
                self._due(future)
                told += 1
        self._set_timer()
