# SPDX-License-Identifier: Apache-2.0
"""The panels of the dashboards in `ops/dashboards`, with their queries.

Where: `dashboards` makes Grafana's JSON of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTING: Final = "pulsar_broker_topic_list_"
_PROXY: Final = "pulsar_proxy_"
_PROXY_LISTING: Final = "pulsar_proxy_topic_list_"
_THROTTLE: Final = "pulsar_broker_adaptive_throttle_"
_TOPIC_THROTTLE: Final = "pulsar_broker_topic_adaptive_throttle_"
_GROUP: Final = "penstock_resource_group_"
_EVALUATED: Final = f"{_THROTTLE}controller_last_evaluation_timestamp"
_LATENESS: Final = "penstock_delayed_lateness_seconds_total"


@dataclass(frozen=True)
class Panel:
    """One panel: Grafana's name of its unit, what it means, and queries by the legend of their series."""

    title: str
    unit: str
    text: str
    queries: Mapping[str, str]


@dataclass(frozen=True)
class Dashboard:
    """One file."""

    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, labels: str = "") -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _quantile(quantile: float, metric: str, labels: str = "") -> str:
    """The quantile of a histogram, by instance and these labels."""
    return f"histogram_quantile({quantile}, sum by (instance, {labels}le) ({_rate(f'{metric}_bucket')}))"


def _part(owner: str = "") -> str:
    """The part in use of rows of the memory budget."""
    return f"penstock_memory_used_bytes{{{owner}}} / (penstock_memory_budget_bytes{{{owner}}} > 0)"


def _quota(of: str) -> str:
    """The quota of each resource group; none if it has no limit."""
    return f"max by (resource_group, traffic) ({_GROUP}quota_{of}{{}} >= 0)"


def _largest(query: str) -> str:
    """At most ten series: topics may be thousands."""
    return f"topk(10, {query})"


