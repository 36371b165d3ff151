# SPDX-License-Identifier: Apache-2.0
"""Permits that tasks wait for: what the queue decides reaches those who wait, whatever becomes of them."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.clock import ManualClock
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
from penstock.net.semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.governance.permits import Permit

LONG_MS = 60_000


def semaphore_of(total: int, *, queue_max: int = 100, timeout_ms: int = LONG_MS) -> AsyncSemaphore:
    limits = PermitLimits(permits_max=total, queue_max=queue_max, timeout_ns=timeout_ms * NS_PER_MS)
    return AsyncSemaphore(limits, clock=SystemClock(), loop=asyncio.get_running_loop())


async def started(work: Coroutine[Any, Any, Permit]) -> asyncio.Task[Permit]:
    """A task that has come as far as it can."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


async def test_free_permits_are_had_without_a_turn_of_the_loop() -> None:
    semaphore = semaphore_of(10)
    with pytest.raises(StopIteration) as done:
        semaphore.acquire(3).send(None)
    assert done.value.value.size == 3
    assert semaphore.available == 7


async def test_who_waits_goes_on_when_permits_are_released() -> None:
    semaphore = semaphore_of(5)
    permit = await semaphore.acquire(5)
    task = await started(semaphore.acquire(3))
    assert semaphore.queue_size == 1
    semaphore.release(permit)
    assert (await task).size == 3
    assert (semaphore.available, semaphore.acquired, semaphore.queue_size) == (2, 3, 0)


async def test_who_waits_too_long_is_told_and_the_next_goes_on() -> None:
    semaphore = semaphore_of(10, timeout_ms=20)
    await semaphore.acquire(5)
    large = await started(semaphore.acquire(8))
    small = await started(semaphore.acquire(3, owner=Owner("t", 1)))
    with pytest.raises(PermitAcquireTimeout, match="8 permits did not come free within"):
        await large
    assert (await small).size == 3
    assert semaphore.snapshot().timeouts_total == 1


async def test_the_timer_is_believed_also_where_the_clock_lags_behind_it() -> None:
    limits = PermitLimits(permits_max=1, queue_max=1, timeout_ns=10 * NS_PER_MS)
    semaphore = AsyncSemaphore(limits, clock=ManualClock(), loop=asyncio.get_running_loop())
    await semaphore.acquire(1)
    with pytest.raises(PermitAcquireTimeout):
        await asyncio.wait_for(semaphore.acquire(1), 1)


async def test_many_who_time_out_together_are_all_told() -> None:
    semaphore = semaphore_of(1, queue_max=0, timeout_ms=20)
    await semaphore.acquire(1)
    outcomes = await asyncio.gather(*[semaphore.acquire(1) for _ in range(300)], return_exceptions=True)
    assert all(isinstance(outcome, PermitAcquireTimeout) for outcome in outcomes)


async def test_each_who_waits_has_a_deadline_of_its_own() -> None:
    semaphore = semaphore_of(1)
    await semaphore.acquire(1)
    now_ns = SystemClock().monotonic_ns()
    later = await started(semaphore.acquire(1, deadline_ns=now_ns + 40 * NS_PER_MS))
    sooner = await started(semaphore.acquire(1, deadline_ns=now_ns + 10 * NS_PER_MS))
    done, _ = await asyncio.wait([later, sooner], return_when=asyncio.FIRST_COMPLETED)
    assert done == {sooner}
    for task in (sooner, later):
        with pytest.raises(PermitAcquireTimeout):
            await task
    assert semaphore.queue_size == 0


async def test_an_update_waits_for_what_it_lacks_and_takes_the_place_of_the_old_permit() -> None:
    semaphore = semaphore_of(10)
    old, other = await semaphore.acquire(4), await semaphore.acquire(6)
    task = await started(semaphore.update(old, 8))
    semaphore.release(other)
    new = await task
    semaphore.release(old)
    assert (new.size, semaphore.acquired) == (8, 8)


async def test_what_cannot_be_is_told_at_once() -> None:
    semaphore = semaphore_of(5, queue_max=1)
    with pytest.raises(ValueError, match="Invalid negative permits value: -1"):
        await semaphore.acquire(-1)
    with pytest.raises(PermitsBeyondLimit):
        await semaphore.acquire(6)
    await semaphore.acquire(5)
    task = await started(semaphore.acquire(1))
    with pytest.raises(PermitAcquireQueueFull):
        await semaphore.acquire(1)
    task.cancel()


async def test_one_who_gives_way_is_told_while_the_newcomer_waits() -> None:
    semaphore = semaphore_of(1, queue_max=2)
    await semaphore.acquire(1)
    greedy = [await started(semaphore.acquire(1, owner=Owner("t", "greedy"))) for _ in range(2)]
    modest = await started(semaphore.acquire(1, owner=Owner("t", "modest")))
    with pytest.raises(PermitAcquireQueueFull):
        await greedy[1]
    assert not modest.done()
    for task in (greedy[0], modest):
        task.cancel()


