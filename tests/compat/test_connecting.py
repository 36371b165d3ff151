# SPDX-License-Identifier: Apache-2.0
"""Clients come, go and come back: lookups, closing, brokers that restart or are killed; and the asyncio client."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pulsar
import pulsar.asyncio
import pytest
from pulsar.schema import AvroSchema

from tests.compat.clients import (
    EARLIEST,
    TIMEOUT_MS,
    Admin,
    Larger,
    Small,
    connect,
    keep,
    numbered,
    path_of,
    publish,
    read_to_the_end,
    receive,
    until,
)
from tests.compat.conftest import COUNT
from tests.compat.mapped_port import MappedPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.testing.process import BrokerProcess
    from tests.compat.conftest import Subject


# -- lookups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def web_client(broker: Subject) -> Iterator[pulsar.Client]:
    """A client that was given the address of the admin port: it finds topics by HTTP."""
    client = connect(broker.admin_url)
    yield client
    client.close()


@pytest.mark.feature("http-lookup")
def test_topics_are_found_over_http(web_client: pulsar.Client, admin: Admin, local: str) -> None:
    topics = [admin.create_partitioned(local, 2), f"persistent://public/default/{local}-alone"]
    assert web_client.get_topic_partitions(topics[0]) == [f"{topics[0]}-partition-{index}" for index in range(2)]
    consumer = web_client.subscribe(topics, "s")
    for topic in topics:
        web_client.create_producer(topic).send(topic.encode())
    assert sorted(receive(consumer, 2)) == sorted(topic.encode() for topic in topics)
    with pytest.raises(pulsar.PulsarException):
        web_client.create_producer(f"persistent://public/{local}/t")


@pytest.mark.feature("http-lookup")
def test_what_matches_a_pattern_is_found_over_http(web_client: pulsar.Client, topic: str) -> None:
    for suffix in ("a", "b", "other"):
        web_client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    consumer = web_client.subscribe(re.compile(f"{topic}-[ab]"), "s", initial_position=EARLIEST)
    assert sorted(receive(consumer, 2)) == [b"a", b"b"]


@pytest.mark.feature("http-lookup")
def test_schemas_are_found_over_http(web_client: pulsar.Client, topic: str) -> None:
    web_client.create_producer(topic, schema=AvroSchema(Small)).send(Small(a=1))
    consumer = web_client.subscribe(topic, "s", schema=AvroSchema(Larger), initial_position=EARLIEST)
    value = consumer.receive(TIMEOUT_MS).value()
    assert (value.a, value.b) == (1, None)


@pytest.mark.feature("http-lookup")
def test_a_listener_that_is_none_leads_nowhere(broker: Subject, topic: str) -> None:
    client = connect(broker.url, listener_name="nobody", operation_timeout_seconds=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


@pytest.mark.feature("mapped-port")
@pytest.mark.skipif(COUNT > 1, reason="the clients of several brokers are sent to the one that serves their topic")
def test_a_client_stays_at_the_mapped_port_that_it_came_by(broker: Subject, topic: str) -> None:
    with MappedPort(broker.url) as port:
        client = connect(port.url)
        consumer = client.subscribe(topic, "s")
        payloads = [b"x" * 100_000] * 10
        publish(client.create_producer(topic), payloads)
        assert receive(consumer, 10) == payloads
        client.close()
    assert port.received > 10 * 100_000, "the client has published to another address"


@pytest.mark.feature("produce-sync")
def test_a_short_name_is_that_of_a_topic_in_public_default(client: pulsar.Client, local: str) -> None:
    consumer = client.subscribe(local, "s")
    producer = client.create_producer(f"public/default/{local}")
    producer.send(b"x")
    message = consumer.receive(TIMEOUT_MS)
    assert message.topic_name() == consumer.topic() == producer.topic() == f"persistent://public/default/{local}"
    for wrong in ("persistent://public/default", "kafka://public/default/t", ""):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(wrong)


# -- closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("exclusive")
def test_producers_consumers_and_readers_know_whether_they_are_connected(client: pulsar.Client, topic: str) -> None:
    opened = [
        client.create_producer(topic),
        client.subscribe(topic, "s"),
        client.create_reader(topic, pulsar.MessageId.earliest),
        client.subscribe([topic, f"{topic}-too"], "several"),
    ]
    assert all(one.is_connected() for one in opened)
    for one in opened:
        one.close()
    assert not any(one.is_connected() for one in opened)
    with pytest.raises(pulsar.AlreadyClosed):
        opened[0].send(b"x")


@pytest.mark.feature("exclusive")
@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_what_a_client_held_is_free_as_soon_as_it_is_gone(
    broker: Subject, client: pulsar.Client, topic: str, how: str
) -> None:
    going = connect(broker.url)
    consumer = going.subscribe(topic, "s")
    producer = going.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    getattr(going, how)()
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"x")
    with pytest.raises(pulsar.PulsarException):
        consumer.receive(100)
    with pytest.raises(pulsar.PulsarException):
        going.subscribe(topic, "t")

    def admitted() -> bool:
        try:
            client.subscribe(topic, "s").close()
            client.create_producer(topic, producer_name="p").close()
        except (pulsar.ConsumerBusy, pulsar.ProducerBusy):
            return False
        return True

    until(admitted, "for the place of a client that is gone")


# -- coming back ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("reconnect")
def test_clients_of_an_unloaded_topic_go_on_and_miss_nothing(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    payloads = numbered(20)
    publish(producer, payloads[:10])
    assert receive(consumer, 10) == payloads[:10]
    admin.put(f"{path_of(topic)}/unload")
    publish(producer, payloads[10:])
    # The client groups acknowledgements: those that it had not sent yet come again.
    received: list[bytes] = []
    while payloads[-1] not in received:
        received += receive(consumer, 1)
    assert [data for data in received if data in payloads[10:]] == payloads[10:]
    assert producer.is_connected()
    assert consumer.is_connected()


@pytest.mark.feature("reconnect")
def test_a_reader_of_an_unloaded_topic_goes_on_where_it_was(client: pulsar.Client, admin: Admin, topic: str) -> None:
    producer = client.create_producer(topic)
    publish(producer, numbered(5))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(TIMEOUT_MS).data() for _ in range(3)] == numbered(3)
    admin.put(f"{path_of(topic)}/unload")
    producer.send(b"new")
    assert [reader.read_next(TIMEOUT_MS).data() for _ in range(3)] == [*numbered(5)[3:], b"new"]


@pytest.mark.feature("reconnect")
@pytest.mark.parametrize("batching", [False, True])
def test_a_client_that_sends_on_through_a_kill_loses_nothing_and_repeats_nothing(
    own_broker: BrokerProcess, topic: str, *, batching: bool
) -> None:
    with Admin(own_broker.admin_url) as admin:
        admin.post("namespaces/public/default/deduplication", True)
    port, admin_port = own_broker.port, own_broker.admin_port
    client = connect(own_broker.url)
    keep(client, topic)
    producer = client.create_producer(
        topic,
        producer_name="p",
        block_if_queue_full=True,
        send_timeout_millis=60_000,
        batching_enabled=batching,
        batching_max_messages=50,
    )
    results: list[pulsar.Result] = []
    payloads = numbered(4_000)
    for number, payload in enumerate(payloads):
        producer.send_async(payload, lambda result, _id: results.append(result))
        if number in (1_000, 2_500):
            own_broker.kill()
            own_broker.start(port=port, admin_port=admin_port)
    producer.flush()
    assert set(results) == {pulsar.Result.Ok}
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in read_to_the_end(reader)] == payloads
    client.close()


@pytest.mark.feature("reconnect")
def test_messages_and_cursors_survive_a_restart(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.url)
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), numbered(100))
    assert receive(consumer, 40) == numbered(40)
    client.close()
    assert own_broker.stop() == 0
    own_broker.start()
    client = connect(own_broker.url)
    assert receive(client.subscribe(topic, "s"), 60) == numbered(100)[40:]
    client.close()


# -- the asyncio client -----------------------------------------------------------------------------------------------


@pytest.fixture
async def awaited(broker: Subject) -> AsyncIterator[pulsar.asyncio.Client]:
    """The client of `pulsar.asyncio`."""
    client = pulsar.asyncio.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    yield client
    await client.close()


@pytest.mark.feature("produce-async")
async def test_sends_that_are_awaited_together_keep_their_order(awaited: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await awaited.subscribe(topic, "s")
    producer = await awaited.create_producer(topic)
    ids = await asyncio.gather(*(producer.send(payload) for payload in numbered(100)))
    assert [one.entry_id() for one in ids] == sorted(one.entry_id() for one in ids)
    received = []
    for _ in range(100):
        message = await consumer.receive()
        received.append(message.data())
        await consumer.acknowledge(message)
    assert received == numbered(100)
    assert (await consumer.get_last_message_id()).entry_id() == ids[-1].entry_id()


@pytest.mark.feature("negative-ack")
async def test_what_is_refused_comes_again_when_it_is_awaited(awaited: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await awaited.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = await awaited.create_producer(topic)
    await producer.send(b"again")
    message = await consumer.receive()
    await consumer.negative_acknowledge(message)
    message = await consumer.receive()
    assert (message.data(), message.redelivery_count()) == (b"again", 1)
    await consumer.acknowledge(message)
    await consumer.unsubscribe()


@pytest.mark.feature("seek-id")
async def test_seeks_and_cumulative_acknowledgements_are_awaited(awaited: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await awaited.subscribe(topic, "s")
    producer = await awaited.create_producer(topic, batching_enabled=True)
    await asyncio.gather(*(producer.send(payload) for payload in numbered(10)))
    messages = [await consumer.receive() for _ in range(10)]
    await consumer.acknowledge_cumulative(messages[-1])
    await consumer.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
    assert [(await consumer.receive()).data() for _ in range(10)] == numbered(10)


@pytest.mark.feature("reader")
async def test_a_reader_is_awaited(awaited: pulsar.asyncio.Client, topic: str) -> None:
    producer = await awaited.create_producer(topic)
    for payload in numbered(3):
        await producer.send(payload)
    reader = await awaited.create_reader(topic, pulsar.MessageId.earliest)
    received = []
    while await reader.has_message_available():
        received.append((await reader.read_next()).data())
    assert received == numbered(3)


@pytest.mark.feature("exclusive")
async def test_a_refusal_is_raised_where_it_is_awaited(awaited: pulsar.asyncio.Client, topic: str) -> None:
    first = await awaited.subscribe(topic, "s")
    with pytest.raises(pulsar.asyncio.PulsarException) as refusal:
        await awaited.subscribe(topic, "s")
    assert refusal.value.error() == pulsar.Result.ConsumerBusy
    await first.close()
