# SPDX-License-Identifier: Apache-2.0
"""Counts the messages and bytes of entries, without reading the entries.

Why: whoever reads a topic in portions of so many messages must know where a portion ends. Entries are batches of as
many messages as their producer liked, and the data of a topic is thousands of times larger than the numbers that say
so. Those are in the tables at the front of blocks.

Where: called from reader threads, through `EntryLog.count`. It never fails: where a table cannot be read, it stops, and
the caller reads the entries from there on, which names what is wrong with them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import KIB, MIB
from penstock.storage.blocks import HEADER_BYTES, decode_header, decode_table
from penstock.storage.files import read_exactly
from penstock.storage.results import pieces

if TYPE_CHECKING:
    from penstock.storage.blocks import Table
    from penstock.storage.files import File
    from penstock.storage.index import Span
    from penstock.storage.log_index import LogIndex
    from penstock.storage.segment import SegmentStore

# The work of one count: about 20 µs a block, of which a group commit writes one, and the bytes of tables.
BLOCKS_MAX: Final = 256
TABLE_BYTES_MAX: Final = 4 * MIB
# Most fronts are smaller: one read gets header and table.
_FRONT_BYTES_GUESS: Final = 4 * KIB
_PLAN_BYTES: Final = 64 * MIB


class Counted(NamedTuple):
    """Entries that were counted.

    Attributes:
        next_entry_id: the first entry that was not.
        entries: their number.
        messages: in them.
        bytes: as stored.
        next_messages: how many messages the next entry holds, if that was what did not fit; else 0.
    """

    next_entry_id: int
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    next_messages: int = 0


class Counter:
    """Counts in one log. Thread-safe."""

    def __init__(self, store: SegmentStore, index: LogIndex) -> None:
        self._store = store
        self._index = index

    def count(
        self, ledger_id: int, entry_id: int, end_entry_id: int, messages_max: int | None, bytes_max: int | None
    ) -> Counted:
        """Count whole entries from `entry_id` on, before `end_entry_id`, within these limits and those of the work.

        Raises:
            IndexDamaged: as `LogIndex.plan`.
        """
        task = _Task(ledger_id, max(entry_id, self._index.first_wanted(ledger_id)), end_entry_id)
        task.messages_max, task.bytes_max = messages_max, bytes_max
        while not task.is_done:
            plan = self._index.plan(ledger_id, task.at, bytes_max=_PLAN_BYTES, entries_max=BLOCKS_MAX)
            if plan is None or plan.spans[0].first_entry > task.at:
                break
            at = task.at
            try:
                with self._store.borrow(plan.segment_id) as file:
                    if file is not None:
                        task.count(file, plan.segment_id, plan.spans)
            except OSError:
                break
            if task.at == at:
                break
        return Counted(task.at, task.entries, task.messages, task.bytes, task.next_messages)


class _Task:
    """One count."""

    def __init__(self, ledger_id: int, at: int, end: int) -> None:
        self.ledger_id, self.at, self.end = ledger_id, at, end
        self.messages_max: int | None = None
        self.bytes_max: int | None = None
        self.entries = self.messages = self.bytes = self.next_messages = 0
        self._blocks = self._table_bytes = 0
        self._is_full = False

    @property
    def is_done(self) -> bool:
        return self._has_all or self._blocks >= BLOCKS_MAX or self._table_bytes >= TABLE_BYTES_MAX

    @property
    def _has_all(self) -> bool:
        return self._is_full or self.at >= self.end

    def count(self, file: File, segment_id: int, spans: list[Span]) -> None:
        """Count in these blocks. Raises OSError."""
        for span in spans:
            if self.is_done:
                return
            table = self._table(file, segment_id, span)
            before = self.at
            for first, row, count in pieces(table, self.ledger_id) if table else ():
                skipped = self.at - first
                if 0 <= skipped < count and first < span.end_entry and not self._has_all:
                    assert table is not None
                    self._add(table, row + skipped, min(row + count, row + self.end - first))
            if self.at == before:
                return

    def _add(self, table: Table, begin: int, stop: int) -> None:
        """Count these rows of a table, as many as fit."""
        counts = table.message_counts
        lengths = table.lengths[begin:stop]
        messages = [1] * len(lengths) if counts is None else counts[begin:stop]
        fit = len(lengths)
        if self.messages_max is not None and self.messages + sum(messages) > self.messages_max:
            fit = bisect_right(list(accumulate(messages)), self.messages_max - self.messages)
        if self.bytes_max is not None and self.bytes + sum(lengths[:fit]) > self.bytes_max:
            fit = bisect_right(list(accumulate(lengths[:fit])), self.bytes_max - self.bytes)
        if fit < len(lengths):
            self._is_full, self.next_messages = True, messages[fit]
        self.at += fit
        self.entries += fit
        self.messages += sum(messages[:fit])
        self.bytes += sum(lengths[:fit])

    def _table(self, file: File, segment_id: int, span: Span) -> Table | None:
        """Read the table at the front of a block; None if it is not as it was written. Raises OSError."""
        self._blocks += 1
        front = read_exactly(file, min(span.block_bytes, _FRONT_BYTES_GUESS), span.block_offset)
        header = decode_header(front, 0)
        if header is None or (header.segment_id, header.offset) != (segment_id, span.block_offset):
            return None
        if len(front) < header.front_bytes <= span.block_bytes:
            front += read_exactly(file, header.front_bytes - len(front), span.block_offset + len(front))
        self._table_bytes += header.table_bytes
        return decode_table(front, HEADER_BYTES, header)
