# SPDX-License-Identifier: Apache-2.0
"""Small Arrow batches are joined, and no row changes its place."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import arrow_batches
from penstock.spark.arrow_batches import joined

SCHEMA = pa.schema([("number", pa.int64()), ("value", pa.binary())])


def batches_of(sizes: list[int], value: bytes = b"x") -> list[pa.RecordBatch]:
    edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(range(first, stop), pa.int64()), pa.array([value] * (stop - first), pa.binary())], schema=SCHEMA
        )
        for first, stop in pairwise(edges)
    ]


@given(st.lists(st.integers(1, 3_000), max_size=12))
def test_rows_keep_their_order_and_no_two_neighbours_would_have_fitted_in_one(sizes: list[int]) -> None:
    found = list(joined(batches_of(sizes)))
    assert [number for batch in found for number in batch["number"].to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows <= arrow_batches.ROWS_MAX and batch.schema == SCHEMA for batch in found)
    first = [batch.num_rows for batch in found[:1]]
    fitting = [rows for count in range(len(sizes) + 1) if (rows := sum(sizes[:count])) <= arrow_batches.ROWS_MAX]
    assert first == ([fitting[-1]] if sizes else [])


def test_large_values_are_not_held_back_beyond_the_limit_in_bytes() -> None:
    found = list(joined(batches_of([1] * 9, bytes(arrow_batches.BYTES_MAX // 4))))
    assert [batch.num_rows for batch in found] == [3, 3, 3]
    assert [batch.num_rows for batch in joined(batches_of([1, 2], bytes(2 * arrow_batches.BYTES_MAX)))] == [1, 2]


def test_a_batch_that_is_alone_is_handed_on_as_it_is() -> None:
    (batch,) = batches_of([arrow_batches.ROWS_MAX])
    assert next(joined([batch])) is batch
