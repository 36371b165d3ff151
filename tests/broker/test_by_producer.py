# SPDX-License-Identifier: Apache-2.0
"""A run of several producers is split without losing or mixing entries, and sorted where that helps readers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.publishing.publish import by_producer
from penstock.core.units import KIB
from penstock.wire.events import PublishRun


def run_of(rows: list[tuple[int, int]], head: int = 7) -> PublishRun:
    """A run of these (producer id, length); every row's bytes, ids and counts tell it apart."""
    run, data = PublishRun(b""), bytearray()
    for row, (producer_id, length) in enumerate(rows):
        data += bytes(head)
        run.producer_ids.append(producer_id)
        run.sequence_ids.append(1000 + row)
        run.offsets.append(len(data))
        run.lengths.append(length)
        data += bytes([row % 251 + 1]) * length
    run.data = bytes(data)
    run.message_counts = [row + 1 for row in range(len(rows))]
    run.highest = [5000 + row for row in range(len(rows))]
    return run


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300)), min_size=2, max_size=60))
def test_every_producer_has_its_rows_in_their_order(rows: list[tuple[int, int]]) -> None:
    rows = [(0, 1), *rows]  # at least two producers
    run = run_of(rows)
    data, parts = by_producer(run, run.data)
    assert [producer_id for producer_id, _ in parts] == list(dict.fromkeys(run.producer_ids))
    for producer_id, entries in parts:
        mine = [row for row, (other, _) in enumerate(rows) if other == producer_id]
        assert list(entries.sequence_ids) == [1000 + row for row in mine]
        assert list(entries.highest or ()) == [5000 + row for row in mine]
        assert list(entries.message_counts or ()) == [row + 1 for row in mine]
        found = [data[at : at + n] for at, n in zip(entries.offsets, entries.lengths, strict=True)]
        assert found == [bytes([row % 251 + 1]) * rows[row][1] for row in mine]


def test_entries_of_a_producer_are_put_in_one_place_without_what_was_between_them() -> None:
    run = run_of([(1, 10), (2, 20), (1, 10), (2, 20)])
    data, parts = by_producer(run, run.data)
    assert data == b"\x01" * 10 + b"\x03" * 10 + b"\x02" * 20 + b"\x04" * 20
    assert [list(entries.offsets) for _, entries in parts] == [[0, 10], [20, 40]]


def test_single_entries_and_large_ones_stay_where_they_are() -> None:
    for rows in ([(1, 10), (2, 20)], [(1, 17 * KIB), (2, 17 * KIB), (1, 17 * KIB)]):
        run = run_of(rows)
        data, parts = by_producer(run, run.data)
        assert data is run.data
        assert [at for _, entries in parts for at in entries.offsets] == [
            run.offsets[row] for producer_id in (1, 2) for row in range(len(rows)) if rows[row][0] == producer_id
        ]
