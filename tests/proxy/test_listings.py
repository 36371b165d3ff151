# SPDX-License-Identifier: Apache-2.0
"""Topic listings through the proxy: what is held for them, when, and for whom (PIP-442)."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core.errors import PenstockError, ServiceNotReady, WireCode
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.net.clock import SystemClock
from penstock.net.listing_memory import LimitType, TopicListLimits, TopicListMemoryLimiter
from penstock.proxy.answer_pieces import PIECE_BYTES
from penstock.proxy.listings import AT_ONCE, Listings
from penstock.proxy.upstreams import Identity, UpstreamOptions, Upstreams
from penstock.testing.client import Type, frame
from penstock.wire import codec
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import decode_frame
from penstock.wire.client.lookup import Address
from penstock.wire.listings import relayed_head
from tests.net.harness import until
from tests.proxy.listing_broker import LIST_BYTES, TOPICS, Broker, listing, listing_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.net.connection import Connection
    from penstock.proxy.listings import Answer

pytestmark = pytest.mark.real

SOMEBODY = Identity("none", b"")


class Client:
    """A connection's writing half, which keeps what it is given until it is told that the socket took it."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.peer = f"10.0.0.{number}:5000"
        self.frames: list[bytes] = []
        self.passed: list[Callable[[], None]] = []

    def take_list(self, head: bytes, answer: Answer) -> None:
        self.frames.append(head + b"".join(answer.buffers))
        self.passed.append(answer.release)

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
        self.upstreams = Upstreams(options, clock, Row("sessions", MIB))
        self.listings = Listings(self.limiter, self.upstreams, clock, loop)

    def ask(self, client: Client, request_id: int = 1, namespace: str = "public/default") -> asyncio.Task[None]:
        body = codec.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id)
        return asyncio.create_task(self._answered(client, body))

    async def _answered(self, client: Client, body: codec.CommandGetTopicsOfNamespace) -> None:
        answer = await self.listings.answer(cast("Connection", client), SOMEBODY, body)
        client.take_list(relayed_head(body.request_id, answer.fields_bytes), answer)

    def held(self) -> tuple[int, int]:
        """Bytes of heap and of direct memory."""
        snapshot = self.limiter.snapshot()
        return snapshot.heap.acquired, snapshot.direct.acquired


@asynccontextmanager
async def world(**limits: int) -> AsyncIterator[World]:
    async with listing_broker() as (broker, port):
        made = World(broker, port, TopicListLimits(**limits))
        yield made
        await made.listings.close()
        await made.upstreams.close()


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


def listing_of(topics: list[str], request_id: int) -> bytes:
    return frame(
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        request_id=request_id,
        topics=topics,
        topics_hash=f"{zlib.crc32(repr(topics).encode()):08x}",
    )


async def test_clients_that_read_slowly_what_others_read_hold_it_once() -> None:
    async with world(direct_bytes_max=2 * LIST_BYTES) as here:
        slow = [Client(number) for number in range(30)]
        for client in slow * 10:
            await here.ask(client)
        assert here.held()[1] < LIST_BYTES + 300 * 100, "a few bytes for each, and the list"
        fast = Client(99)
        await here.ask(fast)
        assert decode_frame(fast.frames[0], 0, len(fast.frames[0])).body.topics == TOPICS
        for client in (fast, *slow):
            client.take()
        assert here.held() == (0, 0)


async def test_lists_before_and_after_a_topic_is_created_hold_once_what_they_have_in_common() -> None:
    async with world(direct_bytes_max=10 * LIST_BYTES) as here:
        kept = []
        for number in range(11):
            topics = sorted([*TOPICS, *(f"{TOPICS[at * 100]}-new" for at in range(number))])
            here.broker.answer = partial(listing_of, topics)
            kept.append((Client(number), topics))
            await here.ask(kept[-1][0])
        assert here.held()[1] < LIST_BYTES + 10 * 1.5 * PIECE_BYTES
        for client, topics in kept:
            assert decode_frame(client.frames[0], 0, len(client.frames[0])).body.topics == topics
            client.take()
        assert here.held() == (0, 0)


