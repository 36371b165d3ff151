# SPDX-License-Identifier: Apache-2.0
"""Administration at any port of several brokers: requests reach the broker that serves the topic."""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.core.units import KIB, MIB
from penstock.testing.tokens import SECRET, data_url, token
from tests.processes.cluster import Cluster, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = "/admin/v2/persistent/public/default"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "data", 2) as processes:
        yield processes


def create(cluster: Cluster, name: str, *, on: int) -> str:
    """The path of a topic on this broker."""
    for number in range(20):
        path = f"{NS}/{name}-{number}"
        assert cluster.http(0, "PUT", path)[0] == 204
        if cluster.owner(path.removeprefix("/admin/v2/")) == on:
            return path
    raise AssertionError("no topic was placed there")


def owner_url(path: str) -> str:
    return path.removeprefix("/admin/v2/").replace("persistent/", "persistent://", 1)


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("on", [0, 1])
def test_what_concerns_one_topic_is_done_by_its_broker_whichever_is_asked(
    cluster: Cluster, asked: int, on: int
) -> None:
    path = create(cluster, f"asked-{asked}-on-{on}", on=on)
    client = cluster.client(asked)
    producer = client.create_producer(owner_url(path))
    for number in range(3):
        producer.send(b"message %d" % number, properties={"Color": "Red"})
    client.close()

    assert cluster.http(asked, "PUT", f"{path}/subscription/a%252Fb", {"ledgerId": -1, "entryId": -1})[0] == 204
    assert cluster.http(asked, "PUT", f"{path}/subscription/a%252Fb")[0] == 409
    assert cluster.http(asked, "GET", f"{path}/subscriptions") == (200, ["a/b"])
    status, stats = cluster.http(asked, "GET", f"{path}/stats?subscriptionBacklogSize=true")
    assert (status, stats["msgInCounter"], stats["subscriptions"]["a/b"]["msgBacklog"]) == (200, 3, 3)
    assert cluster.http(asked, "GET", f"{path}/subscription/a%252Fb/position/2") == (200, "message 1")
    with urllib.request.urlopen(f"{cluster.admin_urls[asked]}{path}/subscription/a%252Fb/position/1") as peeked:
        # Pulsar's Java client looks for them letter by letter.
        assert "X-Pulsar-PROPERTY-Color: Red" in str(peeked.headers).split("\n")
    assert cluster.http(asked, "POST", f"{path}/subscription/a%252Fb/skip/2")[0] == 204
    assert cluster.http(asked, "GET", f"{path}/stats")[1]["subscriptions"]["a/b"]["msgBacklog"] == 1
    assert cluster.http(asked, "POST", f"{path}/maxConsumers", 7)[0] == 204
    until(lambda: cluster.http(1 - asked, "GET", f"{path}/maxConsumers") == (200, 7))
    assert cluster.http(asked, "POST", f"{path}/terminate")[1]["entryId"] == 2
    status, refusal = cluster.http(asked, "DELETE", f"{path}/subscription/none")
    assert (status, "none" in refusal["reason"]) == (404, True)
    assert cluster.http(asked, "DELETE", path)[0] == 204
    until(lambda: cluster.http(1 - asked, "GET", f"{path}/stats")[0] == 404)


def test_topics_that_are_created_at_both_brokers_at_once_are_as_many_as_a_namespace_may_have(cluster: Cluster) -> None:
    namespace = "/admin/v2/namespaces/public/bounded"
    assert cluster.http(0, "PUT", namespace)[0] == 204
    assert cluster.http(0, "POST", f"{namespace}/maxTopicsPerNamespace", 7)[0] == 204
    until(lambda: cluster.http(1, "GET", f"{namespace}/maxTopicsPerNamespace") == (200, 7))
    topics = "/admin/v2/persistent/public/bounded"

    def create(number: int) -> int:
        """Topics at the one broker or the other, every third with two partitions."""
        path, value = (f"{topics}/p-{number}/partitions", 2) if number % 3 == 0 else (f"{topics}/t-{number}", None)
        return cluster.http(number % 2, "PUT", path, value)[0]

    with ThreadPoolExecutor(8) as callers:
        statuses = list(callers.map(create, range(24)))
    assert set(statuses) == {204, 405}
    until(lambda: cluster.http(0, "GET", topics) == cluster.http(1, "GET", topics))
    made = sum(2 if number % 3 == 0 else 1 for number, status in enumerate(statuses) if status == 204)
    assert len(cluster.http(0, "GET", topics)[1]) == made == 7


