# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.index import SegmentIndex, Span, Spans, at_or_after


def span(first: int, entries: int = 10, block: int = 0) -> Span:
    return Span(first, entries, block, 100, entries)


def test_the_span_that_holds_an_entry_is_found_or_else_the_next() -> None:
    spans = Spans.of([span(0), span(10), span(30)])
    assert [at_or_after(spans, entry_id) for entry_id in (0, 9, 10, 19, 20, 29, 30, 39, 40)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        2,
        2,
        3,
    ]


def test_consecutive_entries_of_one_block_are_one_span_even_when_interleaved() -> None:
    index = SegmentIndex(1)
    index.add_block(0, 500, [(1, 0, 2), (2, 0, 1), (1, 2, 1)], [10, 20, 30, 40])
    assert index.ledgers == {1: [Span(0, 3, 0, 500, 70)], 2: [Span(0, 1, 0, 500, 30)]}
    assert (index.bytes, index.entries) == (500, 4)


def test_entries_moved_from_older_segments_take_their_place_in_the_order() -> None:
    index = SegmentIndex(1)
    for first, block in ((100, 0), (110, 1), (20, 2), (120, 3)):
        index.add(1, span(first, block=block))
    assert [one.first_entry for one in index.ledgers[1]] == [20, 100, 110, 120]
    stretches = list(index.stretches({}))
    assert [(stretch.first_entry, stretch.last_entry) for stretch in stretches] == [(20, 29), (100, 129)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(0, 120))
def test_stretches_leave_out_what_lies_wholly_below_the_trim_point(sizes: list[int], trimmed: int) -> None:
    index = SegmentIndex(1)
    first = 0
    for number, size in enumerate(sizes):
        index.add(1, span(first, size, number))
        first += size + (number % 3 == 0)  # with gaps
    for stretch in index.stretches({1: trimmed}):
        assert stretch.last_entry >= trimmed
        ends = [one.end_entry for one in stretch.spans]
        assert [one.first_entry for one in stretch.spans[1:]] == ends[:-1]
    kept = {one for stretch in index.stretches({1: trimmed}) for one in stretch.spans}
    assert {one for one in index.ledgers[1] if one.end_entry > trimmed} <= kept


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 5), max_size=5))
def test_spans_are_stored_as_they_were(rows: list[tuple[int, int, int, int, int]]) -> None:
    spans = Spans.of(Span(*row) for row in rows)
    assert Spans.unpacked(spans.packed()) == [Span(*row) for row in rows]


def test_a_segment_of_small_blocks_takes_little_memory() -> None:
    """A client that publishes one small message at a time makes each a block: 400,000 in a segment of 64 MiB."""
    blocks = 50_000
    index = SegmentIndex(1)
    tracemalloc.start()
    try:
        for number in range(blocks):
            index.add_block(number * 160, 160, [(1 + number % 2, number // 2, 1)], [50])
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert index.entries == blocks
    assert held_bytes <= 32 * blocks
