# SPDX-License-Identifier: Apache-2.0
"""Values typed by a topic's schema: the columns they make, and what is in them."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as spark

from penstock.spark import values
from penstock.spark.client.cluster import TopicSchema
from penstock.spark.client.errors import UnreadableValue
from penstock.wire.codec import Schema

RECORD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "last", "type": ["null", "Line"]},
        {"name": "tags", "type": {"type": "map", "values": ["int", "long"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "either", "type": ["null", "string", "int"]},
    ],
}  # fmt: skip


def schema(kind: int, definition: object = "") -> TopicSchema:
    text = b"" if definition == "" else json.dumps(definition).encode()
    return TopicSchema(kind, text, b"\0" * 8, {})


def no_other(version: bytes) -> TopicSchema | None:
    raise AssertionError(version)


def test_an_avro_record_makes_a_column_of_each_field() -> None:
    found = values.of_schema(schema(Schema.Avro, RECORD))
    line = spark.StructType([spark.StructField("sku", spark.StringType())])
    assert {one.name: one.dataType for one in found.fields} == {
        "id": spark.IntegerType(),
        "note": spark.StringType(),
        "total": spark.DecimalType(9, 2),
        "at": spark.TimestampType(),
        "day": spark.DateType(),
        "lines": spark.ArrayType(line),
        "last": line,
        "tags": spark.MapType(spark.StringType(), spark.LongType()),
        "kind": spark.StringType(),
        "either": spark.StringType(),
    }


def test_avro_values_are_decoded_and_unions_of_different_things_become_text() -> None:
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=dt.UTC)
    order = {
        "id": 7,
        "note": None,
        "total": Decimal("12.34"),
        "at": at,
        "day": dt.date(2024, 5, 6),
        "lines": [{"sku": "x"}],
        "last": {"sku": "y"},
        "tags": {"a": 2**40},
        "kind": "B",
        "either": 5,
    }
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(RECORD), order)
    decode = values.of_schema(schema(Schema.Avro, RECORD)).decoder("t", no_other)
    assert decode(into.getvalue(), b"") == {**order, "either": "5"}


def test_an_avro_value_is_read_with_the_schema_that_it_was_written_with() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {**old, "fields": [*old["fields"], {"name": "b", "type": "string", "default": "none"}]}
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(old), {"a": 3})
    asked: list[bytes] = []

    def by_version(version: bytes) -> TopicSchema:
        asked.append(version)
        return schema(Schema.Avro, old)

    decode = values.of_schema(schema(Schema.Avro, new)).decoder("t", by_version)
    assert [decode(into.getvalue(), b"v0") for _ in range(3)] == [{"a": 3, "b": "none"}] * 3
    assert asked == [b"v0"], "a version is asked for once"


def test_a_record_may_have_changed_its_name_and_what_else_differs_too_much_is_told() -> None:
    now = {"type": "record", "name": "new.Name", "fields": [{"name": "a", "type": "int"}]}
    before = {**now, "name": "Name", "namespace": "old"}
    other = {**now, "name": "Other"}
    texts = {**now, "fields": [{"name": "a", "type": "string"}]}
    written = {b"b": before, b"o": other, b"t": texts}
    decode = values.of_schema(schema(Schema.Avro, now)).decoder("orders", lambda one: schema(Schema.Avro, written[one]))
    assert [decode(b"\x06", version) for version in (b"b", b"o")] == [{"a": 3}] * 2
    with pytest.raises(UnreadableValue, match=r"orders.*another schema"):
        decode(b"\x02a", b"t")


def test_uuids_are_text_and_times_of_day_are_numbers_as_they_were_written() -> None:
    kinds = [("uuid", "string"), ("time-millis", "int"), ("time-micros", "long")]
    fields = [{"name": name, "type": ["null", {"type": kind, "logicalType": name}]} for name, kind in kinds]
    said = {"uuid": uuid.UUID(int=5), "time-millis": dt.time(0, 0, 2), "time-micros": dt.time(0, 0, 3)}
    into = io.BytesIO()
    record = {"type": "record", "name": "R", "fields": fields}
    fastavro.schemaless_writer(into, fastavro.parse_schema(record), said)
    decode = values.of_schema(schema(Schema.Avro, record)).decoder("t", no_other)
    expected = {"uuid": str(said["uuid"]), "time-millis": 2_000, "time-micros": 3_000_000}
    assert decode(into.getvalue(), b"") == expected


def test_json_values_get_the_types_that_json_does_not_have() -> None:
    said = {
        "id": 7,
        "total": "12.34",
        "at": 1_714_979_289_123,
        "lines": [{"sku": "x"}],
        "either": 5,
        "more": "than the schema says",
    }
    decode = values.of_schema(schema(Schema.Json, RECORD)).decoder("t", no_other)
    found: Any = decode(json.dumps(said).encode(), b"")
    assert found == {**said, "total": Decimal("12.34"), "at": 1_714_979_289_123_000, "either": "5"}


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        (Schema.String, "grün".encode(), "grün"),
        (Schema.String, b"\xff", "�"),
        (Schema.Bool, b"\x01", True),
        (Schema.Int8, b"\xff", -1),
        (Schema.Int32, struct.pack(">i", -5), -5),
        (Schema.Int64, struct.pack(">q", 2**40), 2**40),
        (Schema.Double, struct.pack(">d", 0.5), 0.5),
        (Schema.Timestamp, struct.pack(">q", 1000), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        (Schema.LocalDate, struct.pack(">q", 1), dt.date(1970, 1, 2)),
    ],
)
def test_simple_values_are_one_column_of_their_type(kind: int, written: bytes, read: object) -> None:
    found = values.of_schema(schema(kind))
    assert [one.name for one in found.fields] == ["value"]
    assert found.decoder("t", no_other)(written, b"") == read


@pytest.mark.parametrize("kind", [Schema.Protobuf, Schema.KeyValueSchema, Schema.ProtobufNative])
def test_what_has_no_columns_stays_bytes(kind: int) -> None:
    assert values.of_schema(schema(kind)) == values.of_schema(None)
    assert values.of_schema(None).kind is None


def test_a_record_that_contains_itself_is_refused_with_a_way_round() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
    with pytest.raises(ValueError, match="valueFormat=binary"):
        values.of_schema(schema(Schema.Avro, tree))


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (Schema.Json, b"{"),
        (Schema.Json, b"[1, 2]"),
        (Schema.Json, b'{"total": "much"}'),
        (Schema.Json, b'{"lines": 3}'),
        (Schema.Json, b"[" * 100_000),
        (Schema.Avro, b""),
        (Schema.Int32, b"\0"),
        (Schema.Timestamp, b"\x7f" * 8),
    ],
)
def test_a_value_that_does_not_read_is_told_with_its_topic(kind: int, written: bytes) -> None:
    with pytest.raises(UnreadableValue, match=r"orders.*valueFormat=binary"):
        values.of_schema(schema(kind, RECORD)).decoder("orders", no_other)(written, b"")
