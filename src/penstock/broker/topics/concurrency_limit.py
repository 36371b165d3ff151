# SPDX-License-Identifier: Apache-2.0
"""A limit of concurrent operations: an operation beyond the limit is refused, or waits for its turn.

Why not asyncio.Semaphore: the limit may change at run time, and some callers must not wait.
Where: lookups and listings are refused, topic loads wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from penstock.core.errors import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class ConcurrencyLimit:
    """Admits at most `limit()` operations at a time. An operation leaves at the end of its `with` block."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self.inside = 0
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextmanager
    def enter_or_refuse(self, what: str, key: str) -> Iterator[None]:
        """Enter now. Raises TooManyRequests; `what` names the operation and `key` the setting in its message."""
        if self.inside >= self._limit():
            raise TooManyRequests(f"Too many concurrent {what} requests: all {self._limit()} places ({key}) are taken")
        self.inside += 1
        try:
            yield
        finally:
            self._leave()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free place, in first-come order, and enter."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self.inside < self._limit() and not self._waiting:
            self.inside += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # This caller had been admitted already.
            raise

    def _leave(self) -> None:
        self.inside -= 1
        while self._waiting and self.inside < self._limit():
            place = self._waiting.popleft()
            if not place.done():
                self.inside += 1
                place.set_result(None)
