# SPDX-License-Identifier: Apache-2.0
"""Records: the bytes of the blocks of a segment. Pure, no files.

One `AppendRun`, or several small ones, become one block:

    front | data | back            front = header + table, back = header + the same table

The header contains the block's place (segment, nonce, offset), the lengths of its parts, and how far the segment was
known to be durable when the block was written (`synced`). The table names the entries: groups of consecutive entries of
one ledger, then columns of offsets, lengths and (if any entry holds more than one message) message counts. Offsets
count from the start of the data; bytes between entries have no meaning.

Why two copies: a flipped bit in one copy does no harm, and a block is recognised as incomplete if one of its ends was
never written. Why a nonce: segments are recycled, and clients choose the data. Neither old bytes nor the payload of a
message can pass for a block of this segment.

A mark is a single header behind the last block. It says "everything before this is durable" where no later block can
say it. The next block overwrites it; in a full segment it stays.

All integers are little-endian. `docs/internals/entry-log.md` has a drawing of the format.
"""

from __future__ import annotations

import struct
import sys
from array import array
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer

# Unlikely in any payload. The last byte is the version of the format.
BLOCK_MAGIC: Final = b"\xf5penLog\x01"

_PLACE: Final = struct.Struct("<8sQ")  # magic, segment id: a search for headers looks for these bytes
_HEADER: Final = struct.Struct("<8sQQQQIIIIIIII")
_CRC: Final = struct.Struct("<I")
_SINGLE: Final = struct.Struct("<8sQQQQIIIIIIIIIQQIII")  # header, checksum, and the table of one entry
_GROUP_BYTES: Final = 20  # ledger u64, first entry u64, count u32
# The table of one entry that holds one message: at low rates every block is one.
_ONE_ENTRY: Final = struct.Struct("<QQIII")
_U32: Final = "I"
_U64: Final = "Q"

HEADER_BYTES: Final = _HEADER.size + _CRC.size
HAS_MESSAGE_COUNTS: Final = 1
_NO_FIT: Final = 0xFFFFFFFF


class Kind(IntEnum):
    """The kind of a header."""

    FRONT = 1
    BACK = 2
    MARK = 3


# Looking a member up takes as long as encoding a header.
_FRONT, _BACK, _MARK = (int(kind) for kind in (Kind.FRONT, Kind.BACK, Kind.MARK))


class Stamp(NamedTuple):
    """The place of a group commit, which all its headers contain."""

    segment_id: int
    nonce: int  # drawn anew for each segment
    synced: int  # the segment is durable below this offset


class Header(NamedTuple):
    """A header read from disk, with a correct checksum."""

    segment_id: int
    nonce: int
    offset: int  # of the block in its segment, in all three kinds
    synced: int
    kind: int
    block_bytes: int
    data_bytes: int
    group_count: int
    entry_count: int
    flags: int
    data_crc: int
    table_crc: int

    @property
    def table_bytes(self) -> int:
        """The length of the table behind this header."""
        return table_bytes(self.group_count, self.entry_count, has_message_counts=bool(self.flags & HAS_MESSAGE_COUNTS))

    @property
    def front_bytes(self) -> int:
        """The length of header and table; the data begins there."""
        return HEADER_BYTES + self.table_bytes

    @property
    def end(self) -> int:
        """The offset after the block."""
        return self.offset + self.block_bytes


