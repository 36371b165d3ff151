# SPDX-License-Identifier: Apache-2.0
"""KeyValue and Protobuf schemas become columns, as Pulsar's Java client writes them."""

from __future__ import annotations

import datetime as dt
import json
import struct
from base64 import b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types

from penstock.spark import key_values, values
from penstock.spark.client.cluster import TopicSchema
from penstock.spark.client.errors import UnreadableValue
from penstock.wire.codec import Schema
from tests.spark.topics import ask, path_of, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

PERSON = {"type": "record", "name": "P", "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}


def pair(key: bytes | None, value: bytes | None) -> bytes:
    """As Java's `KeyValue.encode` has it."""
    return b"".join(struct.pack(">i", -1) if one is None else struct.pack(">i", len(one)) + one for one in (key, value))


def key_value_schema(key: str, value: str, definition: bytes, encoding: str) -> TopicSchema:
    properties = {"key.schema.type": key, "value.schema.type": value, "kv.encoding.type": encoding}
    return TopicSchema(Schema.KeyValueSchema, definition, b"", properties)


PERSONS = key_value_schema("STRING", "JSON", pair(b"", json.dumps(PERSON).encode()), "INLINE")


def test_a_key_and_a_value_have_the_types_of_their_schemas() -> None:
    found = values.of_schema(PERSONS)
    assert [(one.name, one.dataType.simpleString()) for one in found.fields] == [
        ("key", "string"),
        ("value", "struct<name:string,age:int>"),
    ]
    decode = found.decoder("t", lambda _version: PERSONS)
    assert decode(pair(b"k", b'{"name":"Ada","age":36}'), b"") == {"key": "k", "value": {"name": "Ada", "age": 36}}
    assert decode(pair(None, None), b"") == {"key": None, "value": None}


@pytest.mark.parametrize("broken", [b"", b"\0\0\0\1", b"\0\0\0\1k", b"\0\0\0\1k\0\0\0\2v", pair(b"k", b"{")])
def test_a_pair_that_does_not_read_is_told(broken: bytes) -> None:
    with pytest.raises(UnreadableValue):
        values.of_schema(PERSONS).decoder("t", lambda _version: PERSONS)(broken, b"")


def test_what_is_joined_is_split_into_the_same() -> None:
    rows = [(b"k", b"v"), (None, b""), (b"", None)]
    joined = key_values.joined(*zip(*rows, strict=True))
    assert [key_values.split(one) for one in joined.to_pylist()] == rows


def give_schema(broker: BrokerProcess, topic: str, kind: str, schema: str, properties: dict[str, str]) -> None:
    ask(broker.admin_url, "PUT", path_of(topic))
    path = f"schemas/{path_of(topic).removeprefix('persistent/')}/schema"
    ask(broker.admin_url, "POST", path, {"type": kind, "schema": schema, "properties": properties})


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_key_values_are_read_from_a_topic(
    spark: SparkSession, broker: BrokerProcess, topic: str, encoding: str
) -> None:
    schema = json.dumps({"key": "", "value": PERSON})
    properties = {"key.schema.type": "INT32", "value.schema.type": "JSON", "kv.encoding.type": encoding}
    give_schema(broker, topic, "KEY_VALUE", schema, properties)
    key, person = struct.pack(">i", 7), b'{"name":"Ada","age":36}'
    row = (person, key) if encoding == "SEPARATED" else (pair(key, person), b"other")
    rows = spark.createDataFrame([row], "value binary, __key binary")
    write(rows, broker, topic=topic, valueFormat="binary")
    table = spark.read.format("pulsar").options(**{"service.url": broker.url, "topic": topic}).load()
    assert table.select("key", "value.*").collect() == [(7, "Ada", 36)]
    with pytest.raises(PySparkException, match="has a KeyValue schema: write columns key and value"):
        write(rows, broker, topic=topic)


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_copied_from_a_topic_to_another(
    spark: SparkSession, broker: BrokerProcess, topic: str, encoding: str
) -> None:
    definition = json.dumps({"key": "", "value": PERSON})
    properties = {"key.schema.type": "INT64", "value.schema.type": "JSON", "kv.encoding.type": encoding}
    copy = f"{topic}-copy"
    for one in (topic, copy):
        give_schema(broker, one, "KEY_VALUE", definition, properties)
    rows = spark.sql("select id as key, struct('Ada' as name, int(id) as age) as value from range(20)")
    write(rows, broker, topic=topic)
    options = {"service.url": broker.url, "topic": topic}
    write(spark.read.format("pulsar").options(**options).load(), broker, topic=copy)
    found = spark.read.format("pulsar").options(**{**options, "topic": copy}).load()
    assert sorted(found.select("key", "value.*").collect()) == [(number, "Ada", number) for number in range(20)]


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """`message Order` with each kind of field."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    kinds = [
        ("id", Field.TYPE_UINT64, "", False), ("amount", Field.TYPE_DOUBLE, "", False),
        ("color", Field.TYPE_ENUM, ".shop.Color", False), ("items", Field.TYPE_MESSAGE, ".shop.Item", True),
        ("first", Field.TYPE_MESSAGE, ".shop.Item", False), ("raw", Field.TYPE_BYTES, "", False),
        ("tags", Field.TYPE_MESSAGE, ".shop.Order.TagsEntry", True), ("count", Field.TYPE_UINT32, "", False),
        ("at", Field.TYPE_MESSAGE, ".google.protobuf.Timestamp", False), ("ok", Field.TYPE_BOOL, "", False),
    ]  # fmt: skip
    for number, (name, kind, of, repeated) in enumerate(kinds, 1):
        label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    return file


def native_schema(file: descriptor_pb2.FileDescriptorProto, root: str) -> str:
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    files = descriptor_pb2.FileDescriptorSet(file=[file, times])  # what imports comes first
    said = {"fileDescriptorSet": b64encode(files.SerializeToString()).decode(), "rootMessageTypeName": root}
    return json.dumps({**said, "rootFileDescriptorName": file.name})


def order_message() -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(order_file())
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()
    order.id, order.amount, order.color, order.raw, order.count = (1 << 64) - 1, 1.5, 1, b"\0", (1 << 32) - 1
    order.items.add(sku="a")
    order.tags["x"] = 3
    order.at.FromMicroseconds(1_709_209_800_123_456)
    made: bytes = order.SerializeToString()
    return made


def test_a_protobuf_message_is_read_from_a_topic(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    give_schema(broker, topic, "PROTOBUF_NATIVE", native_schema(order_file(), "shop.Order"), {})
    rows = spark.createDataFrame([(order_message(),)], "value binary")
    write(rows, broker, topic=topic, valueFormat="binary")
    table = spark.read.format("pulsar").options(**{"service.url": broker.url, "topic": topic}).load()
    row = table.drop(*(name for name in table.columns if name.startswith("__"))).collect()[0].asDict(recursive=True)
    at = row.pop("at")
    assert at.astimezone(dt.UTC) == dt.datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=dt.UTC)
    assert row == {
        "id": Decimal((1 << 64) - 1), "amount": 1.5, "color": "BLUE", "items": [{"sku": "a"}], "first": None,
        "raw": b"\0", "tags": {"x": 3}, "count": (1 << 32) - 1, "ok": False,
    }  # fmt: skip


def test_protobuf_messages_are_copied_from_a_topic_to_another(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    copy = f"{topic}-copy"
    for one in (topic, copy):
        give_schema(broker, one, "PROTOBUF_NATIVE", native_schema(order_file(), "shop.Order"), {})
    write(spark.createDataFrame([(order_message(),)], "value binary"), broker, topic=topic, valueFormat="binary")
    options = {"service.url": broker.url, "topic": topic}
    write(spark.read.format("pulsar").options(**options).load(), broker, topic=copy)
    raw = {"service.url": broker.url, "topic": copy, "valueFormat": "binary"}
    (row,) = spark.read.format("pulsar").options(**raw).load().select("value").collect()
    assert bytes(row.value) == order_message()


def test_a_message_that_does_not_read_and_a_schema_that_is_none_are_told() -> None:
    definition = native_schema(order_file(), "shop.Order").encode()
    schema = TopicSchema(Schema.ProtobufNative, definition, b"", {})
    found = values.of_schema(schema)
    assert found.fields[0] == spark_types.StructField("id", spark_types.DecimalType(20, 0))
    with pytest.raises(UnreadableValue, match="PROTOBUFNATIVE"):
        found.decoder("t", lambda _version: schema)(b"\xff\xff", b"")
    for broken in (b"{}", b"[]", b'{"fileDescriptorSet": "////", "rootMessageTypeName": "x"}'):
        with pytest.raises(ValueError, match=r"PROTOBUF_NATIVE|not read"):
            values.of_schema(TopicSchema(Schema.ProtobufNative, broken, b"", {}))


def test_a_message_that_contains_itself_can_be_read_as_bytes_only() -> None:
    file = order_file()
    file.message_type[0].field.add(
        name="inner", number=2, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL, type_name=".shop.Item"
    )
    schema = TopicSchema(Schema.ProtobufNative, native_schema(file, "shop.Order").encode(), b"", {})
    with pytest.raises(ValueError, match=r"shop\.Item contains itself; read with valueFormat=binary"):
        values.of_schema(schema)
