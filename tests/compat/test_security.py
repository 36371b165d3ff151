# SPDX-License-Identifier: Apache-2.0
"""The official Python client against a real broker process that asks who clients are: TLS, tokens, passwords, roles.

The configuration is written as Pulsar's own standalone-ssl.conf is, whose keys must do as they stand; with PEER=pulsar
Apache Pulsar itself reads the same keys.
"""

from __future__ import annotations

import re
import signal
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from penstock.testing.certificates import Certificate
from penstock.testing.process import BrokerProcess
from penstock.testing.tokens import SECRET, token, unsigned
from tests.compat.clients import TIMEOUT_MS, TIMEOUT_S, connect, until
from tests.compat.conftest import PEER, PROXY, Subject
from tests.compat.proxied import proxy_before

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# `123456`, by `htpasswd -m`.
# The first request loads the HTTP server, which takes long on a busy machine.
get = partial(httpx.get, trust_env=False, timeout=60)

USERS = "admin:$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0\nbilling:$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0\n"

CONF = """\
# Ports, as in Pulsar's file
brokerServicePort=6650
brokerServicePortTls=0
webServicePort=8080
webServicePortTls=0
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
clusterName=standalone
zookeeperServers=
maxMessageSize=1024000

tlsEnabled=true
tlsCertificateFilePath={certificate}
tlsKeyFilePath={key}
tlsTrustCertsFilePath={certificate}
tlsAllowInsecureConnection=false

anonymousUserRole=anonymous
authenticationEnabled=true
authenticationProviders=\
org.apache.pulsar.broker.authentication.AuthenticationProviderTls,\
org.apache.pulsar.broker.authentication.AuthenticationProviderToken,\
org.apache.pulsar.broker.authentication.AuthenticationProviderBasic
authenticationRefreshCheckSeconds=1
authorizationEnabled=true
tokenSecretKey=file://{secret}
superUserRoles=localhost,superUser,admin,proxy
proxyRoles=proxy
brokerClientAuthenticationPlugin=
"""
# What the proxy says besides, if there is one: who it is itself.
AS_PROXY = """\
brokerClientAuthenticationPlugin={plugin}
brokerClientAuthenticationParameters=token:{token}
"""


# What Pulsar must be told besides: where the users are, and who it is itself.
PULSAR_CLIENT = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@dataclass(frozen=True)
class Guarded(Subject):
    """A broker process that asks who clients are, where it listens with TLS, and the files it reads."""

    tls_url: str
    admin_tls_url: str
    certificate: Certificate
    directory: Path
    process: BrokerProcess | None = None  # of penstock: what the clients talk to

    @property
    def log(self) -> str:
        """What penstock has logged."""
        return self.process.log_path.read_text() if self.process is not None else ""

    def wait_for_log(self, text: str, since: int = 0) -> None:
        """Wait until penstock's log says something, behind what it had said before."""
        if self.process is not None:
            until(lambda: text in self.log[since:], f"for {text!r} in the log")

    def client(self, authentication: object = None, *, tls: bool = False, patience_s: int = 10) -> pulsar.Client:
        """A client that shows this."""
        options: dict[str, Any] = {"authentication": authentication} if authentication is not None else {}
        if tls:
            options["tls_trust_certs_file_path"] = str(self.certificate.certificate)
        return connect(self.tls_url if tls else self.url, operation_timeout_seconds=patience_s, **options)

    def admin(self, method: str, path: str, body: object = None, role: str = "superUser") -> httpx.Response:
        """Ask the admin port."""
        headers = {"Authorization": f"Bearer {token(role)}"}
        url = f"{self.admin_url}/admin/v2/{path}"
        return httpx.request(method, url, json=body, headers=headers, trust_env=False, timeout=TIMEOUT_S)


