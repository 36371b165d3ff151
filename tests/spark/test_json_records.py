# SPDX-License-Identifier: Apache-2.0
"""Records in JSON that are decoded at once are what they are one by one, or are left to be decoded so."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark import values
from penstock.spark.client.cluster import TopicSchema
from penstock.spark.client.errors import UnreadableValue
from penstock.spark.json_records import records
from penstock.wire.codec import Schema

COUNT = 16  # from so many on, rows are decoded at once
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
DOUBLE = st.floats(allow_nan=False)
# Milliseconds that are a time in microseconds, too.
MILLIS = st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INT32),
    ("long", INT64),
    ("double", DOUBLE | INT64),
    ("string", st.text()),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from("AB")),
]
AT_THE_TOP: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("float", DOUBLE | INT32),
    ({"type": "int", "logicalType": "date"}, INT32),
    ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS),
    ({"type": "long", "logicalType": "timestamp-micros"}, INT64),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, MILLIS),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | INT64 | DOUBLE | st.text(max_size=4),
    lambda some: st.lists(some, max_size=2) | st.dictionaries(st.text(max_size=2), some, max_size=2),
    max_leaves=4,
)


def nullable(one: tuple[Any, st.SearchStrategy[Any]]) -> tuple[Any, st.SearchStrategy[Any]]:
    return ["null", one[0]], st.none() | one[1]


def listed(one: tuple[Any, st.SearchStrategy[Any]]) -> tuple[Any, st.SearchStrategy[Any]]:
    return {"type": "array", "items": one[0]}, st.lists(one[1], max_size=3)


def inside(one: tuple[Any, st.SearchStrategy[Any]]) -> tuple[Any, st.SearchStrategy[Any]]:
    avro = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": one[0]}]}
    return avro, st.fixed_dictionaries({}, optional={"x": one[1], "unknown": ANYTHING})


FIELD = st.sampled_from(
    [*LEAVES, *map(nullable, [*LEAVES, *AT_THE_TOP]), *map(listed, LEAVES), *map(inside, LEAVES), *AT_THE_TOP]
)


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """Types of fields, and some records with these and other fields."""
    fields = draw(st.lists(FIELD, min_size=1, max_size=4))
    there = {f"f{number}": said for number, (_, said) in enumerate(fields)}
    record = st.fixed_dictionaries({}, optional={**there, "unknown": ANYTHING})
    some = draw(st.lists(st.none() | record, min_size=1, max_size=4))
    return [avro for avro, _ in fields], (some * COUNT)[: COUNT + 1]


def of_fields(types: list[Any]) -> values.Values:
    fields = [{"name": f"f{number}", "type": avro} for number, avro in enumerate(types)]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    return values.of_schema(TopicSchema(Schema.Json, definition, b"", {}))


def wanted_of(found: values.Values) -> pa.Schema:
    return to_arrow_schema(StructType(list(found.fields)), timezone="UTC")


def at_once(found: values.Values, written: list[bytes | None]) -> list[pa.Array] | None:
    decoder = records(found, list(wanted_of(found)))
    assert decoder is not None
    return decoder.decode(pa.array(written, pa.binary()))


def one_by_one(found: values.Values, written: list[bytes | None]) -> list[pa.Array]:
    rows = values.decoded(found.decoder("t", lambda _: None), written, [b""] * len(written))
    return [
        pa.array([None if row is None else row.get(one.name) for row in rows], one.type) for one in wanted_of(found)
    ]


def lines(said: list[dict[str, Any] | None], indent: int | None = None) -> list[bytes | None]:
    return [None if one is None else json.dumps(one, indent=indent).encode() for one in said]


@settings(max_examples=200, deadline=None)
@given(topics(), st.sampled_from([None, 1]))
def test_records_read_at_once_as_they_do_one_by_one(
    topic: tuple[list[Any], list[dict[str, Any] | None]], indent: int | None
) -> None:
    found, written = of_fields(topic[0]), lines(topic[1], indent)
    assert at_once(found, written) == one_by_one(found, written)


@settings(max_examples=200, deadline=None)
@given(topics(), st.data())
def test_what_is_decoded_at_once_though_some_bytes_are_wrong_is_what_it_is_one_by_one(
    topic: tuple[list[Any], list[dict[str, Any] | None]], data: st.DataObject
) -> None:
    found, written = of_fields(topic[0]), lines(topic[1])
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(written) - 1))
        spoiled = bytearray(written[row] or b"{}")
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(b'{}[]":,\\ 0-\n\xff\x01e').map(
            lambda byte: bytes([byte])) | st.just(b"") | st.just(b"}{") | st.just(b'{"f0":1}'))  # fmt: skip
        written[row] = bytes(spoiled)
    columns = at_once(found, written)
    assert columns is None or columns == one_by_one(found, written)


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"7",
        b'{"f0":"a"}{"f0":"b"}',
        b'{"f0":"a"',
        b'{"f0":"\xff"}',
        b'{"unknown":"\xff"}',
        b'{"f0":"\\ud800"}',
        b'{"f0":1}',
        b'{"f1":"1"}',
        b'{"f1":1.0}',
        b'{"f1":9223372036854775808}',
        b' {"f0":"a"}',
        b'\xef\xbb\xbf{"f0":"a"}',
        '{"f0":"a"}'.encode("utf-16-le"),
        b'{"f0":"a","f0":"b"}',
        b"null",
    ],
)
@pytest.mark.parametrize("row", [0, 7, COUNT - 1])
def test_a_value_out_of_the_ordinary_is_left_to_who_decodes_one_by_one(odd: bytes, row: int) -> None:
    written: list[bytes | None] = [b'{"f0":"a","f1":1}'] * COUNT
    written[row] = odd
    assert at_once(of_fields(["string", "long"]), written) is None


@pytest.mark.parametrize(("first", "second"), [(b'{"f0":"}', b'{","f1":1}'), (b'{"f1":1,"x":{}', b"{}}")])
def test_two_values_are_not_taken_for_one(first: bytes, second: bytes) -> None:
    written: list[bytes | None] = [*[b"{}"] * COUNT, first, second, b'{"f1":2}{"f1":3}']
    assert at_once(of_fields(["string", "long"]), written) is None


def test_a_column_that_nobody_wants_is_not_looked_at() -> None:
    found = of_fields(["long", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}])
    (wanted, _) = wanted_of(found)
    written = b'{"f0":1,"f1":"much"}'
    assert records(found, list(wanted_of(found))) is None
    decoder = records(found, [wanted])
    assert decoder is not None
    assert decoder.decode(pa.array([written] * COUNT)) == [pa.array([1] * COUNT)]
    assert found.decoder("t", lambda _: None, {"f0"})(written, b"")["f0"] == 1
    with pytest.raises(UnreadableValue):
        found.decoder("t", lambda _: None)(written, b"")


@pytest.mark.parametrize(
    "avro",
    ["bytes", {"type": "map", "values": "int"}, {"type": "array", "items": "float"},
     {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}],
)  # fmt: skip
def test_types_that_json_does_not_have_are_decoded_one_by_one(avro: object) -> None:
    found = of_fields([avro])
    assert records(found, list(wanted_of(found))) is None


def test_infinity_and_no_number_are_read_at_once() -> None:
    written: list[bytes | None] = [b'{"f0":Infinity}', b'{"f0":-Infinity}', b'{"f0":NaN}'] * COUNT
    columns = at_once(of_fields(["double"]), written)
    assert columns is not None
    assert repr(columns[0].to_pylist()[:3]) == "[inf, -inf, nan]"
