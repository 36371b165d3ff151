# SPDX-License-Identifier: Apache-2.0
"""Reads a few entries of each of many blocks: those of one ledger, where others were written in between.

Why: topics are written in turns, so the entries of one topic lie kilobytes apart. The blocks are read in groups: first
the tables of all of them, then the wanted entries of all of them, so that each step is few calls, and the disk has
something to do at the same time. The system's page cache is what all readers of these blocks share (docs/adr/0060).

Where: `Reader`, for spans of which less than half of the block is wanted, and for small blocks that lie apart.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.checksum import all_sealed
from penstock.core.units import KIB
from penstock.storage.files import read_exactly
from penstock.storage.ranges import GAP_BYTES_MAX
from penstock.storage.records import HEADER_BYTES, decode_header, decode_rows, decode_single

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.storage.files import File
    from penstock.storage.index import Span
    from penstock.storage.ranges import Range, RangeReader
    from penstock.storage.records import Header, Rows
    from penstock.storage.results import Wanted

# Most fronts are smaller: one read gets header and table.
_FRONT_BYTES_MIN: Final = 4 * KIB
# So many blocks make a group.
BLOCKS_MAX: Final = 64


class _Found(NamedTuple):
    """The wanted rows of one block, or of consecutive blocks with one entry each."""

    spans: list[Span]
    first_entry: int
    offsets: Sequence[int] | None  # in the segment; None: the block is not as written
    lengths: Sequence[int] = ()
    message_counts: Sequence[int] | None = None
    parts: list[bytes] | None = None  # the entries of a small block, which were read with its table


def is_small(span: Span) -> bool:
    """Return whether a block is so small that it is best read whole."""
    return span.block_bytes <= GAP_BYTES_MAX


def read_scattered(
    file: File,
    segment_id: int,
    spans: Sequence[Span],
    wanted: Wanted,
    ranges: RangeReader,
    read_doubtful: Callable[[Span], None],
) -> None:
    """Read the wanted entries of these spans.

    `read_doubtful` is called for a block that is not as written. Raises OSError, after adding the entries before.
    """
    found, error = _find(file, segment_id, spans, wanted, ranges)
    apart = ranges.read(file, _ranges(found, wanted))
    for rows in found:
        if wanted.full:
            return
        if rows.offsets is not None:
            if rows.first_entry != wanted.entry_id:
                return  # The index is not as the blocks are.
            lengths = rows.lengths if rows.parts is None else list(map(len, rows.parts))
            fit = wanted.fit(lengths)
            parts = list(islice(apart, fit)) if rows.parts is None else rows.parts[:fit]
            if all_sealed(parts):
                fit = len(parts)  # Fewer, if others were found to be damaged.
                wanted.gather(parts, lengths[:fit], rows.message_counts and rows.message_counts[:fit])
                continue
        for row, span in enumerate(rows.spans):
            # `fit` may have found the limits reached by entries that are damaged.
            if row and (wanted.entry_id != span.first_entry or min(wanted.bytes_left, wanted.entries_left) <= 0):
                return
            read_doubtful(span)
    if error is not None and not wanted.full:
        raise error


def _find(
    file: File, segment_id: int, spans: Sequence[Span], wanted: Wanted, ranges: RangeReader
) -> tuple[list[_Found], OSError | None]:
    """Read tables; return the wanted rows of each block, up to the first failed read."""
    sizes = (span.block_bytes if is_small(span) else _front_bytes(span) for span in spans)
    fronts = ranges.read(file, [(span.block_offset, size) for span, size in zip(spans, sizes, strict=True)])
    found: list[_Found] = []
    singles: list[bytes] | None = None  # the entries of the last element
    entry_id, ledger_id = wanted.entry_id, wanted.ledger_id
    for span in spans:
        try:
            front = next(fronts)
            if span.entries == 1 and span.first_entry == entry_id:
                single = decode_single(front, segment_id, span.block_offset, span.block_bytes, ledger_id, entry_id)
                if single is not None:
                    if singles is None:
                        singles = []
                        found.append(_Found([], entry_id, (), [], None, singles))
                    found[-1].spans.append(span)
                    singles.append(single)
                    entry_id += 1
                    continue
            singles = None
            found.append(_find_rows(file, segment_id, span, front, (ledger_id, entry_id)))
        except OSError as error:
            return found, error
        entry_id = span.end_entry
    return found, None


def _find_rows(file: File, segment_id: int, span: Span, front: bytes, first: tuple[int, int]) -> _Found:
    """Return the rows of a block from this ledger and entry id on; `front` is its beginning. Raises OSError."""
    header = decode_header(front, 0)
    if header is not None and is_where(header, segment_id, span):
        if len(front) < header.front_bytes <= span.block_bytes:
            front += read_exactly(file, header.front_bytes - len(front), span.block_offset + len(front))
        tables = decode_rows(front, HEADER_BYTES, header, first[0])
        if tables is not None:
            found = _consecutive(span, tables, span.block_offset + header.front_bytes, first[1])
            if is_small(span):
                at = [offset - span.block_offset for offset in found.offsets or ()]
                parts = [front[begin : begin + length] for begin, length in zip(at, found.lengths, strict=True)]
                return found._replace(parts=parts)
            return found
    return _Found([span], first[1], None)


def _consecutive(span: Span, tables: list[Rows], base: int, entry_id: int) -> _Found:
    """Return the rows from this entry on that have consecutive ids. The data of the block begins at `base`."""
    first_entry = entry_id
    offsets: list[int] = []
    lengths: list[int] = []
    counts: list[int] = []
    for rows in tables:
        skipped = entry_id - rows.first_entry
        if 0 <= skipped < len(rows.offsets) and rows.first_entry < span.end_entry:
            offsets += [base + offset for offset in rows.offsets[skipped:]]
            lengths += rows.lengths[skipped:]
            counts += rows.message_counts[skipped:] if rows.message_counts is not None else ()
            entry_id = rows.first_entry + len(rows.offsets)
    return _Found([span], first_entry, offsets, lengths, counts or None)


def _front_bytes(span: Span) -> int:
    """Return how much of a block probably has its table: that of entries of half a kilobyte."""
    return min(span.block_bytes, max(_FRONT_BYTES_MIN, span.block_bytes // 64))


def is_where(header: Header, segment_id: int, span: Span) -> bool:
    """Return whether this header is of the block that the index means."""
    return (header.segment_id, header.offset, header.block_bytes) == (segment_id, span.block_offset, span.block_bytes)


def _ranges(found: Sequence[_Found], wanted: Wanted) -> list[Range]:
    """Return where the entries are that were not read yet, as many as are wanted."""
    bytes_left, entries_left = wanted.bytes_left, wanted.entries_left
    ranges: list[Range] = []
    for rows in found:
        lengths = rows.lengths if rows.parts is None else list(map(len, rows.parts))
        fit = min(entries_left, len(lengths))
        bytes_left -= sum(lengths[:fit])
        entries_left -= fit
        if rows.parts is None and rows.offsets is not None:
            ranges += zip(rows.offsets[:fit], lengths[:fit], strict=True)
        if bytes_left <= 0 or entries_left <= 0:
            break
    while len(ranges) > 1 and bytes_left < 0:
        bytes_left += ranges.pop()[1]
    return ranges
