# SPDX-License-Identifier: Apache-2.0
"""Columns become batches that say of each message what its row said."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.entries import Messages, batches, encoded_properties, said_of
from penstock.wire.codec import SingleMessageMetadata

TEXTS = pa.map_(pa.string(), pa.string())
Row = tuple[bytes | None, bytes | None, bool, int | None, list[tuple[str, str]] | None]

ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | st.text(max_size=5).map(str.encode),
        st.booleans(),
        st.none() | st.integers(0, 2**42),
        st.none()
        | st.lists(st.tuples(st.text(max_size=4), st.text(max_size=200)), max_size=3, unique_by=lambda p: p[0]),
    ),
    max_size=12,
)


def messages_of(rows: list[Row]) -> Messages:
    """The rows as columns."""
    values, keys, marks, times, properties = ([row[place] for row in rows] for place in range(5))
    return Messages(
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
        pa.array(marks, pa.bool_()),
        pa.array(times, pa.int64()),
        encoded_properties(pa.array(properties, TEXTS)),
    )


def read(payload: memoryview, count: int) -> list[tuple[bytes, SingleMessageMetadata]]:
    """What a consumer makes of a batch."""
    data, at, found = bytes(payload), 0, []
    for _ in range(count):
        begin = at + 4 + int.from_bytes(data[at : at + 4], "big")
        said = SingleMessageMetadata.FromString(data[at + 4 : begin])
        at = begin + said.payload_size
        found.append((data[begin:at], said))
    assert at == len(data)
    return found


def agrees(row: Row, value: bytes, said: SingleMessageMetadata) -> bool:
    """Whether a message is what its row says."""
    want, key, mark, time_ms, properties = row
    return (
        (None if said.null_value else value) == want
        and (said.partition_key.encode() if said.HasField("partition_key") else None) == key
        and said.partition_key_b64_encoded == mark
        and (said.event_time if said.HasField("event_time") else None) == time_ms
        and [(pair.key, pair.value) for pair in said.properties] == (properties or [])
    )


@given(rows=ROWS, rows_max=st.integers(1, 5), bytes_max=st.integers(1, 600), start=st.integers(0, 3))
def test_every_row_is_in_one_batch_in_its_place_whatever_the_limits(
    rows: list[Row], rows_max: int, bytes_max: int, start: int
) -> None:
    messages = messages_of(rows).slice(start, max(0, len(rows) - start))
    at = 0
    for batch in batches(messages, rows_max=rows_max, bytes_max=bytes_max):
        assert batch.first_row == at
        assert 1 <= batch.rows <= rows_max
        assert len(batch.payload) <= bytes_max or batch.rows == 1
        for value, said in read(batch.payload, batch.rows):
            assert agrees(rows[start + at], value, said)
            at += 1
    assert at == len(messages.value)


@given(rows=ROWS)
def test_a_message_sent_alone_says_what_it_says_in_a_batch(rows: list[Row]) -> None:
    messages = messages_of(rows)
    for index, row in enumerate(rows):
        said = said_of(messages, index)
        if row[3] == 0:  # Zero means that there is no event time, and is not said.
            said.event_time = 0
        value = row[0]
        assert agrees((*row[:2], row[2] and row[1] is not None, *row[3:]), value or b"", said)


def test_a_batch_is_as_full_as_its_limit_allows() -> None:
    messages = Messages(pa.array([b"x" * 94] * 10))  # 100 bytes each, with what stands before
    assert [batch.rows for batch in batches(messages, rows_max=100, bytes_max=300)] == [3, 3, 3, 1]
    assert [batch.rows for batch in batches(messages, rows_max=100, bytes_max=299)] == [2] * 5


def test_properties_of_a_slice_are_those_of_its_rows() -> None:
    column = pa.array([[("a", "1")], None, [("b", "2"), ("c", "3")], []], TEXTS)
    whole = encoded_properties(column).to_pylist()
    assert encoded_properties(column.slice(1, 2)).to_pylist() == whole[1:3]
    assert whole[1] == whole[3] == b""


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_make_few_batches(rows: int) -> None:
    messages = Messages(pa.array([b""] * rows, pa.binary()))
    assert sum(batch.rows for batch in batches(messages, rows_max=10, bytes_max=10)) == rows
