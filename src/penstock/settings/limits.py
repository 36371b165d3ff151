# SPDX-License-Identifier: Apache-2.0
"""Converts settings to the limits of each part of penstock, with its own names and units.

Why: limits are defined beside the code that they limit, which knows nothing of keys and files. Only here the two meet.
Where: app calls these functions at the start; the broker asks `Live` when a setting changes at run time.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.server import HttpLimits
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.broker.limits import BrokerLimits
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.service_urls import ServiceUrls
from penstock.core.setting import of_link, of_listener
from penstock.core.units import GIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.listing_memory import TopicListLimits
from penstock.net.socket_reader import ARENA_BYTES
from penstock.net.tls import TlsOptions
from penstock.settings import sources
from penstock.settings.model import ALIASES, KEYS, Given
from penstock.settings.rows.security import PROVIDER_BASIC, PROVIDER_TLS, PROVIDER_TOKEN
from penstock.storage.limits import LogLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from penstock.settings.model import Settings


# -- converts the security settings for the parts that use them --------------------------------------------------------

_METHODS: Final = {PROVIDER_TOKEN: "token", PROVIDER_TLS: "tls", PROVIDER_BASIC: "basic"}


def access_rules(settings: Settings) -> AccessRules:
    """Return the roles and authorization rules."""
    return AccessRules(
        authorizing=settings.authorization_enabled,
        super_user_roles=frozenset(settings.super_user_roles),
        proxy_roles=frozenset(settings.proxy_roles),
        anonymous_role=settings.anonymous_user_role,
        allow_wildcards=settings.authorization_allow_wildcards_matching,
        authenticate_original=settings.authenticate_original_auth_data,
        refresh_check_ns=settings.authentication_refresh_check_s * NS_PER_S,
    )


def provider_options(settings: Settings) -> ProviderOptions | None:
    """Return how clients authenticate; None without authentication."""
    if not settings.authentication_enabled:
        return None
    return ProviderOptions(
        methods=frozenset(_METHODS[name] for name in settings.authentication_providers),
        token_secret_key=settings.token_secret_key,
        token_public_key=settings.token_public_key,
        token_public_alg=settings.token_public_alg,
        token_auth_claim=settings.token_auth_claim,
        token_audience_claim=settings.token_audience_claim,
        token_audience=settings.token_audience,
        token_clock_skew_s=settings.token_allowed_clock_skew_s,
        basic_users=settings.basic_auth_conf,
    )


def tls_options(settings: Settings) -> TlsOptions | None:
    """Return the options of TLS ports; None without a certificate.

    A certificate that names a role must be trusted: with the TLS provider, `tlsAllowInsecureConnection` has no effect.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    names_roles = settings.authentication_enabled and PROVIDER_TLS in settings.authentication_providers
    return TlsOptions(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        trust=settings.tls_trust_certs,
        require_client_certificate=settings.tls_require_client_cert,
        allow_untrusted=settings.tls_allow_insecure and not names_roles,
        protocols=settings.tls_protocols,
        ciphers=settings.tls_ciphers,
    )


# -- the addresses of advertisedListeners ------------------------------------------------------------------------------


def named_listeners(settings: Settings, number: int = 0) -> dict[str, ServiceUrls]:
    """Return the addresses by listener name. Those of broker `number` have each port plus that number."""
    urls: dict[str, dict[str, str]] = {}
    for item in settings.advertised_listeners:
        name, scheme, url = of_listener(item)
        host, _, port = url.rpartition(":")
        urls.setdefault(name, {})[scheme] = f"{host}:{int(port) + number}"
    return {name: ServiceUrls(by.get("pulsar", ""), by.get("pulsar+ssl")) for name, by in urls.items()}


def unnamed_listener(settings: Settings, number: int = 0) -> ServiceUrls | None:
    """Return the address for clients that name no listener; None for the broker's own address."""
    if settings.internal_listener_name is None or settings.sources["advertisedAddress"] != sources.DEFAULT:
        return None
    return named_listeners(settings, number)[settings.internal_listener_name]


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

    def described(self) -> list[dict[str, object]]:
        """Return every setting with its value and its source."""
        return sources.described(self.settings)

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
        consoles=tuple(map(of_link, settings.console_clusters)),
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
