# SPDX-License-Identifier: Apache-2.0
"""Versions of topics' schemas, and producers and consumers who bring them; over the wire, with a real broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.metadata_memory import SCHEMAS
from penstock.broker.schemas.checks.model import NUMBERS, TYPES, Schema, SchemaType, Strategy
from penstock.broker.schemas.schema_registry import INLINE_BYTES_MAX, SchemaRegistry, version_bytes
from penstock.core.errors import IncompatibleSchema, InvalidSchema, WireCode
from penstock.core.names import TopicName
from penstock.testing.client import Type, frame
from penstock.wire import codec
from penstock.wire.pulsar_pb2 import CommandGetSchemaResponse, KeyValue
from penstock.wire.pulsar_pb2 import Schema as WireSchema
from tests.broker.schema_samples import BYTES, INT32, STRING, avro, in_json, pair, protobuf_native
from tests.net.harness import Client, Harness, running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

TEXT = "persistent://public/default/t"
NAME = TopicName.parse(TEXT)
FULL = Strategy.FULL
A = (("a", "int"),)
FIRST, SECOND, THIRD = avro(*A), avro(*A, optional={"b": "int"}), avro(*A, optional={"b": "int", "c": "string"})
INCOMPATIBLE = avro(*A, ("b", "int"))


@pytest.fixture
def registry(harness: Harness) -> SchemaRegistry:
    return harness.broker.schemas


async def client_of(harness: Harness) -> Client:
    return await Client.connected(harness.port)


def on_wire(schema: Schema) -> WireSchema:
    properties = [KeyValue(key=key, value=value) for key, value in schema.properties.items()]
    return WireSchema(
        name="any",
        schema_data=schema.data,
        type=NUMBERS[schema.type],  # type: ignore[arg-type]
        properties=properties,
    )


def off_wire(schema: WireSchema) -> Schema:
    return Schema(TYPES[schema.type], schema.schema_data, {pair.key: pair.value for pair in schema.properties})


class Asking:
    """A client that talks of schemas."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._ids = iter(range(1, 1_000))

    @classmethod
    async def of(cls, harness: Harness) -> Asking:
        return cls(await client_of(harness))

    async def ask(self, kind: int, answer: int, schema: Schema | None = None, **fields: object) -> Any:  # noqa: ANN401 - the answer\'s body
        given = {"request_id": next(self._ids), "topic": TEXT, **fields}
        if schema is not None:
            given["schema"] = on_wire(schema)
        self.client.write(frame(kind, **given))
        came = await self.client.read()
        if came.type == Type.ERROR:
            raise ValueError(f"{came.error.error}: {came.error.message}")
        assert came.type == answer
        return codec.body_in(came)

    async def produce(self, schema: Schema | None, **fields: object) -> bytes:
        fields.setdefault("producer_id", next(self._ids))
        success = await self.ask(Type.PRODUCER, Type.PRODUCER_SUCCESS, schema, **fields)
        version: bytes = success.schema_version
        return version

    async def subscribe(self, schema: Schema | None, **fields: object) -> None:
        consumer_id = next(self._ids)
        fields = {"consumer_id": consumer_id, "subscription": f"s{consumer_id}", "subType": 1, **fields}
        await self.ask(Type.SUBSCRIBE, Type.SUCCESS, schema, **fields)

    async def get(self, version: bytes | None = None, **fields: object) -> CommandGetSchemaResponse:
        if version is not None:
            fields["schema_version"] = version
        answer: CommandGetSchemaResponse = await self.ask(Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, None, **fields)
        return answer

    async def get_or_create(self, schema: Schema, **fields: object) -> Any:  # noqa: ANN401 - the answer\'s body
        return await self.ask(Type.GET_OR_CREATE_SCHEMA, Type.GET_OR_CREATE_SCHEMA_RESPONSE, schema, **fields)


def refused(code: WireCode, says: str) -> AbstractContextManager[object]:
    return pytest.raises(ValueError, match=f"^{int(code)}: .*{says}")


# ------------------------------------------------------------------------------------------------------------- versions


