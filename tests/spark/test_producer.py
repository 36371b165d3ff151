# SPDX-License-Identifier: Apache-2.0
"""Entries arrive, in order, as the official client reads them, through whatever happens to the connection."""

from __future__ import annotations

import random
import re
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.core.errors import WireCode
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.endpoint import Endpoint
from penstock.spark.client.errors import BrokerUnreachable, Refused
from penstock.spark.client.producer import NoReceipt, Producer, ProducerOptions
from penstock.spark.entries import Messages, batches, said_of
from penstock.wire import compression
from penstock.wire.client.lookup import parse_service_url
from penstock.wire.codec import SingleMessageMetadata
from tests.spark.topics import ask, path_of, payloads, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pulsar

    from penstock.testing.process import BrokerProcess

TIMEOUT_MS = 10_000
NOTHING_SAID = SingleMessageMetadata(payload_size=0)


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(Endpoint(addresses=parse_service_url(broker.url))) as cluster:
        yield cluster


def numbered(count: int, *, start: int = 0) -> Messages:
    """So many messages, each with its number in front and a key."""
    numbers = range(start, start + count)
    return Messages(
        pa.array([b"%08d" % number + b"." * 100 for number in numbers]),
        pa.array([b"key-%d" % number for number in numbers]),
    )


def send(producer: Producer, messages: Messages, *, first: int = 0, rows_max: int = 100) -> None:
    """Send messages in batches, numbered on from `first`."""
    for batch in batches(messages, rows_max=rows_max, bytes_max=1 << 20):
        said = said_of(messages, batch.first_row)
        producer.send_batch(batch.payload, batch.rows, first + batch.first_row, said)


def send_and_flush(producer: Producer, messages: Messages, *, first: int = 0) -> None:
    """Send messages and wait for their receipts."""
    send(producer, messages, first=first)
    producer.flush()


def received(consumer: pulsar.Consumer, count: int) -> list[int]:
    """The numbers of the next so many messages."""
    numbers = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        numbers.append(int(message.data()[:8]))
    return numbers


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_batches_of_every_compression_are_read_by_the_official_client(
    broker: BrokerProcess, cluster: Cluster, official: Callable[[str], pulsar.Client], topic: str, kind: str
) -> None:
    consumer = official(broker.url).subscribe(topic, "s")
    messages = numbered(250)
    with Producer(cluster, topic, options=ProducerOptions(compression=getattr(compression, kind))) as producer:
        send(producer, messages)
    for number in range(250):
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == messages.value[number].as_py()
        assert message.partition_key() == f"key-{number}"


@pytest.mark.parametrize("kind", ["NONE", "ZSTD"])
def test_a_message_larger_than_the_broker_takes_goes_in_chunks(
    broker: BrokerProcess, cluster: Cluster, official: Callable[[str], pulsar.Client], topic: str, kind: str
) -> None:
    consumer = official(broker.url).subscribe(topic, "s")
    large = random.Random(5).randbytes(11_000_000)
    said = SingleMessageMetadata(payload_size=0, partition_key="k", event_time=7)
    said.properties.add(key="a", value="b")
    with Producer(cluster, topic, options=ProducerOptions(compression=getattr(compression, kind))) as producer:
        producer.send_single(large, said, 0)
        producer.send_single(b"small", NOTHING_SAID, 1)
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == large
    assert (message.partition_key(), message.event_timestamp(), message.properties()) == ("k", 7, {"a": "b"})
    assert consumer.receive(TIMEOUT_MS).data() == b"small"


