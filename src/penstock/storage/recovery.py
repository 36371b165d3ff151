# SPDX-License-Identifier: Apache-2.0
"""Recovery: finds out what a segment holds, from its bytes alone.

`scan` reads a segment block by block and skips what it cannot read. `judge` then distinguishes two cases that look
alike:

- A torn tail: blocks that were being written when the machine stopped. They were not acknowledged. They are cut off.
- Damage: bytes that were durable and are not as they were written. They are named and skipped; everything else is
  served.

The segment itself says which is which. Each block contains how far the segment was durable when the block was written,
and a mark says so where no block follows. Below the highest such offset all data was acknowledged: a fault there is
damage. Above it is at most the last group commit, which may have been acknowledged or not. There, a block with exactly
one fault that a single flipped bit explains counts as damaged and stays; with any other fault it counts as torn, and
the segment ends before it.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, is_sealed
from penstock.core.crc32c import crc32c
from penstock.core.errors import DataDirectoryLocked, PersistenceFailed
from penstock.core.units import MIB
from penstock.storage.blocks import (
    HEADER_BYTES,
    Header,
    Kind,
    Stamp,
    Table,
    decode_header,
    decode_table,
    encode_mark,
    needle,
)
from penstock.storage.damage import MissingEntries, MissingRange
from penstock.storage.files import FileLocked, read_exactly, read_up_to, write_all
from penstock.storage.index import Damage, IndexDamaged, SegmentIndex
from penstock.storage.log_index import LogIndex
from penstock.storage.sealed_index import SealedIndex
from penstock.storage.segment import SegmentStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.files import File, Files, Lock
    from penstock.storage.limits import LogLimits


# The size of the scan's reads. Larger blocks are read at once.
_WINDOW_BYTES: Final = 4 * MIB


class BadEntry(NamedTuple):
    """An entry that does not match its seal."""

    ledger_id: int
    entry_id: int
    offset: int  # in the segment
    bytes: int


class FoundBlock(NamedTuple):
    """A block with a readable table."""

    header: Header
    table: Table
    bad: list[BadEntry]
    one_flip_explains: bool  # It has no fault, or one that a single flipped bit explains.


@dataclass(slots=True)
class Scan:
    """The blocks found in one segment."""

    segment_id: int
    blocks: list[FoundBlock] = field(default_factory=list)
    vouched_end: int = 0  # According to its blocks, it was durable up to this offset.
    nonce: int | None = None  # None: nothing was written to it under its id.
    marked: bool = False  # It ends with a mark: nothing behind it was acknowledged.


@dataclass(slots=True)
class Verdict:
    """The part of a segment to keep."""

    index: SegmentIndex
    end: int = 0  # The end of the kept blocks.
    doubtful_from: int = 0  # From here to `end` the bytes may not be durable: write them again and sync.
    damage: list[Damage] = field(default_factory=list)
    cut_blocks: int = 0  # Readable blocks behind a torn one, which are not known to be acknowledged.


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
    """Read a segment from its beginning. Raises OSError."""
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
    """Search for the next header of this segment.

    It belongs to the block at `expected`, if its front is bad, or to a later one.
    """
    for at, view in window.search(place, expected):
        header = decode_header(view, 0)
        if header is not None and header.offset >= expected and _belongs(header, at, header.segment_id, nonce):
            return header
    return None


def _belongs(header: Header, at: int, segment_id: int, nonce: int | None) -> bool:
    """Return whether a header found at `at` was written there, with this id and (if known) this nonce."""
    belongs_at = header.end - header.front_bytes if header.kind == Kind.BACK else header.offset
    return at == belongs_at and header.segment_id == segment_id and nonce in {None, header.nonce}


def read_block(view: memoryview, header: Header) -> FoundBlock | None:
    """Read the block in `view` that `header`, front or back, belongs to; None if neither of its tables is intact."""
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
    """Read the block that fills `view`, from whichever of its ends is intact."""
    front = decode_header(view, 0)
    if front is not None and (front.segment_id, front.offset, front.block_bytes) == (segment_id, offset, len(view)):
        return read_block(view, front)
    at = bytes(view).rfind(needle(segment_id))
    back = decode_header(view, at) if at > 0 else None
    if back is not None and (back.offset, back.block_bytes) == (offset, len(view)):
        return read_block(view, back)
    return None


def _end_of(view: memoryview, at: int, header: Header) -> Table | None:
    """Return the table of one end of the block, or None unless header and table there are intact."""
    there = decode_header(view, at)
    if there is None or there._replace(kind=header.kind) != header:
        return None
    return decode_table(view, at + HEADER_BYTES, header)


def bad_entries(header: Header, table: Table, data: memoryview) -> Iterator[BadEntry]:
    """Yield the entries of a block that do not match their seals."""
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
    """Return whether flipping one bit would make this entry match its seal.

    It is only asked for the very end of a log that was not closed. There, one flipped bit distinguishes an acknowledged
    entry that was damaged from one whose pages never reached the disk. It is not used for repair: the result could be
    wrong.
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
# The high byte of a table row identifies the row, so a step can be undone.
_ROW_BY_HIGH_BYTE: Final = {row >> 24: value for value, row in enumerate(_BYTE_TABLE)}


