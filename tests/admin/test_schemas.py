# SPDX-License-Identifier: Apache-2.0
"""Schemas over HTTP, in front of a real broker: paths, bodies and statuses as pulsar-admin expects them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.schemas.checks import key_value
from penstock.broker.schemas.checks.model import Schema, Strategy
from penstock.core.names import TopicName
from tests.broker.schema_samples import INT32, STRING, avro, pair, protobuf_native

if TYPE_CHECKING:
    import httpx

    from tests.net.harness import Harness

NAME = TopicName.parse("t")
T = "/admin/v2/schemas/public/default/t"
A = (("a", "int"),)
FIRST, SECOND, INCOMPATIBLE = avro(*A), avro(*A, optional={"b": "int"}), avro(*A, ("b", "int"))


def payload(schema: Schema, text: str | None = None) -> dict[str, Any]:
    return {
        "type": str(schema.type),
        "schema": schema.data.decode() if text is None else text,
        "properties": dict(schema.properties),
        "unknown": "is ignored",
    }


async def test_a_schema_is_added_and_read(harness: Harness, admin: httpx.AsyncClient) -> None:
    schema = Schema(FIRST.type, FIRST.data, {"owner": "me"})
    answer = await admin.post(f"{T}/schema", json=payload(schema))
    assert (answer.status_code, answer.json()) == (200, {"version": {"version": 0}})
    answer = await admin.get(f"{T}/schema")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "version": 0,
            "type": "AVRO",
            "timestamp": harness.clock.wall_ms(),
            "data": FIRST.data.decode(),
            "properties": {"owner": "me"},
        },
    )


async def test_the_topic_need_not_be_there_and_is_not_made(harness: Harness, admin: httpx.AsyncClient) -> None:
    await admin.post(f"{T}/schema", json=payload(FIRST))
    assert not harness.broker.topics.exists(NAME)
    stored = harness.broker.schemas.latest(NAME)
    assert stored is not None
    assert stored.schema == FIRST


async def test_all_versions_are_listed_and_each_is_found(admin: httpx.AsyncClient) -> None:
    for schema in (FIRST, SECOND):
        await admin.post(f"{T}/schema", json=payload(schema))
    listed = (await admin.get(f"{T}/schemas")).json()["getSchemaResponses"]
    assert [each["data"].encode() for each in listed] == [FIRST.data, SECOND.data]
    assert [(await admin.get(f"{T}/schema/{version}")).json() for version in (0, 1)] == listed
    assert (await admin.get(f"{T}/schema")).json() == listed[1]
    # Partitions have the schema of their topic.
    assert (await admin.get(f"{T}-partition-3/schemas")).json()["getSchemaResponses"] == listed


@pytest.mark.parametrize("path", ["schema", "schema/0", "schema/-1"])
async def test_no_schema_is_404(admin: httpx.AsyncClient, path: str) -> None:
    answer = await admin.get(f"{T}/{path}")
    assert (answer.status_code, answer.json()) == (404, {"reason": "Schema not found"})


async def test_no_schemas_is_an_empty_list(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(f"{T}/schemas")).json() == {"getSchemaResponses": []}


async def test_an_incompatible_schema_is_409_with_the_reason(admin: httpx.AsyncClient) -> None:
    await admin.post(f"{T}/schema", json=payload(FIRST))
    answer = await admin.post(f"{T}/schema", json=payload(INCOMPATIBLE))
    assert answer.status_code == 409
    assert "with strategy FULL" in answer.json()["reason"]
    assert "field 'b'" in answer.json()["reason"]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "AVRO", "schema": "{"},
        {"type": "AVRO"},
        {"type": "NOTHING", "schema": ""},
        {"type": "INT32", "schema": "int"},
        {"type": "KEY_VALUE", "schema": "{}"},
        {"type": "AUTO_CONSUME", "schema": ""},
    ],
)
@pytest.mark.parametrize("path", ["schema", "compatibility"])
async def test_what_is_no_schema_is_422(admin: httpx.AsyncClient, path: str, body: dict[str, str]) -> None:
    answer = await admin.post(f"{T}/{path}", json=body)
    assert answer.status_code == 422
    assert answer.json()["reason"]


async def test_a_body_without_a_type_is_400(admin: httpx.AsyncClient) -> None:
    assert (await admin.post(f"{T}/schema", json={"schema": ""})).status_code == 400
    assert (await admin.post(f"{T}/schema", content=b"{")).status_code == 400


async def test_compatibility_is_told_under_the_strategy_of_the_topic(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    async def told(schema: Schema) -> tuple[int, Any]:
        answer = await admin.post(f"{T}/compatibility", json=payload(schema))
        return answer.status_code, answer.json()

    assert await told(FIRST) == (202, {"compatibility": True, "schemaCompatibilityStrategy": "FULL"})
    await admin.post(f"{T}/schema", json=payload(FIRST))
    assert (await told(SECOND))[1]["compatibility"] is True
    assert (await told(INCOMPATIBLE))[1]["compatibility"] is False
    await harness.broker.policies.set_namespace("public/default", "schemaCompatibilityStrategy", "FORWARD")
    assert await told(INCOMPATIBLE) == (202, {"compatibility": True, "schemaCompatibilityStrategy": "FORWARD"})
    assert len((await admin.get(f"{T}/schemas")).json()["getSchemaResponses"]) == 1


async def test_the_version_of_a_schema_is_told(admin: httpx.AsyncClient) -> None:
    for schema in (FIRST, SECOND):
        await admin.post(f"{T}/schema", json=payload(schema))
    found = [(await admin.post(f"{T}/version", json=payload(s))).json() for s in (SECOND, FIRST, INCOMPATIBLE)]
    assert found == [{"version": 1}, {"version": 0}, {"version": -1}]
    # Written otherwise it brings no new version, and is not found: both as in Pulsar.
    spaced = payload(SECOND, json.dumps(json.loads(SECOND.data), indent=3))
    assert (await admin.post(f"{T}/schema", json=spaced)).json() == {"version": {"version": 1}}
    assert (await admin.post(f"{T}/version", json=spaced)).json() == {"version": -1}


async def test_an_administrator_may_add_schemas_where_producers_may_not(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    await harness.broker.policies.set_namespace("public/default", "isAllowAutoUpdateSchema", False)
    assert (await admin.post(f"{T}/schema", json=payload(FIRST))).status_code == 200


async def test_a_deleted_schema_is_404_and_versions_count_on(admin: httpx.AsyncClient) -> None:
    await admin.post(f"{T}/schema", json=payload(FIRST))
    assert (await admin.delete(f"{T}/schema")).json() == {"version": 1}
    assert (await admin.get(f"{T}/schema")).status_code == 404
    assert (await admin.get(f"{T}/schema/0")).status_code == 404
    assert (await admin.get(f"{T}/schemas")).json() == {"getSchemaResponses": []}
    answer = await admin.post(f"{T}/schema", json=payload(INCOMPATIBLE))
    assert answer.json() == {"version": {"version": 2}}


async def test_a_schema_deleted_by_force_leaves_nothing(admin: httpx.AsyncClient) -> None:
    for schema in (FIRST, SECOND):
        await admin.post(f"{T}/schema", json=payload(schema))
    assert (await admin.delete(f"{T}/schema", params={"force": "true"})).json() == {"version": 1}
    assert (await admin.delete(f"{T}/schema", params={"force": "true"})).json() == {"version": -1}
    answer = await admin.post(f"{T}/schema", json=payload(INCOMPATIBLE))
    assert answer.json() == {"version": {"version": 0}}


async def test_a_pair_is_json_here_and_bytes_on_the_wire(harness: Harness, admin: httpx.AsyncClient) -> None:
    schema = pair(STRING, FIRST, encoding="SEPARATED")
    text = json.dumps({"key": "", "value": json.loads(FIRST.data)})
    for path, wanted in (("schema", {"version": {"version": 0}}), ("version", {"version": 0})):
        assert (await admin.post(f"{T}/{path}", json=payload(schema, text))).json() == wanted
    stored = harness.broker.schemas.latest(NAME)
    assert stored is not None
    key, value = key_value.split(stored.schema)
    assert (key.data, json.loads(value.data)) == (b"", json.loads(FIRST.data))
    shown = (await admin.get(f"{T}/schema")).json()
    assert json.loads(shown["data"]) == json.loads(text)
    assert shown["properties"] == dict(schema.properties)
    # And what a client brought on the wire is the same schema.
    assert await harness.broker.schemas.put(NAME, schema, Strategy.FULL) == 0


@pytest.mark.parametrize("schema", [STRING, INT32, protobuf_native("Order", "id")], ids=lambda s: str(s.type))
async def test_every_type_reads_back_as_it_was_written(admin: httpx.AsyncClient, schema: Schema) -> None:
    assert (await admin.post(f"{T}/schema", json=payload(schema))).status_code == 200
    shown = (await admin.get(f"{T}/schema")).json()
    assert (shown["type"], shown["data"].encode()) == (str(schema.type), schema.data)


@pytest.mark.parametrize("place", ["nobody/default", "public/nowhere"])
async def test_a_namespace_that_is_not_there_is_404(admin: httpx.AsyncClient, place: str) -> None:
    base = f"/admin/v2/schemas/{place}/t"
    answers = [
        *[await admin.get(f"{base}/{path}") for path in ("schema", "schema/0", "schemas")],
        *[await admin.post(f"{base}/{path}", json=payload(STRING)) for path in ("schema", "compatibility", "version")],
        await admin.delete(f"{base}/schema"),
        await admin.delete(f"{base}/schema", params={"force": "true"}),
    ]
    assert [answer.status_code for answer in answers] == [404] * len(answers)


async def test_names_are_percent_encoded(harness: Harness, admin: httpx.AsyncClient) -> None:
    await admin.post("/admin/v2/schemas/public/default/a%20%C3%BC%3F/schema", json=payload(STRING))
    assert harness.broker.schemas.latest(TopicName.parse("a ü?")) is not None
