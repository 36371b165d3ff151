# SPDX-License-Identifier: Apache-2.0
"""Where consumers and readers stand: seeks, readers, last ids; compacted topics and table views."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import StringSchema

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
    read,
    read_to_the_end,
    receive,
    until,
)

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess
    from tests.compat.conftest import Subject

Type = pulsar.ConsumerType
first_of, last_of = pulsar.MessageId.earliest, pulsar.MessageId.latest


@pytest.fixture
def ten(client: pulsar.Client, topic: str) -> list[Any]:
    """The ids of ten messages of the topic."""
    producer = client.create_producer(topic)
    return [producer.send(payload) for payload in numbered(10)]


@pytest.fixture
def batched(client: pulsar.Client, topic: str) -> list[Any]:
    """The ids of ten messages of the topic, in two batches."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    ids: list[Any] = []
    for payload in numbered(10):
        producer.send_async(payload, lambda _, message_id: ids.append(message_id))
    producer.flush()
    assert [message_id.batch_index() for message_id in ids] == [0, 1, 2, 3, 4] * 2
    return ids


# -- seeks ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("seek-id")
@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared], ids=str)
def test_a_seek_to_the_beginning_delivers_everything_again_on_every_type(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    publish(client.create_producer(topic), numbered(20))
    assert receive(consumer, 20) == numbered(20)
    consumer.seek(first_of)
    assert receive(consumer, 20) == numbered(20)
    consumer.seek(last_of)
    assert has_nothing(consumer)


@pytest.mark.feature("seek-id")
@pytest.mark.parametrize("inclusive", [False, True], ids=["behind", "at"])
@pytest.mark.parametrize("messages", ["ten", "batched"])
def test_a_seek_to_an_id_goes_on_behind_it_or_at_it(
    client: pulsar.Client, topic: str, messages: str, request: pytest.FixtureRequest, *, inclusive: bool
) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=inclusive)
    ids = request.getfixturevalue(messages)
    assert receive(consumer, 10) == numbered(10)
    consumer.seek(ids[7])
    assert receive(consumer, 2) == numbered(10)[7 if inclusive else 8 :][:2]


@pytest.mark.feature("seek-time")
@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Shared, Type.KeyShared], ids=str)
def test_a_seek_by_time_delivers_what_was_published_since(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    for payload in numbered(10):
        producer.send(payload)
    times = [message.publish_timestamp() for (own,) in [drain([consumer], 10)] for message in own]
    consumer.seek(times[6])
    expected = [payload for payload, time_ms in zip(numbered(10), times, strict=True) if time_ms >= times[6]]
    assert receive(consumer, len(expected)) == expected
    consumer.seek(times[0] - 3_600_000)
    assert receive(consumer, 10) == numbered(10)
    consumer.seek(times[-1] + 3_600_000)
    assert has_nothing(consumer)


@pytest.mark.feature("seek-id")
def test_a_seek_while_others_are_attached_brings_them_back_too(broker: Subject, topic: str) -> None:
    clients = [connect(broker.url) for _ in range(2)]
    consumers = [one.subscribe(topic, "s", consumer_type=Type.Shared) for one in clients]
    publish(clients[0].create_producer(topic), numbered(20))
    drain(consumers, 20)
    consumers[0].seek(first_of)
    received = drain(consumers, 20)
    assert sorted(message.data() for own in received for message in own) == numbered(20)
    for one in clients:
        one.close()


@pytest.mark.feature("seek-id")
@pytest.mark.feature("seek-time")
def test_a_seek_on_several_partitions_moves_them_all(client: pulsar.Client, admin: Admin, local: str) -> None:
    topic = admin.create_partitioned(local, 3)
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), numbered(30))
    assert sorted(receive(consumer, 30)) == numbered(30)
    for place in (first_of, 1):
        consumer.seek(place)
        assert sorted(receive(consumer, 30)) == numbered(30)


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("reader")
@pytest.mark.parametrize("inclusive", [False, True], ids=["behind", "at"])
@pytest.mark.parametrize("messages", ["ten", "batched"])
def test_a_reader_starts_behind_the_message_it_is_given_or_at_it(
    client: pulsar.Client, topic: str, messages: str, request: pytest.FixtureRequest, *, inclusive: bool
) -> None:
    ids = request.getfixturevalue(messages)
    reader = client.create_reader(topic, ids[6], start_message_id_inclusive=inclusive)
    assert read(reader, 3) == numbered(10)[6 if inclusive else 7 :][:3]


