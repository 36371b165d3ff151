# SPDX-License-Identifier: Apache-2.0
"""The wire client reads what the official client wrote, exactly the range asked for, through whatever happens."""

from __future__ import annotations

import itertools
import random
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import WireCode
from penstock.spark.client import reader
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.connection import Connection
from penstock.spark.client.credentials import of_token
from penstock.spark.client.endpoint import Endpoint, TlsOptions
from penstock.spark.client.errors import (
    BadAnswer,
    BrokerUnreachable,
    ConnectionLost,
    DataLost,
    EncryptedMessage,
    NothingCame,
    Refused,
    TlsFailed,
)
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.subscription import Subscription, earliest_id
from penstock.testing.certificates import Certificate
from penstock.testing.client import RawClient, Type, frame, send
from penstock.testing.serving import serving
from penstock.wire.client.lookup import Address, parse_service_url
from penstock.wire.codec import MessageMetadata
from tests.spark.numbered import end_of
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar

    from penstock.spark.client.messages import Messages
    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

TIMEOUT_S = 60.0


def endpoint_of(url: str, **changes: Any) -> Endpoint:  # noqa: ANN401
    return replace(Endpoint(addresses=parse_service_url(url), operation_timeout_s=TIMEOUT_S), **changes)


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(endpoint_of(broker.url)) as cluster:
        yield cluster


def values_of(found: Messages) -> list[bytes | None]:
    spans = zip(found.value_starts.tolist(), found.value_stops.tolist(), strict=True)
    return [None if start < 0 else found.data[start:stop].tobytes() for start, stop in spans]


def read_values(
    cluster: Cluster,
    topic: str,
    start: MessageId = EARLIEST,
    end: MessageId | None = None,
    **options: Any,  # noqa: ANN401
) -> list[bytes | None]:
    stop = end_of(cluster, topic) if end is None else end
    return [value for found in read(cluster, topic, start, stop, ReadOptions(**options)) for value in values_of(found)]


def publish(client: pulsar.Client, topic: str, payloads: list[bytes], **options: Any) -> None:  # noqa: ANN401
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    producer.close()


# -- what was written is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [True, False])
def test_every_codec_is_read_batched_and_not(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str, compression: str, *, batched: bool
) -> None:
    import pulsar

    chance = random.Random(f"{compression}{batched}")
    payloads = [chance.randbytes(chance.choice([0, 1, 50, 3000])) + b"a" * chance.randrange(200) for _ in range(300)]
    kind = getattr(pulsar.CompressionType, compression)
    publish(official(broker.url), topic, payloads, compression_type=kind, batching_enabled=batched)
    assert read_values(cluster, topic) == payloads


