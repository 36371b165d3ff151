# SPDX-License-Identifier: Apache-2.0
"""Replication between two processes: what needs sockets, the admin port and an official client."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from penstock.testing.process import BrokerProcess
from tests.processes.cluster import ask, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMESPACE = "namespaces/public/default"


class Order(Record):  # type: ignore[misc]
    """What is sent."""

    name = String()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    path: Path = tmp_path_factory.mktemp("clusters")
    brokers = []
    for name in ("east", "west"):
        (path / f"{name}.conf").write_text(f"clusterName={name}\n")
        arguments = ["--config", str(path / f"{name}.conf")]
        brokers.append(BrokerProcess(path / name, arguments, log_path=path / f"{name}.log"))
    with brokers[0] as east, brokers[1] as west:
        ask(east, "PUT", "clusters/west", {"serviceUrl": west.admin_url, "brokerServiceUrl": west.url})
        ask(east, "POST", "tenants/public", {"allowedClusters": ["east", "west"]})
        ask(east, "POST", f"{NAMESPACE}/replication", ["east", "west"])
        ask(west, "POST", f"{NAMESPACE}/deduplication", body=True)
        yield east, west


@pytest.mark.real
def test_partitions_and_schemas_are_there_as_they_are_here(clusters: tuple[BrokerProcess, BrokerProcess]) -> None:
    east, west = clusters
    topic = "persistent/public/default/orders"
    ask(east, "PUT", f"{topic}/partitions", 3)
    client, there = pulsar.Client(east.url), pulsar.Client(west.url)
    producer = client.create_producer("orders", schema=JsonSchema(Order), batching_enabled=True)
    for number in range(30):
        producer.send_async(Order(name=f"{number}"), lambda _result, _id: None, partition_key=f"{number}")
    producer.flush()
    until(lambda: not ask(east, "GET", f"{topic}/partitioned-stats")["replication"]["west"]["replicationBacklog"])
    assert ask(west, "GET", f"{topic}/partitions")["partitions"] == 3
    consumer = there.subscribe(
        "orders", "s", schema=JsonSchema(Order), initial_position=pulsar.InitialPosition.Earliest
    )
    got = sorted(int(consumer.receive(10_000).value().name) for _ in range(30))
    assert got == list(range(30))
    assert ask(east, "GET", f"{topic}/subscriptions") == []
    client.close()
    there.close()


@pytest.mark.real
def test_a_topic_that_is_partitioned_there_only_waits_and_says_so(
    clusters: tuple[BrokerProcess, BrokerProcess],
) -> None:
    east, west = clusters
    ask(west, "PUT", "persistent/public/default/differs/partitions", 2)
    client = pulsar.Client(east.url)
    client.create_producer("differs").send(b"x")

    def why() -> list[dict[str, Any]]:
        with urllib.request.urlopen(
            f"{east.admin_url}/admin/v3/why/persistent/public/default/differs", timeout=60
        ) as answer:
            return list(json.loads(answer.read())["findings"])

    until(lambda: [one["reason"] for one in why()] == ["replication"])
    assert "has 2 partitions at cluster west, and none here" in why()[0]["limit"]
    client.close()
