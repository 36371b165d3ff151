# SPDX-License-Identifier: Apache-2.0
"""Pairs of a due time and an entry id in the order of time, 17 bytes each.

Why arrays and not a dictionary of slots: delays spread over a month put nearly every message into a slot of its own. A
dictionary entry, two numbers and a place in an ordered set take 250 bytes. Where: `delayed_slots` keeps every slot with
few ids here, and a mark (`BITMAP`) for a slot whose ids are in a bitmap.

The pairs are in blocks of at most `BLOCK_MAX`; all pairs of one time are in one block. Adding and removing costs two
binary searches and moving half a block, whatever the number of pairs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# In place of an id: the ids of this time are in a bitmap. No entry has this id.
BITMAP: Final = 2**64 - 1
# Up to this many ids of one time are pairs. For more ids, a bitmap is smaller.
PAIRS_MAX: Final = 16
BLOCK_MAX: Final = 1_024
# Blocks of a restored table have room for a few more pairs.
_RESTORED_BLOCK: Final = 768
# Two numbers of 8 bytes, in arrays that grow by a sixteenth at a time.
PAIR_BYTES: Final = 17
_BLOCK_BYTES: Final = 300  # two arrays, their places in lists, and the first time


class TimeTable:
    """An ordered multimap from due time to entry ids.

    Attributes:
        count: the number of pairs, marks included.
    """

    __slots__ = ("_dues", "_firsts", "_ids", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []  # the first time of each block
        self._dues: list[array[int]] = []
        self._ids: list[array[int]] = []
        self.count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all pairs and blocks."""
        return PAIR_BYTES * self.count + _BLOCK_BYTES * len(self._firsts)

    @property
    def first_ms(self) -> int | None:
        """The earliest time; None when the table is empty."""
        return self._firsts[0] if self._firsts else None

    @property
    def last_ms(self) -> int | None:
        """The latest time; None when the table is empty."""
        return self._dues[-1][-1] if self._dues else None

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, due_ms: int, entry_ids: Sequence[int]) -> Sequence[int] | None:
        """Add ids to this time, which must have no mark.

        Returns None; or, if the time then has more than `PAIRS_MAX` ids, all its ids, which a mark replaces in the
        table.
        """
        if not self._dues or due_ms > self._dues[-1][-1]:
            return self._append(due_ms, entry_ids)
        at, low, high = self._find(due_ms)
        dues, ids = self._dues[at], self._ids[at]
        if high - low + len(entry_ids) > PAIRS_MAX:
            entry_ids = [*ids[low:high], *entry_ids]
            dues[low:high], ids[low:high] = array("q", (due_ms,)), array("Q", (BITMAP,))
            self.count += 1 - (high - low)
            self._added(at, low)
            return entry_ids
        for entry_id in entry_ids:
            dues.insert(high, due_ms)
            ids.insert(high, entry_id)
            high += 1
        self.count += len(entry_ids)
        self._added(at, low)
        return None

    def _append(self, due_ms: int, entry_ids: Sequence[int]) -> Sequence[int] | None:
        if not self._dues or len(self._dues[-1]) >= BLOCK_MAX:
            self._firsts.append(due_ms)
            self._dues.append(array("q"))
            self._ids.append(array("Q"))
        crowded = len(entry_ids) > PAIRS_MAX
        added = (BITMAP,) if crowded else entry_ids
        self._dues[-1].extend((due_ms,) * len(added))
        self._ids[-1].extend(added)
        self.count += len(added)
        return entry_ids if crowded else None

    def _added(self, at: int, low: int) -> None:
        """Update a block after pairs were inserted from row `low` on."""
        dues = self._dues[at]
        if not low:
            self._firsts[at] = dues[0]
        if len(dues) > BLOCK_MAX:
            middle = self._group_end(dues, len(dues) // 2)
            if middle < len(dues):
                ids = self._ids[at]
                self._firsts.insert(at + 1, dues[middle])
                self._dues[at : at + 1] = [dues[:middle], dues[middle:]]
                self._ids[at : at + 1] = [ids[:middle], ids[middle:]]

    def restore(self, dues_ms: array[int], entry_ids: array[int]) -> None:
        """Append pairs in the order of time, which are later than all others."""
        row = 0
        while row < len(dues_ms):
            stop = self._group_end(dues_ms, min(row + _RESTORED_BLOCK, len(dues_ms)) - 1)
            self._firsts.append(dues_ms[row])
            self._dues.append(dues_ms[row:stop])
            self._ids.append(entry_ids[row:stop])
            row = stop
        self.count += len(dues_ms)

    # -- out ----------------------------------------------------------------------------------------------------------

    def remove(self, due_ms: int) -> array[int]:
        """Remove and return all ids of this time, which must exist; one mark if they are in a bitmap."""
        at, low, high = self._find(due_ms)
        gone = self._ids[at][low:high]
        self._cut(at, low, high)
        return gone

    def tail(self, least_ms: int) -> tuple[array[int], array[int]]:
        """Return copies of the last block's pairs whose time is `least_ms` or later."""
        dues = self._dues[-1]
        row = bisect_left(dues, least_ms)
        return dues[row:], self._ids[-1][row:]

    def cut_tail(self, from_ms: int) -> None:
        """Remove the last block's pairs whose time is `from_ms` or later."""
        dues = self._dues[-1]
        self._cut(len(self._dues) - 1, bisect_left(dues, from_ms), len(dues))

    def _cut(self, at: int, low: int, high: int) -> None:
        dues = self._dues[at]
        self.count -= high - low
        if high - low == len(dues):
            del self._firsts[at], self._dues[at], self._ids[at]
            return
        del dues[low:high], self._ids[at][low:high]
        if not low:
            self._firsts[at] = dues[0]

    def clear(self) -> None:
        del self._firsts[:], self._dues[:], self._ids[:]
        self.count = 0

    # -- asking -------------------------------------------------------------------------------------------------------

    def at(self, due_ms: int) -> array[int]:
        """Return the ids of this time in the order in which they were added; one mark if they are in a bitmap."""
        if not self._dues:
            return array("Q")
        at, low, high = self._find(due_ms)
        return self._ids[at][low:high]

    def next_ms(self, due_ms: int) -> int | None:
        """Return the first time after this one; None when there is none."""
        dues, _ = self.after(due_ms)
        return dues[0] if dues else None

    def after(self, due_ms: int) -> tuple[array[int], array[int]]:
        """Return times and ids of the next pairs after this time, up to the end of their block.

        Pairs of one time are never split. The result is empty when there are no more pairs.
        """
        at = max(bisect_right(self._firsts, due_ms) - 1, 0)
        while at < len(self._dues):
            row = bisect_right(self._dues[at], due_ms)
            if row < len(self._dues[at]):
                return self._dues[at][row:], self._ids[at][row:]
            at += 1
        return array("q"), array("Q")

    def _find(self, due_ms: int) -> tuple[int, int, int]:
        """Return the block of this time, the row of its first pair, and the row after its last pair."""
        at = max(bisect_right(self._firsts, due_ms) - 1, 0)
        dues = self._dues[at]
        low = bisect_left(dues, due_ms)
        high = low
        while high < len(dues) and dues[high] == due_ms:
            high += 1
        return at, low, high

    @staticmethod
    def _group_end(dues: array[int], row: int) -> int:
        """Return the row after the pairs that have the same time as this row."""
        return bisect_right(dues, dues[row], row)
