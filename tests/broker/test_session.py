# SPDX-License-Identifier: Apache-2.0
"""What the broker says to each command, as a client hears it: a real process, a client without manners."""

from __future__ import annotations

import struct
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.testing.client import TIMEOUT_S, RawClient, Refused, Type, entry, frame, send
from penstock.wire.batch_counts import MEMBER_BYTES_MIN
from penstock.wire.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess

SHARED, FAILOVER = 1, 2


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


def batch(payload: bytes, messages: int) -> bytes:
    """A sealed entry that holds so many messages, by its metadata."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=messages)
    data = metadata.SerializeToString()
    return seal(struct.pack(">I", len(data)) + data + payload)


# -- handshake --------------------------------------------------------------------------------------------------------


def test_the_protocol_version_is_the_lower_of_both(broker: BrokerProcess) -> None:
    with RawClient(broker.port, connect=False) as client:
        client.write(frame(Type.CONNECT, client_version="old", protocol_version=12))
        connected = client.read().command.connected
        assert connected.protocol_version == 12
        assert connected.max_message_size == 5 * 1024 * 1024
        assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
        assert connected.feature_flags.supports_topic_watchers
        assert connected.feature_flags.supports_topic_watcher_reconcile


def test_a_first_command_that_is_not_connect_closes_the_connection(broker: BrokerProcess) -> None:
    with RawClient(broker.port, connect=False) as client:
        client.write(frame(Type.PING))
        assert client.is_closed()


def test_a_second_connect_is_answered_again(client: RawClient) -> None:
    client.write(frame(Type.CONNECT, client_version="twice", protocol_version=17))
    assert client.read().command.connected.protocol_version == 17


def test_ping_is_answered_with_pong(client: RawClient) -> None:
    client.write(frame(Type.PING))
    assert client.read().command.type == Type.PONG


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 9]
)
def test_bytes_that_are_no_frame_close_the_connection_and_nothing_else(
    broker: BrokerProcess, client: RawClient, garbage: bytes
) -> None:
    with RawClient(broker.port, connect=False) as stranger:
        stranger.write(garbage)
        assert stranger.is_closed()
    client.write(frame(Type.PING))
    assert client.read().command.type == Type.PONG


# -- lookup -----------------------------------------------------------------------------------------------------------


def test_a_lookup_names_this_broker_also_for_names_with_pattern_characters(
    broker: BrokerProcess, client: RawClient
) -> None:
    for name in ("persistent://public/default/t", "persistent://public/default/foo-.*"):
        answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=name)
        assert (answer.response, answer.authoritative) == (1, True)
        assert answer.brokerServiceUrl == broker.url
        assert answer.proxy_through_service_url, "nobody has said where clients reach this broker"


def test_a_bad_topic_name_is_refused_in_the_lookup_familys_own_way(client: RawClient) -> None:
    answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic="a/b")
    assert (answer.response, answer.error) == (2, WireCode.INVALID_TOPIC_NAME)
    answer = client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic="a/b")
    assert (answer.response, answer.error) == (1, WireCode.INVALID_TOPIC_NAME)


def test_a_topic_without_partitions_has_zero_of_them(client: RawClient, topic: str) -> None:
    answer = client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=topic)
    assert (answer.response, answer.partitions) == (0, 0)


def test_partitions_can_be_asked_for_without_creating_the_topic(client: RawClient, topic: str) -> None:
    ask = {"topic": topic, "metadata_auto_creation_enabled": False}
    answer = client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, **ask)
    assert (answer.response, answer.error) == (1, WireCode.TOPIC_NOT_FOUND)
    client.produce(topic)
    answer = client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, **ask)
    assert (answer.response, answer.partitions) == (0, 0)


# -- producers --------------------------------------------------------------------------------------------------------


def test_generated_producer_names_differ(client: RawClient, topic: str) -> None:
    assert client.produce(topic, producer_id=1) != client.produce(topic, producer_id=2)


def test_a_repeated_producer_command_is_answered_like_the_first(client: RawClient, topic: str) -> None:
    assert client.produce(topic, producer_id=7) == client.produce(topic, producer_id=7)


def test_a_producer_reconnecting_with_a_higher_epoch_replaces_itself(client: RawClient, topic: str) -> None:
    client.produce(topic, producer_id=1, producer_name="p", epoch=0)
    client.write(frame(Type.CLOSE_PRODUCER, producer_id=1, request_id=99))
    client.next(Type.SUCCESS)
    assert client.produce(topic, producer_id=1, producer_name="p", epoch=1) == "p"


def test_the_name_of_a_producer_whose_client_no_longer_answers_is_free(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as dead, RawClient(broker.port) as newcomer:
        dead.produce(topic, producer_name="p")  # and never reads again, so it answers no PING
        assert newcomer.produce(topic, producer_name="p") == "p"
        assert dead.is_closed()


def test_receipts_and_errors_come_in_the_order_of_the_sends(client: RawClient, topic: str) -> None:
    client.produce(topic)
    good, bad = entry(b"good"), bytearray(entry(b"bad"))
    bad[-1] ^= 1
    client.write(b"".join(send(0, i, bytes(bad) if i % 3 == 1 else good) for i in range(9)))
    answers = [client.next(Type.SEND_RECEIPT, Type.SEND_ERROR).command for _ in range(9)]
    sequence_ids = [
        a.send_error.sequence_id if a.type == Type.SEND_ERROR else a.send_receipt.sequence_id for a in answers
    ]
    assert sequence_ids == list(range(9))
    assert [a.type == Type.SEND_ERROR for a in answers] == [i % 3 == 1 for i in range(9)]
    assert {int(a.send_error.error) for a in answers if a.type == Type.SEND_ERROR} == {WireCode.CHECKSUM_ERROR}
    entry_ids = [a.send_receipt.message_id.entryId for a in answers if a.type == Type.SEND_RECEIPT]
    assert entry_ids == list(range(6))


def test_an_entry_of_a_client_older_than_checksums_is_stored_with_one(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.write(send(0, 0, entry(b"plain")[6:]) + send(0, 1, entry(b"sealed")))
    for _ in range(2):
        client.next(Type.SEND_RECEIPT)
    client.subscribe(topic, "s")
    assert [client.message().payload for _ in range(2)] == [b"plain", b"sealed"]


def test_interleaved_producers_each_get_their_own_receipts_in_order(client: RawClient, topic: str) -> None:
    for producer_id in range(10):
        client.produce(f"{topic}-{producer_id % 3}", producer_id=producer_id)
    client.write(b"".join(send(p, s, entry(b"%d/%d" % (p, s))) for s in range(20) for p in range(10)))
    seen: dict[int, list[int]] = {p: [] for p in range(10)}
    for _ in range(200):
        receipt = client.next(Type.SEND_RECEIPT).command.send_receipt
        seen[receipt.producer_id].append(receipt.sequence_id)
    assert all(ids == list(range(20)) for ids in seen.values())


def test_a_send_to_a_producer_closed_lately_is_swallowed(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.write(frame(Type.CLOSE_PRODUCER, producer_id=0, request_id=5) + send(0, 0, entry(b"late")))
    client.next(Type.SUCCESS)
    client.write(frame(Type.PING))
    assert client.read().command.type == Type.PONG


def test_a_send_to_a_producer_that_never_was_closes_the_connection(client: RawClient) -> None:
    client.write(send(3, 0, entry(b"lost")))
    assert client.is_closed()


def test_closing_a_producer_answers_behind_its_last_receipt(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.write(
        b"".join(send(0, i, entry(b"x")) for i in range(50)) + frame(Type.CLOSE_PRODUCER, producer_id=0, request_id=5)
    )
    kinds = [client.read().command.type for _ in range(51)]
    assert kinds == [Type.SEND_RECEIPT] * 50 + [Type.SUCCESS]


def test_the_highest_sequence_id_of_a_batch_is_echoed(client: RawClient, topic: str) -> None:
    client.produce(topic)
    stored = entry(b"batch")
    client.write(send(0, 5, stored, num_messages=4, highest_sequence_id=8))
    receipt = client.next(Type.SEND_RECEIPT).command.send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (5, 8)


# -- consumers --------------------------------------------------------------------------------------------------------


def test_no_more_messages_are_delivered_than_were_asked_for(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish(b"%d" % i for i in range(20))
    client.subscribe(topic, "s", permits=7)
    assert [client.message().payload for _ in range(7)] == [b"%d" % i for i in range(7)]
    with pytest.raises(TimeoutError):
        client.message(timeout_s=0.2)


def test_permits_are_messages_and_a_batch_may_take_them_below_zero(client: RawClient, topic: str) -> None:
    client.produce(topic)
    stored = batch(b"batch of ten", 10)
    for _ in range(3):
        client.write(send(0, 0, stored, num_messages=10))
        client.next(Type.SEND_RECEIPT)
    client.subscribe(topic, "s", permits=11)
    assert [client.message().payload for _ in range(2)] == [b"batch of ten"] * 2
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=9))  # -9 + 9 = 0
    with pytest.raises(TimeoutError):
        client.message(timeout_s=0.2)
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=1))
    assert client.message().payload == b"batch of ten"


def test_consumers_of_different_types_do_not_mix(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s", subType=SHARED)
    reading = threading.Thread(target=client.is_closed, args=(1.0,))  # so that it answers the liveness probe
    reading.start()
    with RawClient(broker.port) as other, pytest.raises(Refused) as refused:
        other.subscribe(topic, "s", subType=FAILOVER)
    reading.join()
    assert refused.value.code == WireCode.CONSUMER_BUSY


def test_a_hundred_who_want_the_place_of_a_client_send_it_one_liveness_probe(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as holder, RawClient(broker.port) as other:
        holder.subscribe(topic, "s", subType=SHARED)
        other.write(
            b"".join(
                frame(Type.SUBSCRIBE, topic=topic, subscription="s", subType=FAILOVER, consumer_id=n, request_id=n)
                for n in range(100)
            )
        )
        # Until it answers the first, no second one comes.
        holder.socket.settimeout(TIMEOUT_S)
        pinged = holder.socket.recv(1 << 16)
        with pytest.raises(TimeoutError):
            other.read(0.2)
        holder.socket.settimeout(0.01)
        with pytest.raises(TimeoutError):
            holder.socket.recv(1 << 16)
        assert pinged == frame(Type.PING)


def test_a_topic_that_may_not_be_created_is_not_found(client: RawClient, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.subscribe(topic, "s", force_topic_creation=False)
    assert refused.value.code == WireCode.TOPIC_NOT_FOUND


def test_a_repeated_subscribe_is_answered_with_success(client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s")
    client.subscribe(topic, "s")


def test_an_acknowledgement_that_asks_for_an_answer_gets_one(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish([b"x"])
    client.subscribe(topic, "s")
    client.acknowledge(client.message(), request_id=42)
    answer = client.next(Type.ACK_RESPONSE).command.ackResponse
    assert (answer.request_id, answer.HasField("error")) == (42, False)


def test_an_acknowledgement_in_an_unknown_transaction_is_refused_in_its_answer(client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s")
    client.write(frame(Type.ACK, consumer_id=0, ack_type=0, txnid_least_bits=1, txnid_most_bits=1, request_id=9))
    assert client.next(Type.ACK_RESPONSE).command.ackResponse.error == int(WireCode.TRANSACTION_NOT_FOUND)


def test_redelivery_counts_rise_with_every_redelivery(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish([b"x", b"y"])
    client.subscribe(topic, "s", subType=SHARED)
    for count in range(3):
        came = [client.message() for _ in range(2)]
        assert [c.command.message.redelivery_count for c in came] == [count, count]
        client.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0))


def test_what_a_shared_consumer_left_unacknowledged_goes_to_another(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as first, RawClient(broker.port) as second:
        first.produce(topic)
        first.publish(b"%d" % i for i in range(10))
        first.subscribe(topic, "s", subType=SHARED)
        came = [first.message() for _ in range(10)]
        first.acknowledge(came[3])
        second.subscribe(topic, "s", subType=SHARED)
        first.close()
        again = {second.message().payload for _ in range(9)}
        assert again == {b"%d" % i for i in range(10) if i != 3}


def test_an_exclusive_redelivery_carries_the_consumers_new_epoch(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish([b"x"])
    client.subscribe(topic, "s", consumer_epoch=0)
    assert client.message().command.message.consumer_epoch == 0
    client.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0, consumer_epoch=1))
    assert client.message().command.message.consumer_epoch == 1


def test_the_active_consumer_of_a_failover_pair_is_announced_to_both(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as first, RawClient(broker.port) as second:
        first.subscribe(topic, "s", subType=FAILOVER, consumer_name="a")
        assert first.next(Type.ACTIVE_CONSUMER_CHANGE).command.active_consumer_change.is_active
        second.subscribe(topic, "s", subType=FAILOVER, consumer_name="b", priority_level=1)
        assert not second.next(Type.ACTIVE_CONSUMER_CHANGE).command.active_consumer_change.is_active
        first.close()
        assert second.next(Type.ACTIVE_CONSUMER_CHANGE).command.active_consumer_change.is_active


def test_seek_closes_the_consumer_and_starts_from_the_id(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish(b"%d" % i for i in range(10))
    client.subscribe(topic, "s")
    position = [client.message().command.message.message_id for _ in range(10)][4]
    client.request(
        Type.SEEK,
        Type.SUCCESS,
        consumer_id=0,
        message_id={"ledgerId": position.ledgerId, "entryId": position.entryId},
    )
    assert client.next(Type.CLOSE_CONSUMER).command.close_consumer.request_id == 2**64 - 1
    client.subscribe(topic, "s")
    assert client.message().payload == b"4"


def test_seek_by_time_finds_the_first_entry_published_since(client: RawClient, topic: str) -> None:
    client.produce(topic)
    for i in range(10):
        client.write(send(0, i, entry(b"%d" % i, publish_time=1_000 * i)))
        client.next(Type.SEND_RECEIPT)
    client.subscribe(topic, "s", permits=0)
    client.request(Type.SEEK, Type.SUCCESS, consumer_id=0, message_publish_time=4_500)
    client.subscribe(topic, "s")
    assert client.message().payload == b"5"


def test_a_seek_to_nowhere_is_refused(client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(Refused) as refused:
        client.request(Type.SEEK, Type.SUCCESS, consumer_id=0)
    assert refused.value.code == WireCode.METADATA_ERROR


def test_unsubscribing_beside_others_needs_force(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    with RawClient(broker.port) as other:
        client.subscribe(topic, "s", subType=SHARED)
        other.subscribe(topic, "s", subType=SHARED)
        with pytest.raises(Refused) as refused:
            client.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=0)
        assert refused.value.code == WireCode.CONSUMER_BUSY
        client.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=0, force=True)
        assert other.next(Type.CLOSE_CONSUMER).command.close_consumer.consumer_id == 0


def test_the_last_message_id_of_an_empty_topic_is_minus_one(client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s")
    answer = client.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=0)
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (2**64 - 1, 2**64 - 1)


def test_the_last_message_id_moves_with_the_topic(client: RawClient, topic: str) -> None:
    client.subscribe(topic, "s")
    client.produce(topic)
    ids = client.publish([b"a", b"b"])
    answer = client.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=0)
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (ids[-1], -1)


def test_consumer_stats_are_answered_from_live_counters(client: RawClient, topic: str) -> None:
    client.produce(topic)
    client.publish(b"%d" % i for i in range(5))
    client.subscribe(topic, "s", subType=SHARED, permits=3, consumer_name="c")
    for _ in range(3):
        client.message()
    stats = client.request(Type.CONSUMER_STATS, Type.CONSUMER_STATS_RESPONSE, consumer_id=0)
    assert (stats.consumerName, stats.type, stats.availablePermits) == ("c", "Shared", 0)
    assert (stats.unackedMessages, stats.msgBacklog) == (3, 5)


def test_a_shared_consumer_stops_at_its_bound_of_unacknowledged_messages(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.port) as client:
        client.produce(topic)
        many = bytes(50_000 * MEMBER_BYTES_MIN)
        stored = batch(many, 50_000)
        for _ in range(2):
            client.write(send(0, 0, stored, num_messages=50_000))
            client.next(Type.SEND_RECEIPT)
        client.subscribe(topic, "s", subType=SHARED, permits=200_000)
        came = client.message()
        with pytest.raises(TimeoutError):
            client.message(timeout_s=0.2)
        client.acknowledge(came)
        assert client.message().payload == many
