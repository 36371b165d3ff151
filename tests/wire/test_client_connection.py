# SPDX-License-Identifier: Apache-2.0
"""A client's end of the protocol: what it says, what it hears, and what it does not put up with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.core.position import Position
from penstock.core.units import KIB, MIB
from penstock.wire import batches, codec, deliveries, sends
from penstock.wire.client import entries, events
from penstock.wire.client.connection import KEEP_ALIVE_NS, UINT64_MAX, ClientConnection, Hello, frame
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import BrokerSilent
from penstock.wire.client.frames import FRAME_BYTES_MAX, Inbound
from penstock.wire.client.producer import Producer
from penstock.wire.codec import BaseCommand as Type
from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.errors import ProtocolError
from penstock.wire.events import AckRun, Command, Flow
from tests.wire.frames import Feeder, entry_body
from tests.wire.frames import frame as frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.checksum import Buffer
    from penstock.wire.client.events import Event

TOPIC = "persistent://public/default/t"
WELCOME = codec.connected("Pulsar Server", 21, MIB, topic_watchers=True)


class Both:
    """A client, and the broker's half of the codec, with nothing between them."""

    def __init__(self, hello: Hello | None = None, credentials: Callable[[bytes], bytes] | None = None) -> None:
        self.client = ClientConnection(hello, credentials=credentials) if credentials else ClientConnection(hello)
        self._feeder = Feeder(connected=False)

    @classmethod
    def connected(cls) -> Both:
        both = cls()
        both.heard()
        assert isinstance(both.says(WELCOME)[0], events.Connected)
        return both

    def heard(self) -> list[Any]:
        """What the broker hears now."""
        seen = len(self._feeder.heard.events)
        self._feeder.feed(b"".join(self.client.data_to_send()))
        return self._feeder.heard.events[seen:]

    def says(self, *data: Buffer) -> list[Event]:
        """What the client makes of what the broker says."""
        for part in data:
            self.client.receive_data(part)
        found = []
        while (event := self.client.next_event()) is not None:
            found.append(event)
        return found

    def producing(self, **given: Any) -> Producer:  # noqa: ANN401
        producer = Producer(7, TOPIC, **given)
        request_id = self.client.open_producer(producer)
        self.heard()
        (answered,) = self.says(codec.producer_success(request_id, "p-1", last_sequence_id=-1))
        assert isinstance(answered, events.Answered)
        return producer

    def consuming(self, permits: int, **given: Any) -> Consumer:  # noqa: ANN401
        body = codec.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=codec.CommandSubscribe.Shared, consumer_id=3, request_id=0, **given
        )
        consumer = Consumer(body, permits_max=permits)
        self.says(codec.success(self.client.subscribe(consumer)))
        return consumer


def message(entry_id: int, *, stored: bytes | None = None, **given: Any) -> bytes:  # noqa: ANN401
    """A MESSAGE for consumer 3."""
    stored = stored or seal(entry_body())
    out: list[Buffer] = []
    deliveries.encode_messages(out, 3, 1, -1, [entry_id], stored, [0], [len(stored)], **given)
    return b"".join(out)


# -- the handshake ---------------------------------------------------------------------------------------------------


def test_the_first_command_says_who_the_client_is_and_for_whom_it_speaks() -> None:
    hello = Hello(
        client_version="v",
        auth_method="token",
        proxy_to_broker_url="broker:6650",
        original_principal="ann",
        original_auth_data="shown",
        original_auth_method="basic",
        proxy_version="p",
    )
    (connect,) = Both(hello, lambda challenge: b"secret" if not challenge else b"").heard()
    said = connect.body
    assert (said.client_version, said.auth_method_name, said.auth_data) == ("v", "token", b"secret")
    assert said.proxy_to_broker_url == "broker:6650"
    assert (said.original_principal, said.original_auth_data, said.original_auth_method) == ("ann", "shown", "basic")
    assert said.feature_flags.supports_auth_refresh
    assert not said.feature_flags.supports_topic_watchers
    assert "shown" not in repr(hello)


def test_the_broker_says_what_it_can_do_and_takes() -> None:
    (connected,) = Both().says(WELCOME)
    assert isinstance(connected, events.Connected)
    assert (connected.protocol_version, connected.message_bytes_max) == (21, MIB)
    assert connected.features.supports_topic_watchers


