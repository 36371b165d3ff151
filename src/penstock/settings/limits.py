# SPDX-License-Identifier: Apache-2.0
"""From settings to what each part of penstock is told, in its own words and units.

Why: limits are defined beside the code that they limit, which knows nothing of keys and files. Here, and only here,
the two meet.
Where: app calls these at the start; `Live` is what the broker asks when a setting changes while it runs.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from penstock.admin.server import HttpLimits
from penstock.broker.broker import ServiceUrls
from penstock.broker.limits import BrokerLimits
from penstock.broker.policies.policy_values import PolicyDefaults
from penstock.core.units import GIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.connection import ARENA_BYTES
from penstock.net.topic_list_limiter import TopicListLimits
from penstock.settings import sources
from penstock.settings.key import of_listener
from penstock.settings.model import KEYS
from penstock.settings.security import access_rules
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings.model import Settings

log = logging.getLogger(__name__)

_DYNAMIC: Final = tuple(key.name for key in KEYS.values() if key.dynamic)


class Live:
    """Settings that can be changed while the broker runs: see `penstock.broker.configuration.Keys`."""

    dynamic = _DYNAMIC

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = broker_limits(settings)

    def values(self) -> Mapping[str, str]:
        """Every key with its value as a file would have it; `***` for secrets."""
        return {key.name: self.settings.spelled(key.name) for key in KEYS.values()}

    def changed(self, changes: Mapping[str, str]) -> Live:
        """The settings of the start with these changes, and no others. Raises ConfigurationError."""
        return Live(sources.changed(self.settings, changes))


def broker_limits(settings: Settings) -> BrokerLimits:
    """The broker's part."""
    return BrokerLimits(
        message_bytes_max=settings.max_message_bytes,
        keep_alive_ns=settings.keep_alive_interval_s * NS_PER_S,
        liveness_check_ns=settings.connection_liveness_check_timeout_ms * NS_PER_MS,
        failover_delay_s=settings.active_consumer_failover_delay_ms / 1000,
        round_robin_entries_max=settings.dispatcher_max_round_robin_batch_size,
        tail_cache_bytes=settings.budget.tail_cache_bytes,
        cluster_name=settings.cluster_name,
        commands_bytes=settings.budget.commands_bytes,
        sessions_bytes=settings.budget.sessions_bytes,
        http_bytes=settings.budget.http_bytes,
        dispatch_bytes=settings.budget.dispatch_bytes,
        policies=_policy_defaults(settings),
        access=access_rules(settings),
        connections_max=settings.broker_max_connections,
        connections_per_address_max=settings.broker_max_connections_per_ip,
        persistent_topics=settings.enable_persistent_topics,
        non_persistent_topics=settings.enable_non_persistent_topics,
        partitions_max=settings.max_num_partitions_per_partitioned_topic,
        delete_inactive_with_messages=settings.sources["brokerDeleteInactiveTopicsMode"] != sources.DEFAULT,
        delete_inactive_partitioned=settings.delete_inactive_partitioned_metadata_enabled,
        force_delete_tenant=settings.force_delete_tenant_allowed,
        force_delete_namespace=settings.force_delete_namespace_allowed,
        namespace_bundles=settings.default_number_of_namespace_bundles,
        topic_list_watchers=settings.enable_topic_list_watcher,
        evaluate_patterns=settings.enable_subscription_pattern_evaluation,
        pattern_length_max=settings.subscription_pattern_length_max,
        lookups_max=settings.max_concurrent_lookups,
        topic_loads_max=settings.max_concurrent_topic_loads,
        listings=_topic_list_limits(settings),
        strict_subscription_names=settings.strictly_verify_subscription_name,
        batch_index_acks=settings.ack_at_batch_index_level_enabled,
        key_shared_consistent_hashing=settings.key_shared_use_consistent_hashing,
        key_shared_points=settings.key_shared_replica_points,
        delayed_strict=settings.delayed_delivery_strict,
        delayed_index_bytes=settings.budget.delayed_bytes,
        deduplication_producers_max=settings.deduplication_producers_max,
        deduplication_entries_interval=settings.deduplication_entries_interval,
        deduplication_snapshot_s=settings.deduplication_snapshot_interval_s,
        deduplication_snapshot_check_s=settings.deduplication_snapshot_frequency_s,
        deduplication_inactivity_min=settings.deduplication_producer_inactivity_min,
        compaction_check_s=settings.compaction_monitor_interval_s,
        schema_bytes_max=settings.max_schema_bytes,
        stop_s_max=settings.broker_shutdown_timeout_ms / 1000,
        status_file=settings.status_file,
    )


