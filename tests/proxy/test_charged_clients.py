# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers of clients are charged for what they cost the proxy, and for little more."""

from __future__ import annotations

import asyncio
import gc
import re
import tracemalloc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.core.units import MIB
from penstock.testing.client import Type, frame
from tests.proxy.in_process import Peer, RunningProxy, running_proxy, scripted_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.real

GROUP = """
[limited]
publishRateInMsgs = 1000
dispatchRateInMsgs = 1000
namespaces = ["public/default"]
"""


@asynccontextmanager
async def connected(**settings: str) -> AsyncIterator[tuple[Opener, RunningProxy]]:
    async with scripted_broker() as broker, running_proxy(broker.url, **settings) as proxy:
        client = await proxy.client()
        proxy.connect(client)
        await client.next(Type.CONNECTED)
        # A proxy with groups has a connection of its own, too.
        while (peer := await broker.opened.get()).client_version != "test":
            pass
        yield Opener(client, peer), proxy


class Opener:
    """A client, and its broker."""

    def __init__(self, client: Peer, broker: Peer) -> None:
        self._client = client
        self._broker = broker
        self._opened = 0

    async def open(self, kind: int, count: int) -> None:
        """Open so many, each on a topic of its own; returns when the broker has been told."""
        for _ in range(count):
            self._opened += 1
            named = {"topic": f"persistent://public/default/topic-{self._opened:05}", "request_id": self._opened}
            if kind == Type.PRODUCER:
                self._client.write(frame(kind, **named, producer_id=self._opened))
            else:
                self._client.write(frame(kind, **named, consumer_id=self._opened, subscription="s", subType=0))
            if self._opened % 50 == 0:
                await self._client.writer.drain()
        for _ in range(count):
            assert await self._broker.read() is not None


async def charged_bytes(proxy: RunningProxy, what: str = "used") -> int:
    async with httpx.AsyncClient(base_url=proxy.serving.admin_url, trust_env=False, timeout=60) as http:
        text = (await http.get("/metrics")).text
    found = re.search(rf'^penstock_memory_{what}_bytes\{{[^}}]*owner="sessions"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


async def test_a_proxy_of_128_mb_takes_2500_producers_and_has_room_for_15000() -> None:
    async with connected(memoryLimitMB="128") as (opener, proxy):
        await opener.open(Type.PRODUCER, 2_500)
        assert await charged_bytes(proxy) / 2_500 * 15_000 < await charged_bytes(proxy, "budget")


async def test_sessions_mb_is_all_that_clients_have_if_it_is_set() -> None:
    async with connected(memoryLimitMB="128", sessionsMB="1") as (_, proxy):
        assert await charged_bytes(proxy, "budget") == MIB


@pytest.mark.parametrize("kind", [Type.PRODUCER, Type.SUBSCRIBE])
@pytest.mark.parametrize("case", ["alone", "in a group", "usage is recorded", "throttled"])
async def test_the_charge_is_what_it_costs_and_at_most_half_more(tmp_path: Path, kind: int, case: str) -> None:
    file = tmp_path / "groups.toml"
    file.write_text(GROUP)
    settings = {
        "alone": {},
        "in a group": {"resourceGroupsFile": str(file)},
        "usage is recorded": {"usageRecordsEnabled": "true"},
        "throttled": {"adaptivePublisherThrottlingEnabled": "true"},
    }[case]
    async with connected(memoryLimitMB="512", **settings) as (opener, proxy):
        await opener.open(kind, 100)  # What the first of them makes is not theirs.
        before_bytes = await charged_bytes(proxy)
        gc.collect()
        tracemalloc.start()
        try:
            await opener.open(kind, 500)
            await asyncio.sleep(0)
            gc.collect()
            # The client and the broker of this test keep the buffer of the largest burst that they have read.
            ours = tracemalloc.Filter(inclusive=False, filename_pattern=asyncio.streams.__file__)
            snapshot = tracemalloc.take_snapshot().filter_traces([ours])
            cost_bytes = sum(trace.size for trace in snapshot.traces)
        finally:
            tracemalloc.stop()
        charge_bytes = await charged_bytes(proxy) - before_bytes
    assert cost_bytes <= charge_bytes, "nothing is held that nobody is charged for"
    if kind == Type.PRODUCER or case == "in a group":
        assert charge_bytes <= 1.5 * cost_bytes, "nobody is refused for memory that is not in use"
