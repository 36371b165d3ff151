# SPDX-License-Identifier: Apache-2.0
"""The result of a read, and how it is collected.

Where: `Reader` fills a `Wanted` block by block until its limits are reached; the broker gets the `ReadResult`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.blocks import Table
    from penstock.storage.index import Span


class Batch:
    """Entries in one buffer, with consecutive ids, or with ascending ones from `sparse_reads`.

    Shapes: entry `entry_ids[i]` is `data[offsets[i]:][:lengths[i]]`, sealed as it was appended; it holds
    `message_counts[i]` messages, or one if `message_counts` is None, as producers said. `recounted` is for readers that
    have replaced that by what the entries hold. `durable_ns` is the turn of the loop in which they became durable, for
    entries of the tail; 0 for others.
    """

    __slots__ = ("data", "durable_ns", "entry_ids", "ledger_id", "lengths", "message_counts", "offsets", "recounted")

    def __init__(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        data: Buffer,
        offsets: Sequence[int],
        lengths: Sequence[int],
        message_counts: Sequence[int] | None,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.data = data
        self.offsets = offsets
        self.lengths = lengths
        self.message_counts = message_counts
        self.recounted = False
        self.durable_ns = 0

    def entries(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (entry id, entry). For tools and tests; hot paths use the columns."""
        view = memoryview(self.data)
        for entry_id, offset, length in zip(self.entry_ids, self.offsets, self.lengths, strict=True):
            yield entry_id, view[offset : offset + length]


class ReadResult:
    """The entries that a read found, in order, and the next entry to read."""

    __slots__ = ("batches", "damaged", "members", "next_entry_id", "too_large_bytes")

    def __init__(self, next_entry_id: int) -> None:
        self.batches: list[Batch] = []
        self.next_entry_id = next_entry_id
        self.damaged: list[tuple[int, int]] = []  # (ledger id, entry id) of skipped entries
        self.members: dict[int, list[int]] | None = None  # of compacted batches: the messages left, as 64-bit words
        self.too_large_bytes = 0  # the length of the next entry, if nothing was read because it is too large


# Copies of small entries are joined to batches of about this size.
_JOINED_BYTES_MAX: Final = 512 * KIB


class _Open:
    """The last batch of a result, which the next entries join if they follow in the same buffer."""

    __slots__ = ("counts", "data", "ids", "lengths", "offsets")

    def __init__(
        self, data: Buffer, ids: range, offsets: list[int], lengths: list[int], counts: list[int] | None
    ) -> None:
        self.data = data
        self.ids = ids
        self.offsets = offsets
        self.lengths = lengths
        self.counts = counts


class _Parts:
    """Small entries with consecutive ids that will be one batch."""

    __slots__ = ("_counts", "_first", "_lengths", "_nbytes", "_parts")

    def __init__(self, first_entry: int, *, has_counts: bool) -> None:
        self._first = first_entry
        self._parts: list[bytes] = []
        self._lengths: list[int] = []
        self._counts: list[int] | None = [] if has_counts else None
        self._nbytes = 0

    def may_take(self, entry_id: int, nbytes: int, *, has_counts: bool) -> bool:
        return (
            self._nbytes + nbytes <= _JOINED_BYTES_MAX
            and self._first + len(self._lengths) == entry_id
            and (self._counts is not None) == has_counts
        )

    def take(self, data: bytes, lengths: Sequence[int], counts: Sequence[int] | None) -> None:
        self._parts.append(data)
        self._lengths += lengths
        self._nbytes += len(data)
        if self._counts is not None and counts is not None:
            self._counts += counts

    def batch(self, ledger_id: int) -> Batch:
        lengths = self._lengths
        offsets = [0, *accumulate(lengths[:-1])]
        ids = range(self._first, self._first + len(lengths))
        return Batch(ledger_id, ids, b"".join(self._parts), offsets, lengths, self._counts)


