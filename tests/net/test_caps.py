# SPDX-License-Identifier: Apache-2.0
"""How many clients may be connected, how long they may take to say who they are, and that none of it leaks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import WireCode
from penstock.testing.client import Type
from tests.net.harness import KEEP_ALIVE_S, Client, Harness, connect, running, turns, until

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from penstock.testing.certificates import Certificate

TOO_MANY = "Reached the maximum number of connections"


async def turned_away(broker: Harness) -> str:
    client = await Client.open(broker.port)
    error = (await client.expect(Type.ERROR)).error
    await client.closed()
    assert (error.request_id, int(error.error)) == (2**64 - 1, WireCode.NOT_ALLOWED_ERROR)
    return error.message


async def test_one_client_more_than_allowed_is_told_so_and_closed(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max=2) as broker:
        first, _second = [await Client.connected(broker.port) for _ in range(2)]
        assert await turned_away(broker) == TOO_MANY
        await first.close()
        await until(lambda: len(broker.connections) == 1)
        await Client.connected(broker.port)


async def test_one_client_more_than_allowed_of_an_address_is_told_so_and_closed(tmp_path: Path) -> None:
    async with running(tmp_path, connections_per_address_max=1) as broker:
        await Client.connected(broker.port)
        assert await turned_away(broker) == f"{TOO_MANY} on address 127.0.0.1"


async def test_another_address_is_not_held_back_by_the_first(tmp_path: Path) -> None:
    async with running(tmp_path, connections_per_address_max=1) as broker:
        await Client.connected(broker.port)
        other = Client(*await asyncio.open_connection("127.0.0.1", broker.port, local_addr=("127.0.0.2", 0)))
        other.write(connect())
        await other.expect(Type.CONNECTED)


async def test_a_bound_that_changes_while_running_counts_at_once(harness: Harness) -> None:
    clients = [await Client.connected(harness.port) for _ in range(3)]
    harness.broker.limits_in_force.now = replace(harness.broker.limits, connections_max=3)
    assert await turned_away(harness) == TOO_MANY
    for client in clients:
        client.write(connect())
        await client.expect(Type.CONNECTED)


async def test_over_tls_a_client_too_many_is_closed_before_its_handshake(
    tmp_path: Path, server_tls: ssl.SSLContext, certificate: Certificate
) -> None:
    async with running(tmp_path, tls=server_tls, connections_max=1) as broker:
        await Client.connected(broker.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await Client.connected(broker.tls_port, certificate.client())
        assert broker.connections.refused == 1


async def test_clients_turned_away_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, connections_max=1) as broker:
        await Client.connected(broker.port)
        for _ in range(5):
            await turned_away(broker)
    assert caplog.text.count("is turned away: 1 connections are open") == 1


async def test_nothing_is_remembered_of_clients_that_are_gone(
    tmp_path: Path, server_tls: ssl.SSLContext, certificate: Certificate
) -> None:
    async with running(tmp_path, tls=server_tls, connections_per_address_max=4) as broker:
        connections = broker.connections
        for _ in range(3):
            (await Client.connected(broker.port)).abort()
            await (await Client.connected(broker.tls_port, certificate.client())).close()
            silent = await Client.open(broker.port)
            silent.write(b"GET / HTTP/1.1\r\n\r\n")
            await silent.closed()
            await until(lambda: len(connections) == 0)
        assert connections.of_address("127.0.0.1") == 0
        assert not connections._of_address  # noqa: SLF001 - what must not grow
        assert not connections._addresses  # noqa: SLF001


# -- time


async def test_a_client_that_says_nothing_is_given_up(harness: Harness) -> None:
    client = await Client.open(harness.port)
    await until(lambda: len(harness.connections) == 1)
    harness.clock.advance(ms=KEEP_ALIVE_S * 1000 - 1)
    await turns()
    assert len(harness.connections) == 1
    harness.clock.advance(ms=1)
    await client.closed()


@pytest.mark.parametrize(
    "begun", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["nothing", "a beginning"]
)
async def test_a_tls_handshake_that_does_not_end_is_given_up(
    tmp_path: Path, server_tls: ssl.SSLContext, begun: bytes
) -> None:
    async with running(tmp_path, tls=server_tls) as broker:
        client = await Client.open(broker.tls_port)
        client.write(begun)
        await until(lambda: len(broker.connections) == 1)
        broker.clock.advance(ms=KEEP_ALIVE_S * 1000)
        await client.closed()


async def test_a_tls_client_that_then_says_nothing_is_given_up(
    tmp_path: Path, server_tls: ssl.SSLContext, certificate: Certificate
) -> None:
    async with running(tmp_path, tls=server_tls) as broker:
        client = await Client.open(broker.tls_port, certificate.client())
        await until(lambda: len(broker.connections) == 1)
        broker.clock.advance(ms=KEEP_ALIVE_S * 1000)
        await client.closed()