def test_a_challenge_is_answered_with_what_the_callback_says_to_it() -> None:
    both = Both(Hello(auth_method="sasl"), lambda challenge: b"<" + challenge + b">")
    both.heard()
    assert both.says(codec.auth_challenge("b", 21, "sasl", b"once"), WELCOME)
    assert both.says(codec.auth_challenge("b", 21, "sasl", b"again")) == []
    first, second = both.heard()
    assert first.body.response.auth_method_name == "sasl"
    assert (first.body.response.auth_data, second.body.response.auth_data) == (b"<once>", b"<again>")


def test_who_is_not_let_in_hears_why() -> None:
    (refused,) = Both().says(codec.error(UINT64_MAX, WireCode.AUTHENTICATION_ERROR, "Failed to authenticate"))
    assert isinstance(refused, events.ConnectionRefused)
    assert refused.error.code is WireCode.AUTHENTICATION_ERROR
    assert not refused.error.retriable


@pytest.mark.parametrize(
    "early",
    [codec.success(1), message(0), codec.close_consumer(1, -1), frame(Type.PONG), frame(Type.SUCCESS, request_id=0)],
)
def test_nothing_else_comes_before_the_handshake_is_over(early: bytes) -> None:
    with pytest.raises(ProtocolError, match="CONNECTED was due"):
        Both().says(early)


def test_connected_comes_once() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        Both.connected().says(WELCOME)


# -- requests --------------------------------------------------------------------------------------------------------


def test_answers_find_their_requests_in_any_order() -> None:
    both = Both.connected()
    lookup = both.client.request(codec.CommandLookupTopic(topic=TOPIC, request_id=0, authoritative=False))
    parts = both.client.request(codec.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0))
    assert [command.body.request_id for command in both.heard()] == [lookup, parts]
    second, first = both.says(codec.partitioned_metadata(parts, 4), codec.lookup_connect(lookup, "pulsar://b", None))
    assert isinstance(first, events.Answered)
    assert isinstance(second, events.Answered)
    assert (first.request_id, first.body.brokerServiceUrl) == (lookup, "pulsar://b")
    assert (second.request_id, second.body.partitions) == (parts, 4)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (codec.CommandLookupTopic(topic=TOPIC, request_id=0, authoritative=False), codec.lookup_failed),
        (codec.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0), codec.partitioned_metadata_failed),
        (codec.CommandGetSchema(topic=TOPIC, request_id=0), codec.get_schema_failed),
        (codec.CommandConsumerStats(consumer_id=0, request_id=0), codec.consumer_stats_failed),
        (codec.CommandCloseProducer(producer_id=0, request_id=0), codec.error),
    ],
)
@pytest.mark.parametrize("code", [WireCode.SERVICE_NOT_READY, WireCode.NOT_ALLOWED_ERROR])
def test_a_refusal_has_a_code_the_brokers_words_and_whether_to_try_again(
    body: Any,  # noqa: ANN401
    answer: Callable[[int, int, str], bytes],
    code: WireCode,
) -> None:
    both = Both.connected()
    request_id = both.client.request(body, "doing this")
    (failed,) = both.says(answer(request_id, code, "because"))
    assert isinstance(failed, events.RequestFailed)
    assert (failed.request_id, failed.error.code, failed.error.said) == (request_id, code, "because")
    assert failed.error.retriable == (code is WireCode.SERVICE_NOT_READY)
    assert "doing this" in str(failed.error)


def test_the_late_answer_to_a_request_that_was_given_up_is_passed_over() -> None:
    both = Both.connected()
    both.client.forget_request(
        request_id := both.client.request(codec.CommandCloseProducer(producer_id=0, request_id=0))
    )
    assert both.says(codec.success(request_id)) == []


def test_an_answer_to_a_request_that_was_never_made_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="request 5"):
        Both.connected().says(codec.success(5))


def test_an_answer_of_another_kind_breaks_the_protocol() -> None:
    both = Both.connected()
    request_id = both.client.request(codec.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0))
    with pytest.raises(ProtocolError, match="answer of type"):
        both.says(codec.success(request_id))


def test_a_command_that_no_client_is_sent_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="FLOW"):
        Both.connected().says(frame(Type.FLOW, consumer_id=0, messagePermits=1))