class Wanted:
    """Demand of one read that is left, and its result so far."""

    __slots__ = (
        "_bytes_max", "_first_bytes_max", "_last", "_parts", "_result", "bytes_left", "entries_left", "entry_id",
        "full", "ledger_id",
    )  # fmt: skip

    def __init__(
        self, ledger_id: int, entry_id: int, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bytes_left = self._bytes_max = bytes_max
        self.entries_left = entries_max
        self.full = bytes_max <= 0 or entries_max <= 0  # The limits are reached.
        self._result = ReadResult(entry_id)
        self._first_bytes_max = first_bytes_max
        self._last: _Open | None = None
        self._parts: _Parts | None = None

    @property
    def result(self) -> ReadResult:
        """The result so far."""
        self._join()
        return self._result

    @property
    def has_half(self) -> bool:
        """Whether at least half of what may be read was found."""
        return 2 * self.bytes_left <= self._bytes_max

    def go_on_at(self, entry_id: int) -> None:
        """Continue at this entry."""
        self.entry_id = self._result.next_entry_id = entry_id

    def leave(self, nbytes: int) -> None:
        """Want so many bytes less, because something else takes their memory."""
        self.bytes_left -= nbytes

    def skip(self, entry_id: int) -> None:
        """Name an entry that cannot be served."""
        self._result.damaged.append((self.ledger_id, entry_id))

    def take(self, data: Buffer, base: int, table: Table, span: Span, bad: set[int]) -> None:
        """Take the wanted entries of a block whose data begins at `base` of `data`."""
        for first, row, count in pieces(table, self.ledger_id):
            if span.first_entry <= first < span.end_entry:
                self._take_rows(data, base, table, first, row, count, bad)

    def _take_rows(
        self, data: Buffer, base: int, table: Table, first: int, row: int, count: int, bad: set[int]
    ) -> None:
        skipped = self.entry_id - first
        if not 0 <= skipped < count:
            return
        begin, end = row + skipped, row + count
        lengths = table.lengths[begin:end].tolist()
        counts = table.message_counts[begin:end].tolist() if table.message_counts is not None else None
        offsets = [offset + base for offset in table.offsets[begin:end]]
        self.add(data, range(first + skipped, first + count), offsets, lengths, counts, bad)

    def gather(self, data: bytes, lengths: Sequence[int], counts: Sequence[int] | None) -> None:
        """Add the next entries, which follow one another in `data`: as many as `fit` has returned.

        Small ones are copied together.
        """
        if not lengths:
            return
        nbytes, gathered = len(data), self._parts
        if gathered is None or not gathered.may_take(self.entry_id, nbytes, has_counts=counts is not None):
            self._join()
            gathered = self._parts = _Parts(self.entry_id, has_counts=counts is not None)
        gathered.take(data, lengths, counts)
        self.go_on_at(self.entry_id + len(lengths))
        self._took(len(lengths), nbytes)

    def _join(self) -> None:
        if self._parts is not None:
            self._result.batches.append(self._parts.batch(self.ledger_id))
            self._parts = self._last = None

    def _took(self, entries: int, nbytes: int) -> None:
        self.entries_left -= entries
        self.bytes_left -= nbytes
        self.full = self.full or self.entries_left <= 0 or self.bytes_left <= 0

    def add(
        self,
        data: Buffer,
        ids: range,
        offsets: list[int],
        lengths: list[int],
        counts: list[int] | None,
        bad: set[int],
    ) -> None:
        """Add entries with consecutive ids to the result, within the limits and without the bad ones."""
        fit = self.fit(lengths)
        begin = 0
        for end in [*(index for index in range(fit) if ids[index] in bad), fit] if bad else [fit]:
            if begin < end:
                piece = slice(begin, end)
                self._append(data, ids[piece], offsets[piece], lengths[piece], counts and counts[piece])
            if end < fit:
                self.skip(ids[end])
            begin = end + 1
        if fit:
            self.go_on_at(ids[fit - 1] + 1)
        self._took(fit, sum(lengths[:fit]))

    def _append(
        self, data: Buffer, ids: range, offsets: list[int], lengths: list[int], counts: list[int] | None
    ) -> None:
        self._join()
        last = self._last
        if (
            last is None
            or last.data is not data
            or last.ids.stop != ids.start
            or (last.counts is None) != (counts is None)
        ):
            self._last = _Open(data, ids, offsets, lengths, counts)
            self._result.batches.append(Batch(self.ledger_id, ids, data, offsets, lengths, counts))
            return
        last.ids = range(last.ids.start, ids.stop)
        last.offsets += offsets
        last.lengths += lengths
        if last.counts is not None and counts is not None:
            last.counts += counts
        self._result.batches[-1].entry_ids = last.ids

    def fit(self, lengths: Sequence[int]) -> int:
        """Return how many of these entries fit the limits; one if there is none yet and it is not too large."""
        fit = min(len(lengths), self.entries_left)
        if sum(lengths) > self.bytes_left:
            fit = min(fit, bisect_right(list(accumulate(lengths)), self.bytes_left))
        if fit == 0 and lengths and not self._result.batches and self._parts is None:
            if self._first_bytes_max is None or lengths[0] <= self._first_bytes_max:
                fit = 1
            else:
                self._result.too_large_bytes = lengths[0]
        self.full = self.full or fit < len(lengths)
        return fit


def pieces(table: Table, ledger_id: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first entry id, first row, count) of each group of a ledger."""
    ledger_ids, at, row = table.ledger_ids, 0, 0
    for _ in range(ledger_ids.count(ledger_id)):
        group = ledger_ids.index(ledger_id, at)
        row += sum(table.entry_counts[at:group])
        yield table.first_entries[group], row, table.entry_counts[group]
        row += table.entry_counts[group]
        at = group + 1
