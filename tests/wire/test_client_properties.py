# SPDX-License-Identifier: Apache-2.0
"""Both halves of the protocol understand one another, however their bytes are cut; and wrong bytes never hang."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.core.position import Position
from penstock.core.units import MIB
from penstock.wire import codec, deliveries, sends
from penstock.wire.client import entries, events
from penstock.wire.client.connection import ClientConnection
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.producer import Producer
from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.errors import ProtocolError
from tests.wire.frames import Feeder, entry_body
from tests.wire.strategies import EDGES

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

TOPIC = "persistent://public/default/t"
WELCOME = codec.connected("Pulsar Server", 21, MIB)
SHARED = codec.CommandSubscribe.Shared

uint63s = st.one_of(st.sampled_from([edge for edge in EDGES if edge < 1 << 63]), st.integers(0, 40_000))
payloads = st.binary(max_size=40)
texts = st.text(max_size=10)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces."""
    stops = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[begin:stop] for begin, stop in pairwise(stops)]


places = st.lists(st.integers(0, 1 << 16), max_size=30)


# -- what a client says ----------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), payloads),
        st.tuples(st.just("batch"), st.lists(payloads, min_size=1, max_size=5)),
        st.tuples(st.just("ack"), st.lists(st.builds(Position, uint63s, uint63s), min_size=1, max_size=5)),
        st.tuples(st.just("flow"), st.integers(1, 1000)),
        st.tuples(st.just("lookup"), texts),
        st.tuples(st.just("schema"), texts),
        st.tuples(st.just("last"), st.none()),
    ),
    max_size=12,
)


def say(client: ClientConnection, producer: Producer, consumer: Consumer, kind: str, value: Any) -> None:  # noqa: ANN401
    """Give one command."""
    if kind == "send":
        client.send(producer, producer.metadata(1), value)
    elif kind == "batch":
        about = producer.metadata(1)
        about.num_messages_in_batch = len(value)
        payload = entries.batch([(SingleMessageMetadata(), body) for body in value])
        client.send(producer, about, payload, messages=len(value))
    elif kind == "ack":
        client.acknowledge(consumer, value)
    elif kind == "flow":
        client.flow(consumer, value)
    elif kind == "lookup":
        client.request(codec.CommandLookupTopic(topic=value, request_id=0, authoritative=False))
    elif kind == "schema":
        client.request(codec.CommandGetSchema(topic=value, request_id=0))
    else:
        client.request(codec.CommandGetLastMessageId(consumer_id=3, request_id=0))


@given(said=steps, places=places)
def test_a_broker_hears_what_a_client_says_however_it_is_cut(said: list[tuple[str, Any]], places: list[int]) -> None:
    client, producer = ClientConnection(), Producer(7, TOPIC)
    consumer = Consumer(
        codec.CommandSubscribe(topic=TOPIC, subscription="s", subType=SHARED, consumer_id=3, request_id=0)
    )
    for kind, value in said:
        say(client, producer, consumer, kind, value)
    data = b"".join(client.data_to_send())
    whole, pieces = Feeder(connected=False), Feeder(connected=False)
    whole.feed(data)
    for piece in cut(data, places):
        pieces.feed(piece)
    assert pieces.heard.rows == whole.heard.rows
    assert whole.reader.held_bytes == 0
    sent = [row for row in whole.heard.rows if len(row) == 9]  # as `rows_of` has them
    acknowledged = [row for row in whole.heard.rows if len(row) == 8]
    counts = [1 if kind == "send" else len(value) for kind, value in said if kind in {"send", "batch"}]
    assert [row[3] for row in sent] == counts
    assert [row[1] for row in sent] == [sum(counts[:row]) for row in range(len(counts))]
    assert not any(row[5] or row[6] for row in sent)  # sealed, and sound
    positions = [one for kind, value in said if kind == "ack" for one in value]
    assert [row[5:7] for row in acknowledged] == positions


# -- what a broker says ----------------------------------------------------------------------------------------------


