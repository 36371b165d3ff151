# SPDX-License-Identifier: Apache-2.0
"""Topic listings through the proxy: what is held for them, when, and for whom (PIP-442)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.errors import PenstockError, ServiceNotReady, WireCode
from penstock.core.units import MIB
from penstock.governance.memory_row import MemoryRow
from penstock.net.clock import SystemClock
from penstock.net.topic_list_limiter import LimitType, TopicListLimits, TopicListMemoryLimiter
from penstock.proxy.listings import Listings
from penstock.proxy.upstreams import Identity, UpstreamOptions, Upstreams
from penstock.testing.client import Type, frame
from penstock.wire import codec
from penstock.wire.client.addresses import Address
from penstock.wire.client.errors import RequestRefused
from penstock.wire.client.frames import Frame, Inbound, decode_frame
from tests.net.harness import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.net.connection import Connection

pytestmark = pytest.mark.real

SOMEBODY = Identity("none", b"")
TOPICS = [f"persistent://public/default/topic-{number:06}" for number in range(1_000)]
LIST_BYTES = len(frame(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=1, topics=TOPICS))


def listing(request_id: int) -> bytes:
    return frame(
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=request_id, topics=TOPICS, topics_hash="h", changed=True
    )


class Broker:
    """A broker that lists topics when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self.connections = 0
        self.answer: Callable[[int], bytes] = listing

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open[writer] = asyncio.current_task()
        inbound = Inbound()
        try:
            while data := await reader.read(65_536):
                inbound.add(data)
                while (came := inbound.take_frame()) is not None:
                    await self._answer(came, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _answer(self, came: Frame, writer: asyncio.StreamWriter) -> None:
        if came.kind == Type.CONNECT:
            writer.write(frame(Type.CONNECTED, server_version="s", protocol_version=20))
        elif came.kind == Type.GET_TOPICS_OF_NAMESPACE:
            self.asked.append(came)
            await self.may_answer.wait()
            writer.write(self.answer(came.body.request_id))
        await writer.drain()


class Client:
    """A connection's writing half, which keeps what it is given until it is told that the socket took it."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.peer = f"10.0.0.{number}:5000"
        self.frames: list[bytes] = []
        self.passed: list[Callable[[], None]] = []

    def write_shared(self, head: bytes, shared: tuple[memoryview], _nbytes: int, passed: Callable[[], None]) -> None:
        self.frames.append(head + b"".join(shared))
        self.passed.append(passed)

    def take(self) -> None:
        """The socket takes everything."""
        while self.passed:
            self.passed.pop()()


class World:
    def __init__(self, broker: Broker, port: int, limits: TopicListLimits) -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        self.broker = broker
        options = UpstreamOptions(addresses=(Address("127.0.0.1", port, tls=False),))
        self.limiter = TopicListMemoryLimiter(limits, clock=clock, loop=loop)
        self.upstreams = Upstreams(options, clock, MemoryRow("sessions", MIB))
        self.listings = Listings(self.limiter, self.upstreams, clock, loop)

    def ask(self, client: Client, request_id: int = 1, namespace: str = "public/default") -> asyncio.Task[None]:
        body = codec.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id)
        return asyncio.create_task(self.listings.answer(cast("Connection", client), SOMEBODY, body))

    def held(self) -> tuple[int, int]:
        """Bytes of heap and of direct memory."""
        snapshot = self.limiter.snapshot()
        return snapshot.heap.acquired, snapshot.direct.acquired


@asynccontextmanager
async def world(**limits: int) -> AsyncIterator[World]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    try:
        made = World(broker, server.sockets[0].getsockname()[1], TopicListLimits(**limits))
        yield made
        await made.listings.close()
        await made.upstreams.close()
    finally:
        server.close()
        for writer, task in broker.open.items():
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            if task is not None:
                task.cancel()
                await asyncio.wait([task])


async def test_the_brokers_list_is_passed_on_under_the_clients_request_id() -> None:
    async with world() as here:
        client = Client(1)
        await here.ask(client, request_id=77)
        (came,) = client.frames
        answer = decode_frame(came, 0, len(came))
        assert (answer.body.request_id, list(answer.body.topics)) == (77, TOPICS)
        assert (answer.body.topics_hash, answer.body.changed) == ("h", True)


async def test_an_answer_is_charged_to_direct_memory_until_the_last_client_has_it() -> None:
    async with world() as here:
        one, two = Client(1), Client(2)
        await asyncio.gather(here.ask(one), here.ask(two))
        heap_bytes, direct_bytes = here.held()
        assert heap_bytes == 0
        assert LIST_BYTES <= direct_bytes <= LIST_BYTES + 100
        one.take()
        assert here.held() == (0, direct_bytes)
        two.take()
        assert here.held() == (0, 0)


async def test_clients_that_ask_before_the_broker_is_asked_share_one_answer() -> None:
    async with world() as here:
        clients = [Client(number) for number in range(50)]
        await asyncio.gather(*(here.ask(client, request_id=client.id) for client in clients))
        assert len(here.broker.asked) == 1
        _, direct_bytes = here.held()
        assert direct_bytes < 2 * LIST_BYTES
        assert [decode_frame(c.frames[0], 0, len(c.frames[0])).body.request_id for c in clients] == list(range(50))


async def test_a_client_that_asks_after_the_broker_was_asked_gets_a_newer_answer() -> None:
    async with world() as here:
        here.broker.may_answer.clear()
        first = here.ask(Client(1))
        await until(lambda: here.broker.asked)
        second = here.ask(Client(2))
        await until(lambda: len(here.broker.asked) == 2)
        here.broker.may_answer.set()
        await asyncio.gather(first, second)


async def test_the_heap_permit_is_the_size_of_the_answer_before_the_answer_is_read() -> None:
    async with world(heap_bytes_max=LIST_BYTES + 2_000) as here:
        other = await here.limiter.acquire(3_000, LimitType.HEAP_MEMORY)
        client = Client(1)
        asking = here.ask(client)
        await until(lambda: here.limiter.snapshot().heap.waiting_updates)
        assert here.held()[0] < 5_000
        here.limiter.release(other)
        await asking
        assert client.frames


async def test_an_answer_that_can_never_fit_is_refused_and_nothing_stays_held(caplog: pytest.LogCaptureFixture) -> None:
    async with world(heap_bytes_max=10_000) as here:
        with pytest.raises(PenstockError) as refused:
            await here.ask(Client(1))
        assert refused.value.wire_code == WireCode.TOO_MANY_REQUESTS
        said = "[10.0.0.1:5000] Failed to acquire actual heap memory permits for GetTopicsOfNamespace: "
        assert said in caplog.text
        assert here.held() == (0, 0)
        here.broker.answer = lambda request_id: frame(
            Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=request_id, topics=TOPICS[:3]
        )
        client = Client(2)
        await here.ask(client)
        assert client.frames, "the proxy goes on"


async def test_too_many_requests_of_the_broker_stays_that() -> None:
    async with world() as here:
        here.broker.answer = lambda request_id: frame(
            Type.ERROR, request_id=request_id, error=int(WireCode.TOO_MANY_REQUESTS), message="later"
        )
        with pytest.raises(RequestRefused) as refused:
            await here.ask(Client(1))
        assert (refused.value.code, refused.value.said) == (WireCode.TOO_MANY_REQUESTS, "later")
        assert here.held() == (0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x7f\xff\xff\xff" + bytes(100),
        (5_000).to_bytes(4, "big") + bytes(5_000),
        frame(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=2, topics=TOPICS),
        frame(Type.CONNECTED, server_version="s" * 6_000),
        frame(Type.SUCCESS, request_id=1),
    ],
)
async def test_a_broken_broker_is_service_not_ready_and_nothing_stays_held(answer: bytes) -> None:
    async with world() as here:
        here.broker.answer = lambda _request_id: answer
        with pytest.raises(ServiceNotReady):
            await here.ask(Client(1))
        assert here.held() == (0, 0)


async def test_clients_that_leave_release_everything_whenever_they_do() -> None:
    async with world(heap_bytes_max=3 * LIST_BYTES) as here:
        here.broker.may_answer.clear()
        waiting = [here.ask(Client(number), namespace=f"public/n{number % 3}") for number in range(12)]
        await until(lambda: len(here.broker.asked) >= 2)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await until(lambda: here.held() == (0, 0))
        here.broker.may_answer.set()
        client = Client(99)
        await here.ask(client)
        client.take()
        assert here.held() == (0, 0)


async def test_one_of_two_that_share_an_answer_may_leave_at_the_last_moment() -> None:
    async with world() as here:
        stays, leaves = Client(1), Client(2)
        first, second = here.ask(stays), here.ask(leaves)
        await until(lambda: here.held()[1])
        second.cancel()
        await asyncio.wait([first, second])
        stays.take()
        leaves.take()
        assert here.held() == (0, 0)


async def test_connections_to_brokers_are_used_again() -> None:
    async with world() as here:
        for _ in range(5):
            client = Client(1)
            await here.ask(client)
            client.take()
        assert here.broker.connections <= 2, "one for the lookup of the cluster, one for listings"
