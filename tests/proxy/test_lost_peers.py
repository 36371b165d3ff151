# SPDX-License-Identifier: Apache-2.0
"""Clients and brokers that vanish or fall silent at any moment: the other side is closed, and nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import struct
from contextlib import suppress
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING

import pytest

from penstock.net.connection import Connection
from penstock.net.upstream_socket import UpstreamSocket
from penstock.proxy.lookups import Lookups
from penstock.proxy.relay import Relay
from penstock.proxy.session import Session
from penstock.testing.client import Type, frame
from tests.proxy.in_process import dead_port, running_proxy, scripted_broker

if TYPE_CHECKING:
    from tests.proxy.in_process import Peer, RunningProxy, ScriptedBroker

pytestmark = pytest.mark.real

ROUNDS = 30
OF_CLIENTS = {Session, Relay, Lookups, Connection, UpstreamSocket}


def open_descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def reset(peer: Peer) -> None:
    """Close so that the other side gets a reset."""
    peer.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


async def test_a_client_that_dies_while_its_broker_says_nothing_leaves_no_connection() -> None:
    async with scripted_broker(greets=False) as broker, running_proxy(broker.url) as proxy:
        for _ in range(3):
            client = await proxy.client()
            proxy.connect(client)
            peer = await broker.opened.get()
            assert (await peer.next(Type.CONNECT)).body.client_version == "test"
            reset(client)
            assert await peer.read() is None


async def test_a_broker_that_accepts_and_never_answers_is_given_up_with_its_client() -> None:
    async with (
        scripted_broker(greets=False) as broker,
        running_proxy(broker.url, keepAliveIntervalSeconds="3") as proxy,
    ):
        client = await proxy.client()
        proxy.connect(client)
        peer = await broker.opened.get()
        await peer.next(Type.CONNECT)
        assert await client.read() is None
        assert await peer.read() is None


async def test_a_lookup_at_a_broker_that_never_answers_is_refused_in_time() -> None:
    async with (
        scripted_broker(greets=False) as broker,
        running_proxy(broker.url, brokerProxyConnectTimeoutMs="100") as proxy,
    ):
        client = await proxy.client()
        proxy.connect(client, through=False)
        answer = await client.next(Type.ERROR)
        assert "cannot be reached" in answer.body.message
        assert await client.read() is None


async def test_when_both_sides_have_fallen_silent_both_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.proxy.session.SILENT_INTERVALS", 0)  # at the second look that finds nothing new
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client, peer = await connected(proxy, broker)
        assert await client.read() is None
        assert await peer.read() is None


async def test_a_broker_that_dies_in_the_middle_of_a_frame_ends_its_client() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client, peer = await connected(proxy, broker)
        peer.write(frame(Type.SUCCESS, request_id=1)[:-1])
        await peer.writer.drain()
        peer.writer.close()
        assert await client.read() is None


async def connected(proxy: RunningProxy, broker: ScriptedBroker) -> tuple[Peer, Peer]:
    client = await proxy.client()
    proxy.connect(client)
    await client.next(Type.CONNECTED)
    return client, await broker.opened.get()


async def test_no_descriptor_is_left_of_clients_that_end_in_any_state() -> None:
    everywhere = {"brokerProxyAllowedIPAddresses": "127.0.0.1", "brokerProxyAllowedTargetPorts": "*"}
    async with scripted_broker() as broker, running_proxy(broker.url, **everywhere) as proxy:
        with dead_port() as dead:
            nowhere = f"127.0.0.1:{dead.getsockname()[1]}"
            asking = await proxy.client()
            proxy.connect(asking, through=False)
            lookups = await broker.opened.get()  # All clients share this connection.
            await churn(proxy, broker, nowhere, 2)
            before = open_descriptors()
            await churn(proxy, broker, nowhere, ROUNDS)
            async with asyncio.timeout(60):
                while open_descriptors() > before:  # The loop closes the last ones.
                    gc.collect()
                    await asyncio.sleep(0.01)
            lookups.writer.close()
            asking.writer.close()


async def test_a_client_that_is_gone_is_freed_without_the_garbage_collector() -> None:
    """It looks at what is old so rarely that thousands of clients would pile up."""
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        gc.collect()
        gc.disable()
        try:
            before = objects_of_clients()
            client, peer = await connected(proxy, broker)
            for kind, fields in (
                (Type.PRODUCER, {"producer_id": 1}),
                (Type.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": 0}),
            ):
                client.write(frame(kind, topic="persistent://public/default/t", request_id=1, **fields))
                await peer.next(kind)
            asking = await proxy.client()
            proxy.connect(asking, through=False)
            await asking.next(Type.CONNECTED)
            assert objects_of_clients() > before
            client.writer.close()
            asking.writer.close()
            assert await peer.read() is None
            async with asyncio.timeout(60):
                while objects_of_clients() > before:  # noqa: ASYNC110 -- nothing says that the last one is freed
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


def objects_of_clients() -> int:
    """How many objects of clients there are in this process."""
    return sum(type(one) in OF_CLIENTS for one in gc.get_objects())


async def churn(proxy: RunningProxy, broker: ScriptedBroker, nowhere: str, count: int) -> None:
    for number in range(count):
        clients = [await proxy.client() for _ in range(5)]
        proxy.connect(clients[0], through=False)
        await clients[0].next(Type.CONNECTED)
        reached, peer = await connected(proxy, broker)
        clients.append(reached)
        if number % 2:
            peer.writer.close()
            assert await reached.read() is None
        clients[1].write(frame(Type.CONNECT, client_version="t", protocol_version=20, proxy_to_broker_url=nowhere))
        await clients[1].next(Type.ERROR)
        clients[2].write(b"\0\0")
        for client in clients:
            reset(client)
            with suppress(ConnectionError):
                await client.writer.wait_closed()
        if not number % 2:
            assert await peer.read() is None
            peer.writer.close()
        with suppress(ConnectionError):
            await peer.writer.wait_closed()
        broker.connections.clear()
        proxy.forget_clients()
