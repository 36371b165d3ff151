# SPDX-License-Identifier: Apache-2.0
"""What producers can ask for, with the official Python client: access modes, deduplication, chunks, encryption; and
compacted topics, readers and table views.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.testing.process import BrokerProcess
    from tests.compat.conftest import Subject

TIMEOUT_MS = 10_000
Mode = pulsar.ProducerAccessMode


@pytest.fixture
def client(broker: Subject) -> Iterator[pulsar.Client]:
    client = connect(broker.url)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


def connect(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))


def admin(base: str, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Ask the admin port."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{base}/admin/v2/{path}", data=data, method=method, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def received(consumer: pulsar.Consumer | pulsar.Reader, count: int) -> list[bytes]:
    out = []
    for _ in range(count):
        if isinstance(consumer, pulsar.Reader):
            out.append(consumer.read_next(TIMEOUT_MS).data())
        else:
            message = consumer.receive(TIMEOUT_MS)
            consumer.acknowledge(message)
            out.append(message.data())
    return out


# -------------------------------------------------------------------------------------------------------- access modes


@pytest.mark.feature("access-exclusive")
def test_an_exclusive_producer_is_alone(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    for mode, error in ((Mode.Exclusive, pulsar.ProducerFenced), (Mode.Shared, pulsar.ProducerBusy)):
        with pytest.raises(error):
            client.create_producer(topic, access_mode=mode)
    producer.close()
    client.create_producer(topic).send(b"x")


@pytest.mark.feature("access-wait")
def test_a_producer_waits_for_its_turn(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    got: list[pulsar.Producer] = []
    waiting = threading.Thread(
        target=lambda: got.append(client.create_producer(topic, access_mode=Mode.WaitForExclusive))
    )
    waiting.start()
    first.send(b"first")
    waiting.join(0.5)
    assert not got
    first.close()
    waiting.join(10)
    got[0].send(b"second")
    assert received(consumer, 2) == [b"first", b"second"]


@pytest.mark.feature("access-fencing")
def test_a_producer_fences_the_others_out(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    first.send(b"first")
    second = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    second.send(b"second")
    with pytest.raises(pulsar.PulsarException):  # fenced, or closed by it
        first.send(b"too late")
    second.send(b"third")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert received(reader, 3) == [b"first", b"second", b"third"]


@pytest.mark.feature("initial-subscription")
def test_a_dead_letter_topic_begins_with_a_subscription(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead", "undertaker")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=100,
    )
    client.create_producer(topic).send(b"unwanted")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(TIMEOUT_MS))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)
    # Subscribed to only now, from the latest message on, if it were not there already.
    assert received(client.subscribe(f"{topic}-dead", "undertaker"), 1) == [b"unwanted"]


# ------------------------------------------------------------------------------------------------------- deduplication


@pytest.fixture
def deduplicating(broker: Subject) -> str:
    """A namespace that deduplicates."""
    namespace = f"public/dedup-{uuid.uuid4().hex[:8]}"
    admin(broker.admin_url, "PUT", f"namespaces/{namespace}")
    admin(broker.admin_url, "POST", f"namespaces/{namespace}/deduplication", True)
    return namespace


@pytest.mark.feature("deduplication")
def test_what_is_sent_twice_is_stored_once(client: pulsar.Client, deduplicating: str) -> None:
    topic = f"persistent://{deduplicating}/t"
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=10)
    for sequence_id in (11, 12, 12, 11, 13):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 13
    again.send(b"13", sequence_id=13)
    again.send(b"14", sequence_id=14)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert received(reader, 4) == [b"11", b"12", b"13", b"14"]
    assert not reader.has_message_available()


@pytest.mark.feature("deduplication")
def test_deduplication_remembers_through_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    admin(own_broker.admin_url, "POST", "namespaces/public/default/deduplication", True)
    client = connect(own_broker.url)
    producer = client.create_producer(topic, producer_name="p")
    for _ in range(5):
        producer.send(b"x")
    client.close()
    own_broker.kill()
    own_broker.start()
    client = connect(own_broker.url)
    producer = client.create_producer(topic, producer_name="p")
    assert producer.last_sequence_id() == 4
    producer.send(b"again", sequence_id=4)
    producer.send(b"new", sequence_id=5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert received(reader, 6) == [b"x"] * 5 + [b"new"]
    client.close()


@pytest.mark.feature("reconnect")
@pytest.mark.parametrize("batching", [False, True])
def test_a_client_that_sends_on_through_a_kill_loses_nothing_and_repeats_nothing(
    own_broker: BrokerProcess, topic: str, *, batching: bool
) -> None:
    admin(own_broker.admin_url, "POST", "namespaces/public/default/deduplication", True)
    port, admin_port = own_broker.port, own_broker.admin_port
    client = connect(own_broker.url)
    producer = client.create_producer(
        topic,
        producer_name="p",
        block_if_queue_full=True,
        send_timeout_millis=60_000,
        batching_enabled=batching,
        batching_max_messages=50,
    )
    results: list[pulsar.Result] = []
    for i in range(4_000):
        producer.send_async(b"%d" % i, lambda result, _id: results.append(result))
        if i in (1_000, 2_500):
            own_broker.kill()
            own_broker.start(port=port, admin_port=admin_port)
    producer.flush()
    assert set(results) == {pulsar.Result.Ok}
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert received(reader, 4_000) == [b"%d" % i for i in range(4_000)]
    assert not reader.has_message_available()
    client.close()


# ----------------------------------------------------------------------------------------------- chunks and encryption


@pytest.mark.feature("chunking")
def test_chunks_of_two_producers_do_not_mix(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    payloads = [bytes([65 + i]) * (11 * 1024 * 1024) for i in range(2)]
    for producer, payload in zip(producers, payloads, strict=True):
        producer.send_async(payload, None)
    for producer in producers:
        producer.flush()
    assert sorted(consumer.receive(30_000).data() for _ in payloads) == payloads


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pair of RSA keys, public and private."""
    directory = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    paths = directory / "public.pem", directory / "private.pem"
    paths[0].write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    paths[1].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


