# SPDX-License-Identifier: Apache-2.0
"""Processes of a broker that checks who may do what, and of proxies before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
import pulsar

from penstock.testing.process import BrokerProcess, ProxyProcess
from penstock.testing.tokens import SECRET, data_url, token

if TYPE_CHECKING:
    from pathlib import Path

PROXY: Final = "proxy"  # the proxy's role
ADMIN: Final = "admin"  # a superuser
WRITER: Final = "writer"  # may produce and consume in NAMESPACE
STRANGER: Final = "stranger"  # may do nothing
NAMESPACE: Final = "shop/orders"
TOPIC: Final = f"persistent://{NAMESPACE}/t"

PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
TOKENS: Final = (
    f"authenticationEnabled=true\nauthenticationProviders={PROVIDER}Token\ntokenSecretKey={data_url(SECRET)}\n"
)
BROKER: Final = (
    f"{TOKENS}authorizationEnabled=true\nsuperUserRoles={ADMIN},{PROXY}\nproxyRoles={PROXY}\n"
    "authenticationRefreshCheckSeconds=1\n"
)
OWN: Final = f"brokerClientAuthenticationPlugin=token\nbrokerClientAuthenticationParameters=token:{token(PROXY)}\n"
GUARDING: Final = f"{TOKENS}{OWN}authenticationRefreshCheckSeconds=1\n"


def broker_process(directory: Path, settings: str = BROKER) -> BrokerProcess:
    """Return a broker that is not started yet."""
    file = directory / "broker.conf"
    file.write_text(settings)
    return BrokerProcess(directory / "data", ["--config", str(file)])


def proxy_process(
    broker: BrokerProcess, directory: Path, settings: str = GUARDING, name: str = "proxy"
) -> ProxyProcess:
    """Return a proxy that is not started yet."""
    file = directory / f"{name}.conf"
    file.write_text(settings)
    arguments = ["--config", str(file), "--upstream-admin", broker.admin_url]
    return ProxyProcess(broker.url, arguments, log_path=directory / f"{name}.log")


def administer(broker: BrokerProcess) -> None:
    """Create the tenant and the namespace, and grant WRITER what it may do."""
    with httpx.Client(base_url=f"{broker.admin_url}/admin/v2", headers=bearer(ADMIN), timeout=60) as http:
        for path, body in (
            ("/tenants/shop", {"adminRoles": [], "allowedClusters": ["standalone"]}),
            (f"/namespaces/{NAMESPACE}", {}),
        ):
            http.put(path, json=body).raise_for_status()
        http.post(f"/namespaces/{NAMESPACE}/permissions/{WRITER}", json=["produce", "consume"]).raise_for_status()


def bearer(role: str) -> dict[str, str]:
    """Return the header with this role's token."""
    return {"authorization": f"Bearer {token(role)}"}


def client_as(process: BrokerProcess, shown: str, *, timeout_s: int = 20) -> pulsar.Client:
    """Return an official client that shows this token."""
    return pulsar.Client(
        process.url,
        authentication=pulsar.AuthenticationToken(shown),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        operation_timeout_seconds=timeout_s,
    )
