# SPDX-License-Identifier: Apache-2.0
"""The memory of topic listings (PIP-442): its limits, with PIP-442's settings and messages, and its statistics.

Why: a listing is as large as its namespace, and many clients request one at once when a broker comes back. With bounded
memory and bounded waiting they form a queue, instead of ending the process.

Where: the broker's listings and watchers take permits here. A proxy can do so, too: nothing here depends on the broker.
Metrics and the admin port read `snapshot`.

How to use it:

    async with limiter.with_acquired_permits(INITIAL_BYTES, LimitType.HEAP_MEMORY, owner=owner) as first:
        async with limiter.with_updated_permits(first, size_bytes):
            ...assemble and encode...
            direct = await limiter.acquire(len(encoded), LimitType.DIRECT_MEMORY, owner=owner)

A direct permit outlives the coroutine: the caller that writes the bytes calls `release` when the transport has sent
them. The broker's owners are a namespace's tenant and the id of the client's connection; `cancel` is called when the
connection ends.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import MIB, NS_PER_MS
from penstock.governance.permits import (
    NOBODY,
    Owner,
    Permit,
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitError,
    PermitLimits,
    PermitNames,
    PermitsBeyondLimit,
)
from penstock.net.semaphore import AsyncSemaphore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Hashable, Iterator, Mapping

    from penstock.core.clock import Clock
    from penstock.governance.permits import PermitSnapshot


class LimitType(Enum):
    """The kind of memory."""

    HEAP_MEMORY = "heap"  # for assembling
    DIRECT_MEMORY = "direct"  # for encoded bytes that are not sent yet


class AsyncDualMemoryLimiter:
    """Two independent semaphores, for heap and direct memory, in bytes. Each permit belongs to one of them.

    A listing is assembled on the heap, encoded, and then waits for a client that may read slowly. With one limit for
    both, slow readers would keep others from assembling theirs.
    """

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


__all__ = [
    "HEAP_REFUSED", "INITIAL_BYTES", "NOBODY", "LimitType", "Owner", "Permit", "PermitAcquireAlreadyClosed",
    "PermitAcquireCancelled", "PermitAcquireQueueFull", "PermitAcquireTimeout", "PermitError", "PermitsBeyondLimit",
    "TopicListLimits", "TopicListMemoryLimiter", "TopicListSnapshot",
]  # fmt: skip

# The estimate for a listing before its length is known ("a fixed estimate (1KB)").
INITIAL_BYTES: Final = 1024

# Pulsar's messages of refusals, as clients log them. A proxy has another one for direct memory.
HEAP_REFUSED: Final = "Failed due to heap memory limit exceeded"
BROKER_DIRECT_REFUSED: Final = "Cannot acquire permits for direct memory"
PROXY_DIRECT_REFUSED: Final = "Failed due to direct memory limit exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListLimits:
    """The six settings, in bytes and nanoseconds. Sizes and queues of 0 or less have no limit."""

    heap_bytes_max: int = 100 * MIB  # maxTopicListInFlightHeapMemSizeMB
    heap_timeout_ns: int = 25_000 * NS_PER_MS  # …HeapMemSizePermitsAcquireTimeoutMillis
    heap_queue_max: int = 10_000  # …HeapMemSizePermitsAcquireQueueSize
    direct_bytes_max: int = 100 * MIB  # maxTopicListInFlightDirectMemSizeMB
    direct_timeout_ns: int = 25_000 * NS_PER_MS  # …DirectMemSizePermitsAcquireTimeoutMillis
    direct_queue_max: int = 10_000  # …DirectMemSizePermitsAcquireQueueSize

    def of(self, kind: LimitType) -> PermitLimits:
        """Return the limits of one of the two memories."""
        if kind is LimitType.HEAP_MEMORY:
            return PermitLimits(
                permits_max=self.heap_bytes_max, queue_max=self.heap_queue_max, timeout_ns=self.heap_timeout_ns
            )
        return PermitLimits(
            permits_max=self.direct_bytes_max, queue_max=self.direct_queue_max, timeout_ns=self.direct_timeout_ns
        )


@dataclass(frozen=True, slots=True)
class TopicListSnapshot:
    """One moment of both memories."""

    heap: PermitSnapshot
    direct: PermitSnapshot


class ListingRow(NamedTuple):
    """One of the two memories as a row of the budget."""

    name: str
    semaphore: AsyncSemaphore

    @property
    def used_bytes(self) -> int:
        return self.semaphore.acquired

    @property
    def limit_bytes(self) -> int:
        return self.semaphore.permits_max

    @property
    def refused_total(self) -> int:
        seen = self.semaphore.snapshot()
        return seen.queue_full_total + seen.beyond_limit_total + seen.timeouts_total


class TopicListMemoryLimiter(AsyncDualMemoryLimiter):
    """An `AsyncDualMemoryLimiter` with the settings of PIP-442, whose limits can be changed at run time."""

    def __init__(
        self,
        limits: TopicListLimits,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        direct_refused: str = BROKER_DIRECT_REFUSED,
    ) -> None:
        self.limits = limits
        super().__init__(
            {kind: limits.of(kind) for kind in LimitType},
            clock=clock,
            loop=loop,
            names={
                LimitType.HEAP_MEMORY: _names(HEAP_REFUSED, "maxTopicListInFlightHeapMemSize"),
                LimitType.DIRECT_MEMORY: _names(direct_refused, "maxTopicListInFlightDirectMemSize"),
            },
        )

    def set_limits(self, limits: TopicListLimits) -> None:
        """Change the limits. Held permits stay; waiting requests that can never be granted now are refused."""
        self.limits = limits
        for kind in LimitType:
            self.limiter(kind).set_limits(limits.of(kind))

    def rows(self) -> Iterator[ListingRow]:
        """The rows of both memories in the budget."""
        return (ListingRow(f"listings-{kind.value}", self.limiter(kind)) for kind in LimitType)

    def snapshot(self) -> TopicListSnapshot:
        return TopicListSnapshot(
            self.limiter(LimitType.HEAP_MEMORY).snapshot(), self.limiter(LimitType.DIRECT_MEMORY).snapshot()
        )


def _names(refusal: str, key: str) -> PermitNames:
    return PermitNames(
        refusal, "bytes", f"{key}MB", f"{key}PermitsAcquireQueueSize", f"{key}PermitsAcquireTimeoutMillis"
    )