def test_a_message_in_pieces_is_whole_also_when_the_range_begins_between_them(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    large = random.Random(5).randbytes(12 * 2**20)
    client = official(broker.url)
    publish(client, topic, [b"before"])
    publish(client, topic, [large], chunking_enabled=True, batching_enabled=False)
    publish(client, topic, [b"after"])
    assert read_values(cluster, topic) == [b"before", large, b"after"]
    end = end_of(cluster, topic)
    last_piece = MessageId(end.ledger_id, end.entry_id - 2)
    assert read_values(cluster, topic, last_piece) == [large, b"after"]
    assert read_values(cluster, topic, EARLIEST, last_piece) == [b"before"]


def test_a_range_may_begin_and_end_inside_a_batch(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    payloads = [b"%d" % number for number in range(100)]
    publish(
        official(broker.url),
        topic,
        payloads,
        batching_enabled=True,
        batching_max_messages=100,
        batching_max_publish_delay_ms=1000,
    )
    first = earliest_id(cluster, topic)
    assert first is not None
    assert end_of(cluster, topic) == MessageId(first.ledger_id, 1), "it was meant to be one batch"
    parts = [
        EARLIEST,
        MessageId(first.ledger_id, 0, 30),
        MessageId(first.ledger_id, 0, 31),
        MessageId(first.ledger_id, 1),
    ]
    found = [read_values(cluster, topic, *span) for span in itertools.pairwise(parts)]
    assert found == [payloads[:30], payloads[30:31], payloads[31:]]


def test_delayed_messages_are_read_at_once(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    producer = official(broker.url).create_producer(topic)
    producer.send(b"later", deliver_at=2**42)
    producer.send(b"now")
    assert read_values(cluster, topic) == [b"later", b"now"]


def test_a_place_in_time_is_that_of_the_first_message_published_then(
    cluster: Cluster, broker: BrokerProcess, topic: str
) -> None:
    with RawClient(broker.port) as raw:
        raw.produce(topic)
        for number in range(10):
            raw.write(send(0, number, stored(b"%d" % number, sequence_id=number, publish_time=1_000 + number * 10)))
            raw.next(Type.SEND_RECEIPT)
    places = []
    for time_ms in (0, 1_000, 1_045, 1_090, 9_999):
        with Subscription.reading(cluster, topic, EARLIEST) as subscription:
            places.append(subscription.id_at(time_ms).entry_id)
    assert places == [0, 0, 5, 9, 10]


def stored(payload: bytes, **said: Any) -> bytes:  # noqa: ANN401
    from penstock.core.checksum import seal

    metadata = MessageMetadata(producer_name="p", **said)
    if not metadata.HasField("sequence_id"):
        metadata.sequence_id = 0
    data = metadata.SerializeToString()
    return seal(len(data).to_bytes(4, "big") + data + payload)


def test_a_compacted_topic_ends_where_its_last_message_is(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    producer = official(broker.url).create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    producer.send(b"", partition_key="k0")  # deletes its key: the last entry of all is not in the compacted topic
    ask(broker.admin_url, "PUT", f"{path_of(topic)}/compaction")
    for _ in range(200):
        if ask(broker.admin_url, "GET", f"{path_of(topic)}/compaction")["status"] == "SUCCESS":
            break
    with Subscription.reading(cluster, topic, EARLIEST, compacted=True) as subscription:
        last = subscription.last_id()
    assert last is not None
    end = MessageId(last.ledger_id, last.entry_id + 1)
    assert read_values(cluster, topic, EARLIEST, end, compacted=True) == [b"28", b"29"]


# -- what is missing -------------------------------------------------------------------------------------------------


def test_a_start_that_was_removed_is_an_error_that_names_it_or_the_earliest_that_is_there(
    tmp_path: Path, official: Official, topic: str
) -> None:
    with serving(data_dir=tmp_path / "data") as broker, Cluster(endpoint_of(broker.url)) as cluster:
        client = official(broker.url)
        consumer = client.subscribe(topic, "s")
        publish(client, topic, [b"%d" % number for number in range(20)], batching_enabled=False)
        for _ in range(10):
            consumer.acknowledge(consumer.receive(60_000))
        consumer.close()
        first = earliest_id(cluster, topic)
        for _ in range(100):
            if first is not None and first.entry_id == 10:
                break
            first = earliest_id(cluster, topic)
        assert first is not None
        wanted = MessageId(first.ledger_id, first.entry_id - 3)
        with pytest.raises(DataLost) as caught:
            read_values(cluster, topic, wanted)
        assert topic in str(caught.value)
        assert str(wanted) in str(caught.value)
        assert "failOnDataLoss=false" in str(caught.value)
        rest = [b"%d" % number for number in range(first.entry_id, 20)]
        assert read_values(cluster, topic, wanted, fail_on_data_loss=False) == rest


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    client = official(broker.url)
    publish(client, topic, [b"old"] * 5, batching_enabled=False)
    before = end_of(cluster, topic)
    ask(broker.admin_url, "DELETE", path_of(topic))
    publish(client, topic, [b"new"] * 3, batching_enabled=False)
    with pytest.raises(DataLost):
        read_values(cluster, topic, before)
    assert read_values(cluster, topic, before, fail_on_data_loss=False) == [b"new"] * 3


def test_a_topic_that_is_gone_is_an_error_unless_loss_is_none(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    publish(official(broker.url), topic, [b"x"])
    end = end_of(cluster, topic)
    ask(broker.admin_url, "DELETE", path_of(topic))
    with pytest.raises(Refused):
        read_values(cluster, topic, EARLIEST, end)
    assert read_values(cluster, topic, EARLIEST, end, fail_on_data_loss=False) == []


def test_where_nothing_comes_it_is_said_whether_the_topic_holds_it(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(official(broker.url), topic, [b"a", b"b"])
    end = end_of(cluster, topic)
    monkeypatch.setattr(reader, "_DOUBT_S", 0.0)
    beyond = MessageId(end.ledger_id, end.entry_id + 4)
    with pytest.raises(NothingCame, match=f"up to {beyond} should be; the topic's last message is at {end.ledger_id}:"):
        read_values(cluster, topic, end, beyond, poll_timeout_s=0.0)
    monkeypatch.setattr(Connection, "receive", lambda *_: False)
    with pytest.raises(NothingCame, match="should be; look at the broker's load"):
        read_values(cluster, topic, MessageId(end.ledger_id, 0), end, poll_timeout_s=0.0)


def test_an_encrypted_message_is_refused_by_its_producers_name(
    cluster: Cluster, broker: BrokerProcess, topic: str
) -> None:
    metadata = MessageMetadata(producer_name="secretive", sequence_id=0, publish_time=1)
    metadata.encryption_keys.add(key="k", value=b"v")
    data = metadata.SerializeToString()
    from penstock.core.checksum import seal

    with RawClient(broker.port) as raw:
        raw.produce(topic)
        raw.write(send(0, 0, seal(len(data).to_bytes(4, "big") + data + b"??")))
        raw.next(Type.SEND_RECEIPT)
    with pytest.raises(EncryptedMessage, match="secretive"):
        read_values(cluster, topic)


# -- brokers that go, and wrong ones ---------------------------------------------------------------------------------


def test_a_reading_goes_on_where_it_was_when_the_broker_comes_back(
    own_broker: BrokerProcess, official: Official
) -> None:
    topic = "persistent://public/default/t"
    client = official(own_broker.url)
    payloads = [b"%06d" % number + b"." * 1000 for number in range(30_000)]
    publish(client, topic, payloads)
    client.shutdown()
    endpoint = endpoint_of(own_broker.url, operation_timeout_s=30.0)
    with Cluster(endpoint) as cluster:
        found: list[bytes | None] = []
        killed = False
        for run in read(cluster, topic, EARLIEST, end_of(cluster, topic), ReadOptions()):
            found += values_of(run)
            if not killed:
                killed = True
                port = own_broker.port
                own_broker.kill()
                own_broker.start(port=port)
    assert found == payloads


def test_a_missing_topic_is_named_and_not_made(cluster: Cluster, topic: str) -> None:
    for question in (cluster.partitions, lambda name: read_values(cluster, name)):
        with pytest.raises(Refused) as caught:
            question(topic)
        assert caught.value.code is WireCode.TOPIC_NOT_FOUND
        assert topic in str(caught.value)
    assert topic not in cluster.topics("public/default")


def test_an_unreachable_broker_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(BrokerUnreachable, match=r"service\.url") as caught,
            Cluster(endpoint_of(url, operation_timeout_s=0.1)) as cluster,
        ):
            cluster.partitions("t")
    assert url in str(caught.value)


def test_something_else_behind_the_port_is_told_apart_from_a_broker(broker: BrokerProcess) -> None:
    url = f"pulsar://127.0.0.1:{broker.admin_port}"
    with (
        pytest.raises((BadAnswer, BrokerUnreachable)) as caught,
        Cluster(endpoint_of(url, operation_timeout_s=0.1)) as cluster,
    ):
        cluster.partitions("t")
    assert str(broker.admin_port) in str(caught.value)


def test_wrong_credentials_are_refused_at_once_and_not_shown() -> None:
    given = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": "data:;base64,bm90IGEgc2VjcmV0LCBmb3IgaXQgc3RhbmRzIGluIGEgdGVzdCBzdWl0ZQ==",
    }
    with serving(given) as broker, Cluster(endpoint_of(broker.url, credentials=of_token("wrong-thing"))) as cluster:
        with pytest.raises(Refused) as caught:
            cluster.partitions("t")
        assert caught.value.code is WireCode.AUTHENTICATION_ERROR
        assert "option token" in str(caught.value)
        assert "wrong-thing" not in str(caught.value)


def test_tls_is_trusted_only_with_the_certificate_that_signed_the_brokers(tmp_path: Path, topic: str) -> None:
    ours = Certificate.make(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "brokerServicePortTls": str(port),
        "tlsCertificateFilePath": str(ours.certificate),
        "tlsKeyFilePath": str(ours.key),
    }
    url = f"pulsar+ssl://127.0.0.1:{port}"
    with serving(given) as broker:
        with RawClient(int(broker.url.rpartition(":")[2])) as raw:
            raw.produce(topic)
        with Cluster(endpoint_of(url, tls=TlsOptions(trusted=ours.certificate))) as cluster:
            assert read_values(cluster, topic) == []
            with cluster.open_topic(topic) as connection:
                assert connection.address.tls
        with pytest.raises(TlsFailed, match="tlsTrustCertsFilePath"), Cluster(endpoint_of(url)) as cluster:
            cluster.partitions(topic)


def test_a_connection_knows_when_it_is_over(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    with RawClient(broker.port) as raw:
        raw.produce(topic)
    with cluster.open_topic(topic) as connection:
        assert connection.is_alive()
        connection.write(frame(Type.PING))
        connection.write(b"\xff\xff\xff\xff")  # no broker goes on after this
        with pytest.raises(ConnectionLost):
            connection.next_event(TIMEOUT_S)
        assert not connection.is_alive()


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://a", [("a", 6650, False)]),
        ("pulsar+ssl://a,b:1234/", [("a", 6651, True), ("b", 1234, True)]),
        ("pulsar://[::1]:7000", [("::1", 7000, False)]),
    ],
)
def test_service_urls_name_one_broker_or_more(url: str, addresses: list[tuple[str, int, bool]]) -> None:
    assert parse_service_url(url) == tuple(Address(*address) for address in addresses)
