# SPDX-License-Identifier: Apache-2.0
"""`penstock proxy` that authenticates its clients before a broker that checks permissions, with the official client."""

from __future__ import annotations

import re
import signal
import ssl
from typing import TYPE_CHECKING

import httpx
import pulsar
import pytest

from penstock.core.errors import WireCode
from penstock.testing.certificates import Certificate
from penstock.testing.client import RawClient, Type, frame
from penstock.testing.tokens import token
from tests.proxy.guarded import (
    ADMIN,
    BROKER,
    GUARDING,
    NAMESPACE,
    PROVIDER,
    PROXY,
    STRANGER,
    TOKENS,
    TOPIC,
    WRITER,
    administer,
    bearer,
    broker_process,
    client_as,
    proxy_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.testing.process import BrokerProcess, ProxyProcess

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        administer(process)
        yield process


@pytest.fixture(scope="module")
def proxy(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with proxy_process(broker, tmp_path_factory.mktemp("proxy"), f"{GUARDING}proxyRoles={PROXY}\n") as process:
        yield process


def test_a_client_does_what_its_role_may_do(proxy: ProxyProcess) -> None:
    client = client_as(proxy, token(WRITER))
    try:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(TOPIC).send(b"one")
        assert consumer.receive(60_000).data() == b"one"
        assert client.get_topic_partitions(TOPIC) == [TOPIC]
    finally:
        client.close()


def test_a_client_may_not_do_what_only_the_proxy_may(proxy: ProxyProcess) -> None:
    client = client_as(proxy, token(STRANGER))
    try:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(TOPIC)
    finally:
        client.close()


def connected(proxy: ProxyProcess, **fields: object) -> tuple[int, int, str]:
    """Send CONNECT; return the kind of the answer, and the error in it."""
    with RawClient(proxy.port, connect=False) as client:
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, **fields))
        answer = client.read()
        if answer.kind == Type.ERROR:
            return answer.kind, answer.body.error, answer.body.message
        return answer.kind, 0, ""


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({}, WireCode.AUTHENTICATION_ERROR, "method 'none': give the client valid credentials for token"),
        (
            {"auth_method_name": "token", "auth_data": token(WRITER, b"x" * 64).encode()},
            WireCode.AUTHENTICATION_ERROR,
            "give the client valid credentials for token",
        ),
        (
            {"auth_method_name": "token", "auth_data": token(WRITER, exp=1).encode()},
            WireCode.AUTHENTICATION_ERROR,
            "the credentials have expired; give the client new ones",
        ),
        (
            {"auth_method_name": "token", "auth_data": b"x" * 60_000},
            WireCode.AUTHENTICATION_ERROR,
            "give the client valid credentials for token",
        ),
        (
            {"auth_method_name": "token", "auth_data": token(PROXY).encode()},
            WireCode.AUTHORIZATION_ERROR,
            "'proxy' is a proxy's",
        ),
    ],
    ids=["nothing", "another key", "expired", "huge", "a proxy's"],
)
def test_bad_credentials_are_refused_with_what_to_do(
    proxy: ProxyProcess, fields: dict[str, object], code: int, says: str
) -> None:
    for target in ({}, {"proxy_to_broker_url": proxy.upstream.partition("://")[2]}):
        kind, error, text = connected(proxy, **fields, **target)
        assert (kind, error) == (Type.ERROR, code)
        assert says in text


# -- the admin port


@pytest.fixture(scope="module")
def http(proxy: ProxyProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.admin_url, timeout=60) as client:
        yield client


NAMESPACES = "/admin/v2/namespaces/shop"
LOOKUP = f"/lookup/v2/topic/{TOPIC.replace('://', '/')}"
PERMISSIONS = f"/admin/v2/namespaces/{NAMESPACE}/permissions"
# Path, and the status for nobody, a stranger, the writer, a superuser, and the proxy's own role.
ROUTES = {
    "/healthz": (200, 200, 200, 200, 200),
    "/metrics": (401, 200, 200, 200, 403),
    "/nothing": (401, 404, 404, 404, 403),
    NAMESPACES: (401, 403, 403, 200, 403),
    PERMISSIONS: (401, 403, 403, 200, 403),
    LOOKUP: (401, 403, 200, 200, 403),
}
CALLERS = (None, STRANGER, WRITER, ADMIN, PROXY)


