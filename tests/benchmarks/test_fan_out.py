# SPDX-License-Identifier: Apache-2.0
"""What the clients of the fan-out benchmark send is what clients send."""

from __future__ import annotations

import struct

from benchmarks.fan_out import KeyedBlock, ack
from penstock.cli.bench_frames import Block, Shape
from penstock.core.checksum import is_sealed
from penstock.wire import metadata
from penstock.wire import pulsar_pb2 as pb


def sends(block: Block) -> list[tuple[int, bytes]]:
    """The sequence id and the entry of each frame."""
    found, at = [], 0
    for end in block.ends:
        _, command_bytes = struct.unpack_from(">II", block.frames, at)
        command = pb.BaseCommand.FromString(bytes(block.frames[at + 8 : at + 8 + command_bytes]))
        found.append((command.send.sequence_id, bytes(block.frames[at + 8 + command_bytes : end])))
        at = end
    return found


def test_every_key_comes_once_a_lap_and_sequence_ids_go_on() -> None:
    block = KeyedBlock.of(Shape(50), 300)
    first = sends(block)
    block.next_lap()
    second = sends(block)
    assert [sequence_id for sequence_id, _ in first + second] == list(range(600))
    assert all(is_sealed(entry) for _, entry in first)
    assert [metadata.routing(entry).key for _, entry in second] == [b"key-%d" % row for row in range(300)]


def test_an_acknowledgement_names_the_received_message_ids() -> None:
    ids = [pb.MessageIdData(ledgerId=7, entryId=entry_id).SerializeToString() for entry_id in (3, 300, 70_000)]
    frame = ack([bytes((len(one),)) + one for one in ids], b"\x10\x00")
    size, command_bytes = struct.unpack_from(">II", frame)
    command = pb.BaseCommand.FromString(frame[8:])
    assert (size, command_bytes) == (len(frame) - 4, len(frame) - 8)
    assert command.ack.ack_type == pb.CommandAck.Individual
    assert [(one.ledgerId, one.entryId) for one in command.ack.message_id] == [(7, 3), (7, 300), (7, 70_000)]
