# SPDX-License-Identifier: Apache-2.0
"""One subscription's progress on one topic: the mark-delete position and what was acknowledged above it.

Why: acknowledgements come one by one, in stretches and out of order, and members of a batch come separately. Keeping
them as sorted ranges makes ten million acknowledged entries above one stuck entry cost two integers, and makes the
common acknowledgement (the next entry, or the next stretch) a constant amount of work.
Where: a subscription owns one cursor; dispatch asks it what to skip; the catalog stores what `encode` returns.

Theory of operation. Entry ids count from 0. Everything up to and including `mark_delete` is acknowledged. Above it lie
acknowledged ranges in two parallel arrays (first and last id, both inclusive), sorted, with at least one
unacknowledged entry between neighbours and between `mark_delete` and the first. Ranges swallowed by `mark_delete` are
dropped from the front by moving `_head`; the arrays are cut only when half of them is dead, so that walking through
millions of ranges stays linear. The cursor does not know where the topic ends: callers ignore acknowledgements of
entries that do not exist, and call `forget_after` if the end of a topic was lost.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from penstock.core.checksum import SEAL_BYTES, is_sealed, seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What Pulsar's managedLedgerMaxUnackedRangesToPersist defaults to. Ranges beyond it are redelivered after a restart.
RANGES_PERSISTED_MAX: Final = 10_000
ACK_SETS_PERSISTED_MAX: Final = 10_000

_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<BqII")  # format, mark_delete, ranges, ack sets
_ACK_SET: Final = struct.Struct("<qI")  # entry id, 64-bit words
_WORD_BITS: Final = 64
_WORD_MASK: Final = (1 << _WORD_BITS) - 1
_ALL_MEMBERS: Final = -1  # Every bit set: no member of the batch is acknowledged yet.
_HEAD_CUT_MIN: Final = 1_024
# With so many ranges, moving them for each of so many acknowledgements costs more than writing them anew once.
_MERGED_RANGES_MIN: Final = 1_000
_MERGED_MIN: Final = 16


class DamagedCursorError(ValueError):
    """Stored bytes are not what `Cursor.encode` wrote; the caller falls back to the stored mark-delete entry."""


class Cursor:
    """What one subscription has acknowledged of one topic.

    Attributes:
        mark_delete: everything up to this entry id is acknowledged; -1 when nothing is.
        version: grows with every change; equal versions mean there is nothing new to store.
    """

    __slots__ = ("_above", "_ack_sets", "_ends", "_head", "_starts", "mark_delete", "version")

    def __init__(self, mark_delete: int = -1) -> None:
        self.mark_delete = mark_delete
        self.version = 0
        self._starts: array[int] = array("q")
        self._ends: array[int] = array("q")
        self._head = 0  # Ranges before this index are dead.
        self._above = 0  # Entries in all live ranges.
        self._ack_sets: dict[int, int] = {}  # Entry id -> bit per member still wanted; only for partly acknowledged.

    # -- acknowledging

    def acknowledge(self, entry_id: int) -> bool:
        """Acknowledge one whole entry. True if it was not acknowledged before."""
        if entry_id == self.mark_delete + 1 and not self._above and not self._ack_sets:
            self.mark_delete = entry_id
            self.version += 1
            return True
        return self._add(entry_id, entry_id) == 1

    def acknowledge_many(self, entry_ids: Sequence[int]) -> int:
        """Acknowledge whole entries, in any order, repeats allowed. Returns how many were not acknowledged before.

        Works on stretches: ids that come in order, or nearly so, cost one range operation together.
        """
        if not entry_ids:
            return 0
        if isinstance(entry_ids, range) and entry_ids.step == 1:  # However long, it is one stretch.
            return self._add(entry_ids[0], entry_ids[-1])
        ordered = sorted(entry_ids)  # Linear for what is already in order, which is the usual case.
        first = last = ordered[0]
        if ordered == list(range(first, first + len(ordered))):
            return self._add(first, ordered[-1])
        stretches = []
        for entry_id in ordered:
            if entry_id > last + 1:
                stretches.append((first, last))
                first = entry_id
            last = entry_id
        stretches.append((first, last))
        if len(stretches) < _MERGED_MIN or self.range_count < _MERGED_RANGES_MIN:
            return sum(self._add(first, last) for first, last in stretches)
        return self._merge(stretches)

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge everything up to and including `entry_id`. Returns how many were not acknowledged before."""
        return self._add(self.mark_delete + 1, entry_id)

    def acknowledge_batch(self, entry_id: int, words: Sequence[int]) -> bool:
        """Acknowledge members of a batch. True if that was the last of them and the entry is now acknowledged.

        Args:
            entry_id: the entry that holds the batch.
            words: the members still wanted, as 64-bit words, lowest first, signed or not; absent words are zero.
        """
        if self.is_acknowledged(entry_id):
            return False
        before = self._ack_sets.get(entry_id, _ALL_MEMBERS)
        wanted = before & _bits(words)
        if not wanted:
            return self.acknowledge(entry_id)
        if wanted != before:
            self._ack_sets[entry_id] = wanted
            self.version += 1
        return False

    def reset(self, to_entry_id: int, words: Sequence[int] = ()) -> None:
        """Seek: `to_entry_id` is the next entry to deliver, and nothing from it on is acknowledged.

        Args:
            to_entry_id: the entry.
            words: when it is a batch that is to be delivered in part, the members wanted, as in `acknowledge_batch`.
        """
        self.mark_delete = to_entry_id - 1
        self.version += 1
        del self._starts[:], self._ends[:]
        self._head = self._above = 0
        wanted = _bits(words)
        self._ack_sets = {to_entry_id: wanted} if wanted else {}

    def forget_after(self, last_entry_id: int) -> None:
        """Drop acknowledgements of entries that do not exist (any more), so that new ones may take their ids."""
        self.mark_delete = min(self.mark_delete, last_entry_id)
        keep = bisect_right(self._starts, last_entry_id, self._head)
        del self._starts[keep:], self._ends[keep:]
        if keep > self._head:
            self._ends[-1] = min(self._ends[-1], last_entry_id)
        self._above = self._length(self._head, keep)
        self._ack_sets = {entry: wanted for entry, wanted in self._ack_sets.items() if entry <= last_entry_id}
        self.version += 1

    # -- asking

    @property
    def acknowledged_above(self) -> int:
        """How many entries above `mark_delete` are acknowledged."""
        return self._above

    @property
    def range_count(self) -> int:
        """How many acknowledged ranges lie above `mark_delete`."""
        return len(self._starts) - self._head

    def is_acknowledged(self, entry_id: int) -> bool:
        """True if the whole entry is acknowledged."""
        return self.next_unacknowledged(entry_id) != entry_id

    @property
    def has_ack_sets(self) -> bool:
        """Whether any batch is partly acknowledged."""
        return bool(self._ack_sets)

    def partly_acknowledged(self, first: int, last: int) -> dict[int, int]:
        """The partly acknowledged batches within [first, last], and how many members of each are still wanted."""
        ack_sets = self._ack_sets
        if last - first < len(ack_sets):
            return {entry: ack_sets[entry].bit_count() for entry in range(first, last + 1) if entry in ack_sets}
        return {entry: wanted.bit_count() for entry, wanted in ack_sets.items() if first <= entry <= last}

    def wanted_of(self, entry_id: int) -> int | None:
        """How many members of a partly acknowledged batch are still wanted; None for any other entry."""
        wanted = self._ack_sets.get(entry_id)
        return None if wanted is None else wanted.bit_count()

    def ack_set(self, entry_id: int) -> list[int] | None:
        """The members of a partly acknowledged batch still wanted, as signed 64-bit words; None for any other entry."""
        wanted = self._ack_sets.get(entry_id)
        return None if wanted is None else list(struct.unpack(f"<{_word_count(wanted)}q", _words(wanted)))

    def next_unacknowledged(self, from_entry_id: int) -> int:
        """The lowest entry id at or after `from_entry_id` that is not acknowledged (it may not exist yet)."""
        if from_entry_id <= self.mark_delete:
            return self.mark_delete + 1
        index = bisect_left(self._ends, from_entry_id, self._head)
        if index < len(self._ends) and self._starts[index] <= from_entry_id:
            return self._ends[index] + 1
        return from_entry_id

    def unacknowledged_ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The unacknowledged entry ids within [first, last] as inclusive ranges, lowest first.

        Ranges are found one at a time, so a caller may stop early; do not change the cursor while walking.
        """
        index = bisect_left(self._ends, first, self._head)
        first = max(first, self.mark_delete + 1)
        while first <= last:
            start = self._starts[index] if index < len(self._starts) else last + 1
            if first < start:
                yield first, min(start - 1, last)
            if start > last:
                return
            first = self._ends[index] + 1
            index += 1

    def backlog(self, last_entry_id: int) -> int:
        """How many entries up to and including `last_entry_id` are not acknowledged; exact, in constant time.

        Entries after `last_entry_id` must not be acknowledged, which holds for the topic's real end.
        """
        return max(last_entry_id - self.mark_delete - self._above, 0)

    # -- the stored form

    def encode(self) -> bytes:
        """What the catalog stores: sealed bytes.

        At most `RANGES_PERSISTED_MAX` ranges and `ACK_SETS_PERSISTED_MAX` ack sets, the lowest of each, are kept:
        what is beyond is delivered again after a restart, never lost.
        """
        keep = slice(self._head, self._head + RANGES_PERSISTED_MAX)
        starts, ends = self._starts[keep], self._ends[keep]
        ack_sets = sorted(self._ack_sets.items())[:ACK_SETS_PERSISTED_MAX]
        parts = [_HEADER.pack(_FORMAT, self.mark_delete, len(starts), len(ack_sets))]
        parts += (struct.pack(f"<{len(ids)}q", *ids) for ids in (starts, ends))
        for entry_id, wanted in ack_sets:
            parts += (_ACK_SET.pack(entry_id, _word_count(wanted)), _words(wanted))
        return seal(b"".join(parts))

    @classmethod
    def decode(cls, stored: bytes) -> Cursor:
        """The cursor that `encode` wrote.

        Raises:
            DamagedCursorError: the bytes are damaged or of a format this version does not know.
        """
        if not is_sealed(stored) or len(stored) < SEAL_BYTES + _HEADER.size or stored[SEAL_BYTES] != _FORMAT:
            raise DamagedCursorError(f"{len(stored)} stored bytes are not a cursor of format {_FORMAT}")
        _, mark_delete, ranges, ack_sets = _HEADER.unpack_from(stored, SEAL_BYTES)
        cursor = cls(mark_delete)
        at = SEAL_BYTES + _HEADER.size
        cursor._starts.extend(struct.unpack_from(f"<{ranges}q", stored, at))
        cursor._ends.extend(struct.unpack_from(f"<{ranges}q", stored, at + 8 * ranges))
        cursor._above = cursor._length(0, ranges)
        at += 16 * ranges
        for _ in range(ack_sets):
            entry_id, words = _ACK_SET.unpack_from(stored, at)
            at += _ACK_SET.size
            cursor._ack_sets[entry_id] = int.from_bytes(stored[at : at + 8 * words], "little")
            at += 8 * words
        return cursor

    # -- inside

    def _length(self, low: int, high: int) -> int:
        """How many entries the ranges with index low..high-1 hold."""
        if high - low == 1:
            return self._ends[low] - self._starts[low] + 1
        return sum(self._ends[low:high]) - sum(self._starts[low:high]) + high - low

    def _add(self, first: int, last: int) -> int:
        """Acknowledge [first, last]; returns how many of them were not acknowledged before."""
        first = max(first, self.mark_delete + 1)
        if first > last:
            return 0
        starts, ends = self._starts, self._ends
        # Ranges low..high-1 overlap [first, last] or touch it: they become one range with it.
        low = bisect_left(ends, first - 1, self._head)
        high = bisect_right(starts, last + 1, low)
        joined = self._length(low, high)
        merged_first, merged_last = first, last
        if low < high:
            merged_first, merged_last = min(first, starts[low]), max(last, ends[high - 1])
        count = merged_last - merged_first + 1 - joined
        if not count:
            return 0
        self.version += 1
        if self._ack_sets:
            self._forget_ack_sets(first, last)
        if merged_first == self.mark_delete + 1:
            self.mark_delete = merged_last
            self._above -= joined
            self._drop_front(high)
        else:
            self._above += count
            self._replace(low, high, merged_first, merged_last)
        return count

    def _merge(self, stretches: Sequence[tuple[int, int]]) -> int:
        """`_add` for many stretches, ascending and apart: the arrays are written anew once, and not moved for each."""
        starts, ends = self._starts, self._ends
        new_starts, new_ends = array("q"), array("q")
        at, count = self._head, 0
        for stretch in stretches:
            first, last, covered = max(stretch[0], self.mark_delete + 1), stretch[1], 0
            if first > last:
                continue
            if new_ends and first <= new_ends[-1] + 1:  # What the stretch before has joined reaches into this one.
                covered = new_ends[-1] - new_starts[-1] + 1
                first, last = new_starts.pop(), max(last, new_ends.pop())
            low = bisect_left(ends, first - 1, at)
            high = bisect_right(starts, last + 1, low)
            new_starts += starts[at:low]
            new_ends += ends[at:low]
            joined = self._length(low, high) + covered
            if low < high:
                first, last = min(first, starts[low]), max(last, ends[high - 1])
            new_starts.append(first)
            new_ends.append(last)
            count += last - first + 1 - joined
            at = high
        if not count:
            return 0
        self._starts, self._ends, self._head = new_starts + starts[at:], new_ends + ends[at:], 0
        self._above += count
        self.version += 1
        if self._ack_sets:
            for first, last in stretches:
                self._forget_ack_sets(first, last)
        if self._starts[0] == self.mark_delete + 1:
            self.mark_delete = self._ends[0]
            self._above -= self._ends[0] - self._starts[0] + 1
            self._drop_front(1)
        return count

    def _replace(self, low: int, high: int, first: int, last: int) -> None:
        """Put [first, last] in the place of the ranges with index low..high-1."""
        if high == low + 1:
            self._starts[low], self._ends[low] = first, last
        elif low == len(self._starts):
            self._starts.append(first)
            self._ends.append(last)
        else:
            self._starts[low:high] = array("q", (first,))
            self._ends[low:high] = array("q", (last,))

    def _drop_front(self, head: int) -> None:
        self._head = head
        if head == len(self._starts) or (head >= _HEAD_CUT_MIN and 2 * head >= len(self._starts)):
            del self._starts[:head], self._ends[:head]
            self._head = 0

    def _forget_ack_sets(self, first: int, last: int) -> None:
        """An entry acknowledged as a whole needs no ack set. Walks the shorter of the range and the sets."""
        if last - first < len(self._ack_sets):
            for entry_id in range(first, last + 1):
                self._ack_sets.pop(entry_id, None)
        else:
            self._ack_sets = {entry: kept for entry, kept in self._ack_sets.items() if not first <= entry <= last}


def _bits(words: Sequence[int]) -> int:
    """64-bit words, lowest first, as one integer."""
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *(word & _WORD_MASK for word in words)), "little")


def _word_count(bits: int) -> int:
    return -(-bits.bit_length() // _WORD_BITS)


def _words(bits: int) -> bytes:
    """The integer as little-endian 64-bit words, as many as it needs."""
    return bits.to_bytes(8 * _word_count(bits), "little")