DASHBOARDS: Final[Mapping[str, Dashboard]] = {
    "broker": Dashboard(
        "penstock: broker",
        (
            Panel(
                "Health",
                "bool",
                "Degraded: a part of the log is damaged or missing; /healthz names it.",
                {
                    "{{instance}} healthy": "penstock_healthy{}",
                    "{{instance}} degraded": "penstock_degraded{}",
                    "{{instance}} log read-only": "penstock_log_read_only{}",
                    "{{instance}} log stalled": "penstock_log_stalled{}",
                },
            ),
            Panel(
                "Publish latency",
                "s",
                "From reading an entry to its receipt: half of them at most, and all but one in a hundred.",
                {
                    "{{instance}} {{namespace}} p50": _largest(
                        _quantile(0.5, "penstock_publish_seconds", "namespace, ")
                    ),
                    "{{instance}} {{namespace}} p99": _largest(
                        _quantile(0.99, "penstock_publish_seconds", "namespace, ")
                    ),
                },
            ),
            Panel(
                "Dispatch wait",
                "s",
                "From when an entry is durable until it is sent: half of them at most, and all but one in a hundred.",
                {
                    "{{instance}} {{namespace}} p50": _largest(
                        _quantile(0.5, "penstock_dispatch_wait_seconds", "namespace, ")
                    ),
                    "{{instance}} {{namespace}} p99": _largest(
                        _quantile(0.99, "penstock_dispatch_wait_seconds", "namespace, ")
                    ),
                },
            ),
            Panel(
                "Messages",
                "cps",
                "Messages per second that were published and delivered.",
                {
                    "{{instance}} in": _rate("pulsar_broker_in_messages_total"),
                    "{{instance}} out": _rate("pulsar_broker_out_messages_total"),
                },
            ),
            Panel(
                "Bytes",
                "Bps",
                "Bytes per second that were published and delivered.",
                {
                    "{{instance}} in": _rate("pulsar_broker_in_bytes_total"),
                    "{{instance}} out": _rate("pulsar_broker_out_bytes_total"),
                },
            ),
            Panel(
                "Backlog",
                "short",
                "Entries that are not acknowledged, over all subscriptions.",
                {
                    "{{instance}}": "pulsar_broker_msg_backlog{}",
                },
            ),
            Panel(
                "Connections",
                "short",
                "Open connections, and those that are not read, by reason.",
                {
                    "{{instance}} open": "pulsar_active_connections{}",
                    "{{instance}} muted: {{reason}}": "penstock_connections_muted{}",
                },
            ),
            Panel(
                "What waits",
                "short",
                "Producers, consumers, subscriptions and clients that wait, by the reasons of `penstock why`.",
                {
                    "{{instance}} {{reason}}": "penstock_holds{}",
                },
            ),
            Panel(
                "Memory of the process",
                "bytes",
                "Resident memory, and requests that were not answered yet.",
                {
                    "{{instance}} resident": "process_resident_memory_bytes{}",
                    "{{instance}} requests": "MemoryPoolUsed{}",
                },
            ),
            Panel(
                "Memory budget",
                "percentunit",
                "The part of each row of the memory budget that is in use.",
                {
                    "{{instance}} {{owner}}": _part(),
                },
            ),
            Panel(
                "Disk",
                "s",
                "How long a sync takes, half of them at most and all but one in a hundred. Receipts wait for one.",
                {
                    "{{instance}} p50": _quantile(0.5, "penstock_log_sync_seconds"),
                    "{{instance}} p99": _quantile(0.99, "penstock_log_sync_seconds"),
                },
            ),
            Panel(
                "Stored",
                "bytes",
                "Size of the sealed segments, and of the entries that are not trimmed.",
                {
                    "{{instance}} segments": "penstock_log_retained_bytes{}",
                    "{{instance}} entries": "pulsar_broker_storage_size{}",
                },
            ),
            Panel(
                "Disk in use",
                "percentunit",
                "The part of the disk of the data directory that is in use, by anybody.",
                {
                    "{{instance}}": "1 - penstock_disk_free_bytes{} / penstock_disk_size_bytes{}",
                },
            ),
            Panel(
                "Processor",
                "percentunit",
                "Cores in use, by all threads. The event loop has one.",
                {
                    "{{instance}}": _rate("process_cpu_seconds_total"),
                },
            ),
            Panel(
                "Long turns of the event loop",
                "cps",
                "Turns per second that took longer; others wait meanwhile.",
                {
                    "{{instance}} > {{longer_than_ms}} ms": _rate("penstock_loop_long_turns_total"),
                },
            ),
        ),
    ),
    "quotas": Dashboard(
        "penstock: tenants and quotas",
        (
            Panel(
                "Published by tenant",
                "Bps",
                "Bytes per second.",
                {
                    "{{tenant}}": "sum by (tenant) (label_replace("
                    f'{_rate("pulsar_in_bytes_total")}, "tenant", "$1", "namespace", "([^/]+)/.*"))',
                },
            ),
            Panel(
                "Backlog by namespace",
                "short",
                "Entries that are not acknowledged, of the ten largest.",
                {
                    "{{namespace}}": _largest("sum by (namespace) (pulsar_msg_backlog{})"),
                },
            ),
            Panel(
                "Messages of resource groups",
                "cps",
                "What passed the limit on all brokers, and the quota if there is one.",
                {
                    "{{ResourceGroup}} {{MonitoringClass}}": "sum by (ResourceGroup, MonitoringClass) "
                    f"({_rate('pulsar_resource_group_messages_used')})",
                    "{{resource_group}} {{traffic}} quota": _quota("messages"),
                },
            ),
            Panel(
                "Bytes of resource groups",
                "Bps",
                "What passed the limit on all brokers, and the quota if there is one.",
                {
                    "{{ResourceGroup}} {{MonitoringClass}}": "sum by (ResourceGroup, MonitoringClass) "
                    f"({_rate('pulsar_resource_group_bytes_used')})",
                    "{{resource_group}} {{traffic}} quota": _quota("bytes"),
                },
            ),
            Panel(
                "Shares of brokers",
                "cps",
                "Messages per second of each broker. Shares of a group add up to its quota.",
                {
                    "{{resource_group}} {{traffic}} {{instance}}": f"{_GROUP}share_messages{{}} >= 0",
                },
            ),
            Panel(
                "Reported by other brokers",
                "cps",
                "Messages per second that they want to pass.",
                {
                    "{{resource_group}} {{traffic}} {{remote_broker}} to {{instance}}": f"{_GROUP}remote_messages{{}}",
                },
            ),
            Panel(
                "Held back by groups",
                "percentunit",
                "Part of the time in which something waited for the group.",
                {
                    "{{resource_group}} {{traffic}} {{instance}}": _rate(f"{_GROUP}throttled_seconds_total"),
                },
            ),
            Panel(
                "Messages held for groups",
                "short",
                "Received, and waiting in request memory.",
                {
                    "{{resource_group}} {{traffic}} {{instance}}": f"{_GROUP}held_messages{{}}",
                },
            ),
            Panel(
                "Usage reports",
                "cps",
                "Reports per second, by what became of them.",
                {
                    "{{instance}} {{outcome}}": _rate("penstock_usage_reports_total"),
                },
            ),
            Panel(
                "Static rate limits",
                "cps",
                "How often per second publishers were throttled by a rate limit of the topic.",
                {
                    "{{topic}}": _largest(f"sum by (topic) ({_rate('pulsar_publish_rate_limit_times')})"),
                },
            ),
        ),
    ),
    "delayed": Dashboard(
        "penstock: delayed messages",
        (
            Panel(
                "Waiting",
                "short",
                "Delayed entries that are not due, in the subscription of a topic that has most.",
                {
                    "{{topic}}": _largest("max by (topic) (pulsar_subscription_delayed{})"),
                },
            ),
            Panel(
                "Delivered",
                "cps",
                "Delayed messages per second that were due and delivered.",
                {
                    "{{topic}}": _largest(f"sum by (topic) ({_rate('penstock_delayed_delivered_total')})"),
                },
            ),
            Panel(
                "Lateness",
                "s",
                "From the deliver time to delivery, on average. Waiting for consumers counts.",
                {
                    "{{topic}}": f"sum by (topic) ({_rate(_LATENESS)}) / "
                    f"(sum by (topic) ({_rate('penstock_delayed_delivered_total')}) > 0)",
                },
            ),
            Panel(
                "Longest lateness",
                "s",
                "Since the topic was loaded.",
                {
                    "{{topic}}": _largest("max by (topic) (penstock_delayed_lateness_max_seconds{})"),
                },
            ),
            Panel(
                "Next delivery",
                "s",
                "Time until the first delayed message is due.",
                {
                    "{{topic}}": "min by (topic) ((penstock_delayed_next_delivery_timestamp{} > 0) / 1000) - time()",
                },
            ),
            Panel(
                "Memory of the index",
                "percentunit",
                "Part of its memory that is in use.",
                {
                    "{{instance}}": _part('owner="delayed-index"'),
                },
            ),
            Panel(
                "Index by topic",
                "bytes",
                "Memory of the ten largest.",
                {
                    "{{topic}}": _largest("sum by (topic) (pulsar_delayed_message_index_size_bytes{})"),
                },
            ),
            Panel(
                "On disk",
                "short",
                "Upper bound of the delayed messages that did not fit the memory of the index.",
                {
                    "{{topic}}": _largest("sum by (topic) (penstock_delayed_on_disk{})"),
                },
            ),
        ),
    ),
    "throttling": Dashboard(
        "penstock: adaptive throttling",
        (
            Panel(
                "Pressure",
                "percentunit",
                "0: below the low watermark; 1: at the high one.",
                {
                    "{{instance}} memory": f"{_THROTTLE}memory_pressure{{}}",
                    "{{instance}} disk": "penstock_adaptive_throttle_queueing_pressure{}",
                },
            ),
            Panel(
                "Throttled topics",
                "short",
                "In observe-only mode, topics are only observed, and nothing is slowed.",
                {
                    "{{instance}} throttled": f"{_THROTTLE}active_topic_count{{}}",
                    "{{instance}} observed": "penstock_adaptive_throttle_observed_topics{}",
                },
            ),
            Panel(
                "Activations",
                "short",
                "How often a topic began to be throttled, in the last ten minutes.",
                {
                    "{{instance}}": f"increase({_THROTTLE}activation_count{{}}[10m])",
                },
            ),
            Panel(
                "Memory in use",
                "bytes",
                "As the throttle sees it, with the limit.",
                {
                    "{{instance}} used": "penstock_adaptive_throttle_memory_used_bytes{}",
                    "{{instance}} limit": "penstock_adaptive_throttle_memory_limit_bytes{}",
                },
            ),
            Panel(
                "Memory by owner",
                "bytes",
                "What rows of the memory budget account for.",
                {
                    "{{instance}} {{owner}}": "penstock_adaptive_throttle_memory_owner_bytes{}",
                },
            ),
            Panel(
                "Reduction by topic",
                "percentunit",
                "The part of the natural rate that is taken away. Needs metrics per topic.",
                {
                    "{{topic}}": _largest(f"{_TOPIC_THROTTLE}rate_reduction_ratio{{}}"),
                },
            ),
            Panel(
                "Rates by topic",
                "cps",
                "Messages per second, without throttling and allowed now. Needs metrics per topic.",
                {
                    "{{topic}} natural": _largest(f"{_TOPIC_THROTTLE}natural_publish_rate{{}}"),
                    "{{topic}} allowed": _largest(f"{_TOPIC_THROTTLE}effective_publish_rate{{}}"),
                },
            ),
            Panel(
                "Backlog pressure by topic",
                "percentunit",
                "Needs metrics per topic, and a backlog quota.",
                {
                    "{{topic}}": _largest(f"{_TOPIC_THROTTLE}backlog_pressure{{}}"),
                },
            ),
            Panel(
                "Age of the last evaluation",
                "s",
                "It should stay below three intervals.",
                {
                    "{{instance}}": f"timestamp({_EVALUATED}{{}}) - {_EVALUATED}{{}} / 1000",
                    "{{instance}} interval": "penstock_adaptive_throttle_interval_seconds{}",
                },
            ),
            Panel(
                "Duration of an evaluation",
                "ms",
                "How long it used the event loop.",
                {
                    "{{instance}}": f"{_THROTTLE}controller_evaluation_duration{{}}",
                },
            ),
            Panel(
                "Failed evaluations",
                "short",
                "Since the start. The log says why.",
                {
                    "{{instance}}": f"{_THROTTLE}controller_evaluation_failure_count{{}}",
                },
            ),
        ),
    ),
    "topic-listing": Dashboard(
        "penstock: topic listing",
        (
            *(
                panel
                for kind, what in (("heap", "listings that are being created"), ("direct", "listings that are sent"))
                for panel in (
                    Panel(
                        f"Memory: {kind}",
                        "bytes",
                        f"Memory of {what}, and its limit.",
                        {
                            "{{instance}} used": f"{_LISTING}{kind}_memory_used_bytes{{}}",
                            "{{instance}} limit": f"{_LISTING}{kind}_memory_limit_bytes{{}} > 0",
                        },
                    ),
                    Panel(
                        f"Waiting: {kind}",
                        "short",
                        f"Requests that wait for memory of {what}.",
                        {
                            "{{instance}}": f"{_LISTING}{kind}_queue_size{{}}",
                        },
                    ),
                    Panel(
                        f"Waiting time: {kind}",
                        "ms",
                        "Quantiles of the last four to five minutes.",
                        {
                            "{{instance}} {{quantile}}": f'{_LISTING}{kind}_wait_time_ms{{quantile=~"0.5|0.99"}}',
                        },
                    ),
                    Panel(
                        f"Timeouts: {kind}",
                        "cps",
                        "Requests per second that waited in vain.",
                        {
                            "{{instance}}": _rate(f"{_LISTING}{kind}_timeout_total"),
                        },
                    ),
                )
            ),
            Panel(
                "Refused",
                "cps",
                "Requests per second that were refused or cancelled, by reason.",
                {
                    "{{instance}} {{memory}} {{reason}}": _rate("penstock_topic_list_refused_total"),
                },
            ),
            Panel(
                "In progress",
                "short",
                "Lookups and listings.",
                {
                    "{{instance}}": "pulsar_broker_lookup_pending_requests{}",
                },
            ),
        ),
    ),
    "proxy": Dashboard(
        "penstock: proxy",
        (
            Panel(
                "Connections",
                "short",
                "Open connections of clients, and those to brokers that belong to a client each.",
                {
                    "{{instance}} clients": f"{_PROXY}active_connections{{}}",
                    "{{instance}} brokers": "penstock_proxy_broker_connections{}",
                },
            ),
            Panel(
                "New connections",
                "cps",
                "Connections of clients per second, and those turned away because too many are open.",
                {
                    "{{instance}} accepted": _rate(f"{_PROXY}new_connections"),
                    "{{instance}} turned away": _rate(f"{_PROXY}rejected_connections"),
                },
            ),
            Panel(
                "Connected to brokers",
                "cps",
                "Clients per second that were connected to a broker, and whose broker was not reached or refused.",
                {
                    "{{instance}} {{outcome}}": _rate("penstock_proxy_broker_connections_total"),
                },
            ),
            Panel(
                "Traffic",
                "Bps",
                "Bytes per second that were passed on.",
                {
                    "{{instance}} {{direction}}": _rate("penstock_proxy_passed_bytes_total"),
                    "{{instance}} both": _rate(f"{_PROXY}binary_bytes"),
                },
            ),
            Panel(
                "Reads",
                "cps",
                "Reads per second from clients and brokers; many small ones cost most.",
                {
                    "{{instance}}": _rate(f"{_PROXY}binary_ops"),
                },
            ),
            Panel(
                "Lookups",
                "cps",
                "Requests per second that the proxy itself answers, after asking a broker.",
                {
                    "{{instance}} topics": _rate(f"{_PROXY}lookup_requests"),
                    "{{instance}} partitions": _rate(f"{_PROXY}partitions_metadata_requests"),
                    "{{instance}} listings": _rate(f"{_PROXY}get_topics_of_namespace_requests"),
                    "{{instance}} schemas": _rate(f"{_PROXY}get_schema_requests"),
                },
            ),
            Panel(
                "Lookups refused",
                "cps",
                "Requests per second that the proxy itself refused, for lack of memory or of connections to brokers.",
                {
                    "{{instance}} topics": _rate(f"{_PROXY}rejected_lookup_requests"),
                    "{{instance}} partitions": _rate(f"{_PROXY}rejected_partitions_metadata_requests"),
                    "{{instance}} listings": _rate(f"{_PROXY}rejected_get_topics_of_namespace_requests"),
                },
            ),
            Panel(
                "Lookups in progress",
                "short",
                "Requests in progress, and connections to brokers on which they are asked.",
                {
                    "{{instance}} requests": "penstock_proxy_lookups_pending{}",
                    "{{instance}} connections": "penstock_proxy_lookup_connections{}",
                },
            ),
            *(
                panel
                for kind, what in (
                    ("heap", "listings that are read from brokers"),
                    ("direct", "listings that are sent"),
                )
                for panel in (
                    Panel(
                        f"Topic listings: {kind} memory",
                        "bytes",
                        f"Memory of {what}, and its limit.",
                        {
                            "{{instance}} used": f"{_PROXY_LISTING}{kind}_memory_used_bytes{{}}",
                            "{{instance}} limit": f"{_PROXY_LISTING}{kind}_memory_limit_bytes{{}} > 0",
                        },
                    ),
                    Panel(
                        f"Topic listings: waits for {kind} memory",
                        "short",
                        f"Requests that wait for memory of {what}, and per second those that waited in vain.",
                        {
                            "{{instance}} waiting": f"{_PROXY_LISTING}{kind}_queue_size{{}}",
                            "{{instance}} in vain": _rate(f"{_PROXY_LISTING}{kind}_timeout_total"),
                        },
                    ),
                )
            ),
        ),
    ),
}
