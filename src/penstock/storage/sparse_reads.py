# SPDX-License-Identifier: Apache-2.0
"""Reads entries that are not consecutive as one batch: entries to redeliver, or delayed ones that are due.

Why: delayed messages that are due together are apart in the log, and delivering entries one by one costs twenty times
as much as delivering a run. So they are copied into one batch first. Where: a reader thread reads them from the log;
the tail cache takes them from memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.storage.results import Batch, ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer

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
