# SPDX-License-Identifier: Apache-2.0
"""One of the topics of records, as this broker writes it: its own partition, in its own log.

Why a partition for each broker: records then need no connection, and are as durable as the messages that they count.
Broker i has partition i. After topics were moved that partition may be another broker's; then this broker takes another
one that it serves, or adds one. Records say which broker wrote them, so readers do not depend on it.

Why no client may write: whoever reads the records can rely on them, also on a broker without authorization.

Where: `usage` and `decisions` create it at the start of the broker, or again if it was deleted, and write with it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.broker.publishing.own_entries import OwnEntry
from penstock.broker.schemas.checks.model import Schema, SchemaType, Strategy
from penstock.broker.schemas.schema_registry import version_bytes
from penstock.core.errors import AlreadyExists, ChangedMeanwhile, ServedElsewhere, Unprocessable
from penstock.core.names import TopicName
from penstock.records.decisions import entries_of
from penstock.wire import batches, compression
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.publishing.own_entries import OwnEntries
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock

# Every broker adds at most a partition or two; so many are looked through after topics were moved.
PARTITIONS_MAX: Final = 1_000


class RecordTopic:
    """Writes records to one topic. All methods are called on the event loop."""

    def __init__(
        self,
        name: str,
        definition: bytes,
        *,
        topics: TopicDirectory,
        partitions: Partitions,
        placement: Placement,
        brokers: Callable[[], int],
        schemas: SchemaRegistry,
        entries: OwnEntries,
        clock: Clock,
        writer: str,
    ) -> None:
        """Receive what this uses.

        Args:
            name: full name of the partitioned topic.
            definition: the Avro schema of its records.
            topics: loads and creates partitions.
            partitions: creates and grows the partitioned topic.
            placement: which broker serves which partition.
            brokers: returns the number of brokers of the cluster.
            schemas: registers the schema.
            entries: appends.
            clock: for publish times.
            writer: producer name in the entries.
        """
        self.name = TopicName.parse(name)
        self._schema = Schema(SchemaType.AVRO, definition)
        self._topics = topics
        self._partitions = partitions
        partitions.expected.add(name)
        self._placement = placement
        self._brokers = brokers
        self._schemas = schemas
        self._entries = entries
        self._clock = clock
        self._writer = writer
        self._topic: Topic | None = None
        self._schema_version = b""
        self._sequence_id = 0

    async def create(self) -> None:
        """Create the topic and its schema, so that readers can subscribe. Raises PenstockError."""
        await self._opened()

    async def write(self, records: Sequence[bytes], time_ms: int) -> None:
        """Append encoded records; returns when they are durable.

        Raises:
            PenstockError: they were not stored, or not all of them.
        """
        for some in entries_of(records):
            topic = await self._opened()
            await self._entries.append(topic, [OwnEntry(self._entry(some, time_ms), len(some))])

    def _entry(self, records: Sequence[bytes], time_ms: int) -> bytes:
        about = MessageMetadata(
            producer_name=self._writer, sequence_id=self._sequence_id, publish_time=self._clock.wall_ms()
        )
        about.schema_version = self._schema_version
        self._sequence_id += len(records)
        return batches.make(about, records, time_ms, compression.ZSTD)

    async def _opened(self) -> Topic:
        """The partition, with the schema; created if necessary. Raises PenstockError."""
        topic = self._topic
        if topic is None or topic.fenced or topic.closed or self._schemas.latest(self.name) is None:
            topic = await self._own_partition()
            version = await self._schemas.put(self.name, self._schema, Strategy.ALWAYS_COMPATIBLE)
            self._schema_version = version_bytes(version)
            self._topic = topic
        return topic

    async def _own_partition(self) -> Topic:
        own = self._placement.own
        await self._make_partitions(max(self._brokers(), own + 1))
        for index in (own, *range(PARTITIONS_MAX)):
            partition = self.name.of_partition(index)
            if index >= self._partitions.count(self.name):
                await self._make_partitions(index + 1)
            if self._placement.is_ours(partition):
                with suppress(ServedElsewhere):  # Another broker has just created it.
                    return await self._topics.create(partition, {})
        raise ServedElsewhere(str(self.name), own)

    async def _make_partitions(self, count: int) -> None:
        """Create or grow the partitioned topic, unless another broker does."""
        existing = self._partitions.count(self.name)
        if not existing:
            with suppress(AlreadyExists, ChangedMeanwhile):
                await self._partitions.create(self.name, count)
        elif existing < count:
            with suppress(ChangedMeanwhile, Unprocessable):
                await self._partitions.grow(self.name, count)