def write_files(directory: Path, certificate: Certificate) -> Path:
    """The configuration and what it names; the configuration's path."""
    (directory / "secret.key").write_bytes(SECRET)
    (directory / ".htpasswd").write_text(USERS)
    conf = directory / "standalone-ssl.conf"
    conf.write_text(
        CONF.format(certificate=certificate.certificate, key=certificate.key, secret=directory / "secret.key")
    )
    return conf


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    certificate = Certificate.make(directory)
    conf = write_files(directory, certificate)
    with (guarded_pulsar if PEER == "pulsar" else guarded_penstock)(conf, certificate) as broker:
        set_up(broker)
        if not PROXY:
            yield broker
            return
        with guarded_proxy(broker, conf) as proxy:
            yield proxy


@contextmanager
def guarded_proxy(broker: Guarded, conf: Path) -> Iterator[Guarded]:
    """A proxy that asks who clients are as the broker does, and tells the broker."""
    text = conf.read_text().replace("brokerClientAuthenticationPlugin=\n", "")
    text += AS_PROXY.format(plugin=PULSAR_CLIENT, token=token("proxy"))
    file = conf.with_name("proxy.conf")
    file.write_text(text + f"basicAuthConf=file://{conf.parent}/.htpasswd\n")
    arguments = ["--config", str(file)]
    with proxy_before([broker.url], [broker.admin_url], conf.with_name("proxy.log"), arguments) as process:
        yield guarded_by(process, broker.certificate)


@contextmanager
def guarded_penstock(conf: Path, certificate: Certificate) -> Iterator[Guarded]:
    directory = conf.parent
    with pytest.MonkeyPatch.context() as environment:
        # As Pulsar is told of it: by a property of the Java machine.
        environment.setenv("PULSAR_EXTRA_OPTS", f"-Xmx1g -Dpulsar.auth.basic.conf={directory / '.htpasswd'}")
        process = BrokerProcess(directory / "data", ["--config", str(conf)]).start()
    with process:
        yield guarded_by(process, certificate)


def guarded_by(process: BrokerProcess, certificate: Certificate) -> Guarded:
    """A process of penstock whose log says where it listens with TLS."""
    log = process.log_path.read_text()
    tls_url, admin_tls_url = [re.search(rf"{scheme}://\S+", log) for scheme in (r"pulsar\+ssl", "https")]
    assert tls_url is not None
    return Guarded(
        name="penstock",
        url=process.url,
        admin_url=process.admin_url,
        everywhere={},
        tls_url=tls_url[0],
        admin_tls_url=admin_tls_url[0] if admin_tls_url is not None else "",
        certificate=certificate,
        directory=certificate.certificate.parent,
        process=process,
    )


@contextmanager
def guarded_pulsar(conf: Path, certificate: Certificate) -> Iterator[Guarded]:
    from benchmarks.process import free_port
    from benchmarks.pulsar_peer import pulsar

    lines = (line.partition("=") for line in conf.read_text().splitlines() if line and not line.startswith("#"))
    tls, admin_tls = free_port(), free_port()
    ours = {
        "brokerServicePortTls": str(tls),
        "webServicePortTls": str(admin_tls),
        "basicAuthConf": f"file://{conf.parent / '.htpasswd'}",
        "brokerClientAuthenticationPlugin": PULSAR_CLIENT,
        "brokerClientAuthenticationParameters": f"token:{token('superUser')}",
    }
    settings = {key: value for key, _, value in lines if key not in {"brokerServicePort", "webServicePort"}}
    settings.pop("zookeeperServers")  # Apache Pulsar would look for it there.
    with pulsar(settings={**settings, **ours}, token=token("superUser")) as address:
        yield Guarded(
            name="pulsar",
            url=f"pulsar://127.0.0.1:{address.port}",
            admin_url=f"http://127.0.0.1:{address.admin_port}",
            everywhere={},
            tls_url=f"pulsar+ssl://127.0.0.1:{tls}",
            admin_tls_url=f"https://127.0.0.1:{admin_tls}",
            certificate=certificate,
            directory=conf.parent,
        )


