# SPDX-License-Identifier: Apache-2.0
"""Rules for combinations of settings: errors, and warnings.

Where: `Settings` checks itself with `check` when it is created, at the start and at every change at run time; `sources`
adds the result of `warnings` to its own.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError
from penstock.core.setting import of_listener
from penstock.core.units import KIB
from penstock.settings.rows.security import PROVIDER_BASIC, PROVIDER_TLS, PROVIDER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.settings.model import Settings

# The room Pulsar leaves for commands and metadata around the largest message.
METADATA_BYTES_MAX: Final = 10 * KIB

# A Python or Java client may have this many messages of one producer in flight; a bound below it would stop reading
# in the middle of what an honest client may send before its first receipt.
CLIENT_WINDOW_MAX: Final = 20_000

# What Pulsar's shipped file says of settings that have no effect here.
LOOKAHEAD_DEFAULT: Final = 50_000
TRACKERS_IN_MEMORY: Final = ("InMemoryDelayedDeliveryTrackerFactory", "InMemoryTopicDelayedDeliveryTrackerFactory")


def check(settings: Settings) -> None:
    """Raise ConfigurationError for the first broken rule."""
    _check_ports(settings)
    _check_memory(settings)
    _check_access(settings)
    _check_throttling(settings)


def check_ignored(stated: Mapping[str, str]) -> None:
    """Raise ConfigurationError if something is asked for that has no effect, and that security depends on.

    Args: stated: all that was set, by key; also keys of Pulsar that are not settings.
    """
    switched_on = {name for name, text in stated.items() if text.lower() == "true"}
    of_proxy = bool(stated.get("brokerServiceURL") or stated.get("brokerServiceURLTLS"))
    for name, instead in (
        ("tlsEnabledWithKeyStore", "tlsCertificateFilePath and tlsKeyFilePath"),
        ("brokerClientTlsEnabledWithKeyStore", "brokerClientTrustCertsFilePath"),
    ):
        # Only a proxy is a client of brokers.
        if name in switched_on and (name == "tlsEnabledWithKeyStore" or of_proxy):
            raise ConfigurationError(
                f"{name}=true: Java key stores are not supported; convert yours to PEM "
                f"(openssl pkcs12 -in FILE -nodes), and set {instead}"
            )
    if {"authenticateMetricsEndpoint", "authenticationEnabled"} <= switched_on and not of_proxy:
        raise ConfigurationError(
            "authenticateMetricsEndpoint=true: /metrics of a broker needs no credentials, as in Pulsar by default; "
            "let only Prometheus reach the port, and set it to false"
        )


def warnings(settings: Settings) -> Iterator[str]:
    """Yield warnings about allowed but doubtful settings."""
    if not settings.authentication_enabled and not _is_loopback(settings.bind_address):
        yield (
            f"bindAddress={settings.bind_address} lets every client that reaches this machine publish, consume and "
            f"administer without authentication; set authenticationEnabled=true, or listen on 127.0.0.1"
        )
    if settings.authorization_enabled and not settings.super_user_roles and not is_proxy(settings):
        yield "authorizationEnabled=true without superUserRoles: nobody can create tenants or change this broker"
    if settings.authentication_enabled and not settings.authorization_enabled and not is_proxy(settings):
        yield "authenticationEnabled=true without authorizationEnabled=true: every client with a role may do everything"
    if settings.authentication_enabled and settings.port is not None and not _is_loopback(settings.bind_address):
        yield (
            "clients may send credentials on a port without TLS, where others can read them; "
            "set brokerServicePort= (empty) and webServicePort= to open only the TLS ports"
        )
    yield from _of_proxy(settings)
    yield from _without_effect(settings)


def is_proxy(settings: Settings) -> bool:
    """Whether these are the settings of `penstock proxy`."""
    return bool(settings.upstream_url or settings.upstream_url_tls)


def _of_proxy(settings: Settings) -> Iterator[str]:
    if not is_proxy(settings):
        return
    if settings.authentication_enabled and settings.own_method == "none":
        yield (
            "authenticationEnabled=true without brokerClientAuthenticationPlugin: brokers that authenticate refuse "
            "this proxy; give it credentials of its own"
        )
    if settings.forward_credentials and not settings.authentication_enabled:
        yield (
            "forwardAuthorizationCredentials=true has no effect without authenticationEnabled=true: brokers are shown "
            "only what clients have shown"
        )


def _without_effect(settings: Settings) -> Iterator[str]:
    """Yield warnings for settings of Pulsar that are accepted without effect, if they are not Pulsar's default."""
    if settings.delayed_delivery_lookahead != LOOKAHEAD_DEFAULT:
        yield (
            f"delayedDeliveryFixedDelayDetectionLookahead={settings.delayed_delivery_lookahead} is ignored: the index "
            f"of delayed messages is limited in bytes, by memoryLimitMB"
        )
    if settings.delayed_delivery_tracker.rpartition(".")[2] not in TRACKERS_IN_MEMORY:
        yield (
            f"delayedDeliveryTrackerFactoryClassName={settings.delayed_delivery_tracker} is ignored: there is one "
            f"tracker, which keeps in memory what fits and reads the rest from the log"
        )


