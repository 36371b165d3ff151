# SPDX-License-Identifier: Apache-2.0
"""What consumers do: the four subscription types, ways to receive, acknowledgements, redelivery, dead letters."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.compat.clients import (
    EARLIEST,
    TIMEOUT_MS,
    TIMEOUT_S,
    Admin,
    connect,
    drain,
    has_nothing,
    numbered,
    path_of,
    publish,
    publish_keyed,
    receive,
    until,
)

if TYPE_CHECKING:
    from tests.compat.conftest import Subject

Type = pulsar.ConsumerType


def batch_of(client: pulsar.Client, topic: str, count: int) -> None:
    """Publish so many messages as one batch."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=count, batching_max_publish_delay_ms=10_000
    )
    publish(producer, numbered(count))
    producer.close()


# -- Exclusive, Shared, Failover --------------------------------------------------------------------------------------


@pytest.mark.feature("exclusive")
def test_a_second_exclusive_consumer_is_refused_while_the_first_lives(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    client.subscribe(topic, "other")
    first.close()
    client.subscribe(topic, "s")


@pytest.mark.feature("exclusive")
def test_each_subscription_gets_everything(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("a", "b", "c")]
    publish(client.create_producer(topic), numbered(20))
    for consumer in consumers:
        assert receive(consumer, 20) == numbered(20)


@pytest.mark.feature("shared")
def test_shared_consumers_divide_the_messages_and_miss_none(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=Type.Shared, receiver_queue_size=10) for _ in range(3)]
    publish(client.create_producer(topic), numbered(300))
    received = drain(consumers, 300)
    assert sorted(message.data() for own in received for message in own) == numbered(300)
    assert all(received)


@pytest.mark.feature("shared")
def test_what_a_consumer_had_not_acknowledged_goes_to_the_others_when_it_leaves(
    client: pulsar.Client, topic: str
) -> None:
    leaving = client.subscribe(topic, "s", consumer_type=Type.Shared)
    publish(client.create_producer(topic), numbered(10))
    messages = [leaving.receive(TIMEOUT_MS) for _ in range(10)]
    for message in messages[:3]:
        leaving.acknowledge(message)
    staying = client.subscribe(topic, "s", consumer_type=Type.Shared)
    leaving.close()
    assert sorted(receive(staying, 7)) == numbered(10)[3:]


@pytest.mark.feature("shared")
def test_consumers_of_another_type_are_refused_while_some_are_attached(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Type.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=Type.KeyShared)
    consumer.close()
    client.subscribe(topic, "s", consumer_type=Type.KeyShared)


@pytest.mark.feature("failover")
def test_when_the_active_consumer_leaves_the_other_goes_on_with_what_is_not_acknowledged(
    broker: Subject, client: pulsar.Client, admin: Admin, topic: str
) -> None:
    clients = {name: connect(broker.url) for name in ("a", "b")}
    consumers = {
        name: one.subscribe(topic, "s", consumer_type=Type.Failover, consumer_name=name)
        for name, one in clients.items()
    }
    active = admin.subscription(topic, "s")["activeConsumerName"]
    standby = "ab".replace(active, "")
    publish(client.create_producer(topic), numbered(10))
    assert receive(consumers[active], 3) == numbered(10)[:3]
    assert has_nothing(consumers[standby])
    clients[active].close()
    assert receive(consumers[standby], 7) == numbered(10)[3:]
    clients[standby].close()


@pytest.mark.feature("failover")
def test_partitions_are_spread_over_failover_consumers(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 4)
    consumers = [client.subscribe(topic, "s", consumer_type=Type.Failover, consumer_name=name) for name in ("a", "b")]
    producer = client.create_producer(topic)
    sent = [producer.send(payload) for payload in numbered(40)]
    assert {one.partition() for one in sent} == {0, 1, 2, 3}
    received = drain(consumers, 40)
    places = [{message.message_id().partition() for message in own} for own in received]
    assert [len(own) for own in places] == [2, 2]
    assert not places[0] & places[1]


# -- Key_Shared -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("key-shared")
def test_each_key_goes_to_one_consumer_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name=f"c{index}") for index in range(3)
    ]
    publish_keyed(client.create_producer(topic), 300, keys=50)
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
def test_the_ordering_key_counts_where_there_is_one(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name=name) for name in "ab"]
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send_async(b"x", None, partition_key=f"key-{number}", ordering_key=f"order-{number % 10}")
    producer.flush()
    orders = [{message.ordering_key() for message in own} for own in drain(consumers, 100)]
    assert not orders[0] & orders[1]
    assert len(orders[0] | orders[1]) == 10


