# SPDX-License-Identifier: Apache-2.0
"""An overview of a broker or proxy, as JSON for the web console: traffic, health, memory, what waits.

Why not /metrics: they have a hundred lines for each topic; this is of one size, whatever the broker serves.
Why pure: a snapshot is read once on the broker's loop, and converted on the admin port's thread. Where: the routes of
the console, and a proxy's `/proxy-stats/overview`.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock import __version__
from penstock.core.durations import BOUNDS_NS
from penstock.core.units import NS_PER_MS
from penstock.governance.budget import ROWS
from penstock.stats.expiry import notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.stats.snapshot import BrokerSnapshot
    from penstock.core.durations import DurationsSnapshot
    from penstock.proxy.snapshot import ProxySnapshot
    from penstock.stats.snapshot import GroupTrafficSnapshot, MemoryUse, MutedConnection, ServerSnapshot

Json: TypeAlias = "dict[str, Any]"

# Muted connections and resource groups that are listed; all are counted.
LISTED_MAX: Final = 100
_OWNERS: Final = {row.name: row for row in ROWS}


def of_broker(snapshot: BrokerSnapshot, number: int, name: str, totals: Json) -> Json:
    """Return the overview of a broker. Args: name: host and port of its admin port; totals: of its topics."""
    health = snapshot.health
    reasons = [health.reason, *health.problems] if not health.ok else [*health.problems]
    return {
        "broker": number,
        "name": name,
        **_of_server(snapshot),
        "status": "failing" if not health.ok else "degraded" if health.problems else "ok",
        "reasons": reasons,
        "notes": [*health.notes],
        "brokers": [{"broker": one.number, "state": one.state.value} for one in snapshot.brokers],
        **totals,
        "publishTimes": _times(snapshot.publish_times.values()),
        "disk": {"sizeBytes": snapshot.disk.size, "freeBytes": snapshot.disk.free} if snapshot.disk else None,
    }


def of_proxy(snapshot: ProxySnapshot) -> Json:
    """Return the overview of a proxy."""
    return {
        "name": "proxy",
        **_of_server(snapshot),
        "status": "failing" if snapshot.stopping else "ok",
        "reasons": ["the proxy is stopping"] if snapshot.stopping else [],
        "notes": [*notes(snapshot.expiries, snapshot.taken_at_ms)],
        "connectionsRefused": snapshot.connections_refused,
        "brokerConnections": snapshot.broker_connections,
        "bytesIn": snapshot.to_brokers_bytes,
        "bytesOut": snapshot.to_clients_bytes,
        "lookupsPending": snapshot.lookups_pending,
        "turnedAway": dict(snapshot.turned_away),
    }


def _of_server(snapshot: ServerSnapshot) -> Json:
    return {
        "version": __version__,
        "cluster": snapshot.cluster,
        "startedAtMs": snapshot.started_at_ms,
        "takenAtMs": snapshot.taken_at_ms,
        "connections": snapshot.connections_open,
        "connectionsAccepted": snapshot.connections_accepted,
        "residentBytes": snapshot.process.resident_bytes,
        "cpuNs": snapshot.process.cpu_ns,
        "longTurns": max(snapshot.loop_turns.longer.values(), default=0),
        "longestTurnMs": snapshot.loop_turns.longest_ns / NS_PER_MS,
        "memory": [_row(name, use) for name, use in snapshot.memory.items()],
        "holds": {kind.value: count for kind, count in snapshot.holds.items() if count},
        "muted": len(snapshot.muted),
        "mutedConnections": [_muted(one) for one in nlargest(LISTED_MAX, snapshot.muted, key=lambda one: one.muted_ns)],
        "groups": [_group(one) for one in snapshot.resource_groups[: 2 * LISTED_MAX]],
        "groupsCount": len(snapshot.resource_groups) // 2,
        "quotaMembers": snapshot.sharing.members,
    }


def _row(name: str, use: MemoryUse) -> Json:
    row = _OWNERS.get(name)
    return {
        "row": name,
        "owner": row.owner if row is not None else name,
        "key": row.key if row is not None else None,
        "usedBytes": use.used_bytes,
        "limitBytes": use.limit_bytes,
        "refused": use.refused_total,
    }


def _muted(connection: MutedConnection) -> Json:
    return {
        "address": connection.peer,
        "mutedMillis": connection.muted_ns // NS_PER_MS,
        "reasons": list(connection.reasons),
        "heldBytes": connection.held_bytes,
        "wantedBytes": connection.want_bytes,
    }


def _group(group: GroupTrafficSnapshot) -> Json:
    """Rates are per second; -1: no limit."""
    return {
        "group": group.group,
        "traffic": group.traffic,
        "messages": group.messages,
        "bytes": group.bytes,
        "quotaInMsgs": group.quota_messages,
        "quotaInBytes": group.quota_bytes,
        "shareInMsgs": group.share_messages,
        "shareInBytes": group.share_bytes,
        "waiting": group.waiting,
        "heldMessages": group.held_messages,
        "heldBytes": group.held_bytes,
        "limitedMs": group.throttled_ns // NS_PER_MS,
    }


def _times(snapshots: Iterable[DurationsSnapshot]) -> Json:
    """Return how long publishes took until their receipts, all namespaces in sum, since the start."""
    columns = zip(*(one.counts for one in snapshots), strict=True)
    return {"boundsMs": [bound / NS_PER_MS for bound in BOUNDS_NS], "counts": [sum(counts) for counts in columns]}
