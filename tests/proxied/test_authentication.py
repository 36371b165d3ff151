# SPDX-License-Identifier: Apache-2.0
"""What brokers are told about a proxy's clients, what expires, and what hostile clients try."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import WireCode
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.net.own_credentials import OwnCredentials
from penstock.net.tls import client_context
from penstock.testing.client import Type, frame
from penstock.testing.tokens import token
from tests.net.harness import Client, running, until
from tests.proxied.harness import KEEP_ALIVE_NS, PROXY, REFRESH_NS, RULES, Proxied, hello, proxied, tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.authentication.authenticator import Authenticator
    from penstock.broker.access.rules import AccessRules
    from penstock.testing.certificates import Certificate

NOW_S = 1_700_000_000  # by the harness's clock
TOPIC = "persistent://public/default/t"
REFRESH = b"PulsarAuthRefresh"
CHECKING = replace(RULES, authenticate_original=True)


@asynccontextmanager
async def both(directory: Path, rules: AccessRules = RULES, **proxy: Any) -> AsyncIterator[Proxied]:  # noqa: ANN401
    async with (
        running(directory, authenticator=tokens(), access=rules, keep_alive_ns=KEEP_ALIVE_NS) as broker,
        proxied(broker, **proxy) as running_proxy,
    ):
        yield running_proxy


def expiring(in_s: int, role: str = "root") -> str:
    return token(role, exp=NOW_S + in_s)


def answer(shown: str) -> bytes:
    return frame(
        Type.AUTH_RESPONSE,
        client_version="test",
        protocol_version=20,
        response={"auth_method_name": "token", "auth_data": shown.encode()},
    )


async def passes(proxy: Proxied, ns: int) -> None:
    """Let time pass, with all that is due."""
    await asyncio.sleep(ns / NS_PER_S)


async def error_of(client: Client) -> tuple[int, str]:
    error = (await client.expect(Type.ERROR)).error
    await client.closed()
    return int(error.error), error.message


async def lookup_error(client: Client, **fields: str) -> int:
    found = await client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=TOPIC, **fields)
    return int(found.lookupTopicResponse.error)


# -- what brokers are told


@pytest.mark.parametrize("forward", [False, True])
async def test_lookups_and_connections_carry_the_role_of_the_client(tmp_path: Path, *, forward: bool) -> None:
    async with both(tmp_path, CHECKING if forward else RULES, forward=forward) as proxy:
        client = await proxy.connected(token("root"))
        await client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=TOPIC)
        await client.request(
            Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, namespace="public/default"
        )
        connected = await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        await connected.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        assert set(proxy.roles()) == {(PROXY, "root")}


async def test_what_is_forwarded_is_checked_again_by_the_broker(tmp_path: Path) -> None:
    async with both(tmp_path, CHECKING, forward=False) as proxy:
        client = await proxy.client(token("root"))
        code, _ = await error_of(client)
        assert code == WireCode.SERVICE_NOT_READY, "the proxy is at fault, so the client may retry"


@pytest.mark.parametrize("how", ["lookups", "a connection"])
async def test_a_client_cannot_say_that_it_is_somebody_else(tmp_path: Path, how: str) -> None:
    async with both(tmp_path) as proxy:
        claims = {"original_principal": "root", "original_auth_data": "x", "original_auth_method": "token"}
        target = {"proxy_to_broker_url": proxy.target} if how == "a connection" else {}
        client = await proxy.connected(token("nobody"), proxy_version="1", **claims, **target)
        assert proxy.roles() == [(PROXY, "nobody")]
        if target:
            assert await lookup_error(client, original_principal="root") == WireCode.AUTHORIZATION_ERROR
            client.write(hello(token("root"), original_principal="root"))
            await client.closed()
            assert proxy.closed == ["CONNECT came twice"]
        else:
            assert await lookup_error(client, original_principal="root") == WireCode.AUTHORIZATION_ERROR
            client.write(hello(token("root")))
            await client.closed()


async def test_without_authentication_a_client_is_shown_as_it_is(tmp_path: Path) -> None:
    async with both(tmp_path, authenticates=False) as proxy:
        client = await proxy.connected(token("nobody"))
        assert await lookup_error(client) == WireCode.AUTHORIZATION_ERROR
        await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        assert proxy.roles() == [("nobody", None), ("root", None)]
        code, _ = await error_of(await proxy.client(token("nobody"), original_principal="root"))
        assert code == WireCode.AUTHORIZATION_ERROR


async def test_a_client_that_goes_on_to_a_broker_keeps_its_role(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(token("nobody"))
        client.write(hello(token("root"), proxy_to_broker_url=proxy.target))
        code, text = await error_of(client)
        assert (code, "cannot change" in text) == (WireCode.AUTHENTICATION_ERROR, True)
        client = await proxy.connected(token("root"))
        client.write(hello(token("root"), proxy_to_broker_url=proxy.target))
        await client.expect(Type.CONNECTED)


async def test_clients_without_credentials_have_the_anonymous_role(tmp_path: Path) -> None:
    async with both(tmp_path, anonymous="guest") as proxy:
        await proxy.connected("", auth_method_name="none")
        assert proxy.roles() == [(PROXY, "guest")]


async def test_no_answer_is_shared_by_clients_of_different_roles(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        clients = [await proxy.connected(token(role)) for role in ("root", "nobody", "root", "nobody")]
        for client in clients:
            client.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace="public/default"))
        answers = [(await client.read()).type for client in clients]
        assert answers == [Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, Type.ERROR] * 2


# -- what expires


async def test_a_client_in_lookups_is_asked_again_when_its_credentials_have_expired(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True)
        await passes(proxy, REFRESH_NS + NS_PER_S)
        challenge = (await client.expect(Type.AUTH_CHALLENGE)).authChallenge.challenge
        assert (challenge.auth_method_name, challenge.auth_data) == ("token", REFRESH)
        client.write(answer(expiring(1_000)))
        await passes(proxy, 2 * REFRESH_NS)
        await client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=TOPIC)
        assert proxy.closed == []


async def test_a_lookup_waits_for_new_credentials(tmp_path: Path) -> None:
    async with both(tmp_path, CHECKING, forward=True) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True)
        await passes(proxy, 11 * NS_PER_S)
        client.write(frame(Type.PARTITIONED_METADATA, request_id=1, topic=TOPIC))
        await client.expect(Type.AUTH_CHALLENGE)
        client.write(answer(expiring(1_000)))
        found = await client.expect(Type.PARTITIONED_METADATA_RESPONSE)
        assert not found.partitionMetadataResponse.HasField("error")


async def test_a_lookup_that_is_passed_on_asks_for_new_credentials_when_a_broker_refuses_the_old_ones(
    tmp_path: Path,
) -> None:
    async with both(tmp_path, authenticates=False) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True)
        await proxy.services.upstreams.close()
        await passes(proxy, 11 * NS_PER_S)
        client.write(frame(Type.PARTITIONED_METADATA, request_id=1, topic=TOPIC))
        await client.expect(Type.AUTH_CHALLENGE)
        client.write(answer(expiring(1_000)))
        found = await client.expect(Type.PARTITIONED_METADATA_RESPONSE)
        assert not found.partitionMetadataResponse.HasField("error")


async def test_a_connected_client_is_asked_by_the_proxy_and_goes_on(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True, proxy_to_broker_url=proxy.target)
        await passes(proxy, REFRESH_NS + NS_PER_S)
        await client.expect(Type.AUTH_CHALLENGE)
        client.write(answer(expiring(1_000)))
        await passes(proxy, 2 * REFRESH_NS)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        assert proxy.closed == []


async def test_a_connected_client_answers_its_broker_if_that_checks_what_is_forwarded(tmp_path: Path) -> None:
    async with both(tmp_path, CHECKING, forward=True) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True, proxy_to_broker_url=proxy.target)
        challenges = 0
        for _ in range(3):
            await passes(proxy, REFRESH_NS + NS_PER_S)
            client.write(frame(Type.PING))
            while (command := await client.read()).type != Type.PONG:
                assert command.type == Type.AUTH_CHALLENGE
                challenges += 1
                client.write(answer(expiring(1_000)))
        assert challenges == 2, "one of the proxy, and one of the broker"
        assert proxy.closed == []
        assert proxy.roles() == [(PROXY, "root")]


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (None, "did not refresh them in time"),
        (token("nobody"), "refused"),
        (token("root", b"x" * 64), "refused"),
        (expiring(5), "refused"),
    ],
    ids=["nothing", "another role", "another key", "expired too"],
)
async def test_a_client_that_does_not_renew_its_credentials_is_disconnected(
    tmp_path: Path, *, target: bool, answers: str | None, why: str
) -> None:
    async with both(tmp_path) as proxy:
        to_broker = {"proxy_to_broker_url": proxy.target} if target else {}
        client = await proxy.connected(expiring(10), refreshes=True, **to_broker)
        await passes(proxy, REFRESH_NS + NS_PER_S)
        await client.expect(Type.AUTH_CHALLENGE)
        if answers is not None:
            client.write(answer(answers))
        else:
            await passes(proxy, REFRESH_NS)
        await until(lambda: proxy.closed)
        assert why in proxy.closed[0]


async def test_a_client_that_cannot_renew_its_credentials_is_disconnected(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        await proxy.connected(expiring(10))
        await passes(proxy, REFRESH_NS + NS_PER_S)
        assert proxy.closed == ["the credentials have expired, and the client cannot refresh them"]


# -- hostile clients


async def test_200_clients_with_wrong_tokens_leave_nothing(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        clients = [await proxy.client(token("root", b"x" * 64) + "x" * (number * 300)) for number in range(200)]
        for client in clients:
            code, text = await error_of(client)
            assert code == WireCode.AUTHENTICATION_ERROR
            assert text.startswith("Failed to authenticate")
        assert proxy.services.sessions_memory.used_bytes == 0
        assert proxy.roles() == []


async def test_credentials_that_are_kept_are_charged_and_bounded(tmp_path: Path) -> None:
    async with both(tmp_path, authenticates=False, sessions_bytes=16 * KIB) as proxy:
        first = await proxy.connected(token("root"))
        used_bytes = proxy.services.sessions_memory.used_bytes
        assert len(token("root")) <= used_bytes < KIB
        code, text = await error_of(await proxy.client("x" * 20_000))
        assert (code, "raise sessionsMB" in text) == (WireCode.SERVICE_NOT_READY, True)
        first.writer.close()
        await until(lambda: proxy.services.sessions_memory.used_bytes == 0)


async def test_an_answer_without_a_challenge_changes_nothing_and_wrong_ones_end_the_connection(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        client.write(answer(token("root")) + frame(Type.PING))
        await client.expect(Type.PONG)
        client.write(answer(token("nobody")))
        assert (await error_of(client))[0] == WireCode.AUTHENTICATION_ERROR
        early = await Client.open(proxy.port)
        early.write(answer(token("root")))
        await early.closed()


# -- TLS


def verifying(certificate: Certificate, shown: Certificate | None = None) -> ssl.SSLContext:
    """Return the context of a port whose clients may show certificates; `shown`: its own, if not the trusted one."""
    context = (shown or certificate).server()
    context.load_verify_locations(certificate.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def with_certificates() -> Authenticator:
    return tokens("tls")


async def test_a_certificate_names_the_role(tmp_path: Path, certificate: Certificate) -> None:
    async with both(tmp_path, tls=verifying(certificate), providers=with_certificates) as proxy:
        shows = certificate.client(shows=certificate.signed("root", tmp_path))
        client = await proxy.client("", shows, auth_method_name="tls")
        await client.expect(Type.CONNECTED)
        assert proxy.roles() == [(PROXY, "root")]
        nothing = await proxy.client("", certificate.client(), auth_method_name="tls")
        assert (await error_of(nothing))[0] == WireCode.AUTHENTICATION_ERROR


@asynccontextmanager
async def with_tls(
    directory: Path, certificate: Certificate, shown: Certificate | None = None, *, authenticates: bool = True
) -> AsyncIterator[Proxied]:
    """A proxy that reaches its broker with TLS, checks its name, and has a certificate of its own."""
    own = certificate.signed(PROXY, directory)
    contexts = (
        client_context(certificate.certificate, check_hostname=True),
        client_context(certificate.certificate, check_hostname=True, certificate=own.certificate, key=own.key),
    )
    async with (
        running(
            directory,
            authenticator=with_certificates(),
            access=RULES,
            keep_alive_ns=KEEP_ALIVE_NS,
            tls=verifying(certificate, shown),
        ) as broker,
        proxied(broker, brokers_tls=contexts, own=OwnCredentials("tls"), authenticates=authenticates) as running_proxy,
    ):
        yield running_proxy


async def test_a_proxy_shows_its_certificate_to_brokers_whose_name_it_has_checked(
    tmp_path: Path, certificate: Certificate
) -> None:
    async with with_tls(tmp_path, certificate) as proxy:
        client = await proxy.connected(token("root"))
        await client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=TOPIC)
        listing, listed = Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE
        await client.request(listing, listed, namespace="public/default")
        connected = await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        await connected.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        assert set(proxy.roles()) == {(PROXY, "root")}


async def test_a_proxy_that_passes_credentials_on_does_not_show_its_certificate(
    tmp_path: Path, certificate: Certificate
) -> None:
    async with with_tls(tmp_path, certificate, authenticates=False) as proxy:
        for client in (
            await proxy.client("", auth_method_name="tls"),
            await proxy.client("", auth_method_name="tls", proxy_to_broker_url=proxy.target),
        ):
            assert (await error_of(client))[0] == WireCode.AUTHENTICATION_ERROR
        await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)


async def test_a_broker_with_another_name_is_not_trusted(tmp_path: Path, certificate: Certificate) -> None:
    async with with_tls(tmp_path, certificate, certificate.signed("elsewhere", tmp_path)) as proxy:
        client = await proxy.client(token("root"))
        assert (await error_of(client))[0] == WireCode.SERVICE_NOT_READY
        connected = await proxy.client(token("root"), proxy_to_broker_url=proxy.target)
        await connected.closed()
        assert any("TLS handshake with the broker failed" in reason for reason in proxy.closed)


# -- the proxy's own credentials


async def test_a_token_of_the_proxy_that_was_replaced_is_shown_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(PROXY, exp=NOW_S + 10))
    async with both(tmp_path, own=OwnCredentials("token", file=file)) as proxy:
        await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        await passes(proxy, 11 * NS_PER_S)
        code, text = await error_of(await proxy.client(token("root"), proxy_to_broker_url=proxy.target))
        assert (code, "refuses the credentials of this proxy" in text) == (WireCode.SERVICE_NOT_READY, True)
        file.write_text(token(PROXY))
        await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        await proxy.connected(token("root"))


async def test_a_client_that_is_not_read_has_longer_to_answer_but_not_for_ever(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(expiring(10), refreshes=True)
        (connection,) = [one for one in proxy.connections.all() if one.is_open]
        connection.mute(HoldKind.COMMANDS)
        await passes(proxy, 2 * REFRESH_NS + 2 * NS_PER_S)
        await client.expect(Type.AUTH_CHALLENGE)
        assert proxy.closed == []
        await passes(proxy, REFRESH_NS + NS_PER_S)
        assert proxy.closed == ["the credentials have expired, and the client did not refresh them in time"]


async def test_answers_that_are_being_checked_are_charged(tmp_path: Path) -> None:
    async with both(tmp_path) as proxy:
        client = await proxy.connected(token("root"), proxy_to_broker_url=proxy.target)
        for number in range(50):
            client.write(answer(token("root", padding="x" * 100 * number)))
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)
        await until(lambda: proxy.services.commands_memory.used_bytes == 0)
        assert proxy.closed == []
