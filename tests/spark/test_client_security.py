# SPDX-License-Identifier: Apache-2.0
"""TLS, certificates of clients, and tokens that expire while a read or a write is under way."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.core.errors import WireCode
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.connection import Connection
from penstock.spark.client.errors import BrokerUnreachable, ClientError, Refused, TlsFailed, UnusableFile
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.producer import Producer
from penstock.spark.options import parse_endpoint
from penstock.testing.certificates import Certificate
from penstock.testing.serving import serving
from penstock.testing.tokens import SECRET, data_url, token
from penstock.wire import codec
from penstock.wire.codec import BaseCommand
from tests.spark.fronts import TIMEOUT_S, Front, Link, challenge
from tests.spark.numbered import end_of, numbers_in, reading, send, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

    Use = Callable[[Cluster, str], None]

PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
# What a test that waits for an error has patience for.
SHORT_MS = "300"
COUNT = 2_000
ADMIN = {"token": token("admin")}


@dataclass(frozen=True)
class Secured:
    """A broker that asks who clients are, and where it listens with TLS and without."""

    tls_url: str
    url: str
    certificate: Certificate  # that signed its own

    def options(self, **given: str) -> dict[str, str]:
        """How a client reaches it with TLS; a dot in an option's name is spelled as two underscores."""
        options = {"service.url": self.tls_url, "tlsTrustCertsFilePath": str(self.certificate.certificate)}
        return {**options, **{name.replace("__", "."): value for name, value in given.items()}}

    def cluster(self, **given: str) -> Cluster:
        """The same, connected."""
        return Cluster(parse_endpoint(self.options(**given)))


@contextmanager
def secured(directory: Path, shown: Certificate, signer: Certificate, more: Mapping[str, str]) -> Iterator[Secured]:
    given = {
        "brokerServicePortTls": "0",
        "tlsCertificateFilePath": str(shown.certificate),
        "tlsKeyFilePath": str(shown.key),
        "tlsTrustCertsFilePath": str(signer.certificate),
        "authenticationEnabled": "true",
        "authenticationProviders": f"{PROVIDERS}Token,{PROVIDERS}Tls",
        "authenticationRefreshCheckSeconds": "1",
        "tokenSecretKey": data_url(SECRET),
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        **more,
    }
    with serving(given, data_dir=directory) as broker:
        endpoint = parse_endpoint({"service.url": broker.url, **ADMIN})
        with Connection(endpoint, endpoint.addresses[0]) as connection:
            lookup = codec.CommandLookupTopic(topic="persistent://public/default/t", request_id=0)
            found = connection.request(lookup, what="asking for the port with TLS")
        yield Secured(found.brokerServiceUrlTls, broker.url, signer)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Good for localhost, and for signing others."""
    return Certificate.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def admin(certificate: Certificate) -> Certificate:
    """Of a client that may do everything."""
    return certificate.signed("admin")


@pytest.fixture(scope="module")
def guarded(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Takes tokens, and certificates where they are shown."""
    with secured(tmp_path_factory.mktemp("guarded"), certificate, certificate, {}) as broker:
        yield broker