def _one_byte_back(crc: int) -> int:
    """Undo the effect of appending one zero byte on the difference of two checksums."""
    value = _ROW_BY_HIGH_BYTE[crc >> 24]
    return (crc ^ _BYTE_TABLE[value]) << 8 & 0xFFFFFFFF | value


class _Window:
    """A segment, read through a window that moves forward."""

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


# ---------------------------------------------------------------------------------------------------------------------
# Opening: turns a directory, in whatever state, into a log that can be read and appended to.
#
#     lock → list segments → index (or none) → scan segments that it does not know → judge → make their tails durable
#
# A recovered segment is sealed, and appending goes on in a new one. So a torn write is never followed by valid blocks
# of the same segment, which would make it look like damage.

log = logging.getLogger(__name__)

# Files are truncated to a multiple of this; the rest is returned to the file system.
_CUT_BYTES: Final = 4096
_COPY_BYTES: Final = 1 * MIB
_FULL_RATIO: Final = 7 / 8


@dataclass(slots=True)
class Opened:
    """The parts that an entry log is made from."""

    lock: Lock
    store: SegmentStore
    index: LogIndex
    place: IndexFile
    damage: list[Damage] = field(default_factory=list)
    missing: MissingEntries = field(default_factory=MissingEntries)
    unknown: list[str] = field(default_factory=list)  # missing segments whose content is unknown


def open_directory(directory: Path, files: Files, limits: LogLimits, *, index_vfs: str | None) -> Opened:
    """Lock and recover the log in `directory`. Raises DataDirectoryLocked, PersistenceFailed, OSError."""
    files.make_directory(directory / "log")
    files.make_directory(directory / "index")
    try:
        lock = files.lock(directory / "lock", str(os.getpid()))
    except FileLocked as error:
        raise DataDirectoryLocked(
            f"{directory} is in use by process {error.holder or 'unknown'}; stop it, or choose another data directory"
        ) from None
    place = IndexFile(directory / "index" / "index.sqlite", files, limits.index_cache_bytes, index_vfs)
    try:
        try:
            return _recovered(lock, directory / "log", files, limits, place, place.open())
        except IndexDamaged as error:
            log.warning("the index of the entry log is damaged (%s); building it again from the log", error)
        return _recovered(lock, directory / "log", files, limits, place, place.begin_anew())
    except IndexDamaged as error:
        lock.release()
        raise PersistenceFailed(f"the index of the entry log in {directory} cannot be built: {error}") from error
    except apsw.Error as error:
        lock.release()
        raise OSError(errno.EIO, f"the index of the entry log: {error}") from error
    except BaseException:
        lock.release()
        raise


