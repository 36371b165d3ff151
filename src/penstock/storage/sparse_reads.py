# SPDX-License-Identifier: Apache-2.0
"""Reads entries that are not consecutive as one batch: entries to redeliver, or delayed ones that are due.

Why: delayed messages that are due together are apart in the log, and delivering entries one by one costs twenty times
as much as delivering a run. So they are copied into one batch first. Where: a reader thread reads them from the log;
the tail cache takes them from memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.checksum import all_sealed
from penstock.core.units import KIB
from penstock.storage.blocks import HEADER_BYTES, decode_header, decode_rows, decode_single
from penstock.storage.files import read_exactly
from penstock.storage.ranges import GAP_BYTES_MAX
from penstock.storage.results import Batch, ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.blocks import Header, Rows
    from penstock.storage.files import File
    from penstock.storage.index import Span
    from penstock.storage.ranges import Range, RangeReader
    from penstock.storage.results import Wanted


# ---------------------------------------------------------------------------------------------------------------------
# Reads a few entries of each of many blocks: those of one ledger, where others were written in between.
#
# Why: topics are written in turns, so the entries of one topic lie kilobytes apart. The blocks are read in groups:
# first the tables of all of them, then the wanted entries of all of them, so that each step is few calls, and the disk
# has something to do at the same time. The system's page cache is what all readers of these blocks share
# (docs/adr/0060).

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


# Reading an unwanted entry costs a microsecond, finding a single one a hundred (benchmarks/micro.py).
GAP_ENTRIES_MAX: Final = 64


class SparseBatch:
    """Builds a batch from rows of others, in ascending order of entry ids."""

    __slots__ = ("_counted", "_counts", "_ids", "_lengths", "_parts", "nbytes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._lengths: list[int] = []
        self._parts: list[Buffer] = []
        self._counts: list[int] = []
        self._counted = False  # whether any entry holds more than one message
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, batch: Batch, rows: Sequence[int]) -> None:
        """Copy these rows.

        Budget: 0.5 µs per entry on one core.
        """
        data, offsets, all_lengths, counts = batch.data, batch.offsets, batch.lengths, batch.message_counts
        lengths = [all_lengths[row] for row in rows]
        if not isinstance(data, bytes):
            data = memoryview(data)
        self._parts += [data[offsets[row] : offsets[row] + all_lengths[row]] for row in rows]
        self._ids += [batch.entry_ids[row] for row in rows]
        self._lengths += lengths
        self._counted = self._counted or counts is not None
        self._counts += [1] * len(rows) if counts is None else [counts[row] for row in rows]
        self.nbytes += sum(lengths)

    def finish(self, ledger_id: int) -> Batch:
        """Return the batch."""
        offsets = list(accumulate(self._lengths, initial=0))[:-1]
        counts = self._counts if self._counted else None
        return Batch(ledger_id, self._ids, b"".join(self._parts), offsets, self._lengths, counts)


def read_sparse(
    read: Callable[[int, int], ReadResult], ledger_id: int, entry_ids: Sequence[int], *, bytes_max: int
) -> ReadResult:
    """Read these ascending entries, as many as fit, and at least one if any exists. Blocks.

    Args:
        read: reads a number of entries from an entry id on, within its own limits.
        ledger_id: the ledger of the entries.
        entry_ids: ascending.
        bytes_max: no more entries are read when the found ones take this many bytes.

    Returns:
        One batch, or none, of the entries that exist; wanted entries below `next_entry_id` that it lacks do not exist.
    """
    gathering = SparseBatch()
    result = ReadResult(entry_ids[0])
    for stretch in _stretches(entry_ids):
        wanted, stop = stretch[0], stretch[-1] + 1
        while wanted < stop and gathering.nbytes < bytes_max:
            found = read(wanted, stop - wanted)
            if found.too_large_bytes:
                result.too_large_bytes = 0 if gathering else found.too_large_bytes
                break
            for batch in found.batches:
                _take(gathering, batch, stretch)
            result.damaged += found.damaged
            # A read that does not advance is at the end of the ledger; one that finds nothing may have skipped gaps.
            result.next_entry_id = wanted = min(found.next_entry_id, stop) if found.next_entry_id > wanted else stop
        if wanted < stop:
            break
    if gathering:
        result.batches.append(gathering.finish(ledger_id))
    return result


def _take(gathering: SparseBatch, batch: Batch, wanted: Sequence[int]) -> None:
    first, last = batch.entry_ids[0], batch.entry_ids[-1]
    gathering.add(batch, [one - first for one in wanted[bisect_left(wanted, first) : bisect_right(wanted, last)]])


def _stretches(entry_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split the ids where more than `GAP_ENTRIES_MAX` others lie between two."""
    start = 0
    for index in range(1, len(entry_ids)):
        if entry_ids[index] - entry_ids[index - 1] > GAP_ENTRIES_MAX:
            yield entry_ids[start:index]
            start = index
    yield entry_ids[start:]