def test_what_concerns_a_partitioned_topic_is_done_by_the_brokers_of_its_partitions(cluster: Cluster) -> None:
    path = f"{NS}/parts"
    assert cluster.http(0, "PUT", f"{path}/partitions", 4)[0] == 204
    assert {cluster.owner(f"{owner_url(path)}-partition-{index}") for index in range(4)} == {0, 1}
    subscription = f"{path}/subscription/s"
    assert cluster.http(1, "PUT", subscription, {"ledgerId": -1, "entryId": -1})[0] == 204
    assert cluster.http(0, "PUT", subscription)[0] == 409
    client = cluster.client(1)
    producer = client.create_producer(owner_url(path))
    for number in range(40):
        producer.send(b"x", partition_key=str(number))
    for asked in range(2):
        status, stats = cluster.http(asked, "GET", f"{path}/partitioned-stats?perPartition=true")
        assert (status, stats["msgInCounter"], len(stats["partitions"])) == (200, 40, 4)
        assert stats["subscriptions"]["s"]["msgBacklog"] == 40
        assert len(cluster.http(asked, "GET", f"{path}/partitioned-internalStats")[1]["partitions"]) == 4
    assert cluster.http(0, "POST", f"{subscription}/skip_all")[0] == 204
    assert cluster.http(1, "GET", f"{path}/partitioned-stats")[1]["subscriptions"]["s"]["msgBacklog"] == 0
    assert cluster.http(0, "PUT", f"{path}/unload")[0] == 204
    producer.send(b"after")
    assert cluster.http(1, "POST", f"{path}/partitions", 6)[0] == 204
    for index in range(6):
        assert cluster.http(index % 2, "GET", f"{path}-partition-{index}/subscriptions") == (200, ["s"])
    client.close()
    assert cluster.http(1, "DELETE", subscription)[0] == 204
    assert cluster.http(1, "DELETE", subscription)[0] == 404
    assert cluster.http(1, "DELETE", f"{path}/partitions")[0] == 204
    until(lambda: not any("parts" in one for one in cluster.http(0, "GET", NS)[1]))


@pytest.mark.parametrize("on", [0, 1])
def test_metrics_and_broker_stats_are_of_the_topics_of_the_broker_that_is_asked(cluster: Cluster, on: int) -> None:
    path = create(cluster, f"measured-on-{on}", on=on)
    client = cluster.client(1 - on)
    client.create_producer(owner_url(path)).send(b"loaded")
    client.close()
    for number in (0, 1):
        _, topics = cluster.http(number, "GET", "/admin/v2/broker-stats/topics")
        assert (owner_url(path) in str(topics)) == (number == on)
        _, text = cluster.http(number, "GET", "/metrics")
        assert (f'topic="{owner_url(path)}"' in text) == (number == on)


def test_consumers_of_a_pattern_at_one_broker_get_messages_of_all(cluster: Cluster) -> None:
    client = cluster.client(1)
    producers = [client.create_producer(f"persistent://public/default/pattern-{number}") for number in range(4)]
    assert {cluster.owner(f"persistent://public/default/pattern-{number}") for number in range(4)} == {0, 1}
    reader = cluster.client(0)
    consumer = reader.subscribe(re.compile("persistent://public/default/pattern-.*"), "s")
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    assert sorted(consumer.receive(60_000).data() for _ in producers) == [b"0", b"1", b"2", b"3"]
    reader.close()
    client.close()