async def test_versions_count_from_0_and_the_same_schema_is_the_same_version(registry: SchemaRegistry) -> None:
    assert [await registry.put(NAME, schema, FULL) for schema in (FIRST, SECOND, THIRD, SECOND)] == [0, 1, 2, 1]
    spaced = Schema(SchemaType.AVRO, FIRST.data.replace(b":", b" :  "))
    assert await registry.put(NAME, spaced, FULL) == 0
    assert [stored.schema for stored in registry.versions(NAME)] == [FIRST, SECOND, THIRD]


async def test_a_schema_is_the_same_whatever_its_properties_but_a_pair_is_what_they_say(
    registry: SchemaRegistry,
) -> None:
    assert await registry.put(NAME, FIRST, FULL) == 0
    assert await registry.put(NAME, Schema(FIRST.type, FIRST.data, {"owner": "me"}), FULL) == 0
    other = TopicName.parse("pairs")
    assert await registry.put(other, pair(STRING, INT32), FULL) == 0
    assert await registry.put(other, pair(STRING, INT32, name="renamed"), FULL) == 0
    with pytest.raises(IncompatibleSchema, match="Key schemas or Value schemas are different schema type"):
        await registry.put(other, pair(INT32, STRING), FULL)


async def test_a_version_is_kept_with_its_time_and_properties_byte_for_byte(
    harness: Harness, registry: SchemaRegistry
) -> None:
    schema = Schema(SchemaType.JSON, b' {"type": "record", "name":"R",\n"fields":[]}', {"k": "v", "ü": ""})
    await registry.put(NAME, schema, FULL)
    stored = registry.latest(NAME)
    assert stored is not None
    assert (stored.version, stored.schema, stored.timestamp_ms) == (0, schema, harness.clock.wall_ms())
    assert stored.version_bytes == bytes(8)


async def test_many_who_bring_one_schema_at_once_get_one_version(registry: SchemaRegistry) -> None:
    assert set(await asyncio.gather(*(registry.put(NAME, FIRST, FULL) for _ in range(50)))) == {0}


async def test_many_schemas_at_once_get_a_version_each_or_are_compared_with_those_before(
    registry: SchemaRegistry,
) -> None:
    schemas = [avro(*A, optional={f"b{number}": "int"}) for number in range(20)]
    versions = await asyncio.gather(*(registry.put(NAME, schema, FULL) for schema in schemas))
    assert sorted(versions) == list(range(20))


async def test_a_version_is_stored_although_the_client_that_brought_it_is_gone(registry: SchemaRegistry) -> None:
    bringing = asyncio.create_task(registry.put(NAME, FIRST, FULL))
    await asyncio.sleep(0)
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert await registry.put(NAME, SECOND, FULL) == 1
    assert [stored.version for stored in registry.versions(NAME)] == [0, 1]


async def test_large_schemas_are_compared_too(registry: SchemaRegistry) -> None:
    fields = [(f"field_number_{number}", "int") for number in range(1_000)]
    large, larger = avro(*fields), avro(*fields, optional={"b": "int"})
    assert len(large.data) > INLINE_BYTES_MAX
    assert [await registry.put(NAME, schema, FULL) for schema in (large, larger, large)] == [0, 1, 0]
    with pytest.raises(IncompatibleSchema, match="field 'b': Found null, expecting int"):
        await registry.put(NAME, avro(*fields, ("b", "int")), FULL)


