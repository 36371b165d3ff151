# SPDX-License-Identifier: Apache-2.0
"""Turns of the loop: however many clients send however much, the loop comes back soon.

Why: one read brings thousands of commands, and two hundred connections may be readable at once. If each of them were
carried out to its end, a PING of another client, the admin port and a signal would wait behind all of them.
Where: all connections share one `CommandScheduler`. A connection asks it before each command, and waits in its queue
when this turn of the loop has had enough of them.

SENDs, acknowledgements that want no answer, permits and PINGs are not counted as commands: they come in runs, or cost
next to nothing. But reads take time as well (half a mebibyte under TLS takes milliseconds), and those that a
turn has no time for wait here, too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock

# So many commands are carried out in one turn of the loop: 2 to 4 ms of what clients usually ask, and what they start
# (tasks that look for a topic, writes of the catalog) has its own time in the next one. The time bounds those that take
# longer; it is the wall clock's, and so includes the time in which others had the processor.
TURN_COMMANDS: Final = 64
TURN_NS: Final = 5 * NS_PER_MS
# No bulky read is begun any more when a turn has lasted so long.
READS_NS: Final = 10 * NS_PER_MS
# As many of one connection, if others wait: 200 connections have each had a turn after 2,000 commands.
SLICE_COMMANDS: Final = 10


class Schedulable(Protocol):
    """Who waits for a turn."""

    def take_turn(self) -> None:
        """Carry out some commands; and wait again if there are more."""


class CommandScheduler:
    """What is left of this turn of the loop, and who waits for the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: deque[Schedulable] = deque()
        self._left = 0
        self._stop_ns = 0
        self._stop_reads_ns = 0
        self._running = False  # whether this turn of the loop is counted, and the next will be told

    def __len__(self) -> int:
        """How many connections wait."""
        return len(self._queue)

    def take(self, taken: int) -> bool:
        """Whether a connection that has had `taken` commands carried out in a row may have one more in this turn."""
        if not self._running:
            self._begin()
        if taken >= SLICE_COMMANDS and self._queue:
            return False
        if self._left <= 0 or self._clock.monotonic_ns() >= self._stop_ns:
            return False
        self._left -= 1
        return True

    def may_read(self) -> bool:
        """Whether this turn has time for one more read."""
        if not self._running:
            self._begin()
        return self._clock.monotonic_ns() < self._stop_reads_ns

    def wait(self, waiting: Schedulable) -> None:
        """Call its `take_turn` when those before it have had their turn."""
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
