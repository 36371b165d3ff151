# SPDX-License-Identifier: Apache-2.0
"""The few frames a load generator sends, encoded once and then only patched.

Why: the generator must never be what is measured. So a publish load is one buffer of ready frames, and a lap around
the buffer rewrites nothing but the sequence ids.
Where: `penstock bench` and the benchmarks send these; `tests/benchmarks` decodes them with the protocol's generated
classes.

Numbers that change are varints padded to five bytes (0x80 continuation bits on zeroes): legal, and of a fixed width.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Self

from penstock.wire.client import entries
from penstock.wire.codec import MessageMetadata, SingleMessageMetadata
from penstock.wire.varints import encode_varint

# Numbers of BaseCommand.Type.
SEND, SEND_RECEIPT, MESSAGE = 6, 7, 9

# Frames of each producer in a block. With 128 of them the lowest seven bits of a sequence id never change in a frame.
LAP = 128
SEQUENCE_BYTES = 5
# Sizes vary by so much around the nominal one, drawn from the seed: equal sizes flatter whoever guesses them.
SIZE_SPREAD = 0.1

_TWO_U32 = struct.Struct(">II")


def padded_varint(value: int) -> bytes:
    """Encode an integer below 2^35 in exactly five bytes."""
    return bytes([value >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)] + [value >> 28])


def tag(field_number: int, kind: int) -> bytes:
    """Encode what stands before a field's value."""
    return encode_varint(field_number << 3 | kind)


def number(field_number: int, value: int) -> bytes:
    """Encode one integer field."""
    return tag(field_number, 0) + encode_varint(value)


# ---------------------------------------------------------------------------------------------------------- publishing


@dataclass(frozen=True, slots=True)
class Shape:
    """Messages of an entry, and about how many bytes each has."""

    message_bytes: int
    messages: int = 1

    @property
    def entry_bytes(self) -> int:
        """About how many payload bytes one entry has."""
        return self.message_bytes * self.messages


def entry(shape: Shape, chance: random.Random, sequence_id: int) -> bytes:
    """Encode an entry as a client does, from the checksum magic on: magic, crc32c, metadata, payload of random bytes.

    The metadata's own sequence id stays what it is in later laps, because it is under the checksum; brokers read the
    one in the command.
    """
    metadata = MessageMetadata(producer_name="bench", sequence_id=sequence_id, publish_time=1_700_000_000_000)
    bodies = [chance.randbytes(spread(shape.message_bytes, chance)) for _ in range(shape.messages)]
    if shape.messages == 1:
        return entries.entry(metadata, bodies[0])
    metadata.num_messages_in_batch = shape.messages
    return entries.entry(metadata, entries.batch([(SingleMessageMetadata(), body) for body in bodies]))


def spread(nominal: int, chance: random.Random) -> int:
    """Draw a size within a tenth of the nominal one."""
    return round(nominal * chance.uniform(1 - SIZE_SPREAD, 1 + SIZE_SPREAD))


@dataclass(slots=True)
class Block:
    """LAP frames of each of a connection's producers, in the order they go out: to be sent round and round.

    Frame i belongs to producer i modulo the number of producers, so producers alternate frame by frame.
    """

    frames: bytearray
    ends: list[int]  # where frame i ends in `frames`
    sequence_at: list[int]  # where the changing bytes of frame i's sequence id begin
    producers: int
    lap: int = 0
    entries: list[bytes] = field(default_factory=list)  # what a consumer must get back, in order

    @classmethod
    def make(cls, shape: Shape, seed: int, producers: int = 1) -> Self:
        """Encode a block; the same seed gives the same bytes."""
        chance = random.Random(seed)
        made = cls(bytearray(), [], [], producers)
        for row in range(LAP * producers):
            sealed = entry(shape, chance, row // producers)
            made.entries.append(sealed)
            made.append(row % producers, row // producers, shape.messages, sealed)
        return made

    def append(self, producer_id: int, sequence_id: int, messages: int, sealed: bytes) -> None:
        """Add one SEND frame."""
        head, tail = number(1, producer_id), number(3, messages) if messages > 1 else b""
        body_bytes = len(head) + 1 + SEQUENCE_BYTES + len(tail)
        opening = (
            number(1, SEND) + encode_varint(SEND << 3 | 2) + encode_varint(body_bytes) + head + encode_varint(2 << 3)
        )
        command_bytes = len(opening) + SEQUENCE_BYTES + len(tail)
        self.frames += _TWO_U32.pack(4 + command_bytes + len(sealed), command_bytes) + opening
        self.sequence_at.append(len(self.frames) + 1)
        self.frames += padded_varint(sequence_id) + tail + sealed
        self.ends.append(len(self.frames))

    def next_lap(self) -> None:
        """Give every frame its next sequence id: LAP more than the one it has."""
        self.lap += 1
        frames, upper = self.frames, padded_varint(self.lap * LAP)[1:]
        for at in self.sequence_at:
            frames[at : at + SEQUENCE_BYTES - 1] = upper
