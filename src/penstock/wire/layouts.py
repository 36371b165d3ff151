# SPDX-License-Identifier: Apache-2.0
"""The usual layouts of SEND frames, and a cache of their parts.

    total:4 | size:4 06-type:2 32 length 08 producer:1-2 10 | low:1-2 | high:0-8 0e01 | checksum:4 | metadata size:4 ...
             '------------------ prefix ------------------'                    '--- the entry begins here
                          → producer id                     sequence id, 7 bits a byte, lowest first

Why: the frames of a connection differ in the low part of the sequence id and in the payload. All other parts were seen
before, so they are looked up whole instead of being parsed. Where: `runs` decodes by these layouts, and adds the parts
of frames that it had to parse.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.checksum import SEAL_MAGIC
from penstock.wire.varints import LOW_MASK, encode_varint, low_part, read_varint

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


class Layout:
    """The layout of SEND frames with ids of these lengths, and a cache of their parts."""

    __slots__ = ("entry_at", "high_at", "highs", "low_at", "lows", "prefixes", "unpack")

    def __init__(self, producer_id_bytes: int, sequence_id_bytes: int) -> None:
        self.low_at = 4 + len(_send_prefix(producer_id_bytes * b"?", sequence_id_bytes))
        low_code, self.lows = low_part(sequence_id_bytes)
        self.high_at = self.low_at + min(sequence_id_bytes, 2)
        self.entry_at = self.low_at + sequence_id_bytes
        self.prefixes: dict[bytes, int] = {}  # -> producer id
        self.highs: dict[bytes, int] = {}  # -> the sequence id's bits above the low part
        high_bytes = self.entry_at + len(SEAL_MAGIC) - self.high_at
        # -> total, prefix, low, high, checksum, metadata size
        self.unpack = struct.Struct(f">I{self.low_at - 4}s{low_code}{high_bytes}sII").unpack_from

    def learn(self, frame: memoryview, producer_id: int, sequence_id: int) -> bool:
        """Cache the parts of a frame whose ids are known; return False if it does not match this layout."""
        prefix = _send_prefix(encode_varint(producer_id), self.entry_at - self.low_at)
        head = bytes(frame[4 : self.entry_at + 2])
        if not (head.startswith(prefix) and head.endswith(SEAL_MAGIC)):
            return False
        # The sequence id as it is written, padded or not, as long as it has the layout's length.
        if read_varint(head, len(prefix))[1] != len(head) - len(SEAL_MAGIC):
            return False
        for learnt in (self.prefixes, self.highs):
            if len(learnt) >= LEARNT_MAX:
                learnt.clear()
        self.prefixes[prefix] = producer_id
        self.highs[bytes(frame[self.high_at : self.entry_at + 2])] = sequence_id & ~LOW_MASK
        return True


def _send_prefix(producer_id: bytes, sequence_id_bytes: int) -> bytes:
    """Return the bytes of a SEND without optional fields between its total size and its sequence id."""
    body_bytes = 1 + len(producer_id) + 1 + sequence_id_bytes
    return struct.pack(">I4sB", 4 + body_bytes, SEND_START + bytes((0x32, body_bytes)), 0x08) + producer_id + b"\x10"


LAYOUTS: Final = {
    (producer_id_bytes, sequence_id_bytes): Layout(producer_id_bytes, sequence_id_bytes)
    for producer_id_bytes in range(1, PRODUCER_ID_BYTES_MAX + 1)
    for sequence_id_bytes in range(1, SEQUENCE_ID_BYTES_MAX + 1)
}
_ANY_LAYOUT: Final = LAYOUTS[1, 2]


def layout_at(view: memoryview, pos: int) -> Layout:
    """Return the layout that fits the frame at `pos`, if one does."""
    producer_id_bytes = 1 if view[pos + 13] < 128 else 2
    return LAYOUTS.get((producer_id_bytes, view[pos + 11] - 2 - producer_id_bytes), _ANY_LAYOUT)


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
