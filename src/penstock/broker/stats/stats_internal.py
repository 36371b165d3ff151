# SPDX-License-Identifier: Apache-2.0
"""Internal statistics of a topic: its ledger, and a cursor for each subscription, in Pulsar's terms.

Why those terms: people and tools expect them. A topic here has one ledger for its whole life, so the current ledger is
the only one; cursors are not stored in ledgers.
Where: called by the admin API on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

from penstock.broker.stats.stats import iso_time
from penstock.broker.subscriptions.shared import Shared
from penstock.broker.topics.topic import subscribed_topic

if TYPE_CHECKING:
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.stats import shapes
    from penstock.broker.stats.stats import TopicStats
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName

# Maximum number of acknowledged ranges shown per cursor; there may be a million.
RANGES_SHOWN_MAX: Final = 1_000


class InternalStats:
    """Ledgers and cursors of topics."""

    def __init__(self, *, stats: TopicStats, quotas: Quotas[Topic], reads: LogReads, broker: int) -> None:
        """Args: broker: number of this broker."""
        self._stats = stats
        self._quotas = quotas
        self._reads = reads
        self._broker = broker

    async def of_topic(self, name: TopicName, *, metadata: bool = False) -> shapes.InternalStats:
        """PersistentTopicInternalStats. Raises TopicNotFound, also for a partitioned topic."""
        topic = await self._stats.loaded(name)
        if not topic.persistent:
            return _not_persistent(topic)
        entries = topic.last_entry_id + 1 - topic.first_entry_id
        nbytes = (await self._quotas.sizes(topic)).storage
        ledger = _ledger(topic.ledger_id, entries, nbytes)
        if metadata:
            ledger["metadata"] = f"{{log=broker-{self._broker}, firstEntry={topic.first_entry_id}}}"
        return {
            "entriesAddedCounter": topic.entries_in,
            "numberOfEntries": entries,
            "totalSize": nbytes,
            "currentLedgerEntries": entries,
            "currentLedgerSize": nbytes,
            "lastLedgerCreatedTimestamp": iso_time(topic.created_ms),
            "waitingCursorsCount": sum(_waits(subscription) for subscription in topic.subscriptions.values()),
            "pendingAddEntriesCount": topic.next_entry_id - topic.last_entry_id - 1,
            "lastConfirmedEntry": f"{topic.ledger_id}:{topic.last_entry_id}",
            "state": _state(topic),
            "ledgers": [ledger],
            "cursors": {quote_plus(s.name): _cursor(s) for s in topic.subscriptions.values()},
            "properties": {},
            "schemaLedgers": [],
            "compactedLedger": await self._compacted(topic),
        }

    async def info(self, name: TopicName) -> shapes.InternalInfo:
        """Stored metadata of a topic. Raises TopicNotFound, also for a partitioned topic."""
        topic = await self._stats.loaded(name)
        created = iso_time(topic.created_ms)
        return {
            "version": 1,
            "creationDate": created,
            "modificationDate": created,
            "ledgers": [
                {
                    "ledgerId": topic.ledger_id,
                    "entries": topic.last_entry_id + 1 - topic.first_entry_id,
                    "timestamp": topic.created_ms,
                    "isOffloaded": False,
                }
            ],
            "cursors": {
                quote_plus(subscription.name): {
                    "version": subscription.cursor.version,
                    "creationDate": created,
                    "modificationDate": created,
                    "cursorsLedgerId": -1,
                    "markDelete": {"ledgerId": topic.ledger_id, "entryId": subscription.cursor.mark_delete},
                }
                for subscription in topic.subscriptions.values()
                if subscription.durable
            },
        }

    async def _compacted(self, topic: Topic) -> shapes.LedgerInfo:
        compacted = topic.compacted
        if compacted is None:
            return _ledger(-1, -1, -1)
        (nbytes,) = await self._reads.bytes_from(compacted.ledger_id, [0])
        return _ledger(compacted.ledger_id, compacted.entries, nbytes)


def _state(topic: Topic) -> str:
    if topic.terminated:
        return "Terminated"
    return "FencedForDeletion" if topic.fenced else "LedgerOpened"


def _ledger(ledger_id: int, entries: int, nbytes: int) -> shapes.LedgerInfo:
    return {"ledgerId": ledger_id, "entries": entries, "size": nbytes, "offloaded": False, "underReplicated": False}


def _waits(subscription: Subscription) -> bool:
    return bool(subscription.consumers) and subscription.read_entry_id > subscription.topic.last_entry_id


def _cursor(subscription: Subscription) -> shapes.CursorStats:
    topic, cursor, dispatcher = subscribed_topic(subscription), subscription.cursor, subscription.dispatcher
    return {
        "markDeletePosition": f"{topic.ledger_id}:{cursor.mark_delete}",
        "readPosition": f"{topic.ledger_id}:{subscription.read_entry_id}",
        "waitingReadOp": _waits(subscription),
        "pendingReadOps": 0,
        "messagesConsumedCounter": subscription.acks,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": _ranges(subscription),
        "lastLedgerSwitchTimestamp": iso_time(topic.created_ms),
        "state": "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": subscription.read_entry_id - cursor.mark_delete,
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "subscriptionHavePendingRead": _waits(subscription),
        "subscriptionHavePendingReplayRead": isinstance(dispatcher, Shared) and bool(dispatcher.replay),
        "properties": {},
    }


def _ranges(subscription: Subscription) -> str:
    """Acknowledged ranges above the mark-delete position, as Pulsar prints them: open below, closed above."""
    ledger_id, last_entry_id = subscription.topic.ledger_id, subscription.topic.last_entry_id
    shown: list[str] = []
    below = subscription.cursor.mark_delete  # the last entry before a range
    # The unacknowledged entry after the last one ends the last range.
    for first, last in subscription.cursor.unacknowledged_ranges(below + 1, last_entry_id + 1):
        if first > below + 1:
            shown.append(f"({ledger_id}:{below}..{ledger_id}:{first - 1}]")
        below = last
        if len(shown) == RANGES_SHOWN_MAX:
            break
    return f"[{','.join(shown)}]"


def _not_persistent(topic: Topic) -> shapes.InternalStats:
    return {
        "entriesAddedCounter": topic.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": {
            quote_plus(name): {
                "waitingReadOp": False,
                "pendingReadOps": 0,
                "messagesConsumedCounter": 0,
                "cursorLedger": 0,
                "cursorLedgerLastEntry": 0,
                "active": False,
                "numberOfEntriesSinceFirstNotAckedMessage": 0,
                "totalNonContiguousDeletedMessagesRange": 0,
                "subscriptionHavePendingRead": False,
                "subscriptionHavePendingReplayRead": False,
            }
            for name in topic.subscriptions
        },
    }
