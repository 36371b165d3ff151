# SPDX-License-Identifier: Apache-2.0
"""The tail cache: recently published entries, in memory for consumers that keep up.

Why: a consumer at the tail must not wait for the disk. Runs are kept as they were received, shared by all topics and
subscriptions, and charged once to one budget. The oldest run is dropped first; a consumer that still needs it reads it
from the log.
Where: publish adds a run when it is durable; subscriptions look up by entry id.

Several subscriptions mostly send the same frames, because each client numbers its consumers from the same number on. So
the first one may replace a run by its frames, which hold the same entries, and others send parts of them uncopied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.governance.budget import Row
from penstock.storage.results import Batch
from penstock.storage.sparse_reads import SparseBatch
from penstock.wire.deliveries import JOIN_BYTES_MAX, encode_messages
from penstock.wire.varints import share_high

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.checksum import Buffer

# By how much the header of an entry's delivery may be longer than that of its publish; usually by 10.
HEADER_GROWTH_BYTES: Final = 32
# Memory of an entry beside its publish: an offset and a length, as objects in lists (measured), and a longer header.
COLUMNS_BYTES: Final = 72 + HEADER_GROWTH_BYTES
# The fewest entries that are replaced by their frames.
FRAMES_MIN: Final = 16


class EncodedBatch(Batch):
    """A batch whose data is its frames for a consumer with this id and epoch, one behind the other."""

    __slots__ = ("consumer", "header_bytes")

    def __init__(self, batch: Batch, data: bytes, offsets: list[int], consumer: tuple[int, int | None]) -> None:
        super().__init__(batch.ledger_id, batch.entry_ids, data, offsets, batch.lengths, batch.message_counts)
        self.durable_ns = batch.durable_ns
        self.consumer = consumer  # id and epoch
        self.header_bytes = offsets[0]

    def frames(self, start: int, stop: int) -> memoryview:
        """The frames of the rows `start..stop-1`."""
        last = stop - 1
        return memoryview(self.data)[self.offsets[start] - self.header_bytes : self.offsets[last] + self.lengths[last]]


class Tail:
    """One topic's part of the cache: its newest entries, and older ones gathered for a subscription."""

    __slots__ = ("alone", "batches", "firsts", "gathered")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.firsts: list[int] = []
        self.alone: set[int] = set()  # the first ids of batches that do not share their data with those of other tails
        self.gathered: tuple[Batch, ...] = ()

    def find(self, entry_id: int) -> tuple[Batch, int] | None:
        """The batch and row of this entry; None if it is not cached."""
        index = bisect_right(self.firsts, entry_id) - 1
        if index < 0:
            return None
        batch = self.batches[index]
        row = entry_id - self.firsts[index]
        return (batch, row) if row < len(batch.offsets) else None

    def encoded(self, batch: Batch, partition: int, consumer: tuple[int, int | None]) -> EncodedBatch | None:
        """The batch with its frames, which replaces it; None if it is not cached any more, or not suited.

        The frames are those for a consumer with this id and epoch, unless there are some for another one already.
        """
        found = self.find(batch.entry_ids[0])
        if found is None:
            return None
        cached, row = found
        if isinstance(cached, EncodedBatch):
            return cached if cached.lengths is batch.lengths else None
        ids, lengths = batch.entry_ids, batch.lengths
        suited = cached is batch and ids[0] in self.alone and len(ids) >= FRAMES_MIN
        if not suited or row or max(lengths) > JOIN_BYTES_MAX or not share_high(ids):
            return None
        out: list[Buffer] = []
        consumer_id, epoch = consumer
        nbytes = encode_messages(
            out, consumer_id, batch.ledger_id, partition, ids, batch.data, batch.offsets, lengths, None, epoch
        )
        if nbytes > len(batch.data) + HEADER_GROWTH_BYTES * len(ids):
            return None
        header_bytes = (nbytes - sum(lengths)) // len(lengths)
        offsets = list(accumulate([length + header_bytes for length in lengths[:-1]], initial=header_bytes))
        encoded = EncodedBatch(batch, b"".join(out), offsets, consumer)
        self.batches[bisect_right(self.firsts, ids[0]) - 1] = encoded
        return encoded

    def gather(self, entry_ids: Sequence[int], bytes_max: int) -> Batch | None:
        """Return ascending entries as one batch, up to the first that is not cached; None if none is before it.

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


class TailCache(Row):
    """The tails of all topics, and their row of the memory budget."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__("tail-cache", limit_bytes)
        self._runs: deque[tuple[int, list[Tail], bool]] = deque()

    def add(self, parts: list[tuple[Tail, Batch]], nbytes: int) -> None:
        """Add one durable run of `nbytes`, with a batch for each of these tails."""
        for tail, batch in parts:
            tail.batches.append(batch)
            tail.firsts.append(batch.entry_ids[0])
            if len(parts) == 1:
                tail.alone.add(batch.entry_ids[0])
        self._keep(nbytes, [tail for tail, _ in parts], gathered=False)

    def add_gathered(self, tail: Tail, batch: Batch) -> None:
        """Add entries that one subscription has gathered, because other subscriptions may need them, too."""
        tail.gathered = (*tail.gathered, batch)
        self._keep(len(batch.data) + COLUMNS_BYTES * len(batch.offsets), [tail], gathered=True)

    def _keep(self, nbytes: int, tails: list[Tail], *, gathered: bool) -> None:
        self._runs.append((nbytes, tails, gathered))
        self.charge(nbytes)
        while self.used_bytes > self.limit_bytes:
            self._evict()

    def _evict(self) -> None:
        """Runs leave in the order they came, so each finds its batch at the front of its tails."""
        nbytes, tails, gathered = self._runs.popleft()
        self.release(nbytes)
        for tail in tails:
            if gathered:
                tail.gathered = tail.gathered[1:]
            else:
                tail.alone.discard(tail.firsts[0])
                del tail.firsts[0], tail.batches[0]