def set_up(broker: Guarded) -> None:
    """Tenants, namespaces and grants as the public test-suite of the client makes them."""
    private = {"auth_policies": {"namespace_auth": {"token-principal": ["produce", "consume"], "reader": ["consume"]}}}
    for path, body in (
        ("tenants/private", {"adminRoles": ["owner"], "allowedClusters": ["standalone"]}),
        ("namespaces/private/auth", {**private, "replication_clusters": ["standalone"]}),
    ):
        answer = broker.admin("PUT", path, body)
        assert answer.is_success, answer.text
    answer = broker.admin("POST", "namespaces/public/default/permissions/anonymous", ["produce", "consume"])
    assert answer.is_success, answer.text


@pytest.fixture
def topic(local: str) -> str:
    return f"persistent://private/auth/{local}"


def round_trip(client: pulsar.Client, topic: str) -> None:
    """Send and receive."""
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"hello")
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == b"hello"
    consumer.acknowledge(message)
    client.close()


def turned_away(broker: Guarded, authentication: object, topic: str, why: str, *, tls: bool = False) -> None:
    """Try to connect, in vain. This client takes any refusal of its CONNECT for a connection to try again."""
    mark = len(broker.log)
    client = broker.client(authentication, tls=tls, patience_s=1)
    with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
        client.create_producer(topic)
    client.close()
    broker.wait_for_log(why, mark)


# -- TLS


@pytest.mark.feature("tls")
def test_a_client_talks_to_the_broker_that_it_trusts(guarded: Guarded, topic: str) -> None:
    shown = pulsar.AuthenticationToken(token("superUser"))
    trusted = {"tls_trust_certs_file_path": str(guarded.certificate.certificate), "tls_validate_hostname": True}
    # The certificate is good for this address and for this name.
    for url in (guarded.tls_url, guarded.tls_url.replace("127.0.0.1", "localhost")):
        round_trip(connect(url, authentication=shown, **trusted), f"{topic}-{len(url)}")


@pytest.mark.feature("tls")
def test_a_client_does_not_talk_to_a_broker_that_it_does_not_trust(
    guarded: Guarded, topic: str, tmp_path: Path
) -> None:
    shown = pulsar.AuthenticationToken(token("superUser"))
    other = Certificate.make(tmp_path)
    client = connect(
        guarded.tls_url,
        authentication=shown,
        tls_trust_certs_file_path=str(other.certificate),
        operation_timeout_seconds=1,
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
    round_trip(connect(guarded.tls_url, authentication=shown, tls_allow_insecure_connection=True), topic)


# -- tokens, certificates, passwords, roles


@pytest.mark.feature("auth-token")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("role", ["superUser", "token-principal", "owner"])
def test_a_client_with_a_token_does_what_its_role_may(guarded: Guarded, topic: str, role: str, *, tls: bool) -> None:
    round_trip(guarded.client(pulsar.AuthenticationToken(token(role)), tls=tls), topic)


@pytest.mark.feature("auth-token")
@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (token("superUser", b"x" * 64), "the token is not signed with our key"),
        (token("superUser", exp=1_600_000_000), "the token expired"),
        (unsigned("superUser"), "the token is signed by another algorithm than HS256, HS384, HS512"),
        ("garbage", "it is no token that can be read"),
    ],
    ids=["forged", "expired", "unsigned", "garbage"],
)
def test_a_client_with_a_token_that_does_not_count_is_turned_away(
    guarded: Guarded, topic: str, shown: str, why: str
) -> None:
    turned_away(guarded, pulsar.AuthenticationToken(shown), topic, why)
    assert shown not in guarded.log


@pytest.mark.feature("auth-tls")
def test_a_client_is_known_by_its_certificate(guarded: Guarded, topic: str, tmp_path: Path) -> None:
    def showing(name: str) -> pulsar.Client:
        shown = guarded.certificate.signed(name, tmp_path)
        return guarded.client(pulsar.AuthenticationTLS(str(shown.certificate), str(shown.key)), tls=True)

    round_trip(showing("superUser"), topic)
    round_trip(showing("token-principal"), topic)
    nobody = showing("nobody")
    with pytest.raises(pulsar.AuthorizationError):
        nobody.create_producer(topic)
    nobody.close()