@pytest.fixture(scope="module")
def demanding(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Talks to nobody without a certificate."""
    more = {"tlsRequireTrustedClientCertOnConnect": "true"}
    with secured(tmp_path_factory.mktemp("demanding"), certificate, certificate, more) as broker:
        yield broker


@pytest.fixture(scope="module")
def misnamed(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Shows a certificate that is made out to another host."""
    directory = tmp_path_factory.mktemp("misnamed")
    with secured(directory / "data", certificate.signed("elsewhere", directory), certificate, {}) as broker:
        yield broker


def showing(shown: Certificate) -> dict[str, str]:
    """The options that show a certificate."""
    return {"tlsCertificateFilePath": str(shown.certificate), "tlsKeyFilePath": str(shown.key)}


def end_only(cluster: Cluster, topic: str) -> None:
    end_of(cluster, topic)


def write_ten(cluster: Cluster, topic: str) -> None:
    write(cluster, topic, range(10))


both_ways = pytest.mark.parametrize("use", [end_only, write_ten], ids=["read", "write"])


def told(cluster: Cluster, use: Use, topic: str) -> ClientError:
    """The error that comes of it."""
    with cluster, pytest.raises(ClientError) as caught:
        use(cluster, topic)
    return caught.value


# -- whom we trust ---------------------------------------------------------------------------------------------------


def test_what_is_written_over_tls_is_read_over_tls(guarded: Secured, topic: str) -> None:
    with guarded.cluster(**ADMIN) as cluster:
        write(cluster, topic, range(COUNT), rows_max=100)
        assert numbers_in(cluster, topic) == list(range(COUNT))
        with cluster.open_topic(topic) as connection:
            assert str(connection.address) == guarded.tls_url


@both_ways
def test_a_broker_whose_certificate_somebody_else_signed_is_not_talked_to(
    guarded: Secured, topic: str, tmp_path: Path, use: Use
) -> None:
    other = Certificate.make(tmp_path)
    error = told(guarded.cluster(**ADMIN, tlsTrustCertsFilePath=str(other.certificate)), use, topic)
    assert isinstance(error, TlsFailed)
    assert not error.may_pass
    assert guarded.tls_url in str(error)
    assert "tlsTrustCertsFilePath" in str(error)


@both_ways
def test_a_broker_whose_certificate_is_made_out_to_another_host_is_not_talked_to(
    misnamed: Secured, topic: str, use: Use
) -> None:
    error = told(misnamed.cluster(**ADMIN), use, topic)
    assert isinstance(error, TlsFailed)
    assert not error.may_pass
    assert misnamed.tls_url in str(error)
    assert "not valid for '127.0.0.1'" in str(error)
    assert "tlsHostnameVerificationEnable=false" in str(error)


@pytest.mark.parametrize(
    "given", [{"tlsHostnameVerificationEnable": "false"}, {"pulsar.client.tlsHostnameVerification": "false"}]
)
def test_the_host_in_a_certificate_is_not_looked_at_when_told_so(
    misnamed: Secured, topic: str, given: dict[str, str]
) -> None:
    with misnamed.cluster(**ADMIN, **given) as cluster:
        write(cluster, topic, range(10))
        assert numbers_in(cluster, topic) == list(range(10))


def test_no_certificate_is_looked_at_when_told_so(misnamed: Secured, topic: str) -> None:
    options = {"service.url": misnamed.tls_url, "tlsAllowInsecureConnection": "true", **ADMIN}
    with Cluster(parse_endpoint(options)) as cluster:
        write(cluster, topic, range(10))
        assert numbers_in(cluster, topic) == list(range(10))


def test_tls_on_a_port_without_it_is_told_as_such(guarded: Secured, topic: str) -> None:
    url = guarded.url.replace("pulsar://", "pulsar+ssl://")
    error = told(guarded.cluster(**ADMIN, service__url=url, operationTimeoutMs=SHORT_MS), end_only, topic)
    assert isinstance(error, (TlsFailed, BrokerUnreachable))
    assert url in str(error)
    assert "does this port speak TLS?" in str(error)


def test_no_tls_on_a_port_that_wants_it_is_told_as_such(guarded: Secured, topic: str) -> None:
    url = guarded.tls_url.replace("pulsar+ssl://", "pulsar://")
    error = told(guarded.cluster(**ADMIN, service__url=url, operationTimeoutMs=SHORT_MS), end_only, topic)
    assert isinstance(error, BrokerUnreachable)
    assert url in str(error)


# -- who we are ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_words_of_java", [False, True])
def test_a_client_is_known_by_its_certificate(
    demanding: Secured, admin: Certificate, topic: str, *, in_words_of_java: bool
) -> None:
    java = {
        "authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationTls",
        "authParams": f"tlsCertFile:{admin.certificate},tlsKeyFile:{admin.key}",
    }
    with demanding.cluster(**(java if in_words_of_java else showing(admin))) as cluster:
        write(cluster, topic, range(10))
        assert numbers_in(cluster, topic) == list(range(10))


@both_ways
def test_a_client_whose_role_nobody_granted_anything_is_told_so(
    guarded: Secured, certificate: Certificate, topic: str, tmp_path: Path, use: Use
) -> None:
    error = told(guarded.cluster(**showing(certificate.signed("nobody", tmp_path))), use, topic)
    assert isinstance(error, Refused)
    assert error.code is WireCode.AUTHORIZATION_ERROR
    assert "'nobody'" in str(error)
    assert "grant" in str(error)


@both_ways
@pytest.mark.parametrize("shows", [False, True], ids=["none", "a-strangers"])
def test_a_client_without_the_certificate_that_the_broker_wants_is_told_which_option_has_it(
    demanding: Secured, topic: str, tmp_path: Path, use: Use, *, shows: bool
) -> None:
    stranger = showing(Certificate.make(tmp_path).signed("admin")) if shows else {}
    error = told(demanding.cluster(**(stranger or ADMIN)), use, topic)
    assert isinstance(error, TlsFailed)
    assert not error.may_pass
    assert demanding.tls_url in str(error)
    assert "tlsCertificateFilePath" in str(error)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named_before_anything_is_connected(guarded: Secured, admin: Certificate) -> None:
    for given in (
        {"tlsTrustCertsFilePath": "/no/such.pem"},
        {**showing(admin), "tlsKeyFilePath": "/no/such.pem"},
        {"token": "file:///no/such.pem"},
        {"authPluginClassName": "AuthenticationTls", "authParams": "tlsCertFile:/no/such.pem,tlsKeyFile:/no/such.key"},
    ):
        with pytest.raises(ValueError, match=r"there is no file /no/such\.pem"):
            guarded.cluster(**given)


@pytest.mark.parametrize("name", ["tlsTrustCertsFilePath", "tlsCertificateFilePath", "tlsKeyFilePath"])
@both_ways
def test_a_file_that_an_executor_does_not_have_is_named_there(
    guarded: Secured, certificate: Certificate, topic: str, tmp_path: Path, name: str, use: Use
) -> None:
    shown = certificate.signed("admin", tmp_path)
    given = {"tlsTrustCertsFilePath": str(tmp_path / "trusted.pem"), **showing(shown)}
    (tmp_path / "trusted.pem").write_bytes(certificate.certificate.read_bytes())
    cluster = guarded.cluster(**given)
    (tmp_path / given[name]).unlink()
    error = told(cluster, use, topic)
    assert isinstance(error, UnusableFile)
    assert not error.may_pass
    assert f"option {name}: {given[name]} cannot be used: No such file or directory" in str(error)


@pytest.mark.parametrize("held", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("name", ["tlsTrustCertsFilePath", "tlsCertificateFilePath", "tlsKeyFilePath"])
def test_a_file_that_holds_no_certificate_or_key_is_named(
    guarded: Secured, admin: Certificate, topic: str, tmp_path: Path, name: str, held: bytes
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(held)
    error = told(guarded.cluster(**{**showing(admin), name: str(wrong)}), end_only, topic)
    assert isinstance(error, UnusableFile)
    assert "in PEM" in str(error) or "want PEM" in str(error)
    assert name in str(error)
    assert str(wrong) in str(error)


def test_a_key_of_another_certificate_or_with_a_password_is_told(
    guarded: Secured, certificate: Certificate, admin: Certificate, topic: str, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(admin.key.read_bytes(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"secret")))
    for path in (certificate.key, locked):
        error = told(guarded.cluster(**showing(admin) | {"tlsKeyFilePath": str(path)}), end_only, topic)
        assert isinstance(error, UnusableFile)
        assert "a key that belongs to the certificate, and no password on it" in str(error)
        assert str(path) in str(error)


# -- tokens that expire ----------------------------------------------------------------------------------------------


@pytest.fixture
def front(broker: BrokerProcess) -> Iterator[Front]:
    """Asks for credentials when a test says so; the broker behind it asks nobody."""
    with Front(broker.port) as front:
        yield front


def asking_again(front: Front, kind: int, after: int, *, first: Callable[[], object] = lambda: None) -> None:
    """Let a front ask for credentials once so many commands of this type went to clients, and wait for the answer."""
    passed = itertools.count(1)

    def ask(link: Link, command: BaseCommand) -> bool:
        if command.type == kind and next(passed) == after:
            first()
            link.tell(challenge())
            link.may_go_on.wait(TIMEOUT_S)
        return True

    def hear(link: Link, command: BaseCommand) -> bool:
        if command.type == BaseCommand.AUTH_RESPONSE:
            link.may_go_on.set()
        return command.type != BaseCommand.AUTH_RESPONSE

    front.to_client, front.to_broker = ask, hear


def held_in(file: Path, text: str) -> dict[str, str]:
    """A file that holds this token from now on, put there as those who renew tokens do; the option that names it."""
    draft = file.with_suffix(".new")
    draft.write_text(text)
    draft.rename(file)
    return {"token": f"file://{file}"}


def cluster_of(front: Front, **given: str) -> Cluster:
    return Cluster(parse_endpoint({"service.url": front.url, **given}))


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "value"])
def test_a_reader_that_is_asked_again_shows_what_it_has_then_and_goes_on(
    front: Front, topic: str, tmp_path: Path, *, in_file: bool
) -> None:
    given = held_in(tmp_path / "token", "old") if in_file else {"token": "old"}
    with cluster_of(front, **given) as cluster:
        write(cluster, topic, range(COUNT))
        end = end_of(cluster, topic)
        asking_again(front, BaseCommand.MESSAGE, COUNT // 2, first=lambda: held_in(tmp_path / "token", "new"))
        front.asked.clear()
        assert [number for numbers in reading(cluster, topic, end) for number in numbers] == list(range(COUNT))
    assert front.tokens() == [
        (BaseCommand.CONNECT, b"old"),
        (BaseCommand.AUTH_RESPONSE, b"new" if in_file else b"old"),
    ]


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "value"])
def test_a_producer_that_is_asked_again_shows_what_it_has_then_and_goes_on(
    front: Front, topic: str, tmp_path: Path, *, in_file: bool
) -> None:
    given = held_in(tmp_path / "token", "old") if in_file else {"token": "old"}
    asking_again(front, BaseCommand.SEND_RECEIPT, COUNT // 4, first=lambda: held_in(tmp_path / "token", "new"))
    with cluster_of(front, **given) as cluster:
        write(cluster, topic, range(COUNT))
        shown = front.tokens()
        assert front.count(BaseCommand.SEND) == COUNT
        assert numbers_in(cluster, topic) == list(range(COUNT))
    # The lookups' connection, and the producer's.
    assert shown == [
        (BaseCommand.CONNECT, b"old"),
        (BaseCommand.CONNECT, b"old"),
        (BaseCommand.AUTH_RESPONSE, b"new" if in_file else b"old"),
    ]


@pytest.mark.parametrize("held", [None, ""], ids=["gone", "empty"])
def test_a_token_file_that_is_just_being_written_is_waited_for(
    front: Front, topic: str, tmp_path: Path, held: str | None
) -> None:
    file = tmp_path / "token"
    given = held_in(file, "old")
    writing = threading.Timer(0.2, held_in, (file, "new"))

    def begin() -> None:
        if held is None:
            file.unlink()
        else:
            file.write_text(held)
        writing.start()

    with cluster_of(front, **given) as cluster:
        write(cluster, topic, range(COUNT))
        end = end_of(cluster, topic)
        asking_again(front, BaseCommand.MESSAGE, COUNT // 2, first=begin)
        assert [number for numbers in reading(cluster, topic, end) for number in numbers] == list(range(COUNT))
    writing.join()
    assert front.tokens()[-1] == (BaseCommand.CONNECT, b"new")


@both_ways
def test_a_token_file_that_stays_away_is_named(front: Front, topic: str, tmp_path: Path, use: Use) -> None:
    given = held_in(tmp_path / "token", "old")
    cluster = cluster_of(front, **given, operationTimeoutMs=SHORT_MS)
    (tmp_path / "token").unlink()
    error = told(cluster, use, topic)
    assert isinstance(error, UnusableFile)
    assert f"option token: {tmp_path / 'token'} cannot be used: No such file or directory" in str(error)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (codec.ping(), BaseCommand.PONG),
        (challenge(), BaseCommand.AUTH_RESPONSE),
        (codec.active_consumer_change(1, is_active=True), None),
    ],
    ids=["ping", "challenge", "nothing-we-need"],
)
def test_what_comes_between_messages_does_not_hide_those_behind_it(
    front: Front, topic: str, said: bytes, answer: BaseCommand.Type | None
) -> None:
    with cluster_of(front, token="any") as cluster:
        write(cluster, topic, range(COUNT))
        end = end_of(cluster, topic)
        passed = itertools.count(1)

        def ask(link: Link, command: BaseCommand) -> bool:
            if command.type == BaseCommand.MESSAGE and next(passed) == COUNT - 5:
                link.tell(said)
            return True

        front.to_client = ask
        front.asked.clear()
        assert [number for numbers in reading(cluster, topic, end) for number in numbers] == list(range(COUNT))
    if answer is not None:
        front.wait_for_questions(answer, 1)
    # A reader that hears nothing for a while begins anew.
    assert front.count(BaseCommand.SUBSCRIBE) == 1


