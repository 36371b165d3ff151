# SPDX-License-Identifier: Apache-2.0
"""Memory that asynchronous work may take: one semaphore of bytes for the heap, one for what is on its way out.

Why two: a listing is assembled on the heap, encoded, and then waits for a client that may read slowly. One bound for
both would let slow readers keep others from assembling theirs.
Where: `topic_list_limiter` is one, with the names and the metrics of PIP-442.
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
    """Which memory."""

    HEAP_MEMORY = "heap"  # being assembled
    DIRECT_MEMORY = "direct"  # encoded, and not yet passed on by the transport


class AsyncDualMemoryLimiter:
    """Two semaphores that know nothing of each other. A permit knows which of them it is of."""

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
        """A permit for so many bytes, when they are free; see `AsyncSemaphore.acquire` for what it raises."""
        return await self._semaphores[kind].acquire(size_bytes, owner=owner, deadline_ns=deadline_ns)

    async def update(
        self, permit: Permit, new_size_bytes: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> Permit:
        """A permit for another number of bytes in place of this one; see `AsyncSemaphore.update`.

        `lends`: whether what the old permit has may serve others while this waits: true of an estimate, false of
        memory that is in use.
        """
        return await self._of(permit).update(permit, new_size_bytes, deadline_ns=deadline_ns, lends=lends)

    def release(self, permit: Permit) -> None:
        """Give back; a second time changes nothing. Raises ValueError for a permit that is not of this limiter."""
        self._of(permit).release(permit)

    def lower(self, permit: Permit, size_bytes: int) -> None:
        """Give back all but so many bytes, at once. Raises ValueError as `release`, and while the permit is updated."""
        self._of(permit).lower(permit, size_bytes)

    def move(self, source: Permit, size_bytes: int, into: Permit | None) -> Permit:
        """Take so many bytes out of one permit and put them into another of the same memory, or into a new one."""
        return self._of(source).move(source, size_bytes, into)

    @asynccontextmanager
    async def with_acquired_permits(
        self, size_bytes: int, kind: LimitType, *, owner: Owner = NOBODY, deadline_ns: int | None = None
    ) -> AsyncIterator[Permit]:
        """Have so many bytes within the block; they are given back however it ends."""
        permit = await self.acquire(size_bytes, kind, owner=owner, deadline_ns=deadline_ns)
        try:
            yield permit
        finally:
            self.release(permit)

    @asynccontextmanager
    async def with_updated_permits(
        self, permit: Permit, new_size_bytes: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> AsyncIterator[Permit]:
        """Have another number of bytes within the block, in place of what `permit` had; nothing of either after it."""
        updated = await self.update(permit, new_size_bytes, deadline_ns=deadline_ns, lends=lends)
        try:
            yield updated
        finally:
            self.release(updated)

    def cancel(self, connection: Hashable) -> None:
        """A connection is gone: whatever waits on its behalf is cancelled, and its places are free now."""
        for semaphore in self._semaphores.values():
            semaphore.cancel(connection)

    def close(self) -> None:
        """Give nothing any more; whoever waits is told. Permits can still be released."""
        for semaphore in self._semaphores.values():
            semaphore.close()

    def limiter(self, kind: LimitType) -> AsyncSemaphore:
        """One of the two."""
        return self._semaphores[kind]

    def kind_of(self, permit: Permit) -> LimitType:
        """Which memory the permit is of. Raises ValueError for one that is not of this limiter."""
        for kind, semaphore in self._semaphores.items():
            if semaphore.owns(permit):
                return kind
        raise ValueError(f"Invalid permit type: {permit!r} is no permit of this limiter")

    def _of(self, permit: Permit) -> AsyncSemaphore:
        return self._semaphores[self.kind_of(permit)]
