# SPDX-License-Identifier: Apache-2.0
"""The memory of topic listings under the seed's keys, and in a broker that runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import ManualClock
from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.net.listing_memory import (
    INITIAL_BYTES,
    PROXY_DIRECT_REFUSED,
    LimitType,
    Owner,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitsBeyondLimit,
    TopicListLimits,
    TopicListMemoryLimiter,
)
from tests.net.harness import Client, running

if TYPE_CHECKING:
    from pathlib import Path

HEAP, DIRECT = LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY
SMALL = TopicListLimits(heap_bytes_max=10 * KIB, direct_bytes_max=20 * KIB, heap_queue_max=1, direct_queue_max=1)


def limiter_of(limits: TopicListLimits = SMALL, *, direct_refused: str | None = None) -> TopicListMemoryLimiter:
    told = {} if direct_refused is None else {"direct_refused": direct_refused}
    return TopicListMemoryLimiter(limits, clock=SystemClock(), loop=asyncio.get_running_loop(), **told)


async def test_the_defaults_are_the_seeds() -> None:
    seen = limiter_of(TopicListLimits()).snapshot()
    for memory in (seen.heap, seen.direct):
        assert (memory.permits_max, memory.queue_max, memory.timeout_ns) == (100 * MIB, 10_000, 25 * NS_PER_S)
    assert INITIAL_BYTES == 1024


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        (HEAP, "Failed due to heap memory limit exceeded", "maxTopicListInFlightHeapMemSize"),
        (DIRECT, "Cannot acquire permits for direct memory", "maxTopicListInFlightDirectMemSize"),
    ],
)
async def test_a_refusal_has_the_seeds_words_and_names_the_key_to_turn(kind: LimitType, text: str, key: str) -> None:
    limiter = limiter_of(replace(SMALL, heap_timeout_ns=10 * NS_PER_MS, direct_timeout_ns=10 * NS_PER_MS))
    size_bytes = limiter.limiter(kind).available
    with pytest.raises(PermitsBeyondLimit, match=f"^{text}: {size_bytes + 1} bytes .* {key}MB allows {size_bytes} "):
        await limiter.acquire(size_bytes + 1, kind)
    await limiter.acquire(size_bytes, kind)
    waiting = asyncio.create_task(limiter.acquire(1, kind))
    await asyncio.sleep(0)
    with pytest.raises(PermitAcquireQueueFull, match=f"^{text}: .*{key}PermitsAcquireQueueSize"):
        await limiter.acquire(1, kind)
    with pytest.raises(PermitAcquireTimeout, match=f"^{text}: 1 bytes .*{key}PermitsAcquireTimeoutMillis"):
        await waiting
    assert [row.refused_total for row in limiter.rows()] == [3 * (kind is HEAP), 3 * (kind is DIRECT)]


async def test_a_proxy_refuses_direct_memory_in_its_own_words() -> None:
    limiter = limiter_of(direct_refused=PROXY_DIRECT_REFUSED)
    with pytest.raises(PermitsBeyondLimit, match=r"^Failed due to direct memory limit exceeded: "):
        await limiter.acquire(MIB, DIRECT)


async def test_all_six_limits_can_change_while_it_is_used() -> None:
    limiter = limiter_of()
    async with limiter.with_acquired_permits(10 * KIB, HEAP):
        waiting = asyncio.create_task(limiter.acquire(3 * KIB, HEAP))
        await asyncio.sleep(0)
        other = TopicListLimits(
            heap_bytes_max=13 * KIB,
            heap_timeout_ns=1,
            heap_queue_max=2,
            direct_bytes_max=0,
            direct_timeout_ns=3,
            direct_queue_max=4,
        )
        limiter.set_limits(other)
        assert (await waiting).size == 3 * KIB
    seen = limiter.snapshot()
    assert (seen.heap.permits_max, seen.heap.timeout_ns, seen.heap.queue_max) == (13 * KIB, 1, 2)
    assert (seen.direct.permits_max, seen.direct.timeout_ns, seen.direct.queue_max) == (0, 3, 4)


async def test_a_snapshot_shows_what_is_held_who_waits_and_what_was_refused() -> None:
    limiter = limiter_of()
    permit = await limiter.acquire(10 * KIB, HEAP)
    waiting = asyncio.create_task(limiter.update(permit, 10 * KIB))
    permit = await waiting
    newcomer = asyncio.create_task(limiter.acquire(1, HEAP, owner=Owner("t", 1)))
    await asyncio.sleep(0)
    with pytest.raises(PermitsBeyondLimit):
        await limiter.acquire(MIB, DIRECT)
    seen = limiter.snapshot()
    assert (seen.heap.acquired, seen.heap.queue_size, seen.heap.waiting_acquires) == (10 * KIB, 1, 1)
    assert (seen.direct.acquired, seen.direct.beyond_limit_total) == (0, 1)
    newcomer.cancel()
    await asyncio.gather(newcomer, return_exceptions=True)
    assert limiter.snapshot().heap.cancelled_total == 1


async def test_time_is_taken_from_the_clock_that_was_handed_in() -> None:
    clock = ManualClock()
    limiter = TopicListMemoryLimiter(SMALL, clock=clock, loop=asyncio.get_running_loop())
    permit = await limiter.acquire(10 * KIB, HEAP)
    waiting = asyncio.create_task(limiter.acquire(1, HEAP))
    await asyncio.sleep(0)
    clock.advance(ms=1_500)
    assert limiter.snapshot().heap.oldest_wait_ns == 1_500 * NS_PER_MS
    limiter.release(permit)
    await waiting
    assert limiter.snapshot().heap.waits.sum_ns == 1_500 * NS_PER_MS


async def test_a_client_that_disconnects_while_it_waits_frees_its_places_within_ten_milliseconds(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    took_s = []
    async with running(tmp_path, listings=TopicListLimits(heap_bytes_max=MIB)) as harness:
        limiter = harness.broker.listings
        async with limiter.with_acquired_permits(MIB, HEAP):
            for _ in range(5):
                client = await Client.connected(harness.port)
                owner = Owner("public", harness.connection_of(client).id)
                waiting = [asyncio.create_task(limiter.acquire(1, HEAP, owner=owner)) for _ in range(20)]
                await asyncio.sleep(0)
                assert limiter.snapshot().heap.queue_size == 20
                client.abort()
                started_s = loop.time()
                await asyncio.wait(waiting)
                took_s.append(loop.time() - started_s)
                assert limiter.snapshot().heap.queue_size == 0
                assert all(isinstance(task.exception(), PermitAcquireCancelled) for task in waiting)
    # The machine may have had other things to do for once.
    assert sorted(took_s)[2] < 0.010


async def test_a_broker_that_stops_refuses_those_who_wait_and_takes_back_what_is_held(tmp_path: Path) -> None:
    async with running(tmp_path, listings=TopicListLimits(heap_bytes_max=MIB)) as harness:
        limiter = harness.broker.listings
        permit = await limiter.acquire(MIB, HEAP)
        waiting = asyncio.create_task(limiter.acquire(1, HEAP))
        waiting.add_done_callback(lambda _: limiter.release(permit))
        await asyncio.sleep(0)
    assert "stopping; ask another broker" in str(waiting.exception())
    assert limiter.snapshot().heap.acquired == 0
