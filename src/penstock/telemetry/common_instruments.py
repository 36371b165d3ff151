# SPDX-License-Identifier: Apache-2.0
"""The metrics of what brokers and proxies have in common: process, connections, memory, resource groups.

Where: `instruments` and `proxy_instruments` add them to their lists.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MUTES
from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.membership import Registration
    from penstock.stats.server_snapshot import GroupTrafficSnapshot, MemoryUse, RemoteUsage, ServerSnapshot

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
