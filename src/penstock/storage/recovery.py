# SPDX-License-Identifier: Apache-2.0
"""Recovery: what a segment holds, found out from its bytes alone.

`scan` walks a segment block by block and skips over what it cannot read. `judge` then separates two things that look
alike and are not:

- A torn tail: what was being written when the machine stopped. Nobody was told that it is durable. It is cut off.
- Damage: bytes that were durable once and are not now as they were written. They are named and stepped over, and
  everything else is served.

The line between them is drawn by the segment itself. Each block says how far the segment was durable when the block
was written, and a mark says so where no block follows. Below the highest such word lies nothing but acknowledged data:
what is bad there is damage. Beyond it lies at most the last group commit, acknowledged or not, nobody can know. There a
block with exactly one fault, explainable by a single flipped bit, counts as damaged and stays; with any more it was
torn, and the segment ends before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, is_sealed
from penstock.core.units import MIB
from penstock.storage.files import read_up_to
from penstock.storage.index import Damage, SegmentIndex
from penstock.storage.records import HEADER_BYTES, Header, Kind, Table, decode_header, decode_table, needle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.files import File

# One read of the scan. Larger blocks are read whole.
_WINDOW_BYTES: Final = 4 * MIB


class BadEntry(NamedTuple):
    """An entry that is not what its seal says."""

    ledger_id: int
    entry_id: int
    offset: int  # in the segment
    bytes: int


class FoundBlock(NamedTuple):
    """A block whose table could be read."""

    header: Header
    table: Table
    bad: list[BadEntry]
    one_flip_explains: bool  # Nothing is wrong with it, or nothing that a single flipped bit could not have done.


@dataclass(slots=True)
class Scan:
    """What was found in one segment."""

    segment_id: int
    blocks: list[FoundBlock] = field(default_factory=list)
    vouched_end: int = 0  # It was durable up to here, it says.
    nonce: int | None = None  # None: nothing in it was ever written under its id.
    marked: bool = False  # It ends with a mark: nothing acknowledged lies behind it.


@dataclass(slots=True)
class Verdict:
    """What a segment is taken to hold."""

    index: SegmentIndex
    end: int = 0  # The kept blocks end here.
    doubtful_from: int = 0  # Nobody vouches for what lies from here to `end`: write it again and sync it.
    damage: list[Damage] = field(default_factory=list)
    cut_blocks: int = 0  # Readable, but never known to be acknowledged, and behind something torn.


def judge(scan: Scan) -> Verdict:
    """Decide what to keep of a segment."""
    vouched_end = scan.vouched_end
    verdict = Verdict(SegmentIndex(scan.segment_id))
    for number, block in enumerate(scan.blocks):
        offset = block.header.offset
        if verdict.end < min(offset, vouched_end):
            _lose(verdict, min(offset, vouched_end))
        if offset > verdict.end or (offset >= vouched_end and not block.one_flip_explains):
            verdict.cut_blocks = len(scan.blocks) - number
            break
        verdict.index.add_block(offset, block.header.block_bytes, block.table.groups(), block.table.lengths)
        verdict.damage += [
            Damage(scan.segment_id, bad.offset, bad.bytes, bad.ledger_id, bad.entry_id, "the entry is not as sealed")
            for bad in block.bad
        ]
        verdict.end = block.header.end
    if verdict.end < vouched_end:
        _lose(verdict, vouched_end)
    verdict.doubtful_from = min(vouched_end, verdict.end)
    return verdict


def _lose(verdict: Verdict, resumed_at: int) -> None:
    """Note that no block could be read from the verdict's end up to `resumed_at`."""
    size = resumed_at - verdict.end
    reason = "both ends of the blocks here are unreadable"
    verdict.damage.append(Damage(verdict.index.segment_id, verdict.end, size, None, None, reason))
    verdict.index.bytes = verdict.end = resumed_at


def scan(file: File, segment_id: int) -> Scan:
    """Walk a segment from its beginning. Raises OSError."""
    found = Scan(segment_id)
    window = _Window(file)
    place = needle(segment_id)
    expected = 0
    while True:
        header = decode_header(window.get(expected, HEADER_BYTES), 0)
        if header is None or not _belongs(header, expected, segment_id, found.nonce):
            header = _next_header(window, expected, place, found.nonce)
        if header is None:
            return found
        found.nonce = header.nonce
        found.vouched_end = max(found.vouched_end, header.synced)
        if header.kind == Kind.MARK:
            found.marked = True
            return found  # Blocks are written over marks: nothing acknowledged lies behind one.
        block = read_block(window.get(header.offset, header.block_bytes), header)
        if block is not None:
            found.blocks.append(block)
        expected = header.end


def _next_header(window: _Window, expected: int, place: bytes, nonce: int | None) -> Header | None:
    """Search for the next header of this segment: of the block at `expected`, whose front is bad, or of a later one."""
    for at, view in window.search(place, expected):
        header = decode_header(view, 0)
        if header is not None and header.offset >= expected and _belongs(header, at, header.segment_id, nonce):
            return header
    return None


def _belongs(header: Header, at: int, segment_id: int, nonce: int | None) -> bool:
    """Say whether a header found at `at` was written there, under this id and (once it is known) nonce."""
    belongs_at = header.end - header.front_bytes if header.kind == Kind.BACK else header.offset
    return at == belongs_at and header.segment_id == segment_id and nonce in {None, header.nonce}


