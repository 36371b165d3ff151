# SPDX-License-Identifier: Apache-2.0
"""Topics as clients find and use them: partitioned, several at once, by pattern, not persistent, terminated."""

from __future__ import annotations

import queue
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import _pulsar
import pulsar
import pytest

from tests.compat.clients import (
    EARLIEST,
    TIMEOUT_MS,
    Admin,
    connect,
    numbered,
    path_of,
    publish,
    read_to_the_end,
    receive,
    unique,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.conftest import Subject

RoundRobin = pulsar.PartitionsRoutingMode.RoundRobinDistribution
Shared = pulsar.ConsumerType.Shared


# -- partitioned ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("partitioned")
def test_a_partitioned_topic_spreads_messages_and_brings_them_all(
    client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = admin.create_partitioned(local, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(topic, "s", consumer_type=Shared)
    producer = client.create_producer(topic, message_routing_mode=RoundRobin)
    sent = [producer.send(payload) for payload in numbered(30)]
    assert {one.partition() for one in sent} == {0, 1, 2}
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(30)]
    assert sorted(message.data() for message in messages) == numbered(30)
    for message in messages:
        consumer.acknowledge(message)
        assert message.topic_name() == f"{topic}-partition-{message.message_id().partition()}"


@pytest.mark.feature("partitioned")
def test_messages_of_one_key_stay_in_order_on_one_partition(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 4)
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
def test_a_producer_may_choose_the_partition_itself(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 4)
    producer = client.create_producer(topic, message_router=lambda message, count: (int(message.data()) + 1) % count)
    assert [producer.send(b"%d" % number).partition() for number in range(6)] == [1, 2, 3, 0, 1, 2]


@pytest.mark.feature("partitioned")
def test_a_producer_may_connect_to_partitions_as_it_needs_them(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 3)
    client.create_producer(
        topic,
        lazy_start_partitioned_producers=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition,
    ).send(b"x")
    counted = [admin.get(f"{path_of(topic)}-partition-{index}/stats") for index in range(3)]
    assert sorted(stats["msgInCounter"] for stats in counted) == [0, 0, 1]


@pytest.mark.feature("partitioned")
def test_a_topic_that_is_not_partitioned_is_one(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"hello")
    assert client.get_topic_partitions(topic) == [topic]


@pytest.mark.feature("partitioned")
def test_a_single_partition_is_used_by_its_own_name(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 2)
    consumer = client.subscribe(f"{topic}-partition-1", "s")
    client.create_producer(f"{topic}-partition-1").send(b"one")
    assert receive(consumer, 1) == [b"one"]
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-2")


@pytest.mark.feature("partitioned")
@pytest.mark.feature("reader")
def test_a_reader_reads_all_partitions(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 3)
    publish(client.create_producer(topic, message_routing_mode=RoundRobin), numbered(12))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert sorted(message.data() for message in read_to_the_end(reader)) == numbered(12)


@pytest.mark.feature("partitioned")
def test_nothing_is_produced_in_a_namespace_that_does_not_exist(client: pulsar.Client, local: str) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"persistent://public/{local}/t")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(f"persistent://{local}/default/t", "s")


@pytest.mark.feature("partition-growth")
def test_new_partitions_are_used_and_a_subscription_misses_nothing_of_them(
    client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = admin.create_partitioned(local, 1)
    client.subscribe(topic, "s").close()
    early = client.create_producer(topic)
    early.send(b"early")
    admin.post(f"{path_of(topic)}/partitions", 3)
    assert len(client.get_topic_partitions(topic)) == 3
    # Nobody has subscribed to the new partitions by name: the subscription was made with them.
    producer = client.create_producer(topic, message_routing_mode=RoundRobin)
    assert {producer.send(payload).partition() for payload in numbered(9)} == {0, 1, 2}
    early.send(b"late")
    consumer = client.subscribe(topic, "s")
    assert sorted(receive(consumer, 11)) == [*numbered(9), b"early", b"late"]


# -- several topics ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("multi-topics")
def test_a_consumer_reads_several_topics_with_and_without_partitions(
    client: pulsar.Client, admin: Admin, local: str
) -> None:
    other = admin.create_namespace()
    topics = [
        f"persistent://public/default/{local}-plain",
        admin.create_partitioned(f"{local}-p", 2),
        f"persistent://{other}/{local}",
        f"non-persistent://public/default/{local}",
    ]
    consumer = client.subscribe(topics, "s", consumer_type=Shared)
    for topic in topics:
        client.create_producer(topic).send(topic.encode())
    assert sorted(receive(consumer, 4)) == sorted(topic.encode() for topic in topics)


@pytest.fixture
def discovering(client: pulsar.Client, topic: str) -> Iterator[pulsar.Consumer]:
    """A consumer of topics that end in -a, -b or -c, which looks for new ones every second."""
    # pulsar-client 3.13 takes the period of `Client.subscribe` and forgets it: a new topic would be found in a minute.
    configuration = _pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(1)
    configuration.subscription_initial_position(EARLIEST)
    consumer = client._client.subscribe_pattern(f"{topic}-[a-c]", "s", configuration)  # noqa: SLF001
    yield consumer
    consumer.close()


@pytest.mark.feature("pattern")
def test_a_consumer_of_a_pattern_finds_topics_that_come_later(
    client: pulsar.Client, discovering: pulsar.Consumer, topic: str
) -> None:
    for suffix in ("a", "other", "b"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    assert sorted(discovering.receive(TIMEOUT_MS).data() for _ in range(2)) == [b"a", b"b"]
    client.create_producer(f"{topic}-c").send(b"c")
    assert discovering.receive(TIMEOUT_MS).data() == b"c"


@pytest.mark.feature("pattern")
def test_a_consumer_of_a_pattern_lets_go_of_topics_that_are_deleted(
    client: pulsar.Client, admin: Admin, discovering: pulsar.Consumer, topic: str
) -> None:
    for suffix in ("a", "b"):
        producer = client.create_producer(f"{topic}-{suffix}")
        producer.send(suffix.encode())
        producer.close()
    assert sorted(discovering.receive(TIMEOUT_MS).data() for _ in range(2)) == [b"a", b"b"]
    gone = f"{topic}-a"
    admin.delete(path_of(gone), force="true")
    client.create_producer(f"{topic}-b").send(b"still here")
    assert discovering.receive(TIMEOUT_MS).data() == b"still here"


@pytest.mark.feature("pattern")
def test_many_consumers_of_topics_with_long_names_share_what_is_sent_to_old_and_to_new_ones(
    client: pulsar.Client, topic: str
) -> None:
    def send_to(numbers: range) -> None:
        for number in numbers:
            client.create_producer(f"{topic}-{number:02d}-{400 * 'x'}").send(b"%04d" % number)

    def take(consumer: Any, message: Any) -> None:  # noqa: ANN401 - pulsar-client has no types
        came.put(message.data())
        consumer.acknowledge_async(message, lambda _result: None)

    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumers = []
    for _ in range(8):
        configuration = _pulsar.ConsumerConfiguration()
        configuration.pattern_auto_discovery_period(1)
        configuration.subscription_initial_position(EARLIEST)
        configuration.consumer_type(Shared)
        configuration.message_listener(take)
        consumers.append(client._client.subscribe_pattern(f"{topic}-.*", "s", configuration))  # noqa: SLF001
        if len(consumers) == 4:
            send_to(range(12))
    send_to(range(12, 24))
    assert sorted(came.get(timeout=TIMEOUT_MS / 1000) for _ in range(24)) == numbered(24)
    assert came.empty()
    for consumer in consumers:
        consumer.close()


@pytest.mark.feature("pattern")
def test_a_pattern_finds_the_partitions_of_partitioned_topics(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(f"{local}-p", 3)
    consumer = client.subscribe(re.compile(f"persistent://public/default/{local}.*"), "s")
    publish(client.create_producer(topic, message_routing_mode=RoundRobin), numbered(6))
    assert sorted(receive(consumer, 6)) == numbered(6)


@pytest.mark.feature("pattern")
@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("PersistentOnly", [b"persistent"]),
        ("NonPersistentOnly", [b"non-persistent"]),
        ("AllTopics", [b"non-persistent", b"persistent"]),
    ],
)
def test_a_pattern_may_mean_topics_that_are_persistent_or_not(
    client: pulsar.Client, local: str, mode: str, wanted: list[bytes]
) -> None:
    producers = {
        domain: client.create_producer(f"{domain}://public/default/{local}-{domain}")
        for domain in ("persistent", "non-persistent")
    }
    consumer = client.subscribe(
        re.compile(f"public/default/{local}.*"),
        "s",
        consumer_type=Shared,
        regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode),
    )
    for domain, producer in producers.items():
        producer.send(domain.encode())
    assert sorted(receive(consumer, len(wanted))) == wanted


# -- not persistent ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("non-persistent")
def test_a_topic_that_is_not_persistent_brings_what_is_sent_while_somebody_listens(
    client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = f"non-persistent://public/default/{local}"
    producer = client.create_producer(topic)
    producer.send(b"nobody listens")
    consumers = [client.subscribe(topic, name, initial_position=EARLIEST) for name in ("a", "b")]
    for payload in numbered(100):
        producer.send(payload)
    for consumer in consumers:
        assert receive(consumer, 100) == numbered(100)
    assert topic in admin.get("non-persistent/public/default")
    assert topic not in admin.get("persistent/public/default")


@pytest.mark.feature("non-persistent")
def test_a_partitioned_topic_may_be_not_persistent(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 2, domain="non-persistent")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, message_routing_mode=RoundRobin)
    for payload in numbered(8):
        producer.send(payload)
    assert sorted(receive(consumer, 8)) == numbered(8)


@pytest.mark.feature("non-persistent")
@pytest.mark.parametrize("kind", [Shared, pulsar.ConsumerType.KeyShared], ids=["shared", "keys"])
def test_consumers_of_a_topic_that_is_not_persistent_divide_the_messages(
    client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    topic = f"non-persistent://public/default/{unique('n')}"
    consumers = [client.subscribe(topic, "s", consumer_type=kind, consumer_name=name) for name in ("a", "b")]
    producer = client.create_producer(topic)
    for number, payload in enumerate(numbered(40)):
        producer.send(payload, partition_key=f"k{number}")
    received: list[list[bytes]] = [[], []]

    def all_came() -> bool:
        for consumer, own in zip(consumers, received, strict=True):
            try:
                own.extend(receive_one(consumer))
            except pulsar.Timeout:
                continue
        return sum(map(len, received)) == 40

    until(all_came, "for what was sent")
    assert sorted(received[0] + received[1]) == numbered(40)
    assert all(received)


def receive_one(consumer: pulsar.Consumer) -> list[bytes]:
    message = consumer.receive(20)
    consumer.acknowledge(message)
    return [message.data()]


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def told_of_the_end(broker: Subject) -> Iterator[pulsar.Client]:
    """A client whose consumers reach the end of a topic.

    pulsar-client 3.13 does not know REACHED_END_OF_TOPIC and drops the connection on which it comes, from Apache Pulsar
    too; a close in that moment fails, which says nothing about the broker.
    """
    client = connect(broker.url)
    yield client
    with suppress(pulsar.NotConnected):
        client.close()


@pytest.mark.feature("end-of-topic")
def test_a_terminated_topic_takes_nothing_and_is_read_to_its_end(
    told_of_the_end: pulsar.Client, admin: Admin, topic: str
) -> None:
    client = told_of_the_end
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    sent = [producer.send(payload) for payload in numbered(5)]
    end = admin.post(f"{path_of(topic)}/terminate")
    assert (end["ledgerId"], end["entryId"]) == (sent[-1].ledger_id(), sent[-1].entry_id())
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert receive(consumer, 5) == numbered(5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in read_to_the_end(reader)] == numbered(5)


@pytest.mark.feature("end-of-topic")
def test_a_partitioned_topic_is_terminated_as_a_whole(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 2)
    producer = client.create_producer(topic)
    producer.send(b"x")
    ends = admin.post(f"{path_of(topic)}/terminate/partitions")
    assert sorted(end["entryId"] for end in ends.values()) == [-1, 0]
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
