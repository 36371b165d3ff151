# SPDX-License-Identifier: Apache-2.0
"""A proxy that stops: what it has read is answered, what it has not read is not lost, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock import proxy_app
from penstock.proxy import proxy as proxy_module
from penstock.testing.client import Type, entry, frame, send
from tests.proxy.in_process import ScriptedBroker, running_proxy, scripted_broker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.testing.client import Frame
    from tests.proxy.in_process import Peer, RunningProxy

pytestmark = pytest.mark.real

TOPIC = "persistent://public/default/t"


async def connected(proxy: RunningProxy, broker: ScriptedBroker) -> tuple[Peer, Peer]:
    """A client with a producer, and the broker's end of its connection."""
    client = await proxy.client()
    proxy.connect(client)
    await client.next(Type.CONNECTED)
    peer = await broker.opened.get()
    client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=7, request_id=1))
    await peer.next(Type.PRODUCER)
    peer.write(frame(Type.PRODUCER_SUCCESS, request_id=1, producer_name="p"))
    await client.next(Type.PRODUCER_SUCCESS)
    return client, peer


def receipt(sequence_id: int) -> bytes:
    return frame(
        Type.SEND_RECEIPT, producer_id=7, sequence_id=sequence_id, message_id={"ledgerId": 1, "entryId": sequence_id}
    )


async def first_is_answered(client: Peer, peer: Peer, closings: Sequence[Frame]) -> None:
    """The broker answers the first SEND and what the drain closes; the client gets the receipt, then the end."""
    peer.write(receipt(0))
    for closing in closings:
        peer.write(frame(Type.SUCCESS, request_id=closing.body.request_id))
    assert (await client.next(Type.SEND_RECEIPT)).body.sequence_id == 0
    assert await client.read() is None
    client.writer.close()


async def test_receipts_in_flight_reach_the_client_before_the_end() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client, peer = await connected(proxy, broker)
        client.write(send(7, 0, entry(b"x")))
        await peer.next(Type.SEND)
        draining = asyncio.create_task(proxy.serving.drain())
        closings = [await peer.next(Type.CLOSE_PRODUCER) for _ in range(2)]
        assert closings[0].body.producer_id == 7
        # Not read any more, and so without a receipt: the client sends it again elsewhere.
        client.write(send(7, 1, entry(b"y" * 100_000)))
        await client.writer.drain()
        await first_is_answered(client, peer, closings)
        await draining


async def test_an_answer_that_comes_alone_is_not_passed_on() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        client, peer = await connected(proxy, broker)
        draining = asyncio.create_task(proxy.serving.drain())
        for _ in range(2):
            closing = await peer.next(Type.CLOSE_PRODUCER)
            peer.write(frame(Type.SUCCESS, request_id=closing.body.request_id))
            await peer.writer.drain()
        assert await client.read() is None
        client.writer.close()
        await draining


async def test_a_broker_that_does_not_answer_is_not_waited_for_longer_than_the_limit() -> None:
    async with scripted_broker() as broker:
        async with running_proxy(broker.url, proxyDrainTimeoutMs="50") as proxy:
            client, peer = await connected(proxy, broker)
            await proxy.serving.drain()
            await peer.next(Type.CLOSE_PRODUCER)
        assert await client.read() is None
        assert await peer.next(Type.CLOSE_PRODUCER)
        assert await peer.read() is None


async def test_a_client_that_stays_is_closed_at_the_limit() -> None:
    async with scripted_broker() as broker:
        async with running_proxy(broker.url, proxyDrainTimeoutMs="50") as proxy:
            client = await proxy.client()
            proxy.connect(client, through=False)
            await client.next(Type.CONNECTED)
            await proxy.serving.drain()
            assert await client.read() is None
        with pytest.raises(ConnectionError):
            await pinged_for_ever(client)


async def pinged_for_ever(client: Peer) -> None:
    while True:
        client.write(frame(Type.PING))
        await client.writer.drain()


async def test_it_says_that_it_is_not_ready_while_it_still_accepts() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url, proxyUnreadyTimeMs="600000") as proxy:
        async with httpx.AsyncClient(base_url=proxy.serving.admin_url, trust_env=False, timeout=60) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            draining = asyncio.create_task(proxy.serving.drain())
            await asyncio.sleep(0)
            answer = await http.get("/healthz")
            assert (answer.status_code, answer.json()["reason"]) == (503, "the proxy is stopping")
        await connected(proxy, broker)
        draining.cancel()


async def test_a_proxy_without_clients_is_drained_at_once_and_accepts_nobody() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy:
        await proxy.serving.drain()
        with pytest.raises(ConnectionError):
            await proxy.client()


async def test_all_that_a_stop_cuts_off_is_said_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_app, "OTHERS_S", 30.0)  # However slow the machine is, each step says what it cuts off.
    async with scripted_broker() as broker, AsyncExitStack() as callers:
        web = await asyncio.start_server(endless, "127.0.0.1", 0)
        callers.callback(web.close)
        async with running_proxy(
            broker.url,
            proxyDrainTimeoutMs="50",
            brokerWebServiceURL=f"http://127.0.0.1:{web.sockets[0].getsockname()[1]}",
            usageRecordsEnabled="true",
            governanceRecordsEnabled="true",
        ) as proxy:
            client = await proxy.client()
            proxy.connect(client, through=False)
            await client.next(Type.CONNECTED)
            loop, port = asyncio.get_running_loop(), int(proxy.serving.admin_url.rpartition(":")[2])
            for _ in range(3):
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                await loop.sock_connect(caller, ("127.0.0.1", port))
                await loop.sock_sendall(caller, b"GET /admin/v2/endless HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await loop.sock_recv(caller, 4) == b"HTTP"  # From now on it is not read.
            await proxy.serving.drain()
    (line,) = (one.getMessage() for one in caplog.records if "cut off" in one.getMessage())
    assert "1 of 1 connections were not drained" in line
    assert "3 connections to the admin port had unfinished responses" in line
    assert "the last usage records were not stored" in line
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request of an administrator with more than anybody reads."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    with suppress(ConnectionError):
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
    writer.close()


async def test_held_sends_are_not_sent_at_the_very_end_so_that_no_receipt_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "RECEIPTS_S", 60.0)
    monkeypatch.setattr(
        proxy_module, "RECEIPTS_PART", 59.5 / 60
    )  # Half a second for what waits, the rest for receipts.
    groups = tmp_path / "groups.toml"
    groups.write_text('[slow]\npublishRateInMsgs = 1\nnamespaces = ["public/default"]\n')
    async with scripted_broker() as broker:
        async with running_proxy(
            broker.url,
            proxyDrainTimeoutMs="60000",
            resourceGroupsFile=str(groups),
            resourceUsagePublishToTopic="false",
        ) as running:
            client, peer = await connected(running, broker)
            client.write(send(7, 0, entry(b"x"), num_messages=100_000))  # The group is in debt for a day.
            await peer.next(Type.SEND)
            client.write(b"".join(send(7, number, entry(b"y")) for number in range(1, 4)))
            client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=8, request_id=2))
            await peer.next(Type.PRODUCER)  # So those before it were read.
            draining = asyncio.create_task(running.serving.drain())
            # The one that holds nothing, the request without a producer, and at last the one whose SENDs were dropped.
            closings = [await peer.next(Type.CLOSE_PRODUCER) for _ in range(3)]
            assert [closing.body.producer_id for closing in closings][::2] == [8, 7]
            await first_is_answered(client, peer, closings)
            await draining
        assert await peer.read() is None
    assert "3 SENDs that waited for a resource group were not sent" in caplog.text
