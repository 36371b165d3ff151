# SPDX-License-Identifier: Apache-2.0
"""The schema registry: versions of the schemas of all topics.

A topic's schemas are numbered from 0. Partitions share those of their partitioned topic, and so do a persistent and a
non-persistent topic of one name, as in Pulsar. Deleting a schema adds a version "none": earlier versions are hidden,
and the numbers continue. They start again only when the topic itself is deleted.

Why one document per version: adding a version must not rewrite the earlier ones, which may be large and many.
Where: sessions attach the schemas of producers and consumers; the admin API lists, adds and deletes; compatibility is
decided in `checks`. The key of a document is `tenant/namespace/topic/version`.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.metadata_memory import SCHEMAS
from penstock.broker.schemas.checks.model import Schema, SchemaType, Strategy
from penstock.core.errors import ChangedMeanwhile, IncompatibleSchema, InvalidSchema, MetadataFailed
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.metadata_memory import MetadataMemory
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

T = TypeVar("T")

# Members of a document beside the definition and the properties.
DOCUMENT_BYTES: Final = 100
NO_VERSION: Final = b""  # version for a producer without a schema
# Comparing this much text takes a millisecond or two; more is compared in a thread. So is the first schema, because
# the comparison is imported then; a broker without schemas never imports it.
INLINE_BYTES_MAX: Final = 16 * KIB
_KNOWS_HOW: Final = "penstock.broker.schemas.checks.compatibility"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    schema: Schema
    timestamp_ms: int
    deleted: bool = False

    @property
    def version_bytes(self) -> bytes:
        """The version as encoded on the wire."""
        return version_bytes(self.version)


class SchemaTopic(Protocol):
    """A topic, as used by the registry."""

    @property
    def name(self) -> TopicName: ...

    @property
    def policies(self) -> EffectivePolicies: ...

    @property
    def in_use(self) -> bool:
        """Whether it holds messages, or has a producer or a consumer that checks schemas."""


class SchemaRegistry:
    """The schemas of all topics, stored in the catalog. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        clock: Clock,
        memory: MetadataMemory,
        bytes_max: Callable[[], int],
    ) -> None:
        """Args: memory: charged for all schemas. bytes_max: maximum size of one schema."""
        self._catalog = catalog
        self._changes = changes
        self._clock = clock
        self._memory = memory
        self._bytes_max = bytes_max
        self._versions = _versions(catalog.documents(SCHEMAS))
        # Locks: a topic's schemas change one at a time, so versions cannot be added during a comparison.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Schemas in use by comparisons or replies: one shared copy of each.
        self._in_use: WeakValueDictionary[str, StoredSchema] = WeakValueDictionary()

    # -- reading

    def latest(self, name: TopicName) -> StoredSchema | None:
        """The topic's schema; None if it has none, or it was deleted."""
        schema_id = schema_id_of(name)
        versions = self._versions.get(schema_id)
        stored = self._stored(schema_id, versions[-1]) if versions else None
        return None if stored is None or stored.deleted else stored

    def version(self, name: TopicName, version: int) -> StoredSchema | None:
        """One version of the topic's schema; None if it does not exist, or was deleted."""
        schema_id = schema_id_of(name)
        documents = self._catalog.documents(SCHEMAS)
        for other in reversed(self._versions.get(schema_id, ())):
            if documents[_key(schema_id, other)].get("deleted", False):
                return None
            if other == version:
                return self._stored(schema_id, version)
        return None

    def versions(self, name: TopicName) -> list[StoredSchema]:
        """All versions since the schema was last deleted, oldest first."""
        schema_id = schema_id_of(name)
        kept: list[StoredSchema] = []
        for version in reversed(self._versions.get(schema_id, ())):
            stored = self._stored(schema_id, version)
            if stored.deleted:
                break
            kept.append(stored)
        return kept[::-1]

    async def find(self, name: TopicName, schema: Schema) -> int:
        """The version of this schema; -1 if it is not registered. Raises InvalidSchema."""
        versions = self.versions(name)
        return await _decided(schema, versions, partial(_same_version, schema, versions))

    def followed(self, key: str, *, exists: bool) -> None:
        """Another broker has stored a version, or deleted it with its topic."""
        schema_id, _, number = key.rpartition("/")
        versions = {*self._versions.get(schema_id, ()), int(number)}
        if not exists:
            versions.discard(int(number))
            self._in_use.pop(key, None)
        if versions:
            self._versions[schema_id] = sorted(versions)
        else:
            self._versions.pop(schema_id, None)

    # -- attaching

    async def attach_producer(self, topic: SchemaTopic, schema: Schema | None) -> bytes:
        """Check or register a producer's schema; returns its version, empty for none.

        Also called for schemas of AUTO_PRODUCE messages.

        Raises:
            IncompatibleSchema: the schema is incompatible, or new schemas or producers without schema are refused.
            InvalidSchema: the definition is invalid.
            MetadataFailed: it could not be stored.
        """
        policies = topic.policies
        if schema is None or schema.type is SchemaType.NONE:
            if policies.schema_validation_enforced and self.latest(topic.name) is not None:
                raise IncompatibleSchema(
                    "Producers cannot connect or send message without a schema to topics with a schema "
                    "when SchemaValidationEnforced is enabled"
                )
            return NO_VERSION
        if policies.allow_auto_update_schema:
            version = await self.put(topic.name, schema, strategy_of(policies.schema_compatibility))
        else:
            version = await self.find(topic.name, schema)
            if version < 0:
                raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
        return version_bytes(version)

    async def attach_consumer(self, topic: SchemaTopic, schema: Schema | None) -> None:
        """Check a consumer's schema. It is registered if the topic has no schema and is not in use.

        Raises:
            IncompatibleSchema: a consumer with this schema cannot read the topic.
            InvalidSchema: the definition is invalid.
            MetadataFailed: it could not be stored.
        """
        if schema is None or schema.type in (SchemaType.NONE, SchemaType.AUTO_CONSUME):
            return
        strategy = strategy_of(topic.policies.schema_compatibility)
        versions = self.versions(topic.name)
        if versions:
            await _decided(schema, versions, partial(_check_consumer, schema, versions, strategy))
        elif not topic.in_use:
            await self.attach_producer(topic, schema)
        elif strategy is not Strategy.ALWAYS_COMPATIBLE:
            raise IncompatibleSchema(
                f"Failed to add schema to an active topic with empty(BYTES) schema: new schema type {schema.type}"
            )

    # -- changing

    async def put(self, name: TopicName, schema: Schema, strategy: Strategy) -> int:
        """The version of this schema; a new version is stored if the strategy allows it.

        Raises:
            IncompatibleSchema: the strategy does not allow it.
            InvalidSchema: the definition is invalid.
            MetadataFailed: it could not be stored.
            TooManyRequests: all schemas together use too much memory.
        """
        self._check_size(schema)
        return await self._alone(name, partial(self._put, name, schema, strategy))

    async def check(self, name: TopicName, schema: Schema, strategy: Strategy) -> None:
        """Raises IncompatibleSchema or InvalidSchema if `put` would refuse this schema."""
        self._check_size(schema)
        versions = self.versions(name)
        await _decided(schema, versions, partial(_checked, schema, versions, strategy))

    async def delete(self, name: TopicName) -> int:
        """Delete the topic's schema; returns the version of the deletion."""
        return await self._alone(name, partial(self._store, name, Schema(SchemaType.NONE), deleted=True))

    async def forget(self, name: TopicName) -> int:
        """Remove all versions, for a topic that is deleted; returns the last version, or -1.

        A partition's schemas are those of its partitioned topic, and are kept until that is deleted.
        """
        if name.partition >= 0 or schema_id_of(name) not in self._versions:
            return -1
        return await self._alone(name, partial(self._forget, schema_id_of(name)))

    # -- inside

    def _check_size(self, schema: Schema) -> None:
        """Limit schemas of administrators; those of clients were limited before decoding (`wire.bounds`)."""
        bound = self._bytes_max()
        if len(schema.data) > bound:
            raise InvalidSchema(
                f"a schema of {len(schema.data):,} bytes is refused: {bound:,} are allowed (maxSchemaSize)"
            )

    async def _put(self, name: TopicName, schema: Schema, strategy: Strategy) -> int:
        while True:
            versions = self.versions(name)
            same = await _decided(schema, versions, partial(_checked, schema, versions, strategy))
            if same >= 0:
                return same
            with suppress(ChangedMeanwhile):  # Another broker, of another partition, has stored this version first.
                return await self._store(name, schema)

    async def _store(self, name: TopicName, schema: Schema, *, deleted: bool = False) -> int:
        versions = self._versions.get(schema_id_of(name), [])
        version = versions[-1] + 1 if versions else 0
        stored = StoredSchema(version, schema, self._clock.wall_ms(), deleted)
        with self._memory.charged(f"the schema of {name}", 0 if deleted else _kept_bytes(schema)):
            key, document = _key(schema_id_of(name), version), _document(stored)
            await self._changes.stored(
                lambda done: self._catalog.put_document(SCHEMAS, key, document, done, expected=None)
            )
        self._versions[schema_id_of(name)] = [*versions, version]
        return version

    async def _forget(self, schema_id: str) -> int:
        versions = self._versions.pop(schema_id, [])
        try:
            # Submitted together, so that they become one commit.
            await asyncio.gather(*(self._put_document(_key(schema_id, version), None) for version in versions))
        except MetadataFailed:
            self._versions[schema_id] = versions
            raise
        for version in versions:  # Version numbers start again, and a reply may still use these.
            self._in_use.pop(_key(schema_id, version), None)
        return versions[-1] if versions else -1

    def _put_document(self, key: str, document: Mapping[str, Any] | None) -> asyncio.Future[None]:
        return self._changes.stored(lambda done: self._catalog.put_document(SCHEMAS, key, document, done))

    async def _alone(self, name: TopicName, change: Callable[[], Awaitable[int]]) -> int:
        """Make a change under the topic's lock. It is finished even if the caller is cancelled."""
        lock = self._locks.setdefault(schema_id_of(name), asyncio.Lock())

        async def locked() -> int:
            async with lock:
                return await change()

        return await self._changes.finish(locked())

    def _stored(self, schema_id: str, version: int) -> StoredSchema:
        key = _key(schema_id, version)
        stored = self._in_use.get(key)
        if stored is None:
            stored = self._in_use[key] = _read_document(self._catalog.documents(SCHEMAS)[key])
        return stored