def _recovered(
    lock: Lock, directory: Path, files: Files, limits: LogLimits, place: IndexFile, sealed: SealedIndex
) -> Opened:
    store = SegmentStore(directory, files, limits)
    opened = Opened(lock, store, LogIndex(sealed), place)
    try:
        _recover(opened, limits)
    except BaseException:
        store.close()
        sealed.close()
        raise
    return opened


class IndexFile:
    """The path of the stored index, and how to recreate it."""

    def __init__(self, path: Path, files: Files, cache_bytes: int, vfs: str | None) -> None:
        self._path = path
        self._files = files
        self._cache_bytes = cache_bytes
        self._vfs = vfs

    def open(self) -> SealedIndex:
        """Open the index; if it cannot be used, create an empty one: then every segment is scanned."""
        try:
            return self._open()
        except IndexDamaged as error:
            log.warning("the index of the entry log is unusable (%s); building it again from the log", error)
        return self.begin_anew()

    def begin_anew(self) -> SealedIndex:
        """Delete the index and return an empty one. Raises IndexDamaged if that fails too."""
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                self._files.delete(self._path.with_name(self._path.name + suffix))
        return self._open()

    def _open(self) -> SealedIndex:
        return SealedIndex(self._path, cache_bytes=self._cache_bytes, vfs=self._vfs)


def rebuild(opened: Opened) -> list[Damage]:
    """Rebuild the stored index from all sealed segments, none of which may be added or removed meanwhile.

    Returns the damage in them. Raises OSError.
    """
    damage: list[Damage] = []
    opened.index.sealed.close()
    sealed = opened.place.begin_anew()
    for segment_id in opened.store.ids():
        if segment_id in opened.index.growing():
            continue
        found = _scan(opened.store, segment_id)
        if segment_id in opened.index.growing():
            continue  # The journal has just begun to write it.
        verdict = judge(found)
        if verdict.end:
            opened.index.add_sealed(sealed, verdict.index)
            sealed.add_damage(verdict.damage)
            damage += verdict.damage
    for segment_id in opened.store.lost:
        sealed.begin(segment_id, 0)  # Its rows are lost with the old index, but its file must still be missed.
    for segment_id in opened.index.growing():
        sealed.begin(segment_id, opened.store.size(segment_id))
    opened.index.replace_sealed(sealed)
    return damage


def _recover(opened: Opened, limits: LogLimits) -> None:
    store, index = opened.store, opened.index
    _look_for_lost(opened, limits)
    known, begun, empty = index.sealed.segments, index.sealed.begun(), []
    for segment_id in store.ids():
        if segment_id in known:
            continue
        found = _scan(store, segment_id)
        if not found.marked and store.size(segment_id) < begun.get(segment_id, 0) and not limits.skip_missing:
            index.held(judge(found).index)
            opened.unknown.append(f"the file of segment {segment_id:x} was cut short")
        elif found.nonce is None:
            empty.append(segment_id)
        else:
            _settle(opened, limits, found, judge(found))
    _reuse(opened, empty, max(index.growing() | known.keys(), default=0))
    opened.damage = index.sealed.damage(limits.damage_listed_max)


def _look_for_lost(opened: Opened, limits: LogLimits) -> None:
    """Find segments that the index knows and whose files are missing or too short. Raises OSError, IndexDamaged."""
    store, index = opened.store, opened.index
    present = set(store.ids())
    for segment_id, row in sorted(index.sealed.segments.items()):
        store.never_below(segment_id)
        there = store.size(segment_id) if segment_id in present else 0
        if segment_id in present and there >= row.bytes:
            continue
        if row.live_bytes <= 0 and segment_id not in present:
            index.remove_segment(segment_id)  # All its entries were trimmed.
        elif limits.skip_missing:
            _give_up(index, segment_id, there, row.bytes - there)
        else:
            store.lost[segment_id] = there
            _note_missing(opened, segment_id, there, present)
    for segment_id, size in index.sealed.begun().items():
        store.never_below(segment_id)
        if segment_id in present or segment_id in index.sealed.segments:
            continue
        if limits.skip_missing:
            _give_up(index, segment_id, 0, size)
        else:
            opened.unknown.append(f"the file of segment {segment_id:x} is missing")