@pytest.mark.feature("auth-tls")
def test_a_certificate_that_nobody_vouches_for_gets_nowhere(guarded: Guarded, topic: str, tmp_path: Path) -> None:
    stranger = Certificate.make(tmp_path).signed("superUser")
    shown = pulsar.AuthenticationTLS(str(stranger.certificate), str(stranger.key))
    turned_away(guarded, shown, topic, "TLS handshake failed: certificate verify failed", tls=True)


@pytest.mark.feature("auth-basic")
def test_a_client_with_a_password_does_what_its_user_may(guarded: Guarded, topic: str) -> None:
    round_trip(guarded.client(pulsar.AuthenticationBasic("admin", "123456")), topic)
    client = guarded.client(pulsar.AuthenticationBasic("billing", "123456"))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    client.close()


@pytest.mark.feature("auth-basic")
@pytest.mark.parametrize(("user", "password"), [("admin", "wrong-password"), ("nobody", "123456")])
def test_a_client_with_another_password_is_turned_away(guarded: Guarded, topic: str, user: str, password: str) -> None:
    turned_away(guarded, pulsar.AuthenticationBasic(user, password), topic, "unknown user or wrong password")
    assert "wrong-password" not in guarded.log


@pytest.mark.feature("authorization")
def test_whoever_shows_nothing_may_what_the_anonymous_role_may(guarded: Guarded, topic: str, local: str) -> None:
    round_trip(guarded.client(), f"persistent://public/default/{local}")
    client = guarded.client()
    for attempt in (client.create_producer, lambda name: client.subscribe(name, "s")):
        with pytest.raises(pulsar.AuthorizationError):
            attempt(topic)
    client.close()


