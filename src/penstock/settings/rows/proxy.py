# SPDX-License-Identifier: Apache-2.0
"""Settings of `penstock proxy` only, with the names of Pulsar's proxy. `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.core.setting import authentication_method, choice, names, row, switch, whole
from penstock.core.system_topics import PROXY_DECISION_TOPIC, PROXY_USAGE_TOPIC


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Proxying:
    """Proxy."""

    upstream_url: str | None = row(
        "brokerServiceURL",
        str,
        "<none>",
        "Service URL of the cluster behind the proxy: pulsar://host:6650, or several hosts with commas between them.",
        flag="--upstream",
    )
    upstream_url_tls: str | None = row(
        "brokerServiceURLTLS", str, "<none>", "The same for tlsEnabledWithBroker: pulsar+ssl://host:6651."
    )
    upstream_admin_url: str | None = row(
        "brokerWebServiceURL",
        str,
        "<none>",
        "Admin URL of the cluster: http://host:8080, or several hosts with commas between them. Requests to /admin and "
        "/lookup are sent there.",
        flag="--upstream-admin",
    )
    upstream_admin_url_tls: str | None = row(
        "brokerWebServiceURLTLS", str, "<none>", "The same for tlsEnabledWithBroker: https://host:8443."
    )
    upstream_connect_timeout_ms: int = row(
        "brokerProxyConnectTimeoutMs", whole(1), 10_000, "How long connecting to a broker may take."
    )
    drain_timeout_ms: int = row(
        "proxyDrainTimeoutMs",
        whole(0),
        10_000,
        "How long a proxy that stops waits for the receipts of what it has passed on, and for SENDs that wait for a "
        "resource group. Then it closes the connections that are left. Everything else that stopping does takes half a "
        "second more at most.",
    )
    unready_ms: int = row(
        "proxyUnreadyTimeMs",
        whole(0),
        0,
        "How long a proxy that stops still accepts clients after `/healthz` says that it stops, so that load "
        "balancers stop sending clients first.",
    )
    group_file: Path | None = row(
        "resourceGroupsFile",
        Path,
        "<none>",
        "Resource groups that the proxy enforces, in TOML: a table for each group with its rates, `namespaces` and "
        "`tenants`. Read again when it changes.",
    )
    group_source: str = row(
        "resourceGroupsSource",
        choice("file", "upstream"),
        "file",
        "Where the proxy's resource groups come from: `file`, from resourceGroupsFile; or `upstream`, those of the "
        "cluster and of its namespaces, by brokerWebServiceURL.",
    )
    proxy_name: str | None = row(
        "proxyName",
        str,
        "<none>",
        "The name of this proxy among those that share quotas, by default its advertised address and port; no two "
        "proxies of a cluster may have the same.",
    )
    usage_topic: str = row(
        "proxyUsageRecordsTopicName",
        str,
        PROXY_USAGE_TOPIC,
        "Topic of the cluster on which proxies record usage, with usageRecordsEnabled; not the brokers' own, which "
        "only penstock brokers may write.",
    )
    decision_topic: str = row(
        "proxyGovernanceRecordsTopicName",
        str,
        PROXY_DECISION_TOPIC,
        "Topic of the cluster on which proxies record decisions, with governanceRecordsEnabled.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ProxySecurity:
    """Authentication and TLS of the proxy."""

    upstream_tls: bool = row(
        "tlsEnabledWithBroker",
        switch,
        False,
        "Whether brokers are reached at brokerServiceURLTLS and brokerWebServiceURLTLS.",
    )
    upstream_trust_certs: Path | None = row(
        "brokerClientTrustCertsFilePath",
        Path,
        "<none>",
        "Certificates, in PEM, of the authorities of the brokers' certificates; otherwise those of the system. Of a "
        "broker: for clusters that topics are replicated to, if their own data names none.",
    )
    upstream_hostname_check: bool = row(
        "tlsHostnameVerificationEnabled", switch, False, "Whether a broker's certificate must have its host's name."
    )
    group_key: str | None = row(
        "resourceUsageKey",
        str,
        "<none>",
        "Signs usage reports between proxies: the same words for all proxies of a cluster. Without it, whoever may "
        "produce to the usage topic can change shares.",
        secret=True,
    )
    own_method: str = row(
        "brokerClientAuthenticationPlugin",
        authentication_method,
        "none",
        "How the proxy itself authenticates: `none`, `token`, `basic`, `tls`, or the name of Pulsar's class for one of "
        "them. A broker authenticates so at clusters that topics are replicated to, if their own data say nothing.",
    )
    own_parameters: str = row(
        "brokerClientAuthenticationParameters",
        str,
        "",
        "Its credentials: `token:WORDS`, `file:///path` (read again for each connection), or `user:password`; JSON as "
        "for Pulsar's clients is read, too.",
        secret=True,
    )
    own_certificate: Path | None = row(
        "brokerClientCertificateFilePath",
        Path,
        "<none>",
        "Certificate, in PEM, that the proxy shows to brokers; not for what clients ask with their own credentials.",
    )
    own_key: Path | None = row(
        "brokerClientKeyFilePath", Path, "<none>", "Private key of brokerClientCertificateFilePath, in PEM."
    )
    own_topics_method: str = row(
        "proxyTopicsAuthenticationPlugin",
        authentication_method,
        "<brokerClientAuthenticationPlugin>",
        "How the proxy authenticates for topics of its own, such as usage reports. Brokers accept a role of proxyRoles "
        "only on behalf of a client, so such a proxy needs another role for its topics.",
    )
    own_topics_parameters: str = row(
        "proxyTopicsAuthenticationParameters",
        str,
        "<brokerClientAuthenticationParameters>",
        "The credentials for that.",
        secret=True,
    )
    forward_credentials: bool = row(
        "forwardAuthorizationCredentials",
        switch,
        False,
        "Whether an authenticating proxy also sends brokers what its client has shown; brokers with "
        "authenticateOriginalAuthData check it again.",
    )
    authenticate_metrics: bool = row(
        "authenticateMetricsEndpoint",
        switch,
        True,
        "Whether /metrics of an authenticating proxy needs credentials; /metrics of brokers never does.",
    )
    allowed_hosts: tuple[str, ...] = row(
        "brokerProxyAllowedHostNames",
        names,
        (),
        "Brokers that clients may ask for, and that requests of administrators may be redirected to, beside those that "
        "the cluster's lookups have named: host names, `*` for any characters.",
    )
    allowed_networks: tuple[str, ...] = row(
        "brokerProxyAllowedIPAddresses",
        names,
        (),
        "The same by address: addresses, or networks such as 10.0.0.0/8; `*` for any.",
    )
    allowed_ports: tuple[str, ...] = row(
        "brokerProxyAllowedTargetPorts",
        names,
        ("6650", "6651"),
        "Ports of brokers that brokerProxyAllowedHostNames or brokerProxyAllowedIPAddresses allow; `*` for any.",
    )