def _note_missing(opened: Opened, segment_id: int, there: int, present: set[int]) -> None:
    reason = f"its file was cut to {there} bytes" if segment_id in present else "its file is missing"
    for stretch in opened.index.sealed.of_segment(segment_id):
        first = opened.index.first_wanted(stretch.ledger_id)
        lost = [span for span in stretch.spans if span.block_offset + span.block_bytes > there]
        if lost and first < lost[-1].end_entry:
            begin = max(first, lost[0].first_entry)
            opened.missing.note(MissingRange(segment_id, stretch.ledger_id, begin, lost[-1].end_entry, reason))


def _give_up(index: LogIndex, segment_id: int, there: int, size: int) -> None:
    """Remove a lost segment for good: from now on its entries are damage."""
    index.remove_segment(segment_id)
    damage = Damage(segment_id, there, size, None, None, "its file is missing; given up by autoSkipNonRecoverableData")
    index.sealed.add_damage([damage])
    log.error("damage in the entry log: %s", damage.describe())


def _scan(store: SegmentStore, segment_id: int) -> Scan:
    with store.borrow(segment_id) as file:
        assert file is not None
        return scan(file, segment_id)


def _settle(opened: Opened, limits: LogLimits, found: Scan, verdict: Verdict) -> None:
    """Make durable what a segment is judged to hold, and index it as sealed."""
    store, index, segment_id = opened.store, opened.index, found.segment_id
    if verdict.cut_blocks:
        log.info("segment %x: cut %d blocks behind a torn write", segment_id, verdict.cut_blocks)
    if verdict.end == 0:
        _recycle(opened, segment_id)
        return
    with store.borrow(segment_id) as file:
        assert file is not None
        _make_sure(file, found, verdict)
        cut_segment(file, verdict.end, limits)
    for damage in verdict.damage:
        log.warning("damage in the entry log: %s", damage.describe())
    index.recovered(verdict.index)
    try:
        index.store_sealed()
        index.sealed.add_damage(verdict.damage)
    except apsw.Error as error:
        log.warning("segment %x: its index stays in memory, for it could not be stored: %s", segment_id, error)
    log.info("segment %x: recovered %d entries in %d bytes", segment_id, verdict.index.entries, verdict.end)


def cut_segment(file: File, end: int, limits: LogLimits) -> None:
    """Free the unused rest of a sealed segment, unless it is so small that the whole file is worth more as a spare."""
    end += HEADER_BYTES  # the mark
    if end < limits.segment_bytes * _FULL_RATIO:
        file.truncate(-(-end // _CUT_BYTES) * _CUT_BYTES)


def _make_sure(file: File, found: Scan, verdict: Verdict) -> None:
    """Make durable what may only be in the page cache, and write a mark that says so.

    A sync alone is not enough: after a failed one, the kernel considers the pages clean and syncs nothing. The mark
    also ends the segment: torn writes behind it are never read again.
    """
    assert found.nonce is not None
    offset = verdict.doubtful_from
    while offset < verdict.end:
        piece = read_exactly(file, min(_COPY_BYTES, verdict.end - offset), offset)
        write_all(file, [piece], offset)
        offset += len(piece)
    file.sync()
    write_all(file, [encode_mark(Stamp(found.segment_id, found.nonce, verdict.end), verdict.end)], verdict.end)
    file.sync()


def _reuse(opened: Opened, empty: list[int], last: int) -> None:
    """Use the newest empty segment as the next one, because ids must keep growing; recycle the others."""
    store = opened.store
    for segment_id in empty:
        if segment_id == empty[-1] and segment_id > last and store.offer(segment_id):
            continue
        _recycle(opened, segment_id)


def _recycle(opened: Opened, segment_id: int) -> None:
    """Recycle an empty segment, if the index can forget it; on a full disk that waits for a later start."""
    try:
        opened.index.remove_segment(segment_id)
    except apsw.Error as error:
        log.warning("segment %x holds nothing, and stays: %s", segment_id, error)
        return
    opened.store.recycle(segment_id)
