# SPDX-License-Identifier: Apache-2.0
"""Small runs do not stand behind large ones of others, and everything that must keep its order does."""

from __future__ import annotations

import random

import pytest

from penstock.core.units import KIB, MIB
from penstock.storage.journal import SMALL_BYTES_MAX, AppendQueue
from penstock.storage.runs import AppendRun

ROOM = 8 * MIB
LARGE = 5 * MIB


def run(owner: int | None, ledgers: int | list[int], nbytes: int) -> AppendRun:
    """A run of one entry for each ledger."""
    ledgers = [ledgers] if isinstance(ledgers, int) else ledgers
    rows = len(ledgers)
    return AppendRun(
        groups=[(ledger, 0, 1) for ledger in ledgers],
        offsets=[0] * rows,
        lengths=[nbytes] * rows,
        message_counts=None,
        data=bytes(nbytes),
        done=lambda _run, _error: None,
        owner=owner,
    )


def gather(queue: AppendQueue, room: int = ROOM) -> list[AppendRun]:
    """One commit."""
    return queue.gather(lambda _first: room)


def test_a_small_run_waits_for_none_of_the_large_ones_that_came_before_it() -> None:
    queue = AppendQueue()
    large = [run(row, row, LARGE) for row in range(10)]
    for one in large:
        queue.put(one)
    small = run(99, 99, KIB)
    queue.put(small)
    assert gather(queue) == [small, large[0]]


def test_runs_of_one_connection_and_of_one_ledger_keep_their_order() -> None:
    for owner, ledger in ((1, 99), (99, 1)):
        queue = AppendQueue()
        large, small = run(1, 1, LARGE), run(owner, ledger, KIB)
        queue.put(large)
        queue.put(small)
        assert gather(queue) == [large, small]


def test_a_run_without_an_owner_waits_for_all_before_it_and_none_of_them_for_it() -> None:
    queue = AppendQueue()
    runs = [run(1, 1, LARGE), run(2, 2, KIB), run(3, 3, LARGE), run(4, 4, KIB)]
    for one in runs:
        queue.put(one)
    barrier = run(None, [], 0)
    queue.put(barrier)
    order = [one for _ in range(2) for one in gather(queue)]
    assert order[-1] is barrier
    assert queue.empty


def test_a_large_run_is_not_passed_over_twice() -> None:
    queue = AppendQueue()
    queue.put(run(1, 1, LARGE))
    commits = []
    for _ in range(3):
        for row in range(200):  # more small ones than a commit holds, again and again
            queue.put(run(100 + row, 100 + row, SMALL_BYTES_MAX - KIB))
        commits.append(any(one.owner == 1 for one in gather(queue)))
    assert commits == [False, True, False]


def test_while_large_runs_wait_small_ones_have_half_of_a_commit() -> None:
    queue = AppendQueue()
    for row in range(100):
        queue.put(run(1_000 + row, 1_000 + row, 256 * KIB))
    for row in range(1_000):
        queue.put(run(row, row, SMALL_BYTES_MAX - KIB))
    runs = gather(queue)
    large = sum(one.block_bytes for one in runs if (one.owner or 0) >= 1_000)
    assert 0.4 * ROOM <= large <= 0.6 * ROOM
    assert sum(one.block_bytes for one in runs) <= ROOM


def test_a_commit_of_small_runs_of_many_sizes_has_no_more_than_its_room() -> None:
    queue = AppendQueue()
    for row in range(100):
        queue.put(run(row, row, KIB if row == 0 else SMALL_BYTES_MAX - KIB))
    runs = gather(queue, 10 * SMALL_BYTES_MAX)
    assert sum(one.block_bytes for one in runs) <= 10 * SMALL_BYTES_MAX
    assert len(runs) == 11


def test_a_ledger_whose_large_runs_are_written_stands_behind_nobody_any_more() -> None:
    queue = AppendQueue()
    for _ in range(2):
        queue.put(run(1, 1, LARGE))
    first, second = gather(queue), gather(queue)
    assert len(first) == len(second) == 1
    large, small = run(2, 2, LARGE), run(1, 1, KIB)
    queue.put(large)
    queue.put(small)
    assert gather(queue) == [small, large]


def test_after_the_close_what_waits_is_gathered_and_then_nothing() -> None:
    queue = AppendQueue()
    one = run(1, 1, KIB)
    queue.put(one)
    queue.close()
    assert gather(queue) == [one]
    assert gather(queue) == []


@pytest.mark.parametrize("seed", range(100))
def test_whatever_comes_nothing_is_lost_and_orders_are_kept(seed: int) -> None:
    chance, queue = random.Random(seed), AppendQueue()
    put: list[AppendRun] = []
    taken: list[AppendRun] = []
    for _ in range(300):
        room = chance.choice((MIB, 2 * MIB))
        if chance.random() < 0.7:
            owner = None if chance.random() < 0.05 else chance.randrange(6)
            ledgers = sorted(chance.sample(range(8), chance.randrange(3)))
            put.append(run(owner, ledgers, chance.choice((1, KIB, SMALL_BYTES_MAX, 300 * KIB, MIB))))
            queue.put(put[-1])
        elif not queue.empty:
            runs = gather(queue, room)
            assert sum(one.block_bytes for one in runs) <= max(room, runs[0].block_bytes)
            taken += runs
    while not queue.empty:
        taken += gather(queue)
    assert sorted(map(id, taken)) == sorted(map(id, put))
    at = {id(one): place for place, one in enumerate(taken)}
    for index, later in enumerate(put):
        for earlier in put[:index]:
            if at[id(earlier)] < at[id(later)]:
                continue
            # It was overtaken: nothing says that it must not be.
            assert later.owner is not None
            assert later.owner != earlier.owner
            assert not {group[0] for group in later.groups} & {group[0] for group in earlier.groups}
            assert later.block_bytes <= SMALL_BYTES_MAX
