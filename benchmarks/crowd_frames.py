# SPDX-License-Identifier: Apache-2.0
"""Entries that carry the moment they were due, and deliveries to many consumers on one connection.

Why: with many producers and consumers, where an entry will arrive can't be known when it is sent; so its moment travels
in it. The moment is the last eight bytes of the entry, so that the checksum over all before it is computed only once.
Where: `crowd` sends and receives these; `tests/benchmarks` decodes them with the protocol's generated classes.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.cli.bench_frames import MESSAGE, SEND, SEQUENCE_BYTES, number, padded_varint, spread
from penstock.cli.bench_scan import UnexpectedFrame, read_varint, unpack_u32
from penstock.core.checksum import SEAL_MAGIC
from penstock.core.crc32c import crc32c
from penstock.wire.client.connection import frame
from penstock.wire.codec import BaseCommand, MessageMetadata
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from penstock.cli.bench_frames import Shape

# Payloads to draw from, each of another size.
BODIES: Final = 16
# Acknowledgements that are sent at once, at most.
ACKNOWLEDGED_AT_ONCE: Final = 100

_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_TWO_U32: Final = struct.Struct(">II")
_OPENING: Final = bytes([1 << 3, MESSAGE, MESSAGE << 3 | 2])


class Entries:
    """Makes SEND frames, each with the moment that it is given, and a key if there are any."""

    def __init__(self, shape: Shape, seed: int, keys: int = 0) -> None:
        chance = random.Random(seed)
        about = MessageMetadata(producer_name="benchmark", sequence_id=0, publish_time=1_700_000_000_000)
        self._bodies = []
        for row in range(keys or BODIES):
            if keys:
                about.partition_key = f"key-{row}"
            encoded = about.SerializeToString()
            payload = chance.randbytes(spread(shape.message_bytes, chance) - _U64.size)
            self._bodies.append(_U32.pack(len(encoded)) + encoded + payload)
        self._checksums = [crc32c(body) for body in self._bodies]
        self._heads: dict[int, tuple[bytes, int]] = {}

    def send(self, producer_id: int, sequence_id: int, due_ns: int) -> bytes:
        """One frame."""
        opening, command_bytes = self._heads.get(producer_id) or self._head(producer_id)
        which = sequence_id % len(self._bodies)
        body, due = self._bodies[which], _U64.pack(due_ns)
        sealed_bytes = 6 + len(body) + _U64.size
        return b"".join(
            (
                _TWO_U32.pack(4 + command_bytes + sealed_bytes, command_bytes),
                opening,
                padded_varint(sequence_id),
                SEAL_MAGIC,
                _U32.pack(crc32c(due, self._checksums[which])),
                body,
                due,
            )
        )

    def _head(self, producer_id: int) -> tuple[bytes, int]:
        head = number(1, producer_id)
        body_bytes = len(head) + 1 + SEQUENCE_BYTES
        opening = number(1, SEND) + encode_varint(SEND << 3 | 2) + encode_varint(body_bytes) + head
        opening += encode_varint(2 << 3)
        self._heads[producer_id] = opening, len(opening) + SEQUENCE_BYTES
        return self._heads[producer_id]


@dataclass(slots=True)
class Member:
    """One consumer: what it has to acknowledge, and how many of its permits are used."""

    consumer_id: int
    cumulative: bool
    permits: int
    count: int = 0
    used: int = 0
    last: tuple[int, int] = (-1, -1)
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def take(self, position: tuple[int, int]) -> None:
        """Count one message. Raises UnexpectedFrame if they come out of order."""
        self.count += 1
        self.used += 1
        if not self.cumulative:
            self.waiting.append(position)
        elif position <= self.last:
            raise UnexpectedFrame(f"consumer {self.consumer_id} got {position} after {self.last}")
        self.last = position

    @property
    def is_hungry(self) -> bool:
        """Whether half of the permits are used."""
        return self.used >= self.permits // 2

    def acknowledge(self) -> bytes:
        """Acknowledge what has come."""
        out = bytearray()
        if self.cumulative:
            self.waiting = [self.last]
        while self.waiting:
            now, self.waiting = self.waiting[:ACKNOWLEDGED_AT_ONCE], self.waiting[ACKNOWLEDGED_AT_ONCE:]
            positions = [{"ledgerId": ledger_id, "entryId": entry_id} for ledger_id, entry_id in now]
            kind = int(self.cumulative)
            out += frame(BaseCommand.ACK, consumer_id=self.consumer_id, ack_type=kind, message_id=positions)
        return bytes(out)

    def flow(self, permits: int) -> bytes:
        """Ask for so many messages."""
        self.used = 0
        return frame(BaseCommand.FLOW, consumer_id=self.consumer_id, messagePermits=permits)


@dataclass(slots=True)
class DeliveryScanner:
    """Takes MESSAGE frames for the consumers of one connection: counts each, and notes when it was due."""

    members: list[Member]  # by consumer id
    due_ns: list[int] = field(default_factory=list)  # of what came in the last read
    touched: set[int] = field(default_factory=set)  # consumers that have something to acknowledge
    hungry: set[int] = field(default_factory=set)  # consumers that must ask for more
    count: int = 0

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take the whole frames of data[start:end]; return where the first unfinished one begins."""
        at = start
        while at + 4 <= end:
            (size,) = unpack_u32(data, at)
            following = at + 4 + size
            if following > end:
                break
            if data[at + 8 : at + 11] == _OPENING:
                self._take(data, at, following)
            else:
                others.append(at)
            at = following
        return at

    def _take(self, data: bytearray, at: int, following: int) -> None:
        _, at = read_varint(data, at + 11)  # how long the body is
        consumer_id, at = read_varint(data, at + 1)
        _, at = read_varint(data, at + 1)  # how long the position is
        ledger_id, at = read_varint(data, at + 1)
        entry_id, _ = read_varint(data, at + 1)
        member = self.members[consumer_id]
        member.take((ledger_id, entry_id))
        if member.is_hungry:
            self.hungry.add(consumer_id)
        self.touched.add(consumer_id)
        self.due_ns.append(_U64.unpack_from(data, following - _U64.size)[0])
        self.count += 1
