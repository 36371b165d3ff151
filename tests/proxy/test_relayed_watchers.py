# SPDX-License-Identifier: Apache-2.0
"""Topic watchers of clients that are connected to a broker: permits for what they are sent, and nothing else waits."""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.core.errors import WireCode
from penstock.core.units import MIB
from penstock.proxy.relayed_watchers import RelayedWatchers
from penstock.proxy.watcher_connection import WatcherConnection
from penstock.testing.client import Type, frame
from tests.net.harness import until
from tests.proxy.listing_broker import LIST_BYTES, TOPICS, update
from tests.proxy.permits_world import DIRECT, HEAP, MESSAGE, SMALL, world

if TYPE_CHECKING:
    import asyncio

    from penstock.net.listing_memory import LimitType
    from tests.proxy.in_process import Peer
    from tests.proxy.permits_world import World

pytestmark = pytest.mark.real

SUCCESS, UPDATE = Type.WATCH_TOPIC_LIST_SUCCESS, Type.WATCH_TOPIC_UPDATE


def watches(request_id: int, watcher_id: int = 1) -> bytes:
    return frame(
        Type.WATCH_TOPIC_LIST,
        request_id=request_id,
        watcher_id=watcher_id,
        namespace="public/default",
        topics_pattern="public/default/.*",
    )


def closes(request_id: int, watcher_id: int = 1) -> bytes:
    return frame(Type.WATCH_TOPIC_LIST_CLOSE, request_id=request_id, watcher_id=watcher_id)


async def watching(here: World, client: Peer, watcher_id: int = 1) -> asyncio.StreamWriter:
    """Let a client watch; returns where to write its updates."""
    client.write(watches(watcher_id, watcher_id))
    await client.next(SUCCESS)
    return here.broker.watching[-1][1]


async def test_a_watcher_gets_its_list_and_updates_of_all_sizes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        client.write(watches(7, 3))
        listed = (await client.next(SUCCESS)).body
        assert (listed.request_id, listed.watcher_id, list(listed.topic)) == (7, 3, TOPICS)
        broker = here.broker.watching[0][1]
        names = [["t"], TOPICS, [], ["u" * 5_000], ["v"]]
        for new in names:
            broker.write(update(3, new))
        assert [list((await client.next(UPDATE)).body.new_topics) for _ in names] == names
        client.write(closes(8, 3))
        assert (await client.next(Type.SUCCESS)).body.request_id == 8
        assert here.broker.others == []
        await here.all_returned()


async def test_all_watchers_of_a_client_share_one_more_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        client.write(b"".join(watches(number, number) for number in range(20)))
        assert [(await client.next(SUCCESS)).body.watcher_id for _ in range(20)] == list(range(20))
        assert here.broker.connections == 2
        client.writer.close()
        await here.all_returned()


async def test_nothing_else_waits_for_a_list_that_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, broker = await here.client()
        updates = await watching(here, client)
        other = await here.take_all(HEAP)
        updates.write(update(1, TOPICS))
        await until(here.waiting)
        client.write(frame(Type.PING))
        await until(lambda: here.broker.others)
        broker.write(MESSAGE)
        await client.next(Type.SEND)
        here.limiter.release(other)
        await client.next(UPDATE)
        await here.all_returned()


async def test_lists_and_updates_are_inserted_between_the_brokers_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, broker = await here.client()
        for number, cut in enumerate((2, 4, 500)):
            broker.write(MESSAGE + MESSAGE[:cut])
            await client.next(Type.SEND)
            client.write(watches(number, number))
            await until(lambda: here.held()[1])
            broker.write(MESSAGE[cut:] + MESSAGE)
            for kind in (Type.SEND, SUCCESS, Type.SEND):
                await client.next(kind)
            await here.all_returned()


async def test_watchers_that_read_slowly_hold_the_same_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        clients = [await here.client() for _ in range(5)]
        for number, (client, broker) in enumerate(clients):
            broker.write(MESSAGE + MESSAGE[:4])  # The list waits for the end of this frame.
            await client.next(Type.SEND)
            client.write(watches(10**number, number))
        await until(lambda: len(here.broker.watching) == len(clients) and not here.held()[0] and here.held()[1] > 0)
        assert here.held()[1] < LIST_BYTES + 5 * 200, "a few bytes for each, and the list"
        for number, (client, broker) in enumerate(clients):
            broker.write(MESSAGE[4:])
            await client.next(Type.SEND)
            listed = (await client.next(SUCCESS)).body
            assert (listed.request_id, listed.watcher_id, list(listed.topic)) == (10**number, number, TOPICS)
        await here.all_returned()