def test_what_was_not_answered_is_sent_again_to_a_broker_that_was_killed(
    own_broker: BrokerProcess, official: Callable[[str], pulsar.Client], topic: str
) -> None:
    port, count = own_broker.port, 20_000
    half_sent, restarted = threading.Event(), threading.Event()

    def kill_and_restart() -> None:
        half_sent.wait()
        own_broker.kill()
        own_broker.start(port=port)
        restarted.set()

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    options = ProducerOptions(pending_bytes_max=200_000)
    with (
        Cluster(Endpoint(addresses=parse_service_url(own_broker.url))) as cluster,
        Producer(cluster, topic, options=options) as producer,
    ):
        send(producer, numbered(count // 2))
        half_sent.set()
        send(producer, numbered(count // 2, start=count // 2), first=count // 2)
        producer.flush()
        restarted.wait()
        send(producer, numbered(10, start=count), first=count)
    killer.join()
    found = [int(payload[:8]) for payload in payloads(official(own_broker.url), topic)]
    # Nothing is lost, and what is there twice comes behind what it was sent after.
    assert list(dict.fromkeys(found)) == list(range(count + 10))


def test_a_topic_that_deduplicates_tells_who_comes_again_what_it_has(
    deduplicating: BrokerProcess, official: Callable[[str], pulsar.Client], topic: str
) -> None:
    endpoint = Endpoint(addresses=parse_service_url(deduplicating.url))
    with Cluster(endpoint) as cluster:
        with Producer(cluster, topic, name="job") as producer:
            assert producer.last_sequence_id == -1
            send(producer, numbered(250))
        with Producer(cluster, topic, name="job") as producer:
            assert producer.last_sequence_id == 249
            send(producer, numbered(250))  # All of it is there already.
            send(producer, numbered(1), first=250)
        with Producer(cluster, topic, name="other") as producer:
            assert producer.last_sequence_id == -1
    assert stored(deduplicating.admin_url, topic) == 251


def test_a_name_that_is_taken_is_waited_for(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    with Cluster(cluster.endpoint) as other:
        holder = Producer(other, topic, name="job")
        leaving = threading.Timer(0.3, holder.finish)
        leaving.start()
        with Producer(cluster, topic, name="job") as producer:
            assert producer.name == "job"
        leaving.join()


def test_a_topic_that_is_unloaded_meanwhile_loses_nothing_and_keeps_the_order(
    broker: BrokerProcess, cluster: Cluster, official: Callable[[str], pulsar.Client], topic: str
) -> None:
    consumer = official(broker.url).subscribe(topic, "s")
    with Producer(cluster, topic) as producer:
        for turn in range(4):
            send(producer, numbered(100), first=100 * turn)
            producer.flush()
            ask(broker.admin_url, "PUT", f"{path_of(topic)}/unload")
    assert received(consumer, 400) == list(range(100)) * 4


def test_a_terminated_topic_is_told_at_once_with_what_to_do(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    with Producer(cluster, topic) as producer:
        send(producer, numbered(1))
        producer.flush()
        ask(broker.admin_url, "POST", f"{path_of(topic)}/terminate")
        with pytest.raises(Refused, match="write to another topic") as told:
            send_and_flush(producer, numbered(1), first=1)
        assert told.value.code is WireCode.TOPIC_TERMINATED_ERROR
        producer.close()


def test_a_broker_that_stays_away_is_told_after_the_time_given_and_not_before(
    own_broker: BrokerProcess, topic: str
) -> None:
    # The producer is opened within this time, also where the machine has other things to do.
    endpoint = Endpoint(addresses=parse_service_url(own_broker.url), operation_timeout_s=2)
    with Cluster(endpoint) as cluster:
        producer = Producer(cluster, topic, options=ProducerOptions(send_timeout_s=0.5))
        own_broker.kill()
        with pytest.raises(BrokerUnreachable, match=re.escape(own_broker.url)):
            send_and_flush(producer, numbered(1))
        producer.close()


def test_a_receipt_that_never_comes_is_told_with_the_topic_and_the_time(own_broker: BrokerProcess, topic: str) -> None:
    import signal

    with Cluster(Endpoint(addresses=parse_service_url(own_broker.url))) as cluster:
        producer = Producer(cluster, topic, options=ProducerOptions(send_timeout_s=0.3))
        own_broker.send_signal(signal.SIGSTOP)
        try:
            send(producer, numbered(1))
            with pytest.raises(NoReceipt, match=f"{topic} has taken nothing for 0.3 s"):
                producer.flush()
        finally:
            own_broker.send_signal(signal.SIGCONT)
            producer.close()


def test_no_more_is_kept_than_the_limit_says(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    options = ProducerOptions(pending_bytes_max=100_000, pending_entries_max=10)
    with Producer(cluster, topic, options=options) as producer:
        most_bytes = most_entries = 0
        for batch in batches(numbered(20_000), rows_max=100, bytes_max=20_000):
            producer.send_batch(batch.payload, batch.rows, batch.first_row)
            most_bytes = max(most_bytes, producer.pending_bytes)
            most_entries = max(most_entries, producer.pending_entries)
        assert most_bytes <= 100_000 + 20_000
        assert most_entries <= 10 + 1
