# SPDX-License-Identifier: Apache-2.0
"""Admin operations on schemas: read, add, compare, delete.

The topic need not exist: its schema may be set before it is created. They raise NamespaceNotFound if the namespace does
not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.schemas.checks import key_value
from penstock.broker.schemas.checks.model import Schema, SchemaType, Strategy, type_named
from penstock.broker.schemas.schema_registry import strategy_of
from penstock.core.errors import IncompatibleSchema, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.schemas.schema_registry import SchemaRegistry, StoredSchema
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.core.names import TopicName


class SchemaAdmin:
    """Schemas by topic name."""

    def __init__(self, *, registry: SchemaRegistry, policies: PolicyService, resources: NamespaceResources) -> None:
        self._registry = registry
        self._policies = policies
        self._resources = resources

    def get(self, name: TopicName, version: int | None = None) -> dict[str, Any]:
        """A version of the schema; by default the latest. Raises NotFound."""
        self._check_namespace(name)
        stored = self._registry.latest(name) if version is None else self._registry.version(name, version)
        if stored is None:
            raise NotFound("Schema not found")
        return _shown(stored)

    def versions(self, name: TopicName) -> list[dict[str, Any]]:
        """All versions since the schema was last deleted, oldest first."""
        self._check_namespace(name)
        return [_shown(stored) for stored in self._registry.versions(name)]

    def by_version(self, name: TopicName, versions: Iterable[bytes]) -> dict[bytes, StoredSchema]:
        """Return those of these versions that the topic has, by their bytes on the wire."""
        found = {}
        for version in versions:
            stored = self._registry.version(name, int.from_bytes(version, "big")) if version else None
            if stored is not None and stored.version_bytes == version:
                found[version] = stored
        return found

    async def post(self, name: TopicName, schema: Schema) -> int:
        """Add a schema if it is compatible; returns its version. Administrators may always add schemas.

        Raises:
            IncompatibleSchema: the topic's compatibility strategy refuses it.
            InvalidSchema: the definition is invalid.
        """
        return await self._registry.put(name, schema, self._strategy(name))

    async def delete(self, name: TopicName, *, force: bool) -> int:
        """Delete the topic's schema; with `force`, including its history. Returns a version; -1 for none."""
        self._check_namespace(name)
        return await (self._registry.forget(name.parent) if force else self._registry.delete(name))

    async def check_compatibility(self, name: TopicName, schema: Schema) -> tuple[bool, str]:
        """Whether the schema is compatible, and the strategy used. Raises InvalidSchema."""
        strategy = self._strategy(name)
        try:
            await self._registry.check(name, schema, strategy)
        except IncompatibleSchema:
            return False, str(strategy)
        return True, str(strategy)

    async def find_version(self, name: TopicName, schema: Schema) -> int:
        """The version with exactly these bytes as definition, as in Pulsar; -1 if there is none."""
        self._check_namespace(name)
        versions = self._registry.versions(name)
        same = (found for found in versions if (found.schema.type, found.schema.data) == (schema.type, schema.data))
        return next((found.version for found in same), -1)

    def _strategy(self, name: TopicName) -> Strategy:
        self._check_namespace(name)
        return strategy_of(self._policies.of_topic(name).schema_compatibility)

    def _check_namespace(self, name: TopicName) -> None:
        self._resources.check_namespace(name.namespace_name)


def schema_of(kind: str, text: str, properties: Mapping[str, str]) -> Schema:
    """The schema in an admin request. Raises InvalidSchema."""
    found = type_named(kind)
    data = key_value.from_json_text(text) if found is SchemaType.KEY_VALUE else text.encode()
    return Schema(found, data, properties)


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
