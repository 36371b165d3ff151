# SPDX-License-Identifier: Apache-2.0
"""The usual layouts of SEND frames, and a cache of their parts.

    total:4 | size:4 06-type:2 32 length 08 producer:1-2 10 | low:1-2 | high:0-8 [18 count:1-2] 0e01 | checksum:4 | ...
             '------------------ prefix ------------------'                              '--- the entry begins here
                          → producer id             sequence id, 7 bits a byte, lowest first    number of messages

Why: the frames of a connection differ in the low part of the sequence id and in the payload. All other parts were seen
before, so they are looked up whole instead of being parsed. Where: `runs` decodes by these layouts, and adds the parts
of frames that it had to parse.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from penstock.core.checksum import SEAL_MAGIC
from penstock.wire.varints import LOW_MASK, encode_varint, low_code, low_part, read_varint

# The first bytes of a SEND, as every known client writes it: field 1 (type) = 6.
SEND_START: Final = b"\x08\x06"
# The shortest complete SEND: its two sizes, its type, and a body with the two required ids.
SEND_BYTES_MIN: Final = 16
# The longest head of a SEND with only its ids, in order: four tags and varints.
SEND_HEAD_BYTES: Final = 12 + 4 * 11

# The most cached parts per layout. Beyond this the cache is cleared, so that no client can fill the memory.
LEARNT_MAX: Final = 2048

# Longer ids are parsed every time.
PRODUCER_ID_BYTES_MAX: Final = 2
SEQUENCE_ID_BYTES_MAX: Final = 10
# The number of messages of a batch, with its tag; 0 if absent. Longer ones are parsed every time.
COUNT_BYTES: Final = (0, 2, 3)
_COUNT_TAG: Final = 0x18


class Layout:
    """The layout of SEND frames with ids and a count of these lengths, and a cache of their parts."""

    __slots__ = ("count_at", "counts", "entry_at", "high_at", "highs", "low_at", "lows", "prefixes", "unpack")

    def __init__(self, producer_id_bytes: int, sequence_id_bytes: int, count_bytes: int = 0) -> None:
        self.low_at = 4 + len(_send_prefix(producer_id_bytes * b"?", sequence_id_bytes + count_bytes))
        self.lows: list[Any] = []  # empty, so nothing is found, until the first frame is learnt
        self.high_at = self.low_at + min(sequence_id_bytes, 2)
        self.count_at = self.low_at + sequence_id_bytes
        self.entry_at = self.count_at + count_bytes
        # The magic belongs to the last part that is looked up: the count, or else the high part.
        self.prefixes: dict[bytes, int] = {}  # -> producer id
        self.highs: dict[bytes, int] = {}  # -> the sequence id's bits above the low part
        self.counts: dict[bytes, int] | None = {} if count_bytes else None  # -> messages of the batch
        high_bytes, end_bytes = self.count_at - self.high_at, count_bytes + len(SEAL_MAGIC)
        if not count_bytes:
            high_bytes, end_bytes = high_bytes + end_bytes, 0
        # -> total, prefix, low, high, count, checksum, metadata size
        self.unpack = struct.Struct(
            f">I{self.low_at - 4}s{low_code(sequence_id_bytes)}{high_bytes}s{end_bytes}sII"
        ).unpack_from

    def learn(self, frame: memoryview, producer_id: int, sequence_id: int, messages: int = 0) -> bool:
        """Cache the parts of a frame whose numbers are known; return False if it does not match this layout."""
        prefix = _send_prefix(encode_varint(producer_id), self.entry_at - self.low_at)
        head = bytes(frame[4 : self.entry_at + 2])
        if not (head.startswith(prefix) and head.endswith(SEAL_MAGIC)):
            return False
        # The sequence id as it is written, padded or not, as long as it has the layout's length.
        if read_varint(head, len(prefix))[1] != self.count_at - 4:
            return False
        high = head[self.high_at - 4 :]
        if self.counts is not None:
            high = head[self.high_at - 4 : self.count_at - 4]
            _add(self.counts, head[self.count_at - 4 :], messages)
        self.lows = low_part(self.count_at - self.low_at)
        _add(self.prefixes, prefix, producer_id)
        _add(self.highs, high, sequence_id & ~LOW_MASK)
        return True


def _add(learnt: dict[bytes, int], part: bytes, value: int) -> None:
    if len(learnt) >= LEARNT_MAX:
        learnt.clear()
    learnt[part] = value


def _send_prefix(producer_id: bytes, rest_bytes: int) -> bytes:
    """Return the bytes of a SEND between its total size and its sequence id, with which `rest_bytes` begin."""
    body_bytes = 1 + len(producer_id) + 1 + rest_bytes
    return struct.pack(">I4sB", 4 + body_bytes, SEND_START + bytes((0x32, body_bytes)), 0x08) + producer_id + b"\x10"


LAYOUTS: Final = {
    (producer_id_bytes, sequence_id_bytes, count_bytes): Layout(producer_id_bytes, sequence_id_bytes, count_bytes)
    for producer_id_bytes in range(1, PRODUCER_ID_BYTES_MAX + 1)
    for sequence_id_bytes in range(1, SEQUENCE_ID_BYTES_MAX + 1)
    for count_bytes in COUNT_BYTES
}
_ANY_LAYOUT: Final = LAYOUTS[1, 2, 0]
# The same by one number, which is found in half the time: the length of the body, and which lengths the others have.
_BY_LENGTHS: Final = {
    2 + sum(lengths) << 4 | lengths[2] << 2 | lengths[0]: layout for lengths, layout in LAYOUTS.items()
}


def layout_at(view: memoryview, pos: int) -> Layout:
    """Return the layout that fits the frame at `pos`, if one does."""
    body_bytes = view[pos + 11]
    try:
        # These bytes belong to a sequence id, and are its tag or above 127, or one of them is the tag of a count.
        count_bytes = 2 if view[pos + body_bytes + 10] == _COUNT_TAG else 3 * (view[pos + body_bytes + 9] == _COUNT_TAG)
    except IndexError:
        return _ANY_LAYOUT
    return _BY_LENGTHS.get(body_bytes << 4 | count_bytes << 2 | (1 if view[pos + 13] < 128 else 2), _ANY_LAYOUT)


def parse_ids(head: bytes, end: int) -> tuple[int, int, int, int] | None:
    """Return the ids and numbers of a SEND that has no other fields; 0 for absent ones.

    These are producer id, sequence id, number of messages and highest sequence id. Returns None for unusual commands,
    which protobuf must decode.

    Args:
        head: the frame, from its beginning, as far as a usual command reaches.
        end: where its command ends.
    """
    if end > SEND_HEAD_BYTES or head[10] != 0x32 or head[11] != end - 12 or head[12] != 0x08:
        return None
    messages = highest = 0
    try:
        producer_id, at = read_varint(head, 13)
        if head[at] != 0x10:
            return None
        sequence_id, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x18:
            messages, at = read_varint(head, at + 1)
        if at < end and head[at] == 0x30:
            highest, at = read_varint(head, at + 1)
    except (IndexError, OverflowError):
        return None
    return (producer_id, sequence_id, messages, highest) if at == end and not messages >> 31 else None
