# SPDX-License-Identifier: Apache-2.0
"""What the admin port does to schemas: read, add, compare, delete.

Plain functions on the broker, on its loop; answers are plain values. The topic itself need not be there: its schema may
be set before it. They raise NamespaceNotFound when the namespace isn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.schemas.checks import key_value
from penstock.broker.schemas.checks.model import Schema, SchemaType, Strategy, type_named
from penstock.broker.schemas.schema_registry import strategy_of
from penstock.core.errors import IncompatibleSchema, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.broker import Broker
    from penstock.broker.schemas.schema_registry import StoredSchema
    from penstock.core.names import TopicName


def get_schema(broker: Broker, name: TopicName, version: int | None = None) -> dict[str, Any]:
    """The latest version, or one by its number. Raises NotFound."""
    _check_namespace(broker, name)
    stored = broker.schemas.latest(name) if version is None else broker.schemas.version(name, version)
    if stored is None:
        raise NotFound("Schema not found")
    return _shown(stored)


def get_all_schemas(broker: Broker, name: TopicName) -> list[dict[str, Any]]:
    """All versions since the schema was last deleted, the oldest first."""
    _check_namespace(broker, name)
    return [_shown(stored) for stored in broker.schemas.versions(name)]


async def post_schema(broker: Broker, name: TopicName, schema: Schema) -> int:
    """The version that a schema is, or becomes if the topic's strategy lets it. An administrator may always add one.

    Raises:
        IncompatibleSchema: the strategy does not let it.
        InvalidSchema: the definition does not read as one.
    """
    return await broker.schemas.put(name, schema, _strategy(broker, name))


async def delete_schema(broker: Broker, name: TopicName, *, force: bool) -> int:
    """Leave the topic without a schema; with `force`, as if there never was one. Returns a version; -1 for none."""
    _check_namespace(broker, name)
    return await (broker.schemas.forget(name.parent) if force else broker.schemas.delete(name))


async def check_compatibility(broker: Broker, name: TopicName, schema: Schema) -> tuple[bool, str]:
    """Whether the topic would take this schema, and the strategy that says so. Raises InvalidSchema."""
    strategy = _strategy(broker, name)
    try:
        await broker.schemas.check(name, schema, strategy)
    except IncompatibleSchema:
        return False, str(strategy)
    return True, str(strategy)


async def find_version(broker: Broker, name: TopicName, schema: Schema) -> int:
    """The version with this very definition, byte by byte as Pulsar compares here; -1 when the topic has none."""
    _check_namespace(broker, name)
    versions = broker.schemas.versions(name)
    same = (found for found in versions if (found.schema.type, found.schema.data) == (schema.type, schema.data))
    return next((found.version for found in same), -1)


def schema_of(kind: str, text: str, properties: Mapping[str, str]) -> Schema:
    """The schema that an administrator describes. Raises InvalidSchema."""
    found = type_named(kind)
    data = key_value.from_json_text(text) if found is SchemaType.KEY_VALUE else text.encode()
    return Schema(found, data, properties)


def _strategy(broker: Broker, name: TopicName) -> Strategy:
    _check_namespace(broker, name)
    return strategy_of(broker.policies.of_topic(name).schema_compatibility)


def _check_namespace(broker: Broker, name: TopicName) -> None:
    broker.places.check_namespace(name.namespace_name)


def _shown(stored: StoredSchema) -> dict[str, Any]:
    schema = stored.schema
    if schema.type is SchemaType.KEY_VALUE:
        text = key_value.to_json_text(schema)
    else:
        text = schema.data.decode(errors="replace")
    return {
        "version": stored.version,
        "type": str(schema.type),
        "timestamp": stored.timestamp_ms,
        "data": text,
        "properties": dict(schema.properties),
    }
