# SPDX-License-Identifier: Apache-2.0
"""Schemas with the official Python client: what it registers, what it is refused, what it gets back."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

import _pulsar
import pulsar
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pulsar.schema import (
    Array,
    AvroSchema,
    BytesSchema,
    CustomEnum,
    Integer,
    JsonSchema,
    Map,
    ProtobufNativeSchema,
    Record,
    Schema,
    String,
    StringSchema,
)

from tests.compat.clients import EARLIEST, TIMEOUT_MS, Admin, Larger, Small, connect, keep, path_of

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess
    from tests.compat.conftest import Subject


class Color(Enum):
    RED = 1
    GREEN = 2


class Size(Record):  # type: ignore[misc]  # the client has no types
    width = Integer()
    height = Integer()


class Item(Record):  # type: ignore[misc]  # the client has no types
    name = String()
    count = Integer(required=True)
    size = Size()
    color = CustomEnum(Color)
    tags = Array(String())
    prices = Map(Integer())


class Demanding(Record):  # type: ignore[misc]  # the client has no types
    """`Small` and a field that must be there."""

    a = Integer(required=True)
    b = String(required=True)


def item() -> Item:
    return Item(
        name="cup", count=3, size=Size(width=1, height=2), color=Color.GREEN, tags=["x", "y"], prices={"eur": 7}
    )


def exchange(client: pulsar.Client, topic: str, schema: Schema, value: object) -> Record:
    consumer = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    client.create_producer(topic, schema=schema).send(value)
    message = consumer.receive(TIMEOUT_MS)
    consumer.acknowledge(message)
    return message.value()


def path(topic: str) -> str:
    return f"schemas/{topic.removeprefix('persistent://')}"


def schemas_of(admin: Admin, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get(f"{path(topic)}/schemas")["getSchemaResponses"]
    return found


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("schema-primitive")
@pytest.mark.parametrize(
    ("schema", "value"), [(StringSchema(), "grüße"), (BytesSchema(), b"\0\xff")], ids=["string", "bytes"]
)
def test_a_primitive_value_arrives(client: pulsar.Client, topic: str, schema: Schema, value: object) -> None:
    assert exchange(client, topic, schema, value) == value


@pytest.mark.feature("schema-primitive")
def test_a_topic_of_strings_takes_no_record(admin: Admin, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema())
    assert [stored["type"] for stored in schemas_of(admin, topic)] == ["STRING"]
    for other in (JsonSchema(Small), AvroSchema(Small)):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=other)


@pytest.mark.feature("schema-json")
def test_a_json_record_arrives(admin: Admin, client: pulsar.Client, topic: str) -> None:
    schema = JsonSchema(Larger)
    value = exchange(client, topic, schema, Larger(a=1, b="two"))
    assert (value.a, value.b) == (1, "two")
    (stored,) = schemas_of(admin, topic)
    assert (stored["type"], stored["version"]) == ("JSON", 0)
    assert json.loads(stored["data"]) == Larger.schema()


@pytest.mark.feature("schema-avro")
def test_an_avro_record_arrives(admin: Admin, client: pulsar.Client, topic: str) -> None:
    value = exchange(client, topic, AvroSchema(Item), item())
    assert (value.name, value.count, value.color) == ("cup", 3, Color.GREEN)
    assert (value.size.width, value.tags, value.prices) == (1, ["x", "y"], {"eur": 7})
    (stored,) = schemas_of(admin, topic)
    assert (stored["type"], json.loads(stored["data"])) == ("AVRO", Item.schema())


@pytest.mark.feature("schema-protobuf")
def test_a_protobuf_message_arrives(admin: Admin, client: pulsar.Client, topic: str) -> None:
    schema = ProtobufNativeSchema(StringValue)
    assert exchange(client, topic, schema, StringValue(value="here")) == StringValue(value="here")
    (stored,) = schemas_of(admin, topic)
    assert stored["type"] == "PROTOBUF_NATIVE"
    assert stored["data"] == schema.schema_info().schema()
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=ProtobufNativeSchema(Int64Value))


# -- evolution --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("schema-evolution")
@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_an_optional_field_may_come_and_a_required_one_may_not(
    client: pulsar.Client, topic: str, kind: type[AvroSchema]
) -> None:
    client.create_producer(topic, schema=kind(Small))
    client.create_producer(topic, schema=kind(Larger))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=kind(Demanding))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=kind(Demanding))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    client.subscribe(topic, "s", schema=kind(Small))


@pytest.mark.feature("schema-evolution")
def test_messages_carry_the_version_they_were_written_with_and_are_read_with_that_schema(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Larger))
    # The consumer's schema came first; the smaller one is version 1.
    client.create_producer(topic, schema=AvroSchema(Small)).send(Small(a=1))
    client.create_producer(topic, schema=AvroSchema(Larger)).send(Larger(a=2, b="two"))
    came = [consumer.receive(TIMEOUT_MS) for _ in range(2)]
    assert [message._message.int_schema_version() for message in came] == [1, 0]  # noqa: SLF001 - the public one is bytes
    assert [(message.value().a, message.value().b) for message in came] == [(1, None), (2, "two")]
    assert [stored["version"] for stored in schemas_of(admin, topic)] == [0, 1]


@pytest.mark.feature("schema-evolution")
def test_the_same_schema_is_the_same_version_after_a_reconnect(
    broker: Subject, admin: Admin, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=AvroSchema(Small)).close()
    again = connect(broker.url)
    again.create_producer(topic, schema=AvroSchema(Small))
    again.close()
    assert [stored["version"] for stored in schemas_of(admin, topic)] == [0]


@pytest.mark.feature("schema-evolution")
def test_partitions_share_one_schema(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin.put(f"{path_of(topic)}/partitions", 3)
    producer = client.create_producer(topic, schema=AvroSchema(Small))
    for number in range(6):
        producer.send(Small(a=number))
    assert [stored["version"] for stored in schemas_of(admin, topic)] == [0]
    reader = client.subscribe(topic, "s", schema=AvroSchema(Small), initial_position=EARLIEST)
    assert sorted(reader.receive(TIMEOUT_MS).value().a for _ in range(6)) == list(range(6))


# -- without schema ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("schema-auto")
def test_a_client_that_knows_no_schema_asks_the_broker_for_it(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")  # Takes bytes, whatever they mean.
    client.create_producer(topic, schema=AvroSchema(Small)).send(Small(a=41))
    message = consumer.receive(TIMEOUT_MS)
    info = client._client.get_schema_info(topic, message._message.int_schema_version())  # noqa: SLF001 - as its schemas do
    assert info.schema_type() == _pulsar.SchemaType.AVRO
    learnt = AvroSchema(None, json.loads(info.schema()))
    assert learnt.decode(message.data()) == {"a": 41}


@pytest.mark.feature("schema-auto")
def test_asking_for_the_schema_of_a_topic_without_one_says_so(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic)
    with pytest.raises(pulsar.TopicNotFound):
        client._client.get_schema_info(topic, 0)  # noqa: SLF001 - as its schemas do


@pytest.mark.feature("schema-primitive")
def test_clients_without_a_schema_may_join_those_with_one(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema())
    plain = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    plain.send(b"\xff")
    assert consumer.receive(TIMEOUT_MS).data() == b"\xff"


# -- restart ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("schema-avro")
def test_schemas_are_there_after_the_broker_was_killed(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.url)
    keep(client, topic)
    client.create_producer(topic, schema=AvroSchema(Small)).send(Small(a=1))
    client.create_producer(topic, schema=AvroSchema(Larger)).send(Larger(a=2, b="two"))
    with Admin(own_broker.admin_url) as admin:
        before = schemas_of(admin, topic)
    own_broker.kill()
    client.close()
    own_broker.start()
    client = connect(own_broker.url)
    with Admin(own_broker.admin_url) as admin:
        assert schemas_of(admin, topic) == before
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Larger), initial_position=EARLIEST)
    came = [consumer.receive(TIMEOUT_MS).value() for _ in range(2)]
    assert [(value.a, value.b) for value in came] == [(1, None), (2, "two")]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Demanding))
    client.close()


# -- administration ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("admin-schemas")
def test_an_administrator_sets_compares_and_deletes_the_schema_that_clients_meet(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    def described(record: type[Record]) -> dict[str, object]:
        # Laid out as the client does: a version is found by its very bytes.
        return {"type": "AVRO", "schema": json.dumps(record.schema(), indent=True), "properties": {}}

    assert admin.post(f"{path(topic)}/schema", described(Small)) == {"version": {"version": 0}}
    assert admin.refusal("POST", f"{path(topic)}/schema", described(Demanding)) == 409
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Demanding))
    assert admin.post(f"{path(topic)}/compatibility", described(Larger)) == {
        "compatibility": True,
        "schemaCompatibilityStrategy": "FULL",
    }
    client.create_producer(topic, schema=AvroSchema(Larger)).close()
    assert admin.post(f"{path(topic)}/version", described(Larger)) == {"version": 1}
    assert admin.post(f"{path(topic)}/version", described(Demanding)) == {"version": -1}
    assert admin.get(f"{path(topic)}/schema")["version"] == 1
    assert admin.get(f"{path(topic)}/schema/0")["data"] == described(Small)["schema"]
    assert admin.refusal("GET", f"{path(topic)}/schema/7") == 404
    assert admin.delete(f"{path(topic)}/schema") == {"version": 2}
    assert admin.refusal("GET", f"{path(topic)}/schema") == 404
    client.create_producer(topic, schema=AvroSchema(Demanding)).close()
    assert [stored["version"] for stored in schemas_of(admin, topic)] == [3]


@pytest.mark.feature("admin-schemas")
def test_what_is_no_schema_is_refused(admin: Admin, topic: str) -> None:
    for kind, definition in (("AVRO", "{"), ("AVRO", '{"type": "nonsense"}'), ("STRING", "something")):
        wrong = {"type": kind, "schema": definition, "properties": {}}
        assert admin.refusal("POST", f"{path(topic)}/schema", wrong) == 422
    assert admin.refusal("GET", f"{path(topic)}/schema") == 404


@pytest.mark.feature("admin-schemas")
@pytest.mark.feature("schema-evolution")
def test_a_namespace_decides_what_may_follow_a_schema(admin: Admin, client: pulsar.Client) -> None:
    anything, nothing = admin.create_namespace(), admin.create_namespace()
    admin.put(f"namespaces/{anything}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    admin.put(f"namespaces/{nothing}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    admin.post(f"namespaces/{nothing}/schemaValidationEnforced", True)
    for namespace in (anything, nothing):
        client.create_producer(f"persistent://{namespace}/t", schema=AvroSchema(Small)).close()
    client.create_producer(f"persistent://{anything}/t", schema=AvroSchema(Demanding))
    client.create_producer(f"persistent://{anything}/t")
    for schema in (AvroSchema(Larger), BytesSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(f"persistent://{nothing}/t", schema=schema)