@pytest.mark.feature("reader")
def test_an_id_that_was_written_down_is_good_for_a_reader(
    client: pulsar.Client, topic: str, batched: list[Any]
) -> None:
    written = batched[6].serialize()
    reader = client.create_reader(topic, pulsar.MessageId.deserialize(written))
    assert read(reader, 3) == numbered(10)[7:]


@pytest.mark.feature("reader")
@pytest.mark.parametrize("messages", ["ten", "batched"])
def test_a_reader_seeks_by_id_and_by_time(
    client: pulsar.Client, topic: str, messages: str, request: pytest.FixtureRequest
) -> None:
    ids = request.getfixturevalue(messages)
    reader = client.create_reader(topic, first_of)
    first = reader.read_next(TIMEOUT_MS)
    reader.seek(ids[7])
    assert read(reader, 2) == numbered(10)[8:]
    reader.seek(first.publish_timestamp() - 1_000)
    assert read(reader, 10) == numbered(10)
    reader.seek(first_of)
    assert read(reader, 1) == numbered(1)


@pytest.mark.feature("reader")
def test_a_reader_is_a_subscription_that_goes_with_it(
    client: pulsar.Client, admin: Admin, topic: str, ten: list[Any]
) -> None:
    reader = client.create_reader(topic, first_of, subscription_role_prefix="audit")
    (name,) = admin.get(f"{path_of(topic)}/subscriptions")
    assert name.startswith("audit-reader-")
    assert not admin.subscription(topic, name)["isDurable"]
    assert read(reader, len(ten)) == numbered(10)
    reader.close()
    until(lambda: admin.get(f"{path_of(topic)}/subscriptions") == [], "for the subscription to go")


@pytest.mark.feature("reader")
def test_readers_of_one_topic_do_not_disturb_each_other(client: pulsar.Client, topic: str, ten: list[Any]) -> None:
    readers = [client.create_reader(topic, first_of) for _ in range(3)]
    for reader in readers:
        assert read(reader, len(ten)) == numbered(10)


@pytest.mark.feature("reader-has-next")
@pytest.mark.parametrize("batching", [False, True], ids=["alone", "batched"])
def test_a_reader_knows_the_end_and_what_comes_after(client: pulsar.Client, topic: str, *, batching: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=7)
    reader = client.create_reader(topic, first_of)
    assert not reader.has_message_available()
    publish(producer, numbered(100))
    assert [message.data() for message in read_to_the_end(reader)] == numbered(100)
    producer.send(b"more")
    assert [message.data() for message in read_to_the_end(reader)] == [b"more"]


@pytest.mark.feature("reader-has-next")
def test_a_reader_at_the_end_waits_for_what_is_new(client: pulsar.Client, topic: str, ten: list[Any]) -> None:
    cases: tuple[tuple[Any, bool, list[bytes]], ...] = (
        (last_of, False, []),
        (last_of, True, [b"0009"]),
        (ten[-1], False, []),
        (ten[-2], False, [b"0009"]),
    )
    readers = [client.create_reader(topic, start, start_message_id_inclusive=at) for start, at, _ in cases]
    for reader, (_, _, behind) in zip(readers, cases, strict=True):
        assert [message.data() for message in read_to_the_end(reader)] == behind
    client.create_producer(topic).send(b"new")
    for reader in readers:
        assert read(reader, 1) == [b"new"]