async def test_a_refused_schema_leaves_nothing(registry: SchemaRegistry) -> None:
    await registry.put(NAME, FIRST, FULL)
    with pytest.raises(IncompatibleSchema):
        await registry.put(NAME, INCOMPATIBLE, FULL)
    with pytest.raises(InvalidSchema):
        await registry.put(NAME, Schema(SchemaType.AVRO, b"{"), Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(IncompatibleSchema):
        await registry.check(NAME, INCOMPATIBLE, FULL)
    await registry.check(NAME, SECOND, FULL)
    assert [stored.version for stored in registry.versions(NAME)] == [0]
    assert (await registry.find(NAME, FIRST), await registry.find(NAME, SECOND)) == (0, -1)


async def test_a_deleted_schema_is_out_of_reach_and_numbers_go_on(registry: SchemaRegistry) -> None:
    await registry.put(NAME, FIRST, FULL)
    assert await registry.delete(NAME) == 1
    assert registry.latest(NAME) is None
    assert registry.version(NAME, 0) is None
    assert registry.versions(NAME) == []
    # What was deleted is not compared with; the same schema is a new version.
    assert await registry.put(NAME, INCOMPATIBLE, FULL) == 2
    assert [stored.version for stored in registry.versions(NAME)] == [2]


async def test_a_topic_without_a_schema_may_have_its_schema_deleted(registry: SchemaRegistry) -> None:
    assert await registry.delete(NAME) == 0
    assert registry.latest(NAME) is None


async def test_partitions_share_the_schemas_of_their_topic(registry: SchemaRegistry) -> None:
    assert await registry.put(NAME.of_partition(3), FIRST, FULL) == 0
    assert await registry.put(NAME.of_partition(0), SECOND, FULL) == 1
    assert registry.latest(NAME) == registry.latest(NAME.of_partition(7))
    assert await registry.forget(NAME.of_partition(3)) == -1
    assert registry.latest(NAME) is not None


async def test_versions_survive_a_restart(tmp_path: Path) -> None:
    schemas = [pair(FIRST, STRING), pair(SECOND, STRING, encoding="INLINE")]
    lengths = pair(Schema(SchemaType.NONE, bytes(0x9F)), STRING)  # its length is no UTF-8
    async with running(tmp_path) as harness:
        for schema in schemas:
            await harness.broker.schemas.put(NAME, schema, FULL)
        for number in range(12):  # more than one digit
            await harness.broker.schemas.put(TopicName.parse("many"), avro(optional={f"f{number}": "int"}), FULL)
        await harness.broker.schemas.put(TopicName.parse("lengths"), lengths, FULL)
        await harness.broker.schemas.put(TopicName.parse("deleted"), FIRST, FULL)
        await harness.broker.schemas.delete(TopicName.parse("deleted"))
    async with running(tmp_path) as harness:
        registry = harness.broker.schemas
        assert [stored.schema for stored in registry.versions(NAME)] == schemas
        assert [stored.version for stored in registry.versions(TopicName.parse("many"))] == list(range(12))
        found = registry.latest(TopicName.parse("lengths"))
        assert found is not None
        assert found.schema == lengths
        assert registry.latest(TopicName.parse("deleted")) is None
        assert await registry.put(TopicName.parse("deleted"), FIRST, FULL) == 2


# ------------------------------------------------------------------------------------------------------ deleted topics


async def test_the_schemas_go_with_the_topic(harness: Harness, registry: SchemaRegistry) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST, producer_id=7)
    await asking.client.close()
    await harness.broker.topic_life.delete(NAME, force=True)
    assert registry.latest(NAME) is None
    assert dict(harness.broker.catalog.documents(SCHEMAS)) == {}
    assert await registry.put(NAME, INT32, FULL) == 0


async def test_the_schemas_of_a_partitioned_topic_go_with_it_not_with_a_partition(
    harness: Harness, registry: SchemaRegistry
) -> None:
    await harness.broker.partitions.create(NAME, 2)
    await registry.put(NAME, FIRST, FULL)
    await harness.broker.topic_life.delete(NAME.of_partition(1), force=True)
    assert registry.latest(NAME) is not None
    await harness.broker.partitions.delete(NAME, force=True)
    assert registry.latest(NAME) is None


# ------------------------------------------------------------------------------------------------------------ producers


async def test_a_producer_is_told_the_version_of_its_schema(harness: Harness) -> None:
    asking = await Asking.of(harness)
    assert await asking.produce(FIRST) == bytes(8)
    assert await asking.produce(SECOND) == version_bytes(1) == b"\0\0\0\0\0\0\0\1"
    assert await asking.produce(FIRST) == bytes(8)
    # Asked again for a producer that is there, it says the same.
    assert await asking.produce(None, producer_id=7) == b""
    assert await asking.produce(FIRST, producer_id=7) == b""


async def test_a_producer_with_an_incompatible_schema_is_refused(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "strategy FULL: .*field 'b': .*missing required field b"):
        await asking.produce(INCOMPATIBLE)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "Invalid schema definition data for AVRO schema"):
        await asking.produce(Schema(SchemaType.AVRO, b"{"))
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "exists schema type AVRO, new schema type STRING"):
        await asking.produce(STRING)


