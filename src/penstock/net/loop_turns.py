# SPDX-License-Identifier: Apache-2.0
"""Measures the turns of the event loop, that is, the time in which no other client is served.

Why: one client's large request that is handled at once delays all others. A turn is the time between two polls of the
sockets. So the selector sees every turn, at the cost of reading the clock twice. Where: `app` creates the loop with it;
metrics show the result, and `make abuse` tests hostile clients against it.
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

# Turns that took longer are counted for each of these. One client may delay the others by 50 ms.
THRESHOLDS_MS: Final = (5, 20, 50, 100, 250, 1_000)
SHORTEST_COUNTED_NS: Final = THRESHOLDS_MS[0] * NS_PER_MS

# The most sockets that are served in one turn. A read, or a TLS handshake, takes at most two milliseconds.
READY_MAX: Final = 16

_MS_PER_S: Final = 1_000


class LoopTurns:
    """The turns of one loop.

    Attributes:
        longest_ns: the longest one since the start.
        longer: for each of `THRESHOLDS_MS`, how many took longer.
        began_ns: when the current one began, on the monotonic clock: the time of all that happens in it.
    """

    __slots__ = ("began_ns", "longer", "longest_ns")

    def __init__(self) -> None:
        self.began_ns = 0
        self.longest_ns = 0
        self.longer = dict.fromkeys(THRESHOLDS_MS, 0)

    def observe(self, turn_ns: int) -> None:
        """Record the duration of one turn."""
        if turn_ns <= SHORTEST_COUNTED_NS:
            return
        self.longest_ns = max(self.longest_ns, turn_ns)
        for threshold_ms in THRESHOLDS_MS:
            if turn_ns > threshold_ms * NS_PER_MS:
                self.longer[threshold_ms] += 1


class TimedSelector(selectors.EpollSelector):
    """A selector that measures the time between its calls, and returns a few ready sockets at a time.

    Two hundred sockets with 512 KiB each, or a TLS handshake each, would be one turn of a hundred milliseconds and
    more. The kernel rotates: sockets that were not returned come first the next time.
    """

    def __init__(self, turns: LoopTurns, clock: Clock) -> None:
        super().__init__()
        self._turns = turns
        self._now_ns = clock.monotonic_ns
        turns.began_ns = self._now_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return at most `READY_MAX` ready sockets. The time since the last call ended was a turn."""
        turn_ns = self._now_ns() - self._turns.began_ns
        if turn_ns > SHORTEST_COUNTED_NS:
            self._turns.observe(turn_ns)
        if timeout is not None:
            # Rounded up to whole milliseconds: if it woke too early, it would be called again at once for nothing.
            timeout = ceil(timeout * _MS_PER_S) / _MS_PER_S if timeout > 0 else 0
        try:
            polled = self._selector.poll(timeout, READY_MAX)  # type: ignore[attr-defined]
        except InterruptedError:
            polled = ()
        self._turns.began_ns = self._now_ns()
        ready = []
        # The mapping that `get_map` returns takes two microseconds more.
        keys = self._fd_to_key  # type: ignore[attr-defined]
        for fd, event in polled:
            key = keys.get(fd)
            if key is not None:
                events = (event & ~select.EPOLLIN and selectors.EVENT_WRITE) | (
                    event & ~select.EPOLLOUT and selectors.EVENT_READ
                )
                ready.append((key, events & key.events))
        return ready


def timed_loop(turns: LoopTurns, clock: Clock) -> asyncio.AbstractEventLoop:
    """Return an event loop whose turns are measured."""
    return asyncio.SelectorEventLoop(TimedSelector(turns, clock))
