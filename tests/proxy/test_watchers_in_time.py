# SPDX-License-Identifier: Apache-2.0
"""How long topic watchers of connected clients wait for memory and for their broker, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.core.errors import ServiceNotReady
from penstock.core.units import MIB, NS_PER_S
from penstock.governance.budget import Row
from penstock.net.listing_memory import (
    LimitType,
    PermitAcquireTimeout,
    TopicListLimits,
    TopicListMemoryLimiter,
)
from penstock.net.unsent_pieces import REFERENCE_BYTES
from penstock.proxy import relayed_watchers
from penstock.proxy.listings import Listings
from penstock.proxy.relayed_watchers import ANSWER_NS, SILENT_INTERVALS, RelayedWatchers
from penstock.proxy.upstreams import Identity
from penstock.proxy.watcher_connection import Large
from penstock.testing.client import Type, frame
from penstock.testing.loop import VirtualClock, VirtualLoop
from penstock.wire import codec
from penstock.wire.client.frames import Frame, decode_frame

if TYPE_CHECKING:
    from penstock.proxy.relay import OwnList

LIST_BYTES = 600_000


class Upstream:
    """A connection to a broker that answers when the test says so."""

    def __init__(self) -> None:
        self.identity = Identity("none", b"")
        self.came = 0
        self.reading = True
        self.frames: asyncio.Queue[Frame | Large] = asyncio.Queue()
        self.sent: list[Frame] = []
        self.skipped: list[Large] = []
        self.closed: str | None = None

    def send(self, data: bytes) -> None:
        self.sent.append(decode_frame(data, 0, len(data)))

    async def next(self) -> Frame | Large:
        return await self.frames.get()

    async def rest(self, large: Large) -> bytearray:
        return bytearray(large.nbytes)

    async def skip(self, large: Large) -> None:
        self.skipped.append(large)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason

    def answer(self, request_id: int) -> None:
        """A list comes."""
        head = frame(Type.WATCH_TOPIC_LIST_SUCCESS, request_id=request_id, watcher_id=1, topics_hash="h")
        self.frames.put_nowait(Large(head, LIST_BYTES))


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = VirtualClock(loop.virtual_time)
        self.limiter = TopicListMemoryLimiter(
            TopicListLimits(heap_bytes_max=MIB, direct_bytes_max=MIB), clock=self.clock, loop=loop
        )
        self.upstream = Upstream()
        self.sessions = Row("sessions", MIB)
        self.lists: list[OwnList] = []
        self.ended: list[str] = []
        services = SimpleNamespace(
            loop=loop,
            clock=self.clock,
            listings=Listings(self.limiter, cast("Any", None), self.clock, loop),
            sessions_memory=self.sessions,
        )

        async def opened(*_: object) -> Upstream:
            return self.upstream

        monkeypatch.setattr(relayed_watchers, "WatcherConnection", SimpleNamespace(open=opened))
        self.watchers = RelayedWatchers(
            cast("Any", SimpleNamespace(id=1, peer="10.0.0.1:5000", is_open=True)),
            cast("Any", services),
            cast("Any", SimpleNamespace(identity=self.upstream.identity)),
            cast("Any", "broker:6650"),
            send_list=self._send_list,
            reply=lambda _: None,
            end=self.ended.append,
        )

    async def _send_list(self, listed: OwnList) -> None:
        self.lists.append(listed)

    def watch(self, request_id: int = 1) -> asyncio.Task[None]:
        body = codec.CommandWatchTopicList(
            request_id=request_id, watcher_id=1, namespace="public/default", topics_pattern=".*"
        )
        return asyncio.create_task(self._watch(body))

    async def _watch(self, body: codec.CommandWatchTopicList) -> None:
        async with asyncio.timeout(ANSWER_NS / NS_PER_S):  # As `lookups` does.
            await self.watchers.watch(body)

    async def all_heap(self) -> Any:  # noqa: ANN401 - a permit
        return await self.limiter.acquire(self.limiter.limiter(LimitType.HEAP_MEMORY).available, LimitType.HEAP_MEMORY)

    def seconds(self) -> float:
        return self.clock.monotonic_ns() / NS_PER_S

    def close(self) -> None:
        """The client goes; nothing may be left."""
        self.watchers.close()
        assert not any(row.used_bytes for row in self.limiter.rows())
        assert self.sessions.used_bytes == 0


async def test_a_watcher_waits_for_its_first_permit_as_long_as_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(monkeypatch)
    other = await here.all_heap()
    began_s = here.seconds()
    with pytest.raises(PermitAcquireTimeout, match="Failed due to heap memory limit exceeded"):
        await here.watch()
    assert here.seconds() - began_s == pytest.approx(25)
    assert here.upstream.sent == []
    here.limiter.release(other)
    here.close()


async def test_both_waits_together_end_before_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(monkeypatch)
    other = await here.all_heap()
    began_s, watching = here.seconds(), here.watch()
    await asyncio.sleep(20)
    here.limiter.release(other)
    await asyncio.sleep(0.1)
    assert here.upstream.sent, "the broker is asked"
    other = await here.all_heap()
    here.upstream.answer(1)
    with pytest.raises((PermitAcquireTimeout, TimeoutError)):
        await watching
    assert here.seconds() - began_s == pytest.approx(28)
    await asyncio.sleep(0.1)
    assert len(here.upstream.skipped) == 1
    assert [sent.kind for sent in here.upstream.sent] == [Type.WATCH_TOPIC_LIST, Type.WATCH_TOPIC_LIST_CLOSE]
    here.limiter.release(other)
    here.close()


async def test_a_client_that_goes_while_a_list_waits_for_its_size_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = World(monkeypatch)
    watching = here.watch()
    await asyncio.sleep(0.1)
    other = await here.all_heap()
    here.upstream.answer(1)
    await asyncio.sleep(0.1)
    assert here.limiter.limiter(LimitType.HEAP_MEMORY).snapshot().waiting_updates == 1, (
        "for what is more than the estimate"
    )
    watching.cancel()
    here.watchers.close()
    await asyncio.sleep(0.1)
    here.limiter.release(other)
    assert not any(row.used_bytes for row in here.limiter.rows())
    assert here.sessions.used_bytes == 0


async def test_a_broker_that_does_not_answer_is_told_to_close_the_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(monkeypatch)
    began_s = here.seconds()
    with pytest.raises(TimeoutError):
        await here.watch()
    assert here.seconds() - began_s == pytest.approx(28)
    assert not any(row.used_bytes for row in here.limiter.rows())
    closing = here.upstream.sent[-1]
    assert (closing.kind, closing.body.watcher_id) == (Type.WATCH_TOPIC_LIST_CLOSE, 1)
    here.upstream.answer(1)
    await asyncio.sleep(0.1)
    assert len(here.upstream.skipped) == 1, "it is too late"
    answered = here.watch(2)
    await asyncio.sleep(0.1)
    here.upstream.answer(2)
    await answered
    await asyncio.sleep(0.1)
    (listed,) = here.lists
    pieces = len(listed.rest) - 2
    charged_bytes = LIST_BYTES - len(listed.head) + REFERENCE_BYTES * pieces
    assert sum(row.used_bytes for row in here.limiter.rows()) == charged_bytes
    listed.release()
    here.close()


async def test_the_next_list_is_read_when_the_client_has_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(monkeypatch)
    for request_id in (1, 2):
        here.watch(request_id)
        await asyncio.sleep(0.1)
        here.upstream.answer(request_id)
    await asyncio.sleep(10)
    assert (len(here.lists), here.upstream.frames.qsize()) == (1, 1)
    here.lists[0].release()
    await asyncio.sleep(0.1)
    assert len(here.lists) == 2
    here.lists[1].release()
    here.close()


async def test_a_request_id_is_used_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(monkeypatch)
    first = here.watch()
    await asyncio.sleep(0.1)
    with pytest.raises(ServiceNotReady, match="not answered yet"):
        await here.watch()
    here.upstream.answer(1)
    await first
    await asyncio.sleep(0.1)
    here.lists[0].release()
    here.close()


async def test_a_connection_that_is_silent_is_closed_and_one_that_is_not_read_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, keep_alive_ns = World(monkeypatch), 30 * NS_PER_S

    async def minutes(count: int) -> None:
        for _ in range(60 * count):
            await asyncio.sleep(1)
            here.watchers.check(here.clock.monotonic_ns(), keep_alive_ns)

    await minutes(10)  # There is no connection yet.
    watching = here.watch()
    here.upstream.reading = False
    await minutes(10)
    assert here.upstream.closed is None
    pongs = [sent for sent in here.upstream.sent if sent.kind == Type.PONG]
    assert len(pongs) >= 30, "the broker hears that the proxy is there"
    here.upstream.reading = True
    await minutes(SILENT_INTERVALS // 2)
    assert here.upstream.closed is None
    await minutes(1)
    assert here.upstream.closed is not None
    with pytest.raises(TimeoutError):
        await watching
    here.close()
