# SPDX-License-Identifier: Apache-2.0
"""Subscriptions with the official Python client: keys, batches, redelivery, dead letters, seeks, delays."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.conftest import Subject

TIMEOUT_MS = 10_000
ConsumerType, KeySharedMode = pulsar.ConsumerType, pulsar.KeySharedMode


@pytest.fixture
def client(broker: Subject) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/s-{uuid.uuid4().hex[:12]}"


def drain(consumers: list[pulsar.Consumer], count: int) -> list[list[pulsar.Message]]:
    """Receive so many messages in all, whoever gets them, and acknowledge each."""
    received: list[list[pulsar.Message]] = [[] for _ in consumers]
    deadline = time.monotonic() + 30
    while sum(map(len, received)) < count and time.monotonic() < deadline:
        for consumer, own in zip(consumers, received, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(100)
                    consumer.acknowledge(message)
                    own.append(message)
    assert sum(map(len, received)) == count
    return received


def has_nothing(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(700)
    except pulsar.Timeout:
        return True
    return False


# -- Key_Shared -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("key-shared")
def test_each_key_goes_to_one_consumer_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared, consumer_name=f"c{index}")
        for index in range(3)
    ]
    producer = client.create_producer(topic)
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"key-{number % 50}")
    producer.flush()
    owners: dict[str, int] = {}
    for index, own in enumerate(drain(consumers, 300)):
        numbers = defaultdict(list)
        for message in own:
            assert owners.setdefault(message.partition_key(), index) == index
            numbers[message.partition_key()].append(int(message.data()))
        assert all(came == sorted(came) for came in numbers.values())
        assert own
    assert len(owners) == 50


@pytest.mark.feature("key-shared")
def test_key_based_batches_keep_their_keys_apart(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared) for _ in range(2)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=20
    )
    for number in range(200):
        producer.send_async(b"%d" % number, None, partition_key=f"key-{number % 20}")
    producer.flush()
    keys = [{message.partition_key() for message in own} for own in drain(consumers, 200)]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 20


@pytest.mark.feature("key-shared")
def test_a_key_that_moves_to_a_newcomer_waits_for_its_acknowledgements(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared, consumer_name="first")
    producer = client.create_producer(topic)
    keys = [f"key-{number}" for number in range(30)]
    for key in keys:
        producer.send(b"before", partition_key=key)
    held = [first.receive(TIMEOUT_MS) for _ in keys]
    second = client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared, consumer_name="second")
    for key in keys:
        producer.send(b"after", partition_key=key)
    assert has_nothing(second)
    for message in held:
        first.acknowledge(message)
    stayed, moved = drain([first, second], 30)
    assert stayed
    assert moved
    assert {message.partition_key() for message in stayed} | {message.partition_key() for message in moved} == set(keys)


@pytest.mark.feature("key-shared-sticky")
def test_sticky_ranges_own_their_keys_and_may_not_overlap(client: pulsar.Client, topic: str) -> None:
    def policy(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=list(ranges))

    kind = ConsumerType.KeyShared
    low = client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=policy((0, 32_767)))
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=policy((30_000, 40_000)))
    high = client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=policy((32_768, 65_535)))
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send(b"%d" % number, partition_key=f"key-{number % 25}")
    keys = [{message.partition_key() for message in own} for own in drain([low, high], 100)]
    assert keys[0]
    assert keys[1]
    assert not keys[0] & keys[1]


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("ack-batch-index")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_only_what_was_not_acknowledged_of_a_batch_comes_again(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    assert len({message.message_id().entry_id() for message in messages}) == 1
    for number in (0, 3, 4, 9):
        consumer.acknowledge(messages[number])
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)
    again = [consumer.receive(TIMEOUT_MS) for _ in range(6)]
    assert [message.data() for message in again] == [b"1", b"2", b"5", b"6", b"7", b"8"]
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)
    assert has_nothing(consumer)


@pytest.mark.feature("ack-batch-index")
def test_a_cumulative_acknowledgement_may_end_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert [consumer.receive(TIMEOUT_MS).data() for _ in range(3)] == [b"7", b"8", b"9"]


# -- redelivery -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("redelivery-count")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_each_negative_acknowledgement_counts_one_more(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=50)
    client.create_producer(topic).send(b"again")
    for count in range(4):
        message = consumer.receive(TIMEOUT_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(TIMEOUT_MS))


@pytest.mark.feature("ack-timeout")
def test_a_message_that_is_not_acknowledged_in_time_comes_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    client.create_producer(topic).send(b"slow")
    assert consumer.receive(TIMEOUT_MS).redelivery_count() == 0
    message = consumer.receive(30_000)
    assert message.redelivery_count() >= 1
    consumer.acknowledge(message)


@pytest.mark.feature("negative-ack")
def test_all_that_is_not_acknowledged_can_be_asked_for_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    consumer.acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    assert [consumer.receive(TIMEOUT_MS).data() for _ in range(4)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.feature("dead-letter")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_what_is_refused_too_often_goes_to_the_dead_letter_topic(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, initial_subscription_name="letters"),
    )
    dead = client.subscribe(f"{topic}-s-DLQ", "letters", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    for _ in range(15):
        consumer.negative_acknowledge(consumer.receive(TIMEOUT_MS))
    assert sorted(dead.receive(TIMEOUT_MS).data() for _ in range(5)) == [b"%d" % number for number in range(5)]
    assert has_nothing(consumer)


# -- Failover ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("failover")
def test_when_the_active_consumer_closes_the_other_goes_on_with_what_is_not_acknowledged(
    client: pulsar.Client, topic: str
) -> None:
    consumers = {
        name: client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    }
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    active = "a"
    try:
        first = consumers["a"].receive(3_000)
    except pulsar.Timeout:
        active = "b"
        first = consumers["b"].receive(TIMEOUT_MS)
    standby = consumers["b" if active == "a" else "a"]
    assert has_nothing(standby)
    consumers[active].acknowledge(first)
    consumers[active].close()
    assert [standby.receive(TIMEOUT_MS).data() for _ in range(9)] == [b"%d" % number for number in range(1, 10)]


# -- seek -------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("seek-id")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
def test_a_seek_to_the_beginning_delivers_everything_again_on_every_type(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    drain([consumer], 20)
    consumer.seek(pulsar.MessageId.earliest)
    (again,) = drain([consumer], 20)
    assert sorted(int(message.data()) for message in again) == list(range(20))


@pytest.mark.feature("seek-time")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_seek_by_time_delivers_what_was_published_since(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    (messages,) = drain([consumer], 10)
    times = [message.publish_timestamp() for message in messages]
    consumer.seek(times[6])
    expected = [time_ms for time_ms in times if time_ms >= times[6]]
    (again,) = drain([consumer], len(expected))
    assert min(message.publish_timestamp() for message in again) >= times[6]


@pytest.mark.feature("seek-id")
def test_a_seek_while_others_are_attached_brings_them_back_too(broker: Subject, topic: str) -> None:
    clients = [pulsar.Client(broker.url) for _ in range(2)]
    consumers = [one.subscribe(topic, "s", consumer_type=ConsumerType.Shared) for one in clients]
    producer = clients[0].create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    drain(consumers, 20)
    consumers[0].seek(pulsar.MessageId.earliest)
    received = drain(consumers, 20)
    assert sorted(int(message.data()) for own in received for message in own) == list(range(20))
    for one in clients:
        one.close()


@pytest.mark.feature("reader")
def test_a_reader_seeks_by_id_and_by_time(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(10)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = [reader.read_next(TIMEOUT_MS) for _ in range(10)]
    reader.seek(ids[5])
    assert int(reader.read_next(TIMEOUT_MS).data()) in (5, 6)
    reader.seek(messages[0].publish_timestamp())
    assert reader.read_next(TIMEOUT_MS).data() == b"0"


@pytest.mark.feature("seek-id")
def test_a_seek_inside_a_batch_goes_on_there(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[9])
    consumer.seek(messages[4].message_id())
    assert int(consumer.receive(TIMEOUT_MS).data()) in (4, 5)


@pytest.mark.feature("last-message-id")
def test_the_last_message_id_names_the_last_message_of_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(5):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    last = [consumer.receive(TIMEOUT_MS) for _ in range(5)][-1]
    found = consumer.get_last_message_id()
    assert (found.entry_id(), found.batch_index()) == (last.message_id().entry_id(), 4)


# -- delays -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("delayed")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_delayed_message_comes_later_than_one_sent_after_it(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    sent_ms = time.time() * 1000
    producer.send(b"after", deliver_after=timedelta(seconds=3), partition_key="k")
    producer.send(b"at", deliver_at=int(sent_ms + 3_500), partition_key="k")
    producer.send(b"now", partition_key="k")
    (messages,) = drain([consumer], 3)
    assert sorted(message.data() for message in messages) == [b"after", b"at", b"now"]
    assert messages[0].data() == b"now"
    assert all(message.redelivery_count() == 0 for message in messages)


@pytest.mark.feature("delayed")
def test_an_exclusive_consumer_gets_delayed_messages_at_once(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"later", deliver_after=timedelta(hours=1))
    assert consumer.receive(TIMEOUT_MS).data() == b"later"


# -- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("shared")
def test_consumers_of_another_type_are_refused_while_some_are_attached(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared)
    consumer.close()
    client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared)


@pytest.mark.feature("initial-position")
def test_the_initial_position_counts_for_new_subscriptions_only(client: pulsar.Client, topic: str) -> None:
    earliest = pulsar.InitialPosition.Earliest
    producer = client.create_producer(topic)
    producer.send(b"old")
    early = client.subscribe(topic, "early", initial_position=earliest)
    assert early.receive(TIMEOUT_MS).data() == b"old"
    late = client.subscribe(topic, "late")
    late.close()
    producer.send(b"new")
    late = client.subscribe(topic, "late", initial_position=earliest)
    assert late.receive(TIMEOUT_MS).data() == b"new"