async def test_a_list_that_was_sent_is_not_kept_for_another_that_is_being_sent() -> None:
    async with world() as here:
        slow, fast = Client(1), Client(2)
        await here.ask(slow)
        here.broker.answer = partial(listing_of, [f"{topic}-x" for topic in TOPICS])
        await here.ask(fast)
        fast.take()
        fast.frames.clear()
        here.broker.answer = listing
        again = Client(3)
        await here.ask(again)
        assert decode_frame(again.frames[0], 0, len(again.frames[0])).body.topics == TOPICS
        slow.take()
        again.take()
        assert here.held() == (0, 0)


async def test_many_questions_of_one_tenant_do_not_delay_the_question_of_another() -> None:
    async with world() as here:
        here.broker.may_answer.clear()
        greedy = [here.ask(Client(1), namespace=f"greedy/n{number}") for number in range(10 * AT_ONCE)]
        await until(lambda: len(here.broker.asked) == AT_ONCE)
        other = here.ask(Client(2), namespace="modest/n")
        await asyncio.sleep(0)
        here.broker.may_answer.set()
        await other
        asked = [came.body.namespace for came in here.broker.asked]
        assert asked.index("modest/n") <= 2 * AT_ONCE
        await asyncio.gather(*greedy)


async def test_an_answer_that_waits_for_slow_readers_keeps_no_turn() -> None:
    async with world(direct_bytes_max=AT_ONCE * LIST_BYTES // 2) as here:
        clients = [Client(number) for number in range(2 * AT_ONCE)]
        waiting = [here.ask(client, namespace=f"public/n{client.id}") for client in clients]
        await until(lambda: len(here.broker.asked) == len(clients))
        while not all(task.done() for task in waiting):
            await until(lambda: any(client.passed for client in clients))
            for client in clients:
                client.take()
        assert here.held() == (0, 0)


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


async def test_the_first_of_those_who_share_an_answer_may_leave_while_its_permit_is_waited_for() -> None:
    async with world(heap_bytes_max=2 * LIST_BYTES) as here:
        other = await here.limiter.acquire(2 * LIST_BYTES, LimitType.HEAP_MEMORY)
        first, stays = here.ask(Client(1)), Client(2)
        second = here.ask(stays)
        await until(lambda: here.limiter.snapshot().heap.waiting_acquires)
        first.cancel()
        await asyncio.wait([first])
        here.limiter.release(other)
        await second
        assert stays.frames
        stays.take()
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


@pytest.mark.parametrize("before", [b"", frame(Type.PING), frame(Type.PING)[:5]])
async def test_a_kept_connection_that_has_ended_is_not_used(before: bytes) -> None:
    """A broker sends PING to a connection that is idle for half a minute, and closes it after another half."""
    async with world() as here:
        await here.ask(Client(1))
        kept = list(here.broker.open)[-1]
        kept.write(before)
        kept.close()
        await kept.wait_closed()
        client = Client(2)
        await here.ask(client)
        assert client.frames
        assert len(here.broker.asked) == 2


async def test_a_question_is_sent_again_if_the_kept_connection_ends_instead_of_an_answer() -> None:
    async with world() as here:
        await here.ask(Client(1))
        kept = list(here.broker.open)[-1]
        answers = iter([kept.close])

        def end(request_id: int) -> bytes:
            next(answers, lambda: None)()
            return listing(request_id)

        here.broker.answer = end
        client = Client(2)
        await here.ask(client)
        assert client.frames
        assert len(here.broker.asked) == 3
        client.take()


async def test_a_fresh_connection_that_ends_is_an_error() -> None:
    async with world() as here:

        def end(_request_id: int) -> bytes:
            for writer in here.broker.open:
                writer.close()
            return b""

        here.broker.answer = end
        with pytest.raises(ServiceNotReady):
            await here.ask(Client(1))
        assert len(here.broker.asked) == 1
        assert here.held() == (0, 0)
