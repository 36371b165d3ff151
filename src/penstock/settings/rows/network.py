# SPDX-License-Identifier: Apache-2.0
"""Settings of listeners, TLS, connections and logging. `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.broker.limit_rows import ConnectionLimits
from penstock.core.setting import (
    choice,
    dynamic,
    links,
    listeners,
    names,
    port_number,
    port_or_none,
    row,
    switch,
    whole,
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Network:
    """Listeners."""

    bind_address: str = row("bindAddress", str, "127.0.0.1", "Address to listen on; 0.0.0.0 for all.", flag="--host")
    advertised_address: str = row(
        "advertisedAddress",
        str,
        "<bindAddress, or the host's name where that means every address>",
        "Address that lookups return to clients. If neither this nor advertisedListeners is set, the clients of a "
        "single broker stay on the URL that they came by: it may be behind a mapped port.",
        flag="--advertised-address",
    )
    port: int | None = row(
        "brokerServicePort",
        port_or_none,
        6650,
        "Port for Pulsar clients; 0: a free one. Empty in a file: not opened.",
        flag="--port",
        empty=True,
    )
    tls_port: int = row(
        "brokerServicePortTls",
        port_number,
        6651,
        "Port for clients with TLS; opened if there is a certificate.",
        flag="--tls-port",
    )
    admin_port: int | None = row(
        "webServicePort",
        port_or_none,
        8080,
        "Port for metrics, health and administration; 0: a free one. Empty in a file: not opened.",
        flag="--admin-port",
        empty=True,
    )
    admin_tls_port: int | None = row(
        "webServicePortTls",
        port_number,
        "<none>",
        "Port for metrics, health and administration with TLS, usually 8443; opened if it is set.",
        flag="--admin-tls-port",
    )
    console_clusters: tuple[str, ...] = row(
        "consoleClusters",
        links,
        (),
        "Admin ports of other clusters, whose consoles the head of this one leads to: "
        "`west=https://west.example.com:8443,test=http://10.0.0.9:8080`. Everybody who can open the console sees them.",
    )
    advertised_listeners: tuple[str, ...] = row(
        "advertisedListeners",
        listeners,
        (),
        "Addresses for clients that name a listener, for example "
        "`internal:pulsar://10.0.0.5:6650,external:pulsar://broker.example.com:6650`.",
    )
    internal_listener_name: str | None = row(
        "internalListenerName",
        str,
        "<the first of advertisedListeners>",
        "The one of advertisedListeners for clients that name none; advertisedAddress takes precedence.",
    )
    cluster_name: str = row("clusterName", str, "standalone", "Name of the cluster.")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Tls:
    """TLS."""

    tls_enabled: bool = row(
        "tlsEnabled", switch, False, "Pulsar's old setting. `true` requires a certificate; otherwise it has no effect."
    )
    tls_certificate: Path | None = row(
        "tlsCertificateFilePath", Path, "<none>", "Certificate chain in PEM; enables TLS.", flag="--tls-cert"
    )
    tls_key: Path | None = row(
        "tlsKeyFilePath", Path, "<none>", "Private key of the certificate, in PEM.", flag="--tls-key"
    )
    tls_trust_certs: Path | None = row(
        "tlsTrustCertsFilePath",
        Path,
        "<none>",
        "Certificates, in PEM, of the authorities of clients' certificates.",
        flag="--tls-trust-certs",
    )
    tls_require_client_cert: bool = row(
        "tlsRequireTrustedClientCertOnConnect", switch, False, "Whether TLS clients need a trusted certificate."
    )
    tls_allow_insecure: bool = row(
        "tlsAllowInsecureConnection", switch, False, "Whether untrusted client certificates are accepted."
    )
    tls_protocols: tuple[str, ...] = row(
        "tlsProtocols", names, (), "TLS versions, for example TLSv1.3,TLSv1.2; empty: both of these."
    )
    tls_ciphers: tuple[str, ...] = row(
        "tlsCiphers", names, (), "TLS ciphers, with OpenSSL's or Java's names; empty: the system's default."
    )
    admin_tls_protocols: tuple[str, ...] = row(
        "webServiceTlsProtocols", names, "<tlsProtocols>", "TLS versions of webServicePortTls."
    )
    admin_tls_ciphers: tuple[str, ...] = row(
        "webServiceTlsCiphers", names, "<tlsCiphers>", "TLS ciphers of webServicePortTls."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Connecting(ConnectionLimits):
    """Connections."""

    keep_alive_interval_s: int = row(
        "keepAliveIntervalSeconds",
        whole(1),
        30,
        "A client that sends nothing for this long is pinged, and disconnected after the same time again.",
    )
    connection_liveness_check_timeout_ms: int = row(
        "connectionLivenessCheckTimeoutMillis",
        whole(0),
        5_000,
        "How long an old connection may take to answer a ping when a new one wants its producer or consumer.",
    )
    broker_shutdown_timeout_ms: int = dynamic(
        "brokerShutdownTimeoutMs",
        whole(0, 24 * 3_600_000),
        60_000,
        "How long a graceful stop may take; after that the process exits at once, with status 1. No acknowledged "
        "message is lost.",
    )
    max_http_server_connections: int = row(
        "maxHttpServerConnections",
        whole(1),
        256,
        "Limit of the connections to the admin port; further ones are closed. Pulsar's default is 2048.",
    )
    max_concurrent_http_requests: int = row(
        "maxConcurrentHttpRequests",
        whole(1),
        64,
        "Limit of the concurrent requests to the admin port; further ones get 503. Pulsar's default is 1024.",
    )
    http_max_request_header_bytes: int = row(
        "httpMaxRequestHeaderSize", whole(1_024), 16_384, "Limit of the head of a request to the admin port, in bytes."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Logging:
    """Logging."""

    log_format: str = row(
        "logFormat", choice("text", "json"), "text", "`text` or `json`: one line per event.", flag="--log-format"
    )
    log_level: str = dynamic(
        "logLevel",
        choice("debug", "info", "warning", "error"),
        "info",
        "The lowest level that is logged.",
        flag="--log-level",
    )
