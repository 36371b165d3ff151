# SPDX-License-Identifier: Apache-2.0
"""Callers that wait for another: who goes on when, and that no turn of the loop wakes all of them."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.net.loop import WOKEN_PER_TURN, GradualEvent
from tests.net.harness import until


async def test_all_who_waited_go_on_in_their_order_and_some_in_each_turn() -> None:
    room = GradualEvent(ManualClock(), asyncio.get_running_loop())
    gone: list[int] = []

    async def wait(number: int) -> None:
        assert await room.wait(None)
        gone.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(5 * WOKEN_PER_TURN)]
    await until(lambda: len(room) == len(tasks))
    room.release()
    most = before = 0
    while len(gone) < len(tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(gone) - before), len(gone)
    assert gone == list(range(len(tasks)))
    assert most <= 2 * WOKEN_PER_TURN


async def test_who_comes_after_a_release_waits_for_the_next_one() -> None:
    room = GradualEvent(ManualClock(), asyncio.get_running_loop())
    early = asyncio.ensure_future(room.wait(None))
    await until(lambda: len(room) == 1)
    room.release()
    late = asyncio.ensure_future(room.wait(None))
    assert await early
    await until(lambda: len(room) == 1)
    assert not late.done()
    room.release()
    assert await late


async def test_a_deadline_ends_the_wait_of_whoever_it_is_of_and_nobody_elses() -> None:
    clock = ManualClock()
    room = GradualEvent(clock, asyncio.get_running_loop())
    assert not await room.wait(0)
    patient = asyncio.ensure_future(room.wait(3_600 * NS_PER_S))
    hasty = [asyncio.ensure_future(room.wait(NS_PER_MS)) for _ in range(3 * WOKEN_PER_TURN)]
    assert await asyncio.gather(*hasty) == [False] * len(hasty)
    assert not patient.done()
    assert len(room) == 1
    room.release()
    assert await patient


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    room = GradualEvent(ManualClock(), asyncio.get_running_loop())
    task = asyncio.ensure_future(room.wait(NS_PER_S))
    await until(lambda: len(room) == 1)
    task.cancel()
    await asyncio.wait((task,))
    assert len(room) == 0
    assert room._deadlines._timer is None  # noqa: SLF001
    room.release()