@pytest.mark.feature("encryption")
@pytest.mark.parametrize("batching", [False, True])
def test_encrypted_messages_pass_through(
    client: pulsar.Client, topic: str, keys: tuple[Path, Path], *, batching: bool
) -> None:
    reader = pulsar.CryptoKeyReader(str(keys[0]), str(keys[1]))
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    blind = client.subscribe(topic, "blind")
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=reader, batching_enabled=batching)
    for i in range(10):
        producer.send_async(b"secret %d" % i, None)
    producer.flush()
    assert received(consumer, 10) == [b"secret %d" % i for i in range(10)]
    with pytest.raises(pulsar.Timeout):  # what it cannot decrypt, the client does not hand out
        blind.receive(200)


@pytest.mark.feature("encryption")
def test_a_namespace_that_requires_encryption_refuses_plain_producers(
    broker: Subject, client: pulsar.Client, keys: tuple[Path, Path]
) -> None:
    namespace = f"public/secret-{uuid.uuid4().hex[:8]}"
    admin(broker.admin_url, "PUT", f"namespaces/{namespace}")
    admin(broker.admin_url, "POST", f"namespaces/{namespace}/encryptionRequired", True)
    topic = f"persistent://{namespace}/t"
    # The client tries again what is refused so, for as long as an operation may take.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    impatient = pulsar.Client(broker.url, operation_timeout_seconds=2, logger=quiet)
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(topic)
    impatient.close()
    reader = pulsar.CryptoKeyReader(str(keys[0]), str(keys[1]))
    client.create_producer(topic, encryption_key="k", crypto_key_reader=reader).send(b"x")


# ---------------------------------------------------------------------------------------------------------- compaction


