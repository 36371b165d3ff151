# SPDX-License-Identifier: Apache-2.0
"""`/proxy-stats`: what a proxy tells of its connections and topics, as Apache Pulsar's does."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock.accounting.totals import Totals
from penstock.core.clock import ManualClock
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.proxy import proxy_stats
from penstock.proxy.proxy_stats import PAGE_ROWS, RATES_BYTES, ProxyStats
from penstock.proxy.usage import TOPIC_BYTES, UsageCounts
from penstock.testing.client import Type, entry, frame, send
from penstock.testing.process import ProxyProcess
from tests.proxy.guarded import ADMIN, GUARDING, WRITER, bearer
from tests.proxy.in_process import running_proxy, scripted_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.proxy.in_process import Peer, RunningProxy, ScriptedBroker

pytestmark = pytest.mark.real

TOPIC = "persistent://public/default/t"
TIMEOUT_S = 50


@asynccontextmanager
async def admin(proxy: RunningProxy) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"{proxy.serving.admin_url}/proxy-stats", trust_env=False, timeout=TIMEOUT_S
    ) as http:
        yield http


async def connected(proxy: RunningProxy, broker: ScriptedBroker) -> tuple[Peer, Peer]:
    client = await proxy.client()
    proxy.connect(client)
    await client.next(Type.CONNECTED)
    return client, await broker.opened.get()


async def test_clients_that_are_connected_to_a_broker_are_listed_with_their_rates() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy, admin(proxy) as http:
        assert (await http.get("/connections")).json() == []
        client, peer = await connected(proxy, broker)
        looking_up = await proxy.client()
        proxy.connect(looking_up, through=False)
        await looking_up.next(Type.CONNECTED)
        client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=7, request_id=1))
        await peer.next(Type.PRODUCER)
        (one,) = (await http.get("/connections")).json()
        assert one["requestRate"] > 0
        assert one["byteRate"] > 0
        assert one["clientAddress"] == "/127.0.0.1:{}".format(client.writer.get_extra_info("sockname")[1])
        assert f"pulsar://{one['brokerAddress']}" == broker.url


async def test_each_is_listed_once_however_many_pages_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_stats, "PAGE_ROWS", 2)
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy, admin(proxy) as http:
        clients = [(await connected(proxy, broker))[0] for _ in range(5)]
        listed = [one["clientAddress"] for one in (await http.get("/connections")).json()]
        assert listed == ["/127.0.0.1:{}".format(one.writer.get_extra_info("sockname")[1]) for one in clients]


async def test_topics_are_listed_if_they_are_counted_and_the_level_says_so() -> None:
    async with (
        scripted_broker() as broker,
        running_proxy(broker.url, usageRecordsEnabled="true") as proxy,
        admin(proxy) as http,
    ):
        assert (await http.get("/topics")).json() == {}
        client, peer = await connected(proxy, broker)
        client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=7, request_id=1))
        await peer.next(Type.PRODUCER)
        peer.write(frame(Type.PRODUCER_SUCCESS, request_id=1, producer_name="p"))
        await client.next(Type.PRODUCER_SUCCESS)
        client.write(send(7, 0, entry(b"x")))
        await peer.next(Type.SEND)
        peer.write(frame(Type.SEND_RECEIPT, producer_id=7, sequence_id=0, message_id={"ledgerId": 1, "entryId": 0}))
        await client.next(Type.SEND_RECEIPT)
        ((name, rates),) = (await http.get("/topics")).json().items()
        assert name == TOPIC
        assert rates["msgRateIn"] > 0
        assert rates["msgByteIn"] > rates["msgRateIn"]
        assert (rates["msgRateOut"], rates["msgByteOut"]) == (0, 0)
        assert (await http.get("/logging")).json() == 2
        assert (await http.post("/logging/1")).status_code == 204
        assert (await http.get("/logging")).json() == 1
        assert (await http.get("/topics")).status_code == 412
        assert (await http.post("/logging/2")).status_code == 204
        assert (await http.get("/topics")).json().keys() == {TOPIC}


async def test_topics_that_are_not_counted_are_not_listed_at_any_level() -> None:
    async with scripted_broker() as broker, running_proxy(broker.url) as proxy, admin(proxy) as http:
        assert (await http.get("/logging")).json() == 0
        answer = await http.get("/topics")
        assert (answer.status_code, answer.json()["reason"]) == (412, "Proxy doesn't have logging level 2")
        answer = await http.post("/logging/2")
        assert answer.status_code == 412
        assert "usageRecordsEnabled=true" in answer.json()["reason"]
        for wrong in ("3", "-1", "x", "99999999999999999999"):
            assert (await http.post(f"/logging/{wrong}")).status_code == 412


@dataclass
class Counting:
    """As much of `Services` as statistics of topics use."""

    clock: ManualClock
    usage: UsageCounts


async def test_rates_of_topics_are_charged_and_a_page_is_bounded_by_rows_and_names() -> None:
    times = itertools.count(1)
    counts = UsageCounts(Row("usage", MIB), Row("unanswered", MIB), lambda: next(times))
    services: Any = Counting(ManualClock(), counts)
    connections: Any = None
    stats = ProxyStats(services, connections)
    long = [f"{TOPIC}-{number}-{'x' * 10_000}" for number in range(20)]
    names = [f"{TOPIC}-{number}" for number in range(PAGE_ROWS + 50)] + long
    for name in names:
        counts.add(name, Totals(1, 10))
    before, after = counts.memory.used_bytes, -1
    pages = [await stats.topics(after)]
    while pages[-1].after is not None:
        pages.append(await stats.topics(pages[-1].after))
    assert [name for page in pages for name in page.rows] == names
    assert max(len(page.rows) for page in pages) == PAGE_ROWS
    assert max(sum(map(len, page.rows)) for page in pages) < proxy_stats.PAGE_CHARACTERS + 11_000
    assert counts.memory.used_bytes == before + len(names) * RATES_BYTES
    for topic in counts.topics():
        counts.forget(topic)
    assert counts.memory.used_bytes == 0


def test_rates_for_which_there_is_no_memory_are_told_and_not_kept() -> None:
    counts = UsageCounts(Row("usage", TOPIC_BYTES + 2 * len(TOPIC)), Row("unanswered", 1_000), lambda: 1)
    counts.add(TOPIC, Totals(5, 50))
    (topic,) = counts.topics()
    assert proxy_stats._begun(topic, counts, 0).per_s(topic.totals[:4], 10**9) == (5, 50, 0, 0)  # noqa: SLF001
    assert topic.rates is None


def test_a_proxy_that_authorizes_tells_superusers_only(tmp_path: Path) -> None:
    config = tmp_path / "proxy.conf"
    config.write_text(f"{GUARDING}authorizationEnabled=true\nsuperUserRoles={ADMIN}\n")
    arguments = ["--config", str(config)]
    with ProxyProcess("pulsar://127.0.0.1:1", arguments, log_path=tmp_path / "proxy.log") as proxy:
        for method, path in (("GET", "connections"), ("GET", "topics"), ("GET", "logging"), ("POST", "logging/0")):
            url = f"{proxy.admin_url}/proxy-stats/{path}"
            assert httpx.request(method, url, timeout=TIMEOUT_S).status_code == 401
            assert httpx.request(method, url, timeout=TIMEOUT_S, headers=bearer(WRITER)).status_code == 403
            told = httpx.request(method, url, timeout=TIMEOUT_S, headers=bearer(ADMIN)).status_code
            assert told == (412 if path == "topics" else 204 if method == "POST" else 200)
