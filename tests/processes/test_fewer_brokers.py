# SPDX-License-Identifier: Apache-2.0
"""A data directory is started with one broker, with three, with one and with two; nothing is lost on the way."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.processes.cluster import Cluster, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T = "persistent://public/default/"
PLAIN = [f"{T}plain-{number}" for number in range(6)]
PARTS, KEYED, LATER, ONCE = f"{T}parts", f"{T}keyed", f"{T}later", f"{T}once"
EARLIEST = pulsar.InitialPosition.Earliest
# Long enough for the starts between publishing and delivery.
DELAY_S = 12.0


def send(client: pulsar.Client, topic: str, texts: Iterable[str], key: str | None = None) -> None:
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for text in texts:
        producer.send(text.encode(), partition_key=key)
    producer.close()


def received(consumer: pulsar.Consumer, count: int) -> list[str]:
    """The next messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def texts(of: str, first: int, number: int) -> list[str]:
    return [f"{of} {each}" for each in range(first, first + number)]


def publish_once(client: pulsar.Client, sequence_ids: Iterable[int]) -> None:
    """Publish with these sequence ids; those that were used before are dropped."""
    producer = client.create_producer(ONCE, producer_name="p", initial_sequence_id=0)
    for sequence_id in sequence_ids:
        producer.send(f"once {sequence_id}".encode(), sequence_id=sequence_id)
    producer.close()


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def topics_on(cluster: Cluster) -> set[int]:
    status, partitions = cluster.http(0, "GET", "/admin/v2/persistent/public/default")
    assert status == 200
    return {cluster.owner(topic) for topic in partitions}


@pytest.mark.timeout(180)
def test_topics_survive_one_three_one_and_two_brokers_with_all_they_have(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Cluster(data, 1) as one:
        client = one.client()
        send(client, PLAIN[0], texts("plain", 0, 20))
        consumer = client.subscribe(PLAIN[0], "s", initial_position=EARLIEST)
        assert received(consumer, 5) == texts("plain", 0, 5)
        client.close()
    with Cluster(data, 3) as three:
        fill(three)
    with Cluster(data, 1) as one:
        assert topics_on(one) == {0}
        log = one.log_path.read_text()
        assert "--brokers 1: moving" in log
        assert not list((data / "broker-1" / "log").iterdir())
        go_on(one)
    with Cluster(data, 2) as two:
        assert "--brokers 2: moving" not in two.log_path.read_text()
        finish(two)


def fill(cluster: Cluster) -> None:
    """Publish and acknowledge on three brokers."""
    assert cluster.http(0, "POST", "/admin/v2/namespaces/public/default/deduplication", True)[0] == 204
    assert cluster.http(0, "PUT", f"{path_of(PARTS)}/partitions", 3)[0] == 204
    client = cluster.client(1)
    for topic in PLAIN[1:]:
        send(client, topic, texts("plain", 0, 20))
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert received(consumer, 5) == texts("plain", 0, 5)
        consumer.close()
    send(client, PARTS, texts("part", 0, 30))
    publish_once(client, range(1, 6))
    for key in ("a", "b"):
        send(client, KEYED, texts(key, 0, 10), key)
    delayed = client.subscribe(LATER, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(LATER)
    deliver_at_ms = int((time.time() + DELAY_S) * 1000)
    for text in texts("later", 0, 5):
        producer.send(text.encode(), deliver_at=deliver_at_ms)
    with pytest.raises(pulsar.Timeout):
        delayed.receive(200)
    client.close()
    assert cluster.http(2, "PUT", f"{path_of(KEYED)}/compaction")[0] == 204
    until(lambda: cluster.http(2, "GET", f"{path_of(KEYED)}/compaction")[1]["status"] == "SUCCESS")
    assert topics_on(cluster) == {0, 1, 2}


def go_on(cluster: Cluster) -> None:
    """Receive what was not acknowledged, in order, and publish more."""
    client = cluster.client()
    for topic in PLAIN:
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert received(consumer, 10) == texts("plain", 5, 10)
        send(client, topic, texts("plain", 20, 10))
        consumer.close()
    assert latest_of_keys(client) == {"a": "a 9", "b": "b 9"}
    publish_once(client, range(3, 8))
    client.close()


def finish(cluster: Cluster) -> None:
    client = cluster.client(1)
    for topic in PLAIN:
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert received(consumer, 15) == texts("plain", 15, 15)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(50)
    assert received(client.subscribe(ONCE, "s", initial_position=EARLIEST), 7) == texts("once", 1, 7)
    parts = received(client.subscribe(PARTS, "s", initial_position=EARLIEST), 30)
    assert sorted(parts) == sorted(texts("part", 0, 30))
    assert latest_of_keys(client) == {"a": "a 9", "b": "b 9"}
    later = client.subscribe(LATER, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    assert sorted(received(later, 5)) == texts("later", 0, 5)
    send(client, f"{T}new", texts("new", 0, 3))
    assert received(client.subscribe(f"{T}new", "s", initial_position=EARLIEST), 3) == texts("new", 0, 3)
    client.close()


def latest_of_keys(client: pulsar.Client) -> dict[str, str]:
    reader = client.create_reader(KEYED, pulsar.MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(30_000)
        assert message.partition_key() not in found
        found[message.partition_key()] = message.data().decode()
    return found


@pytest.mark.timeout(180)
def test_a_start_that_is_killed_while_it_moves_topics_is_repeated(tmp_path: Path) -> None:
    data, topics = tmp_path / "data", [f"{T}killed-{number}" for number in range(8)]
    with Cluster(data, 2) as two:
        client = two.client()
        payload = "x" * 100_000
        for topic in topics:
            send(client, topic, (f"{number} {payload}" for number in range(40)))
        client.close()
        assert topics_on(two) == {0, 1}
    for pause_s in (0.0, 0.005, 0.01, 0.02):
        kill_while_moving(data, pause_s)
    with Cluster(data, 1) as one:
        assert "moving 4 topics" in one.log_path.read_text()  # None of the kills came too late.
        client = one.client()
        for topic in topics:
            consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
            found = received(consumer, 40)
            assert [text.split()[0] for text in found] == [str(number) for number in range(40)]
            with pytest.raises(pulsar.Timeout):
                consumer.receive(50)
        client.close()


def kill_while_moving(data: Path, pause_s: float) -> None:
    """Start with one broker, and kill it so long after it began to move topics."""
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(data), "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("moving" in line for line in process.stderr)  # Read as it is written: moving takes a moment only.
        time.sleep(pause_s)
        process.kill()
