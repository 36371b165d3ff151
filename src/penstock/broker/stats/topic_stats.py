# SPDX-License-Identifier: Apache-2.0
"""Statistics of topics as in Pulsar's admin API: TopicStats as plain dicts, with Pulsar's JSON names.

Why dicts: they are only shown, and most of the hundred keys have no use here. `shapes` lists them. Java clients read
numbers into primitives, so a number is never null; a missing value is 0, or -1 where Pulsar uses it. Keys that Pulsar
leaves out when empty are left out.
Where: called by the admin API on the broker's loop; sizes are computed by a reader thread. `stats_partitioned` sums
partitions, `InternalStats` has ledgers and cursors.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote_plus

from penstock.broker.publishing.checks import AccessMode
from penstock.broker.publishing.limiters import throttled_events
from penstock.broker.subscriptions.shared import Shared
from penstock.broker.subscriptions.state import TYPE_NAMES
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import TopicNotFound
from penstock.core.names import REPLICATOR_PREFIX
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.stats import shapes
    from penstock.broker.stats.message_rates import MessageRates
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.replicating import SubscribedReplicator
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName


ACCESS_MODES: Final = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
NO_COMPACTION: Final[shapes.CompactionStats] = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
NOTHING_DELAYED: Final[shapes.Delayed] = {
    "delayedMessageIndexSizeInBytes": 0,
    "nextDelayedDeliveryTime": 0,
    "furthestDelayedDeliveryTime": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions:
    """Parts of statistics to include, as in the admin API's parameters."""

    subscription_backlog_size: bool = True
    earliest_time: bool = False
    exclude_publishers: bool = False
    exclude_consumers: bool = False


class PartitionCounts(Protocol):
    """Partitioned topics, as used here."""

    def count(self, name: TopicName) -> int:
        """Number of partitions; 0 if the name is not partitioned."""

    def names(self, name: TopicName) -> list[TopicName]:
        """Names of its partitions by index, whether created or not."""


