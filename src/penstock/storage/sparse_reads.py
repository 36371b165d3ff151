# SPDX-License-Identifier: Apache-2.0
"""Entries that do not follow one another, as one batch: what is delivered again, or is due out of its order.

Why: delayed messages that are due together lie apart in the log, and whatever is sent entry by entry costs twenty
times what it costs by the run. So they are gathered first, which copies them, and are a run from then on.
Where: a reader thread gathers from the log; the tail cache gathers from what it has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.storage.results import Batch, ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.checksum import Buffer

# Reading through an entry costs a microsecond, finding one by itself a hundred (benchmarks/storage.py).
GAP_ENTRIES_MAX: Final = 64


class SparseBatch:
    """A batch that grows by rows of others, in ascending order of their entry ids."""

    __slots__ = ("_counted", "_counts", "_ids", "_lengths", "_parts", "nbytes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._lengths: list[int] = []
        self._parts: list[Buffer] = []
        self._counts: list[int] = []
        self._counted = False  # whether any entry holds more than one message
        self.nbytes = 0

    def __len__(self) -> int:
        """How many entries it has."""
        return len(self._ids)

    def add(self, batch: Batch, rows: Sequence[int]) -> None:
        """Take these rows.

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
        """The batch."""
        offsets = list(accumulate(self._lengths, initial=0))[:-1]
        counts = self._counts if self._counted else None
        return Batch(ledger_id, self._ids, b"".join(self._parts), offsets, self._lengths, counts)


def read_sparse(
    read: Callable[[int, int], ReadResult], ledger_id: int, entry_ids: Sequence[int], *, bytes_max: int
) -> ReadResult:
    """Read these ascending entries, as many as fit, and at least one if any is there. Blocks.

    Args:
        read: reads so many entries from one on, as far as its own bounds go.
        ledger_id: whose entries they are.
        entry_ids: ascending.
        bytes_max: nothing is read any more once the entries found take so much.

    Returns:
        One batch, or none, of the entries that are there; those below `next_entry_id` that it lacks are nowhere.
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
            # A read that gets nowhere has met the end of the ledger; one that finds nothing may have passed over gaps.
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
    """Cut the ids where more than `GAP_ENTRIES_MAX` others lie between two."""
    start = 0
    for index in range(1, len(entry_ids)):
        if entry_ids[index] - entry_ids[index - 1] > GAP_ENTRIES_MAX:
            yield entry_ids[start:index]
            start = index
    yield entry_ids[start:]
