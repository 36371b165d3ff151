# SPDX-License-Identifier: Apache-2.0
"""The official Python client, as people use it, against a real broker process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from typing import TYPE_CHECKING

import pulsar
import pulsar.asyncio
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess

TIMEOUT_MS = 10_000


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null")
    client = pulsar.Client(broker.url, logger=logger)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


def receive_all(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        received.append(message.data())
        consumer.acknowledge(message)
    return received


def test_a_message_comes_out_as_it_went_in(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"hello", properties={"a": "b"}, partition_key="k", event_timestamp=42)
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == b"hello"
    assert message.properties() == {"a": "b"}
    assert message.partition_key() == "k"
    assert message.event_timestamp() == 42
    consumer.acknowledge(message)


def test_order_is_kept_over_thousands_of_async_sends(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, block_if_queue_full=True)
    done = threading.Semaphore(0)
    results: list[pulsar.Result] = []

    def sent(result: pulsar.Result, _message_id: object) -> None:
        results.append(result)
        done.release()

    for i in range(5_000):
        producer.send_async(b"%d" % i, sent)
    for _ in range(5_000):
        assert done.acquire(timeout=30)
    assert set(results) == {pulsar.Result.Ok}
    assert receive_all(consumer, 5_000) == [b"%d" % i for i in range(5_000)]


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_batches_survive_every_compression(client: pulsar.Client, topic: str, compression: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, compression),
        batching_enabled=True,
        batching_max_publish_delay_ms=20,
    )
    payloads = [b"payload %d " % i * 20 for i in range(300)]
    for payload in payloads:
        producer.send_async(payload, None)
    producer.flush()
    assert receive_all(consumer, 300) == payloads


def test_a_chunked_message_larger_than_a_frame_arrives_whole(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = bytes(range(256)) * (12 * 4096)  # 12 MiB
    producer.send(payload)
    message = consumer.receive(30_000)
    assert message.data() == payload
    consumer.acknowledge(message)


def test_fifty_producers_share_one_connection(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{i}" for i in range(50)]
    consumers = [client.subscribe(name, "s") for name in topics]
    producers = [client.create_producer(name) for name in topics]
    for round_number in range(20):
        for i, producer in enumerate(producers):
            producer.send_async(b"%d/%d" % (i, round_number), None)
    for producer in producers:
        producer.flush()
    for i, consumer in enumerate(consumers):
        assert receive_all(consumer, 20) == [b"%d/%d" % (i, n) for n in range(20)]


def test_a_reader_reads_from_the_earliest_message_and_knows_the_end(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send_async(b"%d" % i, None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = []
    while reader.has_message_available():
        seen.append(reader.read_next(TIMEOUT_MS).data())
    assert seen == [b"%d" % i for i in range(100)]


def test_a_reader_starts_behind_the_message_it_is_given(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(10)]
    reader = client.create_reader(topic, ids[4])
    assert reader.read_next(TIMEOUT_MS).data() == b"5"


def test_shared_consumers_divide_the_messages_and_miss_none(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)
    ]
    producer = client.create_producer(topic)
    for i in range(300):
        producer.send_async(b"%d" % i, None)
    producer.flush()
    seen: list[bytes] = []
    idle_rounds = 0
    while len(seen) < 300 and idle_rounds < 10:
        before = len(seen)
        for consumer in consumers:
            # Who gets how many is the broker's choice: one of them may have had its last one.
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(200)
                seen.append(message.data())
                consumer.acknowledge(message)
        idle_rounds += len(seen) == before
    assert sorted(seen, key=int) == [b"%d" % i for i in range(300)]


def test_a_negative_acknowledgement_brings_the_message_back_with_its_count(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
    )
    producer = client.create_producer(topic)
    producer.send(b"again")
    message = consumer.receive(TIMEOUT_MS)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == b"again"
    assert message.redelivery_count() == 1
    consumer.acknowledge(message)


def test_the_standby_of_a_failover_pair_takes_over_what_was_not_acknowledged(broker: BrokerProcess, topic: str) -> None:
    first_client, second_client = pulsar.Client(broker.url), pulsar.Client(broker.url)
    kind = pulsar.ConsumerType.Failover
    first = first_client.subscribe(topic, "s", consumer_type=kind, consumer_name="a")
    second = second_client.subscribe(topic, "s", consumer_type=kind, consumer_name="b")
    producer = second_client.create_producer(topic)
    for i in range(20):
        producer.send(b"%d" % i)
    by_client = {"first": first, "second": second}
    holder = next(name for name, consumer in by_client.items() if _receives(consumer))
    active, standby = (first_client, second) if holder == "first" else (second_client, first)
    if holder == "second":
        producer = first_client.create_producer(topic)
    active.close()
    assert [standby.receive(TIMEOUT_MS).data() for _ in range(20)] == [b"%d" % i for i in range(20)]
    (second_client if holder == "first" else first_client).close()


def _receives(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(3_000)
    except pulsar.Timeout:
        return False
    return True


def test_a_second_exclusive_consumer_is_refused_while_the_first_lives(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_a_second_producer_of_the_same_name_is_refused_while_the_first_lives(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")


def test_seek_by_id_delivers_again_from_there(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(20)]
    receive_all(consumer, 20)
    consumer.seek(ids[10])
    assert consumer.receive(TIMEOUT_MS).data() in (b"10", b"11")


def test_seek_to_the_earliest_delivers_everything_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(20):
        producer.send(b"%d" % i)
    receive_all(consumer, 20)
    consumer.seek(pulsar.MessageId.earliest)
    assert receive_all(consumer, 20) == [b"%d" % i for i in range(20)]


def test_seek_by_time_delivers_what_was_published_since(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    times = [message.publish_timestamp() for message in messages]
    consumer.seek(times[6])
    again = consumer.receive(TIMEOUT_MS)
    assert again.publish_timestamp() >= times[6]
    assert int(again.data()) == times.index(times[6])


def test_an_unsubscribed_subscription_starts_anew(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"old")
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "s")
    producer.send(b"new")
    assert consumer.receive(TIMEOUT_MS).data() == b"new"


def test_cumulative_acknowledgement_covers_everything_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert consumer.receive(TIMEOUT_MS).data() == b"7"


def test_a_non_persistent_topic_delivers_to_those_who_listen(client: pulsar.Client) -> None:
    topic = f"non-persistent://public/default/n-{uuid.uuid4().hex[:12]}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send(b"%d" % i)
    assert receive_all(consumer, 100) == [b"%d" % i for i in range(100)]


def test_messages_and_cursors_survive_a_restart(own_broker: BrokerProcess, topic: str) -> None:
    client = pulsar.Client(own_broker.url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(100):
        producer.send_async(b"%d" % i, None)
    producer.flush()
    receive_all(consumer, 40)
    client.close()
    assert own_broker.stop() == 0
    own_broker.start()
    client = pulsar.Client(own_broker.url)
    consumer = client.subscribe(topic, "s")
    assert receive_all(consumer, 60) == [b"%d" % i for i in range(40, 100)]
    client.close()


async def test_the_asyncio_client_publishes_and_consumes(broker: BrokerProcess, topic: str) -> None:
    client = pulsar.asyncio.Client(broker.url)
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic)
    await asyncio.gather(*(producer.send(b"%d" % i) for i in range(100)))
    seen = []
    for _ in range(100):
        message = await consumer.receive()
        seen.append(message.data())
        await consumer.acknowledge(message)
    assert seen == [b"%d" % i for i in range(100)]
    await client.close()
