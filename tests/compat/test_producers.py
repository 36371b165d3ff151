# SPDX-License-Identifier: Apache-2.0
"""What producers do: sending, batches, compression, chunks, encryption, delays, access modes, deduplication."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.compat.clients import (
    ABSENCE_MS,
    TIMEOUT_MS,
    TIMEOUT_S,
    Admin,
    connect,
    has_nothing,
    keep,
    numbered,
    path_of,
    publish,
    read,
    read_to_the_end,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.process import BrokerProcess
    from tests.compat.conftest import Subject

Mode = pulsar.ProducerAccessMode
MIB = 1024 * 1024


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("produce-sync")
@pytest.mark.feature("keys-and-properties")
def test_a_message_comes_out_as_it_went_in(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p")
    sent = producer.send(
        b"hello", properties={"a": "b", "ü": "€"}, partition_key="k", ordering_key="o", event_timestamp=42
    )
    message = consumer.receive(TIMEOUT_MS)
    assert message.data() == b"hello"
    assert message.properties() == {"a": "b", "ü": "€"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 42)
    assert (message.producer_name(), message.topic_name(), message.redelivery_count()) == ("p", topic, 0)
    came = message.message_id()
    assert (came.ledger_id(), came.entry_id()) == (sent.ledger_id(), sent.entry_id())


@pytest.mark.feature("produce-sync")
def test_empty_and_null_payloads_are_told_apart(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for payload in (b"", None):
        producer.send(payload, partition_key="k")
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(2)]
    assert [message.data() for message in messages] == [b"", b""]
    assert [message.has_null_value() for message in messages] == [False, True]


@pytest.mark.feature("produce-sync")
def test_producers_without_a_name_get_one_of_their_own(client: pulsar.Client, topic: str) -> None:
    names = [client.create_producer(topic).producer_name() for _ in range(3)]
    assert len(set(names)) == 3
    assert all(names)
    assert client.create_producer(topic, producer_name="mine").producer_name() == "mine"


@pytest.mark.feature("produce-sync")
def test_a_second_producer_of_the_same_name_is_refused_while_the_first_lives(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")
    first.close()
    client.create_producer(topic, producer_name="p").send(b"x")


@pytest.mark.feature("produce-sync")
def test_a_message_larger_than_the_broker_takes_is_refused_and_harms_nobody(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    largest = b"x" * (5 * MIB - 1024)  # What is left are the headers.
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (6 * MIB))
    producer.send(largest)
    assert read(reader, 1) == [largest]


@pytest.mark.feature("produce-async")
def test_order_is_kept_over_thousands_of_async_sends(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, block_if_queue_full=True)
    done = threading.Event()
    receipts: list[tuple[pulsar.Result, int]] = []
    payloads = numbered(5_000)

    def sent(result: pulsar.Result, message_id: Any) -> None:  # noqa: ANN401 - the client has no types
        receipts.append((result, message_id.entry_id()))
        if len(receipts) == len(payloads):
            done.set()

    for payload in payloads:
        producer.send_async(payload, sent)
    assert done.wait(TIMEOUT_S)
    assert receipts == [(pulsar.Result.Ok, number) for number in range(len(payloads))]
    assert receive(consumer, len(payloads)) == payloads
    assert producer.last_sequence_id() == len(payloads) - 1


@pytest.mark.feature("produce-async")
def test_fifty_producers_share_one_connection(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(50)]
    consumers = [client.subscribe(name, "s") for name in topics]
    producers = [client.create_producer(name) for name in topics]
    for payload in numbered(20):
        for name, producer in zip(topics, producers, strict=True):
            producer.send_async(name.encode() + payload, None)
    for producer in producers:
        producer.flush()
    for name, consumer in zip(topics, consumers, strict=True):
        assert receive(consumer, 20) == [name.encode() + payload for payload in numbered(20)]


@pytest.mark.feature("delayed")
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=["shared", "keys"])
def test_a_delayed_message_comes_later_than_one_sent_after_it(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    at_ms = int(time.time() * 1000) + 2_200
    producer.send(b"after", deliver_after=timedelta(seconds=2), partition_key="k")
    producer.send(b"at", deliver_at=at_ms, partition_key="k")
    producer.send(b"now", partition_key="k")
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(3)]
    assert messages[0].data() == b"now"
    assert {message.data() for message in messages[1:]} == {b"after", b"at"}
    assert all(message.redelivery_count() == 0 for message in messages)


@pytest.mark.feature("delayed")
def test_an_exclusive_consumer_gets_delayed_messages_at_once(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"later", deliver_after=timedelta(hours=1))
    assert consumer.receive(TIMEOUT_MS).data() == b"later"


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("batching")
def test_messages_of_a_batch_share_an_entry_and_keep_their_own_marks(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    for number, payload in enumerate(numbered(5)):
        # The fifth closes the batch, long before its time.
        producer.send_async(
            payload, None, partition_key=f"k{number}", properties={"n": str(number)}, event_timestamp=number + 1
        )
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(5)]
    assert len({message.message_id().entry_id() for message in messages}) == 1
    assert [message.message_id().batch_index() for message in messages] == list(range(5))
    assert [message.data() for message in messages] == numbered(5)
    assert [(message.partition_key(), message.properties(), message.event_timestamp()) for message in messages] == [
        (f"k{number}", {"n": str(number)}, number + 1) for number in range(5)
    ]


@pytest.mark.feature("compression")
@pytest.mark.parametrize("batching", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_every_compression_comes_back_as_it_went(
    client: pulsar.Client, topic: str, compression: str, *, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, compression_type=getattr(pulsar.CompressionType, compression), batching_enabled=batching
    )
    payloads = [payload * 50 for payload in numbered(300)]
    publish(producer, payloads)
    assert receive(consumer, 300) == payloads


# -- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("chunking")
def test_chunks_of_two_producers_do_not_mix(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    payloads = [bytes([first]) + bytes(range(256)) * (11 * MIB // 256) for first in range(2)]
    for producer, payload in zip(producers, payloads, strict=True):
        producer.send_async(payload, None)
    for producer in producers:
        producer.flush()
    messages = [consumer.receive(30_000) for _ in payloads]
    assert sorted(message.data() for message in messages) == payloads
    for message in messages:
        consumer.acknowledge(message)
    producers[0].send(b"small")
    assert receive(consumer, 1) == [b"small"]


@pytest.mark.feature("chunking")
def test_a_chunked_message_is_found_again_by_its_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    producer = client.create_producer(topic, chunking_enabled=True)
    payloads = [b"before", bytes(range(256)) * (7 * MIB // 256), b"after"]
    ids = [producer.send(payload) for payload in payloads]
    assert receive(consumer, 3) == payloads
    consumer.seek(ids[1])
    assert receive(consumer, 2) == payloads[1:]
    reader = client.create_reader(topic, ids[1], start_message_id_inclusive=True)
    assert read(reader, 2) == payloads[1:]


# -- encryption -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pulsar.CryptoKeyReader]:
    """Make a reader of a pair of RSA keys, a pair for each name."""
    directory = tmp_path_factory.mktemp("keys")

    def reader(name: str) -> pulsar.CryptoKeyReader:
        public, private = directory / f"{name}.public.pem", directory / f"{name}.private.pem"
        if not public.exists():
            write_keys(public, private)
        return pulsar.CryptoKeyReader(str(public), str(private))

    return reader


def write_keys(public: Path, private: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


@pytest.mark.feature("encryption")
@pytest.mark.parametrize("batching", [False, True], ids=["alone", "batched"])
def test_encrypted_messages_are_read_by_whoever_has_the_key(
    client: pulsar.Client, topic: str, keys: Callable[[str], pulsar.CryptoKeyReader], *, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys("ours"))
    stranger = client.subscribe(topic, "stranger", crypto_key_reader=keys("theirs"))
    producer = client.create_producer(
        topic,
        encryption_key="k",
        crypto_key_reader=keys("ours"),
        batching_enabled=batching,
        compression_type=pulsar.CompressionType.LZ4,
    )
    publish(producer, numbered(10), properties={"seen": "by all"})
    assert receive(consumer, 10) == numbered(10)
    assert has_nothing(stranger)


@pytest.mark.feature("encryption")
def test_without_the_key_a_consumer_may_discard_or_take_what_it_cannot_read(
    client: pulsar.Client, topic: str, keys: Callable[[str], pulsar.CryptoKeyReader]
) -> None:
    action = pulsar.ConsumerCryptoFailureAction
    discards = client.subscribe(topic, "discards", crypto_failure_action=action.DISCARD)
    takes = client.subscribe(topic, "takes", crypto_failure_action=action.CONSUME)
    encrypted = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys("ours"))
    encrypted.send(b"secret", properties={"a": "b"})
    client.create_producer(topic).send(b"plain")
    assert receive(discards, 1) == [b"plain"]
    message = takes.receive(TIMEOUT_MS)
    assert message.data() != b"secret"
    assert message.properties() == {"a": "b"}
    context = message.encryption_context()
    assert context is not None
    assert [key.key for key in context.keys()] == ["k"]  # noqa: SIM118 - it is no mapping
    assert context.is_decryption_failed()


@pytest.mark.feature("encryption")
def test_a_namespace_that_requires_encryption_refuses_plain_producers(
    broker: Subject, admin: Admin, client: pulsar.Client, keys: Callable[[str], pulsar.CryptoKeyReader]
) -> None:
    topic = f"persistent://{admin.create_namespace(encryptionRequired=True)}/t"
    # This client asks again, for as long as it waits for an answer.
    impatient = connect(broker.url, operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(topic)
    impatient.close()
    client.create_producer(topic, encryption_key="k", crypto_key_reader=keys("ours")).send(b"x")


# -- access modes -----------------------------------------------------------------------------------------------------


@pytest.mark.feature("access-exclusive")
def test_an_exclusive_producer_is_alone(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    for mode, error in ((Mode.Exclusive, pulsar.ProducerFenced), (Mode.Shared, pulsar.ProducerBusy)):
        with pytest.raises(error):
            client.create_producer(topic, access_mode=mode)
    producer.close()
    client.create_producer(topic).send(b"x")


@pytest.mark.feature("access-exclusive")
def test_an_exclusive_producer_stays_so_when_its_topic_is_unloaded(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    producer.send(b"before")
    admin.put(f"{path_of(topic)}/unload")
    producer.send(b"after")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)


@pytest.mark.feature("access-wait")
def test_a_producer_waits_for_its_turn(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    got: list[pulsar.Producer] = []
    waiting = threading.Thread(
        target=lambda: got.append(client.create_producer(topic, access_mode=Mode.WaitForExclusive))
    )
    waiting.start()
    first.send(b"first")
    waiting.join(ABSENCE_MS / 1000)
    assert not got
    assert admin.get(f"{path_of(topic)}/stats")["waitingPublishers"] == 1
    first.close()
    waiting.join(TIMEOUT_S)
    got[0].send(b"second")
    assert receive(consumer, 2) == [b"first", b"second"]


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
    assert read(reader, 3) == [b"first", b"second", b"third"]


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
    assert receive(client.subscribe(f"{topic}-dead", "undertaker"), 1) == [b"unwanted"]


# -- deduplication ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("deduplication")
def test_what_is_sent_twice_is_stored_once(client: pulsar.Client, admin: Admin) -> None:
    topic = f"persistent://{admin.create_namespace(deduplication=True)}/t"
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=10)
    assert producer.last_sequence_id() == 10
    for sequence_id in (11, 12, 12, 11, 13):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 13
    again.send(b"13", sequence_id=13)
    again.send(b"14")
    again.close()
    # Others count for themselves.
    client.create_producer(topic, producer_name="q").send(b"1", sequence_id=1)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in read_to_the_end(reader)] == [b"11", b"12", b"13", b"14", b"1"]


@pytest.mark.feature("deduplication")
def test_without_deduplication_everything_is_stored(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p")
    for sequence_id in (1, 2, 2, 1):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in read_to_the_end(reader)] == [b"1", b"2", b"2", b"1"]


@pytest.mark.feature("deduplication")
def test_deduplication_remembers_through_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    with Admin(own_broker.admin_url) as admin:
        admin.post("namespaces/public/default/deduplication", True)
    client = connect(own_broker.url)
    keep(client, topic)
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
    assert [message.data() for message in read_to_the_end(reader)] == [b"x"] * 5 + [b"new"]
    client.close()