class Table(NamedTuple):
    """The entries of a block and their places in its data.

    The first three columns have a row for each group (consecutive entries of one ledger), the others a row for each
    entry, in group order.
    """

    ledger_ids: list[int]
    first_entries: list[int]
    entry_counts: list[int]
    offsets: array[int]
    lengths: array[int]
    message_counts: array[int] | None  # None: each entry holds one message

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ledger id, first entry id, number of entries)."""
        return zip(self.ledger_ids, self.first_entries, self.entry_counts, strict=True)


def table_bytes(group_count: int, entry_count: int, *, has_message_counts: bool) -> int:
    """Return the length of a table in bytes."""
    return group_count * _GROUP_BYTES + entry_count * (12 if has_message_counts else 8)


def block_bytes(group_count: int, entry_count: int, data_bytes: int, *, has_message_counts: bool) -> int:
    """Return the length of a whole block in bytes."""
    table = group_count * _GROUP_BYTES + entry_count * (12 if has_message_counts else 8)  # as `table_bytes` says
    return 2 * (HEADER_BYTES + table) + data_bytes


def needle(segment_id: int) -> bytes:
    """Return the bytes that every header of this segment begins with."""
    return _PLACE.pack(BLOCK_MAGIC, segment_id)


def encode_block(
    stamp: Stamp,
    offset: int,
    groups: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    lengths: Sequence[int],
    message_counts: Sequence[int] | None,
    data: Sequence[Buffer],
    placeholders: bool = False,  # noqa: FBT001, FBT002 - a column of `Block`
) -> tuple[bytes, bytes]:
    """Return the front and the back of a block whose data is `data`, at `offset` of the segment.

    `placeholders`: the data stands for entries that are lost, so its checksum must not fit.
    """
    table = _encode_table(groups, offsets, lengths, message_counts)
    data_bytes = data_crc = 0
    for buffer in data:
        data_bytes += len(buffer)
        data_crc = crc32c(buffer, data_crc)
    rest = (
        2 * (HEADER_BYTES + len(table)) + data_bytes,
        data_bytes,
        len(groups),
        len(offsets),
        0 if message_counts is None else HAS_MESSAGE_COUNTS,
        data_crc ^ _NO_FIT if placeholders else data_crc,
        crc32c(table),
    )
    segment_id, nonce, synced = stamp
    front = _HEADER.pack(BLOCK_MAGIC, segment_id, nonce, offset, synced, _FRONT, *rest)
    back = _HEADER.pack(BLOCK_MAGIC, segment_id, nonce, offset, synced, _BACK, *rest)
    return front + _CRC.pack(crc32c(front)) + table, back + _CRC.pack(crc32c(back)) + table


def encode_mark(stamp: Stamp, offset: int) -> bytes:
    """Return the mark at `offset`, which says that everything below `stamp.synced` is durable."""
    segment_id, nonce, synced = stamp
    header = _HEADER.pack(BLOCK_MAGIC, segment_id, nonce, offset, synced, _MARK, HEADER_BYTES, 0, 0, 0, 0, 0, 0)
    return header + _CRC.pack(crc32c(header))


def _encode_table(
    groups: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    lengths: Sequence[int],
    message_counts: Sequence[int] | None,
) -> bytes:
    if len(offsets) == 1 == len(groups) and message_counts is None:
        return _ONE_ENTRY.pack(*groups[0], offsets[0], lengths[0])
    ledgers, firsts, counts = zip(*groups, strict=True)
    columns = [_pack(_U64, ledgers), _pack(_U64, firsts), _pack(_U32, counts)]
    columns += [_pack(_U32, offsets), _pack(_U32, lengths)]
    if message_counts is not None:
        columns.append(_pack(_U32, message_counts))
    return b"".join(columns)


def decode_header(buffer: Buffer, at: int) -> Header | None:
    """Return the header at index `at` of `buffer`, or None if there is no intact one."""
    if at + HEADER_BYTES > len(buffer):
        return None
    magic, *fields = _HEADER.unpack_from(buffer, at)
    if magic != BLOCK_MAGIC:
        return None
    (crc,) = _CRC.unpack_from(buffer, at + _HEADER.size)
    if crc != crc32c(memoryview(buffer)[at : at + _HEADER.size]):
        return None
    return Header(*fields)


def decode_table(buffer: Buffer, at: int, header: Header) -> Table | None:
    """Return the table at index `at` of `buffer`, or None if it does not match `header`."""
    groups, entries = header.group_count, header.entry_count
    view = memoryview(buffer)[at : at + header.table_bytes]
    if len(view) != header.table_bytes or crc32c(view) != header.table_crc:
        return None
    at = _GROUP_BYTES * groups
    return Table(
        ledger_ids=_unpack(_U64, view, 0, groups).tolist(),
        first_entries=_unpack(_U64, view, 8 * groups, groups).tolist(),
        entry_counts=_unpack(_U32, view, 16 * groups, groups).tolist(),
        offsets=_unpack(_U32, view, at, entries),
        lengths=_unpack(_U32, view, at + 4 * entries, entries),
        message_counts=_unpack(_U32, view, at + 8 * entries, entries) if header.flags & HAS_MESSAGE_COUNTS else None,
    )


class Rows(NamedTuple):
    """Consecutive entries of one ledger in the table of a block."""

    first_entry: int
    offsets: Sequence[int]
    lengths: Sequence[int]
    message_counts: Sequence[int] | None  # None: each entry holds one message


def decode_rows(buffer: Buffer, at: int, header: Header, ledger_id: int) -> list[Rows] | None:
    """Return the rows of one ledger of the table at index `at` of `buffer`, or None as `decode_table` does.

    Budget: 4 µs for a few rows, however many others the table has.
    """
    groups, entries = header.group_count, header.entry_count
    if len(buffer) < at + header.table_bytes or crc32c(memoryview(buffer)[at : at + header.table_bytes]) != (
        header.table_crc
    ):
        return None
    ledger_ids = _column(_U64, groups)(buffer, at)
    found: list[Rows] = []
    offsets_at = at + _GROUP_BYTES * groups
    group = row = 0
    for _ in range(ledger_ids.count(ledger_id)):
        before = group
        group = ledger_ids.index(ledger_id, before)
        *passed, count = _column(_U32, group + 1 - before)(buffer, at + 16 * groups + 4 * before)
        row += sum(passed)
        (first_entry,) = _column(_U64, 1)(buffer, at + 8 * (groups + group))
        rows_at, column = offsets_at + 4 * row, _column(_U32, count)
        counts = column(buffer, rows_at + 8 * entries) if header.flags & HAS_MESSAGE_COUNTS else None
        found.append(Rows(first_entry, column(buffer, rows_at), column(buffer, rows_at + 4 * entries), counts))
        row += count
        group += 1
    return found


def decode_single(
    block: bytes, segment_id: int, offset: int, block_bytes: int, ledger_id: int, entry_id: int
) -> bytes | None:
    """Return the entry of a block that holds no other one; None if this is not such a block, intact and of this place.

    The entry itself is not checked. Budget: 1.5 µs: blocks of one entry are many, where topics get few messages.
    """
    if len(block) != block_bytes or block_bytes < _SINGLE.size:
        return None
    (magic, *place, _, kind, size, _, groups, entries, flags, _, table_crc, crc, ledger, first, count, at, length) = (
        _SINGLE.unpack_from(block)
    )
    if (
        groups != 1
        or entries != 1
        or flags
        or place[0] != segment_id
        or place[2] != offset
        or (magic, kind, size, ledger, first, count) != (BLOCK_MAGIC, Kind.FRONT, block_bytes, ledger_id, entry_id, 1)
        or crc32c(block[: _HEADER.size]) != crc
        or crc32c(block[HEADER_BYTES : _SINGLE.size]) != table_crc
    ):
        return None
    return block[_SINGLE.size + at : _SINGLE.size + at + length]


@lru_cache(1024)
def _column(typecode: str, count: int) -> Callable[[Buffer, int], tuple[int, ...]]:
    """Return what decodes a column of so many integers; small columns repeat."""
    return struct.Struct(f"<{count}{typecode}").unpack_from


# For speed: one call per column, none per entry.
def _pack(typecode: str, values: Sequence[int]) -> bytes:
    column = array(typecode, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _unpack(typecode: str, view: memoryview, at: int, count: int) -> array[int]:
    column = array(typecode)
    column.frombytes(view[at : at + count * column.itemsize])
    if sys.byteorder == "big":
        column.byteswap()
    return column
