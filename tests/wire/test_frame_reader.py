# SPDX-License-Identifier: Apache-2.0
"""Cutting a stream into frames: the same events for every cut, exact accounts, and clean refusals."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.core.transaction_id import TransactionId
from penstock.wire import codec
from penstock.wire.events import AckRun, Command, Flow, PublishRun, UnknownCommand
from penstock.wire.frame_reader import LARGE_FRAME_BYTES, FrameReader, ProtocolError
from tests.wire.frames import Feeder, command_frame, connect, entry_body, frame, hear, inside, send, varint
from tests.wire.strategies import Sent, large_sends, other_frames, sends, steady_sends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.wire.events import Event

# A LOOKUP whose topic and request id are right, and whose first property has the key ff.
PROPERTY_WITHOUT_TEXT = inside(1, b"t") + b"\x10\x01" + inside(8, inside(1, b"\xff") + inside(2, b""))

streams = st.lists(st.one_of(sends, sends, large_sends, other_frames), max_size=12)


def _frame_of(part: Sent | bytes) -> bytes:
    return part.data if isinstance(part, Sent) else part


def _cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in pairwise(places)]


@given(parts=streams, cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_events_do_not_depend_on_how_the_bytes_were_cut(parts: list[Sent | bytes], cuts: list[int]) -> None:
    frames = [_frame_of(part) for part in parts]
    assert hear(_cut(b"".join(frames), cuts)) == hear(frames)


@given(parts=streams, cuts=st.lists(st.integers(0, 1 << 20), max_size=8), commands_max=st.integers(1, 3))
def test_events_do_not_depend_on_how_many_are_asked_for_at_a_time(
    parts: list[Sent | bytes], cuts: list[int], commands_max: int
) -> None:
    frames = [_frame_of(part) for part in parts]
    feeder = Feeder(commands_max=commands_max)
    for chunk in _cut(b"".join(frames), cuts):
        feeder.feed(chunk)
    assert feeder.heard.rows == hear(frames)
    assert feeder.reader.held_bytes == feeder.reader.missing_bytes == 0


def _read(reader: FrameReader, arena: memoryview, data: bytes, **wanted: int) -> list[Event]:
    (buffer,) = reader.buffers(arena)
    buffer[: len(data)] = data
    return reader.received(arena, len(data), **wanted)


def test_commands_that_nobody_asked_for_stay_bytes_and_are_counted() -> None:
    reader, arena = Feeder().reader, memoryview(bytearray(80 * 1024))
    lookup = command_frame(codec.BaseCommand.LOOKUP, codec.CommandLookupTopic(topic="t", request_id=1))
    flow = command_frame(codec.BaseCommand.FLOW, codec.CommandFlow(consumer_id=1, messagePermits=2))

    events = _read(reader, arena, flow + send(1, 5) + lookup * 3 + send(1, 6) + lookup[:5], commands_max=0)

    assert [type(event) for event in events] == [Flow, PublishRun]
    assert reader.whole
    assert (reader.held_bytes, reader.missing_bytes) == (len(lookup * 3 + send(1, 6) + lookup[:5]), 0)
    assert [type(event) for event in reader.more(commands_max=2)] == [Command, Command]
    assert [type(event) for event in reader.more(commands_max=2)] == [Command, PublishRun]
    assert not reader.whole
    assert (reader.held_bytes, reader.missing_bytes) == (5, len(lookup) - 5)
    assert reader.more() == []


def test_a_ping_is_decoded_though_no_command_is_asked_for() -> None:
    reader, arena = Feeder().reader, memoryview(bytearray(80 * 1024))
    ping = command_frame(codec.BaseCommand.PING, codec.BaseCommand().ping)
    pong = command_frame(codec.BaseCommand.PONG, codec.BaseCommand().pong)
    assert len(_read(reader, arena, ping + pong, commands_max=0)) == 2
    assert not reader.whole


def _asked_of(events: list[Event]) -> list[int | None]:
    return [event.request_id for event in events if isinstance(event, AckRun)]


def test_acknowledgements_count_as_commands_when_they_want_an_answer() -> None:
    reader, arena = Feeder().reader, memoryview(bytearray(80 * 1024))
    ids = [codec.MessageIdData(ledgerId=1, entryId=2)]
    plain = codec.CommandAck(consumer_id=1, ack_type=0, message_id=ids)  # type: ignore[arg-type]
    asking = codec.CommandAck(consumer_id=1, ack_type=0, message_id=ids, request_id=7)  # type: ignore[arg-type]
    kind = codec.BaseCommand.ACK

    data = command_frame(kind, plain) * 2 + command_frame(kind, asking) * 2
    assert _asked_of(_read(reader, arena, data, commands_max=1)) == [None, 7]
    assert _asked_of(reader.more(commands_max=0)) == []
    assert _asked_of(reader.more(commands_max=1)) == [7]
    assert not reader.whole


def test_what_consumers_say_all_day_is_bounded_by_the_number_of_events() -> None:
    reader, arena = Feeder().reader, memoryview(bytearray(80 * 1024))
    flow = command_frame(codec.BaseCommand.FLOW, codec.CommandFlow(consumer_id=1, messagePermits=2))
    assert len(_read(reader, arena, flow * 100, events_max=30)) == 30
    assert reader.held_bytes == 70 * len(flow)
    assert len(reader.more(events_max=69)) == 69
    assert len(reader.more()) == 1


def test_bytes_that_were_only_looked_at_are_decoded_up_to_one_command_or_the_next_publish() -> None:
    reader = Feeder().reader
    lookup = command_frame(codec.BaseCommand.LOOKUP, codec.CommandLookupTopic(topic="t", request_id=1))
    flow = command_frame(codec.BaseCommand.FLOW, codec.CommandFlow(consumer_id=1, messagePermits=2))
    for data, kinds, nbytes in (
        (flow + lookup + lookup, [Flow, Command], len(flow + lookup)),
        (flow + send(1, 5), [Flow], len(flow)),
        (send(1, 5) + lookup, [], 0),
        (lookup[:-1], [], 0),
    ):
        events, taken = reader.peeked(memoryview(data))
        assert ([type(event) for event in events], taken) == (kinds, nbytes)
        assert (reader.whole, reader.held_bytes, reader.missing_bytes) == (False, 0, 0)
    events, taken = reader.peeked(memoryview(flow + lookup), commands_max=0)
    assert ([type(event) for event in events], taken) == ([Flow], len(flow))


def test_events_are_the_same_when_every_byte_comes_alone() -> None:
    parts = [send(1, 5), command_frame(codec.BaseCommand.PING, codec.BaseCommand().ping), send(300, 16_384), send(1, 6)]
    assert hear([bytes((byte,)) for byte in b"".join(parts)]) == hear(parts)


@given(parts=st.one_of(st.lists(st.one_of(sends, large_sends), max_size=8), steady_sends()))
def test_a_publish_reads_as_protobuf_reads_it(parts: list[Sent]) -> None:
    assert hear([b"".join(part.data for part in parts)]) == [part.row for part in parts]


@given(parts=steady_sends())
def test_consecutive_publishes_of_one_read_make_one_run(parts: list[Sent]) -> None:
    feeder = Feeder()
    feeder.feed(b"".join(part.data for part in parts))
    assert len(feeder.heard.events) == (1 if parts else 0)


@given(parts=streams, cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_held_and_missing_bytes_are_exact_at_every_cut(parts: list[Sent | bytes], cuts: list[int]) -> None:
    ends, position = [0], 0
    for part in parts:
        ends.append(ends[-1] + len(_frame_of(part)))
    feeder = Feeder()
    for chunk in _cut(b"".join(map(_frame_of, parts)), cuts):
        feeder.feed(chunk)
        position += len(chunk)
        start = max(end for end in ends if end <= position)
        held = position - start
        finish = start if not held else start + 4 if held < 4 else min(end for end in ends if end > position)
        assert (feeder.reader.held_bytes, feeder.reader.missing_bytes) == (held, max(0, finish - position))


def test_a_large_frame_is_read_into_a_buffer_of_its_size_which_the_run_keeps() -> None:
    entry = seal(entry_body(bytes(3 * LARGE_FRAME_BYTES)))
    data = send(1, 0, entry=entry)
    feeder = Feeder()
    feeder.feed(data[:100])

    exact, rest = feeder.reader.buffers(feeder.arena)
    assert len(exact) == len(data) - 100
    assert rest is feeder.arena
    feeder.feed(data[100:])

    (run,) = feeder.heard.events
    assert isinstance(run, PublishRun)
    assert isinstance(run.data, memoryview)
    assert run.data.obj is exact.obj
    assert run.data[run.offsets[0] :] == entry


def test_a_run_that_fills_enough_of_the_arena_keeps_it_and_says_how_much_is_not_its_data() -> None:
    frames = [send(1, number, entry=seal(entry_body(bytes([number]) * 20_000))) for number in range(3)]
    data = b"".join(frames)
    for kept_bytes_min, kept in ((len(data), True), (len(data) + 1, False), (None, False)):
        feeder = Feeder()
        feeder.reader.buffers(feeder.arena)
        feeder.arena[: len(data) + 9] = data + frames[0][:9]
        (run,) = feeder.reader.received(feeder.arena, len(data) + 9, kept_bytes_min=kept_bytes_min)
        assert isinstance(run, PublishRun)
        assert bytes(run.data) == data
        assert (isinstance(run.data, memoryview) and run.data.obj is feeder.arena.obj) == kept
        assert run.unused_bytes == (len(feeder.arena) - len(data)) * kept
        assert run.charged_bytes == len(data) + run.unused_bytes

        other = memoryview(bytearray(len(feeder.arena)))
        assert len(feeder.reader.buffers(other)[0]) == len(other) - 9
        assert bytes(other[:9]) == frames[0][:9]


def test_a_large_frame_behind_others_is_copied_once_and_then_has_a_buffer_of_its_own() -> None:
    small, large = (send(1, number, entry=seal(entry_body(bytes(size)))) for number, size in enumerate((10, 90_000)))
    feeder = Feeder()
    feeder.feed(small + large[:100])
    assert [len(buffer) for buffer in feeder.reader.buffers(feeder.arena)] == [len(feeder.arena) - 100]
    feeder.feed(large[100:200])
    assert len(feeder.reader.buffers(feeder.arena)[0]) == len(large) - 200
    feeder.feed(large[200:])
    assert len(feeder.heard.rows) == 2


def test_memory_for_a_large_frame_is_not_taken_before_its_rest_is_about_to_be_read() -> None:
    feeder = Feeder()
    feeder.read(send(1, 0, entry=seal(entry_body(bytes(200_000))))[:100])
    assert feeder.reader._exact is None  # noqa: SLF001 - what is held is what came, not what was announced
    assert feeder.reader.held_bytes == 100


def test_asking_for_buffers_again_changes_nothing() -> None:
    for size in (10, 200_000):
        data = send(1, 0, entry=seal(entry_body(bytes(size))))
        feeder = Feeder()
        feeder.feed(data[:50])
        for _ in range(3):
            feeder.reader.buffers(feeder.arena)
            feeder.arena[:] = bytes(len(feeder.arena))
        feeder.feed(data[50:])
        assert len(feeder.heard.rows) == 1


def test_a_run_owns_its_bytes() -> None:
    feeder = Feeder()
    feeder.feed(send(1, 0) + send(1, 1))
    (run,) = feeder.heard.events
    assert isinstance(run, PublishRun)
    assert run.data == send(1, 0) + send(1, 1)


def test_the_first_frame_must_be_connect() -> None:
    for data in (send(1, 0), command_frame(codec.BaseCommand.PING, codec.BaseCommand().ping), frame(b"\x08\x7f")):
        with pytest.raises(ProtocolError, match="first command must be CONNECT"):
            Feeder(connected=False).feed(data)


def test_a_body_of_connect_under_another_type_is_no_connect() -> None:
    disguised = codec.BaseCommand(type=codec.BaseCommand.PING, connect=codec.CommandConnect(client_version="x"))
    with pytest.raises(ProtocolError, match="first command must be CONNECT"):
        Feeder(connected=False).feed(frame(disguised.SerializeToString()))


def test_publishes_may_follow_connect_in_the_same_read() -> None:
    feeder = Feeder(connected=False)
    feeder.feed(connect() + send(1, 0))
    assert [type(event) for event in feeder.heard.events] == [Command, PublishRun]


@pytest.mark.parametrize("size", [0, 3, 5 << 20, 0xFFFF_FFFF])
def test_a_frame_size_out_of_bounds_is_refused_as_soon_as_it_is_known(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"frame of {size} bytes"):
        Feeder().feed(struct.pack(">I", size))


def test_a_publish_that_came_whole_is_refused_when_larger_than_the_limit() -> None:
    data = send(1, 0, entry=seal(entry_body(bytes(2_000))))
    feeder = Feeder(frame_bytes_max=1_000)
    feeder.feed(send(1, 0))
    with pytest.raises(ProtocolError, match=f"frame of {len(data) - 4} bytes: want 4 to 1000"):
        feeder.feed(send(1, 1) + data)


def test_the_largest_allowed_frame_passes() -> None:
    data = send(1, 0, entry=seal(entry_body(bytes(2_000))))
    feeder = Feeder(frame_bytes_max=len(data) - 4)
    feeder.feed(data)
    assert len(feeder.heard.rows) == 1


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (struct.pack(">II", 4, 1), "command of 1 bytes in a frame of 4"),
        (struct.pack(">II", 30, 27) + bytes(26), "command of 27 bytes in a frame of 30"),
        (struct.pack(">II", 30, 27) + b"\x08\x06" + bytes(24), "command of 27 bytes in a frame of 30"),
        (frame(b"\xff"), "unreadable command of 1 bytes"),
        (frame(b""), "command without a type"),
        (frame(b"\x08\x12"), "PING command without its 'ping' field"),
        (frame(b"\x08\x06"), "SEND command without its 'send' field"),
        (frame(b"\x08\x06", bytes(20)), "SEND command without its 'send' field"),
        (frame(b"\x08\x06\x32\x00", bytes(20)), "SEND command without a required field"),
        (frame(b"\x08\x06\x32\x02\x08\x01", bytes(20)), "SEND command without a required field"),
        (frame(b"\x08\x06\x32\x7f\x08\x01\x10\x01", bytes(20)), "unreadable command of 8 bytes"),
        (frame(b"\x08\x06\x32\x03\x08\x01\x10", bytes(20)), "unreadable command of 7 bytes"),
        (frame(b"\x08\x0b\x5a\x02\x08\x01"), "FLOW command without a required field"),
        (frame(b"\x08\x0a\x52\x04\x08\x01\x10\x07"), "ACK command without a required field"),
        (frame(b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01"), "CommandLookupTopic.topic is not UTF-8"),
        (frame(b"\x08\x34" + inside(52, b"\x08\x01" + inside(4, b"\xff"))), "PartitionToTxn.partitions is not UTF-8"),
        (frame(b"\x08\x17" + inside(23, PROPERTY_WITHOUT_TEXT)), "KeyValue.key is not UTF-8"),
    ],
)
def test_a_malformed_frame_is_a_protocol_error(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        Feeder().feed(data)


def test_a_command_of_an_unknown_type_is_an_event() -> None:
    assert hear([frame(b"\x08\x7f"), frame(b"\xfa\x07\x00\x08" + varint(300, 4))]) == [
        (UnknownCommand(127),),
        (UnknownCommand(300),),
    ]


def test_unknown_fields_are_ignored() -> None:
    unknown = varint(2_000 << 3) + b"\x01"
    flow = inside(11, b"\x08\x03\x10\x05" + unknown)
    assert hear([frame(b"\x08\x0b" + flow + unknown)]) == [(Flow(3, 5),)]


def test_bytes_behind_a_simple_command_are_ignored() -> None:
    assert hear([frame(b"\x08\x0b\x5a\x04\x08\x03\x10\x05", b"junk")]) == [(Flow(3, 5),)]


def test_a_command_keeps_its_fields() -> None:
    feeder = Feeder()
    body = codec.CommandLookupTopic(topic="persistent://a/b/c", request_id=0, advertised_listener_name="")
    feeder.feed(command_frame(codec.BaseCommand.LOOKUP, body))
    assert feeder.heard.events == [Command(codec.BaseCommand.LOOKUP, body)]


def _ack(**fields: Any) -> AckRun:  # noqa: ANN401 - as the class takes them
    feeder = Feeder()
    body = codec.CommandAck(consumer_id=7, ack_type=codec.CommandAck.Individual)
    body.MergeFrom(codec.CommandAck(**fields))
    feeder.feed(command_frame(codec.BaseCommand.ACK, body))
    (event,) = feeder.heard.events
    assert isinstance(event, AckRun)
    return event


def test_an_acknowledgement_of_several_entries_is_one_event() -> None:
    ids = [
        codec.MessageIdData(ledgerId=1 << 63, entryId=0),
        codec.MessageIdData(ledgerId=2, entryId=5, ack_set=[-1, 3]),
    ]
    assert _ack(message_id=ids) == AckRun(
        consumer_id=7, cumulative=False, ledger_ids=[1 << 63, 2], entry_ids=[0, 5], ack_sets={1: [-1, 3]}
    )


def test_optional_parts_of_an_acknowledgement_are_told_by_presence() -> None:
    event = _ack(
        ack_type=codec.CommandAck.Cumulative,
        request_id=0,
        validation_error=codec.CommandAck.UncompressedSizeCorruption,
        txnid_most_bits=9,
    )
    assert event == AckRun(
        7,
        cumulative=True,
        ledger_ids=[],
        entry_ids=[],
        request_id=0,
        validation_error=0,
        transaction=TransactionId(9, 0),
    )