@pytest.mark.parametrize(("kind", "name"), [(HEAP, "Heap"), (DIRECT, "Direct")])
async def test_a_watcher_for_which_there_is_no_memory_gets_the_error_of_lookups(
    monkeypatch: pytest.MonkeyPatch, kind: LimitType, name: str
) -> None:
    timeout = {f"maxTopicListInFlight{name}MemSizePermitsAcquireTimeoutMillis": "1"}
    async with world(monkeypatch, **SMALL, **timeout) as here:
        other = await here.take_all(kind)
        asking, _ = await here.client(through=False)
        asking.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=5, namespace="public/default"))
        client, _ = await here.client()
        client.write(watches(5))
        errors = []
        for one in (asking, client):
            refused = (await one.next(Type.ERROR)).body
            errors.append((refused.request_id, refused.error, re.sub(r"\d+", "…", refused.message)))
        assert errors[0][:2] == (5, WireCode.TOO_MANY_REQUESTS)
        assert errors[0] == errors[1]
        if kind is DIRECT:
            await until(lambda: here.broker.closed)
            assert here.broker.closed[0].body.watcher_id == 1, "the broker has made one"
        else:
            assert here.broker.watching == [], "the broker was not asked"
        here.limiter.release(other)
        await watching(here, client, 2)
        await here.all_returned()


async def test_a_list_that_can_never_fit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, _ = await here.client()
        usual = here.broker.watched
        here.broker.watched = lambda request_id, watcher_id: frame(
            SUCCESS, request_id=request_id, watcher_id=watcher_id, topic=["t" * 2 * MIB], topics_hash="h"
        )
        client.write(watches(1))
        assert "can never be had" in (await client.next(Type.ERROR)).body.message
        await until(lambda: here.broker.closed)
        here.broker.watched = usual
        await watching(here, client, 2)
        await here.all_returned()


async def test_an_update_that_can_never_fit_ends_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, _ = await here.client()
        (await watching(here, client)).write(update(1, ["t" * 2 * MIB]))
        assert await client.read() is None
        await here.all_returned()


async def test_an_update_waits_for_memory_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = {"maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis": "1"}
    async with world(monkeypatch, **SMALL, **timeout) as here:
        client, _ = await here.client()
        updates = await watching(here, client)
        other = await here.take_all(HEAP)
        updates.write(update(1, TOPICS))
        await until(lambda: here.limiter.limiter(HEAP).snapshot().timeouts_total)
        here.limiter.release(other)
        await client.next(UPDATE)
        await here.all_returned()


async def test_the_brokers_error_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        here.broker.watched = lambda request_id, _watcher_id: frame(
            Type.ERROR, request_id=request_id, error=int(WireCode.AUTHORIZATION_ERROR), message="no"
        )
        client.write(watches(9))
        refused = (await client.next(Type.ERROR)).body
        assert (refused.request_id, refused.error, refused.message) == (9, WireCode.AUTHORIZATION_ERROR, "no")
        await here.all_returned()


async def test_a_watcher_is_closed_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, _ = await here.client()
        other = await here.take_all(HEAP)
        client.write(watches(1) + closes(2))
        await until(here.waiting)
        assert (here.broker.watching, here.broker.closed) == ([], [])
        here.limiter.release(other)
        await client.next(SUCCESS)
        assert (await client.next(Type.SUCCESS)).body.request_id == 2
        await here.all_returned()


async def test_who_asks_why_a_client_waits_hears_of_its_watcher_and_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, _ = await here.client()
        for kind, name in ((HEAP, "Heap"), (DIRECT, "Direct")):
            other = await here.take_all(kind)
            client.write(watches(1))
            await until(here.waiting)
            async with httpx.AsyncClient(base_url=here.proxy.serving.admin_url, trust_env=False, timeout=60) as http:
                for path in ("producers/127.0.0.1", "tenants/public"):
                    (finding,) = (await http.get(f"/admin/v3/why/{path}")).json()["findings"]
                    assert finding["reason"] == "topic-list-memory"
                    assert finding["numbers"][f"maxTopicListInFlight{name}MemSizeMB"] == 1
            here.limiter.release(other)
            await client.next(SUCCESS)
            await here.all_returned()