def schema_id_of(name: TopicName) -> str:
    """The key of a topic's schemas; also Pulsar's schema name on the wire."""
    return f"{name.tenant}/{name.namespace}/{name.parent.local}"


def version_bytes(version: int) -> bytes:
    """A version on the wire: eight bytes, big-endian."""
    return version.to_bytes(8, "big")


def strategy_of(name: str | None) -> Strategy:
    """The strategy named by a policy; FULL if undefined."""
    strategy = Strategy(name or Strategy.UNDEFINED)
    return Strategy.FULL if strategy is Strategy.UNDEFINED else strategy


def _checked(schema: Schema, versions: Sequence[StoredSchema], strategy: Strategy) -> int:
    """The version of this schema; -1 for a new compatible one. Raises InvalidSchema or IncompatibleSchema."""
    from penstock.broker.schemas.checks.compatibility import check_producer  # noqa: PLC0415 - see above
    from penstock.broker.schemas.checks.validity import check_valid  # noqa: PLC0415

    check_valid(schema)
    same = _same_version(schema, versions)
    if same < 0:
        check_producer(schema, [stored.schema for stored in versions], strategy)
    return same


def _check_consumer(schema: Schema, versions: Sequence[StoredSchema], strategy: Strategy) -> None:
    from penstock.broker.schemas.checks.compatibility import check_consumer  # noqa: PLC0415
    from penstock.broker.schemas.checks.validity import check_valid  # noqa: PLC0415

    check_valid(schema)
    check_consumer(schema, [stored.schema for stored in versions], strategy)