class TopicStats:
    """Statistics of topics."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        partitions: PartitionCounts,
        quotas: Quotas[Topic],
        message_rates: MessageRates,
        reads: LogReads,
        compaction: Compactor,
        clock: Clock,
        web_url: str,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._quotas = quotas
        self._message_rates = message_rates
        self._reads = reads
        self._compaction = compaction
        self._clock = clock
        self._web_url = web_url  # of the admin API; empty without one

    async def of_topic(self, name: TopicName, options: StatsOptions | None = None) -> shapes.TopicStats:
        """TopicStats of a topic or partition. Raises TopicNotFound, also for a partitioned topic."""
        return await self.of(await self.loaded(name), options or StatsOptions())

    async def loaded(self, name: TopicName) -> Topic:
        """The topic, if it exists, without counting as use of it. Raises TopicNotFound."""
        if self._partitions.count(name) or not self._topics.exists(name):
            raise TopicNotFound(str(name))
        return self._topics.get(name) or await self._topics.load(name)

    async def of(self, topic: Topic, options: StatsOptions) -> shapes.TopicStats:
        held = await self._quotas.sizes(topic)
        earliest = await self._earliest_times(topic) if options.earliest_time else {}
        last_published_ms = await self.published_ms(topic, topic.last_entry_id)
        # Nothing is awaited from here on, so all figures are of one moment.
        return {
            **self._counted(topic),
            **self._oldest(earliest),
            **self._of_its_kind(topic),
            "storageSize": held.storage,
            "backlogSize": max(held.backlogs.values(), default=0),
            "publishers": [] if options.exclude_publishers else [self._publisher(p) for p in topic.producers.values()],
            "waitingPublishers": len(topic.write_access.waiting),
            "subscriptions": {
                subscription.name: self._subscription_stats(
                    subscription,
                    backlog_bytes=held.backlogs.get(subscription.name, 0) if options.subscription_backlog_size else -1,
                    earliest_ms=earliest.get(subscription.name, 0),
                    consumers=not options.exclude_consumers,
                )
                for subscription in topic.subscriptions.values()
                if subscription.replicator is None
            },
            "replication": {
                subscription.replicator.cluster: self._replication_stats(topic, subscription, subscription.replicator)
                for subscription in topic.subscriptions.values()
                if subscription.replicator is not None
            },
            "lastPublishTimeStamp": last_published_ms,
        }

    def _counted(self, topic: Topic) -> shapes.TopicCounts:
        subscriptions = list(topic.subscriptions.values())
        taken = self._message_rates.rates_in(topic)
        given = [self._message_rates.rates_out(subscription) for subscription in subscriptions]
        ranges = sum(subscription.cursor.range_count for subscription in subscriptions)
        quota_size, quota_age = topic.policies.backlog_quota
        progress = self._compaction.progress(topic.text)
        return {
            "msgRateIn": taken.messages,
            "msgThroughputIn": taken.bytes,
            "msgRateOut": sum(out.messages for out in given),
            "msgThroughputOut": sum(out.bytes for out in given),
            "bytesInCounter": topic.bytes_in,
            "msgInCounter": topic.messages_in,
            "systemTopicBytesInCounter": 0,
            "bytesOutCounter": topic.bytes_out,
            "msgOutCounter": topic.messages_out,
            "bytesOutInternalCounter": 0,
            "averageMsgSize": taken.bytes / taken.messages if taken.messages > 0 else 0.0,
            "msgChunkPublished": False,
            "backlogQuotaLimitSize": quota_size.limit or -1,
            "backlogQuotaLimitTime": quota_age.limit or -1,
            "publishRateLimitedTimes": topic.publish_limited_times,
            "offloadedStorageSize": 0,
            "lastOffloadLedgerId": 0,
            "lastOffloadSuccessTimeStamp": 0,
            "lastOffloadFailureTimeStamp": 0,
            "ongoingTxnCount": len(topic.transactions.open) if topic.transactions is not None else 0,
            "abortedTxnCount": 0,
            "committedTxnCount": 0,
            "deduplicationStatus": "Enabled" if topic.deduplication is not None else "Disabled",
            "nonContiguousDeletedMessagesRanges": ranges,
            "nonContiguousDeletedMessagesRangesSerializedSize": 16 * ranges,
            **_delayed(topic),
            "compaction": {
                "lastCompactionRemovedEventCount": progress.removed,
                "lastCompactionSucceedTimestamp": progress.succeeded_ms,
                "lastCompactionFailedTimestamp": progress.failed_ms,
                "lastCompactionDurationTimeInMills": progress.duration_ms,
            },
            "ownerBroker": self._web_url.removeprefix("http://"),
            "topicCreationTimeStamp": topic.created_ms,
        }

    def _of_its_kind(self, topic: Topic) -> shapes.OfItsKind:
        stats: shapes.OfItsKind = {}
        if topic.write_access.epoch is not None:
            stats["topicEpoch"] = topic.write_access.epoch
        if not topic.persistent:
            stats["msgDropRate"] = sum(self._message_rates.rates_out(s).dropped for s in topic.subscriptions.values())
        return stats

    def _oldest(self, earliest: dict[str, int]) -> shapes.Oldest:
        """Age of the oldest unacknowledged entry, if requested."""
        waiting = {name: wall_ms for name, wall_ms in earliest.items() if wall_ms > 0}
        if not waiting:
            return {"earliestMsgPublishTimeInBacklogs": 0, "oldestBacklogMessageAgeSeconds": -1}
        slowest = min(waiting, key=waiting.__getitem__)
        age_ms = max(0, self._clock.wall_ms() - waiting[slowest])
        return {
            "earliestMsgPublishTimeInBacklogs": waiting[slowest],
            "oldestBacklogMessageAgeSeconds": age_ms // 1000,
            "oldestBacklogMessageSubscriptionName": slowest,
        }

    def _publisher(self, producer: Producer) -> shapes.PublisherStats:
        taken = self._message_rates.rates_in(producer)
        return {
            "accessMode": ACCESS_MODES[producer.access_mode],
            "msgRateIn": taken.messages,
            "msgThroughputIn": taken.bytes,
            "averageMsgSize": taken.bytes / taken.messages if taken.messages > 0 else 0.0,
            "chunkedMessageRate": 0.0,
            "producerId": producer.producer_id,
            "supportsPartialProducer": False,
            "producerName": producer.name,
            "address": f"/{producer.address}",
            "connectedSince": iso_time(producer.connected_at_ms),
            "clientVersion": producer.session.client_version,
            "metadata": dict(producer.metadata),
        }

    def _subscription_stats(
        self, subscription: Subscription, *, backlog_bytes: int, earliest_ms: int, consumers: bool
    ) -> shapes.SubscriptionStats:
        given = self._message_rates.rates_out(subscription)
        dispatcher = subscription.dispatcher
        held, ranges = subscription.delayed, subscription.cursor.range_count
        return {
            "msgRateOut": given.messages,
            "msgThroughputOut": given.bytes,
            "bytesOutCounter": subscription.bytes_out,
            "msgOutCounter": subscription.messages_out,
            "msgRateRedeliver": given.redelivered,
            "messageAckRate": given.acks,
            "chunkedMessageRate": 0.0,
            "msgBacklog": subscription.backlog,
            "backlogSize": backlog_bytes,
            "earliestMsgPublishTimeInBacklog": earliest_ms,
            "msgBacklogNoDelayed": max(0, subscription.backlog - held),
            "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
            "msgDelayed": held,
            "msgInReplay": in_replay(subscription),
            "unackedMessages": subscription.unacked,
            "type": TYPE_NAMES[subscription.kind],
            "msgRateExpired": given.expired,
            "msgExpired": subscription.expired,
            "totalMsgExpired": subscription.expired,
            "lastExpireTimestamp": subscription.last_expired_ms,
            "lastConsumedFlowTimestamp": subscription.last_flow_ms,
            "lastConsumedTimestamp": subscription.last_consumed_ms,
            "lastAckedTimestamp": subscription.last_acked_ms,
            "lastMarkDeleteAdvancedTimestamp": subscription.last_acked_ms,
            "consumers": self._consumers_stats(subscription) if consumers else [],
            "isDurable": subscription.durable,
            "isReplicated": subscription.replicated,
            "allowOutOfOrderDelivery": dispatcher is not None and dispatcher.out_of_order,
            "consumersAfterMarkDeletePosition": {},
            **_draining(dispatcher, subscription.consumers),
            "nonContiguousDeletedMessagesRanges": ranges,
            "nonContiguousDeletedMessagesRangesSerializedSize": 16 * ranges,
            **(_delayed(subscribed_topic(subscription)) if subscription.view is not None else NOTHING_DELAYED),
            "subscriptionProperties": dict(subscription.properties),
            "filterProcessedMsgCount": 0,
            "filterAcceptedMsgCount": 0,
            "filterRejectedMsgCount": 0,
            "filterRescheduledMsgCount": 0,
            **throttled_events(subscription),
            **self._of_its_type(subscription),
            "durable": subscription.durable,
            "replicated": subscription.replicated,
        }

    def _replication_stats(
        self, topic: Topic, subscription: Subscription, replicator: SubscribedReplicator
    ) -> shapes.ReplicatorStats:
        given = self._message_rates.rates_out(subscription)
        start = f"{REPLICATOR_PREFIX}{replicator.cluster}--"
        coming = next((one for name, one in topic.producers.items() if name.startswith(start)), None)
        taken = self._message_rates.rates_in(coming) if coming is not None else None
        return {
            "msgRateIn": taken.messages if taken is not None else 0.0,
            "msgInCount": coming.messages_in if coming is not None else 0,
            "msgThroughputIn": taken.bytes if taken is not None else 0.0,
            "bytesInCount": coming.bytes_in if coming is not None else 0,
            "msgRateOut": given.messages,
            "msgOutCount": subscription.messages_out,
            "msgThroughputOut": given.bytes,
            "bytesOutCount": subscription.bytes_out,
            "msgRateExpired": given.expired,
            "msgExpiredCount": subscription.expired,
            "replicationBacklog": subscription.backlog,
            "connected": bool(replicator.connection) or not (replicator.problem or subscription.backlog),
            "replicationDelayInSeconds": replicator.delay_s(self._clock.monotonic_ns()),
            "inboundConnection": f"/{coming.address}" if coming is not None else "",
            "inboundConnectedSince": iso_time(coming.connected_at_ms) if coming is not None else "",
            "outboundConnection": replicator.connection,
            "outboundConnectedSince": iso_time(replicator.connected_ms) if replicator.connection else "",
        }

    def _of_its_type(self, subscription: Subscription) -> shapes.OfItsType:
        stats: shapes.OfItsType = {}
        active, dispatcher = subscription.active_consumer, subscription.dispatcher
        if active is not None and TYPE_NAMES[subscription.kind] == "Failover":
            stats["activeConsumerName"] = active.name
        if dispatcher is not None and dispatcher.key_sharing_mode is not None:
            stats["keySharedMode"] = dispatcher.key_sharing_mode
        if not subscription.topic.persistent:
            stats["msgDropRate"] = self._message_rates.rates_out(subscription).dropped
        return stats

    def _consumers_stats(self, subscription: Subscription) -> list[shapes.ConsumerStats]:
        ranges = subscription.dispatcher.hash_ranges() if subscription.dispatcher is not None else {}
        return [self._consumer_stats(consumer, ranges.get(consumer, [])) for consumer in subscription.consumers]

    def _consumer_stats(self, consumer: Consumer, ranges: Sequence[tuple[int, int]]) -> shapes.ConsumerStats:
        dispatcher = consumer.subscription.dispatcher
        given = self._message_rates.rates_out(consumer)
        return {
            "msgRateOut": given.messages,
            "msgThroughputOut": given.bytes,
            "bytesOutCounter": consumer.bytes_out,
            "msgOutCounter": consumer.messages_out,
            "msgRateRedeliver": given.redelivered,
            "messageAckRate": given.acks,
            "chunkedMessageRate": 0.0,
            "consumerName": consumer.name,
            "availablePermits": consumer.permits,
            "unackedMessages": consumer.unacked,
            "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
            "blockedConsumerOnUnackedMsgs": consumer.blocked,
            **_draining(dispatcher, [consumer]),
            **_key_sharing(dispatcher, consumer, ranges),
            "address": f"/{consumer.address}",
            "connectedSince": iso_time(consumer.connected_at_ms),
            "clientVersion": consumer.client_version,
            "lastAckedTimestamp": consumer.last_acked_ms,
            "lastConsumedTimestamp": consumer.last_consumed_ms,
            "firstMessagesSentTimestamp": 0,
            "lastConsumedFlowTimestamp": consumer.last_flow_ms,
            "firstConsumedFlowTimestamp": 0,
            "metadata": dict(consumer.metadata),
            "lastAckedTime": iso_time(consumer.last_acked_ms),
            "lastConsumedTime": iso_time(consumer.last_consumed_ms),
        }

    async def _earliest_times(self, topic: Topic) -> dict[str, int]:
        """Publish time of the first unacknowledged entry of each subscription; 0 if there is none."""
        if not topic.persistent:
            return {}
        firsts = {s.name: s.cursor.mark_delete + 1 for s in topic.subscriptions.values()}
        times = {entry_id: await self.published_ms(topic, entry_id) for entry_id in set(firsts.values())}
        return {name: times[entry_id] for name, entry_id in firsts.items()}

    async def published_ms(self, topic: Topic, entry_id: int) -> int:
        """Publish time of this entry as set by the client; 0 if there is no such entry."""
        if not topic.persistent or not topic.first_entry_id <= entry_id <= topic.last_entry_id:
            return 0
        entry = await self._reads.read_entry(topic.ledger_id, entry_id)
        if entry is None:
            return 0
        try:
            return metadata.publish_time(entry)
        except ProtocolError:
            return 0


def _delayed(topic: Topic) -> shapes.Delayed:
    """Size of the shared index, and the delivery times of its first and last message."""
    if topic.delayed is None:
        return NOTHING_DELAYED
    manager = topic.delayed.manager
    return {
        "delayedMessageIndexSizeInBytes": manager.topic_buffer_memory_bytes(),
        "nextDelayedDeliveryTime": manager.next_delivery_ms() or 0,
        "furthestDelayedDeliveryTime": manager.furthest_delivery_ms() or 0,
    }


def in_replay(subscription: Subscription) -> int:
    """Entries that wait for redelivery; 0 if they are not counted."""
    return subscription.dispatcher.replay_size if subscription.dispatcher is not None else 0


def _draining(dispatcher: Dispatcher | None, consumers: Sequence[Consumer]) -> shapes.Draining:
    """Hash slots assigned to other consumers while these have unacknowledged messages of them."""
    slots = [slot for consumer in consumers for slot in dispatcher.draining(consumer)] if dispatcher is not None else []
    return {
        "drainingHashesCount": len(slots),
        "drainingHashesClearedTotal": sum(map(dispatcher.drained, consumers)) if dispatcher is not None else 0,
        "drainingHashesUnackedMessages": sum(slot.entries for slot in slots),
    }


def _key_sharing(
    dispatcher: Dispatcher | None, consumer: Consumer, ranges: Sequence[tuple[int, int]]
) -> shapes.KeySharing:
    if dispatcher is None or dispatcher.key_sharing_mode is None:
        return {}
    return {
        "keyHashRangeArrays": [list(one) for one in ranges],
        "drainingHashes": [
            {"hash": slot.slot, "unackMsgs": slot.entries, "blockedAttempts": 0}
            for slot in dispatcher.draining(consumer)
        ],
    }


def iso_time(wall_ms: int) -> str:
    """A time as Pulsar prints it: 2026-11-21T10:00:00.123Z."""
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


# ---------------------------------------------------------------------------------------------------------------------
# Internal statistics of a topic: its ledger, and a cursor for each subscription, in Pulsar's terms.
#
# Why those terms: people and tools expect them. A topic here has one ledger for its whole life, so the current ledger
# is the only one; cursors are not stored in ledgers. Where: called by the admin API on the broker's loop.

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
    if topic.rests:
        return "Fenced"
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
        "state": "Open" if subscription.durable else "NoLedger",
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
