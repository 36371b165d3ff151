# SPDX-License-Identifier: Apache-2.0
"""Analyzes a subscription's backlog: counts entries and messages.

Why by reading: a backlog is counted in entries; the number of messages is only in the log.
Where: called by the admin API. The log is read in portions, in a reader thread, at most `SCAN_ENTRIES_MAX` entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotAllowed, SubscriptionNotFound
from penstock.core.units import MIB

if TYPE_CHECKING:
    from penstock.broker.log_reads import LogReads
    from penstock.broker.stats import shapes
    from penstock.broker.stats.topic_stats import TopicStats
    from penstock.core.names import TopicName
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import Batch

# Pulsar's default of subscriptionBacklogScanMaxEntries.
SCAN_ENTRIES_MAX: Final = 10_000
READ_BYTES: Final = MIB


class BacklogAnalysis:
    """Analyzes backlogs, one at a time."""

    def __init__(self, *, stats: TopicStats, reads: LogReads) -> None:
        self._stats = stats
        self._reads = reads

    async def analyze(self, name: TopicName, subscription: str) -> shapes.BacklogAnalysis:
        """Count unacknowledged entries and messages. Raises TopicNotFound, SubscriptionNotFound, NotAllowed."""
        topic = await self._stats.loaded(name)
        if not topic.persistent:
            raise NotAllowed("Analyze backlog on a non-persistent topic is not allowed")
        found = topic.subscriptions.get(subscription)
        if found is None:
            raise SubscriptionNotFound(str(name), subscription)
        entries = messages = 0
        at, last = found.cursor.mark_delete + 1, topic.last_entry_id
        while at <= last and entries < SCAN_ENTRIES_MAX:
            wanted = min(last + 1 - at, SCAN_ENTRIES_MAX - entries)
            result = await self._reads.read(topic.ledger_id, at, bytes_max=READ_BYTES, entries_max=wanted)
            for batch in result.batches:
                counts = _unacknowledged(found.cursor, batch)
                entries += len(counts)
                messages += sum(counts)
            if result.next_entry_id <= at:
                break
            at = result.next_entry_id
        return {
            "entries": entries,
            "messages": messages,
            "markerMessages": 0,
            "filterRejectedEntries": 0,
            "filterAcceptedEntries": entries,
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": 0,
            "filterAcceptedMessages": messages,
            "filterRescheduledMessages": 0,
            "aborted": at <= last,
        }


def _unacknowledged(cursor: Cursor, batch: Batch) -> list[int]:
    """The number of messages of each unacknowledged entry of a batch."""
    counts = batch.message_counts
    return [
        1 if counts is None else counts[row]
        for row, entry_id in enumerate(batch.entry_ids)
        if not cursor.is_acknowledged(entry_id)
    ]
