# SPDX-License-Identifier: Apache-2.0
"""The index in memory: which blocks of a segment hold which entries. It can always be rebuilt from the log.

The index has two halves. This half covers the segment that is being written, and sealed segments until their rows are
stored in the other half (`penstock.storage.sealed_index`). So memory and open files do not grow with the number of
retained entries or topics.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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


class Stretch(NamedTuple):
    """The blocks of consecutive entries of one ledger in one segment."""

    segment_id: int
    ledger_id: int
    spans: Sequence[Span]  # ascending, without gaps, at least one

    @property
    def first_entry(self) -> int:
        return self.spans[0].first_entry

    @property
    def last_entry(self) -> int:
        return self.spans[-1].end_entry - 1

    @property
    def entry_bytes(self) -> int:
        """The length of all its entries."""
        return sum(span.entry_bytes for span in self.spans)


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


def at_or_after(spans: Sequence[Span], entry_id: int) -> int:
    """Return the index of the span that holds `entry_id`, or of the next one."""
    index = bisect_right(spans, entry_id, key=_first_entry)
    return index - 1 if index and spans[index - 1].end_entry > entry_id else index


def _first_entry(span: Span) -> int:
    return span.first_entry


class SegmentIndex:
    """The entries of one segment and their blocks, in memory. Its owner guards it with a lock."""

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.bytes = 0
        self.entries = 0
        self.ledgers: dict[int, list[Span]] = {}

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
        spans = self.ledgers.setdefault(ledger_id, [])
        last = spans[-1] if spans else None
        end_entry = -1 if last is None else last.first_entry + last.entries
        if last is None or end_entry < span.first_entry:
            spans.append(span)
        elif end_entry > span.first_entry:
            insort(spans, span)
        elif last.block_offset == span.block_offset:  # Interleaved ledgers: one span per block is enough.
            spans[-1] = last._replace(
                entries=last.entries + span.entries, entry_bytes=last.entry_bytes + span.entry_bytes
            )
        else:
            spans.append(span)

    def stretches(self, trimmed: Mapping[int, int]) -> Iterator[Stretch]:
        """Yield the stretches to store of this segment: those that end above their ledger's trim point."""
        for ledger_id, spans in self.ledgers.items():
            begin = 0
            keep_from = trimmed.get(ledger_id, 0)
            for end in range(1, len(spans) + 1):
                if end < len(spans) and spans[end].first_entry == spans[end - 1].end_entry:
                    continue
                if spans[end - 1].end_entry > keep_from:
                    yield Stretch(self.segment_id, ledger_id, spans[begin:end])
                begin = end


def pack_spans(spans: Sequence[Span]) -> bytes:
    """Encode spans column by column: first entries as u64, the rest as u32."""
    columns = zip(*spans, strict=True)
    return b"".join(_little(array(code, column)).tobytes() for code, column in zip("QIIII", columns, strict=True))


def unpack_spans(packed: bytes) -> list[Span]:
    count = len(packed) // 24
    view, columns, at = memoryview(packed), [], 0
    for code in "QIIII":
        column = array(code)
        size = count * column.itemsize
        column.frombytes(view[at : at + size])
        columns.append(_little(column))
        at += size
    return list(map(Span, *columns))


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column.byteswap()
    return column
