# SPDX-License-Identifier: Apache-2.0
"""Entries that carry a moment are as clients make them, and each delivery is counted for the consumer that got it."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from benchmarks.crowd_frames import DeliveryScanner, Entries, Member
from penstock.cli.bench_frames import Shape
from penstock.cli.bench_scan import UnexpectedFrame
from penstock.wire import codec
from penstock.wire import pulsar_pb2 as pb
from tests.benchmarks.test_generator import framed, split


def delivered(consumer_id: int, entry_id: int, entry: bytes) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = 7
    command.message.message_id.entryId = entry_id
    return framed(command, entry)


@pytest.mark.parametrize("producer_id", [0, 1, 127, 128, 9_999])
def test_an_entry_is_sealed_and_ends_with_the_moment_it_was_due(producer_id: int) -> None:
    made = Entries(Shape(1024), seed=3)

    for sequence_id in (0, 1, 200, 2**33):
        ((command, entry),) = split(made.send(producer_id, sequence_id, due_ns=123_456_789))
        assert (command.send.producer_id, command.send.sequence_id) == (producer_id, sequence_id)
        assert struct.unpack_from(">I", entry, 2)[0] == crc32c(entry[6:])
        assert struct.unpack(">Q", entry[-8:])[0] == 123_456_789
        assert 900 < len(entry) < 1_200


def test_keys_come_in_turns() -> None:
    made = Entries(Shape(64), seed=3, keys=3)
    keys = []
    for sequence_id in range(6):
        ((_, entry),) = split(made.send(0, sequence_id, due_ns=1))
        metadata_bytes = struct.unpack_from(">I", entry, 6)[0]
        keys.append(pb.MessageMetadata.FromString(entry[10 : 10 + metadata_bytes]).partition_key)

    assert keys == ["key-0", "key-1", "key-2"] * 2


def test_deliveries_are_counted_by_consumer_and_acknowledged_by_their_position() -> None:
    made = Entries(Shape(64), seed=3)
    entries = [split(made.send(0, row, due_ns=1_000 + row))[0][1] for row in range(300)]
    stream = bytearray(b"".join(delivered(row % 2, row, entry) for row, entry in enumerate(entries)) + codec.ping())
    scanner, others = DeliveryScanner([Member(row, cumulative=False, permits=400) for row in range(2)]), list[int]()

    begin = 0
    for end in (10, 5_000, len(stream)):  # however the stream was cut
        begin = scanner.scan(stream, begin, end, others)

    assert (begin, len(others), scanner.count) == (len(stream), 1, 300)
    assert scanner.due_ns == [1_000 + row for row in range(300)]
    assert [member.count for member in scanner.members] == [150, 150]
    assert not scanner.hungry
    acknowledged = [command.ack for command, _ in split(scanner.members[1].acknowledge())]
    assert [one.ack_type for one in acknowledged] == [0, 0]
    assert [part.entryId for one in acknowledged for part in one.message_id] == list(range(1, 300, 2))
    assert scanner.members[1].acknowledge() == b""


def test_a_consumer_asks_for_more_when_half_of_its_permits_are_used() -> None:
    entry = split(Entries(Shape(64), seed=3).send(0, 0, due_ns=1))[0][1]
    scanner = DeliveryScanner([Member(0, cumulative=True, permits=4)])
    stream = bytearray(b"".join(delivered(0, row, entry) for row in range(2)))

    scanner.scan(stream, 0, len(stream), [])

    assert scanner.hungry == {0}
    ((command, _),) = split(scanner.members[0].flow(scanner.members[0].used))
    assert command.flow.messagePermits == 2
    assert not scanner.members[0].is_hungry


def test_messages_out_of_order_are_noticed() -> None:
    entry = split(Entries(Shape(64), seed=3).send(0, 0, due_ns=1))[0][1]
    stream = bytearray(delivered(0, 1, entry) + delivered(0, 0, entry))

    with pytest.raises(UnexpectedFrame):
        DeliveryScanner([Member(0, cumulative=True, permits=4)]).scan(stream, 0, len(stream), [])
