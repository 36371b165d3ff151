# SPDX-License-Identifier: Apache-2.0
"""Rows on where to listen and with whom to speak. `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.broker.limit_rows import ConnectionLimits
from penstock.core.setting import choice, listeners, names, port_number, port_or_none, row, switch, whole


@dataclass(frozen=True, kw_only=True)
class Network:
    """Where to listen."""

    bind_address: str = row("bindAddress", str, "127.0.0.1", "Address to listen on; 0.0.0.0 for all.", flag="--host")
    advertised_address: str = row(
        "advertisedAddress",
        str,
        "<bindAddress, or the host's name where that means every address>",
        "Address that lookups tell clients to connect to.",
        flag="--advertised-address",
    )
    port: int | None = row(
        "brokerServicePort",
        port_or_none,
        6650,
        "Port for Pulsar clients; 0 takes a free one. Empty in a file: not opened.",
        flag="--port",
        empty=True,
    )
    tls_port: int = row(
        "brokerServicePortTls",
        port_number,
        6651,
        "Port for clients with TLS; opened when a certificate is given.",
        flag="--tls-port",
    )
    admin_port: int | None = row(
        "webServicePort",
        port_or_none,
        8080,
        "Port for metrics, health and administration; 0 takes a free one. Empty in a file: not opened.",
        flag="--admin-port",
        empty=True,
    )
    admin_tls_port: int | None = row(
        "webServicePortTls",
        port_number,
        "<none>",
        "Port for metrics, health and administration with TLS, customarily 8443; opened when it is set.",
        flag="--admin-tls-port",
    )
    advertised_listeners: tuple[str, ...] = row(
        "advertisedListeners",
        listeners,
        (),
        "Addresses for clients that ask for a listener by its name, like "
        "`internal:pulsar://10.0.0.5:6650,external:pulsar://broker.example.com:6650`.",
    )
    internal_listener_name: str | None = row(
        "internalListenerName",
        str,
        "<the first of advertisedListeners>",
        "The one of advertisedListeners that clients are told who name none; advertisedAddress counts before it.",
    )
    cluster_name: str = row("clusterName", str, "standalone", "Name of the cluster, as clients and names show it.")


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS."""

    tls_enabled: bool = row(
        "tlsEnabled", switch, False, "Pulsar's old switch. True wants a certificate; the ports decide otherwise."
    )
    tls_certificate: Path | None = row(
        "tlsCertificateFilePath", Path, "<none>", "Certificate chain in PEM; switches TLS on.", flag="--tls-cert"
    )
    tls_key: Path | None = row(
        "tlsKeyFilePath", Path, "<none>", "Private key of the certificate, in PEM.", flag="--tls-key"
    )
    tls_trust_certs: Path | None = row(
        "tlsTrustCertsFilePath",
        Path,
        "<none>",
        "Certificates in PEM of those who sign clients' certificates.",
        flag="--tls-trust-certs",
    )
    tls_require_client_cert: bool = row(
        "tlsRequireTrustedClientCertOnConnect",
        switch,
        False,
        "Whether a TLS client without a certificate that we trust is turned away.",
    )
    tls_allow_insecure: bool = row(
        "tlsAllowInsecureConnection", switch, False, "Whether a client's certificate that we do not trust is let pass."
    )
    tls_protocols: tuple[str, ...] = row(
        "tlsProtocols", names, (), "TLS versions to speak, like TLSv1.3,TLSv1.2; empty: both of these."
    )
    tls_ciphers: tuple[str, ...] = row(
        "tlsCiphers", names, (), "Ciphers to accept, in OpenSSL's or Java's spelling; empty: the system's choice."
    )
    admin_tls_protocols: tuple[str, ...] = row(
        "webServiceTlsProtocols", names, "<tlsProtocols>", "TLS versions to speak at webServicePortTls."
    )
    admin_tls_ciphers: tuple[str, ...] = row(
        "webServiceTlsCiphers", names, "<tlsCiphers>", "Ciphers to accept at webServicePortTls."
    )


@dataclass(frozen=True, kw_only=True)
class Connecting(ConnectionLimits):
    """Connections."""

    keep_alive_interval_s: int = row(
        "keepAliveIntervalSeconds",
        whole(1),
        30,
        "A client silent for this long is pinged, and after as long again closed.",
    )
    connection_liveness_check_timeout_ms: int = row(
        "connectionLivenessCheckTimeoutMillis",
        whole(0),
        5_000,
        "How long an old connection may take to show it lives, when a new one wants its producer or consumer.",
    )
    broker_shutdown_timeout_ms: int = row(
        "brokerShutdownTimeoutMs",
        whole(0),
        60_000,
        "How long an orderly stop may take; after that the process ends as it is, with status 1. Nothing that was "
        "acknowledged is lost.",
        dynamic=True,
    )
    max_http_server_connections: int = row(
        "maxHttpServerConnections",
        whole(1),
        256,
        "Connections to the admin port at once; more are closed. Pulsar's default is 2048.",
    )
    max_concurrent_http_requests: int = row(
        "maxConcurrentHttpRequests",
        whole(1),
        64,
        "Requests of the admin port at work at once; more are answered with 503. Pulsar's default is 1024.",
    )
    http_max_request_header_bytes: int = row(
        "httpMaxRequestHeaderSize", whole(1_024), 16_384, "Bytes of the head of a request to the admin port."
    )


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Logging."""

    log_format: str = row(
        "logFormat",
        choice("text", "json"),
        "text",
        "`text` for people, `json` for machines: one line an event.",
        flag="--log-format",
    )
    log_level: str = row(
        "logLevel",
        choice("debug", "info", "warning", "error"),
        "info",
        "The least serious event that is logged.",
        flag="--log-level",
        dynamic=True,
    )
