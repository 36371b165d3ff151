# SPDX-License-Identifier: Apache-2.0
"""Records in Avro that are decoded at once are what they are one by one, or are left to be decoded so."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark import values
from penstock.spark.avro_records import records
from penstock.spark.client.cluster import TopicSchema
from penstock.wire.codec import Schema

COUNT = 16  # from so many on, rows are decoded at once
# A type, and what can be written as it.
Type: TypeAlias = tuple[Any, st.SearchStrategy[Any]]
MILLIS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
LEAVES: list[Type] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=5)),
    ("string", st.text(max_size=5)),
    ({"type": "string", "avro.java.string": "String"}, st.text(max_size=300)),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, 86_399_999)),
    ({"type": "long", "logicalType": "time-micros"}, st.integers(0, 86_399_999_999)),
    ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS),
    ({"type": "long", "logicalType": "timestamp-micros"}, MICROS),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, MILLIS),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, MICROS),
]


def defined(name: str) -> list[Type]:
    """Types that have a name, which a schema says once."""
    symbols = ["A", "B", "C"]
    return [
        ({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols)),
        ({"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)),
    ]


@st.composite
def types(draw: st.DrawFn, name: str, depth: int = 0) -> Type:
    avro, said = draw(st.sampled_from([*LEAVES, *defined(name)]))
    if depth < 2 and draw(st.integers(0, 3)) == 0:
        within = draw(st.lists(types(name + "x", depth + 1), min_size=1, max_size=1))
        avro = {"type": "record", "name": name, "fields": [{"name": "x", "type": within[0][0]}]}
        said = st.fixed_dictionaries({"x": within[0][1]})
    if depth < 2 and draw(st.integers(0, 3)) == 0:
        items = draw(types(name + "a", depth + 1))
        avro, said = {"type": "array", "items": items[0]}, st.lists(items[1], max_size=3)
    if avro != "null" and draw(st.booleans()):
        avro = draw(st.sampled_from([["null", avro], [avro, "null"], [avro]]))
        said = said | st.none() if "null" in avro else said
    return avro, said


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """Types of fields, and records that have them."""
    fields = [draw(types(f"T{number}")) for number in range(draw(st.integers(1, 4)))]
    record = st.fixed_dictionaries({f"f{number}": said for number, (_, said) in enumerate(fields)})
    some = draw(st.lists(record, min_size=1, max_size=4))
    nulls: list[dict[str, Any] | None] = [None] * draw(st.integers(0, 1))
    return [avro for avro, _ in fields], (some * COUNT)[:COUNT] + nulls + some


def schema_of(fields: list[Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{number}", "type": avro} for number, avro in enumerate(fields)],
    }


def of_fields(fields: list[Any]) -> values.Values:
    return values.of_schema(TopicSchema(Schema.Avro, json.dumps(schema_of(fields)).encode(), b"", {}))


def wanted_of(found: values.Values) -> list[pa.Field]:
    return list(to_arrow_schema(StructType(list(found.fields)), timezone="UTC"))


def encoded(fields: list[Any], said: list[dict[str, Any] | None]) -> list[bytes | None]:
    schema = fastavro.parse_schema(schema_of(fields))
    written: list[bytes | None] = []
    for one in said:
        into = io.BytesIO()
        if one is not None:
            fastavro.schemaless_writer(into, schema, one)
        written.append(None if one is None else into.getvalue())
    return written


def at_once(found: values.Values, written: list[bytes | None]) -> list[pa.Array] | None:
    decoder = records(found, wanted_of(found), lambda _: None)
    assert decoder is not None
    return decoder.decode(pa.array(written, pa.binary()))


def one_by_one(found: values.Values, written: list[bytes | None]) -> list[pa.Array]:
    rows = values.decoded(found.decoder("t", lambda _: None), written, [b""] * len(written))
    return [pa.array([None if row is None else row[one.name] for row in rows], one.type) for one in wanted_of(found)]


@settings(max_examples=300, deadline=None)
@given(topics())
def test_records_read_at_once_as_they_do_one_by_one(topic: tuple[list[Any], list[dict[str, Any] | None]]) -> None:
    found, written = of_fields(topic[0]), encoded(*topic)
    columns, same = at_once(found, written), one_by_one(found, written)
    assert columns == (None if not any(written) else same)


@settings(max_examples=300, deadline=None)
@given(topics(), st.data())
def test_what_is_decoded_at_once_though_some_bytes_are_wrong_is_what_it_is_one_by_one(
    topic: tuple[list[Any], list[dict[str, Any] | None]], data: st.DataObject
) -> None:
    found, written = of_fields(topic[0]), encoded(*topic)
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(written) - 1))
        spoiled = bytearray(written[row] or b"\0")
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b"\xff" * 9 + b"\x01", b"\xfe" * 9 + b"\x01", b"\x80" * 12])
        )
        written[row] = bytes(spoiled)
    columns = at_once(found, written)
    if columns is not None:
        # What is no number is not equal to itself.
        same = one_by_one(found, written)
        assert [repr(one.to_pylist()) for one in columns] == [repr(one.to_pylist()) for one in same]


@pytest.mark.parametrize(
    ("avro", "odd"),
    [
        ("string", b""),
        ("string", b"\x04a"),
        ("string", b"\x02\xff"),
        ("string", b"\x01"),
        ("int", b"\x80\x80\x80\x80\x20"),
        ("long", b"\x80"),
        ("long", b"\x80" * 10 + b"\x00"),
        ("double", b"\0" * 7),
        (["null", "int"], b"\x04"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01"),
    ],
)
@pytest.mark.parametrize("row", [0, 7, COUNT - 1])
def test_a_value_that_does_not_read_is_left_to_who_decodes_one_by_one(avro: object, odd: bytes, row: int) -> None:
    written: list[bytes | None] = [b"\0" * 8] * COUNT
    written[row] = odd
    assert at_once(of_fields([avro]), written) is None


@pytest.mark.parametrize(
    "avro",
    [
        {"type": "array", "items": {"type": "map", "values": "int"}},
        {"type": "map", "values": "int"},
        ["int", "string"],
        ["int", "long"],
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "record", "name": "Empty", "fields": []},
        [{"type": "map", "values": "int"}, "null"],
    ],
)
def test_other_types_are_decoded_one_by_one(avro: object) -> None:
    found = of_fields([avro, "int"])
    assert records(found, wanted_of(found)[1:], lambda _: None) is None


def test_arrays_in_blocks_of_a_size_and_without_items_are_read_at_once() -> None:
    found = of_fields([{"type": "array", "items": "int"}])
    blocks = bytes.fromhex("03040206" + "0208" + "00")  # two items in two bytes of 1 and 3, then one, 4
    written: list[bytes | None] = [b"\0", blocks] * COUNT
    columns = at_once(found, written)
    assert columns is not None
    assert columns == one_by_one(found, written)
    assert columns[0].to_pylist()[:2] == [[], [1, 3, 4]]


def test_long_arrays_are_left_to_who_decodes_one_by_one() -> None:
    fields = [{"type": "array", "items": "int"}]
    said: list[dict[str, Any] | None] = [{"f0": list(range(count))} for count in (64, 65)]
    written = encoded(fields, said * COUNT)
    assert at_once(of_fields(fields), written[:1] * COUNT) is not None
    assert at_once(of_fields(fields), written) is None
    assert at_once(of_fields(fields), [b"\xff" * 9 + b"\x01"] * COUNT) is None


def test_a_type_is_defined_once_and_used_again() -> None:
    kind = {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": ["A", "B"]}
    found = of_fields([kind, "Kind", ["null", "shop.Kind"]])
    columns = at_once(found, [b"\x00\x02\x02\x02"] * COUNT)
    assert columns is not None
    assert [one.to_pylist() for one in columns] == [["A"] * COUNT, ["B"] * COUNT, ["B"] * COUNT]
    other = {**kind, "namespace": "toys", "symbols": ["B", "A"]}
    found = of_fields([kind, other, "toys.Kind"])
    assert records(found, wanted_of(found), lambda _: None) is None, "one name means two things"


def test_numbers_that_are_none_and_infinite_are_read_at_once() -> None:
    written: list[bytes | None] = [bytes.fromhex("000000000000f87f"), bytes.fromhex("000000000000f0ff")] * COUNT
    columns = at_once(of_fields(["double"]), written)
    assert columns is not None
    assert repr(columns[0].to_pylist()[:2]) == "[nan, -inf]"


def test_times_are_times_and_what_spark_has_no_type_for_is_what_was_written() -> None:
    noon = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
    fields = [
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "time-millis"},
        {"type": "string", "logicalType": "uuid"},
    ]
    record = {"f0": noon, "f1": dt.time(12), "f2": "12345678-1234-5678-1234-567812345678"}
    found, written = of_fields(fields), encoded(fields, [record] * COUNT)
    columns = at_once(found, written)
    assert columns is not None
    assert [one[0].as_py() for one in columns] == [noon, 12 * 3_600_000, record["f2"]]
    assert one_by_one(found, written) == columns
