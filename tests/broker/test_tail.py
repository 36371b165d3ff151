# SPDX-License-Identifier: Apache-2.0
"""The tail cache: what it finds, and whom it forgets first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.subscriptions.tail import COLUMNS_BYTES, FRAMES_MIN, Tail, TailCache
from penstock.storage.entry_log import Batch
from penstock.wire.deliveries import JOIN_BYTES_MAX, encode_messages
from penstock.wire.varints import LOW_BITS

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

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


def published(lengths: list[int], first: int = 0, count_each: int = 1) -> Batch:
    """Entries behind a header of 20 bytes each, as a run of publishes has them."""
    offsets = [20 * (row + 1) + sum(lengths[:row]) for row in range(len(lengths))]
    data = b"".join(b"h" * 20 + bytes([row % 256]) * length for row, length in enumerate(lengths))
    return Batch(LEDGER, range(first, first + len(lengths)), data, offsets, lengths, [count_each] * len(lengths))


@given(
    lengths=st.lists(st.integers(1, 300), min_size=FRAMES_MIN, max_size=40),
    consumer=st.tuples(st.sampled_from([0, 3, 300]), st.sampled_from([None, 0, 4])),
    partition=st.sampled_from([-1, 5]),
    start=st.integers(0, FRAMES_MIN - 1),
)
def test_frames_that_replace_a_run_are_those_that_its_entries_would_get(
    lengths: list[int], consumer: tuple[int, int | None], partition: int, start: int
) -> None:
    cache, tail, run = TailCache(1 << 20), Tail(), published(lengths, 1_000, 2)
    cache.add([(tail, run)], len(run.data))
    before = cache.used_bytes
    encoded = tail.encoded(run, partition, consumer)
    assert encoded is not None
    rows = slice(start, len(lengths))
    expected: list[Buffer] = []
    encode_messages(
        expected,
        consumer[0],
        LEDGER,
        partition,
        run.entry_ids[rows],
        run.data,
        run.offsets[rows],
        lengths[rows],
        None,
        consumer[1],
    )
    assert bytes(encoded.frames(start, len(lengths))) == b"".join(expected)
    assert [bytes(entry) for _, entry in encoded.entries()] == [bytes(entry) for _, entry in run.entries()]
    assert (encoded.entry_ids, encoded.message_counts) == (run.entry_ids, run.message_counts)
    assert tail.find(1_000) == (encoded, 0)
    assert tail.encoded(run, partition, (9, None)) is encoded
    assert tail.encoded(encoded, partition, consumer) is encoded
    assert cache.used_bytes == before


@pytest.mark.parametrize(
    "run",
    [
        published([10] * (FRAMES_MIN - 1)),
        published([10] * FRAMES_MIN + [JOIN_BYTES_MAX + 1]),
        published([10] * FRAMES_MIN, (1 << LOW_BITS) - 3),
    ],
)
def test_runs_that_have_no_frames_stay_as_they_are(run: Batch) -> None:
    cache, tail = TailCache(1 << 20), Tail()
    cache.add([(tail, run)], len(run.data))
    assert tail.encoded(run, -1, (0, None)) is None
    assert tail.find(run.entry_ids[0]) == (run, 0)


def test_data_that_several_topics_share_is_not_copied_for_one_of_them() -> None:
    cache, tails, run = TailCache(1 << 20), [Tail(), Tail()], published([10] * FRAMES_MIN)
    cache.add([(tail, run) for tail in tails], len(run.data))
    assert tails[0].encoded(run, -1, (0, None)) is None


def test_what_was_read_from_the_log_is_not_taken_for_what_is_cached() -> None:
    cache, tail, run = TailCache(1 << 20), Tail(), published([10] * FRAMES_MIN)
    cache.add([(tail, run)], len(run.data))
    assert tail.encoded(published([10] * FRAMES_MIN), -1, (0, None)) is None
    assert tail.encoded(published([10] * FRAMES_MIN, 500), -1, (0, None)) is None
    assert tail.encoded(run, -1, (0, None)) is not None
    assert tail.encoded(published([10] * FRAMES_MIN), -1, (0, None)) is None


def test_frames_leave_with_their_run() -> None:
    run = published([10] * FRAMES_MIN)
    cache, tail = TailCache(2 * len(run.data)), Tail()
    cache.add([(tail, run)], len(run.data))
    assert tail.encoded(run, -1, (0, None)) is not None
    following = published([10] * FRAMES_MIN, FRAMES_MIN)
    cache.add([(tail, following)], 2 * len(run.data))
    assert tail.find(0) is None
    assert tail.alone == {FRAMES_MIN}
