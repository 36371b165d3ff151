# SPDX-License-Identifier: Apache-2.0
"""The limit of concurrent operations: those beyond it are refused or wait, and no place is lost."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
from penstock.core.errors import TooManyRequests, WireCode


async def test_who_comes_beyond_the_limit_is_refused_until_somebody_leaves() -> None:
    limit = ConcurrencyLimit(lambda: 1)
    with limit.enter_or_refuse("lookup", "maxConcurrentLookupRequest"):
        with (
            pytest.raises(TooManyRequests, match="maxConcurrentLookupRequest") as refused,
            limit.enter_or_refuse("lookup", "maxConcurrentLookupRequest"),
        ):
            pass
        assert refused.value.wire_code == WireCode.TOO_MANY_REQUESTS
    with limit.enter_or_refuse("lookup", "maxConcurrentLookupRequest"):
        assert limit.inside == 1
    assert limit.inside == 0


async def test_a_place_is_given_back_when_what_was_done_there_fails() -> None:
    limit = ConcurrencyLimit(lambda: 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limit.enter_or_refuse("lookup", "key"):
            raise ZeroDivisionError
    assert limit.inside == 0


async def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    limit, order = ConcurrencyLimit(lambda: 2), list[int]()
    may_leave = [asyncio.Event() for _ in range(6)]

    async def visit(number: int) -> None:
        async with limit.turn():
            order.append(number)
            await may_leave[number].wait()

    visits = [asyncio.create_task(visit(number)) for number in range(6)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    for number in range(6):
        may_leave[number].set()
        await visits[number]
        assert limit.inside <= 2
    assert order == list(range(6))
    assert limit.inside == 0


async def test_whoever_stops_waiting_leaves_the_place_to_the_next() -> None:
    limit = ConcurrencyLimit(lambda: 1)
    entered = asyncio.Event()

    async def visit() -> None:
        async with limit.turn():
            entered.set()

    async with limit.turn():
        gone, granted, last = (asyncio.create_task(visit()) for _ in range(3))
        await asyncio.sleep(0)
        gone.cancel()
    # `granted` has the place by now, and is cancelled before it can take it.
    granted.cancel()
    await last
    assert entered.is_set()
    assert limit.inside == 0


async def test_a_limit_may_change_while_some_are_inside() -> None:
    most = 1
    limit = ConcurrencyLimit(lambda: most)
    async with limit.turn():
        most = 2
        async with limit.turn():
            assert limit.inside == 2