def test_a_namespace_with_topics_on_both_is_unloaded_and_deleted(cluster: Cluster) -> None:
    assert cluster.http(0, "PUT", "/admin/v2/namespaces/public/two")[0] == 204
    until(lambda: cluster.http(1, "GET", "/admin/v2/namespaces/public/two")[0] == 200)
    for number in range(4):
        assert cluster.http(number % 2, "PUT", f"/admin/v2/persistent/public/two/t-{number}")[0] == 204
    client = cluster.client()
    producers = [client.create_producer(f"persistent://public/two/t-{number}") for number in range(4)]
    assert cluster.http(1, "PUT", "/admin/v2/namespaces/public/two/unload")[0] == 204
    for producer in producers:
        producer.send(b"after")
    client.close()
    assert cluster.http(0, "DELETE", "/admin/v2/namespaces/public/two")[0] == 409
    assert cluster.http(1, "POST", "/admin/v2/brokers/configuration/forceDeleteNamespaceAllowed/true")[0] == 204
    until(lambda: cluster.http(0, "DELETE", "/admin/v2/namespaces/public/two?force=true")[0] == 204)
    until(lambda: cluster.http(1, "GET", "/admin/v2/namespaces/public/two")[0] == 404)


def guarded_cluster(directory: Path, more: str = "") -> Cluster:
    """Two brokers that check who may do what; `admin` is a superuser. `more`: settings."""
    (directory / "auth.conf").write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\nsuperUserRoles=admin\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey={data_url(SECRET)}\n{more}"
    )
    return Cluster(directory / "data", 2, ["--config", str(directory / "auth.conf")])


def test_credentials_are_checked_by_the_broker_that_is_asked(tmp_path: Path) -> None:
    with guarded_cluster(tmp_path) as guarded:
        admin, other = token("admin"), token("other")
        found = set()
        for number in range(4):
            path = f"{NS}/t-{number}"
            assert guarded.http(0, "PUT", path, token=admin)[0] == 204
            for asked in range(2):
                assert guarded.http(asked, "GET", f"{path}/stats", token=admin)[0] == 200
                assert guarded.http(asked, "GET", f"{path}/stats", token=other)[0] == 403
                assert guarded.http(asked, "GET", f"{path}/stats")[0] == 401
                found.add(guarded.http(asked, "GET", f"{path}/stats", token=admin)[1]["ownerBroker"])
        assert len(found) == 2


def test_an_explanation_shows_no_limits_of_strangers_whichever_broker_has_them(tmp_path: Path) -> None:
    admin = token("admin")
    with guarded_cluster(tmp_path, f"queued.max.request.bytes={16 * MIB}\n") as guarded:
        for tenant in ("shop", "other"):
            info = {"adminRoles": [f"{tenant}-owner"], "allowedClusters": ["standalone"]}
            assert guarded.http(0, "PUT", f"/admin/v2/tenants/{tenant}", info, token=admin)[0] == 204
            assert guarded.http(0, "PUT", f"/admin/v2/namespaces/{tenant}/ns", token=admin)[0] == 204
        # Each broker has a partition of either topic, and the client one connection to it.
        for tenant in ("shop", "other"):
            path = f"/admin/v2/persistent/{tenant}/ns/t"
            assert guarded.http(0, "PUT", f"{path}/partitions", 2, token=admin)[0] == 204
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        path = "/admin/v2/persistent/other/ns/t/publishRate"
        assert guarded.http(0, "POST", path, rate, token=admin)[0] == 204
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(guarded.url_of(0), authentication=pulsar.AuthenticationToken(admin), logger=quiet)
        producers = [
            client.create_producer(f"persistent://{tenant}/ns/t-partition-{index}")
            for tenant in ("shop", "other")
            for index in range(2)
        ]
        for producer in producers[2:]:
            for _ in range(100):
                producer.send_async(bytes(40 * KIB), _ignored)  # more than a connection may hold

        def limits(asked: int, role: str) -> set[str]:
            found = guarded.http(asked, "GET", "/admin/v3/why/tenants/shop", token=token(role))[1]["findings"]
            return {one["limit"] for one in found}

        full = "its connection holds as much of it as it may, and is not read"
        theirs = {f"publish rate of persistent://other/ns/t-partition-{index}: {full}" for index in range(2)}
        for asked in range(2):
            until(lambda asked=asked: limits(asked, "admin") == theirs)  # type: ignore[misc]
            assert limits(asked, "shop-owner") == {"a limit of another tenant"}
        client.shutdown()  # Closing would wait for the receipts.


def _ignored(_result: pulsar.Result, _message_id: pulsar.MessageId | None) -> None:
    """A receipt that nobody waits for."""