def read_block(view: memoryview, header: Header) -> FoundBlock | None:
    """Read the block in `view` that `header`, front or back, belongs to; None if neither of its tables is whole."""
    front, back = _end_of(view, 0, header), _end_of(view, header.block_bytes - header.front_bytes, header)
    table = front or back
    if table is None:
        return None
    data = view[header.front_bytes : header.front_bytes + header.data_bytes]
    bad = [] if crc32c(data) == header.data_crc else list(bad_entries(header, table, data))
    faults = (front is None) + (back is None) + len(bad)
    explained = faults == 0 or (faults == 1 and (not bad or differs_by_one_bit(_bytes_of(bad[0], view, header))))
    return FoundBlock(header, table, bad, explained)


def _bytes_of(bad: BadEntry, view: memoryview, header: Header) -> memoryview:
    at = bad.offset - header.offset
    return view[at : at + bad.bytes]


def find_block(view: memoryview, segment_id: int, offset: int) -> FoundBlock | None:
    """Read the block that fills `view`, by whichever end of it is whole."""
    front = decode_header(view, 0)
    if front is not None and (front.segment_id, front.offset, front.block_bytes) == (segment_id, offset, len(view)):
        return read_block(view, front)
    at = bytes(view).rfind(needle(segment_id))
    back = decode_header(view, at) if at > 0 else None
    if back is not None and (back.offset, back.block_bytes) == (offset, len(view)):
        return read_block(view, back)
    return None


def _end_of(view: memoryview, at: int, header: Header) -> Table | None:
    """Return the table of one end of the block, or None unless header and table there are whole."""
    there = decode_header(view, at)
    if there is None or there._replace(kind=header.kind) != header:
        return None
    return decode_table(view, at + HEADER_BYTES, header)


def bad_entries(header: Header, table: Table, data: memoryview) -> Iterator[BadEntry]:
    """Yield the entries of a block that do not fit their seals."""
    row = 0
    for ledger_id, first_entry, count in table.groups():
        for entry_id in range(first_entry, first_entry + count):
            offset, length = table.offsets[row], table.lengths[row]
            entry = data[offset : offset + length]
            if not is_sealed(entry):
                at = header.offset + header.front_bytes + offset
                yield BadEntry(ledger_id, entry_id, at, length)
            row += 1


def differs_by_one_bit(entry: memoryview) -> bool:
    """Say whether flipping some single bit would make this entry whole.

    Only asked for the very end of a log that was not closed: there, one flipped bit tells an acknowledged entry that
    was damaged from one whose pages never reached the disk. It is not used to repair: a guess is not what was sent.
    """
    if bytes(entry[:2]) != SEAL_MAGIC:
        distance = int.from_bytes(entry[:2], "big") ^ int.from_bytes(SEAL_MAGIC, "big")
        return distance.bit_count() == 1 and int.from_bytes(entry[2:6], "big") == crc32c(entry[6:])
    body = entry[SEAL_BYTES:]
    difference = int.from_bytes(entry[2:6], "big") ^ crc32c(body)
    if difference.bit_count() == 1:  # The flip may be in the checksum itself.
        return True
    # A checksum is linear: what one flipped bit does to it depends only on how far from the end the bit is. Start with
    # the eight bits of the last byte, and ask for each byte before it what a further zero byte makes of the flip.
    effects = {_BYTE_TABLE[1 << bit] for bit in range(8)}
    for _ in range(len(body)):
        if difference in effects:
            return True
        difference = _one_byte_back(difference)
    return False


_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, bits reversed


def _byte_table() -> list[int]:
    """Return what each value of a byte does to a CRC32C (bits reversed)."""
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_BYTE_TABLE: Final = _byte_table()
# The high byte of a table row names the row: so a step can be taken back.
_ROW_BY_HIGH_BYTE: Final = {row >> 24: value for value, row in enumerate(_BYTE_TABLE)}


def _one_byte_back(crc: int) -> int:
    """Undo what appending one zero byte does to the difference of two checksums."""
    value = _ROW_BY_HIGH_BYTE[crc >> 24]
    return (crc ^ _BYTE_TABLE[value]) << 8 & 0xFFFFFFFF | value


class _Window:
    """A segment read through a window that moves forward."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._offset = 0
        self._view = memoryview(b"")

    def get(self, offset: int, size: int) -> memoryview:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        size = min(size, self._size - offset)
        if offset < self._offset or offset + size > self._offset + len(self._view):
            self._view = memoryview(read_up_to(self._file, max(size, _WINDOW_BYTES), offset))
            self._offset = offset
        at = offset - self._offset
        return self._view[at : at + size]

    def search(self, place: bytes, start: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, header's bytes) wherever `place` is found from `start` on."""
        at = start
        while at + HEADER_BYTES <= self._size:
            chunk = read_up_to(self._file, _WINDOW_BYTES, at)
            hit = chunk.find(place)
            while hit >= 0:
                yield at + hit, self.get(at + hit, HEADER_BYTES)
                hit = chunk.find(place, hit + 1)
            # Headers may lie across the edge of two chunks.
            at += max(len(chunk) - len(place) + 1, 1)