@pytest.mark.feature("key-shared")
def test_key_based_batches_keep_their_keys_apart(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=Type.KeyShared) for _ in range(2)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=20
    )
    publish_keyed(producer, 200, keys=20)
    keys = [{message.partition_key() for message in own} for own in drain(consumers, 200)]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 20


@pytest.mark.feature("key-shared")
def test_a_key_that_moves_to_a_newcomer_waits_for_its_acknowledgements(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name="first")
    producer = client.create_producer(topic)
    keys = [f"key-{number}" for number in range(30)]
    for key in keys:
        producer.send(b"before", partition_key=key)
    held = [first.receive(TIMEOUT_MS) for _ in keys]
    second = client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name="second")
    for key in keys:
        producer.send(b"after", partition_key=key)
    assert has_nothing(second)
    for message in held:
        first.acknowledge(message)
    stayed, moved = drain([first, second], 30)
    assert stayed
    assert moved
    assert {message.partition_key() for message in [*stayed, *moved]} == set(keys)


@pytest.mark.feature("key-shared")
def test_out_of_order_delivery_does_not_wait(client: pulsar.Client, topic: str) -> None:
    relaxed = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    first, second = (None, None)
    first = client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name="1", key_shared_policy=relaxed)
    producer = client.create_producer(topic)
    keys = [f"key-{number}" for number in range(30)]
    for key in keys:
        producer.send(b"before", partition_key=key)
    held = [first.receive(TIMEOUT_MS) for _ in keys]
    second = client.subscribe(topic, "s", consumer_type=Type.KeyShared, consumer_name="2", key_shared_policy=relaxed)
    for key in keys:
        producer.send(b"after", partition_key=key)
    assert second.receive(TIMEOUT_MS).data() == b"after"
    assert len(held) == len(keys)


@pytest.mark.feature("key-shared-sticky")
def test_sticky_ranges_own_their_keys_and_may_not_overlap(client: pulsar.Client, topic: str) -> None:
    def subscribe(*ranges: tuple[int, int]) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))
        return client.subscribe(topic, "s", consumer_type=Type.KeyShared, key_shared_policy=policy)

    low = subscribe((0, 9_999), (20_000, 32_767))
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe((30_000, 40_000))
    high = subscribe((10_000, 19_999), (32_768, 65_535))
    publish_keyed(client.create_producer(topic), 100, keys=25)
    keys = [{message.partition_key() for message in own} for own in drain([low, high], 100)]
    assert keys[0]
    assert keys[1]
    assert not keys[0] & keys[1]


@pytest.mark.feature("key-shared-sticky")
def test_what_belongs_to_no_range_waits_for_a_consumer_that_takes_it(client: pulsar.Client, topic: str) -> None:
    def subscribe(first: int, last: int) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)])
        return client.subscribe(topic, "s", consumer_type=Type.KeyShared, key_shared_policy=policy)

    low = subscribe(0, 32_767)
    publish_keyed(client.create_producer(topic), 50, keys=50)
    before = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = low.receive(300)
            low.acknowledge(message)
            before.append(message)
    assert len(before) < 50
    high = subscribe(32_768, 65_535)
    received = drain([low, high], 50 - len(before))
    assert received[1]


# -- ways to receive --------------------------------------------------------------------------------------------------


@pytest.mark.feature("receiving")
def test_a_listener_gets_every_message_and_may_pause(client: pulsar.Client, topic: str) -> None:
    received: list[bytes] = []

    def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        received.append(message.data())

    consumer = client.subscribe(topic, "s", message_listener=listener)
    producer = client.create_producer(topic)
    publish(producer, numbered(20))
    until(lambda: received == numbered(20), "for the listener")
    consumer.pause_message_listener()
    producer.send(b"while it pauses")
    time.sleep(0.2)
    assert len(received) == 20
    consumer.resume_message_listener()
    until(lambda: received[-1] == b"while it pauses", "for the listener to go on")


@pytest.mark.feature("receiving")
def test_a_listener_of_a_reader_gets_every_message(client: pulsar.Client, topic: str) -> None:
    received: list[bytes] = []
    publish(client.create_producer(topic), numbered(20))
    reader = client.create_reader(
        topic, pulsar.MessageId.earliest, reader_listener=lambda _, message: received.append(message.data())
    )
    until(lambda: received == numbered(20), "for the listener")
    reader.close()


