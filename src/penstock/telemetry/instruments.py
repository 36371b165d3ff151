# SPDX-License-Identifier: Apache-2.0
"""All metrics of a broker: name, kind, unit, labels, help, and how to read each from a snapshot.

Why: mechanisms keep plain integers and know nothing of metrics; exporters know nothing of mechanisms. With one list, a
metric cannot be missing in one export or in the documentation. Where: `prometheus.render` reads it;
`docs/reference/metrics.md` is tested against it. Metrics that a proxy has, too, are in `common_instruments`.

Names: metrics that dashboards for Pulsar use have Pulsar's names (`pulsar_…`), the sensors of KIP-72 have theirs, those
of every process have the names of Prometheus' own clients (`process_…`), the others are `penstock_…`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock.core.membership import broker_name
from penstock.core.units import NS_PER_S
from penstock.telemetry.common_instruments import (
    CONNECTION_INSTRUMENTS,
    GROUP_INSTRUMENTS,
    LISTING_INSTRUMENTS,
    MEMORY_INSTRUMENTS,
    PROCESS,
    PROCESS_INSTRUMENTS,
    RECORD_INSTRUMENTS,
    REGISTRATION_INSTRUMENTS,
    SHARING_INSTRUMENTS,
    THROTTLING_INSTRUMENTS,
    topic_list_instruments,
)
from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.stats.snapshot import (
        BrokerSnapshot,
        ReplicatorSnapshot,
        SubscriptionSnapshot,
        TopicSnapshot,
        TransactionsSnapshot,
    )
    from penstock.core.durations import DurationsSnapshot
    from penstock.core.membership import Member
    from penstock.net.listing_memory import TopicListSnapshot
    from penstock.stats.disk_space import DiskUse

# -- scopes -----------------------------------------------------------------------------------------------------------

CLUSTER: Final[Scope[BrokerSnapshot, BrokerSnapshot]] = Scope(
    ("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot)]
)

LISTINGS: Final[Scope[BrokerSnapshot, TopicListSnapshot]] = Scope(
    ("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot.listings)]
)


DISK: Final[Scope[BrokerSnapshot, DiskUse]] = Scope(
    (), lambda snapshot: [((), snapshot.disk)] if snapshot.disk is not None else [], optional=True
)

BROKERS: Final[Scope[BrokerSnapshot, Member]] = Scope(
    ("broker", "state"),
    lambda snapshot: (((broker_name(one.number), one.state.value), one) for one in snapshot.brokers),
)

NAMESPACE: Final[Scope[BrokerSnapshot, int]] = Scope(
    ("cluster", "namespace"),
    lambda snapshot: (
        ((snapshot.cluster, namespace), topics)
        for namespace, topics in sorted(Counter(topic.namespace for topic in snapshot.topics).items())
    ),
)

PUBLISHED: Final[Scope[BrokerSnapshot, DurationsSnapshot]] = Scope(
    ("cluster", "namespace"),
    lambda snapshot: (((snapshot.cluster, namespace), times) for namespace, times in snapshot.publish_times.items()),
)

DISPATCHED: Final[Scope[BrokerSnapshot, DurationsSnapshot]] = Scope(
    ("cluster", "namespace"),
    lambda snapshot: (((snapshot.cluster, namespace), times) for namespace, times in snapshot.dispatch_waits.items()),
)

TOPIC: Final[Scope[BrokerSnapshot, TopicSnapshot]] = Scope(
    ("cluster", "namespace", "topic"),
    lambda snapshot: (((snapshot.cluster, topic.namespace, topic.name), topic) for topic in snapshot.topics),
)

# Each broker has one, of its number.
COORDINATOR: Final[Scope[BrokerSnapshot, TransactionsSnapshot]] = Scope(
    ("cluster", "coordinator_id"),
    lambda snapshot: (
        [((snapshot.cluster, str(snapshot.transactions.coordinator)), snapshot.transactions)]
        if snapshot.transactions is not None
        else []
    ),
    optional=True,
)

HELD_TOPIC: Final[Scope[BrokerSnapshot, int]] = Scope(
    ("cluster", "namespace", "topic"),
    lambda snapshot: (
        ((snapshot.cluster, topic.namespace, topic.name), topic.held_for_ms)
        for topic in snapshot.topics
        if topic.held_for_ms is not None
    ),
    optional=True,
)

SUBSCRIPTION: Final[Scope[BrokerSnapshot, SubscriptionSnapshot]] = Scope(
    ("cluster", "namespace", "topic", "subscription"),
    lambda snapshot: (
        ((snapshot.cluster, topic.namespace, topic.name, subscription.name), subscription)
        for topic in snapshot.topics
        for subscription in topic.subscriptions
    ),
)

REPLICATOR: Final[Scope[BrokerSnapshot, ReplicatorSnapshot]] = Scope(
    ("cluster", "namespace", "topic", "remote_cluster"),
    lambda snapshot: (
        ((snapshot.cluster, topic.namespace, topic.name, replicator.cluster), replicator)
        for topic in snapshot.topics
        for replicator in topic.replicators
    ),
    optional=True,
)


def _subs(snapshot: BrokerSnapshot) -> Iterable[SubscriptionSnapshot]:
    return (subscription for topic in snapshot.topics for subscription in topic.subscriptions)


# -- the list ---------------------------------------------------------------------------------------------------------

# Rows of a table; the formatter would take five lines for each.
# fmt: off
INSTRUMENTS: Final[tuple[Instrument[BrokerSnapshot, Any], ...]] = (
    # The broker
    *PROCESS_INSTRUMENTS,
    Instrument("penstock_healthy", "gauge", "boolean", PROCESS, lambda s: int(s.health.ok),
               "1 while /healthz answers 200"),
    Instrument("penstock_degraded", "gauge", "boolean", PROCESS, lambda s: int(bool(s.health.problems)),
               "1 while something stored is damaged, missing or cannot be used; /healthz names it"),
    Instrument("pulsar_broker_lookup_pending_requests", "gauge", "", CLUSTER, lambda s: s.lookups_pending,
               "Lookup and listing requests in progress"),
    Instrument("pulsar_broker_topic_load_pending_requests", "gauge", "", CLUSTER, lambda s: s.topic_loads_pending,
               "Topics that are being loaded or created"),
    # Connections
    Instrument("pulsar_active_connections", "gauge", "", CLUSTER, lambda s: s.connections_open,
               "Open client connections"),
    Instrument("pulsar_connection_created_total_count", "counter", "", CLUSTER, lambda s: s.connections_accepted,
               "Client connections accepted"),
    Instrument("pulsar_connection_closed_total_count", "counter", "", CLUSTER,
               lambda s: s.connections_accepted - s.connections_open,
               "Client connections ended"),
    *CONNECTION_INSTRUMENTS,
    # Memory
    *MEMORY_INSTRUMENTS,
    # Topic listings
    *topic_list_instruments("pulsar_broker_", LISTINGS),
    *LISTING_INSTRUMENTS,
    # The entry log
    Instrument("penstock_log_appended_bytes_total", "counter", "bytes", PROCESS, lambda s: s.log.bytes_appended,
               "Bytes written to the entry log, its own framing included"),
    Instrument("penstock_log_appended_entries_total", "counter", "", PROCESS, lambda s: s.log.entries_appended,
               "Entries written to the entry log"),
    Instrument("penstock_log_commits_total", "counter", "", PROCESS, lambda s: s.log.commits,
               "Group commits: one write and one sync each"),
    Instrument("penstock_log_sync_seconds_total", "counter", "seconds", PROCESS,
               lambda s: s.log.sync_times.sum_ns / NS_PER_S,
               "Time the disk took to sync; divided by the commits, the mean"),
    Instrument("penstock_log_sync_longest_seconds", "gauge", "seconds", PROCESS, lambda s: s.log.sync_ns_max / NS_PER_S,
               "The longest sync since the start"),
    Instrument("penstock_log_sync_seconds", "histogram", "seconds", PROCESS, lambda s: s.log.sync_times,
               "How long the disk took for each sync", "penstock.log.sync.duration"),
    Instrument("penstock_log_commit_seconds", "histogram", "seconds", PROCESS, lambda s: s.log.commit_times,
               "How long each group commit took: a write, a sync, and the index", "penstock.log.commit.duration"),
    Instrument("penstock_log_queued_bytes", "gauge", "bytes", PROCESS, lambda s: s.log.queued_bytes,
               "Bytes handed to the journal and not yet durable"),
    Instrument("penstock_log_segments", "gauge", "", PROCESS, lambda s: s.log.segments,
               "Segments that hold entries"),
    Instrument("penstock_log_spare_segments", "gauge", "", PROCESS, lambda s: s.log.spares,
               "Segments that are ready to be written"),
    Instrument("penstock_log_retained_bytes", "gauge", "bytes", PROCESS, lambda s: s.log.retained_bytes,
               "Size of the sealed segments"),
    Instrument("penstock_log_live_bytes", "gauge", "bytes", PROCESS, lambda s: s.log.live_bytes,
               "Bytes of entries in sealed segments that are not trimmed"),
    Instrument("penstock_log_moved_bytes_total", "counter", "bytes", PROCESS, lambda s: s.log.moved_bytes,
               "Live entries moved out of mostly dead segments"),
    Instrument("penstock_log_recycled_segments_total", "counter", "", PROCESS, lambda s: s.log.recycled,
               "Segments whose space was reclaimed"),
    Instrument("penstock_log_damaged", "gauge", "", PROCESS, lambda s: s.log.damaged,
               "Places in the log that are damaged or missing, in this run and earlier ones; each is named in the log"),
    Instrument("penstock_log_missing_entries", "gauge", "", PROCESS, lambda s: s.log.missing_entries,
               "Entries whose segment's file is missing or cut short; they stay in the backlogs until it is back"),
    Instrument("penstock_log_read_failures_total", "counter", "", PROCESS, lambda s: s.log.read_failures,
               "Failed reads of the log; each is retried, nothing counts as lost"),
    Instrument("penstock_log_unreadable_segments", "gauge", "", PROCESS, lambda s: s.log.unreadable,
               "Segments whose last read failed; /healthz names them"),
    Instrument("penstock_log_read_only", "gauge", "boolean", PROCESS, lambda s: int(s.log_read_only),
               "1 once a write or a sync has failed; a restart leaves this state"),
    Instrument("penstock_log_stalled", "gauge", "boolean", PROCESS, lambda s: int(s.log_stalled),
               "1 while the disk holds one commit for too long; publishers are muted meanwhile"),
    Instrument("penstock_disk_free_bytes", "gauge", "bytes", DISK, lambda disk: disk.free,
               "Space left on the disk of the data directory, measured every ten seconds"),
    Instrument("penstock_disk_size_bytes", "gauge", "bytes", DISK, lambda disk: disk.size,
               "Size of the disk of the data directory"),
    # Topics in sum
    Instrument("pulsar_broker_topics_count", "gauge", "", CLUSTER, lambda s: len(s.topics),
               "Topics used since the start"),
    Instrument("pulsar_broker_subscriptions_count", "gauge", "", CLUSTER,
               lambda s: sum(len(topic.subscriptions) for topic in s.topics),
               "Subscriptions of these topics"),
    Instrument("pulsar_broker_producers_count", "gauge", "", CLUSTER,
               lambda s: sum(topic.producers for topic in s.topics),
               "Connected producers"),
    Instrument("pulsar_broker_consumers_count", "gauge", "", CLUSTER,
               lambda s: sum(sub.consumers for topic in s.topics for sub in topic.subscriptions),
               "Connected consumers and readers"),
    Instrument("pulsar_broker_rate_in", "gauge", "", CLUSTER, lambda s: sum(t.message_rate_in for t in s.topics),
               "Messages published a second, over the last 30 to 60 seconds"),
    Instrument("pulsar_broker_throughput_in", "gauge", "bytes", CLUSTER,
               lambda s: sum(t.byte_rate_in for t in s.topics),
               "Bytes published a second"),
    Instrument("pulsar_broker_rate_out", "gauge", "", CLUSTER, lambda s: sum(sub.message_rate_out for sub in _subs(s)),
               "Messages delivered a second"),
    Instrument("pulsar_broker_throughput_out", "gauge", "bytes", CLUSTER,
               lambda s: sum(sub.byte_rate_out for sub in _subs(s)),
               "Bytes delivered a second"),
    Instrument("pulsar_broker_in_messages_total", "counter", "", CLUSTER,
               lambda s: sum(t.messages_in for t in s.topics),
               "Messages published"),
    Instrument("pulsar_broker_in_bytes_total", "counter", "bytes", CLUSTER, lambda s: sum(t.bytes_in for t in s.topics),
               "Bytes published, as stored"),
    Instrument("pulsar_broker_out_messages_total", "counter", "", CLUSTER,
               lambda s: sum(t.messages_out for t in s.topics),
               "Messages delivered"),
    Instrument("pulsar_broker_out_bytes_total", "counter", "bytes", CLUSTER,
               lambda s: sum(t.bytes_out for t in s.topics),
               "Bytes delivered"),
    Instrument("pulsar_broker_storage_size", "gauge", "bytes", CLUSTER, lambda s: s.log.live_bytes + s.log.open_bytes,
               "Bytes of entries that are not trimmed, and of the segment that is being written"),
    Instrument("pulsar_broker_msg_backlog", "gauge", "", CLUSTER,
               lambda s: sum(sub.backlog for topic in s.topics for sub in topic.subscriptions),
               "Entries not acknowledged, over all subscriptions"),
    Instrument("pulsar_topics_count", "gauge", "", NAMESPACE, lambda topics: topics,
               "Topics of this namespace used since the start"),
    Instrument("penstock_publish_seconds", "histogram", "seconds", PUBLISHED, lambda times: times,
               "From reading each entry to its receipt, while limits hold it included; measured in turns of the loop",
               "penstock.publish.duration"),
    Instrument("penstock_dispatch_wait_seconds", "histogram", "seconds", DISPATCHED, lambda times: times,
               "From when each entry is durable until it is sent to a consumer that was there before; not redeliveries",
               "penstock.dispatch.wait"),
    # Each topic
    Instrument("pulsar_subscriptions_count", "gauge", "", TOPIC, lambda t: len(t.subscriptions),
               "Subscriptions of the topic"),
    Instrument("pulsar_producers_count", "gauge", "", TOPIC, lambda t: t.producers,
               "Connected producers"),
    Instrument("pulsar_consumers_count", "gauge", "", TOPIC, lambda t: sum(sub.consumers for sub in t.subscriptions),
               "Connected consumers and readers"),
    Instrument("pulsar_in_messages_total", "counter", "", TOPIC, lambda t: t.messages_in,
               "Messages published"),
    Instrument("pulsar_in_bytes_total", "counter", "bytes", TOPIC, lambda t: t.bytes_in,
               "Bytes published, as stored: metadata and checksum included, compressed if the client compressed"),
    Instrument("pulsar_rate_in", "gauge", "", TOPIC, lambda t: t.message_rate_in,
               "Messages published a second, over the last 30 to 60 seconds"),
    Instrument("pulsar_throughput_in", "gauge", "bytes", TOPIC, lambda t: t.byte_rate_in,
               "Bytes published a second"),
    Instrument("pulsar_rate_out", "gauge", "", TOPIC, lambda t: sum(sub.message_rate_out for sub in t.subscriptions),
               "Messages delivered a second"),
    Instrument("pulsar_throughput_out", "gauge", "bytes", TOPIC,
               lambda t: sum(sub.byte_rate_out for sub in t.subscriptions),
               "Bytes delivered a second"),
    Instrument("pulsar_average_msg_size", "gauge", "bytes", TOPIC,
               lambda t: t.byte_rate_in / t.message_rate_in if t.message_rate_in else 0,
               "Mean size of the messages published lately"),
    Instrument("pulsar_publish_rate_limit_times", "counter", "", TOPIC, lambda t: t.publish_limited,
               "How often publishers were throttled by a rate limit"),
    Instrument("penstock_in_entries_total", "counter", "", TOPIC, lambda t: t.entries_in,
               "Entries published; a batch of messages is one entry"),
    Instrument("pulsar_msg_backlog", "gauge", "", TOPIC, lambda t: sum(sub.backlog for sub in t.subscriptions),
               "Entries not acknowledged, over the subscriptions of the topic"),
    Instrument("pulsar_delayed_message_index_size_bytes", "gauge", "bytes", TOPIC, lambda t: t.delayed.index_bytes,
               "Memory of the index of delayed messages, which all subscriptions of the topic share"),
    Instrument("penstock_delayed_next_delivery_timestamp", "gauge", "milliseconds", TOPIC,
               lambda t: t.delayed.next_ms,
               "Deliver time of the first delayed message, in ms since 1970; 0 when there is none"),
    Instrument("penstock_delayed_furthest_delivery_timestamp", "gauge", "milliseconds", TOPIC,
               lambda t: t.delayed.furthest_ms,
               "Deliver time of the last delayed message"),
    Instrument("penstock_delayed_on_disk", "gauge", "", TOPIC, lambda t: t.delayed.spilled,
               "Upper bound of the delayed messages that are not in the index for lack of memory"),
    Instrument("penstock_delayed_delivered_total", "counter", "", TOPIC, lambda t: t.delayed.delivered,
               "Delayed messages that were due and delivered, over the subscriptions of the topic"),
    Instrument("penstock_delayed_lateness_seconds_total", "counter", "seconds", TOPIC,
               lambda t: t.delayed.lateness_ms_sum / 1000,
               "Sum of the delays between their deliver times and delivery"),
    Instrument("penstock_delayed_lateness_max_seconds", "gauge", "seconds", TOPIC,
               lambda t: t.delayed.lateness_ms_max / 1000,
               "The longest of these delays since the topic was loaded"),
    # Transactions, if they are enabled
    Instrument("pulsar_txn_active_count", "gauge", "", COORDINATOR, lambda t: t.open,
               "Open transactions"),
    Instrument("pulsar_txn_created_total", "counter", "", COORDINATOR, lambda t: t.opened,
               "Transactions opened"),
    Instrument("pulsar_txn_committed_total", "counter", "", COORDINATOR, lambda t: t.committed,
               "Transactions committed"),
    Instrument("pulsar_txn_aborted_total", "counter", "", COORDINATOR, lambda t: t.aborted,
               "Transactions aborted, by clients, administrators and timeouts"),
    Instrument("pulsar_txn_timeout_total", "counter", "", COORDINATOR, lambda t: t.timed_out,
               "Transactions aborted by their timeout"),
    Instrument("penstock_transaction_holding_seconds", "gauge", "seconds", HELD_TOPIC, lambda age_ms: age_ms / 1000,
               "Age of the open transaction that keeps back what was sent to the topic after it began"),
    # Replication of each topic to each other cluster, if there are any
    Instrument("pulsar_replication_backlog", "gauge", "", REPLICATOR, lambda one: one.backlog,
               "Entries that are not stored at the other cluster"),
    Instrument("pulsar_replication_rate_out", "gauge", "", REPLICATOR, lambda one: one.message_rate_out,
               "Messages sent there a second, over the last 30 to 60 seconds"),
    Instrument("pulsar_replication_throughput_out", "gauge", "bytes", REPLICATOR, lambda one: one.byte_rate_out,
               "Bytes sent there a second"),
    Instrument("penstock_replication_out_messages_total", "counter", "", REPLICATOR, lambda one: one.messages_out,
               "Messages sent there, those that were sent again included"),
    Instrument("pulsar_replication_connected_count", "gauge", "", REPLICATOR, lambda one: int(one.connected),
               "1 while its producer is open; it is closed after a minute without messages"),
    Instrument("pulsar_replication_delay_in_seconds", "gauge", "seconds", REPLICATOR, lambda one: one.delay_s,
               "For how long nothing could be sent there; 0 while it can, or nothing is to be sent"),
    Instrument("pulsar_replicated_subscriptions_pending_snapshots", "gauge", "", CLUSTER,
               lambda one: one.subscription_snapshots_pending,
               "Topics with replicated subscriptions that wait for answers of other clusters"),
    Instrument("penstock_replicated_subscriptions_unanswered_total", "counter", "", CLUSTER,
               lambda one: one.subscription_snapshots_unanswered,
               "Questions for replicated subscriptions that other clusters did not answer in time"),
    # Each resource group, publish and dispatch apart
    *GROUP_INSTRUMENTS,
    # Quotas that are shared with other brokers
    *SHARING_INSTRUMENTS,
    # All brokers, as the supervisor of several sees them
    Instrument("penstock_broker_state", "gauge", "", BROKERS, lambda _: 1,
               "The present state of each broker of the cluster, as a label; the value is always 1"),
    Instrument("penstock_broker_state_age_seconds", "gauge", "seconds", PROCESS,
               lambda s: s.brokers_age_ns / NS_PER_S,
               "How old these states may be, because the supervisor has not answered since; 0 if it has"),
    # Registration in ZooKeeper, with membershipUrl
    *REGISTRATION_INSTRUMENTS,
    # Each subscription
    Instrument("pulsar_subscription_back_log", "gauge", "", SUBSCRIPTION, lambda sub: sub.backlog,
               "Entries not acknowledged"),
    Instrument("pulsar_subscription_back_log_no_delayed", "gauge", "", SUBSCRIPTION,
               lambda sub: max(0, sub.backlog - sub.delayed),
               "Entries not acknowledged, without delayed ones"),
    Instrument("pulsar_subscription_delayed", "gauge", "", SUBSCRIPTION, lambda sub: sub.delayed,
               "Delayed entries that are not due"),
    Instrument("pulsar_subscription_delayed_message_index_size_bytes", "gauge", "bytes", SUBSCRIPTION,
               lambda sub: sub.delayed_index_bytes,
               "Memory of the index of delayed messages that the subscription shares with others of its topic"),
    Instrument("pulsar_subscription_in_replay", "gauge", "", SUBSCRIPTION, lambda sub: sub.in_replay,
               "Entries that wait for redelivery"),
    Instrument("pulsar_subscription_msg_rate_out", "gauge", "", SUBSCRIPTION, lambda sub: sub.message_rate_out,
               "Messages delivered a second, over the last 30 to 60 seconds"),
    Instrument("pulsar_subscription_msg_throughput_out", "gauge", "bytes", SUBSCRIPTION,
               lambda sub: sub.byte_rate_out,
               "Bytes delivered a second"),
    Instrument("pulsar_subscription_msg_rate_redeliver", "gauge", "", SUBSCRIPTION, lambda sub: sub.redelivery_rate,
               "Messages redelivered a second"),
    Instrument("pulsar_subscription_msg_ack_rate", "gauge", "", SUBSCRIPTION, lambda sub: sub.ack_rate,
               "Entries acknowledged a second"),
    Instrument("pulsar_subscription_msg_rate_expired", "gauge", "", SUBSCRIPTION, lambda sub: sub.expiry_rate,
               "Entries expired a second"),
    Instrument("pulsar_subscription_total_msg_expired", "counter", "", SUBSCRIPTION, lambda sub: sub.expired,
               "Entries expired"),
    Instrument("pulsar_subscription_msg_drop_rate", "gauge", "", SUBSCRIPTION, lambda sub: sub.drop_rate,
               "Entries of a non-persistent topic dropped a second"),
    Instrument("pulsar_subscription_last_expire_timestamp", "gauge", "milliseconds", SUBSCRIPTION,
               lambda sub: sub.last_expired_ms,
               "Time of the last check for expiry, in ms since 1970; 0 for never"),
    Instrument("pulsar_subscription_last_consumed_flow_timestamp", "gauge", "milliseconds", SUBSCRIPTION,
               lambda sub: sub.last_flow_ms,
               "Time of the last flow permits of a consumer"),
    Instrument("pulsar_subscription_last_consumed_timestamp", "gauge", "milliseconds", SUBSCRIPTION,
               lambda sub: sub.last_consumed_ms,
               "Time of the last delivery"),
    Instrument("pulsar_subscription_last_acked_timestamp", "gauge", "milliseconds", SUBSCRIPTION,
               lambda sub: sub.last_acked_ms,
               "Time of the last acknowledgement"),
    Instrument("pulsar_subscription_consumers_count", "gauge", "", SUBSCRIPTION, lambda sub: sub.consumers,
               "Connected consumers"),
    Instrument("pulsar_subscription_unacked_messages", "gauge", "", SUBSCRIPTION, lambda sub: sub.unacked,
               "Delivered messages that are not acknowledged; counted in Shared subscriptions"),
    Instrument("pulsar_subscription_blocked_on_unacked_messages", "gauge", "boolean", SUBSCRIPTION,
               lambda sub: int(sub.blocked),
               "1 while nothing is delivered because too much is not acknowledged"),
    Instrument("pulsar_out_messages_total", "counter", "", SUBSCRIPTION, lambda sub: sub.messages_out,
               "Messages delivered, redeliveries included"),
    Instrument("pulsar_out_bytes_total", "counter", "bytes", SUBSCRIPTION, lambda sub: sub.bytes_out,
               "Bytes delivered, the protocol's framing included"),
    Instrument("penstock_subscription_dropped_total", "counter", "", SUBSCRIPTION, lambda sub: sub.dropped,
               "Entries of a non-persistent topic dropped because no consumer had permits"),
    # Adaptive throttling
    *THROTTLING_INSTRUMENTS,
    # Records
    *RECORD_INSTRUMENTS,
)
# fmt: on
