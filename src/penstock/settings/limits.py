# SPDX-License-Identifier: Apache-2.0
"""Converts settings to the limits of each part of penstock, with its own names and units.

Why: limits are defined beside the code that they limit, which knows nothing of keys and files. Only here the two meet.
Where: app calls these functions at the start; the broker asks `Live` when a setting changes at run time.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from penstock.admin.server import HttpLimits
from penstock.broker.limits import BrokerLimits
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.units import GIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.socket_reader import ARENA_BYTES
from penstock.net.topic_list_limiter import TopicListLimits
from penstock.settings import sources
from penstock.settings.model import ALIASES, KEYS, Given
from penstock.settings.security import access_rules
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from penstock.settings.model import Settings

log = logging.getLogger(__name__)


class Live:
    """Settings that can be changed at run time: see `penstock.broker.configuration.Keys`."""

    dynamic = tuple(key.name for key in KEYS.values() if key.dynamic)
    aliases = ALIASES

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = broker_limits(settings)

    def values(self) -> Mapping[str, str]:
        """Return every key with its value as in a file; `***` for secrets."""
        return {key.name: self.settings.spelled(key.name) for key in KEYS.values()}

    def check(self, key: str, value: str) -> None:
        """Raise ConfigurationError if this key can have no such value."""
        sources.parse(Given(key, value, sources.ADMIN))

    def changed(self, changes: Mapping[str, str]) -> Live:
        """Return the start's settings with these changes only. Raises ConfigurationError."""
        return Live(sources.changed(self.settings, changes))


def broker_limits(settings: Settings) -> BrokerLimits:
    """Return the broker's limits: settings by field name, and values that are derived or have another unit."""
    budget = settings.budget
    return BrokerLimits(
        **_of_the_same_name(BrokerLimits, settings),
        message_bytes_max=settings.max_message_bytes,
        keep_alive_ns=settings.keep_alive_interval_s * NS_PER_S,
        liveness_check_ns=settings.connection_liveness_check_timeout_ms * NS_PER_MS,
        failover_delay_s=settings.active_consumer_failover_delay_ms / 1000,
        stop_s_max=settings.broker_shutdown_timeout_ms / 1000,
        memory_limit_bytes=budget.limit_bytes,
        memory_rows=budget.rows,
        policies=_policy_defaults(settings),
        access=access_rules(settings),
        listings=topic_list_limits(settings),
        delete_inactive_with_messages=settings.sources["brokerDeleteInactiveTopicsMode"] != sources.DEFAULT,
    )


def log_limits(settings: Settings) -> LogLimits:
    """Return the log's limits.

    A run is at most one large frame, or an arena full. Segments grow with large messages.
    """
    run_bytes_max = settings.frame_bytes_max + ARENA_BYTES
    return LogLimits(
        run_bytes_max=run_bytes_max,
        segment_bytes=max(64 * MIB, 4 * run_bytes_max),
        relaxed=settings.relaxed,
        skip_missing=settings.skip_missing,
    )


def http_limits(settings: Settings, descriptors: int) -> HttpLimits:
    """Return the admin port's limits. Its connections may use an eighth of the file descriptors."""
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


def topic_list_limits(settings: Settings) -> TopicListLimits:
    """Return the limits of topic listings."""
    return TopicListLimits(
        heap_bytes_max=settings.budget.rows["listings-heap"],
        heap_timeout_ns=settings.listings_heap_timeout_ms * NS_PER_MS,
        heap_queue_max=settings.listings_heap_queue_max,
        direct_bytes_max=settings.budget.rows["listings-direct"],
        direct_timeout_ns=settings.listings_direct_timeout_ms * NS_PER_MS,
        direct_queue_max=settings.listings_direct_queue_max,
    )


def _policy_defaults(settings: Settings) -> PolicyDefaults:
    """The defaults of policies. A limit in GiB, as older files have it, counts where there is none in bytes."""
    defaults = PolicyDefaults(**_of_the_same_name(PolicyDefaults, settings))
    nbytes, gigabytes = defaults.backlog_quota_default_limit_bytes, defaults.backlog_quota_default_limit_gb
    return (
        replace(defaults, backlog_quota_default_limit_bytes=int(gigabytes * GIB))
        if nbytes <= 0 < gigabytes
        else defaults
    )


def _of_the_same_name(limits: type[DataclassInstance], settings: Settings) -> dict[str, Any]:
    """The settings that a part declares as rows of its own, or calls as they are called here."""
    return {one.name: getattr(settings, one.name) for one in fields(limits) if one.name in KEYS}
