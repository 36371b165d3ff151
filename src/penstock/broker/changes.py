# SPDX-License-Identifier: Apache-2.0
"""Changes of stored metadata: submitted to the catalog, awaited, finished even if the caller is cancelled.

Why in one place: storing must not stop half-way when a client disconnects, and concurrent changes of one document must
not overwrite each other.
Where: every part of the broker that stores something is given the broker's `Changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.errors import ChangedMeanwhile, PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
# Each time another broker has changed the same record, so this is more often than brokers can be in each other's way.
DECISIONS_MAX: Final = 100
# A change of the catalog: called with a callback for when it is durable or has failed.
Submit = Callable[[Callable[[PenstockError | None], None]], None]


class Changes:
    """Running changes. All methods are called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unfinished: set[asyncio.Task[Any]] = set()
        # Held while a stored document is read, changed and replaced.
        self.lock = asyncio.Lock()

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    def stored(self, submit: Submit) -> asyncio.Future[None]:
        """Submit a change to the catalog; the future is done when it is durable, or has its error."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: PenstockError | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        submit(done)
        return future

    def store_alone(self, decide: Callable[[], Submit]) -> asyncio.Future[None]:
        """Store the result of `decide` under the lock of all changes; `decide` may raise instead.

        It is finished even if the caller is cancelled, because the next change depends on it. The lock does not hold
        off other brokers: if one of them changes what `decide` has read, and the change says what that was, `decide` is
        called again.
        """
        return self.finish(self._store_alone(decide))

    async def _store_alone(self, decide: Callable[[], Submit]) -> None:
        async with self.lock:
            await self.store_decided(decide)

    async def store_decided(self, decide: Callable[[], Submit]) -> None:
        """As `store_alone`, for callers that hold the lock."""
        for _ in range(DECISIONS_MAX - 1):
            with suppress(ChangedMeanwhile):
                return await self.stored(decide())
        return await self.stored(decide())

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run to the end, even if the caller is cancelled."""
        task = self._loop.create_task(work)
        self._unfinished.add(task)

        def done(task: asyncio.Task[T]) -> None:
            self._unfinished.discard(task)
            if not task.cancelled():
                task.exception()  # Mark the exception as retrieved.

        task.add_done_callback(done)
        return asyncio.shield(task)

    async def finished(self) -> None:
        """Wait for all running tasks of `finish`, whatever their result."""
        await asyncio.gather(*self._unfinished, return_exceptions=True)
