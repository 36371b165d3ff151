# SPDX-License-Identifier: Apache-2.0
"""Who comes in, who stays, and what those hear who do not: on a real broker, on the test's loop and clock."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.basic import BasicProvider
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.core.errors import WireCode
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.net.tls import TlsOptions, server_context
from penstock.testing.certificates import Certificate
from penstock.testing.client import Type, frame
from penstock.testing.tokens import SECRET, data_url, token, unsigned
from tests.net.harness import (
    KEEP_ALIVE_S,
    SMALL,
    TOPIC,
    Client,
    Harness,
    payload_for,
    publish,
    running,
    turns,
    until,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.authentication.credentials import Credentials, Identity
    from penstock.wire.pulsar_pb2 import BaseCommand

NOW_S = 1_700_000_000  # by the harness's clock
REFRESH_S = 60
NO_REQUEST = 2**64 - 1
USERS = "admin:$apr1$xyz12345$qRX/glElflL3JeMb2ocXi0\n"


@asynccontextmanager
async def guarded(
    directory: Path,
    rules: AccessRules | None = None,
    tls: ssl.SSLContext | None = None,
    **harness: Any,  # noqa: ANN401
) -> AsyncIterator[Harness]:
    options = ProviderOptions(
        methods=frozenset({"token", "basic", "tls"}),
        token_secret_key=data_url(SECRET),
        basic_users=data_url(USERS.encode()),
    )
    rules = rules or AccessRules(refresh_check_ns=REFRESH_S * NS_PER_S)
    async with running(directory, tls=tls, authenticator=Authenticator(options), access=rules, **harness) as broker:
        yield broker


def connect(method: str | None = "token", data: str | bytes = b"", *, refreshes: bool = False, **fields: Any) -> bytes:  # noqa: ANN401
    command: dict[str, Any] = {"client_version": "test", "protocol_version": 20, **fields}
    if method is not None:
        command["auth_method_name"] = method
        command["auth_data"] = data.encode() if isinstance(data, str) else data
    if refreshes:
        command["feature_flags"] = {"supports_auth_refresh": True}
    return frame(Type.CONNECT, **command)


async def came_in(broker: Harness, data: bytes, tls: ssl.SSLContext | None = None) -> Client:
    client = await Client.open(broker.tls_port if tls else broker.port, tls)
    client.write(data)
    await client.expect(Type.CONNECTED)
    return client


async def refused(broker: Harness, data: bytes, tls: ssl.SSLContext | None = None) -> BaseCommand:
    client = await Client.open(broker.tls_port if tls else broker.port, tls)
    client.write(data)
    answer = await client.expect(Type.ERROR)
    await client.closed()
    assert answer.error.request_id == NO_REQUEST
    return answer


async def failed(broker: Harness, data: bytes, tls: ssl.SSLContext | None = None) -> None:
    error = (await refused(broker, data, tls)).error
    assert (int(error.error), error.message) == (WireCode.AUTHENTICATION_ERROR, "Failed to authenticate")


def roles(broker: Harness) -> list[tuple[str | None, str | None]]:
    return [(session.role, session.original_role) for session in broker.broker.sessions]


# -- coming in


async def test_a_client_with_a_token_comes_in_as_its_role(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await came_in(broker, connect("token", token("audit")))
        assert roles(broker) == [("audit", None)]


async def test_a_client_with_a_password_comes_in_as_its_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await came_in(broker, connect("basic", "admin:123456"))
        assert roles(broker) == [("admin", None)]


@pytest.mark.parametrize(
    "shown",
    [
        ("token", ""),
        ("token", "no token"),
        ("token", unsigned("admin")),
        ("token", token("admin", b"x" * 64)),
        ("token", token("admin", exp=NOW_S)),
        ("basic", "admin:wrong"),
        ("basic", "nobody:123456"),
        ("tls", ""),
        ("none", ""),
        ("sasl", "admin"),
        (None, ""),
    ],
    ids=[
        "none",
        "garbage",
        "unsigned",
        "forged",
        "expired",
        "password",
        "user",
        "certificate",
        "no",
        "other",
        "absent",
    ],
)
async def test_a_client_that_does_not_show_who_it_is_is_told_nothing_but_that(
    tmp_path: Path, shown: tuple[str | None, str]
) -> None:
    async with guarded(tmp_path) as broker:
        await failed(broker, connect(*shown))
        assert not broker.broker.sessions


async def test_the_reason_goes_to_the_log_and_what_was_shown_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    shown = [token("admin", b"x" * 64), "hunter2hunter2", token("admin", exp=NOW_S - 5), "admin:hunter2"]
    async with guarded(tmp_path) as broker:
        for data in shown[:3]:
            await failed(broker, connect("token", data))
        await failed(broker, connect("basic", shown[3]))
        client = await came_in(broker, connect("token", token("audit")))
        await client.close()
    assert "the token is not signed with our key" in caplog.text
    assert "the token expired 5 s ago" in caplog.text
    assert "unknown user or wrong password" in caplog.text
    for secret in ("hunter2", token("audit").split(".")[2], shown[0].split(".")[1], data_url(SECRET), USERS[:20]):
        assert secret not in caplog.text


async def test_whoever_shows_nothing_is_anonymous_where_that_is_a_role(tmp_path: Path) -> None:
    async with guarded(tmp_path, AccessRules(anonymous_role="anybody")) as broker:
        for method in (None, "none", "sasl"):
            await (await came_in(broker, connect(method))).close()
            await until(lambda: not broker.broker.sessions)
        await came_in(broker, connect(None))
        assert roles(broker) == [("anybody", None)]


async def test_whoever_shows_something_wrong_is_not_anonymous(tmp_path: Path) -> None:
    async with guarded(tmp_path, AccessRules(anonymous_role="anybody")) as broker:
        await failed(broker, connect("token", "garbage"))
        await failed(broker, connect("basic", "admin:wrong"))


async def test_old_clients_name_the_method_by_a_number(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await failed(broker, connect(None, auth_method=2, auth_data=b"x"))
    async with guarded(tmp_path, AccessRules(anonymous_role="anybody")) as broker:
        await came_in(broker, connect(None, auth_method=0))
        assert roles(broker) == [("anybody", None)]


async def test_nothing_is_carried_out_for_a_client_that_is_not_in_yet(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        client = await Client.open(broker.port)
        producer = frame(Type.PRODUCER, topic=TOPIC, producer_id=0, request_id=1)
        client.write(connect("basic", "admin:123456") + producer)
        await client.closed()
        assert broker.broker.catalog.topic(TOPIC) is None


async def test_a_client_cannot_become_somebody_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        client = await came_in(broker, connect("token", token("audit")))
        client.write(connect("token", token("admin")))
        await client.closed()
        assert not broker.broker.sessions


async def test_where_nobody_is_asked_everybody_comes_in_whatever_they_show(harness: Harness) -> None:
    await came_in(harness, connect("token", "garbage"))
    assert roles(harness) == [(None, None)]


@pytest.mark.real
async def test_a_slow_provider_does_not_hold_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    identify = BasicProvider.identify

    def slowly(self: BasicProvider, credentials: Credentials, now_ms: int) -> Identity:
        let_go.wait(60)
        return identify(self, credentials, now_ms)

    monkeypatch.setattr(BasicProvider, "identify", slowly)
    async with guarded(tmp_path) as broker:
        waiting = await Client.open(broker.port)
        waiting.write(connect("basic", "admin:123456"))
        await came_in(broker, connect("token", token("audit")))
        let_go.set()
        await waiting.expect(Type.CONNECTED)


async def test_a_fault_of_our_own_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: BasicProvider, credentials: Credentials, now_ms: int) -> Identity:
        raise ZeroDivisionError

    monkeypatch.setattr(BasicProvider, "identify", broken)
    async with guarded(tmp_path, AccessRules(anonymous_role="anybody")) as broker:
        await failed(broker, connect("basic", "admin:123456"))
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.real
async def test_a_client_that_goes_away_while_it_is_looked_at_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def slowly(self: BasicProvider, credentials: Credentials, now_ms: int) -> Identity:
        asked.set()
        let_go.wait(60)
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr(BasicProvider, "identify", slowly)
    async with guarded(tmp_path) as broker:
        client = await Client.open(broker.port)
        client.write(connect("basic", "admin:123456"))
        await until(asked.is_set)
        client.abort()
        await until(lambda: not broker.broker.sessions)
        let_go.set()
        await turns()


@pytest.mark.real
async def test_a_handshake_that_is_not_done_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(BasicProvider, "identify", lambda *_: let_go.wait(60))
    async with guarded(tmp_path) as broker:
        client = await Client.open(broker.port)
        client.write(connect("basic", "admin:123456"))
        await until(lambda: [one for one in broker.broker.sessions if one.authentication is not None])
        broker.clock.advance(ms=KEEP_ALIVE_S * 1000)
        await client.closed()
        let_go.set()


# -- proxies

PROXY = AccessRules(authorizing=True, proxy_roles=frozenset({"proxy"}), super_user_roles=frozenset({"proxy", "admin"}))


async def test_a_proxy_speaks_for_its_client(tmp_path: Path) -> None:
    async with guarded(tmp_path, PROXY) as broker:
        await came_in(broker, connect("token", token("proxy"), original_principal="audit", proxy_version="x"))
        assert roles(broker) == [("proxy", "audit")]


@pytest.mark.parametrize(
    ("role", "fields"),
    [
        ("proxy", {}),
        ("proxy", {"original_principal": ""}),
        ("proxy", {"original_principal": "proxy"}),
        ("audit", {"proxy_version": "x"}),
        ("audit", {"original_principal": "admin"}),
        ("admin", {"original_principal": "audit"}),
    ],
    ids=["for nobody", "for an empty role", "for a proxy", "not a proxy", "for a superuser", "a superuser"],
)
async def test_a_proxy_speaks_for_somebody_and_nobody_else_does(
    tmp_path: Path, role: str, fields: dict[str, Any]
) -> None:
    async with guarded(tmp_path, PROXY) as broker:
        error = (await refused(broker, connect("token", token(role), **fields))).error
        assert (int(error.error), error.message) == (WireCode.AUTHORIZATION_ERROR, "Invalid roles.")


async def test_both_the_proxy_and_its_client_must_be_allowed(tmp_path: Path) -> None:
    async with guarded(tmp_path, PROXY) as broker:
        for original, answer in (("admin", Type.PRODUCER_SUCCESS), ("audit", Type.ERROR)):
            client = await came_in(broker, connect("token", token("proxy"), original_principal=original))
            await client.request(Type.PRODUCER, answer, topic=f"{TOPIC}-{original}", producer_id=0)
        client = await came_in(broker, connect("token", token("audit"), original_principal="audit"))
        await client.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, producer_id=0)
        assert broker.broker.catalog.topic(TOPIC) is None
        assert broker.broker.catalog.topic(f"{TOPIC}-audit") is None


CHECKING = AccessRules(
    authorizing=True, proxy_roles=frozenset({"proxy"}), authenticate_original=True, anonymous_role="anybody"
)


def through_proxy(original: str, **fields: str) -> bytes:
    said: dict[str, Any] = {"original_auth_method": "token", **fields}
    return connect("token", token("proxy"), original_principal=original, **said)


async def test_what_a_proxys_client_has_shown_is_looked_at_where_that_is_wanted(tmp_path: Path) -> None:
    async with guarded(tmp_path, CHECKING) as broker:
        await came_in(broker, through_proxy("audit", original_auth_data=token("audit")))
        assert roles(broker) == [("proxy", "audit")]
        await failed(broker, through_proxy("audit", original_auth_data=token("audit", b"x" * 64)))


async def test_a_role_that_what_was_shown_does_not_prove_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path, CHECKING) as broker:
        await failed(broker, through_proxy("audit ", original_auth_data=token("audit")))
        await failed(broker, through_proxy("audit", original_auth_data=token("admin")))
        await failed(broker, through_proxy("audit", original_auth_method="unknown"))
        await came_in(broker, through_proxy("anybody", original_auth_method="unknown"))


async def test_the_certificate_of_a_proxy_proves_nothing_about_its_client(
    tmp_path: Path,
) -> None:
    certificate = Certificate.make(tmp_path)
    tls = server_context(
        TlsOptions(certificate=certificate.certificate, key=certificate.key, trust=certificate.certificate)
    )
    shown = certificate.client(shows=certificate.signed("admin"))
    async with guarded(tmp_path, CHECKING, tls) as broker:
        await came_in(broker, connect("tls"), shown)
        for claimed in ("admin", "audit"):
            await failed(broker, through_proxy(claimed, original_auth_method="tls"), shown)


# -- what was shown expires


def expiring(in_s: int, role: str = "audit") -> str:
    return token(role, exp=NOW_S + in_s)


def answer(shown: str) -> bytes:
    return frame(
        Type.AUTH_RESPONSE, client_version="test", response={"auth_method_name": "token", "auth_data": shown.encode()}
    )


async def test_a_client_is_asked_again_when_what_it_showed_has_expired(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(90), refreshes=True))
        broker.clock.advance(ms=60_000)
        await turns()
        broker.clock.advance(ms=60_000)
        challenge = (await client.expect(Type.AUTH_CHALLENGE)).authChallenge
        assert challenge.challenge.auth_method_name == "token"
        assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
        assert challenge.protocol_version == 20

        client.write(answer(expiring(600)))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        broker.clock.advance(ms=120_000)
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)


async def test_a_client_that_does_not_refresh_before_the_next_look_is_closed(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30), refreshes=True))
        broker.clock.advance(ms=60_000)
        await client.expect(Type.AUTH_CHALLENGE)
        broker.clock.advance(ms=59_999)
        await turns()
        assert broker.broker.sessions
        broker.clock.advance(ms=1)
        await client.closed()


async def test_a_client_that_cannot_refresh_is_closed(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30)))
        broker.clock.advance(ms=60_000)
        await client.closed()


async def test_a_client_whose_credentials_do_not_expire_is_never_asked(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", token("audit")))
        for _ in range(10):
            broker.clock.advance(ms=3_600_000)
            await turns(2)
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)


@pytest.mark.parametrize(
    "shown",
    [token("admin"), token("audit", b"x" * 64), expiring(45), "garbage", ""],
    ids=["another role", "forged", "expired", "garbage", "nothing"],
)
async def test_a_refresh_with_something_else_ends_the_connection(tmp_path: Path, shown: str) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30), refreshes=True))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        broker.clock.advance(ms=60_000)
        await client.expect(Type.AUTH_CHALLENGE)
        client.write(answer(shown))
        error = (await client.expect(Type.ERROR)).error
        assert (error.request_id, error.message) == (NO_REQUEST, "Failed to authenticate")
        await client.closed()
        assert not broker.broker.sessions


async def test_an_answer_to_nothing_changes_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        client = await came_in(broker, connect("token", token("audit"), refreshes=True))
        client.write(answer(token("admin")) + frame(Type.PING))
        await client.expect(Type.PONG)
        assert roles(broker) == [("audit", None)]


async def test_a_proxys_client_that_is_not_shown_to_us_cannot_be_refreshed(tmp_path: Path) -> None:
    async with guarded(tmp_path, PROXY, keep_alive_ns=10**18) as broker:
        through = connect("token", expiring(30, "proxy"), refreshes=True, original_principal="audit")
        client = await came_in(broker, through)
        broker.clock.advance(ms=60_000)
        await client.closed()


# -- P24, P25: memory and muting


async def test_p24_a_client_that_expires_with_requests_in_the_memory_gives_them_all_back(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30)))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        broker.disk.hold()
        client.write(publish(payload_for(100 * KIB)) + publish(payload_for(100 * KIB), 1)[: 50 * KIB])
        await until(lambda: broker.used > 140 * KIB)
        broker.clock.advance(ms=60_000)
        await client.closed()
        broker.disk.release()
        await until(lambda: broker.used == 0)


async def test_p24_credentials_that_are_refused_cost_no_memory(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await failed(broker, connect("token", b"x" * (64 * KIB)))
        assert broker.used == 0


@pytest.mark.parametrize("shown", [expiring(600), expiring(30)], ids=["good", "bad"])
async def test_p25_a_refresh_between_publishes_leaks_nothing_and_mutes_nobody(tmp_path: Path, shown: str) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30), refreshes=True))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        broker.clock.advance(ms=60_000)
        await client.expect(Type.AUTH_CHALLENGE)
        broker.disk.hold()
        client.write(publish(SMALL) + answer(shown) + publish(SMALL, 1) + publish(SMALL, 2))
        await until(lambda: broker.used > 0 or not broker.broker.sessions)
        broker.disk.release()
        if shown == expiring(600):
            assert await client.receipts(3) == [0, 1, 2]
            assert not broker.muted()
        else:
            await client.closed()
        await until(lambda: broker.used == 0)


@pytest.mark.parametrize("watches", [False, True])
async def test_a_client_that_is_muted_gets_nothing_any_more_when_its_credentials_have_expired(
    tmp_path: Path, *, watches: bool
) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30), refreshes=True))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1)
        if watches:
            await client.request(
                Type.WATCH_TOPIC_LIST,
                Type.WATCH_TOPIC_LIST_SUCCESS,
                namespace="public/default",
                watcher_id=0,
                topics_pattern=".*",
            )
        connection = broker.connection_of(client)
        connection.mute(HoldKind.PUBLISH_RATE)
        broker.clock.advance(ms=60_000)
        await client.expect(Type.AUTH_CHALLENGE)
        broker.clock.advance(ms=60_000)
        if watches:
            await client.closed()
        else:
            await client.expect(Type.CLOSE_PRODUCER)
            await client.expect(Type.CLOSE_CONSUMER)
        (topic,) = broker.broker.topics.loaded()
        assert not topic.producers
        assert not topic.subscriptions["s"].consumers
        connection.unmute(HoldKind.PUBLISH_RATE)


async def test_p25_while_the_client_is_not_read_its_answer_is_waited_for(tmp_path: Path) -> None:
    async with guarded(tmp_path, keep_alive_ns=10**18) as broker:
        client = await came_in(broker, connect("token", expiring(30), refreshes=True))
        broker.clock.advance(ms=60_000)
        await client.expect(Type.AUTH_CHALLENGE)
        connection = broker.connection_of(client)
        connection.mute(HoldKind.STORAGE)
        client.write(answer(expiring(600)) + frame(Type.PING))
        broker.clock.advance(ms=120_000)
        await turns()
        connection.unmute(HoldKind.STORAGE)
        await client.expect(Type.PONG)
        assert not connection.muted