@pytest.mark.parametrize("path", ROUTES)
def test_the_admin_port_lets_each_role_do_what_it_may(http: httpx.Client, path: str) -> None:
    found = [http.get(path, headers=bearer(role) if role else {}).status_code for role in CALLERS]
    assert found == list(ROUTES[path])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Bearer {token(ADMIN, b'x' * 64)}"},
        {"authorization": f"Bearer {token(ADMIN, exp=1)}"},
        {"authorization": "Bearer"},
        {"authorization": "Digest x"},
        {"x-pulsar-auth-method-name": "none"},
        {"authorization": f"Bearer {token(ADMIN)}", "x-pulsar-auth-method-name": "basic"},
        {"x-original-principal": ADMIN},
    ],
)
def test_a_request_without_valid_credentials_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.get(NAMESPACES, headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "send valid credentials for token" in answer.json()["reason"]


def test_a_caller_cannot_say_that_it_is_somebody_else(http: httpx.Client) -> None:
    headers = bearer(STRANGER) | {"x-original-principal": ADMIN, "X-Original-Auth": "x"}
    assert http.get(NAMESPACES, headers=headers).status_code == 403
    assert http.put(f"{NAMESPACES}/made", headers=headers).status_code == 403


# -- TLS on both sides


def served_with_tls(process: BrokerProcess, what: str = "clients") -> str:
    """Return the URL of a port with TLS, which the log says."""
    found = re.search(rf"{what} with TLS are served at (\S+?)[\s\"]", process.log_path.read_text())
    assert found is not None
    return found[1]


def hear_of_a_topic(proxy: ProxyProcess, certificate: Certificate, broker: str) -> None:
    """Watch topics with a role of a client, connected to the broker, and make one."""
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    context.check_hostname = False
    port = int(served_with_tls(proxy).rpartition(":")[2])
    with RawClient(port, tls=context, connect=False) as client:
        shown = {"auth_method_name": "token", "auth_data": token(ADMIN).encode(), "proxy_to_broker_url": broker}
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, **shown))
        assert client.read().kind == Type.CONNECTED
        fields = {"namespace": "public/default", "topics_pattern": "public/default/new.*"}
        client.write(frame(Type.WATCH_TOPIC_LIST, request_id=1, watcher_id=2, **fields))
        assert client.next(Type.WATCH_TOPIC_LIST_SUCCESS, Type.ERROR).kind == Type.WATCH_TOPIC_LIST_SUCCESS
        client.produce("persistent://public/default/new")
        heard = client.next(Type.WATCH_TOPIC_UPDATE).body
        assert (heard.watcher_id, list(heard.new_topics)) == (2, ["persistent://public/default/new"])


def test_certificates_authenticate_clients_and_the_proxy_and_are_read_again(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    own, admin = certificate.signed(PROXY), certificate.signed(ADMIN)
    tls = (
        f"tlsCertificateFilePath={certificate.certificate}\ntlsKeyFilePath={certificate.key}\n"
        f"tlsTrustCertsFilePath={certificate.certificate}\nbrokerServicePortTls=0\n"
        f"authenticationProviders={PROVIDER}Tls,{PROVIDER}Token\n"
    )
    to_broker = (
        "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationTls\n"
        f"brokerClientCertificateFilePath={own.certificate}\nbrokerClientKeyFilePath={own.key}\n"
        f"brokerClientTrustCertsFilePath={certificate.certificate}\ntlsHostnameVerificationEnabled=true\n"
        "tlsEnabledWithBroker=true\n"
    )
    with broker_process(tmp_path, f"{BROKER}{tls}webServicePortTls=0\n") as broker:
        urls = (
            f"brokerServiceURLTLS={served_with_tls(broker)}\n"
            f"brokerWebServiceURLTLS={served_with_tls(broker, 'callers of the admin port')}\n"
        )
        with proxy_process(broker, tmp_path, f"{TOKENS}{tls}{to_broker}{urls}") as proxy:

            def client(shown: Certificate) -> pulsar.Client:
                return pulsar.Client(
                    served_with_tls(proxy),
                    authentication=pulsar.AuthenticationTLS(str(shown.certificate), str(shown.key)),
                    tls_trust_certs_file_path=str(certificate.certificate),
                    tls_validate_hostname=True,
                    logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
                    operation_timeout_seconds=60,
                )

            one = client(admin)
            try:
                consumer = one.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
                one.create_producer("t").send(b"one")
                assert consumer.receive(60_000).data() == b"one"
            finally:
                one.close()
            hear_of_a_topic(proxy, certificate, served_with_tls(broker).partition("://")[2])
            with httpx.Client(base_url=proxy.admin_url, timeout=60) as http:
                assert http.get("/admin/v2/tenants", headers=bearer(ADMIN)).status_code == 200
                assert http.get("/admin/v2/tenants", headers=bearer(STRANGER)).status_code == 403
                proxy.send_signal(signal.SIGHUP)
                assert http.get("/admin/v2/tenants", headers=bearer(ADMIN)).status_code == 200
            other = client(certificate.signed(STRANGER))
            try:
                with pytest.raises(pulsar.AuthorizationError):
                    other.create_producer("t")
            finally:
                other.close()
            proxy.stop()
            assert "certificates were read again" in proxy.log_path.read_text()
