# SPDX-License-Identifier: Apache-2.0
"""Limits the work of one turn of the event loop, whatever the number of clients and commands.

Why: one read brings thousands of commands, and two hundred connections may be readable at once. If all of them were
handled in one turn, a PING of another client, the admin port and a signal would wait for that.

Where: all connections share one `CommandScheduler`. A connection asks it before each command, and waits in its queue
when the current turn has handled enough.

SENDs, acknowledgements without a response, flow permits and PINGs are not counted as commands: they come in runs, or
cost almost nothing. But reads take time as well (512 KiB under TLS take milliseconds), and reads for which a turn has
no time wait here, too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock

# The most commands of one turn of the loop: 2 to 4 ms of usual commands. What they start (lookups, changes of the
# catalog) runs in later turns. TURN_NS limits turns with slower commands; it is elapsed time, so it includes time in
# which other processes had the processor.
TURN_COMMANDS: Final = 64
TURN_NS: Final = 5 * NS_PER_MS
# No large read is started after this time of a turn.
READS_NS: Final = 10 * NS_PER_MS
# The most commands of one connection, if others wait: 200 connections have each had a turn after 2,000 commands.
SLICE_COMMANDS: Final = 10


class Schedulable(Protocol):
    """A connection that waits for a turn."""

    def take_turn(self) -> None:
        """Handle some commands, and wait again if there are more."""


class CommandScheduler:
    """The remaining work of this turn of the loop, and the connections that wait for the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: deque[Schedulable] = deque()
        self._left = 0
        self._stop_ns = 0
        self._stop_reads_ns = 0
        self._running = False  # whether this turn of the loop is counted and `_next` is scheduled

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._queue)

    def may_take(self) -> bool:
        """Return whether a connection may handle a first command in this turn; it calls `take` if it does."""
        return not self._running or (self._left > 0 and self._clock.monotonic_ns() < self._stop_ns)

    def take(self, taken: int) -> bool:
        """Return whether a connection that has handled `taken` commands in a row may handle one more in this turn."""
        if not self._running:
            self._begin()
        if taken >= SLICE_COMMANDS and self._queue:
            return False
        if self._left <= 0 or self._clock.monotonic_ns() >= self._stop_ns:
            return False
        self._left -= 1
        return True

    def may_read(self) -> bool:
        """Return whether this turn has time for one more large read."""
        if not self._running:
            self._begin()
        return self._clock.monotonic_ns() < self._stop_reads_ns

    def wait(self, waiting: Schedulable) -> None:
        """Call `take_turn` of this connection after those that wait already."""
        self._queue.append(waiting)
        if not self._running:
            self._begin()

    def _begin(self) -> None:
        self._running = True
        self._left = TURN_COMMANDS
        now_ns = self._clock.monotonic_ns()
        self._stop_ns, self._stop_reads_ns = now_ns + TURN_NS, now_ns + READS_NS
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._running = False
        if not self._queue:
            return
        self._begin()
        while self._queue and self._left > 0 and self._clock.monotonic_ns() < self._stop_ns:
            self._queue.popleft().take_turn()