async def test_the_policies_of_namespace_and_topic_decide(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST)
    policies = harness.broker.policies
    await policies.set_namespace("public/default", "schemaCompatibilityStrategy", "FORWARD")
    assert await asking.produce(INCOMPATIBLE) == version_bytes(1)
    await policies.set_topic(NAME, "schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "ALWAYS_INCOMPATIBLE"):
        await asking.produce(THIRD)
    await policies.set_topic(NAME, "schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert await asking.produce(STRING) == version_bytes(2)


@pytest.mark.parametrize("schema", [None, BYTES])
async def test_a_producer_without_a_schema_is_taken_unless_schemas_are_enforced(
    harness: Harness, schema: Schema | None
) -> None:
    asking = await Asking.of(harness)
    await harness.broker.policies.set_namespace("public/default", "schemaValidationEnforced", True)
    assert await asking.produce(schema) == b""  # The topic has none yet.
    await asking.produce(STRING)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "Producers cannot connect or send message without a schema"):
        await asking.produce(schema)
    await harness.broker.policies.set_namespace("public/default", "schemaValidationEnforced", False)
    assert await asking.produce(schema) == b""


async def test_whoever_looks_while_schemas_are_forgotten_finds_one_or_none(
    harness: Harness, registry: SchemaRegistry
) -> None:
    await registry.put(NAME, FIRST, FULL)
    forgetting = asyncio.ensure_future(registry.forget(NAME))
    while not forgetting.done():
        registry.latest(NAME)
        await asyncio.sleep(0)
    await forgetting
    assert registry.latest(NAME) is None


async def test_without_automatic_updates_only_known_schemas_are_taken(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST)
    await harness.broker.policies.set_namespace("public/default", "isAllowAutoUpdateSchema", False)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "Schema not found and schema auto updating is disabled."):
        await asking.produce(SECOND)
    assert await asking.produce(FIRST) == bytes(8)
    await harness.broker.schemas.put(NAME, SECOND, FULL)  # An administrator still may.
    assert await asking.produce(SECOND) == version_bytes(1)


# ------------------------------------------------------------------------------------------------------------ consumers


async def test_the_schema_of_the_first_consumer_becomes_that_of_an_idle_topic(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.subscribe(FIRST)
    found = harness.broker.schemas.latest(NAME)
    assert found is not None
    assert found.schema == FIRST


async def test_a_consumer_is_checked_and_leaves_no_schema(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST)
    await asking.subscribe(avro())
    await asking.subscribe(SECOND)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "strategy BACKWARD: .*missing required field b"):
        await asking.subscribe(INCOMPATIBLE)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "exists schema type AVRO, new schema type JSON"):
        await asking.subscribe(in_json(*A))
    assert [stored.schema for stored in harness.broker.schemas.versions(NAME)] == [FIRST]


@pytest.mark.parametrize("schema", [None, BYTES, Schema(SchemaType.AUTO_CONSUME)])
async def test_a_consumer_that_takes_whatever_comes_is_taken(harness: Harness, schema: Schema | None) -> None:
    asking = await Asking.of(harness)
    await asking.subscribe(schema)
    assert harness.broker.schemas.latest(NAME) is None
    await asking.produce(FIRST)
    await asking.subscribe(schema)