@pytest.mark.feature("receiving")
def test_messages_are_received_by_the_batch(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 200)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
    publish(client.create_producer(topic), numbered(25))
    received: list[bytes] = []
    while len(received) < 25:
        messages = consumer.batch_receive()
        assert 0 < len(messages) <= 10
        for message in messages:
            consumer.acknowledge(message)
            received.append(message.data())
    assert received == numbered(25)
    assert consumer.batch_receive() == []


@pytest.mark.feature("receiving")
def test_a_consumer_without_a_queue_takes_only_what_it_asks_for(client: pulsar.Client, topic: str) -> None:
    idle, busy = [
        client.subscribe(topic, "s", consumer_type=Type.Shared, receiver_queue_size=0, consumer_name=name)
        for name in ("idle", "busy")
    ]
    publish(client.create_producer(topic), numbered(10))
    received = []
    for _ in range(10):
        message = busy.receive()
        busy.acknowledge(message)
        received.append(message.data())
    assert received == numbered(10)
    idle.close()


@pytest.mark.feature("receiving")
def test_a_reader_without_a_queue_reads_in_order(client: pulsar.Client, topic: str) -> None:
    publish(client.create_producer(topic), numbered(5))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=0)
    assert [reader.read_next().data() for _ in range(5)] == numbered(5)


@pytest.mark.feature("receiving")
def test_a_small_queue_is_filled_again_and_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=3)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    publish(producer, numbered(200))
    assert receive(consumer, 200) == numbered(200)


# -- acknowledgements -------------------------------------------------------------------------------------------------


@pytest.mark.feature("ack-individual")
@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Shared, Type.KeyShared], ids=["exclusive", "shared", "keys"])
def test_what_is_not_acknowledged_comes_again_to_the_next_consumer(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for payload in numbered(10):
        producer.send(payload, partition_key="k")
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    for number in (1, 2, 5):
        consumer.acknowledge(messages[number])
    consumer.acknowledge(messages[8].message_id())
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    assert receive(consumer, 6) == [payload for payload in numbered(10) if int(payload) not in {1, 2, 5, 8}]
    assert has_nothing(consumer)


@pytest.mark.feature("ack-cumulative")
@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover], ids=["exclusive", "failover"])
def test_cumulative_acknowledgement_covers_everything_before(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    publish(client.create_producer(topic), numbered(10))
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    assert receive(client.subscribe(topic, "s", consumer_type=kind), 3) == numbered(10)[7:]


@pytest.mark.feature("ack-cumulative")
def test_a_shared_consumer_cannot_acknowledge_cumulatively(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Type.Shared)
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(TIMEOUT_MS))


@pytest.mark.feature("ack-batch-index")
@pytest.mark.parametrize("kind", [Type.Shared, Type.Exclusive], ids=["shared", "exclusive"])
def test_only_what_was_not_acknowledged_of_a_batch_comes_again(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)

    consumer = subscribe()
    batch_of(client, topic, 10)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    assert len({message.message_id().entry_id() for message in messages}) == 1
    for number in (0, 3, 4, 9):
        consumer.acknowledge(messages[number])
    consumer.close()
    consumer = subscribe()
    assert receive(consumer, 6) == [b"%04d" % number for number in (1, 2, 5, 6, 7, 8)]
    consumer.close()
    assert has_nothing(subscribe())


@pytest.mark.feature("ack-batch-index")
def test_a_cumulative_acknowledgement_may_end_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    batch_of(client, topic, 10)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    assert receive(client.subscribe(topic, "s", batch_index_ack_enabled=True), 3) == numbered(10)[7:]