def named_listeners(settings: Settings) -> dict[str, ServiceUrls]:
    """Addresses by the names that clients may ask for."""
    urls: dict[str, dict[str, str]] = {}
    for item in settings.advertised_listeners:
        name, scheme, url = of_listener(item)
        urls.setdefault(name, {})[scheme] = url
    return {name: ServiceUrls(by.get("pulsar", ""), by.get("pulsar+ssl")) for name, by in urls.items()}


def unnamed_listener(settings: Settings) -> ServiceUrls | None:
    """The one of `named_listeners` for clients that ask for none; None: the broker's own address is."""
    if settings.internal_listener_name is None or settings.sources["advertisedAddress"] != sources.DEFAULT:
        return None
    return named_listeners(settings)[settings.internal_listener_name]


def log_limits(settings: Settings) -> LogLimits:
    """A run is what one read brings: at most one large frame, or an arena full. Segments grow with large messages."""
    run_bytes_max = settings.frame_bytes_max + ARENA_BYTES
    return LogLimits(
        run_bytes_max=run_bytes_max,
        segment_bytes=max(64 * MIB, 4 * run_bytes_max),
        relaxed=settings.relaxed,
        skip_missing=settings.skip_missing,
    )


def http_limits(settings: Settings, descriptors: int) -> HttpLimits:
    """An eighth of the descriptors is the most that callers of the admin port may hold."""
    connections_max = min(settings.max_http_server_connections, descriptors // 8)
    if connections_max < settings.max_http_server_connections:
        log.warning(
            "maxHttpServerConnections=%d is lowered to %d: an eighth of the %d files that this process may open",
            settings.max_http_server_connections,
            connections_max,
            descriptors,
        )
    return HttpLimits(
        connections_max=connections_max,
        requests_max=settings.max_concurrent_http_requests,
        head_bytes_max=settings.http_max_request_header_bytes,
        entry_bytes_max=settings.frame_bytes_max,
    )


def _topic_list_limits(settings: Settings) -> TopicListLimits:
    return TopicListLimits(
        heap_bytes_max=settings.budget.listings_heap_bytes,
        heap_timeout_ns=settings.listings_heap_timeout_ms * NS_PER_MS,
        heap_queue_max=settings.listings_heap_queue_max,
        direct_bytes_max=settings.budget.listings_direct_bytes,
        direct_timeout_ns=settings.listings_direct_timeout_ms * NS_PER_MS,
        direct_queue_max=settings.listings_direct_queue_max,
    )


def _policy_defaults(settings: Settings) -> PolicyDefaults:
    """Fields are named after keys: what `brokerDeduplicationEnabled` says goes to `broker_deduplication_enabled`."""
    values = {key.snake_case: getattr(settings, name) for name, key in KEYS.items()}
    # A limit in GiB, as older files have it, counts where there is none in bytes.
    if settings.backlog_quota_bytes <= 0 < settings.backlog_quota_gb:
        values["backlog_quota_default_limit_bytes"] = int(settings.backlog_quota_gb * GIB)
    return PolicyDefaults(**{one.name: values[one.name] for one in fields(PolicyDefaults)})