@st.composite
def spoken(draw: st.DrawFn) -> tuple[bytes, Any]:
    """A frame of the broker's, and the event that it makes of a client with consumer 3 and nothing else."""
    kind = draw(st.sampled_from(["messages", "receipts", "failed", "closed", "active", "end", "ping"]))
    ids = st.integers(0, 1 << 14)
    if kind == "messages":
        stored, count = seal(entry_body(draw(payloads))), draw(st.integers(1, 5))
        ledger_id, first = draw(uint63s), draw(ids)
        out: list[Buffer] = []
        rows = list(range(first, first + count))
        deliveries.encode_messages(out, 3, ledger_id, -1, rows, stored, [0] * count, [len(stored)] * count)
        return b"".join(out), [("message", Position(ledger_id, row), stored) for row in rows]
    if kind == "receipts":
        receipts: list[bytes] = []
        sends.encode_receipts(receipts, 5, 1, 0, [draw(uint63s)], None)
        return b"".join(receipts), []  # of a producer that is closed
    if kind == "failed":
        return codec.send_error(5, draw(uint63s), 9, draw(texts)), ["SendFailed"]
    if kind == "closed":
        return codec.close_producer(draw(uint63s), -1), ["ProducerClosed"]
    if kind == "active":
        return codec.active_consumer_change(draw(uint63s), is_active=draw(st.booleans())), ["ActiveConsumerChanged"]
    if kind == "end":
        return codec.reached_end_of_topic(draw(uint63s)), ["EndOfTopic"]
    return codec.ping(), []


def consuming() -> ClientConnection:
    client = ClientConnection()
    body = codec.CommandSubscribe(topic=TOPIC, subscription="s", subType=SHARED, consumer_id=3, request_id=0)
    client.receive_data(WELCOME + codec.success(client.subscribe(Consumer(body, permits_max=10))))
    assert isinstance(client.next_event(), events.Connected)
    assert isinstance(client.next_event(), events.Answered)
    return client


def heard(client: ClientConnection) -> list[Any]:
    """All events, as `spoken` names them."""
    found: list[Any] = []
    while (event := client.next_event()) is not None:
        if isinstance(event, events.Message):
            found.append(("message", event.position, event.entry))
        else:
            found.append(type(event).__name__)
    return found


@given(said=st.lists(spoken(), max_size=12), places=places)
def test_a_client_hears_what_a_broker_says_however_it_is_cut(said: list[tuple[bytes, Any]], places: list[int]) -> None:
    client, found = consuming(), []
    for piece in cut(b"".join(data for data, _ in said), places):
        client.receive_data(piece)
        found += heard(client)
    assert found == [event for _, names in said for event in names]
    assert client.inbound.held_bytes == 0


@given(data=st.binary(max_size=200), handshake=st.booleans())
def test_any_bytes_are_events_or_an_error_or_not_enough(data: bytes, handshake: bool) -> None:
    client = consuming() if handshake else ClientConnection()
    try:
        client.receive_data(data)
        heard(client)
    except ProtocolError:
        return
    assert client.inbound.held_bytes <= len(data)


@given(said=spoken(), place=st.integers(0, 1 << 10), byte=st.integers(0, 255))
def test_one_wrong_byte_is_an_event_or_an_error_or_not_enough(said: tuple[bytes, Any], place: int, byte: int) -> None:
    data = bytearray(said[0])
    data[place % len(data)] = byte
    client = consuming()
    try:
        client.receive_data(bytes(data))
        heard(client)
    except ProtocolError:
        return
    assert client.inbound.held_bytes <= len(data)


@given(command=st.binary(max_size=60), entry=st.binary(max_size=60), handshake=st.booleans())
def test_any_command_in_a_sound_frame_is_an_event_or_an_error(command: bytes, entry: bytes, handshake: bool) -> None:
    client = consuming() if handshake else ClientConnection()
    client.receive_data(struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry)
    try:
        heard(client)
    except ProtocolError:
        return
    assert client.inbound.held_bytes == 0