async def test_a_cancelled_task_frees_its_place_and_those_behind_it_go_on() -> None:
    semaphore = semaphore_of(10)
    await semaphore.acquire(5)
    large = await started(semaphore.acquire(9))
    small = await started(semaphore.acquire(5))
    large.cancel()
    assert (await small).size == 5
    assert large.cancelled()
    assert semaphore.queue_size == 0


async def test_a_connection_that_is_gone_frees_all_its_places_in_the_same_call() -> None:
    semaphore = semaphore_of(1)
    permit = await semaphore.acquire(1)
    dead = [await started(semaphore.acquire(1, owner=Owner(tenant, 7))) for tenant in "ab"]
    alive = await started(semaphore.acquire(1, owner=Owner("a", 8)))
    semaphore.cancel(7)
    assert semaphore.queue_size == 1
    for task in dead:
        with pytest.raises(PermitAcquireCancelled):
            await task
    semaphore.release(permit)
    assert (await alive).size == 1


async def test_a_task_cancelled_in_the_turn_of_its_grant_gives_it_back() -> None:
    semaphore = semaphore_of(10)
    permit = await semaphore.acquire(10)
    task = await started(semaphore.acquire(10))
    semaphore.release(permit)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), semaphore.available) == (True, 10)


async def test_an_update_cancelled_in_the_turn_of_its_grant_leaves_the_old_permit_as_it_was() -> None:
    semaphore = semaphore_of(10)
    old, other = await semaphore.acquire(4), await semaphore.acquire(6)
    task = await started(semaphore.update(old, 8))
    semaphore.release(other)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (old.size, semaphore.acquired) == (4, 4)
    semaphore.release(old)
    assert semaphore.available == 10


async def test_a_task_cancelled_in_the_turn_of_its_refusal_leaves_no_error_behind_that_nobody_saw() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    semaphore = semaphore_of(1)
    await semaphore.acquire(1)
    task = await started(semaphore.acquire(1))
    semaphore.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del task
    gc.collect()
    assert errors == []


async def test_at_the_end_all_who_wait_are_told_and_nobody_is_granted_any_more() -> None:
    semaphore = semaphore_of(1)
    permit = await semaphore.acquire(1)
    task = await started(semaphore.acquire(1))
    semaphore.close()
    with pytest.raises(PermitAcquireAlreadyClosed):
        await task
    with pytest.raises(PermitAcquireAlreadyClosed):
        await semaphore.acquire(1)
    semaphore.release(permit)
    assert semaphore.available == 1


async def test_without_a_limit_nobody_waits_and_nothing_is_counted() -> None:
    semaphore = semaphore_of(0, queue_max=1, timeout_ms=0)
    permits = [await semaphore.acquire(10**9) for _ in range(5)]
    updated = await semaphore.update(permits[0], 10**12)
    assert (semaphore.acquired, semaphore.queue_size, updated.size) == (0, 0, 10**12)
    for permit in (*permits, updated):
        semaphore.release(permit)


async def test_a_change_of_limits_reaches_those_who_wait() -> None:
    semaphore = semaphore_of(5)
    await semaphore.acquire(5)
    task = await started(semaphore.acquire(4))
    semaphore.set_limits(PermitLimits(permits_max=9, queue_max=1, timeout_ns=0))
    assert (await task).size == 4


@pytest.mark.parametrize("seed", range(3))
async def test_two_hundred_tasks_that_come_go_and_are_cancelled_lose_no_permit(seed: int) -> None:
    semaphore, chance = semaphore_of(20, queue_max=0), random.Random(seed)
    most = 0

    async def work() -> None:
        nonlocal most
        permit = await semaphore.acquire(chance.randint(1, 10))
        try:
            await asyncio.sleep(0)
            permit = await semaphore.update(permit, chance.randint(0, 20))
            most = max(most, semaphore.acquired)
            await asyncio.sleep(0)
        finally:
            semaphore.release(permit)

    tasks = [asyncio.create_task(work()) for _ in range(200)]
    for _ in range(50):
        await asyncio.sleep(0)
        chance.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert any(task.cancelled() for task in tasks)
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    assert (semaphore.available, semaphore.queue_size) == (20, 0)
    assert 0 < most <= 20


async def test_when_nobody_waits_there_is_no_timer() -> None:
    semaphore = semaphore_of(1)
    permit = await semaphore.acquire(1)
    task = await started(semaphore.acquire(1))
    assert semaphore._timer is not None  # noqa: SLF001 - nothing else tells a timer that is left behind
    semaphore.release(permit)
    await task
    assert semaphore._timer is None  # noqa: SLF001
