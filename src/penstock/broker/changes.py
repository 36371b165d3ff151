# SPDX-License-Identifier: Apache-2.0
"""Changes of what is stored: submitted to the catalog, waited for, carried to their end, one document at a time.

Why one place: whoever stores something must not stop half-way when its client goes away, and two administrators who
change one document must each find their part in it.
Where: every part of the broker that stores something is given the broker's `Changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
# A change of the catalog, all but carried out: called with what to call when it is durable, or what went wrong.
Submit = Callable[[Callable[[PenstockError | None], None]], None]


class Changes:
    """What is being stored. Everything is called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unfinished: set[asyncio.Task[Any]] = set()
        # Held while a stored document is read, changed and replaced as a whole: one such change at a time.
        self.lock = asyncio.Lock()

    @property
    def unfinished(self) -> int:
        """How many works were handed to `finish` and go on."""
        return len(self._unfinished)

    def stored(self, submit: Submit) -> asyncio.Future[None]:
        """Submit a change to the catalog; done when it is durable, or with what went wrong."""
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
        """Store what `decide` returns, while nobody else changes a stored document; it may raise instead.

        To its end also when nobody waits any more: whoever came next would decide by what is about to change.
        """
        return self.finish(self._store_alone(decide))

    async def _store_alone(self, decide: Callable[[], Submit]) -> None:
        async with self.lock:
            await self.stored(decide())

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Carry work to its end, also when whoever waits for it goes away: for what must not stop half-way."""
        task = self._loop.create_task(work)
        self._unfinished.add(task)

        def done(task: asyncio.Task[T]) -> None:
            self._unfinished.discard(task)
            if not task.cancelled():
                task.exception()  # Seen, should nobody wait any more.

        task.add_done_callback(done)
        return asyncio.shield(task)

    async def finished(self) -> None:
        """Wait for all work that `finish` was given, however it ends."""
        await asyncio.gather(*self._unfinished, return_exceptions=True)
