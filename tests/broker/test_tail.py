# SPDX-License-Identifier: Apache-2.0
"""The tail cache: what it finds, and whom it forgets first."""

from __future__ import annotations

from penstock.broker.subscriptions.tail import Tail, TailCache
from penstock.storage.entry_log import Batch

LEDGER = 7


def batch(first: int, count: int) -> Batch:
    return Batch(LEDGER, range(first, first + count), b"x" * count, range(count), [1] * count, None)


def add(cache: TailCache, tail: Tail, first: int, count: int) -> None:
    cache.add([(tail, batch(first, count))], count)


def test_an_entry_is_found_with_its_row() -> None:
    cache, tail = TailCache(1_000), Tail()
    add(cache, tail, 0, 10)
    add(cache, tail, 10, 5)
    found = tail.find(12)
    assert found is not None
    assert (found[0].entry_ids, found[1]) == (range(10, 15), 2)


def test_entries_before_between_and_behind_what_is_cached_are_not_found() -> None:
    cache, tail = TailCache(1_000), Tail()
    add(cache, tail, 5, 5)
    add(cache, tail, 20, 5)
    assert [tail.find(entry_id) for entry_id in (4, 10, 19, 25)] == [None] * 4


def test_the_oldest_run_goes_first_whoever_it_belongs_to() -> None:
    cache, first, second = TailCache(10), Tail(), Tail()
    add(cache, first, 0, 5)
    add(cache, second, 0, 5)
    add(cache, second, 5, 5)
    assert first.find(0) is None
    assert second.find(0) is not None
    assert cache.used_bytes == 10


def test_a_run_of_many_topics_is_charged_once_and_leaves_all_of_them() -> None:
    cache, tails = TailCache(10), [Tail() for _ in range(3)]
    cache.add([(tail, batch(0, 2)) for tail in tails], 6)
    assert cache.used_bytes == 6
    add(cache, tails[0], 2, 10)
    assert [tail.find(0) for tail in tails] == [None] * 3
    assert tails[0].find(2) is not None


def test_a_run_larger_than_the_whole_budget_is_not_kept() -> None:
    cache, tail = TailCache(10), Tail()
    add(cache, tail, 0, 11)
    assert tail.find(0) is None
    assert cache.used_bytes == 0
