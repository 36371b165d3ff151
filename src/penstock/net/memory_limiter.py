# SPDX-License-Identifier: Apache-2.0
"""A limit of the memory of asynchronous work: one semaphore for heap memory, one for direct memory, in bytes.

Why two: a listing is assembled on the heap, encoded, and then waits for a client that may read slowly. With one limit
for both, slow readers would keep others from assembling theirs. Where: `topic_list_limiter` is one, with the names and
the metrics of PIP-442.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING

from penstock.governance.permit_types import NOBODY
from penstock.net.semaphore import AsyncSemaphore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Hashable, Mapping

    from penstock.core.clock import Clock
    from penstock.governance.permit_errors import PermitNames
    from penstock.governance.permit_types import Owner, Permit, PermitLimits


class LimitType(Enum):
    """The kind of memory."""

    HEAP_MEMORY = "heap"  # for assembling
    DIRECT_MEMORY = "direct"  # for encoded bytes that are not sent yet


class AsyncDualMemoryLimiter:
    """Two independent semaphores. Each permit belongs to one of them."""

    def __init__(
        self,
        limits: Mapping[LimitType, PermitLimits],
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        names: Mapping[LimitType, PermitNames] | None = None,
    ) -> None:
        self._semaphores = {
            kind: AsyncSemaphore(limits[kind], clock=clock, loop=loop, names=names[kind] if names else None)
            for kind in LimitType
        }

    async def acquire(
        self, size_bytes: int, kind: LimitType, *, owner: Owner = NOBODY, deadline_ns: int | None = None
    ) -> Permit:
        """Wait for a permit of `size_bytes`; see `AsyncSemaphore.acquire` for the errors."""
        return await self._semaphores[kind].acquire(size_bytes, owner=owner, deadline_ns=deadline_ns)

    async def update(
        self, permit: Permit, new_size_bytes: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> Permit:
        """Replace this permit by one of another size; see `AsyncSemaphore.update`.

        `lends`: whether others may use the permits of the old permit while this waits: true for an estimate, false for
        memory in use.
        """
        return await self._of(permit).update(permit, new_size_bytes, deadline_ns=deadline_ns, lends=lends)

    def release(self, permit: Permit) -> None:
        """Release a permit; a second call changes nothing. Raises ValueError for a permit of another limiter."""
        self._of(permit).release(permit)

    def lower(self, permit: Permit, size_bytes: int) -> None:
        """Release all but `size_bytes`, at once.

        Raises ValueError as `release`, and while the permit is being updated.
        """
        self._of(permit).lower(permit, size_bytes)

    def move(self, source: Permit, size_bytes: int, into: Permit | None) -> Permit:
        """Move bytes from one permit to another of the same memory, or to a new one."""
        return self._of(source).move(source, size_bytes, into)

    @asynccontextmanager
    async def with_acquired_permits(
        self, size_bytes: int, kind: LimitType, *, owner: Owner = NOBODY, deadline_ns: int | None = None
    ) -> AsyncIterator[Permit]:
        """Hold `size_bytes` within the block; they are released however it ends."""
        permit = await self.acquire(size_bytes, kind, owner=owner, deadline_ns=deadline_ns)
        try:
            yield permit
        finally:
            self.release(permit)

    @asynccontextmanager
    async def with_updated_permits(
        self, permit: Permit, new_size_bytes: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> AsyncIterator[Permit]:
        """Hold `new_size_bytes` instead of `permit` within the block; after it, both are released."""
        updated = await self.update(permit, new_size_bytes, deadline_ns=deadline_ns, lends=lends)
        try:
            yield updated
        finally:
            self.release(updated)

    def cancel(self, connection: Hashable) -> None:
        """Cancel all waiting requests of a closed connection."""
        for semaphore in self._semaphores.values():
            semaphore.cancel(connection)

    def close(self) -> None:
        """Grant nothing more; waiting callers get an error. Permits can still be released."""
        for semaphore in self._semaphores.values():
            semaphore.close()

    def limiter(self, kind: LimitType) -> AsyncSemaphore:
        """Return the semaphore of one memory."""
        return self._semaphores[kind]

    def kind_of(self, permit: Permit) -> LimitType:
        """Return which memory the permit belongs to. Raises ValueError for a permit of another limiter."""
        for kind, semaphore in self._semaphores.items():
            if semaphore.owns(permit):
                return kind
        raise ValueError(f"Invalid permit type: {permit!r} is no permit of this limiter")

    def _of(self, permit: Permit) -> AsyncSemaphore:
        return self._semaphores[self.kind_of(permit)]
