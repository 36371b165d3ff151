# SPDX-License-Identifier: Apache-2.0
"""An event that wakes its waiting callers gradually.

Why not one future for all: two thousand tasks that wake in one turn of the loop block it for a tenth of a second.
Where: shared listings, whose first caller acquires memory and gathers for all others that came meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.net.deadlines import Deadlines

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock

# Each woken caller takes about 0.05 ms.
WOKEN_PER_TURN: Final = 20


class GradualEvent:
    """Waiting callers. All methods are called on the loop."""

    __slots__ = ("_clock", "_deadlines", "_loop", "_released", "_waiting", "_waking")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._released: deque[asyncio.Future[bool]] = deque()
        self._waking = False
        self._deadlines = Deadlines(clock, loop, self._due)

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, deadline_ns: int | None) -> bool:
        """Return True once `release` has been called, or False if the deadline comes first."""
        if deadline_ns is not None and deadline_ns <= self._clock.monotonic_ns():
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[future] = None
        if deadline_ns is not None:
            self._deadlines.add(deadline_ns, future)
        try:
            return await future
        finally:
            self._waiting.pop(future, None)
            if deadline_ns is not None:
                self._deadlines.ended()

    def release(self) -> None:
        """Wake all current callers, some in this turn and the others in the next ones, in the order they came."""
        self._released += self._waiting
        self._waiting.clear()
        if not self._waking:
            self._pump()

    def _pump(self) -> None:
        for _ in range(min(WOKEN_PER_TURN, len(self._released))):
            future = self._released.popleft()
            if not future.done():
                future.set_result(True)
        self._waking = bool(self._released)
        if self._waking:
            self._loop.call_soon(self._pump)

    def _due(self, future: asyncio.Future[bool]) -> None:
        if future in self._waiting:
            future.set_result(False)