def _same_version(schema: Schema, versions: Sequence[StoredSchema]) -> int:
    # Usually the schema is registered with the same bytes: then nothing is parsed.
    for stored in versions:
        if stored.schema == schema:
            return stored.version
    from penstock.broker.schemas.checks.compatibility import identity  # noqa: PLC0415

    wanted = identity(schema)
    return next((stored.version for stored in versions if identity(stored.schema) == wanted), -1)


async def _decided(schema: Schema, versions: Sequence[StoredSchema], decide: Callable[[], T]) -> T:
    """Call `decide` directly if the schemas are small, else in a thread, so that publishing continues."""
    nbytes = len(schema.data) + sum(len(stored.schema.data) for stored in versions)
    if nbytes <= INLINE_BYTES_MAX and _KNOWS_HOW in sys.modules:
        return decide()
    return await asyncio.to_thread(decide)


def _key(schema_id: str, version: int) -> str:
    return f"{schema_id}/{version}"


def _versions(documents: Mapping[str, object]) -> dict[str, list[int]]:
    """The versions of each topic's schema, in order."""
    found: dict[str, list[int]] = {}
    for key in documents:
        schema_id, _, version = key.rpartition("/")
        found.setdefault(schema_id, []).append(int(version))
    for versions in found.values():
        versions.sort()
    return found


def _kept_bytes(schema: Schema) -> int:
    """Estimated memory of a schema in the catalog."""
    return DOCUMENT_BYTES + len(schema.data) + sum(len(key) + len(value) for key, value in schema.properties.items())


def _document(stored: StoredSchema) -> Mapping[str, Any]:
    schema = stored.schema
    document: dict[str, Any] = {
        "version": stored.version,
        "type": str(schema.type),
        "timestamp": stored.timestamp_ms,
        "properties": dict(schema.properties),
    }
    try:
        document["data"] = schema.data.decode()
    except UnicodeDecodeError:  # The lengths in a key-value definition are arbitrary bytes.
        document["base64"] = base64.b64encode(schema.data).decode()
    if stored.deleted:
        document["deleted"] = True
    return document


def _read_document(document: Mapping[str, Any]) -> StoredSchema:
    data = document["data"].encode() if "data" in document else base64.b64decode(document["base64"])
    schema = Schema(SchemaType(document["type"]), data, document["properties"])
    return StoredSchema(document["version"], schema, document["timestamp"], document.get("deleted", False))
