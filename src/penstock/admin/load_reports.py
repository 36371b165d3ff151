# SPDX-License-Identifier: Apache-2.0
"""The load of the broker, in the formats of Pulsar's load reports and monitoring metrics.

Why pure: a snapshot is read once on the broker's loop; it is converted on the admin port's thread. Where: the routes of
broker statistics. Dashboards read /metrics, which has more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import NotFound
from penstock.core.units import MIB, NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.broker.administration.service import LocalBrokerData
    from penstock.broker.stats import shapes
    from penstock.broker.stats.snapshot import BrokerSnapshot, SubscriptionSnapshot, TopicSnapshot

    Json = dict[str, Any]

# Pulsar's two allocators: of the network, and of the entry cache.
NETWORK: Final = "default"
CACHE: Final = "ml-cache"
# The one bundle of a namespace.
BUNDLE: Final = "0x00000000_0xffffffff"
# The most muted connections that are listed; all are counted.
MUTED_LISTED_MAX: Final = 1_000


class Totals(NamedTuple):
    """Counters since the start."""

    at_ms: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    cpu_ns: int

    @classmethod
    def of(cls, snapshot: BrokerSnapshot) -> Totals:
        """Return the totals of a snapshot."""
        return cls(
            snapshot.taken_at_ms,
            sum(topic.messages_in for topic in snapshot.topics),
            sum(topic.bytes_in for topic in snapshot.topics),
            sum(topic.messages_out for topic in snapshot.topics),
            sum(topic.bytes_out for topic in snapshot.topics),
            snapshot.process.cpu_ns,
        )


class Reporter:
    """Creates load reports. Rates are since the previous report, and in the first one since the start."""

    def __init__(self) -> None:
        self._before: Totals | None = None

    def report(self, snapshot: BrokerSnapshot, data: LocalBrokerData) -> Json:
        """Return a report in the format for Pulsar's load balancer."""
        now = Totals.of(snapshot)
        before = self._before or Totals(snapshot.started_at_ms, 0, 0, 0, 0, 0)
        self._before = now
        # The counters of deleted topics are gone.
        gone = {name: max(0, value - getattr(before, name)) for name, value in now._asdict().items()}
        seconds = max(1, gone["at_ms"]) / 1000
        cpu_percent = 100 * gone["cpu_ns"] / (seconds * NS_PER_S)
        subscriptions = [each for topic in snapshot.topics for each in topic.subscriptions]
        outbound, tail_cache = snapshot.memory["outbound"], snapshot.memory["tail-cache"]
        return {
            "webServiceUrl": data.web_url,
            "webServiceUrlTls": data.web_url_tls,
            "pulsarServiceUrl": data.service_url,
            "pulsarServiceUrlTls": data.service_url_tls,
            "persistentTopicsEnabled": data.persistent_topics,
            "nonPersistentTopicsEnabled": data.non_persistent_topics,
            # Python computes on one core; the other threads wait for the disk.
            "cpu": {"usage": round(cpu_percent, 1), "limit": 100.0},
            "memory": _usage(snapshot.process.resident_bytes),
            "directMemory": _usage(
                outbound.used_bytes + tail_cache.used_bytes,
                outbound.limit_bytes + tail_cache.limit_bytes,
            ),
            "bandwidthIn": {"usage": gone["bytes_in"] * 8 / 1000 / seconds, "limit": -1.0},
            "bandwidthOut": {"usage": gone["bytes_out"] * 8 / 1000 / seconds, "limit": -1.0},
            "msgRateIn": gone["messages_in"] / seconds,
            "msgRateOut": gone["messages_out"] / seconds,
            "msgThroughputIn": gone["bytes_in"] / seconds,
            "msgThroughputOut": gone["bytes_out"] / seconds,
            "lastUpdate": snapshot.taken_at_ms,
            "startTimestamp": snapshot.started_at_ms,
            "numTopics": len(snapshot.topics),
            "numBundles": len(data.bundles),
            "numProducers": sum(topic.producers for topic in snapshot.topics),
            "numConsumers": sum(each.consumers for each in subscriptions),
            "bundles": data.bundles,
            "lastStats": {},
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "protocols": {},
            "advertisedListeners": {},
            "loadReportType": "LocalBrokerData",
            "maxResourceUsage": round(cpu_percent / 100, 3),
        }


def _usage(used_bytes: int, limit_bytes: int | None = None) -> Json:
    """Return usage and limit in MiB; a limit of -1 means none."""
    return {"usage": round(used_bytes / MIB, 1), "limit": -1.0 if limit_bytes is None else round(limit_bytes / MIB, 1)}


def metrics(snapshot: BrokerSnapshot) -> list[Json]:
    """Return totals of the broker and of each namespace, in the format of Pulsar's monitoring metrics.

    The broker comes first, so that there is at least one: `pulsar-admin broker-stats monitoring-metrics` fails on none.
    """
    of_namespaces: dict[str, list[TopicSnapshot]] = {}
    for topic in snapshot.topics:
        of_namespaces.setdefault(topic.namespace, []).append(topic)
    rows = [_totals(snapshot.topics, {"cluster": snapshot.cluster})]
    for name, of_namespace in sorted(of_namespaces.items()):
        rows.append(_totals(of_namespace, {"cluster": snapshot.cluster, "namespace": name}))
    return rows