def test_a_command_of_a_newer_broker_is_passed_over() -> None:
    assert Both.connected().says(b"\0\0\0\x07\0\0\0\x03\x08\xe7\x07") == []


# -- producers -------------------------------------------------------------------------------------------------------


def test_entries_are_what_the_broker_takes_singly_and_in_batches() -> None:
    both = Both.connected()
    producer = both.producing()
    both.client.send(producer, producer.metadata(1), b"single")
    about = producer.metadata(2)
    about.num_messages_in_batch = 3
    payload = entries.batch([(SingleMessageMetadata(), b"%d" % row) for row in range(3)])
    both.client.send(producer, about, payload, messages=3)
    (run,) = both.heard()
    assert (run.producer_ids, run.sequence_ids, run.highest) == ([7, 7], [0, 1], [0, 3])
    assert run.message_counts == [1, 3]
    assert not run.corrupt
    assert not run.unsealed
    assert producer.next_sequence_id == 4
    assert [one.message_bytes for one in batches.single_messages(payload, 3)] == [1, 1, 1]


def test_a_receipt_says_where_the_entry_is_and_ends_its_wait() -> None:
    both = Both.connected()
    producer = both.producing()
    for payload in (b"a", b"bcd"):
        both.client.send(producer, producer.metadata(1), payload)
    out: list[bytes] = []
    sends.encode_receipts(out, 7, 12, 34, [0], None)
    assert both.says(*out) == [events.Receipt(7, 0, Position(12, 34))]
    assert ([one.sequence_id for one in producer.pending], producer.pending_bytes) == ([1], 3)
    assert both.says(*out) == []  # of one that was sent twice
    assert both.says(codec.duplicate_receipt(7, 1, None)) == [events.Receipt(7, 1, Position(-1, -1))]


def test_receipts_taken_together_end_the_waits_up_to_the_first_other_frame() -> None:
    both = Both.connected()
    producer = both.producing()
    for _ in range(4):
        both.client.send(producer, producer.metadata(1), b"x")
    out: list[bytes] = []
    sends.encode_receipts(out, 7, 12, 34, [0, 1], None)
    twice, elsewhere = codec.duplicate_receipt(7, 1, None), codec.duplicate_receipt(8, 99, None)
    other, later = codec.close_producer(9, 1), codec.duplicate_receipt(7, 2, None)
    both.client.receive_data(b"".join((*out, twice, elsewhere, other, later, codec.duplicate_receipt(7, 3, None)[:-1])))
    assert both.client.take_receipts() == 2
    assert [one.sequence_id for one in producer.pending] == [2, 3]
    assert isinstance(both.client.next_event(), events.ProducerClosed)
    assert both.client.take_receipts() == 1
    assert both.client.next_event() is None
    assert [one.sequence_id for one in producer.pending] == [3]


def test_a_receipt_that_turns_out_to_be_something_else_is_left_as_an_event() -> None:
    both = Both.connected()
    producer = both.producing()
    receipt, refused = codec.duplicate_receipt(7, 0, None)[8:], codec.send_error(7, 0, WireCode.UNKNOWN_ERROR, "no")[8:]
    both.client.send(producer, producer.metadata(1), b"x")
    both.client.receive_data(frame_of(receipt + refused))
    assert both.client.take_receipts() == 0
    assert isinstance(both.client.next_event(), events.SendFailed)
    assert len(producer.pending) == 1


def test_receipts_out_of_order_break_the_protocol() -> None:
    both = Both.connected()
    producer = both.producing()
    for _ in range(2):
        both.client.send(producer, producer.metadata(1), b"")
    with pytest.raises(ProtocolError, match="a receipt for 1 where 0"):
        both.says(codec.duplicate_receipt(7, 1, None))


