# SPDX-License-Identifier: Apache-2.0
"""Topics that are copies of another cluster's: makes them, and appends entries as they were there.

Why not as a producer: a producer's name, sequence ids and receipts are of no use to a copy, nobody else may publish to
it (`readOnlyTopics`), and entries are to stay as they are, to the byte. Where: the thread of `penstock mirror` calls
this on the loop of its broker.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.schemas.checks.model import TYPES, Schema, Strategy
from penstock.broker.schemas.schema_registry import version_bytes
from penstock.core.checksum import SEAL_BYTES
from penstock.core.errors import AlreadyExists, PreconditionFailed
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.administration.administration import Administration
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.own_entries import OwnEntries, OwnEntry
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName

_READ_BYTES: Final = 1 * MIB
_READ_ENTRIES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copied topics. All methods are called on the event loop."""

    admin: Administration
    topics: TopicDirectory
    partitions: Partitions
    schemas: SchemaRegistry
    reads: LogReads
    entries: OwnEntries

    async def make(self, name: TopicName, partitions: int) -> None:
        """Make a topic with its tenant, its namespace and so many partitions (0: it has none), as far as they lack.

        Raises:
            PreconditionFailed: it is here already, without partitions there or with more of them.
            PenstockError: it cannot be stored.
        """
        with suppress(AlreadyExists):
            await self.admin.tenants.create(name.tenant, {"allowedClusters": self.admin.clusters.names()})
        with suppress(AlreadyExists):
            await self.admin.namespaces.create(name.namespace_name)
        there = self.partitions.count(name)
        if there > partitions or (partitions and not there and self.topics.exists(name)):
            raise PreconditionFailed(f"{name} has {there} partitions here and {partitions} where it comes from")
        if not partitions:
            await self._topic(name)
        elif not there:
            await self.partitions.create(name, partitions)
        elif there < partitions:
            await self.partitions.grow(name, partitions)

    async def end(self, name: TopicName) -> int:
        """Return the id of the entry that is appended next."""
        return (await self._topic(name)).next_entry_id

    async def seals(self, name: TopicName, first: int) -> list[bytes]:
        """Return the seals of the stored entries from this one on: checksums, by which they are known again."""
        topic = await self._topic(name)
        entry_id = max(first, topic.first_entry_id)
        found: list[bytes] = []
        while entry_id < topic.next_entry_id:
            read = await self.reads.read(topic.ledger_id, entry_id, bytes_max=_READ_BYTES, entries_max=_READ_ENTRIES)
            found += [bytes(entry[:SEAL_BYTES]) for batch in read.batches for _, entry in batch.entries()]
            if read.next_entry_id <= entry_id:
                break
            entry_id = read.next_entry_id
        return found

    async def register(self, name: TopicName, kind: int, data: bytes, properties: Mapping[str, str]) -> bytes:
        """Register a schema that the topic has where it comes from; returns its version here. Raises PenstockError."""
        schema = Schema(TYPES[kind], data, dict(properties))
        return version_bytes(await self.schemas.put(name, schema, Strategy.ALWAYS_COMPATIBLE))

    async def append(self, name: TopicName, entries: Sequence[OwnEntry]) -> int:
        """Append entries; returns the id after the last one when they are durable. Raises PenstockError."""
        topic = await self._topic(name)
        following = topic.next_entry_id + len(entries)
        await self.entries.append(topic, entries)
        return following

    async def _topic(self, name: TopicName) -> Topic:
        topic = self.topics.get(name)
        return topic if topic is not None and not topic.closed else await self.topics.create(name, {})
