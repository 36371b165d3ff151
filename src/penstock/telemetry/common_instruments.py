# SPDX-License-Identifier: Apache-2.0
"""The metrics of what brokers and proxies have in common: process, connections, memory, resource groups.

Where: `instruments` and `proxy_instruments` add them to their lists.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MUTES
from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.membership import Registration
    from penstock.governance.permits import PermitSnapshot
    from penstock.groups.adaptive_throttling import ThrottlingSnapshot, TopicThrottling
    from penstock.net.listing_memory import TopicListSnapshot
    from penstock.stats.expiry import Expiry
    from penstock.stats.snapshot import GroupTrafficSnapshot, MemoryUse, RecordsSnapshot, RemoteUsage, ServerSnapshot

    Of = Callable[[TopicListSnapshot], PermitSnapshot]
    Listings = Scope[Any, TopicListSnapshot]
    Listing = Instrument[Any, TopicListSnapshot]

# -- the metrics of usage records and decision records -----------------------------------------------------------------


def _by(label: str, counters: Callable[[RecordsSnapshot], Mapping[str, int]]) -> Scope[ServerSnapshot, int]:
    def rows(snapshot: ServerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
        if snapshot.records is not None:
            for name, count in counters(snapshot.records).items():
                yield (name,), count

    return Scope((label,), rows, optional=True)


_RECORDS: Final[Scope[ServerSnapshot, RecordsSnapshot]] = Scope(
    (), lambda snapshot: [((), snapshot.records)] if snapshot.records is not None else [], optional=True
)

# fmt: off
RECORD_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_records_written_total", "counter", "", _by("kind", lambda records: records.written),
               lambda count: count, "Usage and decision records written"),
    Instrument("penstock_records_failures_total", "counter", "", _by("kind", lambda records: records.failures),
               lambda count: count, "Attempts to write records that failed; of usage nothing is lost by that"),
    Instrument("penstock_records_dropped_total", "counter", "", _by("reason", lambda records: records.dropped),
               lambda count: count, "Decision records dropped"),
    Instrument("penstock_records_queued_bytes", "gauge", "bytes", _RECORDS, lambda records: records.queued_bytes,
               "Decision records that wait to be written; 1 MiB at most"),
)
# fmt: on


# -- the metrics of adaptive publish throttling: six of a broker or proxy, and six of each topic on request ------------

THROTTLING: Final[Scope[ServerSnapshot, ThrottlingSnapshot]] = Scope(
    ("cluster",),
    lambda snapshot: [((snapshot.cluster,), snapshot.throttling)] if snapshot.throttling is not None else [],
    optional=True,
)

OWNERS: Final[Scope[ServerSnapshot, int]] = Scope(
    ("owner",),
    lambda snapshot: (
        [((owner,), nbytes) for owner, nbytes in snapshot.throttling.memory.owners.items()]
        if snapshot.throttling is not None and snapshot.throttling.memory is not None
        else []
    ),
    optional=True,
)

THROTTLED_TOPIC: Final[Scope[ServerSnapshot, TopicThrottling]] = Scope(
    ("topic",),
    lambda snapshot: [((one.topic,), one) for one in (snapshot.throttling.topics if snapshot.throttling else ())],
    optional=True,
)

_BROKER: Final = "pulsar_broker_adaptive_throttle_"
_OTEL: Final = "pulsar.broker.adaptive.throttle."
_TOPIC: Final = "pulsar_broker_topic_adaptive_throttle_"
_OTEL_TOPIC: Final = "pulsar.broker.topic.adaptive.throttle."

# fmt: off
THROTTLING_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument(f"{_BROKER}memory_pressure", "gauge", "", THROTTLING, lambda s: s.memory_pressure,
               "Memory pressure, from 0 (below the low watermark) to 1 (at the high one)",
               otel=f"{_OTEL}memory.pressure"),
    Instrument(f"{_BROKER}active_topic_count", "gauge", "", THROTTLING, lambda s: s.active_topics,
               "Topics that are throttled adaptively; 0 while observe-only is on",
               otel=f"{_OTEL}active.topic.count"),
    Instrument(f"{_BROKER}activation_count", "counter", "", THROTTLING, lambda s: s.activations,
               "How often a topic began to be throttled",
               otel=f"{_OTEL}activation.count"),
    Instrument(f"{_BROKER}controller_last_evaluation_timestamp", "gauge", "milliseconds", THROTTLING,
               lambda s: s.last_evaluation_ms,
               "When the last evaluation without a failure ended, in ms since 1970; 0 for never",
               otel=f"{_OTEL}controller.last.evaluation.timestamp"),
    Instrument(f"{_BROKER}controller_evaluation_duration", "gauge", "milliseconds", THROTTLING,
               lambda s: s.evaluation_ns / NS_PER_MS,
               "How long the last evaluation used the event loop, in all its turns",
               otel=f"{_OTEL}controller.evaluation.duration"),
    Instrument(f"{_BROKER}controller_evaluation_failure_count", "counter", "", THROTTLING, lambda s: s.failures,
               "Evaluations that failed; the log says why",
               otel=f"{_OTEL}controller.evaluation.failure.count"),
    # Beyond the six
    Instrument("penstock_adaptive_throttle_interval_seconds", "gauge", "seconds", THROTTLING,
               lambda s: s.interval_ns / NS_PER_S,
               "Time between two evaluations, as it is set now: adaptivePublisherThrottlingIntervalMs"),
    Instrument("penstock_adaptive_throttle_queueing_pressure", "gauge", "", THROTTLING, lambda s: s.queueing_pressure,
               "Pressure of the disk, from 0 (an append takes a quarter of a second) to 1 (a second)"),
    Instrument("penstock_adaptive_throttle_observed_topics", "gauge", "", THROTTLING, lambda s: s.observed_topics,
               "Topics that would be throttled if observe-only were off"),
    Instrument("penstock_adaptive_throttle_active_payers", "gauge", "", THROTTLING, lambda s: s.active_payers,
               "Resource groups and tenants whose topics are throttled together; 0 while observe-only is on"),
    Instrument("penstock_adaptive_throttle_topics_left_out", "gauge", "", THROTTLING, lambda s: s.topics_left_out,
               "Topics without metrics of their own, although these are asked for: 5,000 have them"),
    Instrument("penstock_adaptive_throttle_memory_used_bytes", "gauge", "bytes", THROTTLING,
               lambda s: s.memory.used if s.memory is not None else 0,
               "Memory in use, as the throttle sees it: resident memory without what the allocator keeps"),
    Instrument("penstock_adaptive_throttle_memory_limit_bytes", "gauge", "bytes", THROTTLING,
               lambda s: s.memory.limit if s.memory is not None else 0,
               "The limit that memory is compared with: memoryLimitMB"),
    Instrument("penstock_adaptive_throttle_memory_owner_bytes", "gauge", "bytes", OWNERS, lambda nbytes: nbytes,
               "Memory in use that rows of the memory budget account for, by owner"),
    # Each topic, on request
    Instrument(f"{_TOPIC}active", "gauge", "boolean", THROTTLED_TOPIC, lambda t: int(t.active),
               "1 while the topic is throttled",
               otel=f"{_OTEL_TOPIC}active"),
    Instrument(f"{_TOPIC}natural_publish_rate", "gauge", "", THROTTLED_TOPIC, lambda t: t.natural_messages,
               "Messages per second that producers publish without throttling",
               otel=f"{_OTEL_TOPIC}natural.publish.rate"),
    Instrument(f"{_TOPIC}effective_publish_rate", "gauge", "", THROTTLED_TOPIC, lambda t: t.effective_messages,
               "Messages per second that they may publish now",
               otel=f"{_OTEL_TOPIC}effective.publish.rate"),
    Instrument(f"{_TOPIC}memory_pressure", "gauge", "", THROTTLED_TOPIC, lambda t: t.memory_pressure,
               "Memory pressure when the topic was last evaluated",
               otel=f"{_OTEL_TOPIC}memory.pressure"),
    Instrument(f"{_TOPIC}backlog_pressure", "gauge", "", THROTTLED_TOPIC, lambda t: t.backlog_pressure,
               "Backlog pressure of the topic, from 0 to 1",
               otel=f"{_OTEL_TOPIC}backlog.pressure"),
    Instrument(f"{_TOPIC}rate_reduction_ratio", "gauge", "", THROTTLED_TOPIC, lambda t: t.reduction,
               "The part of the natural rate that is taken away, from 0 to 1",
               otel=f"{_OTEL_TOPIC}rate.reduction.ratio"),
)
# fmt: on


# -- the twelve metrics of PIP-442 for a `TopicListMemoryLimiter`, with their OpenTelemetry names ----------------------


def topic_list_instruments(prefix: str, scope: Listings) -> tuple[Listing, ...]:
    """Return the metrics, named `{prefix}topic_list_…`."""
    heap = _memory(f"{prefix}topic_list_heap", "topic.list.heap", scope, lambda s: s.heap, "heap")
    direct = _memory(f"{prefix}topic_list_direct", "topic.list.direct", scope, lambda s: s.direct, "direct")
    return tuple(instrument for pair in zip(heap, direct, strict=True) for instrument in pair)


def _memory(
    name: str,
    otel: str,
    scope: Listings,
    of: Of,
    kind: str,
) -> list[Listing]:
    """Return the metrics of one of the two memories."""
    return [
        Instrument(
            f"{name}_memory_used_bytes",
            "gauge",
            "bytes",
            scope,
            lambda s: of(s).acquired,
            f"Current {kind} memory used by topic listings; 0 when it has no limit",
            f"{otel}.memory.used",
        ),
        Instrument(
            f"{name}_memory_limit_bytes",
            "gauge",
            "bytes",
            scope,
            lambda s: of(s).permits_max,
            f"Configured {kind} memory limit; 0 for none",
            f"{otel}.memory.limit",
        ),
        Instrument(
            f"{name}_queue_size",
            "gauge",
            "",
            scope,
            lambda s: of(s).queue_size,
            f"Current {kind} memory limiter queue size: requests that wait for it, or for their turn to use it",
            f"{otel}.queue.size",
        ),
        Instrument(
            f"{name}_queue_max_size",
            "gauge",
            "",
            scope,
            lambda s: of(s).queue_max,
            f"Maximum {kind} memory limiter queue size; 0 for no maximum",
            f"{otel}.queue.max.size",
        ),
        Instrument(
            f"{name}_wait_time_ms",
            "summary",
            "milliseconds",
            scope,
            lambda s: of(s).waits,
            f"Wait time for {kind} memory permits, had or not; quantiles of the last four to five minutes",
            f"{otel}.wait.time",
        ),
        Instrument(
            f"{name}_timeout_total",
            "counter",
            "",
            scope,
            lambda s: of(s).timeouts_total,
            f"Total {kind} memory permit timeouts",
            f"{otel}.timeout.total",
        ),
    ]


CERTIFICATE: Final[Scope[ServerSnapshot, Expiry]] = Scope(
    ("use",),
    lambda snapshot: [((one.use,), one) for one in snapshot.expiries if one.source == "certificate"],
    optional=True,
)

TOKEN: Final[Scope[ServerSnapshot, Expiry]] = Scope(
    ("use", "source"),
    lambda snapshot: [((one.use, one.source), one) for one in snapshot.expiries if one.source != "certificate"],
    optional=True,
)

PROCESS: Final[Scope[ServerSnapshot, ServerSnapshot]] = Scope((), lambda snapshot: [((), snapshot)])

BUILD: Final[Scope[ServerSnapshot, int]] = Scope(("version",), lambda _snapshot: [((__version__,), 1)])


def _refused_listings(snapshot: ServerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
    for memory, seen in (("heap", snapshot.listings.heap), ("direct", snapshot.listings.direct)):
        yield (memory, "queue-full"), seen.queue_full_total
        yield (memory, "beyond-limit"), seen.beyond_limit_total
        yield (memory, "cancelled"), seen.cancelled_total


LISTING_REFUSAL: Final[Scope[ServerSnapshot, int]] = Scope(("memory", "reason"), _refused_listings)


def _connections_by_reason(snapshot: ServerSnapshot) -> Iterable[tuple[tuple[str, ...], int]]:
    muted = Counter(reason for connection in snapshot.muted for reason in connection.reasons)
    return [((reason.value,), muted[reason.value]) for reason in MUTES]


MUTE_REASON: Final[Scope[ServerSnapshot, int]] = Scope(("reason",), _connections_by_reason)

MEMORY_OWNER: Final[Scope[ServerSnapshot, MemoryUse]] = Scope(
    ("owner",), lambda snapshot: (((owner,), use) for owner, use in snapshot.memory.items())
)

HOLD: Final[Scope[ServerSnapshot, int]] = Scope(
    ("reason",), lambda snapshot: (((kind.value,), snapshot.holds.get(kind, 0)) for kind in HoldKind)
)

LONG_TURN: Final[Scope[ServerSnapshot, int]] = Scope(
    ("longer_than_ms",),
    lambda snapshot: (((str(threshold),), count) for threshold, count in snapshot.loop_turns.longer.items()),
)

GROUP_TRAFFIC: Final[Scope[ServerSnapshot, GroupTrafficSnapshot]] = Scope(
    ("resource_group", "traffic"),
    lambda snapshot: (((one.group, one.traffic), one) for one in snapshot.resource_groups),
)

MONITORING_CLASS: Final[Scope[ServerSnapshot, GroupTrafficSnapshot]] = Scope(
    ("ResourceGroup", "MonitoringClass"),
    lambda snapshot: (((one.group, one.traffic.capitalize()), one) for one in snapshot.resource_groups),
)

REMOTE_USAGE: Final[Scope[ServerSnapshot, RemoteUsage]] = Scope(
    ("resource_group", "traffic", "remote_broker"),
    lambda snapshot: (((one.group, one.traffic, one.broker), one) for one in snapshot.sharing.remote),
)

USAGE_REPORTS: Final[Scope[ServerSnapshot, int]] = Scope(
    ("outcome",), lambda snapshot: (((outcome,), count) for outcome, count in snapshot.sharing.reports.items())
)

REGISTRATION: Final[Scope[ServerSnapshot, Registration]] = Scope(
    (), lambda snapshot: [((), snapshot.sharing.registration)] if snapshot.sharing.registration is not None else []
)

IGNORED_NODES: Final[Scope[ServerSnapshot, int]] = Scope(
    ("reason",),
    lambda snapshot: (
        ((reason,), count)
        for registration in (snapshot.sharing.registration,)
        if registration is not None
        for reason, count in registration.ignored.items()
    ),
)

# Rows of tables; the formatter would take five lines for each.
# fmt: off
PROCESS_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_build_info", "gauge", "", BUILD, lambda one: one,
               "Always 1; the label has the version"),
    Instrument("penstock_stopping", "gauge", "boolean", PROCESS, lambda s: int(s.stopping),
               "1 from SIGTERM on"),
    Instrument("penstock_certificate_expiry_timestamp_seconds", "gauge", "seconds", CERTIFICATE,
               lambda one: one.until_ms / 1000,
               "Until when the certificate in use for clients, admin, brokers or a cluster is valid, in s since 1970"),
    Instrument("penstock_token_expiry_timestamp_seconds", "gauge", "seconds", TOKEN, lambda one: one.until_ms / 1000,
               "Until when a token that this process shows is valid, in seconds since 1970; source is setting or file"),
    Instrument("process_start_time_seconds", "gauge", "seconds", PROCESS, lambda s: s.started_at_ms / 1000,
               "When the process started, in seconds since 1970"),
    Instrument("process_resident_memory_bytes", "gauge", "bytes", PROCESS, lambda s: s.process.resident_bytes,
               "Memory of the process that is in RAM"),
    Instrument("process_cpu_seconds_total", "counter", "seconds", PROCESS, lambda s: s.process.cpu_ns / NS_PER_S,
               "Processor time used, of all threads, user and system"),
    Instrument("penstock_loop_turn_longest_seconds", "gauge", "seconds", PROCESS,
               lambda s: s.loop_turns.longest_ns / NS_PER_S,
               "The longest turn of the event loop since the start, in which no other client was served"),
    Instrument("penstock_loop_long_turns_total", "counter", "", LONG_TURN, lambda turns: turns,
               "Turns of the event loop that took longer than this number of milliseconds"),
    Instrument("penstock_loop_tasks", "gauge", "", PROCESS, lambda s: s.loop_turns.tasks,
               "Tasks of the event loop that have not ended; it grows only with what is connected or waits"),
)

CONNECTION_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_holds", "gauge", "", HOLD, lambda holds: holds,
               "Producers, consumers, subscriptions, clients and listings that wait for this reason now"),
    Instrument("penstock_connections_muted", "gauge", "", MUTE_REASON, lambda connections: connections,
               "Connections muted for this reason; one with two reasons counts in both"),
    Instrument("penstock_connection_muted_longest_seconds", "gauge", "seconds", PROCESS,
               lambda s: max((connection.muted_ns for connection in s.muted), default=0) / NS_PER_S,
               "Age of the longest mute; 0 when no connection is muted"),
)

MEMORY_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
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
    Instrument("penstock_memory_budget_bytes", "gauge", "bytes", MEMORY_OWNER, lambda use: use.limit_bytes,
               "Memory limit of this owner"),
    Instrument("penstock_memory_refused_total", "counter", "", MEMORY_OWNER, lambda use: use.refused_total,
               "How often this owner had no room for what was asked for: it was refused, or waited"),
)

LISTING_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_topic_list_refused_total", "counter", "", LISTING_REFUSAL, lambda requests: requests,
               "Requests for memory of topic listings that were refused or cancelled"),
)

GROUP_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("pulsar_resource_group_messages_used", "counter", "", MONITORING_CLASS, lambda one: one.messages,
               "Messages that passed the group's limit in this process",
               otel="penstock.resource_group.messages"),
    Instrument("pulsar_resource_group_bytes_used", "counter", "bytes", MONITORING_CLASS, lambda one: one.bytes,
               "Bytes that passed the group's limit in this process",
               otel="penstock.resource_group.size"),
    Instrument("penstock_resource_group_quota_messages", "gauge", "", GROUP_TRAFFIC, lambda one: one.quota_messages,
               "Messages per second of all brokers, or proxies, together; -1: no limit",
               otel="penstock.resource_group.quota.messages"),
    Instrument("penstock_resource_group_quota_bytes", "gauge", "bytes", GROUP_TRAFFIC, lambda one: one.quota_bytes,
               "Bytes per second of all brokers, or proxies, together; -1: no limit",
               otel="penstock.resource_group.quota.size"),
    Instrument("penstock_resource_group_share_messages", "gauge", "", GROUP_TRAFFIC, lambda one: one.share_messages,
               "Messages per second of this process; -1: no limit",
               otel="penstock.resource_group.share.messages"),
    Instrument("penstock_resource_group_share_bytes", "gauge", "bytes", GROUP_TRAFFIC, lambda one: one.share_bytes,
               "Bytes per second of this process; -1: no limit",
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
)

SHARING_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_resource_group_remote_messages", "gauge", "", REMOTE_USAGE, lambda one: one.messages,
               "Messages per second that another broker, or proxy, wants to pass, as it reported",
               otel="penstock.resource_group.remote.messages"),
    Instrument("penstock_resource_group_remote_bytes", "gauge", "bytes", REMOTE_USAGE, lambda one: one.bytes,
               "Bytes per second that another broker, or proxy, wants to pass, as it reported",
               otel="penstock.resource_group.remote.size"),
    Instrument("penstock_usage_reports_total", "counter", "", USAGE_REPORTS, lambda count: count,
               "Usage reports of resource groups: sent, received, or ignored for a reason"),
    Instrument("penstock_usage_topic_connected", "gauge", "boolean", PROCESS, lambda s: int(s.sharing.connected),
               "Whether this process can report what its resource groups use; 0 also while no quota is shared"),
    Instrument("penstock_usage_topic_failures_total", "counter", "", PROCESS, lambda s: s.sharing.failures,
               "Connections to the usage topic that failed or ended, and other errors of sharing quotas"),
    Instrument("penstock_quota_members", "gauge", "", PROCESS, lambda s: s.sharing.members,
               "Brokers, or proxies, that share quotas now, this one included; 0 while no quota is shared"),
)

REGISTRATION_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument("penstock_membership_registered", "gauge", "boolean", REGISTRATION,
               lambda one: int(one.registered_ms is not None),
               "Whether this process is registered in ZooKeeper"),
    Instrument("penstock_membership_registered_timestamp_seconds", "gauge", "seconds", REGISTRATION,
               lambda one: (one.registered_ms or 0) / 1_000,
               "When this process registered in ZooKeeper, in seconds since 1970; 0 if it is not registered"),
    Instrument("penstock_membership_members", "gauge", "", REGISTRATION, lambda one: one.members,
               "Members by ZooKeeper, or by their reports while it is away; whether they serve is not asked"),
    Instrument("penstock_membership_losses_total", "counter", "", REGISTRATION, lambda one: one.losses,
               "How often the registration ended or was presumed to have ended, because ZooKeeper was not reached"),
    Instrument("penstock_membership_ignored_total", "counter", "", IGNORED_NODES, lambda count: count,
               "Nodes in ZooKeeper's folder that are no records of a process"),
)
# fmt: on
