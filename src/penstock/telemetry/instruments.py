# SPDX-License-Identifier: Apache-2.0
"""All metrics of penstock: name, kind, unit, labels, help, and how to read each from a snapshot.

Why: mechanisms keep plain integers and know nothing of metrics; exporters know nothing of mechanisms. With one list, a
metric cannot be missing in one export or in the documentation. Where: `prometheus.render` reads it;
`docs/reference/metrics.md` is tested against it.

Names: metrics that dashboards for Pulsar use have Pulsar's names (`pulsar_…`), the sensors of KIP-72 have theirs, those
of every process have the names of Prometheus' own clients (`process_…`), the others are `penstock_…`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.broker.stats.snapshot import MemoryUse
from penstock.core.units import NS_PER_S
from penstock.governance.muting import MuteReason
from penstock.telemetry.instrument import Instrument, Scope
from penstock.telemetry.record_instruments import RECORD_INSTRUMENTS
from penstock.telemetry.throttling_instruments import THROTTLING_INSTRUMENTS
from penstock.telemetry.topic_list_instruments import topic_list_instruments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.stats.snapshot import (
        BrokerSnapshot,
        GroupTrafficSnapshot,
        RemoteUsage,
        SubscriptionSnapshot,
        TopicSnapshot,
    )
    from penstock.core.membership import Registration
    from penstock.governance.permit_types import PermitSnapshot
    from penstock.net.topic_list_limiter import TopicListSnapshot

# -- scopes -----------------------------------------------------------------------------------------------------------

PROCESS: Final[Scope[BrokerSnapshot]] = Scope((), lambda snapshot: [((), snapshot)])

BUILD: Final[Scope[int]] = Scope(("version",), lambda _snapshot: [((__version__,), 1)])

CLUSTER: Final[Scope[BrokerSnapshot]] = Scope(("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot)])

LISTINGS: Final[Scope[TopicListSnapshot]] = Scope(
    ("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot.listings)]
)


def _refused_listings(snapshot: BrokerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
    for memory, seen in (("heap", snapshot.listings.heap), ("direct", snapshot.listings.direct)):
        yield (memory, "queue-full"), seen.queue_full_total
        yield (memory, "beyond-limit"), seen.beyond_limit_total
        yield (memory, "cancelled"), seen.cancelled_total


LISTING_REFUSAL: Final[Scope[int]] = Scope(("memory", "reason"), _refused_listings)

NAMESPACE: Final[Scope[int]] = Scope(
    ("cluster", "namespace"),
    lambda snapshot: (
        ((snapshot.cluster, namespace), topics)
        for namespace, topics in sorted(Counter(topic.namespace for topic in snapshot.topics).items())
    ),
)

TOPIC: Final[Scope[TopicSnapshot]] = Scope(
    ("cluster", "namespace", "topic"),
    lambda snapshot: (((snapshot.cluster, topic.namespace, topic.name), topic) for topic in snapshot.topics),
)

SUBSCRIPTION: Final[Scope[SubscriptionSnapshot]] = Scope(
    ("cluster", "namespace", "topic", "subscription"),
    lambda snapshot: (
        ((snapshot.cluster, topic.namespace, topic.name, subscription.name), subscription)
        for topic in snapshot.topics
        for subscription in topic.subscriptions
    ),
)


def _connections_by_reason(snapshot: BrokerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
    muted = Counter(reason for connection in snapshot.muted for reason in connection.reasons)
    return [((reason.value,), muted[reason.value]) for reason in MuteReason]


MUTE_REASON: Final[Scope[int]] = Scope(("reason",), _connections_by_reason)


def _memory_by_owner(snapshot: BrokerSnapshot) -> Iterable[tuple[tuple[str, ...], MemoryUse]]:
    return [
        (("outbound",), snapshot.outbound),
        (("tail-cache",), snapshot.tail_cache),
        (("listings-heap",), _listings_use(snapshot.listings.heap)),
        (("listings-direct",), _listings_use(snapshot.listings.direct)),
        (("delayed-index",), snapshot.delayed_index),
        *(((name,), use) for name, use in snapshot.rows.items()),
    ]


def _listings_use(memory: PermitSnapshot) -> MemoryUse:
    return MemoryUse(used_bytes=memory.acquired, budget_bytes=memory.permits_max)


MEMORY_OWNER: Final[Scope[MemoryUse]] = Scope(("owner",), _memory_by_owner)


def _subs(snapshot: BrokerSnapshot) -> Iterable[SubscriptionSnapshot]:
    return (subscription for topic in snapshot.topics for subscription in topic.subscriptions)


LONG_TURN: Final[Scope[int]] = Scope(
    ("longer_than_ms",),
    lambda snapshot: (((str(threshold),), count) for threshold, count in snapshot.loop_turns.longer.items()),
)

GROUP_TRAFFIC: Final[Scope[GroupTrafficSnapshot]] = Scope(
    ("resource_group", "traffic"),
    lambda snapshot: (((one.group, one.traffic), one) for one in snapshot.resource_groups),
)

# The same with Pulsar's labels.
MONITORING_CLASS: Final[Scope[GroupTrafficSnapshot]] = Scope(
    ("ResourceGroup", "MonitoringClass"),
    lambda snapshot: (((one.group, one.traffic.capitalize()), one) for one in snapshot.resource_groups),
)

REMOTE_USAGE: Final[Scope[RemoteUsage]] = Scope(
    ("resource_group", "traffic", "remote_broker"),
    lambda snapshot: (((one.group, one.traffic, one.broker), one) for one in snapshot.sharing.remote),
)

USAGE_REPORTS: Final[Scope[int]] = Scope(
    ("outcome",), lambda snapshot: (((outcome,), count) for outcome, count in snapshot.sharing.reports.items())
)

REGISTRATION: Final[Scope[Registration]] = Scope(
    (), lambda snapshot: [((), snapshot.sharing.registration)] if snapshot.sharing.registration is not None else []
)

IGNORED_NODES: Final[Scope[int]] = Scope(
    ("reason",),
    lambda snapshot: (
        ((reason,), count)
        for registration in (snapshot.sharing.registration,)
        if registration is not None
        for reason, count in registration.ignored.items()
    ),
)

# -- the list ---------------------------------------------------------------------------------------------------------

# Rows of a table; the formatter would take five lines for each.
# fmt: off
INSTRUMENTS: Final[tuple[Instrument[Any], ...]] = (
    # The broker
    Instrument("penstock_build_info", "gauge", "", BUILD, lambda one: one,
               "Always 1; the label has the version"),
    Instrument("penstock_healthy", "gauge", "boolean", PROCESS, lambda s: int(s.health.ok),
               "1 while /healthz answers 200"),
    Instrument("penstock_degraded", "gauge", "boolean", PROCESS, lambda s: int(bool(s.health.problems)),
               "1 while something of the log is damaged, missing or unreadable; /healthz names it"),
    Instrument("penstock_stopping", "gauge", "boolean", PROCESS, lambda s: int(s.stopping),
               "1 from SIGTERM on"),
    Instrument("process_start_time_seconds", "gauge", "seconds", PROCESS, lambda s: s.started_at_ms / 1000,
               "When the broker started, in seconds since 1970"),
    Instrument("process_resident_memory_bytes", "gauge", "bytes", PROCESS, lambda s: s.process.resident_bytes,
               "Memory of the process that is in RAM"),
    Instrument("process_cpu_seconds_total", "counter", "seconds", PROCESS, lambda s: s.process.cpu_ns / NS_PER_S,
               "Processor time used, of all threads, user and system"),
    Instrument("penstock_loop_turn_longest_seconds", "gauge", "seconds", PROCESS,
               lambda s: s.loop_turns.longest_ns / NS_PER_S,
               "The longest turn of the event loop since the start, in which no other client was served"),
    Instrument("penstock_loop_long_turns_total", "counter", "", LONG_TURN, lambda turns: turns,
               "Turns of the event loop that took longer than this number of milliseconds"),
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
    Instrument("penstock_connections_muted", "gauge", "", MUTE_REASON, lambda connections: connections,
               "Connections muted for this reason; one with two reasons counts in both"),
    Instrument("penstock_connection_muted_longest_seconds", "gauge", "seconds", PROCESS,
               lambda s: max((connection.muted_ns for connection in s.muted), default=0) / NS_PER_S,
               "Age of the longest mute; 0 when no connection is muted"),
    # Memory
    Instrument("MemoryPoolAvailable", "gauge", "bytes", PROCESS, lambda s: s.request_memory.available_bytes,
               "Request memory left; negative while a frame is finished beyond the size"),
    Instrument("MemoryPoolUsed", "gauge", "bytes", PROCESS, lambda s: s.request_memory.used_bytes,
               "Request memory used: read, and not yet answered"),
    Instrument("MemoryPoolAvgDepletedPercent", "gauge", "percent", PROCESS, lambda s: s.request_memory.depleted_percent,
               "Share of the last 30 to 60 seconds in which reads were refused for lack of request memory"),
    Instrument("MemoryPoolDepletedTimeTotal", "counter", "milliseconds", PROCESS,
               lambda s: s.request_memory.depleted_ms,
               "Time in which reads were refused for lack of request memory"),
    Instrument("penstock_request_memory_used_max_bytes", "gauge", "bytes", PROCESS,
               lambda s: s.request_memory.used_bytes_max,
               "The most request memory ever used at once"),
    Instrument("penstock_request_memory_held_bytes", "gauge", "bytes", PROCESS, lambda s: s.request_memory.held_bytes,
               "Request memory that unfinished frames hold"),
    Instrument("penstock_request_memory_pending_bytes", "gauge", "bytes", PROCESS,
               lambda s: s.request_memory.pending_bytes,
               "Request memory of complete requests that have no answer yet"),
    Instrument("penstock_requests_in_flight", "gauge", "", PROCESS, lambda s: s.request_memory.requests,
               "Published entries read and not yet answered"),
    Instrument("penstock_request_memory_waiters", "gauge", "", PROCESS, lambda s: len(s.request_memory.muted),
               "Connections that wait for request memory, or for the number of requests to fall"),
    Instrument("penstock_request_memory_evicted_total", "counter", "", PROCESS,
               lambda s: s.request_memory.evicted_total,
               "Connections closed because their slow, unfinished frames held memory that others waited for"),
    Instrument("penstock_request_memory_reserve_used_bytes", "gauge", "bytes", PROCESS,
               lambda s: s.request_memory.reserve_used_bytes,
               "Request memory used of the reserve, which only reads of whole frames may have"),
    Instrument("penstock_request_memory_wait_seconds", "summary", "seconds", PROCESS,
               lambda s: s.request_memory.waits,
               "How long reads waited for request memory, or for the number of requests to fall; of those that waited"),
    Instrument("penstock_memory_used_bytes", "gauge", "bytes", MEMORY_OWNER, lambda use: use.used_bytes,
               "Memory used by this owner of a row of the memory budget"),
    Instrument("penstock_memory_budget_bytes", "gauge", "bytes", MEMORY_OWNER, lambda use: use.budget_bytes,
               "Memory limit of this owner"),
    # Topic listings
    *topic_list_instruments("pulsar_broker_", LISTINGS),
    Instrument("penstock_topic_list_refused_total", "counter", "", LISTING_REFUSAL, lambda requests: requests,
               "Requests for memory of topic listings that were refused or cancelled"),
    # The entry log
    Instrument("penstock_log_appended_bytes_total", "counter", "bytes", PROCESS, lambda s: s.log.bytes_appended,
               "Bytes written to the entry log, its own framing included"),
    Instrument("penstock_log_appended_entries_total", "counter", "", PROCESS, lambda s: s.log.entries_appended,
               "Entries written to the entry log"),
    Instrument("penstock_log_commits_total", "counter", "", PROCESS, lambda s: s.log.commits,
               "Group commits: one write and one sync each"),
    Instrument("penstock_log_sync_seconds_total", "counter", "seconds", PROCESS,
               lambda s: s.log.sync_ns_total / NS_PER_S,
               "Time the disk took to sync; divided by the commits, the mean"),
    Instrument("penstock_log_sync_longest_seconds", "gauge", "seconds", PROCESS, lambda s: s.log.sync_ns_max / NS_PER_S,
               "The longest sync since the start"),
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
    # Each resource group, publish and dispatch apart
    Instrument("pulsar_resource_group_messages_used", "counter", "", MONITORING_CLASS, lambda one: one.messages,
               "Messages that passed the group's limit on this broker",
               otel="penstock.resource_group.messages"),
    Instrument("pulsar_resource_group_bytes_used", "counter", "bytes", MONITORING_CLASS, lambda one: one.bytes,
               "Bytes that passed the group's limit on this broker",
               otel="penstock.resource_group.size"),
    Instrument("penstock_resource_group_quota_messages", "gauge", "", GROUP_TRAFFIC, lambda one: one.quota_messages,
               "Messages per second of all brokers together; -1: no limit",
               otel="penstock.resource_group.quota.messages"),
    Instrument("penstock_resource_group_quota_bytes", "gauge", "bytes", GROUP_TRAFFIC, lambda one: one.quota_bytes,
               "Bytes per second of all brokers together; -1: no limit",
               otel="penstock.resource_group.quota.size"),
    Instrument("penstock_resource_group_share_messages", "gauge", "", GROUP_TRAFFIC, lambda one: one.share_messages,
               "Messages per second of this broker; -1: no limit",
               otel="penstock.resource_group.share.messages"),
    Instrument("penstock_resource_group_share_bytes", "gauge", "bytes", GROUP_TRAFFIC, lambda one: one.share_bytes,
               "Bytes per second of this broker; -1: no limit",
               otel="penstock.resource_group.share.size"),
    Instrument("penstock_resource_group_waiting", "gauge", "", GROUP_TRAFFIC, lambda one: one.waiting,
               "Topics (Publish) or subscriptions (Dispatch) that wait for the group",
               otel="penstock.resource_group.waiting"),
    Instrument("penstock_resource_group_held_messages", "gauge", "", GROUP_TRAFFIC, lambda one: one.held_messages,
               "Messages that were received and wait in request memory for the group",
               otel="penstock.resource_group.held.messages"),
    Instrument("penstock_resource_group_held_bytes", "gauge", "bytes", GROUP_TRAFFIC, lambda one: one.held_bytes,
               "Bytes of these messages",
               otel="penstock.resource_group.held.size"),
    Instrument("penstock_resource_group_throttled_seconds_total", "counter", "seconds", GROUP_TRAFFIC,
               lambda one: one.throttled_ns / NS_PER_S,
               "For how long something waited for the group",
               otel="penstock.resource_group.throttled.duration"),
    # Quotas that are shared with other brokers
    Instrument("penstock_resource_group_remote_messages", "gauge", "", REMOTE_USAGE, lambda one: one.messages,
               "Messages per second that another broker wants to pass, as it reported",
               otel="penstock.resource_group.remote.messages"),
    Instrument("penstock_resource_group_remote_bytes", "gauge", "bytes", REMOTE_USAGE, lambda one: one.bytes,
               "Bytes per second that another broker wants to pass, as it reported",
               otel="penstock.resource_group.remote.size"),
    Instrument("penstock_usage_reports_total", "counter", "", USAGE_REPORTS, lambda count: count,
               "Usage reports of resource groups: sent, received, or ignored for a reason"),
    Instrument("penstock_usage_topic_connected", "gauge", "boolean", PROCESS, lambda s: int(s.sharing.connected),
               "Whether this broker can report what its resource groups use; 0 also while no quota is shared"),
    Instrument("penstock_usage_topic_failures_total", "counter", "", PROCESS, lambda s: s.sharing.failures,
               "Connections to the usage topic that failed or ended, and other errors of sharing quotas"),
    Instrument("penstock_quota_members", "gauge", "", PROCESS, lambda s: s.sharing.members,
               "Brokers that share quotas now, this one included; 0 while no quota is shared"),
    # Registration in ZooKeeper, with membershipUrl
    Instrument("penstock_membership_registered", "gauge", "boolean", REGISTRATION,
               lambda one: int(one.registered_ms is not None),
               "Whether this broker is registered in ZooKeeper"),
    Instrument("penstock_membership_registered_timestamp_seconds", "gauge", "seconds", REGISTRATION,
               lambda one: (one.registered_ms or 0) / 1_000,
               "When this broker registered in ZooKeeper, in seconds since 1970; 0 if it is not registered"),
    Instrument("penstock_membership_members", "gauge", "", REGISTRATION, lambda one: one.members,
               "Members by ZooKeeper, or by their reports while it is away; whether they serve is not asked"),
    Instrument("penstock_membership_losses_total", "counter", "", REGISTRATION, lambda one: one.losses,
               "How often the registration ended or was presumed to have ended, because ZooKeeper was not reached"),
    Instrument("penstock_membership_ignored_total", "counter", "", IGNORED_NODES, lambda count: count,
               "Nodes in ZooKeeper's folder that are no records of a process"),
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