@pytest.mark.parametrize("gone", ["client", "broker", "watchers"])
@pytest.mark.parametrize("when", ["no heap", "asked", "no direct", "behind a frame", "update"])
async def test_every_permit_is_returned_however_it_ends(monkeypatch: pytest.MonkeyPatch, gone: str, when: str) -> None:
    async with world(monkeypatch, **SMALL) as here:
        client, broker = await here.client()
        watchers = await watching(here, client)
        await here.all_returned()
        other = await here.take_all(DIRECT if when == "no direct" else HEAP) if when != "behind a frame" else None
        if when == "asked" and other is not None:
            here.limiter.release(other)
            here.broker.may_answer.clear()
        if when == "behind a frame":
            broker.write(MESSAGE[:6])
        if when == "update":
            watchers.write(update(1, TOPICS))
        else:
            client.write(watches(2, 2))
        if when == "asked":
            await until(lambda: len(here.broker.watching) == 2)
        elif when == "behind a frame":
            await until(lambda: here.held()[1])
        else:
            await until(here.waiting)
        {"client": client.writer, "broker": broker, "watchers": watchers}[gone].close()
        if other is not None:
            if gone == "client":
                await until(lambda: not here.waiting())
            here.limiter.release(other)
        here.broker.may_answer.set()
        if gone == "broker" or (gone == "watchers" and when != "behind a frame"):
            while (came := await client.read()) is not None:
                assert came.kind in (SUCCESS, UPDATE)
        if gone == "watchers" and when == "behind a frame":
            client.writer.close()
        await here.all_returned()
        client, _ = await here.client()
        await watching(here, client)
        await here.all_returned()


async def test_updates_that_are_not_read_are_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["t" * 1_000 for _ in range(600)]
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        updates = await watching(here, client)
        data = update(1, names)
        for _ in range(40):
            updates.write(data)
        for _ in range(40):
            await client.next(UPDATE)
            assert here.held()[0] + here.held()[1] <= 2 * len(data)
        await here.all_returned()


async def test_pings_of_the_broker_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        updates = await watching(here, client)
        updates.write(frame(Type.PING) * 3)
        await until(lambda: len(here.broker.others) == 3)
        assert {came.kind for came in here.broker.others} == {Type.PONG}


async def test_a_broker_whose_updates_are_not_read_is_told_that_the_proxy_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch, **SMALL, keepAliveIntervalSeconds="1") as here:
        client, _ = await here.client()
        updates = await watching(here, client)
        other = await here.take_all(HEAP)
        updates.write(update(1, TOPICS))
        await until(lambda: any(came.kind == Type.PONG for came in here.broker.others))
        here.limiter.release(other)
        await client.next(UPDATE)


async def test_a_broker_that_asks_for_new_credentials_gets_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client(refreshes=True)
        updates = await watching(here, client)
        updates.write(frame(Type.AUTH_CHALLENGE, protocol_version=20))
        await client.next(Type.AUTH_CHALLENGE)
        client.write(frame(Type.AUTH_RESPONSE, response={"auth_method_name": "none", "auth_data": b"new"}))
        await until(lambda: here.broker.others)
        (answer,) = here.broker.others
        assert (answer.kind, answer.body.response.auth_data) == (Type.AUTH_RESPONSE, b"new")
        updates.write(update(1, ["t"]))
        await client.next(UPDATE)


async def test_a_client_that_cannot_show_new_credentials_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        (await watching(here, client)).write(frame(Type.AUTH_CHALLENGE, protocol_version=20))
        assert await client.read() is None


@pytest.mark.parametrize("broken", [b"\0\0\0\5\0\0\0\1x", b"\x7f\xff\xff\xff" + bytes(8), bytes(12), MESSAGE])
async def test_a_broken_broker_ends_its_client(monkeypatch: pytest.MonkeyPatch, broken: bytes) -> None:
    async with world(monkeypatch) as here:
        client, _ = await here.client()
        (await watching(here, client)).write(broken)
        assert await client.read() is None
        await here.all_returned()


async def test_what_is_kept_for_watchers_is_freed_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch) as here:
        gc.collect()
        gc.disable()
        try:
            client, _ = await here.client()
            await watching(here, client)
            assert objects() == 2
            client.writer.close()
            await until(lambda: not objects())
        finally:
            gc.enable()


def objects() -> int:
    return sum(type(one) in (RelayedWatchers, WatcherConnection) for one in gc.get_objects())