@pytest.mark.feature("reader-has-next")
def test_a_reader_that_seeks_knows_whether_something_is_there(
    client: pulsar.Client, topic: str, ten: list[Any]
) -> None:
    reader = client.create_reader(topic, last_of)
    assert not reader.has_message_available()
    reader.seek(ten[-2])
    assert reader.has_message_available()
    reader.seek(ten[-1])
    assert not reader.has_message_available()
    reader.seek(first_of)
    assert [message.data() for message in read_to_the_end(reader)] == numbered(10)


# -- last ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("last-message-id")
def test_the_last_message_id_is_that_of_the_last_send(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    empty = consumer.get_last_message_id()
    assert empty.entry_id() == -1
    producer = client.create_producer(topic)
    for payload in numbered(3):
        sent = producer.send(payload)
        found = consumer.get_last_message_id()
        assert (found.ledger_id(), found.entry_id()) == (sent.ledger_id(), sent.entry_id())


@pytest.mark.feature("last-message-id")
def test_the_last_message_id_names_the_last_message_of_a_batch(
    client: pulsar.Client, topic: str, batched: list[Any]
) -> None:
    found = client.subscribe(topic, "s").get_last_message_id()
    assert (found.entry_id(), found.batch_index()) == (batched[-1].entry_id(), 4)


# -- compaction -------------------------------------------------------------------------------------------------------


def publish_keyed(
    client: pulsar.Client,
    topic: str,
    messages: list[tuple[str | None, bytes | None]],
    **options: Any,  # noqa: ANN401 - as the client takes them
) -> None:
    """Publish payloads under keys."""
    producer = client.create_producer(topic, **options)
    for key, payload in messages:
        producer.send_async(payload, None, partition_key=key)
    producer.flush()
    producer.close()


def compacted(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """Keys and payloads that a reader of the compacted topic gets, to the end."""
    reader = client.create_reader(topic, first_of, is_read_compacted=True)
    messages = [(message.partition_key(), message.data()) for message in read_to_the_end(reader)]
    reader.close()
    return messages


def compacted_keys(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """The same without the empty messages that this client hands out, from Pulsar, for what went from a batch."""
    return [(key, payload) for key, payload in compacted(client, topic) if key]


@pytest.mark.feature("read-compacted")
@pytest.mark.parametrize("batching", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_of_each_key_the_last_message_is_left(
    admin: Admin, client: pulsar.Client, topic: str, compression: str, *, batching: bool
) -> None:
    messages: list[tuple[str | None, bytes | None]] = [(f"k{i % 7}", b"%d" % i) for i in range(50)]
    messages += [("k3", b""), ("k4", None), (None, b"nobody's")]
    publish_keyed(
        client,
        topic,
        messages,
        batching_enabled=batching,
        batching_max_publish_delay_ms=50,
        compression_type=getattr(pulsar.CompressionType, compression),
    )
    admin.compact(topic)
    assert compacted_keys(client, topic) == [(f"k{i % 7}", b"%d" % i) for i in range(43, 50) if i % 7 not in {3, 4}]


@pytest.mark.penstock_only("from Pulsar, this client hands out empty messages for what went from a batch")
@pytest.mark.feature("read-compacted")
def test_nothing_stands_for_what_went_from_a_batch(admin: Admin, client: pulsar.Client, topic: str) -> None:
    publish_keyed(client, topic, [("k", b"%d" % i) for i in range(10)], batching_enabled=True)
    admin.compact(topic)
    assert compacted(client, topic) == [("k", b"9")]


@pytest.mark.feature("read-compacted")
def test_message_ids_are_those_of_before_and_reading_goes_on_in_the_live_topic(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(payload, partition_key=f"k{int(payload) % 3}") for payload in numbered(9)]
    admin.compact(topic)
    ids.append(producer.send(b"0009", partition_key="k0"))
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
    for expected in (6, 7, 8, 9):
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"%04d" % expected
        assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (
            ids[expected].ledger_id(),
            ids[expected].entry_id(),
        )
        consumer.acknowledge(message)
    assert has_nothing(consumer)
    plain = client.create_reader(topic, first_of)
    assert read(plain, 10) == numbered(10)


def compact_twice(admin: Admin, client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """Publish, compact, publish more, compact again; what must be left."""
    publish_keyed(client, topic, [(f"k{i % 5}", b"%d" % i) for i in range(20)])
    admin.compact(topic)
    publish_keyed(client, topic, [("k0", b"new"), ("k9", b"first"), ("k1", b"")], batching_enabled=True)
    admin.compact(topic)
    return [("k2", b"17"), ("k3", b"18"), ("k4", b"19"), ("k0", b"new"), ("k9", b"first")]


@pytest.mark.feature("read-compacted")
def test_compacting_again_takes_in_what_came_since(admin: Admin, client: pulsar.Client, topic: str) -> None:
    wanted = compact_twice(admin, client, topic)
    assert compacted_keys(client, topic) == wanted


@pytest.mark.penstock_only(
    "Pulsar stores where the compacted ledger is with a cursor, at most once a second and else a minute later: a kill "
    "in between leaves it with a ledger that it has deleted"
)
@pytest.mark.feature("read-compacted")
def test_what_was_compacted_twice_survives_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.url)
    with Admin(own_broker.admin_url) as admin:
        wanted = compact_twice(admin, client, topic)
    assert compacted(client, topic) == wanted
    client.close()
    own_broker.kill()
    own_broker.start()
    client = connect(own_broker.url)
    assert compacted(client, topic) == wanted
    client.close()


@pytest.mark.feature("read-compacted")
def test_shared_consumers_cannot_read_what_is_compacted(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", consumer_type=Type.Shared, is_read_compacted=True)


# -- table views ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("table-view")
def test_a_table_view_shows_the_last_value_of_each_key(admin: Admin, client: pulsar.Client, topic: str) -> None:
    publish_keyed(client, topic, [(f"k{i % 10}", b"%d" % i) for i in range(100)])
    admin.compact(topic)
    publish_keyed(client, topic, [("k1", b"live"), ("k5", None)])
    table = client.create_table_view(topic)
    assert len(table) == 9
    assert (table.get("k1"), table.get("k2"), table.get("k5")) == (b"live", b"92", None)
    shown: dict[str, bytes] = {}
    table.for_each(lambda key, value: shown.update({key: value}))
    assert shown == {f"k{i % 10}": b"%d" % i for i in range(90, 100) if i % 10 != 5} | {"k1": b"live"}
    table.close()


@pytest.mark.feature("table-view")
def test_a_table_view_follows_what_is_published(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send("one", partition_key="a")
    table = client.create_table_view(topic, schema=StringSchema())
    changed = threading.Event()
    seen: list[tuple[str, str]] = []

    def listen(key: str, value: str) -> None:
        seen.append((key, value))
        if key == "b":
            changed.set()

    table.for_each_and_listen(listen)
    assert table.get("a") == "one"
    producer.send("two", partition_key="a")
    producer.send("three", partition_key="b")
    assert changed.wait(TIMEOUT_S)
    assert seen == [("a", "one"), ("a", "two"), ("b", "three")]
    assert (table.get("a"), table.get("b")) == ("two", "three")
    table.close()


@pytest.mark.feature("table-view")
def test_a_table_view_of_a_partitioned_topic_holds_all_partitions(
    client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = admin.create_partitioned(local, 3)
    publish_keyed(client, topic, [(f"k{i}", b"%d" % i) for i in range(20)])
    table = client.create_table_view(topic)
    assert len(table) == 20
    assert table.get("k7") == b"7"
    table.close()
