# SPDX-License-Identifier: Apache-2.0
"""Pairs are written as a topic's KeyValue schema says, and read back as they were."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark import key_values, values
from penstock.spark.key_value_format import PairFormat
from penstock.spark.value_formats import format_of
from penstock.spark.write_columns import UnwritableColumns, WriteColumns
from penstock.wire.codec import Schema
from tests.spark.ddl import struct_of
from tests.spark.test_key_values import PERSON, PERSONS, key_value_schema, pair

if TYPE_CHECKING:
    from penstock.spark.client.cluster import TopicSchema

NUMBERED = key_value_schema("INT32", "AVRO", pair(b"", json.dumps(PERSON).encode()), "SEPARATED")
ROWS = "key string, value struct<name: string, age: int>"


def written(rows: list[dict[str, Any]], ddl: str, present: TopicSchema) -> tuple[PairFormat, pa.Array, pa.StructArray]:
    """Write rows whose columns are `key` and `value`, in this order or the other."""
    schema = struct_of(ddl)
    columns = WriteColumns(schema)
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(schema, timezone="UTC"))
    how = format_of("t", columns.value, present, "")
    assert isinstance(how, PairFormat)
    assert how.schema is not None
    assert (how.schema.type, how.schema.schema_data) == (present.kind, present.definition)
    assert {one.key: one.value for one in how.schema.properties} == present.properties
    found = columns.values(batch)
    return how, how.encoded(found), found


def read(found: list[bytes | None], present: TopicSchema) -> list[Any]:
    return values.decoded(values.of_schema(present).decoder("t", lambda _version: present), found, [b""] * len(found))


def test_pairs_that_are_inline_are_read_back() -> None:
    rows: list[dict[str, Any]] = [
        {"key": "k", "value": {"name": "Ada", "age": 36}},
        {"key": None, "value": {"name": "Bo", "age": 1}},
        {"key": "l", "value": None},
    ]
    how, encoded, found = written(rows, ROWS, PERSONS)
    assert encoded[0].as_py() == pair(b"k", b'{"name":"Ada","age":36}')
    assert encoded[2].as_py() == pair(b"l", None)
    assert how.keys(found) is None
    assert read(encoded.to_pylist(), PERSONS) == rows


def test_keys_that_are_separated_are_those_of_messages_in_base64() -> None:
    """As Java sends them, and chooses their partitions."""
    rows: list[dict[str, Any]] = [{"key": 7, "value": {"name": "Ada", "age": 36}}, {"key": None, "value": None}]
    how, encoded, found = written(rows, "value struct<name: string, age: int>, key int", NUMBERED)
    keys = how.keys(found)
    assert keys is not None
    assert keys.to_pylist() == [b64encode(b"\0\0\0\x07"), None]
    assert encoded[1].as_py() is None
    joined = key_values.joined([b"\0\0\0\x07"], encoded.to_pylist()[:1]).to_pylist()
    assert read(joined, NUMBERED) == rows[:1]
    schema = struct_of("key int, value struct<name: string, age: int>, __key binary")
    batch = pa.RecordBatch.from_pylist(
        [{"key": 7, "value": {"name": "Ada", "age": 36}, "__key": b"other"}],
        to_arrow_schema(schema),
    )
    messages = WriteColumns(schema).messages(batch, encoded[:1], now_ms=0, own_key=keys[:1])
    assert messages.key is not None
    assert messages.key_is_base64 is not None
    assert (messages.key[0].as_py(), messages.key_is_base64[0].as_py()) == (keys[0].as_py(), True)


def test_a_struct_of_both_is_a_pair_too_and_a_null_of_it_is_null() -> None:
    rows: list[dict[str, Any]] = [{"value": {"key": "k", "value": {"name": "Ada", "age": 36}}}, {"value": None}]
    ddl = "value struct<key: string, value: struct<name: string, age: int>>"
    _, encoded, _ = written(rows, ddl, PERSONS)
    assert encoded.to_pylist() == [pair(b"k", b'{"name":"Ada","age":36}'), None]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("value string", "write columns key and value and no others"),
        ("key int, value struct<name: string, age: int>", "column key is int, and t has a schema of type STRING"),
        ("key string, value struct<name: string, size: int>", "no field for size"),
        ("key string, value string", "column value is string, and t has a schema of type JSON"),
    ],
)
def test_columns_that_are_no_such_pair_are_refused(ddl: str, said: str) -> None:
    with pytest.raises(UnwritableColumns, match=said):
        format_of("t", WriteColumns(struct_of(ddl)).value, PERSONS, "")


def test_json_and_avro_are_of_the_parts_and_not_of_a_pair() -> None:
    with pytest.raises(UnwritableColumns, match="leave out valueFormat"):
        format_of("t", struct_of(ROWS), PERSONS, "json")


def test_bytes_are_parts_as_they_are() -> None:
    plain = key_value_schema("BYTES", "BYTES", pair(b"", b""), "INLINE")
    assert plain.kind == Schema.KeyValueSchema
    _, encoded, _ = written([{"key": b"\xff", "value": b"v"}], "key binary, value binary", plain)
    assert encoded[0].as_py() == pair(b"\xff", b"v")