def _check_ports(settings: Settings) -> None:
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigurationError("TLS needs both tlsCertificateFilePath and tlsKeyFilePath; give both")
    listeners = [of_listener(item)[0] for item in settings.advertised_listeners]
    if listeners and settings.internal_listener_name not in listeners:
        raise ConfigurationError(
            f"internalListenerName={settings.internal_listener_name} is not in advertisedListeners: "
            f"{', '.join(dict.fromkeys(listeners))}"
        )
    if settings.tls_require_client_cert and settings.tls_trust_certs is None:
        raise ConfigurationError(
            "tlsRequireTrustedClientCertOnConnect=true needs tlsTrustCertsFilePath: the certificates to trust"
        )
    if settings.tls_certificate is not None:
        return
    for wants, key in (
        (settings.tls_enabled, "tlsEnabled=true"),
        (settings.admin_tls_port is not None, f"webServicePortTls={settings.admin_tls_port}"),
        (settings.tls_require_client_cert, "tlsRequireTrustedClientCertOnConnect=true"),
    ):
        if wants:
            raise ConfigurationError(f"{key} needs tlsCertificateFilePath and tlsKeyFilePath; set both")
    if settings.port is None:
        raise ConfigurationError(
            "brokerServicePort is empty, and without tlsCertificateFilePath there is no TLS port either: "
            "no client could connect; set one of them"
        )


def _check_memory(settings: Settings) -> None:
    if settings.frame_bytes_max < settings.max_message_bytes:
        raise ConfigurationError(
            f"socket.request.max.bytes={settings.frame_bytes_max} is below "
            f"maxMessageSize={settings.max_message_bytes}: clients would be disconnected for messages they may send; "
            f"raise the former or lower the latter"
        )
    if 0 < settings.request_bytes_max < settings.frame_bytes_max:
        raise ConfigurationError(
            f"queued.max.request.bytes={settings.request_bytes_max} cannot hold one request of "
            f"socket.request.max.bytes={settings.frame_bytes_max}; raise the former, or set it to -1 for no bound"
        )
    if 0 < settings.requests_max < CLIENT_WINDOW_MAX:
        raise ConfigurationError(
            f"queued.max.requests={settings.requests_max} is less than one producer may have in flight; "
            f"set {CLIENT_WINDOW_MAX} or more, or -1 for no bound"
        )


def _check_throttling(settings: Settings) -> None:
    for what, low, high in (
        ("Memory", settings.adaptive_memory_low, settings.adaptive_memory_high),
        ("Backlog", settings.adaptive_backlog_low, settings.adaptive_backlog_high),
    ):
        if low >= high:
            raise ConfigurationError(
                f"adaptivePublisherThrottling{what}LowWatermarkPct={low} must be below "
                f"adaptivePublisherThrottling{what}HighWatermarkPct={high}"
            )


def _check_access(settings: Settings) -> None:
    if (settings.own_certificate is None) != (settings.own_key is None):
        raise ConfigurationError(
            "a certificate for brokers needs both brokerClientCertificateFilePath and brokerClientKeyFilePath"
        )
    if is_proxy(settings) and settings.own_method == "tls" and settings.own_certificate is None:
        raise ConfigurationError(
            "brokerClientAuthenticationPlugin=tls needs brokerClientCertificateFilePath and brokerClientKeyFilePath"
        )
    if settings.authorization_enabled and not settings.authentication_enabled:
        raise ConfigurationError(
            "authorizationEnabled=true needs authenticationEnabled=true: permissions depend on the client's role"
        )
    if settings.token_audience_claim is not None and settings.token_audience is None:
        raise ConfigurationError(
            f"tokenAudienceClaim={settings.token_audience_claim} needs tokenAudience: the value that it must have"
        )
    if not settings.authentication_enabled:
        return
    if not settings.authentication_providers:
        raise ConfigurationError(
            "authenticationEnabled=true needs authenticationProviders; "
            f"for tokens set authenticationProviders={PROVIDER_TOKEN} and tokenSecretKey"
        )
    trusts = settings.tls_certificate is not None and settings.tls_trust_certs is not None
    for provider, has, wants in (
        (
            PROVIDER_TOKEN,
            settings.token_secret_key is not None or settings.token_public_key is not None,
            "tokenSecretKey or tokenPublicKey",
        ),
        (PROVIDER_BASIC, settings.basic_auth_conf is not None, "basicAuthConf"),
        (PROVIDER_TLS, trusts, "tlsCertificateFilePath, tlsKeyFilePath and tlsTrustCertsFilePath"),
    ):
        if provider in settings.authentication_providers and not has:
            raise ConfigurationError(f"{provider.rpartition('.')[2]} of authenticationProviders needs {wants}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
