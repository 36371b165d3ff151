# SPDX-License-Identifier: Apache-2.0
"""The broker's part in recording: usage records and decision records, if they are switched on.

Where: the broker makes one `Recorder`, ticks it, and stops it after its clients. Nothing else of this package
is imported while nothing is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.system_topics import DECISION_TOPIC, USAGE_TOPIC
from penstock.stats.recorded import snapshot_of
from penstock.storage.schema import USAGE_STATE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.resource_groups import Groups
    from penstock.broker.records.record_topic import RecordTopic
    from penstock.broker.records.usage import UsageRecords
    from penstock.broker.records.usage_counts import CountedTopic
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.subscriptions.tail import TailCache
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.core.clock import Clock
    from penstock.core.membership import Membership
    from penstock.net.listener import Connections
    from penstock.net.listing_memory import TopicListMemoryLimiter
    from penstock.records.decisions import DecisionRecords
    from penstock.stats.snapshot import RecordsSnapshot
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderParts:
    """Parts of the broker that recording uses."""

    entry_log: EntryLog
    catalog: Catalog
    changes: Changes
    reads: LogReads
    topics: TopicDirectory
    partitions: Partitions
    placement: Placement
    membership: Membership
    schemas: SchemaRegistry
    groups: Groups
    connections: Connections
    listings: TopicListMemoryLimiter
    refused: Callable[[], Mapping[tuple[str, int], int]]  # refused commands since the last call
    tail_cache: TailCache
    trim_soon: Callable[[CountedTopic], None]  # trims a topic that could not be trimmed before it was counted
    limits: Callable[[], BrokerLimits]
    clock: Clock
    loop: asyncio.AbstractEventLoop


class Recorder:
    """The records of this broker. All methods are called on the event loop.

    Attributes:
        usage: counts and records usage; None: it is switched off.
        decisions: records decisions of limiters; None: it is switched off.
    """

    def __init__(self, parts: RecorderParts) -> None:
        self._parts = parts
        self.usage: UsageRecords | None = None
        if parts.limits().usage_records_enabled:
            self.usage = self._usage_records()
        elif "" in parts.catalog.documents(USAGE_STATE):
            from penstock.broker.records.usage import forget_counting  # noqa: PLC0415 -- only the first start after

            parts.changes.finish(forget_counting(parts.catalog, parts.changes))
        self.decisions = self._decision_records() if parts.limits().governance_records_enabled else None

    def tick(self, now_ns: int) -> None:
        if self.usage is not None:
            self.usage.tick()
        if self.decisions is not None:
            self.decisions.tick(now_ns)

    async def stop(self) -> None:
        """Record what is left; no client is connected any more."""
        if self.decisions is not None:
            await self.decisions.stop()
        if self.usage is not None:
            await self.usage.stop()

    def snapshot(self) -> RecordsSnapshot | None:
        """Counters for metrics; None if nothing is recorded."""
        return snapshot_of(self.usage, self.decisions)

    def _decision_records(self) -> DecisionRecords:
        from penstock.accounting.records import DECISION  # noqa: PLC0415 -- not imported if nothing is recorded
        from penstock.records.decisions import DecisionRecords  # noqa: PLC0415
        from penstock.records.limiters_seen import LimitersSeen  # noqa: PLC0415

        parts = self._parts
        return DecisionRecords(
            self._topic(DECISION_TOPIC, DECISION.definition),
            LimitersSeen(
                topics=parts.topics.loaded,
                connections=parts.connections.all,
                groups=lambda: parts.groups.in_use,
                listings=parts.listings,
                refused=parts.refused,
                now_ns=parts.clock.monotonic_ns(),
            ),
            name=f"broker-{parts.membership.own}",
            epoch=self.usage.epoch if self.usage is not None else parts.clock.wall_ms(),
            per_second=lambda: parts.limits().governance_records_per_second,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _usage_records(self) -> UsageRecords:
        from penstock.accounting.records import USAGE  # noqa: PLC0415 -- not imported if nothing is recorded
        from penstock.broker.records.usage import UsageRecords  # noqa: PLC0415

        parts = self._parts
        return UsageRecords(
            self._topic(USAGE_TOPIC, USAGE.definition),
            broker=parts.membership.own,
            catalog=parts.catalog,
            changes=parts.changes,
            reads=parts.reads,
            entry_log=parts.entry_log,
            groups=lambda: parts.groups.in_use,
            trim_soon=parts.trim_soon,
            interval_s=lambda: parts.limits().usage_records_interval_in_seconds,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _topic(self, name: str, definition: bytes) -> RecordTopic:
        from penstock.broker.publishing.own_entries import OwnEntries  # noqa: PLC0415
        from penstock.broker.records.record_topic import RecordTopic  # noqa: PLC0415

        parts = self._parts
        return RecordTopic(
            name,
            definition,
            topics=parts.topics,
            partitions=parts.partitions,
            placement=parts.placement,
            brokers=lambda: max(parts.membership.members) + 1,
            schemas=parts.schemas,
            entries=OwnEntries(parts.entry_log, parts.tail_cache, parts.loop),
            clock=parts.clock,
            writer=f"penstock-broker-{parts.membership.own}",
        )
