# SPDX-License-Identifier: Apache-2.0
"""The index in memory: which blocks of a segment hold which entries. It can always be rebuilt from the log.

The index has two halves. This half covers the segment that is being written, and sealed segments until their rows are
stored in the other half (`penstock.storage.sealed_index`). So memory and open files do not grow with the number of
retained entries or topics.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, overload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# ---------------------------------------------------------------------------------------------------------------------
# Extents: how many bytes the entries of a ledger take, according to the index.
#
# Why: retention by size, backlog quotas and statistics need the size of a part of a topic, or the entry at which a part
# of a given size begins. The index knows the sizes of blocks; within a block, all entries count as equally large.
# Where: `LogIndex` lists extents and calls these functions. Pure.


class Extent(NamedTuple):
    """Consecutive entries and the bytes they take together."""

    first_entry: int
    end_entry: int  # after the last one
    bytes: int


def ordered(extents: Iterable[Extent]) -> list[Extent]:
    """Sort extents by entry id, each entry once: while entries are moved, the index has them twice."""
    out: list[Extent] = []
    covered = 0
    for extent in sorted(extents):
        if extent.end_entry > covered:
            out.append(behind(extent, covered))
            covered = extent.end_entry
    return out


def bytes_from(extents: Sequence[Extent], entry_id: int) -> int:
    """Return the bytes of the entry and all later ones."""
    return sum(behind(extent, entry_id).bytes for extent in extents if extent.end_entry > entry_id)


def entry_with_behind(extents: Sequence[Extent], nbytes: int) -> int:
    """Return the first entry that, with all later ones, takes at most `nbytes`; the end if there is none."""
    at = extents[-1].end_entry if extents else 0
    for extent in reversed(extents):
        if extent.bytes > nbytes:
            entries = extent.end_entry - extent.first_entry
            return extent.end_entry - entries * nbytes // extent.bytes
        nbytes -= extent.bytes
        at = extent.first_entry
    return at


def behind(extent: Extent, entry_id: int) -> Extent:
    """Return the part of an extent from this entry on."""
    first, end, nbytes = extent
    if entry_id <= first:
        return extent
    return Extent(entry_id, end, nbytes * (end - entry_id) // (end - first))


class IndexDamaged(Exception):
    """The index is inconsistent; rebuild it from the log."""


class Gap(IndexDamaged):
    """The index knows no place of entries that should be there."""

    def __init__(self, ledger_id: int, first_entry: int) -> None:
        self.ledger_id, self.first_entry = ledger_id, first_entry
        super().__init__(f"ledger {ledger_id} has no entry {first_entry}")


class Span(NamedTuple):
    """Consecutive entries of one ledger in one block."""

    first_entry: int
    entries: int
    block_offset: int
    block_bytes: int
    entry_bytes: int  # the sum of these entries

    @property
    def end_entry(self) -> int:
        """The entry id after the last one."""
        return self.first_entry + self.entries


# The columns of spans: first entries as u64, the rest as u32, since a segment has less than 4 GiB.
_CODES: Final = "QIIII"


class Spans(Sequence[Span]):
    """Spans in ascending order, 24 bytes each.

    Why columns: a client that publishes one small message at a time makes each a block of its own, hundreds of
    thousands in a segment. As objects they took 200 bytes each: up to 90 MiB for a segment of 64 MiB.

    Attributes:
        firsts, counts, offsets, block_bytes, entry_bytes: one column for each field of `Span`.
    """

    __slots__ = ("block_bytes", "counts", "entry_bytes", "firsts", "offsets")

    def __init__(self, columns: Iterable[array[int]] | None = None) -> None:
        made = (array(code) for code in _CODES) if columns is None else columns
        self.firsts, self.counts, self.offsets, self.block_bytes, self.entry_bytes = made

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self.firsts, self.counts, self.offsets, self.block_bytes, self.entry_bytes

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Spans:
        """Make them of spans in ascending order."""
        found = cls()
        for span in spans:
            found.append(span)
        return found

    def append(self, span: Span) -> None:
        """Add the last one."""
        first, count, offset, block_bytes, entry_bytes = span
        self.firsts.append(first)
        self.counts.append(count)
        self.offsets.append(offset)
        self.block_bytes.append(block_bytes)
        self.entry_bytes.append(entry_bytes)

    def insert_sorted(self, span: Span) -> None:
        """Insert behind those that begin before it."""
        place = bisect_right(self.firsts, span.first_entry)
        for column, value in zip(self._columns, span, strict=True):
            column.insert(place, value)

    def packed(self) -> bytes:
        """Encode column by column, little endian."""
        return b"".join(_little(column[:]).tobytes() for column in self._columns)

    @classmethod
    def unpacked(cls, packed: bytes) -> Spans:
        """Decode what `packed` has encoded."""
        count = len(packed) // 24
        view, columns, at = memoryview(packed), [], 0
        for code in _CODES:
            column = array(code)
            size = count * column.itemsize
            column.frombytes(view[at : at + size])
            columns.append(_little(column))
            at += size
        return cls(columns)

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Span]:
        return map(Span, *self._columns)

    @overload
    def __getitem__(self, place: int) -> Span: ...
    @overload
    def __getitem__(self, place: slice) -> Spans: ...
    def __getitem__(self, place: int | slice) -> Span | Spans:
        if isinstance(place, slice):
            return Spans(column[place] for column in self._columns)
        return Span(
            self.firsts[place],
            self.counts[place],
            self.offsets[place],
            self.block_bytes[place],
            self.entry_bytes[place],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spans({list(self)})"


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column.byteswap()
    return column


class Stretch(NamedTuple):
    """The blocks of consecutive entries of one ledger in one segment."""

    segment_id: int
    ledger_id: int
    spans: Spans  # without gaps, at least one

    @property
    def first_entry(self) -> int:
        return self.spans[0].first_entry

    @property
    def last_entry(self) -> int:
        return self.spans[-1].end_entry - 1

    @property
    def entry_bytes(self) -> int:
        """The length of all its entries."""
        return sum(self.spans.entry_bytes)


class Damage(NamedTuple):
    """Bytes on disk that are not as they were written, with ledger and entry id if known."""

    segment_id: int
    offset: int
    bytes: int
    ledger_id: int | None
    entry_id: int | None
    reason: str

    def describe(self) -> str:
        """Return a sentence for people."""
        name = "unknown entries" if self.ledger_id is None else f"entry {self.ledger_id}:{self.entry_id}"
        return f"{name}, {self.bytes} bytes at {self.offset} of segment {self.segment_id:x}: {self.reason}"


def at_or_after(spans: Spans, entry_id: int) -> int:
    """Return the index of the span that holds `entry_id`, or of the next one."""
    index = bisect_right(spans.firsts, entry_id)
    return index - 1 if index and spans[index - 1].end_entry > entry_id else index


class SegmentIndex:
    """The entries of one segment and their blocks, in memory. Its owner guards it with a lock."""

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.bytes = 0
        self.entries = 0
        self.ledgers: dict[int, Spans] = {}

    def add_block(self, offset: int, size: int, groups: Iterable[tuple[int, int, int]], lengths: Sequence[int]) -> None:
        """Add a block: the groups and lengths of its table."""
        row = 0
        for ledger_id, first_entry, count in groups:
            self.add(ledger_id, Span(first_entry, count, offset, size, sum(lengths[row : row + count])))
            row += count
        self.entries += row
        self.bytes = offset + size

    def add(self, ledger_id: int, span: Span) -> None:
        """Add one span. Entries moved here from an older segment may come out of order."""
        spans = self.ledgers.get(ledger_id)
        if spans is None:
            spans = self.ledgers[ledger_id] = Spans()
        end_entry = spans.firsts[-1] + spans.counts[-1] if spans.firsts else -1
        if end_entry < span.first_entry:
            spans.append(span)
        elif end_entry > span.first_entry:
            spans.insert_sorted(span)
        elif spans.offsets[-1] == span.block_offset:  # Interleaved ledgers: one span per block is enough.
            spans.counts[-1] += span.entries
            spans.entry_bytes[-1] += span.entry_bytes
        else:
            spans.append(span)

    def stretches(self, trimmed: Mapping[int, int]) -> Iterator[Stretch]:
        """Yield the stretches to store of this segment: those that end above their ledger's trim point."""
        for ledger_id, spans in self.ledgers.items():
            begin = 0
            keep_from = trimmed.get(ledger_id, 0)
            firsts, counts = spans.firsts, spans.counts
            for end in range(1, len(spans) + 1):
                if end < len(spans) and firsts[end] == firsts[end - 1] + counts[end - 1]:
                    continue
                if spans[end - 1].end_entry > keep_from:
                    yield Stretch(self.segment_id, ledger_id, spans[begin:end])
                begin = end