def _totals(topics: Sequence[TopicSnapshot], dimensions: Json) -> Json:
    subscriptions = [each for topic in topics for each in topic.subscriptions]
    return {
        "dimensions": dimensions,
        "metrics": {
            "brk_no_of_topics": len(topics),
            "brk_no_of_subscriptions": len(subscriptions),
            "brk_no_of_producers": sum(topic.producers for topic in topics),
            "brk_no_of_consumers": sum(each.consumers for each in subscriptions),
            "brk_msg_backlog": sum(each.backlog for each in subscriptions),
            "brk_in_messages_total": sum(topic.messages_in for topic in topics),
            "brk_in_bytes_total": sum(topic.bytes_in for topic in topics),
            "brk_out_messages_total": sum(topic.messages_out for topic in topics),
            "brk_out_bytes_total": sum(topic.bytes_out for topic in topics),
        },
    }


def process(snapshot: BrokerSnapshot) -> list[Json]:
    """Return this process's values for Pulsar's JVM metrics."""
    return [
        {
            "dimensions": {"MBean": "penstock:type=Process"},
            "metrics": {
                "process_resident_memory_bytes": snapshot.process.resident_bytes,
                "process_cpu_seconds_total": snapshot.process.cpu_ns / NS_PER_S,
                "connections_open": snapshot.connections_open,
                "connections_accepted_total": snapshot.connections_accepted,
            },
        }
    ]


def topics(snapshot: BrokerSnapshot) -> Iterator[str]:
    """Yield JSON of every loaded topic: namespace → bundle → domain → topic. A namespace is shown as one bundle.

    In pieces, because encoding ten thousand topics is a single step of the interpreter, during which no other thread
    runs, also not the event loop. The snapshot is in use until the last piece.
    """
    namespaces: dict[str, dict[str, list[TopicSnapshot]]] = {}
    for topic in snapshot.topics:
        domain = topic.name.partition("://")[0]
        namespaces.setdefault(topic.namespace, {}).setdefault(domain, []).append(topic)
    yield from _object((name, _object([(BUNDLE, _domains(domains))])) for name, domains in namespaces.items())


def _domains(domains: dict[str, list[TopicSnapshot]]) -> Iterator[str]:
    return _object(
        (domain, _object((topic.name, _topic(topic)) for topic in those)) for domain, those in domains.items()
    )


def _topic(topic: TopicSnapshot) -> Iterator[str]:
    counts = json.dumps(
        {
            "producerCount": topic.producers,
            "msgInCounter": topic.messages_in,
            "bytesInCounter": topic.bytes_in,
            "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
            "replication": {},
        }
    )
    yield f'{counts.removesuffix("}")}, "subscriptions": '
    yield from _object((each.name, [_subscription(each)]) for each in topic.subscriptions)
    yield "}"


def _subscription(subscription: SubscriptionSnapshot) -> str:
    return json.dumps(
        {
            "type": subscription.type,
            "consumersCount": subscription.consumers,
            "msgBacklog": subscription.backlog,
            "unackedMessages": subscription.unacked,
            "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
            "msgOutCounter": subscription.messages_out,
            "bytesOutCounter": subscription.bytes_out,
            "isDurable": subscription.durable,
        }
    )


def _object(members: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Yield a JSON object of members whose values are JSON in pieces."""
    separator = "{"
    for name, value in members:
        yield f"{separator}{json.dumps(name)}:"
        yield from value
        separator = ","
    yield "}" if separator == "," else "{}"


def allocator(snapshot: BrokerSnapshot, name: str) -> Json:
    """Return the part of the memory budget that corresponds to one of Pulsar's allocators. Raises NotFound."""
    owners = {NETWORK: snapshot.memory["outbound"], CACHE: snapshot.memory["tail-cache"]}
    if name not in owners:
        raise NotFound(f"there is no allocator {name}; there are {', '.join(owners)}")
    return {
        "numDirectArenas": 0,
        "numHeapArenas": 0,
        "numThreadLocalCaches": 0,
        "normalCacheSize": 0,
        "smallCacheSize": 0,
        "usedDirectMemory": owners[name].used_bytes,
        "usedHeapMemory": 0,
        "directArenas": [],
        "heapArenas": [],
    }


def muted(snapshot: BrokerSnapshot) -> shapes.MutedConnections:
    """Return muted connections, the longest muted first."""
    listed = sorted(snapshot.muted, key=lambda connection: connection.muted_ns, reverse=True)[:MUTED_LISTED_MAX]
    return {
        "count": len(snapshot.muted),
        "connections": [
            {
                "address": connection.peer,
                "mutedMillis": connection.muted_ns // NS_PER_MS,
                "reasons": list(connection.reasons),
                "wantedBytes": connection.want_bytes,
                "heldBytes": connection.held_bytes,
                "commandBytes": connection.command_bytes,
                "unsentBytes": connection.unsent_bytes,
            }
            for connection in listed
        ],
    }
