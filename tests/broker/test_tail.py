# SPDX-License-Identifier: Apache-2.0
"""The tail cache: what it finds, and whom it forgets first."""

from __future__ import annotations

from penstock.broker.subscriptions.tail import COLUMNS_BYTES, Tail, TailCache
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


def test_scattered_entries_are_gathered_up_to_the_first_that_is_not_cached() -> None:
    cache, tail = TailCache(1_000), Tail()
    cache.add([(tail, Batch(LEDGER, range(10, 13), b"abc", range(3), [1] * 3, None))], 3)
    cache.add([(tail, Batch(LEDGER, range(13, 15), b"de", range(2), [1] * 2, [2, 3]))], 2)
    cache.add_gathered(tail, Batch(LEDGER, [2, 5, 9], b"xyz", range(3), [1] * 3, None))
    found = tail.gather([2, 9, 10, 12, 14, 16], 1_000)
    assert found is not None
    assert (list(found.entry_ids), bytes(found.data), found.message_counts) == (
        [2, 9, 10, 12, 14],
        b"xzace",
        [1, 1, 1, 1, 3],
    )
    assert tail.gather([3, 5], 1_000) is None
    few = tail.gather([2, 5, 10], 1)
    assert few is not None
    assert list(few.entry_ids) == [2, 5]


def test_what_was_gathered_goes_in_its_turn_and_counts_with_its_columns() -> None:
    cache, tail = TailCache(10 + 2 * COLUMNS_BYTES), Tail()
    cache.add_gathered(tail, Batch(LEDGER, [2, 5], b"x" * 6, range(2), [3] * 2, None))
    add(cache, tail, 10, 4)
    assert tail.gather([2], 100) is not None
    add(cache, tail, 14, 4)
    assert tail.gather([2], 100) is None
    assert tail.find(10) is not None
    assert cache.used_bytes == 8
