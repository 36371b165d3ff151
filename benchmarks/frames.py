# SPDX-License-Identifier: Apache-2.0
"""The few frames a load generator sends, encoded once and then only patched.

Why: the generator must never be what is measured. So a publish load is one buffer of ready frames, and a lap around
the buffer rewrites nothing but the sequence ids.
Where: `generator` sends these; `tests/benchmarks` decodes them with the protocol's generated classes.

Numbers that change are varints padded to five bytes (0x80 continuation bits on zeroes): legal, and of a fixed width.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Self

from crc32c import crc32c

# Numbers of BaseCommand.Type, which are also the field numbers of their bodies.
CONNECT, CONNECTED, SUBSCRIBE, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR, MESSAGE, ACK, FLOW = range(2, 12)
SUCCESS, ERROR, CLOSE_PRODUCER, CLOSE_CONSUMER, PRODUCER_SUCCESS, PING, PONG = range(13, 20)
ACTIVE_CONSUMER_CHANGE = 31
PARTITIONED_METADATA, PARTITIONED_METADATA_RESPONSE, LOOKUP, LOOKUP_RESPONSE = range(21, 25)

PROTOCOL_VERSION = 20
CHECKSUM_MAGIC = b"\x0e\x01"
CUMULATIVE = 1
EARLIEST = 1
# Frames of each producer in a block. With 128 of them the lowest seven bits of a sequence id never change in a frame.
LAP = 128
SEQUENCE_BYTES = 5
# Sizes vary by so much around the nominal one, drawn from the seed: equal sizes flatter whoever guesses them.
SIZE_SPREAD = 0.1

_U32 = struct.Struct(">I")
_TWO_U32 = struct.Struct(">II")


# -------------------------------------------------------------------------------------------------- simple commands


def varint(value: int) -> bytes:
    """Encode an unsigned integer as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def padded_varint(value: int) -> bytes:
    """Encode an integer below 2^35 in exactly five bytes."""
    return bytes([value >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)] + [value >> 28])


def number(tag: int, value: int) -> bytes:
    """Encode one integer field."""
    return varint(tag << 3) + varint(value)


def text(tag: int, value: str | bytes) -> bytes:
    """Encode one string, bytes or sub-message field."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(raw)) + raw


def command(kind: int, *fields: bytes) -> bytes:
    """Encode a BaseCommand."""
    return number(1, kind) + text(kind, b"".join(fields))


def simple_frame(kind: int, *fields: bytes) -> bytes:
    """Encode a frame that holds a command and nothing else."""
    encoded = command(kind, *fields)
    return _TWO_U32.pack(4 + len(encoded), len(encoded)) + encoded


def connect() -> bytes:
    """CONNECT, as a client without authentication sends it."""
    return simple_frame(CONNECT, text(1, "penstock-benchmark"), number(4, PROTOCOL_VERSION), text(5, "none"))


def partitioned_metadata(topic: str, request_id: int) -> bytes:
    """PARTITIONED_METADATA: how many partitions has this topic."""
    return simple_frame(PARTITIONED_METADATA, text(1, topic), number(2, request_id))


def lookup(topic: str, request_id: int, *, authoritative: bool) -> bytes:
    """LOOKUP: which broker serves this topic."""
    return simple_frame(LOOKUP, text(1, topic), number(2, request_id), number(3, int(authoritative)))


def producer(topic: str, producer_id: int, request_id: int) -> bytes:
    """PRODUCER: open a producer."""
    return simple_frame(PRODUCER, text(1, topic), number(2, producer_id), number(3, request_id))


def subscribe(topic: str, subscription: str, consumer_id: int, request_id: int) -> bytes:
    """SUBSCRIBE: a durable Exclusive subscription that begins at the earliest entry."""
    names = text(1, topic), text(2, subscription)
    return simple_frame(
        SUBSCRIBE, *names, number(3, 0), number(4, consumer_id), number(5, request_id), number(13, EARLIEST)
    )


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: ask for so many more messages."""
    return simple_frame(FLOW, number(1, consumer_id), number(2, permits))


def acknowledge(consumer_id: int, ledger_id: int, entry_id: int) -> bytes:
    """ACK: everything up to this entry."""
    position = number(1, ledger_id) + number(2, entry_id)
    return simple_frame(ACK, number(1, consumer_id), number(2, CUMULATIVE), text(3, position))


def pong() -> bytes:
    """PONG: still here."""
    return simple_frame(PONG)


# ---------------------------------------------------------------------------------------------------------- publishing


@dataclass(frozen=True, slots=True)
class Shape:
    """What one entry holds: how many messages, of about how many bytes each."""

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
    metadata = text(1, "benchmark") + number(2, sequence_id) + number(3, 1_700_000_000_000)
    if shape.messages == 1:
        payload = chance.randbytes(spread(shape.message_bytes, chance))
    else:
        metadata += number(11, shape.messages)
        bodies = [chance.randbytes(spread(shape.message_bytes, chance)) for _ in range(shape.messages)]
        payload = b"".join(single_message(body) for body in bodies)
    sealed = _U32.pack(len(metadata)) + metadata + payload
    return CHECKSUM_MAGIC + _U32.pack(crc32c(sealed)) + sealed


def single_message(body: bytes) -> bytes:
    """Encode one message of a batch: its own small metadata, and the body."""
    metadata = number(3, len(body))
    return _U32.pack(len(metadata)) + metadata + body


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
        opening = number(1, SEND) + varint(SEND << 3 | 2) + varint(body_bytes) + head + varint(2 << 3)
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
