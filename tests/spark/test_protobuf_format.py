# SPDX-License-Identifier: Apache-2.0
"""Structs become the messages that a topic's PROTOBUF_NATIVE schema describes, and are read back as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark import values
from penstock.spark.client.cluster import TopicSchema
from penstock.spark.value_formats import format_of
from penstock.spark.write_columns import UnwritableColumns
from penstock.wire.codec import Schema
from tests.spark.ddl import struct_of
from tests.spark.test_key_values import native_schema, order_file

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

ORDER = (
    "id decimal(20,0), amount double, color string, items array<struct<sku: string>>, first struct<sku: string>, "
    "raw binary, tags map<string, int>, count bigint, at timestamp, ok boolean"
)
FULL: dict[str, Any] = {
    "id": Decimal((1 << 64) - 1), "amount": 1.5, "color": "BLUE", "items": [{"sku": "a"}, {"sku": "b"}],
    "first": {"sku": ""}, "raw": b"\0", "tags": {"x": 3, "y": 0}, "count": (1 << 32) - 1,
    "at": dt.datetime(1969, 2, 28, 12, 30, 0, 123_456, tzinfo=dt.UTC), "ok": True,
}  # fmt: skip
EMPTY: dict[str, Any] = {
    "id": Decimal(0), "amount": 0.0, "color": "RED", "items": [], "first": None, "raw": b"", "tags": {}, "count": 0,
    "at": None, "ok": False,
}  # fmt: skip


def with_choice() -> FileDescriptorProto:
    """`message Order` with one field or the other, and items that have an amount for each shop."""
    file = order_file()
    item = file.message_type[0]
    item.oneof_decl.add(name="price")
    for number, name in ((2, "cents"), (3, "free")):
        item.field.add(name=name, number=number, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL, oneof_index=0)
    return file


def present(file: FileDescriptorProto, root: str = "shop.Order") -> TopicSchema:
    return TopicSchema(Schema.ProtobufNative, native_schema(file, root).encode(), b"", {})


def written(rows: list[Any], ddl: str, schema: TopicSchema) -> list[bytes | None]:
    struct = struct_of(ddl)
    kind = pa.struct(list(to_arrow_schema(struct, timezone="UTC")))
    how = format_of("t", struct, schema, "")
    assert how.schema is not None
    assert how.schema.schema_data == schema.definition
    found: list[bytes | None] = how.encoded(pa.array(rows, kind)).to_pylist()
    return found


def read(found: list[bytes | None], schema: TopicSchema) -> list[Any]:
    decoder = values.of_schema(schema).decoder("t", lambda _version: schema)
    decoded = values.decoded(decoder, found, [b""] * len(found))
    for row in decoded:
        if row and row.get("at") is not None:
            row["at"] = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=row["at"])
        if row:
            row["tags"] = dict(row["tags"])
    return decoded


def test_each_kind_of_field_is_read_back() -> None:
    schema = present(order_file())
    assert read(written([FULL, None, EMPTY], ORDER, schema), schema) == [FULL, None, EMPTY]


def test_columns_may_be_left_out_and_nulls_are_defaults() -> None:
    schema = present(order_file())
    rows = [{"count": 1, "color": None}]
    assert read(written(rows, "count int, color string", schema), schema) == [{**EMPTY, "count": 1}]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("cuont int", r"no field for cuont \(did you mean count\?\), says the schema of t"),
        ("count string", "column count is string, and the field takes long"),
        ("id decimal(20,2)", r"column id is decimal\(20,2\), and the field takes decimal"),
        ("items struct<sku: string>", "column items is struct<sku:string>, and the field is repeated"),
        ("items array<struct<skus: string>>", r"no field for items\[\]\.skus"),
        ("tags array<int>", "the field is a map"),
        ("tags map<string, string>", r"column tags\[\] is string, and the field takes integer"),
        ("at bigint", "column at is bigint, and the field takes timestamp"),
        ("first string", r"column first is string, and the field takes the message shop\.Item"),
    ],
)
def test_columns_that_do_not_fit_are_refused(ddl: str, said: str) -> None:
    with pytest.raises(UnwritableColumns, match=said):
        format_of("t", struct_of(ddl), present(order_file()), "")


@pytest.mark.parametrize(
    ("ddl", "row", "said"),
    [
        ("count bigint", {"count": -1}, "-1|range"),
        ("color string", {"color": "GREEN"}, "color is 'GREEN'; the schema has RED, BLUE"),
        ("items array<struct<sku: string>>", {"items": [None]}, "items holds a null"),
        ("tags map<string, int>", {"tags": {"a": None}}, "tags holds a null"),
        (
            "first struct<cents: int, free: int>",
            {"first": {"cents": 1, "free": 0}},
            "cents and free exclude each other",
        ),
    ],
)
def test_values_that_protobuf_does_not_have_are_refused(ddl: str, row: dict[str, Any], said: str) -> None:
    with pytest.raises(UnwritableColumns, match=said):
        written([row], ddl, present(with_choice()))


def test_one_of_a_choice_is_written() -> None:
    schema = present(with_choice(), "shop.Item")
    (value,) = written([{"cents": None, "free": 0}], "cents int, free int", schema)
    decoder = values.of_schema(schema).decoder("t", lambda _version: schema)
    assert value is not None
    assert decoder(value, b"") == {"sku": "", "cents": None, "free": 0}


def test_a_number_of_an_enum_without_a_name_goes_back_as_it_was_read() -> None:
    schema = present(order_file())
    assert read(written([{"color": "7"}], "color string", schema), schema) == [{**EMPTY, "color": "7"}]


def test_json_is_no_format_of_such_a_topic() -> None:
    with pytest.raises(UnwritableColumns, match="has a schema of type PROTOBUFNATIVE"):
        format_of("t", struct_of("count int"), present(order_file()), "json")
