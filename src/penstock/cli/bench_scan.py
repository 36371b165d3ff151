# SPDX-License-Identifier: Apache-2.0
"""Frames of a broker, recognised without being decoded.

Why: decoding half a million receipts a second would make the generator the bottleneck. Receipts are counted and their
order is checked column by column; messages are counted by their length fields, and a sample of them is compared with
what was published.
Where: `penstock bench` and the benchmarks' generator give it every read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from penstock.cli.bench_frames import LAP, MESSAGE, SEND_RECEIPT
from penstock.wire.client.frames import decode_frame, frame_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Data = bytes | bytearray | memoryview

unpack_u32: Callable[[Data, int], tuple[int]] = struct.Struct(">I").unpack_from
# A stretch is checked as a whole or not at all: short enough that a change of length within it costs little.
STRETCH_FRAMES_MAX = 512
# So many bytes are taken frame by frame after a stretch did not hold.
RETRY_BYTES = 4096
# One message in so many, or one a read, is compared with what was published.
SAMPLE_ENTRIES = 64


class UnexpectedFrame(Exception):
    """The broker said something that a load without faults never hears."""


def read_varint(data: Data, at: int) -> tuple[int, int]:
    """Decode one varint; return it and where the next thing begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


# Where the kind of a command stands: behind two u32 and the tag of its field, which is the first.
KIND_AT = 9
# Where the body's length byte stands in a short frame: after two u32, the type field (2 bytes) and the body's tag.
_BODY_LENGTH_AT = 11
_RECEIPT_OPENING = bytes([1 << 3, SEND_RECEIPT, SEND_RECEIPT << 3 | 2])
# The lowest seven bits of consecutive sequence ids as they look when more bytes follow.
_STEPS = bytes(range(0x80, 0x100))


@dataclass(slots=True)
class ReceiptScanner:
    """Counts SEND_RECEIPTs and checks that each producer's come in order, none missing, none twice."""

    expected: list[int]  # by producer id: the sequence id its next receipt must carry
    count: int = 0

    @classmethod
    def make(cls, producers: int) -> Self:
        """Expect the receipts of producers 0 to `producers` - 1, each from sequence id 0 on."""
        return cls([0] * producers)

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take the whole frames of data[start:end]; return where the first unfinished one begins.

        `others` gets the begin of each frame that is not a receipt. Raises UnexpectedFrame for a receipt out of order.
        """
        at, retry_at = start, start if len(self.expected) == 1 else end
        while at + 4 <= end:
            if at >= retry_at:
                if taken := self.take_stretch(data, at, end):
                    at += taken
                    continue
                retry_at = at + RETRY_BYTES
            (size,) = unpack_u32(data, at)
            following = at + 4 + size
            if following > end:
                break
            if data[at + 8 : at + _BODY_LENGTH_AT] == _RECEIPT_OPENING:
                self.take_one(data, at)
            else:
                others.append(at)
            at = following
        return at

    def take_one(self, data: bytearray, at: int) -> None:
        """Check one receipt."""
        producer_id, after = read_varint(data, at + _BODY_LENGTH_AT + 2)
        sequence_id, _ = read_varint(data, after + 1)
        if self.expected[producer_id] != sequence_id:
            raise UnexpectedFrame(
                f"a receipt of producer {producer_id} for {sequence_id} where {self.expected[producer_id]} was due"
            )
        self.expected[producer_id] = sequence_id + 1
        self.count += 1

    def take_stretch(self, data: bytearray, start: int, end: int) -> int:
        """Check many receipts of one producer at once, column by column; return their bytes, or 0 if that won't do.

        Consecutive receipts mostly have one length. Then column k of all frames is one strided slice: the lengths and
        openings must be equal, the lowest sequence bits must count up, and the first and the last must be the ones due.
        """
        (size,) = unpack_u32(data, start)
        stride = 4 + size
        frames = min((end - start) // stride, STRETCH_FRAMES_MAX)
        if frames < 4 or data[start + _BODY_LENGTH_AT + 2] > 0x7F:
            return 0
        stop, lowest_at = start + frames * stride, start + _BODY_LENGTH_AT + 4
        due, last = self.expected[0], start + (frames - 1) * stride
        steps = bytes(data[lowest_at:stop:stride])
        wanted = (_STEPS * (frames // LAP + 2))[due % LAP : due % LAP + frames]
        if (
            steps != wanted
            or bytes(data[start + 3 : stop : stride]).count(data[start + 3]) != frames
            or bytes(data[start + 9 : stop : stride]).count(SEND_RECEIPT) != frames
            or data[start + 8 : start + _BODY_LENGTH_AT] != _RECEIPT_OPENING
            or read_varint(data, lowest_at)[0] != due
            or read_varint(data, last + lowest_at - start)[0] != due + frames - 1
        ):
            return 0
        self.expected[0] += frames
        self.count += frames
        return frames * stride


def take_messages(data: bytearray, start: int, end: int, others: list[int]) -> tuple[int, int, int, int]:
    """Pass the whole frames of data[start:end]; `others` gets the begin of each that is no message.

    Returns:
        Where the first unfinished frame begins, the number of messages, where the last one begins (-1: there is none),
        and their bytes.
    """
    at, count, last, nbytes = start, 0, -1, 0
    while at + 4 <= end:
        (size,) = unpack_u32(data, at)
        following = at + 4 + size
        if following > end:
            break
        if data[at + KIND_AT] == MESSAGE:
            count += 1
            nbytes += size
            last = at
        else:
            others.append(at)
        at = following
    return at, count, last, nbytes


@dataclass(slots=True)
class MessageScanner:
    """Counts MESSAGE frames and checks a sample of them: the position, and every byte of the entry.

    Positions of one ledger are consecutive, so two good samples vouch for the number of entries between them.
    """

    entries: list[bytes]  # what was published, in order, round and round
    count: int = 0
    ledger_id: int = -1
    entry_id: int = -1
    samples: int = 0
    sampled_at: int = field(default=-SAMPLE_ENTRIES)

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take the whole frames of data[start:end]; return where the first unfinished one begins.

        `others` gets the begin of each frame that is no message. Raises UnexpectedFrame when
        a sample is not what was published at its place.
        """
        at, count, last, _ = take_messages(data, start, end, others)
        self.count += count
        if count and self.count - self.sampled_at >= SAMPLE_ENTRIES:
            self.check(data, last)
        return at

    def check(self, data: bytearray, at: int) -> None:
        """Compare the message that begins at `at`, the newest one counted, with what was published."""
        came = decode_frame(data, at, at + frame_bytes(data, at))
        if came.kind != MESSAGE:
            raise UnexpectedFrame(f"a frame of type {came.kind} where a message was due")
        ledger_id, entry_id = came.body.message_id.ledgerId, came.body.message_id.entryId
        in_order = (
            entry_id - self.entry_id == self.count - self.sampled_at
            if ledger_id == self.ledger_id
            else ledger_id > self.ledger_id
        )
        wanted = self.entries[(self.count - 1) % len(self.entries)]
        if not in_order or came.entry != wanted:
            raise UnexpectedFrame(
                f"message {self.count} came from ({ledger_id}, {entry_id}), the one checked before it was message "
                f"{self.sampled_at} from ({self.ledger_id}, {self.entry_id}); its bytes are "
                f"{'right' if came.entry == wanted else 'not what was published'}"
            )
        self.ledger_id, self.entry_id, self.sampled_at = ledger_id, entry_id, self.count
        self.samples += 1
