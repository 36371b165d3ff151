# SPDX-License-Identifier: Apache-2.0
"""Two memories side by side: heap and direct."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from penstock.core.units import NS_PER_MS
from penstock.governance.permits import (
    Owner,
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitLimits,
    PermitsBeyondLimit,
)
from penstock.net.clock import SystemClock
from penstock.net.listing_memory import AsyncDualMemoryLimiter, LimitType

BOTH = pytest.mark.parametrize("kind", LimitType)


def limiter_of(total: int, *, queue_max: int = 100, timeout_ms: int = 60_000) -> AsyncDualMemoryLimiter:
    limits = PermitLimits(permits_max=total, queue_max=queue_max, timeout_ns=timeout_ms * NS_PER_MS)
    return AsyncDualMemoryLimiter(
        dict.fromkeys(LimitType, limits), clock=SystemClock(), loop=asyncio.get_running_loop()
    )


def other(kind: LimitType) -> LimitType:
    return next(one for one in LimitType if one is not kind)


@BOTH
async def test_what_is_acquired_of_one_memory_is_not_missing_in_the_other(kind: LimitType) -> None:
    limiter = limiter_of(10)
    permits = [await limiter.acquire(5, kind) for _ in range(2)]
    assert (limiter.limiter(kind).available, limiter.limiter(other(kind)).available) == (0, 10)
    assert [limiter.kind_of(permit) for permit in permits] == [kind, kind]
    assert (await limiter.acquire(10, other(kind))).size == 10
    for permit in permits:
        limiter.release(permit)
    assert limiter.limiter(kind).available == 10


@BOTH
async def test_a_block_has_its_bytes_and_gives_them_back_also_when_it_fails(kind: LimitType) -> None:
    limiter = limiter_of(10)

    async def fail() -> None:
        async with limiter.with_acquired_permits(4, kind) as first:
            assert limiter.limiter(kind).acquired == 4
            async with limiter.with_updated_permits(first, 9) as second:
                assert (first.size, second.size, limiter.limiter(kind).acquired) == (0, 9, 9)
                raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert limiter.limiter(kind).available == 10


@BOTH
async def test_a_block_whose_update_is_refused_gives_back_what_it_had(kind: LimitType) -> None:
    limiter = limiter_of(10, timeout_ms=10)
    async with limiter.with_acquired_permits(6, kind):
        with pytest.raises(PermitAcquireTimeout):
            async with limiter.with_acquired_permits(4, kind) as first, limiter.with_updated_permits(first, 5):
                raise AssertionError("entered")
        assert limiter.limiter(kind).acquired == 6
    assert limiter.limiter(kind).available == 10


@BOTH
async def test_a_block_that_is_cancelled_while_it_waits_or_works_gives_all_back(kind: LimitType) -> None:
    limiter = limiter_of(10)
    entered = asyncio.Event()

    async def work() -> None:
        async with limiter.with_acquired_permits(6, kind) as first, limiter.with_updated_permits(first, 7):
            entered.set()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(work()) for _ in range(2)]
    await entered.wait()
    assert limiter.limiter(kind).queue_size == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (limiter.limiter(kind).available, limiter.limiter(kind).queue_size) == (10, 0)


@BOTH
async def test_each_memory_has_its_queue_and_its_timeout(kind: LimitType) -> None:
    limiter = limiter_of(1, queue_max=1, timeout_ms=20)
    await limiter.acquire(1, kind)
    waiting = asyncio.create_task(limiter.acquire(1, kind))
    await asyncio.sleep(0)
    with pytest.raises(PermitAcquireQueueFull):
        await limiter.acquire(1, kind)
    assert (await limiter.acquire(1, other(kind))).size == 1
    with pytest.raises(PermitAcquireTimeout):
        await waiting


@BOTH
async def test_what_can_never_fit_is_told_to_whoever_asked_and_stops_nothing_else(kind: LimitType) -> None:
    limiter = limiter_of(10)
    sent: list[int] = []

    async def send_one_after_the_other(sizes: list[int]) -> None:
        for size_bytes in sizes:
            with contextlib.suppress(PermitsBeyondLimit):
                async with limiter.with_acquired_permits(size_bytes, kind):
                    sent.append(size_bytes)

    await send_one_after_the_other([4, 11, 5])
    assert sent == [4, 5]
    assert limiter.limiter(kind).available == 10


async def test_a_connection_that_is_gone_leaves_both_queues() -> None:
    limiter = limiter_of(1)
    for kind in LimitType:
        await limiter.acquire(1, kind)
    tasks = [asyncio.create_task(limiter.acquire(1, kind, owner=Owner("t", 7))) for kind in LimitType]
    await asyncio.sleep(0)
    limiter.cancel(7)
    for task in tasks:
        with pytest.raises(PermitAcquireCancelled):
            await task


async def test_a_permit_of_another_limiter_is_our_own_mistake() -> None:
    limiter, foreign = limiter_of(10), limiter_of(10)
    permit = await foreign.acquire(1, LimitType.HEAP_MEMORY)
    with pytest.raises(ValueError, match="Invalid permit type"):
        limiter.release(permit)
    with pytest.raises(ValueError, match="Invalid permit type"):
        await limiter.update(permit, 2)
    assert foreign.limiter(LimitType.HEAP_MEMORY).acquired == 1


async def test_at_the_end_both_refuse() -> None:
    limiter = limiter_of(10)
    permit = await limiter.acquire(1, LimitType.DIRECT_MEMORY)
    limiter.close()
    for kind in LimitType:
        with pytest.raises(PermitAcquireAlreadyClosed):
            await limiter.acquire(1, kind)
    limiter.release(permit)


async def test_a_thousand_tasks_with_both_memories_leave_both_free() -> None:
    limiter, chance = limiter_of(50, queue_max=0), random.Random(4)

    async def work() -> None:
        async with limiter.with_acquired_permits(1, LimitType.HEAP_MEMORY) as first:
            await asyncio.sleep(0)
            async with limiter.with_updated_permits(first, chance.randint(1, 50)):
                direct = await limiter.acquire(chance.randint(1, 50), LimitType.DIRECT_MEMORY)
        await asyncio.sleep(0)
        limiter.release(direct)

    await asyncio.gather(*[work() for _ in range(1_000)])
    for kind in LimitType:
        assert (limiter.limiter(kind).available, limiter.limiter(kind).queue_size) == (50, 0)
