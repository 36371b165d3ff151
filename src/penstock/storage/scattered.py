# SPDX-License-Identifier: Apache-2.0
"""Reads a few entries of each of many blocks: those of one ledger, where others were written in between.

Why: topics are written in turns, so the entries of one topic lie kilobytes apart. The blocks are read in groups: first
the tables of all of them, then the wanted entries of all of them, so that each step is few calls, and the disk has
something to do at the same time. The system's page cache is what all readers of these blocks share (docs/adr/0060).

Where: `Reader`, for spans of which less than half of the block is wanted, and for small blocks that lie apart.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
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
# Of an entry in a table.
_ROW_BYTES: Final = 8
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
    places = _places(found, wanted)
    apart = ranges.read(file, [one for _, several in places for one in several])
    for rows, (number, several) in zip(found, places, strict=False):
        if wanted.full:
            return
        if rows.offsets is not None:
            if rows.first_entry != wanted.entry_id:
                return  # The index is not as the blocks are.
            # Fewer than fit were read if others were found to be damaged.
            fit = min(wanted.fit(rows.lengths), number)
            lengths = rows.lengths[:fit]
            data = b"".join(islice(apart, len(several) if fit else 0) if rows.parts is None else rows.parts[:fit])
            if fit < number and rows.parts is None:
                data = data[: sum(lengths)]
            if all_sealed(data, lengths):
                wanted.gather(data, lengths, rows.message_counts and rows.message_counts[:fit])
                continue
        for row, span in enumerate(rows.spans):
            # `fit` may have found the limits reached by entries that are damaged.
            if row and (wanted.entry_id != span.first_entry or min(wanted.bytes_left, wanted.entries_left) <= 0):
                return
            read_doubtful(span)
    if error is not None and not wanted.full and len(places) == len(found):
        raise error


def _find(
    file: File, segment_id: int, spans: Sequence[Span], wanted: Wanted, ranges: RangeReader
) -> tuple[list[_Found], OSError | None]:
    """Read tables; return the wanted rows of each block, up to the first failed read."""
    fronts = ranges.read(file, [_front(span) for span in spans])
    found: list[_Found] = []
    singles: tuple[list[bytes], list[int]] | None = None  # the entries of the last element, and their lengths
    entry_id, ledger_id = wanted.entry_id, wanted.ledger_id
    for span in spans:
        try:
            front = next(fronts)
            if span.entries == 1 and span.first_entry == entry_id:
                single = decode_single(front, segment_id, span.block_offset, span.block_bytes, ledger_id, entry_id)
                if single is not None:
                    if singles is None:
                        singles = [], []
                        found.append(_Found([], entry_id, (), singles[1], None, singles[0]))
                    found[-1].spans.append(span)
                    singles[0].append(single)
                    singles[1].append(len(single))
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


def _front(span: Span) -> Range:
    """Return what of a block is read first: all of a small one, else what probably has its table.

    That is so if all entries of the block are about as large as these.
    """
    if is_small(span):
        return span.block_offset, span.block_bytes
    entries = span.block_bytes * span.entries // max(span.entry_bytes, 1)
    size = min(span.block_bytes, max(_FRONT_BYTES_MIN, _ROW_BYTES * entries + _FRONT_BYTES_MIN // 2))
    return span.block_offset, size


def is_where(header: Header, segment_id: int, span: Span) -> bool:
    """Return whether this header is of the block that the index means."""
    return (header.segment_id, header.offset, header.block_bytes) == (segment_id, span.block_offset, span.block_bytes)


def _places(found: Sequence[_Found], wanted: Wanted) -> list[tuple[int, list[Range]]]:
    """Return how many rows of each of these are wanted, and where those are that were not read yet.

    Rows beyond what is wanted are left out, but the first one is not.
    """
    bytes_left, entries_left = wanted.bytes_left, wanted.entries_left
    places: list[tuple[int, list[Range]]] = []
    for rows in found:
        fit = min(entries_left, len(rows.lengths))
        nbytes = sum(rows.lengths[:fit])
        if nbytes > bytes_left:
            fit = max(bisect_right(list(accumulate(rows.lengths[:fit])), bytes_left), not places)
        read = rows.parts is not None or rows.offsets is None or not fit
        places.append((fit, [] if read else _joined(rows.offsets[:fit], rows.lengths[:fit])))  # type: ignore[index]
        bytes_left -= nbytes
        entries_left -= fit
        if bytes_left <= 0 or entries_left <= 0:
            break
    return places


def _joined(offsets: Sequence[int], lengths: Sequence[int]) -> list[Range]:
    """Return where these entries are; entries that follow one another are one range."""
    start = offsets[0]
    ends = list(accumulate(lengths, initial=start))
    if ends[:-1] == list(offsets):  # Usually: a run's entries of one topic are written together.
        return [(start, ends[-1] - start)]
    ranges: list[Range] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if ranges and sum(ranges[-1]) == offset:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
        else:
            ranges.append((offset, length))
    return ranges