def compact(broker: Subject | BrokerProcess, topic: str) -> None:
    """Compact and wait for the end of it."""
    path = f"{path_of(topic)}/compaction"
    admin(broker.admin_url, "PUT", path)
    deadline = time.monotonic() + 20
    while (status := admin(broker.admin_url, "GET", path))["status"] == "RUNNING":
        assert time.monotonic() < deadline, "compaction takes too long"
    assert status["status"] == "SUCCESS", status


def publish(client: pulsar.Client, topic: str, messages: list[tuple[str | None, bytes]], **options: Any) -> None:  # noqa: ANN401
    producer = client.create_producer(topic, **options)
    for key, payload in messages:
        producer.send_async(payload, None, partition_key=key)
    producer.flush()
    producer.close()


def compacted(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """All that a reader of the compacted topic gets, and that it knows when that is all."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    out = []
    while reader.has_message_available():
        message = reader.read_next(TIMEOUT_MS)
        out.append((message.partition_key(), message.data()))
    reader.close()
    return out


@pytest.mark.feature("read-compacted")
@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_of_each_key_the_last_message_is_left(
    broker: Subject, client: pulsar.Client, topic: str, compression: str, *, batching: bool
) -> None:
    options = {
        "batching_enabled": batching,
        "batching_max_publish_delay_ms": 50,
        "compression_type": getattr(pulsar.CompressionType, compression),
    }
    messages: list[tuple[str | None, bytes]] = [(f"k{i % 7}", b"%d" % i) for i in range(50)]
    messages += [("k3", b""), (None, b"nobody's")]
    publish(client, topic, messages, **options)
    compact(broker, topic)
    assert compacted(client, topic) == [(f"k{i % 7}", b"%d" % i) for i in range(43, 50) if i % 7 != 3]


@pytest.mark.feature("read-compacted")
def test_message_ids_are_those_of_before_and_reading_goes_on_in_the_live_topic(
    broker: Subject, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i, partition_key=f"k{i % 3}") for i in range(9)]
    compact(broker, topic)
    ids.append(producer.send(b"9", partition_key="k0"))
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)
    for expected in (6, 7, 8, 9):
        message = consumer.receive(TIMEOUT_MS)
        assert message.data() == b"%d" % expected
        assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (
            ids[expected].ledger_id(),
            ids[expected].entry_id(),
        )
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert received(plain, 10) == [b"%d" % i for i in range(10)]


@pytest.mark.feature("read-compacted")
def test_compacting_again_takes_in_what_came_since_and_survives_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.url)
    publish(client, topic, [(f"k{i % 5}", b"%d" % i) for i in range(20)])
    compact(own_broker, topic)
    publish(client, topic, [("k0", b"new"), ("k9", b"first"), ("k1", b"")], batching_enabled=True)
    compact(own_broker, topic)
    wanted = [("k2", b"17"), ("k3", b"18"), ("k4", b"19"), ("k0", b"new"), ("k9", b"first")]
    assert compacted(client, topic) == wanted
    client.close()
    own_broker.kill()
    own_broker.start()
    client = connect(own_broker.url)
    assert compacted(client, topic) == wanted
    client.close()


@pytest.mark.feature("table-view")
def test_a_table_view_shows_the_last_value_of_each_key(broker: Subject, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{i % 10}", b"%d" % i) for i in range(100)])
    compact(broker, topic)
    publish(client, topic, [("k1", b"live")])
    table = client.create_table_view(topic)
    assert len(table) == 10
    assert table.get("k1") == b"live"
    assert table.get("k2") == b"92"
    changed = threading.Event()
    table.for_each_and_listen(lambda key, value: changed.set() if (key, value) == ("k3", b"later") else None)
    publish(client, topic, [("k3", b"later")])
    assert changed.wait(10)
    table.close()


@pytest.mark.feature("read-compacted")
def test_shared_consumers_cannot_read_what_is_compacted(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, is_read_compacted=True)
