# SPDX-License-Identifier: Apache-2.0
"""The tail cache: recently published entries, in memory for consumers that keep up.

Why: a consumer at the tail must not wait for the disk. Runs are kept as they were received, shared by all topics and
subscriptions, and charged once to one budget. The oldest run is dropped first; a consumer that still needs it reads it
from the log.
Where: publish adds a run when it is durable; subscriptions look up by entry id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.storage.sparse_reads import SparseBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.entry_log import Batch

# Measured memory of an entry beside its bytes: an offset and a length, as objects in lists.
COLUMNS_BYTES: Final = 72


class Tail:
    """One topic's part of the cache: its newest entries, and older ones gathered for a subscription."""

    __slots__ = ("batches", "firsts", "gathered")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.firsts: list[int] = []
        self.gathered: tuple[Batch, ...] = ()

    def find(self, entry_id: int) -> tuple[Batch, int] | None:
        """The batch and row of this entry; None if it is not cached."""
        index = bisect_right(self.firsts, entry_id) - 1
        if index < 0:
            return None
        batch = self.batches[index]
        row = entry_id - self.firsts[index]
        return (batch, row) if row < len(batch.offsets) else None

    def gather(self, entry_ids: Sequence[int], bytes_max: int) -> Batch | None:
        """These ascending entries as one batch, up to the first that is not cached; None if that is the first.

        Stops soon after `bytes_max` bytes. Budget: 1 µs per entry on one core.
        """
        gathering, at, ledger_id = SparseBatch(), 0, 0
        while at < len(entry_ids) and gathering.nbytes < bytes_max:
            found = self.find(entry_ids[at]) or self._find_gathered(entry_ids[at])
            if found is None:
                break
            batch, row = found
            rows = _rows(batch, row, entry_ids, at)
            gathering.add(batch, rows)
            at += len(rows)
            ledger_id = batch.ledger_id
        return gathering.finish(ledger_id) if gathering else None

    def _find_gathered(self, entry_id: int) -> tuple[Batch, int] | None:
        for batch in reversed(self.gathered):
            ids = batch.entry_ids
            row = bisect_left(ids, entry_id)
            if row < len(ids) and ids[row] == entry_id:
                return batch, row
        return None


def _rows(batch: Batch, row: int, entry_ids: Sequence[int], at: int) -> list[int]:
    """The rows of `entry_ids[at:]` in a batch, starting with `row`, up to the first entry that it lacks."""
    ids = batch.entry_ids
    if isinstance(ids, range):
        return [one - ids.start for one in entry_ids[at : bisect_right(entry_ids, ids[-1], at)]]
    rows = []
    for one in entry_ids[at:]:
        row = bisect_left(ids, one, row)
        if row == len(ids) or ids[row] != one:
            break
        rows.append(row)
    return rows


class TailCache:
    """The tails of all topics, with one budget in bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._runs: deque[tuple[int, list[Tail], bool]] = deque()

    def add(self, parts: list[tuple[Tail, Batch]], nbytes: int) -> None:
        """Add one durable run of `nbytes`, with a batch for each of these tails."""
        for tail, batch in parts:
            tail.batches.append(batch)
            tail.firsts.append(batch.entry_ids[0])
        self._keep(nbytes, [tail for tail, _ in parts], gathered=False)

    def add_gathered(self, tail: Tail, batch: Batch) -> None:
        """Add entries that one subscription has gathered, because other subscriptions may need them, too."""
        tail.gathered = (*tail.gathered, batch)
        self._keep(len(batch.data) + COLUMNS_BYTES * len(batch.offsets), [tail], gathered=True)

    def _keep(self, nbytes: int, tails: list[Tail], *, gathered: bool) -> None:
        self._runs.append((nbytes, tails, gathered))
        self.used_bytes += nbytes
        while self.used_bytes > self.budget_bytes:
            self._evict()

    def _evict(self) -> None:
        """Runs leave in the order they came, so each finds its batch at the front of its tails."""
        nbytes, tails, gathered = self._runs.popleft()
        self.used_bytes -= nbytes
        for tail in tails:
            if gathered:
                tail.gathered = tail.gathered[1:]
            else:
                del tail.firsts[0], tail.batches[0]
