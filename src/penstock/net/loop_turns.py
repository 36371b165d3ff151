# SPDX-License-Identifier: Apache-2.0
"""How long turns of the event loop take: the time in which nobody else is heard.

Why: one client's large request that is carried out at once is everybody's wait. A turn is what lies between two looks
at the sockets, so the selector is the one place that sees them all, for two readings of a clock each, whatever happens
within.
Where: `app` makes the loop with it; metrics show what it found, and `make abuse` holds hostile clients to it.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from math import ceil
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from penstock.core.clock import Clock

# Turns are counted by how long they took, above each of these. 50 ms is what one client may cost the others.
THRESHOLDS_MS: Final = (5, 20, 50, 100, 250, 1_000)

# Sockets that are served in one turn. A read, or a handshake, takes two milliseconds at worst.
READY_MAX: Final = 16

_MS_PER_S: Final = 1_000


class LoopTurns:
    """What was seen of one loop's turns.

    Attributes:
        longest_ns: the longest one since the start.
        longer: for each of `THRESHOLDS_MS`, how many took longer.
    """

    __slots__ = ("_shortest_counted_ns", "longer", "longest_ns")

    def __init__(self) -> None:
        self.longest_ns = 0
        self.longer = dict.fromkeys(THRESHOLDS_MS, 0)
        self._shortest_counted_ns = THRESHOLDS_MS[0] * NS_PER_MS

    def observe(self, turn_ns: int) -> None:
        """One turn took so long."""
        if turn_ns <= self._shortest_counted_ns:
            return
        self.longest_ns = max(self.longest_ns, turn_ns)
        for threshold_ms in THRESHOLDS_MS:
            if turn_ns > threshold_ms * NS_PER_MS:
                self.longer[threshold_ms] += 1


class TimedSelector(selectors.EpollSelector):
    """A selector that tells how long it was away, and hands out a few ready sockets at a time.

    Two hundred sockets with half a mebibyte each, or a TLS handshake each, would be one turn of a hundred milliseconds
    and more. The kernel goes round: what was not handed out comes first the next time.
    """

    def __init__(self, turns: LoopTurns, clock: Clock) -> None:
        super().__init__()
        self._turns = turns
        self._now_ns = clock.monotonic_ns
        self._began_ns = self._now_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector does, but for at most `READY_MAX` sockets; the time since the last one ended was a turn."""
        self._turns.observe(self._now_ns() - self._began_ns)
        try:
            ready = self._poll(timeout)
        except InterruptedError:
            ready = []
        self._began_ns = self._now_ns()
        return ready

    def _poll(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            # To whole milliseconds, upwards: what wakes too early would be asked again at once, for nothing.
            timeout = ceil(timeout * _MS_PER_S) / _MS_PER_S if timeout > 0 else 0
        ready = []
        keys = self.get_map()
        for fd, event in self._selector.poll(timeout, READY_MAX):  # type: ignore[attr-defined]
            key = keys.get(fd)
            if key is not None:
                events = (event & ~select.EPOLLIN and selectors.EVENT_WRITE) | (
                    event & ~select.EPOLLOUT and selectors.EVENT_READ
                )
                ready.append((key, events & key.events))
        return ready


def timed_loop(turns: LoopTurns, clock: Clock) -> asyncio.AbstractEventLoop:
    """An event loop whose turns are measured."""
    return asyncio.SelectorEventLoop(TimedSelector(turns, clock))