# Long enough for a busy machine to connect; the broker looks from a second after that on.
EXPIRES_S = 1.4
REFRESHED = "refreshed its credentials as role 'admin'"


def test_a_token_in_a_file_is_renewed_while_a_topic_is_written_and_read(
    guarded: Secured, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = held_in(tmp_path / "token", token("admin", exp=time.time() + EXPIRES_S))
    with guarded.cluster(**given) as cluster, Producer(cluster, topic) as producer:
        send_one(producer, 0)
        end = MessageId(end_of(cluster, topic).ledger_id, 1 << 40)  # More comes than is there yet.
        found: list[int] = []
        deadline = time.monotonic() + 30
        for numbers in reading(cluster, topic, end):
            if not found:
                held_in(tmp_path / "token", token("admin", exp=time.time() + 3_600))
            found += numbers
            if caplog.text.count(REFRESHED) >= 2:
                break  # The producer's connection, and the reader's.
            assert time.monotonic() < deadline, "the broker did not ask again"
            send_one(producer, found[-1] + 1)
        assert found == list(range(len(found)))
        assert numbers_in(cluster, topic) == found


@pytest.mark.parametrize("writes", [True, False], ids=["write", "read"])
def test_a_token_that_stays_expired_ends_it_with_what_to_do(guarded: Secured, topic: str, *, writes: bool) -> None:
    expired = token("admin", exp=time.time() + EXPIRES_S)
    with guarded.cluster(**ADMIN) as lasting, guarded.cluster(token=expired) as cluster:
        with pytest.raises(Refused) as caught:
            go_on(lasting, cluster, topic, writes=writes)
        left = numbers_in(lasting, topic)
    assert left == list(range(len(left)))
    assert caught.value.code is WireCode.AUTHENTICATION_ERROR
    assert guarded.tls_url in str(caught.value)
    assert "have not expired" in str(caught.value)
    assert "file:///path" in str(caught.value)
    assert expired not in str(caught.value)


def go_on(lasting: Cluster, expiring: Cluster, topic: str, *, writes: bool) -> None:
    """Write, or read what a producer with lasting credentials writes meanwhile, until that fails."""
    with Producer(expiring if writes else lasting, topic) as producer:
        send_one(producer, 0)
        end = MessageId(end_of(lasting, topic).ledger_id, 1 << 40)
        for number in itertools.count(1) if writes else of_reading(expiring, topic, end):
            send_one(producer, number)


def of_reading(cluster: Cluster, topic: str, end: MessageId) -> Iterator[int]:
    """The number after those that were read, as often as some were."""
    for numbers in reading(cluster, topic, end):
        yield numbers[-1] + 1


def send_one(producer: Producer, number: int) -> None:
    """Send it, and wait until it is stored."""
    send(producer, range(number, number + 1))
    producer.flush()


# -- through Spark ---------------------------------------------------------------------------------------------------


def test_spark_reads_from_a_broker_that_wants_a_certificate(
    spark: SparkSession, demanding: Secured, admin: Certificate, topic: str
) -> None:
    options = demanding.options(**showing(admin))
    with Cluster(parse_endpoint(options)) as cluster:
        write(cluster, topic, range(100))
    found = spark.read.format("pulsar").options(**options, topic=topic).load()
    assert sorted(int(bytes(row["value"]).split()[0]) for row in found.collect()) == list(range(100))
