# SPDX-License-Identifier: Apache-2.0
"""Lists of topics for clients that are connected to a broker: permits, and whole frames."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import WireCode
from penstock.core.units import MIB
from penstock.testing.client import Type, frame
from tests.net.harness import until
from tests.proxy.listing_broker import LIST_BYTES, TOPICS
from tests.proxy.permits_world import DIRECT, HEAP, MESSAGE, SMALL, world

if TYPE_CHECKING:
    from penstock.net.listing_memory import LimitType
    from tests.proxy.in_process import Peer

pytestmark = pytest.mark.real


def asks(request_id: int, **fields: object) -> bytes:
    return frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=request_id, namespace="public/default", **fields)


async def test_a_list_comes_under_the_clients_request_id_and_leaves_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        client.write(asks(77))
        listed = await client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert (listed.body.request_id, list(listed.body.topics)) == (77, TOPICS)
        await here.all_returned()
        assert here.broker.others == []


async def test_a_list_is_inserted_between_the_brokers_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, broker = await here.client()
        for cut in (1, 3, 4, 9, len(MESSAGE) - 1):
            broker.write(MESSAGE + MESSAGE[:cut])
            await client.next(Type.SEND)
            client.write(asks(cut))
            await until(lambda: here.held()[1])
            client.write(frame(Type.PING))
            await until(lambda: here.broker.others)
            assert here.broker.others.pop().kind == Type.PING, "other frames go on meanwhile"
            assert here.held() != (0, 0)
            broker.write(MESSAGE[cut:] + MESSAGE)
            for kind in (Type.SEND, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, Type.SEND):
                await client.next(kind)
            await here.all_returned()


@pytest.mark.parametrize(("kind", "name"), [(HEAP, "Heap"), (DIRECT, "Direct")])
async def test_who_waits_too_long_gets_the_error_of_lookups(
    monkeypatch: pytest.MonkeyPatch, kind: LimitType, name: str
) -> None:
    timeout = {f"maxTopicListInFlight{name}MemSizePermitsAcquireTimeoutMillis": "1"}
    async with world(monkeypatch, **SMALL, **timeout) as here:
        other = await here.take_all(kind)
        errors = []
        for through in (False, True):
            client, _ = await here.client(through=through)
            client.write(asks(5))
            refused = (await client.next(Type.ERROR)).body
            errors.append((refused.request_id, refused.error, re.sub(r"\d+ ms", "… ms", refused.message)))
        assert errors[0][:2] == (5, WireCode.TOO_MANY_REQUESTS)
        assert errors[0] == errors[1]
        here.limiter.release(other)
        client, _ = await here.client()
        client.write(asks(6))
        await client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        await here.all_returned()


@pytest.mark.parametrize("gone", ["client", "broker"])
@pytest.mark.parametrize("when", ["no heap", "asked", "no direct", "behind a frame"])
async def test_every_permit_is_returned_however_it_ends(monkeypatch: pytest.MonkeyPatch, gone: str, when: str) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, broker = await here.client()
        other = await here.take_all(HEAP) if when == "no heap" else None
        if when == "no direct":
            other = await here.take_all(DIRECT)
        if when == "asked":
            here.broker.may_answer.clear()
        if when == "behind a frame":
            broker.write(MESSAGE[:6])
        client.write(asks(1))
        if when == "asked":
            await until(lambda: here.broker.asked)
        elif when == "behind a frame":
            await until(lambda: here.held()[1])
        else:
            await until(here.waiting)
        (client.writer if gone == "client" else broker).close()
        if gone == "broker":
            assert await client.read() is None
        await until(lambda: not here.waiting())
        if other is not None:
            here.limiter.release(other)
        here.broker.may_answer.set()
        await here.all_returned()
        client, _ = await here.client()
        client.write(asks(2))
        await client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        await here.all_returned()


async def test_lists_that_are_not_read_hold_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, **SMALL) as here:
        here.broker.answer = lambda request_id: frame(
            Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=request_id, topics=["t" * 1_000 for _ in range(600)]
        )
        clients = [(await here.client())[0] for _ in range(8)]
        for number, client in enumerate(clients):
            client.write(b"".join(asks(each, topics_pattern=f"{number}-{each}") for each in range(20)))
        await until(here.waiting)

        async def read(client: Peer) -> None:
            for _ in range(20):
                await client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
                assert here.held()[1] <= MIB

        await asyncio.gather(*map(read, clients))
        await here.all_returned()


async def test_who_is_drained_gets_the_list_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        here.broker.may_answer.clear()
        client.write(asks(1))
        await until(lambda: here.broker.asked)
        draining = asyncio.create_task(here.proxy.serving.drain())
        await until(lambda: here.broker.others)
        closing = here.broker.others.pop()
        writer = next(iter(here.broker.open))
        writer.write(frame(Type.SUCCESS, request_id=closing.body.request_id))
        here.broker.may_answer.set()
        await client.next(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert await client.read() is None
        client.writer.close()
        await draining
        await here.all_returned()


def test_the_list_of_the_tests_fits_the_small_limits() -> None:
    assert LIST_BYTES < MIB