@pytest.mark.feature("authorization")
def test_a_forbidden_request_is_refused_as_such_and_creates_nothing(guarded: Guarded, topic: str) -> None:
    client = guarded.client(pulsar.AuthenticationToken(token("reader")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions("persistent://private/other/t")
    listed = guarded.admin("GET", "persistent/private/auth")
    assert topic not in listed.json()
    client.subscribe(topic, "s")
    assert topic in guarded.admin("GET", "persistent/private/auth").json()
    client.close()


@pytest.mark.feature("auth-token")
def test_a_client_refreshes_its_token_and_never_notices(guarded: Guarded, topic: str) -> None:
    """The supplier is asked again whenever the token has expired; producers and consumers stay."""
    asked: list[str] = []

    def supplier() -> str:
        asked.append(token("token-principal", exp=time.time() + 1.2, jti=str(len(asked))))
        return asked[-1]

    client = guarded.client(pulsar.AuthenticationToken(supplier))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    before = len(asked)
    mark = len(guarded.log)
    sent = 0
    deadline = time.monotonic() + 30
    while len(asked) < before + 3:
        assert time.monotonic() < deadline, "the client was not asked again"
        producer.send(b"%d" % sent)
        sent += 1
    for row in range(sent):
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"%d" % row
        consumer.acknowledge(message)
    client.close()
    if guarded.process is not None:
        assert guarded.log[mark:].count("refreshed its credentials as role 'token-principal'") >= 2
        assert not any(shown in guarded.log for shown in asked)


@pytest.mark.penstock_only("what the broker refuses is read from its log")
@pytest.mark.feature("auth-token")
def test_a_client_whose_new_token_is_another_role_is_closed(guarded: Guarded, topic: str) -> None:
    roles = iter(["token-principal", "token-principal"])

    def supplier() -> str:
        return token(next(roles, "superUser"), exp=time.time() + 1.2)

    mark = len(guarded.log)
    client = guarded.client(pulsar.AuthenticationToken(supplier))
    client.create_producer(topic)
    guarded.wait_for_log("role 'token-principal' cannot become 'superUser' in a refresh", mark)
    client.close()


# -- the admin ports


@pytest.mark.feature("authorization")
def test_the_admin_port_asks_too(guarded: Guarded) -> None:
    url = f"{guarded.admin_url}/admin/v2/tenants"
    refused = {401, 403}  # Apache Pulsar says now the one, now the other.
    assert get(url, headers={"Authorization": "Bearer garbage"}).status_code == 401
    assert get(url).status_code in refused  # the anonymous role
    tenant = {"allowedClusters": ["standalone"]}
    assert guarded.admin("PUT", "tenants/forbidden", tenant, role="owner").status_code in refused
    assert guarded.admin("GET", "tenants/forbidden").status_code == 404
    assert guarded.admin("PUT", "namespaces/private/mine", role="owner").is_success
    assert guarded.admin("PUT", "namespaces/public/mine", role="owner").status_code in refused
    assert get(url, auth=("admin", "123456")).status_code == 200


@pytest.mark.feature("auth-tls")
def test_the_admin_port_answers_over_tls_to_certificates(guarded: Guarded, tmp_path: Path) -> None:
    context = guarded.certificate.client(shows=guarded.certificate.signed("admin", tmp_path))
    answer = get(f"{guarded.admin_tls_url}/admin/v2/tenants/private", verify=context)
    assert answer.json()["adminRoles"] == ["owner"]


# -- new files


@pytest.mark.penstock_only("Pulsar does not read its files again at a SIGHUP")
@pytest.mark.feature("auth-token")
def test_new_certificates_keys_and_users_count_after_a_hangup(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    conf = write_files(tmp_path, certificate)
    conf.write_text(conf.read_text() + f"basicAuthConf=file://{tmp_path}/.htpasswd\nanonymousUserRole=\n")
    topic = "persistent://public/default/t"
    with BrokerProcess(tmp_path / "data", ["--config", str(conf)]) as process:
        broker = guarded_by(process, certificate)
        staying = broker.client(pulsar.AuthenticationToken(token("superUser")), tls=True)
        producer = staying.create_producer(topic)

        # Files that cannot be used change nothing.
        (tmp_path / "secret.key").write_bytes(b"short")
        certificate.key.write_text("garbage")
        hang_up(
            broker, "keys and users stay as they were: tokenSecretKey has 5 bytes", "certificates stay as they were"
        )
        round_trip(broker.client(pulsar.AuthenticationToken(token("superUser")), tls=True), topic)

        other_secret = b"o" * 64
        (tmp_path / "secret.key").write_bytes(other_secret)
        (tmp_path / ".htpasswd").write_text(USERS.replace("billing", "superUser"))
        Certificate.make(tmp_path)
        hang_up(broker, "keys and users were read again", "certificates were read again")
        round_trip(broker.client(pulsar.AuthenticationToken(token("superUser", other_secret)), tls=True), topic)
        round_trip(broker.client(pulsar.AuthenticationBasic("superUser", "123456"), tls=True), topic)
        old_token, old_user = (
            pulsar.AuthenticationToken(token("superUser")),
            pulsar.AuthenticationBasic("billing", "123456"),
        )
        turned_away(broker, old_token, topic, "the token is not signed with our key", tls=True)
        turned_away(broker, old_user, topic, "unknown user or wrong password", tls=True)
        producer.send(b"still here")
        staying.close()


def hang_up(broker: Guarded, *lines: str) -> None:
    mark = len(broker.log)
    assert broker.process is not None
    broker.process.send_signal(signal.SIGHUP)
    for line in lines:
        broker.wait_for_log(line, mark)


@pytest.mark.penstock_only("what is in the log is looked at")
@pytest.mark.feature("authorization")
def test_no_secret_is_in_the_log(guarded: Guarded) -> None:
    """After everything the tests above have done."""
    log = guarded.log
    for secret in (SECRET.decode(), SECRET.hex(), "$apr1$", "123456", "eyJ", "PRIVATE KEY"):
        assert secret not in log


@pytest.mark.penstock_only("how the log says it is looked at")
@pytest.mark.feature("tls")
def test_tls_and_plain_on_each_others_ports_are_said_plainly(guarded: Guarded) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for url in (guarded.admin_url.replace("http:", "https:"), guarded.admin_tls_url.replace("https:", "http:")):
        with pytest.raises(httpx.TransportError):
            get(f"{url}/healthz", verify=context)
    guarded.wait_for_log("speaks TLS, and this port is for those without; see webServicePortTls")
    guarded.wait_for_log("the caller does not speak TLS; see webServicePort")
