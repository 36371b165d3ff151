# SPDX-License-Identifier: Apache-2.0
"""The broker itself over HTTP, in front of a real one: paths, bodies and statuses as pulsar-admin expects them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.core.units import GIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import WAITING_BYTES
from penstock.net.listing_memory import LimitType, Owner, TopicListLimits
from penstock.settings import MachineFacts, load
from penstock.settings.limits import Live
from penstock.testing.client import Type, frame
from tests.net.harness import Client, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

FACTS = MachineFacts(ram_bytes=8 * GIB, cgroup_limit_bytes=None, hostname="host-1")
BROKERS = "/admin/v2/brokers"
STATS = "/admin/v2/broker-stats"
QUOTAS = "/admin/v2/resource-quotas"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    settings = load(facts=FACTS, flags={"tokenSecretKey": "very secret", "clusterName": "test"})
    addresses = Addresses(
        service=ServiceUrls("pulsar://broker:6650", None), web=ServiceUrls("http://broker:8080", None)
    )
    async with running(
        tmp_path / "data",
        keys=lambda _: Live(settings),
        addresses=addresses,
        status_file=tmp_path / "in-service",
    ) as harness:
        yield harness


async def test_the_one_broker_is_named_and_leads(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(BROKERS)).json() == ["broker:8080"]
    assert (await admin.get(f"{BROKERS}/test")).json() == ["broker:8080"]
    assert (await admin.get(f"{BROKERS}/leaderBroker")).json() == {
        "brokerId": "broker:8080",
        "serviceUrl": "http://broker:8080",
    }


async def test_brokers_of_another_cluster_are_not_known_here(admin: httpx.AsyncClient) -> None:
    answer = await admin.get(f"{BROKERS}/elsewhere")
    assert (answer.status_code, answer.json()) == (404, {"reason": "Cluster does not exist: cluster=elsewhere"})


async def test_a_broker_that_is_well_says_ok_and_not_a_letter_more(admin: httpx.AsyncClient) -> None:
    for path in ("health", "health?topicVersion=V2", "health?brokerId=broker:8080", "ready"):
        answer = await admin.get(f"{BROKERS}/{path}")
        assert (answer.status_code, answer.text) == (200, "ok")
    assert (await admin.get(f"{BROKERS}/health?brokerId=other:8080")).status_code == 404


async def test_a_broker_that_stops_is_neither_well_nor_ready(harness: Harness, admin: httpx.AsyncClient) -> None:
    harness.broker.stopping = True
    answer = await admin.get(f"{BROKERS}/health")
    assert (answer.status_code, answer.json()) == (503, {"reason": "stopping"})
    assert (await admin.get(f"{BROKERS}/ready")).status_code == 500
    harness.broker.stopping = False


async def test_the_version_is_a_line_of_text(admin: httpx.AsyncClient) -> None:
    answer = await admin.get(f"{BROKERS}/version")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text[0].isdigit()


async def test_all_bundles_of_all_namespaces_are_owned(admin: httpx.AsyncClient) -> None:
    owned = (await admin.get(f"{BROKERS}/test/broker:8080/ownedNamespaces")).json()
    assert all(status["is_active"] for status in owned.values())
    assert {bundle.rpartition("/")[0] for bundle in owned} == {"public/default", "pulsar/system"}
    assert (await admin.get(f"{BROKERS}/test/other:8080/ownedNamespaces")).status_code == 404


async def test_where_metadata_is_has_the_names_that_pulsars_tools_print(admin: httpx.AsyncClient) -> None:
    assert set((await admin.get(f"{BROKERS}/internal-configuration")).json()) == {
        "metadataStoreUrl",
        "configurationMetadataStoreUrl",
        "ledgersRootPath",
        "bookkeeperMetadataServiceUri",
        "stateStorageServiceUrl",
    }


async def test_the_page_for_load_balancers_is_there_while_its_file_is(
    tmp_path: Path, harness: Harness, admin: httpx.AsyncClient
) -> None:
    assert (await admin.get("/status.html")).status_code == 404
    (tmp_path / "in-service").touch()
    answer = await admin.get("/status.html")
    assert (answer.status_code, answer.text) == (200, "OK")
    harness.broker.stopping = True
    assert (await admin.get("/status.html")).status_code == 404
    harness.broker.stopping = False


async def test_backlog_quotas_are_checked_on_demand(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(f"{BROKERS}/backlog-quota-check")).status_code == 204


async def test_a_broker_inside_another_program_is_not_ended_over_http(admin: httpx.AsyncClient) -> None:
    answer = await admin.post(f"{BROKERS}/shutdown")
    assert answer.status_code == 405
    assert "another program" in answer.json()["reason"]


async def test_whoever_asks_for_the_end_is_answered_before_it(harness: Harness, admin: httpx.AsyncClient) -> None:
    asked = asyncio.Event()
    harness.broker.shut_down = asked.set
    answer = await admin.post(f"{BROKERS}/shutdown?maxConcurrentUnloadPerSec=1&forcedTerminateTopic=false")
    assert answer.status_code == 204
    await asked.wait()


# -- configuration


async def test_settings_that_can_be_changed_are_named(admin: httpx.AsyncClient) -> None:
    names = (await admin.get(f"{BROKERS}/configuration")).json()
    assert "allowAutoTopicCreation" in names
    assert "clusterName" not in names


async def test_a_change_is_shown_and_in_force_until_it_is_taken_back(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    changed = await admin.post(f"{BROKERS}/configuration/maxProducersPerTopic/3")
    assert (changed.status_code, changed.text) == (204, "")
    assert (await admin.get(f"{BROKERS}/configuration/values")).json() == {"maxProducersPerTopic": "3"}
    assert (await admin.get(f"{BROKERS}/configuration/runtime")).json()["maxProducersPerTopic"] == "3"
    assert harness.broker.limits.policies.max_producers_per_topic == 3
    assert (await admin.delete(f"{BROKERS}/configuration/maxProducersPerTopic")).status_code == 204
    assert (await admin.get(f"{BROKERS}/configuration/values")).json() == {}
    assert harness.broker.limits.policies.max_producers_per_topic == 0


async def test_a_value_may_hold_a_slash_and_commas(admin: httpx.AsyncClient) -> None:
    assert (await admin.post(f"{BROKERS}/configuration/superUserRoles/ou%2Fadmin,ops%20team")).status_code == 204
    values = (await admin.get(f"{BROKERS}/configuration/values")).json()
    assert values == {"superUserRoles": "ou/admin,ops team"}


@pytest.mark.parametrize("key", ["clusterName", "keyOfTheFuture"])
async def test_what_cannot_be_changed_is_412_in_pulsars_words(admin: httpx.AsyncClient, key: str) -> None:
    for answer in (
        await admin.post(f"{BROKERS}/configuration/{key}/1"),
        await admin.delete(f"{BROKERS}/configuration/{key}"),
    ):
        assert answer.status_code == 412
        assert answer.json()["reason"].startswith("Can't update non-dynamic configuration")


async def test_a_value_that_cannot_be_is_412_in_pulsars_words(admin: httpx.AsyncClient) -> None:
    answer = await admin.post(f"{BROKERS}/configuration/maxProducersPerTopic/many")
    assert answer.status_code == 412
    assert answer.json()["reason"].startswith(" Invalid dynamic-config value")


async def test_all_settings_in_force_are_shown_as_text_and_no_secret_with_them(admin: httpx.AsyncClient) -> None:
    answer = await admin.get(f"{BROKERS}/configuration/runtime")
    values = answer.json()
    assert (values["brokerServicePort"], values["allowAutoTopicCreation"]) == ("6650", "true")
    assert values["tokenSecretKey"] == "***"
    assert "very secret" not in answer.text


# -- load


async def test_a_load_report_tells_where_the_broker_is_and_what_went_through_since_the_one_before(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    first = (await admin.get(f"{STATS}/load-report")).json()
    assert (first["webServiceUrl"], first["pulsarServiceUrl"]) == ("http://broker:8080", "pulsar://broker:6650")
    assert (first["numTopics"], first["msgRateIn"]) == (0, 0.0)
    client = await Client.producing(harness.port)
    await client.published(*[b"hello"] * 10)
    harness.clock.advance(ns=2 * NS_PER_S)
    second = (await admin.get(f"{STATS}/load-report")).json()
    assert (second["numTopics"], second["numProducers"], second["msgRateIn"]) == (1, 1, 5.0)
    harness.clock.advance(ns=NS_PER_S)
    assert (await admin.get(f"{STATS}/load-report")).json()["msgRateIn"] == 0.0


async def test_statistics_have_the_shapes_that_pulsars_tools_read(harness: Harness, admin: httpx.AsyncClient) -> None:
    (broker,) = (await admin.get(f"{STATS}/metrics")).json()
    assert broker["dimensions"] == {"cluster": "test"}
    await Client.producing(harness.port)
    broker, namespace = (await admin.get(f"{STATS}/metrics")).json()
    assert broker["metrics"]["brk_no_of_producers"] == 1
    assert namespace["dimensions"]["namespace"] == "public/default"
    assert namespace["metrics"]["brk_no_of_producers"] == 1
    (process,) = (await admin.get(f"{STATS}/mbeans")).json()
    assert process["metrics"]["process_resident_memory_bytes"] > 0
    topics = (await admin.get(f"{STATS}/topics")).json()
    (of_bundle,) = topics["public/default"].values()
    assert of_bundle["persistent"]["persistent://public/default/t"]["producerCount"] == 1


async def test_the_parts_of_memory_are_shown_under_the_names_of_pulsars_allocators(admin: httpx.AsyncClient) -> None:
    for name in ("default", "ml-cache"):
        assert (await admin.get(f"{STATS}/allocator-stats/{name}")).json()["usedDirectMemory"] == 0
    assert (await admin.get(f"{STATS}/allocator-stats/other")).status_code == 404


async def test_the_memory_of_listings_is_shown_with_those_who_wait_for_it(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    limiter = harness.broker.listings
    limiter.set_limits(TopicListLimits(heap_bytes_max=1_000, heap_queue_max=7))
    client = await Client.connected(harness.port)
    owner = Owner("public", harness.connection_of(client).id)
    async with limiter.with_acquired_permits(1_000, LimitType.HEAP_MEMORY):
        waiting = [asyncio.create_task(limiter.acquire(300, LimitType.HEAP_MEMORY, owner=owner))]
        await asyncio.sleep(0)
        harness.clock.advance(ms=40)
        waiting.append(asyncio.create_task(limiter.acquire(200, LimitType.HEAP_MEMORY, owner=Owner("a", object()))))
        await asyncio.sleep(0)
        seen = (await admin.get(f"{STATS}/topic-listings")).json()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    heap, direct = seen["heap"], seen["direct"]
    assert (heap["limitBytes"], heap["usedBytes"], heap["queueSize"], heap["queueMaxSize"]) == (1000, 1000, 2, 7)
    assert (heap["longestWaitMillis"], heap["timeoutMillis"]) == (40, 25_000)
    assert [(one["tenant"], one["address"], one["wantsBytes"], one["waitedMillis"]) for one in heap["waiting"]] == [
        ("public", harness.connection_of(client).peer, 300, 40),
        ("a", None, 200, 0),
    ]
    assert (direct["usedBytes"], direct["waiting"]) == (0, [])
    after = (await admin.get(f"{STATS}/topic-listings")).json()["heap"]
    assert (after["usedBytes"], after["queueSize"], after["cancelled"]) == (0, 0, 2)


async def test_every_muted_connection_is_shown_with_its_reason_and_what_it_wants_and_holds(
    harness: Harness, admin: httpx.AsyncClient
) -> None:
    asking, silent = await Client.connected(harness.port), await Client.connected(harness.port)
    with harness.catalog_held():
        account = harness.broker.commands_memory.account()
        account.charge(harness.broker.commands_memory.limit_bytes)  # Somebody else uses the row up.
        asking.write(frame(Type.PARTITIONED_METADATA, request_id=1, topic="never", metadata_auto_creation_enabled=True))
        asking.write(frame(Type.SUBSCRIBE, request_id=2, topic="new", subscription="s", subType=1, consumer_id=0))
        asking.write(frame(Type.LOOKUP, request_id=3, topic="t"))
        await until(harness.muted)
        # Not for its disk: each tick of the broker looks at that anew.
        harness.connection_of(silent).mute(HoldKind.OUTBOUND)
        harness.clock.advance(ms=40)
        seen = (await admin.get(f"{STATS}/muted-connections")).json()
        account.close()
    assert seen["count"] == 2
    of_address = {one["address"]: one for one in seen["connections"]}
    held = of_address[harness.connection_of(asking).peer]
    assert (held["reasons"], held["mutedMillis"], held["wantedBytes"]) == (["commands"], 40, 0)
    assert held["commandBytes"] >= WAITING_BYTES
    assert of_address[harness.connection_of(silent).peer]["reasons"] == ["outbound"]
    harness.connection_of(silent).unmute(HoldKind.OUTBOUND)
    await until(lambda: not harness.muted())
    assert (await admin.get(f"{STATS}/muted-connections")).json() == {"count": 0, "connections": []}


# -- what a cluster has and one broker has not


async def test_resource_quotas_are_kept_for_all_bundles_and_for_one(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(QUOTAS)).json()["msgRateIn"] == 40.0
    mine = {
        "msgRateIn": 1.0,
        "msgRateOut": 2.0,
        "bandwidthIn": 3.0,
        "bandwidthOut": 4.0,
        "memory": 5.0,
        "dynamic": False,
    }
    assert (await admin.post(QUOTAS, json=mine)).status_code == 204
    bounds = (await admin.get("/admin/v2/namespaces/public/default/bundles")).json()["boundaries"]
    bundle = f"{QUOTAS}/public/default/{bounds[0]}_{bounds[1]}"
    assert (await admin.get(bundle)).json() == mine
    assert (await admin.post(bundle, json={**mine, "memory": 9.0})).status_code == 204
    assert (await admin.get(bundle)).json()["memory"] == 9.0
    assert (await admin.delete(bundle)).status_code == 204
    assert (await admin.get(bundle)).json() == mine
    assert (await admin.get(f"{QUOTAS}/public/default/0x1_0x2")).status_code == 412


async def test_there_are_no_bookies(admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/admin/v2/bookies/all")).json() == {"bookies": []}
    assert (await admin.get("/admin/v2/bookies/racks-info")).json() == {}


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/admin/v3/functions/public/default"),
        ("GET", "/admin/v2/worker/cluster"),
        ("POST", "/admin/v3/sinks/a/b/c"),
    ],
)
async def test_functions_are_refused_in_pulsars_words(admin: httpx.AsyncClient, verb: str, path: str) -> None:
    answer = await admin.request(verb, path)
    assert answer.status_code == 409
    assert answer.json()["reason"].startswith("Function worker service is not done initializing")
