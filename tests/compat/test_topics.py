# SPDX-License-Identifier: Apache-2.0
"""Topics as the official Python client finds and uses them: partitioned, by pattern, not persistent, terminated."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import _pulsar
import httpx
import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.conftest import Subject

TIMEOUT_MS = 10_000
TIMEOUT_S = 30.0
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def client(broker: Subject) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    yield client
    client.close()


@pytest.fixture
def admin(broker: Subject) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{broker.admin_url}/admin/v2", timeout=TIMEOUT_S) as admin:
        yield admin


@pytest.fixture
def local() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def create_partitioned(admin: httpx.Client, local: str, partitions: int, domain: str = "persistent") -> str:
    admin.put(f"/{domain}/public/default/{local}/partitions", json=partitions).raise_for_status()
    return f"{domain}://public/default/{local}"


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        received.append(message.data())
    return received


# -- found ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("partitioned")
def test_topics_are_found_over_http_too(broker: Subject, admin: httpx.Client, local: str) -> None:
    topic = create_partitioned(admin, local, 2)
    client = pulsar.Client(broker.admin_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    consumer = client.subscribe([topic, f"{topic}-alone"], "s")
    client.create_producer(topic).send(b"partitioned")
    client.create_producer(f"{topic}-alone").send(b"alone")
    assert sorted(receive(consumer, 2)) == [b"alone", b"partitioned"]
    client.close()


# -- partitioned ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("partitioned")
def test_a_partitioned_topic_spreads_messages_and_brings_them_all(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = create_partitioned(admin, local, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    sent = {producer.send(b"%d" % number).partition() for number in range(30)}
    assert sent == {0, 1, 2}
    assert sorted(receive(consumer, 30), key=int) == [b"%d" % number for number in range(30)]


@pytest.mark.feature("partitioned")
def test_messages_of_one_key_stay_in_order_on_one_partition(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = create_partitioned(admin, local, 4)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    where = {
        (number % 5, producer.send(b"%d" % number, partition_key=str(number % 5)).partition()) for number in range(50)
    }
    assert len(where) == 5
    received = [int(data) for data in receive(consumer, 50)]
    for key in range(5):
        assert [number for number in received if number % 5 == key] == list(range(key, 50, 5))


@pytest.mark.feature("partitioned")
def test_a_topic_that_is_not_partitioned_is_one(client: pulsar.Client, local: str) -> None:
    topic = f"persistent://public/default/{local}"
    client.create_producer(topic).send(b"hello")
    assert client.get_topic_partitions(topic) == [topic]


@pytest.mark.feature("partitioned")
def test_a_single_partition_is_used_by_its_own_name(client: pulsar.Client, admin: httpx.Client, local: str) -> None:
    topic = create_partitioned(admin, local, 2)
    consumer = client.subscribe(f"{topic}-partition-1", "s")
    client.create_producer(f"{topic}-partition-1").send(b"one")
    assert receive(consumer, 1) == [b"one"]
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-2")


@pytest.mark.feature("partitioned")
def test_a_reader_reads_all_partitions(client: pulsar.Client, admin: httpx.Client, local: str) -> None:
    topic = create_partitioned(admin, local, 3)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(12):
        producer.send(b"%d" % number)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    received = []
    while reader.has_message_available():
        received.append(reader.read_next(TIMEOUT_MS).data())
    assert sorted(received, key=int) == [b"%d" % number for number in range(12)]


@pytest.mark.feature("partition-growth")
def test_new_partitions_are_used_and_a_subscription_misses_nothing_of_them(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = create_partitioned(admin, local, 1)
    client.subscribe(topic, "s").close()
    admin.post(f"/persistent/public/default/{local}/partitions", json=3).raise_for_status()
    assert len(client.get_topic_partitions(topic)) == 3
    # Nobody has subscribed to the new partitions by name: the subscription was made with them.
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    assert {producer.send(b"%d" % number).partition() for number in range(9)} == {0, 1, 2}
    consumer = client.subscribe(topic, "s")
    assert sorted(receive(consumer, 9)) == [b"%d" % number for number in range(9)]


@pytest.mark.feature("reconnect")
def test_clients_of_an_unloaded_topic_go_on_and_miss_nothing(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = f"persistent://public/default/{local}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    assert receive(consumer, 10) == [b"%d" % number for number in range(10)]
    admin.put(f"/persistent/public/default/{local}/unload").raise_for_status()
    for number in range(10, 20):
        producer.send(b"%d" % number)
    # The client groups acknowledgements: those that it had not sent yet come again.
    received: list[bytes] = []
    while b"19" not in received:
        received += receive(consumer, 1)
    assert [data for data in received if int(data) >= 10] == [b"%d" % number for number in range(10, 20)]


# -- several topics ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("pattern")
def test_a_consumer_of_a_pattern_finds_topics_that_come_later(client: pulsar.Client, local: str) -> None:
    def name(suffix: str) -> str:
        return f"persistent://public/default/{local}-{suffix}"

    for suffix in ("a", "other"):
        client.create_producer(name(suffix)).send(suffix.encode())
    # pulsar-client 3.13 takes the period of `Client.subscribe` and forgets it: a new topic would be found in a minute.
    configuration = _pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(1)
    configuration.subscription_initial_position(EARLIEST)
    pattern = f"persistent://public/default/{local}-[a-c]"
    consumer = client._client.subscribe_pattern(pattern, "s", configuration)  # noqa: SLF001
    assert consumer.receive(TIMEOUT_MS).data() == b"a"
    for suffix in ("b", "c"):
        client.create_producer(name(suffix)).send(suffix.encode())
    assert sorted(consumer.receive(TIMEOUT_MS).data() for _ in range(2)) == [b"b", b"c"]
    consumer.close()


@pytest.mark.feature("pattern")
def test_a_pattern_finds_the_partitions_of_partitioned_topics(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = create_partitioned(admin, f"{local}-p", 3)
    consumer = client.subscribe(re.compile(f"persistent://public/default/{local}.*"), "s")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(6):
        producer.send(b"%d" % number)
    assert sorted(receive(consumer, 6)) == [b"%d" % number for number in range(6)]


@pytest.mark.feature("multi-topics")
def test_a_consumer_reads_several_topics_with_and_without_partitions(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topics = [f"persistent://public/default/{local}-plain", create_partitioned(admin, f"{local}-p", 2)]
    consumer = client.subscribe(topics, "s")
    for topic in topics:
        client.create_producer(topic).send(topic.encode())
    assert sorted(receive(consumer, 2)) == sorted(topic.encode() for topic in topics)


# -- not persistent ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("non-persistent")
def test_a_topic_that_is_not_persistent_brings_what_is_sent_while_somebody_listens(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = f"non-persistent://public/default/{local}"
    producer = client.create_producer(topic)
    producer.send(b"nobody listens")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for number in range(10):
        producer.send(b"%d" % number)
    assert receive(consumer, 10) == [b"%d" % number for number in range(10)]
    assert topic in admin.get("/non-persistent/public/default").json()
    assert topic not in admin.get("/persistent/public/default").json()


@pytest.mark.feature("non-persistent")
def test_a_partitioned_topic_may_be_not_persistent(client: pulsar.Client, admin: httpx.Client, local: str) -> None:
    topic = create_partitioned(admin, local, 2, domain="non-persistent")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(8):
        producer.send(b"%d" % number)
    assert sorted(receive(consumer, 8)) == [b"%d" % number for number in range(8)]


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("end-of-topic")
def test_a_terminated_topic_takes_nothing_and_is_read_to_its_end(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = f"persistent://public/default/{local}"
    producer = client.create_producer(topic)
    sent = [producer.send(b"%d" % number) for number in range(5)]
    end = admin.post(f"/persistent/public/default/{local}/terminate")
    assert (end.json()["ledgerId"], end.json()["entryId"]) == (sent[-1].ledger_id(), sent[-1].entry_id())
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = [reader.read_next(TIMEOUT_MS).data() for _ in range(5)]
    assert read == [b"%d" % number for number in range(5)]
    assert not reader.has_message_available()


@pytest.mark.feature("partitioned")
def test_nothing_is_produced_in_a_namespace_that_does_not_exist(client: pulsar.Client, local: str) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://public/{local}/t")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(f"persistent://{local}/default/t", "s")


@pytest.mark.feature("admin-topics")
def test_a_topic_that_was_deleted_by_force_is_made_anew_by_its_clients(
    client: pulsar.Client, admin: httpx.Client, local: str
) -> None:
    topic = f"persistent://public/default/{local}"
    producer = client.create_producer(topic)
    old = producer.send(b"old")
    assert admin.delete(f"/persistent/public/default/{local}").status_code == 412
    admin.delete(f"/persistent/public/default/{local}", params={"force": "true"}).raise_for_status()
    new = producer.send(b"new")
    assert new.ledger_id() > old.ledger_id()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert receive(consumer, 1) == [b"new"]