def test_what_was_not_answered_is_sent_again_on_the_next_connection_but_for_what_is_stored() -> None:
    both = Both.connected()
    producer = both.producing(name="mine")
    for _ in range(3):
        both.client.send(producer, producer.metadata(1), b"x")
    (sent,) = both.heard()
    again = Both.connected()
    request_id = again.client.open_producer(producer)
    (opening,) = again.heard()
    assert (opening.body.producer_name, opening.body.epoch, opening.body.user_provided_producer_name) == (
        "p-1",
        1,
        True,
    )
    again.says(codec.producer_success(request_id, "p-1", last_sequence_id=0))
    (run,) = again.heard()
    assert run.sequence_ids == [1, 2]
    assert run.data == sent.data[len(sent.data) // 3 :]
    assert producer.next_sequence_id == 3


def test_a_producer_that_waits_for_its_turn_is_open_when_that_has_come() -> None:
    both = Both.connected()
    producer = Producer(7, TOPIC, access_mode=2)
    request_id = both.client.open_producer(producer)
    (opening,) = both.heard()
    assert opening.body.producer_access_mode == 2
    assert both.says(codec.producer_success(request_id, "p", ready=False)) == []
    assert both.says(codec.producer_success(request_id, "p", topic_epoch=4))
    assert producer.topic_epoch == 4


def test_an_entry_that_is_refused_stays_pending() -> None:
    both = Both.connected()
    producer = both.producing()
    both.client.send(producer, producer.metadata(1), b"x")
    (failed,) = both.says(codec.send_error(7, 0, WireCode.PERSISTENCE_ERROR, "the disk"))
    assert isinstance(failed, events.SendFailed)
    assert (failed.sequence_id, failed.error.said, failed.error.retriable) == (0, "the disk", True)
    assert TOPIC in str(failed.error)
    assert len(producer.pending) == 1


def test_a_producer_that_the_broker_closed_hears_nothing_more() -> None:
    both = Both.connected()
    producer = both.producing()
    both.client.send(producer, producer.metadata(1), b"x")
    closed = frame(Type.CLOSE_PRODUCER, producer_id=7, request_id=UINT64_MAX, assignedBrokerServiceUrl="pulsar://other")
    assert both.says(closed) == [events.ProducerClosed(7, "pulsar://other")]
    assert both.says(codec.duplicate_receipt(7, 0, None)) == []
    assert len(producer.pending) == 1


# -- consumers -------------------------------------------------------------------------------------------------------


def test_permits_are_granted_with_the_subscription_and_refilled_at_half() -> None:
    both = Both.connected()
    consumer = both.consuming(10)
    assert both.heard()[1:] == [Flow(3, 10)]
    both.says(*(message(row) for row in range(5)))
    assert both.heard() == []
    both.says(message(5))
    assert both.heard() == [Flow(3, 6)]
    assert consumer.permits == 10


def test_permits_count_messages_and_those_that_are_still_wanted_only() -> None:
    both = Both.connected()
    consumer = both.consuming(100)
    both.heard()
    batch = seal(entry_body(num_messages_in_batch=8))
    both.says(message(0, stored=batch), message(1, stored=batch, ack_sets=[[0b101]]))
    assert consumer.permits == 90


def test_a_consumer_without_a_window_grants_nothing_by_itself() -> None:
    both = Both.connected()
    consumer = both.consuming(0)
    both.heard()
    both.client.flow(consumer, 2)
    assert both.heard() == [Flow(3, 2)]
    assert len(both.says(message(0), message(1))) == 2
    assert both.heard() == []


def test_a_message_says_where_it_is_how_often_it_came_and_what_it_holds() -> None:
    both = Both.connected()
    both.consuming(10)
    (came,) = both.says(message(5, redeliveries=[2], ack_sets=[[-1]]))
    assert isinstance(came, events.Message)
    assert (came.consumer_id, came.position, came.body.redelivery_count) == (3, Position(1, 5), 2)
    assert list(came.body.ack_set) == [-1]
    assert (came.is_whole, bytes(came.payload), came.metadata().producer_name) == (True, b"payload", "p")


def test_whoever_takes_messages_from_the_buffer_hears_what_stands_before_them() -> None:
    both = Both.connected()
    both.consuming(10)
    both.client.receive_data(codec.ping() + message(0) + codec.close_consumer(3, -1))
    assert both.client.next_event(before_messages=True) is None
    assert both.heard()[-1].type == Type.PONG
    frame = both.client.inbound.take_frame()
    assert frame is not None
    assert (frame.kind, frame.payload) == (Type.MESSAGE, b"payload")
    assert both.client.next_event(before_messages=True) == events.ConsumerClosed(3)


def test_what_the_broker_puts_before_an_entry_is_taken_off() -> None:
    stored = seal(entry_body())
    both = Both.connected()
    both.consuming(10)
    (came,) = both.says(message(0, stored=b"\x0e\x02\0\0\0\x02\x08\x01" + stored))
    assert isinstance(came, events.Message)
    assert came.entry == stored


def test_a_message_that_is_damaged_says_so() -> None:
    both = Both.connected()
    both.consuming(10)
    (came,) = both.says(message(0, stored=seal(entry_body())[:-1] + b"!"))
    assert isinstance(came, events.Message)
    assert not came.is_whole


def test_an_entry_that_nobody_sealed_is_whole() -> None:
    both = Both.connected()
    both.consuming(10)
    (came,) = both.says(message(0, stored=entry_body()))
    assert isinstance(came, events.Message)
    assert (came.is_whole, bytes(came.payload)) == (True, b"payload")


@pytest.mark.parametrize(
    "stored", [b"\x0e\x02", b"\x0e\x02\0\0\1\0", b"\x0e\x01", b"\x0e\x01\0\0\0\0\0\0\0\x09", b"\1"]
)
def test_a_message_without_a_whole_entry_breaks_the_protocol(stored: bytes) -> None:
    both = Both.connected()
    both.consuming(10)
    with pytest.raises(ProtocolError):
        both.says(message(0, stored=stored))


def test_acknowledgements_are_what_the_broker_hears() -> None:
    both = Both.connected()
    consumer = both.consuming(0)
    both.heard()
    both.client.acknowledge(consumer, [Position(1, 2), Position(1, 4)])
    both.client.acknowledge(consumer, [Position(1, 9)], cumulative=True)
    both.client.acknowledge(consumer, [Position(1, 10)], ack_set=[-2])
    request_id = both.client.acknowledge(consumer, [Position(2, 0)], wait=True)
    assert both.heard() == [
        AckRun(3, False, [1, 1], [2, 4]),
        AckRun(3, True, [1], [9]),
        AckRun(3, False, [1], [10], ack_sets={0: [-2]}),
        AckRun(3, False, [2], [0], request_id=request_id),
    ]
    assert request_id is not None
    (answered,) = both.says(codec.ack_response(3, request_id))
    assert isinstance(answered, events.Answered)


def test_an_acknowledgement_may_be_refused() -> None:
    both = Both.connected()
    request_id = both.client.acknowledge(both.consuming(0), [Position(2, 0)], wait=True, what="moving it")
    assert request_id is not None
    (failed,) = both.says(codec.ack_response(3, request_id, error=WireCode.METADATA_ERROR, message="no"))
    assert isinstance(failed, events.RequestFailed)
    assert "moving it" in str(failed.error)


def test_some_are_asked_for_again_or_all() -> None:
    both = Both.connected()
    consumer = both.consuming(0, consumer_epoch=0)
    both.heard()
    both.client.redeliver(consumer, [Position(1, 2)])
    both.client.redeliver_all(consumer)
    some, everything = (command.body for command in both.heard())
    assert [(one.ledgerId, one.entryId) for one in some.message_ids] == [(1, 2)]
    assert (list(everything.message_ids), everything.consumer_epoch) == ([], 1)
    assert both.says(message(3, consumer_epoch=0)) == []
    assert len(both.says(message(3, consumer_epoch=1))) == 1


def test_messages_for_a_consumer_that_is_closed_are_dropped() -> None:
    both = Both.connected()
    consumer = both.consuming(10)
    assert len(both.says(message(0))) == 1
    assert both.says(codec.close_consumer(3, -1), message(0)) == [events.ConsumerClosed(3)]
    both.says(codec.success(both.client.subscribe(consumer)))
    assert both.heard()[-1] == Flow(3, 10)
    request_id = both.client.close_consumer(consumer)
    assert both.says(message(1), codec.success(request_id)) == [events.Answered(request_id, _success(request_id))]


def _success(request_id: int) -> Any:  # noqa: ANN401
    return codec.body_in(codec.decode_command(codec.success(request_id)[8:]))


def test_other_news_of_consumers_and_watchers_are_events() -> None:
    both = Both.connected()
    update = frame(Type.WATCH_TOPIC_UPDATE, watcher_id=2, new_topics=["a"], deleted_topics=["b", "c"], topics_hash="01")
    migrated = frame(Type.TOPIC_MIGRATED, resource_id=3, resource_type=1, brokerServiceUrl="pulsar://blue")
    assert both.says(
        codec.active_consumer_change(3, is_active=True), codec.reached_end_of_topic(3), update, migrated
    ) == [
        events.ActiveConsumerChanged(3, is_active=True),
        events.EndOfTopic(3),
        events.TopicListChanged(2, ["a"], ["b", "c"], "01"),
        events.TopicMigrated(is_producer=False, member_id=3, url="pulsar://blue", url_tls=""),
    ]


# -- time and bounds -------------------------------------------------------------------------------------------------


def test_a_ping_is_answered_and_makes_no_event() -> None:
    both = Both.connected()
    assert both.says(codec.ping()) == []
    (heard,) = both.heard()
    assert isinstance(heard, Command)
    assert heard.type == Type.PONG


def test_a_broker_is_asked_whether_it_lives_before_it_is_given_up() -> None:
    both = Both.connected()
    start = 1_000
    assert both.client.keep_alive(start) == start + KEEP_ALIVE_NS
    assert both.heard() == []
    asked = start + KEEP_ALIVE_NS
    assert both.client.keep_alive(asked) == asked + KEEP_ALIVE_NS
    (ping,) = both.heard()
    assert ping.type == Type.PING
    both.says(codec.pong())
    heard = asked + KEEP_ALIVE_NS
    assert both.client.keep_alive(heard) == heard + KEEP_ALIVE_NS
    both.client.keep_alive(heard + KEEP_ALIVE_NS)
    with pytest.raises(BrokerSilent):
        both.client.keep_alive(heard + 2 * KEEP_ALIVE_NS)


def test_a_frame_may_be_as_large_as_the_broker_says_and_no_larger() -> None:
    both = Both()
    with pytest.raises(ProtocolError, match=str(FRAME_BYTES_MAX + 1)):
        both.says((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    both = Both()
    both.says(codec.connected("b", 21, 20 * MIB))
    both.says((20 * MIB + 10 * KIB).to_bytes(4, "big"))
    both = Both()
    both.says(codec.connected("b", 21, 20 * MIB))
    with pytest.raises(ProtocolError):
        both.says((20 * MIB + 10 * KIB + 1).to_bytes(4, "big"))


def test_a_broker_of_small_messages_may_still_have_large_ones() -> None:
    both = Both()
    both.says(codec.connected("b", 21, 1024))
    both.says(FRAME_BYTES_MAX.to_bytes(4, "big"))


def test_a_command_longer_than_its_frame_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="longer than its frame"):
        Both().says(b"\0\0\0\x06\0\0\0\x03\x08\x12")


@pytest.mark.parametrize("announced", [0, -1, 2**31 - 1])
def test_a_broker_that_announces_messages_that_cannot_be_breaks_the_protocol(announced: int) -> None:
    with pytest.raises(ProtocolError, match="largest message"):
        Both().says(codec.connected("b", 21, announced))


def test_the_buffer_grows_with_what_comes_and_no_further() -> None:
    inbound = Inbound(buffer_bytes=64 * KIB)
    small = len(inbound.data)
    inbound.add(codec.ping() * 100)
    while inbound.take():
        pass
    assert len(inbound.data) == small
    inbound.add(frame(Type.ERROR, request_id=1, error=0, message="x" * MIB))
    assert inbound.take_frame() is not None
    assert len(inbound.data) < 2 * MIB


def test_a_read_that_fills_the_buffer_makes_it_larger() -> None:
    inbound = Inbound(buffer_bytes=64 * KIB)
    with inbound.room() as room:
        size = len(room)
        room[:] = (codec.ping() * size)[:size]
    inbound.filled(size)
    while inbound.take():
        pass
    with inbound.room() as room:
        assert len(room) > 60 * KIB


@pytest.mark.parametrize("at_once", [1, 1_000, 20_000])
def test_frames_that_nobody_takes_are_kept_however_many_there_are(at_once: int) -> None:
    inbound, count = Inbound(buffer_bytes=16 * KIB), 20_000
    for _ in range(count // at_once):
        inbound.add(codec.ping() * at_once)
    assert inbound.held_bytes == count * len(codec.ping())
    assert sum(inbound.take() is not None for _ in range(count)) == count
    assert inbound.held_bytes == 0
