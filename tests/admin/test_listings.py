# SPDX-License-Identifier: Apache-2.0
"""Lists of topics over HTTP: lent by a broker whose memory for them is short, and given back however a request ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from penstock.admin.gateway import Ask, BrokerGateway
from penstock.admin.responses import ListingResponse
from penstock.broker.composition.administration import administration
from penstock.broker.topics.listing import Mode
from penstock.core.names import NamespaceName
from penstock.core.units import KIB, NS_PER_MS
from penstock.telemetry.prometheus import render
from tests.admin.application import before
from tests.broker.listed import DIRECT, HEAP, LIMITS, NAMESPACE, acquired, all_taken, list_sizes, listed, waiting
from tests.net.harness import listings_free, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from typing import TypeAlias

    from penstock.admin.gateway import Gateway
    from penstock.broker.broker import Broker
    from penstock.net.listing_memory import LimitType, TopicListLimits
    from tests.net.harness import Harness

    Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[Harness]]

NAME = NamespaceName.parse(NAMESPACE)
PATHS = (f"/admin/v2/namespaces/{NAMESPACE}/topics", f"/admin/v2/persistent/{NAMESPACE}")
BRIEF = replace(LIMITS, heap_timeout_ns=NS_PER_MS, direct_timeout_ns=NS_PER_MS)


class OfTheTest:
    """A gateway to the broker that a test makes."""

    broker: Broker

    async def ask(self, question: Any) -> Any:  # noqa: ANN401
        return await BrokerGateway(lambda: administration(self.broker), self.broker.loop, render).ask(question)


@pytest.fixture
def gateway() -> OfTheTest:
    return OfTheTest()


@pytest.fixture
def client(gateway: OfTheTest) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(before(cast("Gateway", gateway)))
    return httpx.AsyncClient(transport=transport, base_url="http://penstock")


@pytest.fixture
def serve(tmp_path: Path, gateway: OfTheTest) -> Serve:
    """What starts a broker with so many topics, which the client reaches."""

    @asynccontextmanager
    async def served(count: int, limits: TopicListLimits = LIMITS) -> AsyncIterator[Harness]:
        async with listed(tmp_path, count, limits) as (harness, _, _names):
            await administration(harness.broker).namespaces.create(NAME, None)
            gateway.broker = harness.broker
            yield harness
            await until(lambda: listings_free(harness.broker))

    return served


class Caller:
    """The other end of one answer, as the server shows it to the application."""

    def __init__(self, harness: Harness) -> None:
        ask = Ask(BrokerGateway(lambda: administration(harness.broker), harness.broker.loop, render))
        self.response = ListingResponse(ask, NAME, Mode.PERSISTENT, system=False)
        self.body = b""
        self.pieces = 0
        self.takes = asyncio.Event()
        self.gone = asyncio.Event()

    def call(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._called())

    async def _called(self) -> None:
        await self.response({"type": "http"}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:  # noqa: ANN401
        await self.takes.wait()
        self.body += message.get("body", b"")
        self.pieces += 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_list_comes_whole_and_leaves_nothing_taken(serve: Serve, client: httpx.AsyncClient, path: str) -> None:
    async with serve(2_000):
        answer = await client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.json()) == 2_000
        assert answer.json() == sorted(answer.json())


async def test_a_namespace_without_topics_has_an_empty_list_and_one_that_is_not_there_is_not_found(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    async with serve(0):
        assert (await client.get(PATHS[0])).json() == []
        assert (await client.get("/admin/v2/namespaces/public/no/topics")).status_code == 404


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("kind", "words"),
    [(HEAP, "Failed due to heap memory limit exceeded"), (DIRECT, "Cannot acquire permits for direct memory")],
)
async def test_without_memory_in_time_the_answer_is_429(
    serve: Serve, client: httpx.AsyncClient, kind: LimitType, words: str, path: str
) -> None:
    async with serve(10, BRIEF) as harness:
        async with all_taken(harness, kind):
            refused = await client.get(path)
        assert refused.status_code == 429
        assert refused.json()["reason"].startswith(words)
        assert (await client.get(path)).status_code == 200


async def test_a_list_that_can_never_fit_is_429_each_time(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve(1_000, replace(LIMITS, heap_bytes_max=64 * KIB)):
        for _ in range(3):
            refused = await client.get(PATHS[0])
            assert (refused.status_code, "can never be had" in refused.json()["reason"]) == (429, True)


async def test_an_answer_under_way_holds_what_a_clients_does_until_it_is_taken(serve: Serve) -> None:
    async with serve(2_000) as harness:
        assembled, written = await list_sizes(harness)
        caller = Caller(harness)
        call = caller.call()
        await until(lambda: acquired(harness, DIRECT))
        assert (acquired(harness, HEAP), acquired(harness, DIRECT)) == (assembled, written)
        caller.takes.set()
        await call
        assert len(json.loads(caller.body)) == 2_000
        assert caller.pieces > 3  # a block at a time


@pytest.mark.parametrize("kind", [HEAP, DIRECT])
async def test_a_caller_who_goes_while_the_broker_waits_for_memory_frees_its_place(
    serve: Serve, kind: LimitType
) -> None:
    async with serve(10) as harness:
        async with all_taken(harness, kind):
            caller = Caller(harness)
            call = caller.call()
            await until(lambda: waiting(harness, kind) == 1)
            caller.gone.set()
            await call
            await until(lambda: waiting(harness, kind) == 0)
        assert caller.body == b""


async def test_a_caller_who_is_cut_off_in_the_middle_gives_everything_back(serve: Serve) -> None:
    async with serve(2_000) as harness:
        call = Caller(harness).call()
        await until(lambda: acquired(harness, DIRECT))
        call.cancel()
        await until(lambda: not acquired(harness, DIRECT) and not acquired(harness, HEAP))