@pytest.mark.feature("ack-individual")
def test_a_batch_that_was_acknowledged_in_part_comes_again_whole(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")  # It tells the broker of whole batches only.
    batch_of(client, topic, 5)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    for message in messages[:4]:
        consumer.acknowledge(message)
    consumer.close()
    assert receive(client.subscribe(topic, "s"), 5) == numbered(5)


@pytest.mark.feature("unsubscribe")
def test_an_unsubscribed_subscription_is_gone_and_starts_anew(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"old")
    consumer.unsubscribe()
    assert admin.get(f"{path_of(topic)}/subscriptions") == []
    consumer = client.subscribe(topic, "s")
    producer.send(b"new")
    assert receive(consumer, 1) == [b"new"]


@pytest.mark.feature("unsubscribe")
def test_one_of_several_consumers_cannot_unsubscribe(client: pulsar.Client, topic: str) -> None:
    first, second = [client.subscribe(topic, "s", consumer_type=Type.Shared) for _ in range(2)]
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()
    first.close()
    second.unsubscribe()


@pytest.mark.feature("unsubscribe")
def test_a_subscription_to_several_topics_is_given_up_on_all(client: pulsar.Client, admin: Admin, local: str) -> None:
    topics = [admin.create_partitioned(local, 2), f"persistent://public/default/{local}-plain"]
    client.subscribe(topics, "s").unsubscribe()
    for name in (f"{topics[0]}-partition-0", f"{topics[0]}-partition-1", topics[1]):
        assert admin.get(f"{path_of(name)}/subscriptions") == []


# -- redelivery -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("negative-ack")
@pytest.mark.feature("redelivery-count")
@pytest.mark.parametrize("kind", [Type.Shared, Type.KeyShared], ids=["shared", "keys"])
def test_each_negative_acknowledgement_counts_one_more(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=50)
    client.create_producer(topic).send(b"again")
    for count in range(4):
        message = consumer.receive(TIMEOUT_MS)
        assert (message.data(), message.redelivery_count()) == (b"again", count)
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    assert has_nothing(consumer)


@pytest.mark.feature("redelivery-count")
def test_the_count_goes_on_with_those_who_stay_and_is_forgotten_when_all_leave(
    client: pulsar.Client, topic: str
) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=Type.Shared)

    leaving = subscribe()
    client.create_producer(topic).send(b"again")
    assert leaving.receive(TIMEOUT_MS).redelivery_count() == 0
    leaving.redeliver_unacknowledged_messages()
    assert leaving.receive(TIMEOUT_MS).redelivery_count() == 1
    staying = subscribe()
    leaving.close()
    assert staying.receive(TIMEOUT_MS).redelivery_count() == 1
    staying.close()
    assert subscribe().receive(TIMEOUT_MS).redelivery_count() == 0


@pytest.mark.feature("negative-ack")
def test_a_negative_acknowledgement_in_a_batch_brings_the_rest_of_it_back(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=Type.Shared, negative_ack_redelivery_delay_ms=50, batch_index_ack_enabled=True
    )
    batch_of(client, topic, 5)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    for message in messages[:3]:
        consumer.acknowledge(message)
    for message in messages[3:]:
        consumer.negative_acknowledge(message)
    assert receive(consumer, 2) == numbered(5)[3:]


@pytest.mark.feature("negative-ack")
def test_all_that_is_not_acknowledged_can_be_asked_for_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), numbered(5))
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    consumer.acknowledge(messages[0])
    consumer.redeliver_unacknowledged_messages()
    assert receive(consumer, 4) == numbered(5)[1:]


@pytest.mark.feature("ack-timeout")
def test_a_message_that_is_not_acknowledged_in_time_comes_again(client: pulsar.Client, topic: str) -> None:
    # This client knows no shorter time.
    consumer = client.subscribe(topic, "s", consumer_type=Type.Shared, unacked_messages_timeout_ms=10_000)
    client.create_producer(topic).send(b"slow")
    assert consumer.receive(TIMEOUT_MS).redelivery_count() == 0
    message = consumer.receive(30_000)
    assert message.redelivery_count() >= 1
    consumer.acknowledge(message)


@pytest.mark.feature("dead-letter")
@pytest.mark.parametrize("kind", [Type.Shared, Type.KeyShared], ids=["shared", "keys"])
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
    dead = client.subscribe(f"{topic}-s-DLQ", "letters", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    publish(producer, numbered(5), properties={"from": "here"})
    for _ in range(15):
        consumer.negative_acknowledge(consumer.receive(TIMEOUT_MS))
    letters = [dead.receive(TIMEOUT_MS) for _ in range(5)]
    assert sorted(letter.data() for letter in letters) == numbered(5)
    assert all(letter.properties()["from"] == "here" for letter in letters)
    assert has_nothing(consumer)


@pytest.mark.feature("ack-individual")
def test_many_threads_may_use_one_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Type.Shared)
    publish(client.create_producer(topic), numbered(200))
    received: list[bytes] = []

    def take() -> None:
        with contextlib.suppress(pulsar.Timeout):
            while True:
                received.extend(receive_soon(consumer))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(received) == numbered(200)


def receive_soon(consumer: pulsar.Consumer) -> list[Any]:
    message = consumer.receive(300)
    consumer.acknowledge(message)
    return [message.data()]


# -- the initial position ---------------------------------------------------------------------------------------------


@pytest.mark.feature("initial-position")
def test_the_initial_position_counts_for_new_subscriptions_only(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old")
    early = client.subscribe(topic, "early", initial_position=EARLIEST)
    assert receive(early, 1) == [b"old"]
    client.subscribe(topic, "late").close()
    producer.send(b"new")
    assert receive(client.subscribe(topic, "late", initial_position=EARLIEST), 1) == [b"new"]
