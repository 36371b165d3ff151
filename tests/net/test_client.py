# SPDX-License-Identifier: Apache-2.0
"""The asyncio client, against a whole broker and against a socket that says what a test wants."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import WireCode
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.net import client as subject
from penstock.net.client import EVENTS_MAX, AskingClient, AsyncClient
from penstock.testing.client import Type, entry, frame
from penstock.testing.loop import VirtualLoop
from penstock.wire import codec
from penstock.wire.client import events
from penstock.wire.client.connection import KEEP_ALIVE_NS, ClientConnection
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import BrokerSilent, RequestRefused
from penstock.wire.client.frames import BUFFER_BYTES, FRAME_BYTES_MAX
from penstock.wire.client.lookup import Address
from penstock.wire.client.producer import Producer
from penstock.wire.errors import ProtocolError
from tests.net.harness import TOPIC, Harness, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

WELCOME = codec.connected("b", 21, 1 << 20)


def consumer(permits: int, topic: str = TOPIC) -> Consumer:
    body = codec.CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=codec.CommandSubscribe.Shared,
        consumer_id=3,
        request_id=0,
        initialPosition=codec.CommandSubscribe.Earliest,
    )
    return Consumer(body, permits_max=permits)


@asynccontextmanager
async def speaking(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A port where this is said."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    listening = loop.network.socket()
    listening.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(speak, sock=listening)
    yield listening.getsockname()[1]
    server.close()


async def test_what_is_published_comes_back(harness: Harness) -> None:
    async with await AsyncClient.open("127.0.0.1", harness.port) as client:
        producer = Producer(0, TOPIC)
        await client.open_producer(producer)
        await client.subscribe(consumer(10))
        for number in range(100):
            client.connection.send(producer, producer.metadata(1), b"%d" % number)
        await client.drain()
        got: list[int] = []
        receipts = 0
        while len(got) < 100 or receipts < 100:
            event = await client.next_event()
            if isinstance(event, events.Message):
                got.append(int(bytes(event.payload)))
            elif isinstance(event, events.Receipt):
                receipts += 1
        assert got == list(range(100))
        assert not producer.pending


async def test_many_ask_at_once_and_each_hears_its_own_answer(harness: Harness) -> None:
    async with await AsyncClient.open("127.0.0.1", harness.port) as client:
        topics = [f"{TOPIC}-{number}" for number in range(20)]
        for number, topic in enumerate(topics):
            await client.open_producer(Producer(number, topic))
        bodies = [codec.CommandLookupTopic(topic=topic, request_id=0, authoritative=False) for topic in topics]
        answers = await asyncio.gather(*(client.request(body) for body in bodies))
        assert [answer.request_id for answer in answers] == [body.request_id for body in bodies]


async def test_a_refusal_is_raised_where_it_was_asked(harness: Harness) -> None:
    async with await AsyncClient.open("127.0.0.1", harness.port) as client:
        with pytest.raises(RequestRefused, match="opening a producer") as caught:
            await client.open_producer(Producer(0, "persistent://no/such/topic"))
        assert caught.value.code is WireCode.TOPIC_NOT_FOUND


async def test_a_broker_that_goes_away_is_told_to_all_who_wait() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(WELCOME)
        await reader.read(100)
        writer.close()

    async with speaking(speak) as port:
        client = await AsyncClient.open("127.0.0.1", port)
        asked = client.request(codec.CommandGetSchema(topic=TOPIC, request_id=0))
        ended = await asyncio.gather(asked, client.next_event(), return_exceptions=True)
        assert [type(error) for error in ended] == [ConnectionResetError, ConnectionResetError]
        assert client.is_over
        with pytest.raises(ConnectionResetError):
            await client.request(codec.CommandGetSchema(topic=TOPIC, request_id=0))
        await client.closed()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (codec.error(2**64 - 1, WireCode.AUTHENTICATION_ERROR, "no"), RequestRefused),
        (b"", ConnectionResetError),
    ],
)
async def test_who_is_no_broker_or_does_not_let_us_in_ends_the_handshake(said: bytes, error: type[Exception]) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(said)
        writer.close()

    async with speaking(speak) as port:
        with pytest.raises(error):
            await AsyncClient.open("127.0.0.1", port)


async def test_a_port_that_says_nothing_is_given_up_in_time() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with speaking(speak) as port:
        with pytest.raises(TimeoutError):
            await AsyncClient.open("127.0.0.1", port, timeout_s=0.1)


async def test_an_answer_that_does_not_come_is_not_waited_for_and_may_come_late() -> None:
    late = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(WELCOME)
        await late.wait()
        writer.write(codec.success(1) + codec.reached_end_of_topic(3))
        await reader.read()
        writer.close()

    async with speaking(speak) as port, await AsyncClient.open("127.0.0.1", port) as client:
        body = codec.CommandCloseProducer(producer_id=0, request_id=0)
        with pytest.raises(TimeoutError):
            await client.request(body, timeout_s=0.01)
        late.set()
        assert await client.next_event() == events.EndOfTopic(3)


async def test_events_that_nobody_takes_stop_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "EVENTS_MAX", 10)
    count = 200_000
    assert EVENTS_MAX > 10

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(WELCOME)
        for row in range(count // 1000):
            writer.write(b"".join(codec.reached_end_of_topic(row * 1000 + one) for one in range(1000)))
            await writer.drain()
        await reader.read()
        writer.close()

    async with speaking(speak) as port, await AsyncClient.open("127.0.0.1", port) as client:
        await turns()
        assert len(client._events) == 10  # noqa: SLF001
        assert client.connection.inbound.held_bytes < 1 << 20
        for number in range(count):
            assert await client.next_event() == events.EndOfTopic(number)


async def test_a_broker_that_falls_silent_is_given_up() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(WELCOME)
        await reader.read()
        writer.close()

    async with speaking(speak) as port:
        client = await AsyncClient.open("127.0.0.1", port)
        began = asyncio.get_running_loop().time()
        with pytest.raises(BrokerSilent):
            await client.next_event()
        assert asyncio.get_running_loop().time() - began <= 3 * KEEP_ALIVE_NS / 1e9
        await client.closed()


async def test_closing_tells_those_who_wait(harness: Harness) -> None:
    client = await AsyncClient.open("127.0.0.1", harness.port)
    waiting = asyncio.ensure_future(client.next_event())
    await turns()
    client.close()
    with pytest.raises(ConnectionAbortedError):
        await waiting
    await client.closed()
    await until(lambda: not harness.connections.all())


async def test_what_a_broker_sent_to_one_who_only_asks_is_not_kept_by_the_error_that_ends_it() -> None:
    payload, rest = entry(b"x" * MIB), asyncio.Event()
    head = frame(Type.MESSAGE, consumer_id=0, message_id={"ledgerId": 1, "entryId": 1})[4:]
    message = (len(head) + len(payload)).to_bytes(4, "big") + head + payload

    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WELCOME + message[: MIB // 2])
        await rest.wait()
        writer.write(message[MIB // 2 :])
        writer.close()

    memory = Row("answersMemory", 4 * MIB)
    async with speaking(speak) as port:
        client = await AskingClient.open_charged(
            memory, Address("127.0.0.1", port, tls=False), ClientConnection(answer_bytes_max=FRAME_BYTES_MAX)
        )
        await until(lambda: client.connection.inbound.held_bytes == MIB // 2)
        read = client.connection.inbound.data
        assert memory.used_bytes == len(read) - BUFFER_BYTES
        rest.set()
        await client.closed()
        with pytest.raises(ProtocolError, match="MESSAGE for a client that only asks"):
            await client.request(codec.CommandLookupTopic(topic=TOPIC, request_id=0))
        assert memory.used_bytes == 0
        assert sys.getrefcount(read) == 2  # of here and of the call