async def test_a_topic_in_use_without_a_schema_takes_none_from_a_consumer(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(None)
    says = r"Failed to add schema to an active topic with empty\(BYTES\) schema: new schema type STRING"
    with refused(WireCode.INCOMPATIBLE_SCHEMA, says):
        await asking.subscribe(STRING)
    await harness.broker.policies.set_topic(NAME, "schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    await asking.subscribe(STRING)
    assert harness.broker.schemas.latest(NAME) is None


async def test_a_consumer_of_bytes_counts_as_use_one_with_auto_consume_does_not(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.subscribe(Schema(SchemaType.AUTO_CONSUME))
    await asking.subscribe(STRING)
    assert harness.broker.schemas.latest(NAME) is not None
    await asking.subscribe(None, topic="other")
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "Failed to add schema to an active topic"):
        await asking.subscribe(STRING, topic="other")


async def test_a_topic_that_holds_messages_is_in_use(harness: Harness) -> None:
    producing = await Client.producing(harness.port, topic=TEXT)
    await producing.published(b"one")
    await producing.close()
    asking = await Asking.of(harness)
    with refused(WireCode.INCOMPATIBLE_SCHEMA, "Failed to add schema to an active topic"):
        await asking.subscribe(STRING)


# ------------------------------------------------------------------------------------------------------------- commands


async def test_get_schema_gives_the_latest_or_the_version_asked_for(harness: Harness) -> None:
    asking = await Asking.of(harness)
    for schema in (FIRST, SECOND):
        await asking.produce(schema)
    latest, first = await asking.get(), await asking.get(bytes(8))
    assert (off_wire(latest.schema), latest.schema_version) == (SECOND, version_bytes(1))
    assert (off_wire(first.schema), first.schema_version) == (FIRST, version_bytes(0))
    assert latest.schema.name == "public/default/t"
    of_partition = await asking.get(topic=str(NAME.of_partition(1)))
    assert of_partition.schema == latest.schema


@pytest.mark.parametrize(
    ("version", "topic", "code", "says"),
    [
        (None, "none", WireCode.TOPIC_NOT_FOUND, "Topic not found or no-schema"),
        (version_bytes(1), TEXT, WireCode.TOPIC_NOT_FOUND, "Topic not found or no-schema"),
        (b"", TEXT, WireCode.INCOMPATIBLE_SCHEMA, "a schema version has 8 bytes, that of the request has 0"),
        (b"7", TEXT, WireCode.INCOMPATIBLE_SCHEMA, "a schema version has 8 bytes, that of the request has 1"),
        (None, "a/b/c/d/e", WireCode.INVALID_TOPIC_NAME, "invalid name"),
    ],
)
async def test_get_schema_says_what_is_missing(
    harness: Harness, version: bytes | None, topic: str, code: WireCode, says: str
) -> None:
    asking = await Asking.of(harness)
    await asking.produce(FIRST)
    answer = await asking.get(version, topic=topic)
    assert int(answer.error_code) == code
    assert says in answer.error_message
    assert not answer.HasField("schema")


async def test_get_or_create_schema_adds_a_version_to_a_topic_that_exists(harness: Harness) -> None:
    asking = await Asking.of(harness)
    await asking.produce(None)
    assert (await asking.get_or_create(FIRST)).schema_version == bytes(8)
    assert (await asking.get_or_create(SECOND)).schema_version == version_bytes(1)
    assert (await asking.get_or_create(FIRST)).schema_version == bytes(8)
    answer = await asking.get_or_create(INCOMPATIBLE)
    assert answer.error_code == WireCode.INCOMPATIBLE_SCHEMA
    assert "field 'b': Found null, expecting int" in answer.error_message
    assert (await asking.get_or_create(BYTES)).schema_version == b""


async def test_get_or_create_schema_creates_no_topic(harness: Harness) -> None:
    asking = await Asking.of(harness)
    answer = await asking.get_or_create(FIRST)
    assert answer.error_code == WireCode.TOPIC_NOT_FOUND
    assert "Topic not found" in answer.error_message
    assert not harness.broker.topics.exists(NAME)
    assert harness.broker.schemas.latest(NAME) is None


@pytest.mark.parametrize(
    "schema",
    [
        *(Schema(kind) for kind in (SchemaType.BOOLEAN, SchemaType.INT64, SchemaType.DOUBLE, SchemaType.TIMESTAMP)),
        Schema(SchemaType.LOCAL_DATE_TIME),
        Schema(SchemaType.STRING, b"null"),
        Schema(SchemaType.AVRO, FIRST.data, {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}),
        pair(STRING, avro(*A), encoding="SEPARATED"),
        pair(avro(*A, name="K"), in_json(*A), encoding="INLINE"),
        pair(INT32, Schema(SchemaType.DOUBLE), encoding="SEPARATED"),
        protobuf_native("Order", "id", "customer"),
        Schema(SchemaType.PROTOBUF, FIRST.data, {"__PARSING_INFO__": '[{"number":1,"name":"a"}]'}),
    ],
    ids=lambda schema: f"{schema.type}",
)
async def test_what_clients_send_comes_back_byte_for_byte(harness: Harness, schema: Schema) -> None:
    asking = await Asking.of(harness)
    version = await asking.produce(schema)
    answer = await asking.get(version)
    assert off_wire(answer.schema) == schema
    assert answer.schema.type == NUMBERS[schema.type]
