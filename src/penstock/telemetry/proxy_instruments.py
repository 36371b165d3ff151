# SPDX-License-Identifier: Apache-2.0
"""All metrics of a proxy: those that a broker has, too, and those with the names of Pulsar's proxy.

Where: `prometheus.rendered` and the push to OpenTelemetry read the list; `docs/reference/proxy-metrics.md` is made
of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.telemetry.common_instruments import (
    CONNECTION_INSTRUMENTS,
    GROUP_INSTRUMENTS,
    LISTING_INSTRUMENTS,
    MEMORY_INSTRUMENTS,
    PROCESS_INSTRUMENTS,
    RECORD_INSTRUMENTS,
    REGISTRATION_INSTRUMENTS,
    SHARING_INSTRUMENTS,
    THROTTLING_INSTRUMENTS,
    topic_list_instruments,
)
from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from penstock.net.listing_memory import TopicListSnapshot
    from penstock.proxy.snapshot import ProxySnapshot

PROXY: Final[Scope[ProxySnapshot, ProxySnapshot]] = Scope((), lambda snapshot: [((), snapshot)])

CLUSTER: Final[Scope[ProxySnapshot, ProxySnapshot]] = Scope(
    ("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot)]
)

LISTINGS: Final[Scope[ProxySnapshot, TopicListSnapshot]] = Scope(
    ("cluster",), lambda snapshot: [((snapshot.cluster,), snapshot.listings)]
)

DIRECTION: Final[Scope[ProxySnapshot, int]] = Scope(
    ("direction",),
    lambda snapshot: [(("to-broker",), snapshot.to_brokers_bytes), (("to-client",), snapshot.to_clients_bytes)],
)

USAGE: Final[Scope[ProxySnapshot, ProxySnapshot]] = Scope(
    (), lambda snapshot: [((), snapshot)] if snapshot.usage_topics is not None else [], optional=True
)

OUTCOMES: Final = ("made", "failed", "refused")
OUTCOME: Final[Scope[ProxySnapshot, int]] = Scope(
    ("outcome",), lambda snapshot: [((outcome,), snapshot.connected.get(outcome, 0)) for outcome in OUTCOMES]
)


def _asked(name: str, what: str) -> Instrument[ProxySnapshot, ProxySnapshot]:
    return Instrument(
        f"pulsar_proxy_{name}_requests", "counter", "", CLUSTER, lambda s: s.asked.get(name, 0),
        what,
    )  # fmt: skip


def _turned_away(name: str, what: str) -> Instrument[ProxySnapshot, ProxySnapshot]:
    return Instrument(
        f"pulsar_proxy_rejected_{name}_requests", "counter", "", CLUSTER, lambda s: s.turned_away.get(name, 0),
        f"{what} that the proxy itself refused, for lack of memory or of connections to brokers",
    )  # fmt: skip


# Rows of a table; the formatter would take five lines for each.
# fmt: off
PROXY_INSTRUMENTS: Final[tuple[Instrument[ProxySnapshot, Any], ...]] = (
    *PROCESS_INSTRUMENTS,
    # Connections
    Instrument("pulsar_proxy_active_connections", "gauge", "", CLUSTER, lambda s: s.connections_open,
               "Open client connections"),
    Instrument("pulsar_proxy_new_connections", "counter", "", CLUSTER, lambda s: s.connections_accepted,
               "Client connections accepted"),
    Instrument("pulsar_proxy_rejected_connections", "counter", "", CLUSTER, lambda s: s.connections_refused,
               "Client connections turned away, because too many are open"),
    Instrument("penstock_proxy_broker_connections", "gauge", "", PROXY, lambda s: s.broker_connections,
               "Open connections to brokers that belong to a client each"),
    Instrument("penstock_proxy_broker_connections_total", "counter", "", OUTCOME, lambda count: count,
               "Clients connected to a broker (made), whose broker could not be reached (failed) or refused them"),
    *CONNECTION_INSTRUMENTS,
    # Traffic
    Instrument("pulsar_proxy_binary_ops", "counter", "", CLUSTER, lambda s: s.reads,
               "Reads from clients and brokers, whose bytes were passed on"),
    Instrument("pulsar_proxy_binary_bytes", "counter", "bytes", CLUSTER,
               lambda s: s.to_brokers_bytes + s.to_clients_bytes,
               "Bytes passed on, in both directions"),
    Instrument("penstock_proxy_passed_bytes_total", "counter", "bytes", DIRECTION, lambda nbytes: nbytes,
               "Bytes passed on, by direction"),
    # Lookups
    _asked("lookup", "Lookups of topics, in lookup mode"),
    _asked("partitions_metadata", "Requests for the partitions of a topic, in lookup mode"),
    _asked("get_topics_of_namespace", "Topic listings"),
    _asked("get_schema", "Requests for schemas, in lookup mode"),
    _turned_away("lookup", "Lookups of topics"),
    _turned_away("partitions_metadata", "Requests for the partitions of a topic"),
    _turned_away("get_topics_of_namespace", "Topic listings"),
    Instrument("penstock_proxy_lookups_pending", "gauge", "", PROXY, lambda s: s.lookups_pending,
               "Requests of lookups in progress"),
    Instrument("penstock_proxy_lookup_connections", "gauge", "", PROXY, lambda s: s.lookup_connections,
               "Open connections to brokers on which lookups are asked"),
    # Memory
    *MEMORY_INSTRUMENTS,
    # Topic listings
    *topic_list_instruments("pulsar_proxy_", LISTINGS),
    *LISTING_INSTRUMENTS,
    # Resource groups
    *GROUP_INSTRUMENTS,
    *SHARING_INSTRUMENTS,
    *REGISTRATION_INSTRUMENTS,
    # Adaptive throttling
    *THROTTLING_INSTRUMENTS,
    # Records
    *RECORD_INSTRUMENTS,
    Instrument("penstock_usage_counted_topics", "gauge", "", USAGE, lambda s: s.usage_topics or 0,
               "Topics whose usage is counted now"),
    Instrument("penstock_usage_left_out_messages_total", "counter", "", USAGE, lambda s: s.usage_left_out,
               "Messages of topics that are only counted in sum, for lack of memory for more topics"),
)
# fmt: on
