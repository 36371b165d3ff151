# SPDX-License-Identifier: Apache-2.0
"""What a proxy passes on is what came, however it was cut; what it must know is decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.client import Type, entry, frame, send
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.events import Event, PublishRun, RefusedCommand, Relayed
from penstock.wire.relayed import SPARE_BYTES, SPARES_MAX, RelayReader, SpareBuffers, _kind_of, is_borrowed

FRAMES = [
    frame(Type.PING),
    frame(Type.PONG),
    frame(Type.FLOW, consumer_id=1, messagePermits=1000),
    frame(Type.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 2}]),
    frame(Type.PRODUCER, topic="t", producer_id=1, request_id=1),
    frame(Type.SUBSCRIBE, topic="t", subscription="s", subType=0, consumer_id=1, request_id=2),
    frame(Type.CLOSE_PRODUCER, producer_id=1, request_id=3),
    frame(Type.SEEK, consumer_id=1, request_id=4),
    send(1, 0, entry(b"payload")),
    send(2, 7, entry(b"x" * 300), num_messages=1),
    (4 + 4).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"\x08\x7f\x10\x01",  # a command of a newer protocol
]


def connected_reader() -> RelayReader:
    reader = RelayReader(frame_bytes_max=1 << 20)
    reader.admitted = True
    read(reader, frame(Type.CONNECT, client_version="c", protocol_version=20))
    reader.relaying = True
    return reader


def read(reader: RelayReader, data: bytes, **limits: int) -> list[Event]:
    """Read all of the data, as a socket would bring it, and return the events."""
    arena, events, pos = memoryview(bytearray(256 * 1024)), [], 0
    while pos < len(data):
        into = reader.buffers(arena)
        taken = 0
        for buffer in into:
            part = data[pos + taken : pos + taken + len(buffer)]
            buffer[: len(part)] = part
            taken += len(part)
        pos += taken
        events += reader.received(arena, taken, **limits)
        while reader.whole:
            more = reader.more(**limits)
            assert more or reader.whole
            events += more
        reader.keep()
    return events


def bytes_of(events: list[Event]) -> bytes:
    passed = b""
    for event in events:
        assert isinstance(event, PublishRun | Relayed)
        passed += bytes(event.data)
    return passed


@given(chosen=st.lists(st.sampled_from(FRAMES), max_size=30), data=st.data())
def test_the_events_of_any_cut_of_the_stream_hold_its_bytes_in_order(chosen: list[bytes], data: st.DataObject) -> None:
    stream, reader, events = b"".join(chosen), connected_reader(), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += read(reader, stream[start:stop], commands_max=data.draw(st.integers(1, 4)), events_max=8)
    assert bytes_of(events) == stream


def test_publishes_are_columns_and_others_are_runs_of_bytes() -> None:
    first, second = send(1, 0, entry(b"a")), send(2, 5, entry(b"b"))
    flow, ping = frame(Type.FLOW, consumer_id=1, messagePermits=1), frame(Type.PING)
    events = read(connected_reader(), ping + ping + first + second + flow + ping)
    assert [type(event) for event in events] == [Relayed, PublishRun, Relayed, Relayed]
    assert events[0] == Relayed(ping + ping)
    run = events[1]
    assert isinstance(run, PublishRun)
    assert (run.producer_ids, run.sequence_ids, bytes(run.data)) == ([1, 2], [0, 5], first + second)
    assert isinstance(events[2], Relayed)
    assert events[2].command is not None
    assert events[2].command.type == BaseCommand.FLOW


def test_a_frame_larger_than_the_arena_keeps_its_own_buffer() -> None:
    large = send(1, 0, entry(b"x" * 200_000))
    reader = connected_reader()
    assert read(reader, large[:100]) == []
    (event,) = read(reader, large[100:])
    assert isinstance(event, PublishRun)
    assert isinstance(event.data, memoryview)
    assert bytes(event.data) == large


def test_a_command_that_only_begins_like_a_ping_is_what_the_broker_takes_it_for() -> None:
    body = BaseCommand(type=BaseCommand.PING)
    body.ping.SetInParent()
    stored = send(1, 0, entry(b"hidden"))
    command_bytes = int.from_bytes(stored[4:8], "big")
    command = body.SerializeToString() + stored[8 : 8 + command_bytes]
    hidden = len(command).to_bytes(4, "big") + command + stored[8 + command_bytes :]
    (event,) = read(connected_reader(), len(hidden).to_bytes(4, "big") + hidden)
    assert isinstance(event, PublishRun)
    assert event.producer_ids == [1]


def test_a_command_beyond_its_bounds_is_refused_and_not_passed_on() -> None:
    ping = frame(Type.PING)
    events = read(
        connected_reader(), ping + frame(Type.PRODUCER, topic="t" * 5_000, producer_id=1, request_id=9) + ping
    )
    assert [type(event) for event in events] == [Relayed, RefusedCommand, Relayed]


def test_a_turn_cuts_only_so_many_frames() -> None:
    reader = connected_reader()
    pings = frame(Type.PING) * 100
    arena = memoryview(bytearray(256 * 1024))
    arena[: len(pings)] = pings
    (event,) = reader.received(arena, len(pings), commands_max=1)
    assert isinstance(event, Relayed)
    assert len(event.data) == 16 * len(frame(Type.PING))
    assert reader.whole


def test_a_command_longer_than_its_frame_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        read(connected_reader(), (8).to_bytes(4, "big") + (99).to_bytes(4, "big") + b"\x08\x12\x00\x00")


@pytest.mark.parametrize("kind", BaseCommand.Type.values())
def test_the_type_of_every_usual_command_is_known_without_decoding_it(kind: int) -> None:
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    field = {each.number: each for each in BaseCommand.DESCRIPTOR.fields}[kind]
    getattr(command, field.name).SetInParent()
    assert _kind_of(command.SerializePartialToString()) == kind


def test_a_run_refers_to_what_was_read_and_leaves_checksums_to_the_broker() -> None:
    damaged = bytearray(send(1, 0, entry(b"payload")) + send(1, 1, entry(b"payload")))
    damaged[-1] ^= 1
    reader, arena = connected_reader(), memoryview(bytearray(256 * 1024))
    arena[: len(damaged)] = damaged

    (run,) = reader.received(arena, len(damaged))

    assert isinstance(run, PublishRun)
    assert (len(run.offsets), run.corrupt, bytes(run.data)) == (2, [], bytes(damaged))
    assert is_borrowed(run.data)
    assert isinstance(run.data, memoryview)
    assert run.data.obj is arena.obj


def test_the_buffer_of_a_large_frame_is_used_again_when_it_was_given_back() -> None:
    reader = connected_reader()
    large = send(1, 0, entry(b"x" * 200_000))

    read(reader, large[:100])
    (first,) = read(reader, large[100:] + large[:100])
    (second,) = read(reader, large[100:] + large[:100])
    assert isinstance(first, PublishRun)
    assert isinstance(second, PublishRun)
    assert isinstance(first.data, memoryview)
    assert isinstance(second.data, memoryview)
    assert second.data.obj is not first.data.obj
    assert not is_borrowed(first.data)
    reader.spare.give_back(first.data)
    (third,) = read(reader, large[100:])

    assert isinstance(third, PublishRun)
    assert isinstance(third.data, memoryview)
    assert third.data.obj is first.data.obj
    assert bytes(third.data) == large


def test_only_a_few_buffers_of_the_usual_size_are_kept() -> None:
    spare = SpareBuffers()
    buffers = [spare.take(100_000) for _ in range(SPARES_MAX + 1)]
    huge = spare.take(SPARE_BYTES + 1)
    others: list[bytes | memoryview] = [b"bytes", memoryview(b"bytes"), huge, *buffers]
    for buffer in others:
        spare.give_back(buffer)

    again = [spare.take(SPARE_BYTES) for _ in range(SPARES_MAX + 1)]

    assert sum(one.obj is other.obj for one in again for other in buffers) == SPARES_MAX
