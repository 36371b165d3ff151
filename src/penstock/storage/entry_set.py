# SPDX-License-Identifier: Apache-2.0
"""A set of entry ids, as one bitmap for each chunk of 65,536 ids: acknowledged entries above a cursor's mark-delete.

Why bitmaps: one million holes are 16 MB as ranges and 250 KB as bits, and an id in the middle costs the same as one at
the end. Why chunks: a chunk that changed can be stored without the others, in a value of 8 KiB at most.
Where: `Cursor` holds one, for what is acknowledged above its mark-delete position.

A chunk is a Roaring bitmap with one container. The library does not convert a container of runs when single ids are
added to it, so runs could grow to 128 KiB: `_touch` has a chunk find its smallest form again after some additions.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_BITS: Final = 16
CHUNK_IDS: Final = 1 << CHUNK_BITS
_LOW: Final = CHUNK_IDS - 1

# What a chunk takes beside its ids: bitmap object, container and dictionary slots, by RSS over 100,000 of them.
CHUNK_BYTES: Final = 550
# Fifths of its 8 KiB that a container of bits takes: it is aligned, and was an array before. 4.9 to 7.2 were measured.
_BITS_FIFTHS: Final = 6
# Additions to a chunk after which it is brought into its smallest form, and measured (6 µs).
TOUCHES_MAX: Final = 1_024
# Every chunk in which all ids are set is this one bitmap. It is never changed.
_FULL: Final = BitMap(range(CHUNK_IDS))


# A chunk's size as it was measured last: its bytes, and in the low bits how many ranges it consists of.
_RUNS_BITS: Final = 17
_FULL_SIZE: Final = CHUNK_BYTES << _RUNS_BITS | 1


class EntrySet:
    """Entry ids from 0 on. Removing is possible from the front only.

    Attributes:
        nbytes: memory that the chunks take, as measured last; `measure` brings it up to date.
        changed: numbers of chunks whose stored form is not what it should be; whoever stores them clears it. Ids that
            were removed from the front change nothing there: they are removed again when the set is loaded.
    """

    __slots__ = ("_chunks", "_count", "_front", "_sizes", "_touched", "changed", "nbytes")

    def __init__(self) -> None:
        self._chunks: dict[int, BitMap] = {}
        self._sizes: dict[int, int] = {}
        self._touched: dict[int, int] = {}  # chunk -> additions since it was measured
        self._front = 0  # no chunk before this one exists
        self._count = 0
        self.nbytes = 0
        self.changed: set[int] = set()

    def __len__(self) -> int:
        """How many ids are in the set."""
        return self._count

    def __contains__(self, entry_id: int) -> bool:
        """Whether an id is in the set."""
        chunk = self._chunks.get(entry_id >> CHUNK_BITS)
        return chunk is not None and (entry_id & _LOW) in chunk

    @property
    def last(self) -> int:
        """The highest id in the set; -1 when it is empty."""
        if not self._chunks:
            return -1
        number = max(self._chunks)
        return (number << CHUNK_BITS) + int(self._chunks[number].max())

    # -- adding and removing

    def add_range(self, first: int, last: int) -> int:
        """Add `first` to `last`, both included. Returns how many were not in the set."""
        newly = 0
        for number in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            base = number << CHUNK_BITS
            newly += self._add_within(number, max(first - base, 0), min(last - base, _LOW))
        self._count += newly
        return newly

    def add_many(self, ordered: Sequence[int]) -> int:
        """Add ids in increasing order, repeats allowed. Returns how many were not in the set."""
        newly = at = 0
        while at < len(ordered):
            number = ordered[at] >> CHUNK_BITS
            stop = bisect_left(ordered, (number + 1) << CHUNK_BITS, at)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = BitMap()
            if chunk is not _FULL:
                before = len(chunk)
                chunk.update([entry_id & _LOW for entry_id in ordered[at:stop]])
                added = len(chunk) - before
                if added:
                    newly += added
                    self._touch(number, chunk, added)
            at = stop
        self._count += newly
        return newly

    def _add_within(self, number: int, low: int, high: int) -> int:
        chunk = self._chunks.get(number)
        if chunk is None:
            if high - low == _LOW:
                chunk = _FULL
            elif low == high:
                chunk = BitMap((low,))
            else:
                chunk = BitMap(range(low, high + 1))
            self._chunks[number] = chunk
            added = len(chunk)
        elif chunk is _FULL:
            return 0
        else:
            before = len(chunk)
            if low == high:
                chunk.add(low)
            else:
                chunk.add_range(low, high + 1)
            added = len(chunk) - before
        if added:
            self._touch(number, chunk, added)
        return added

    def _touch(self, number: int, chunk: BitMap, added: int) -> None:
        """Ids were added to a chunk."""
        self.changed.add(number)
        if len(chunk) == CHUNK_IDS:
            self._chunks[number] = _FULL
        touches = self._touched.get(number, 0) + added
        self._touched[number] = touches
        if touches > TOUCHES_MAX:
            self._measure(number)

    def remove_through(self, last: int) -> int:
        """Remove all ids up to and including `last`. Returns how many were in the set."""
        number = last >> CHUNK_BITS
        removed = 0
        if number > self._front:
            if len(self._chunks) < number - self._front:
                passed = [one for one in self._chunks if one < number]
            else:
                passed = [one for one in range(self._front, number) if one in self._chunks]
            for one in passed:
                removed += len(self._chunks[one])
                self._drop(one)
            self._front = number
        chunk = self._chunks.get(number)
        if chunk is not None:
            before = len(chunk)
            if chunk is _FULL:
                chunk = self._chunks[number] = chunk.copy()
            chunk.remove_range(0, (last & _LOW) + 1)
            removed += before - len(chunk)
            if not chunk:
                self._drop(number)
            else:
                self._touched.setdefault(number, 0)
        self._count -= removed
        return removed

    def _drop(self, number: int) -> None:
        del self._chunks[number]
        self.nbytes -= self._sizes.pop(number, 0) >> _RUNS_BITS
        self._touched.pop(number, None)
        self.changed.add(number)

    def clear(self) -> None:
        """Remove all ids."""
        self.changed.update(self._chunks)
        for chunks in (self._chunks, self._sizes, self._touched):
            chunks.clear()
        self._front = self._count = self.nbytes = 0

    # -- asking

    def first_absent(self, entry_id: int) -> int:
        """The lowest id from `entry_id` on that is not in the set."""
        number, low = entry_id >> CHUNK_BITS, entry_id & _LOW
        while (chunk := self._chunks.get(number)) is not None:
            low = CHUNK_IDS if chunk is _FULL else _first_absent(chunk, low)
            if low < CHUNK_IDS:
                break
            number, low = number + 1, 0
        return (number << CHUNK_BITS) + low

    def first_present(self, entry_id: int, stop: int) -> int:
        """The lowest id from `entry_id` on that is in the set, or `stop` when there is none before it."""
        number, low = entry_id >> CHUNK_BITS, entry_id & _LOW
        while number << CHUNK_BITS < stop:
            chunk = self._chunks.get(number)
            if chunk is not None and chunk.max() >= low:
                return min((number << CHUNK_BITS) + int(chunk.next_set_bit(low)), stop)
            number, low = number + 1, 0
        return stop

    def absent_at(self, first: int, nth: int) -> int:
        """The `nth` id (from 0 on) of those from `first` on that are not in the set."""
        number, low = first >> CHUNK_BITS, first & _LOW
        while True:
            chunk = self._chunks.get(number)
            base = number << CHUNK_BITS
            if chunk is None:
                if nth < CHUNK_IDS - low or number > max(self._chunks, default=-1):
                    return base + low + nth
                absent = CHUNK_IDS - low
            else:
                absent = CHUNK_IDS - low - chunk.range_cardinality(low, CHUNK_IDS)
                if nth < absent:
                    return base + _absent_at(chunk, low, nth)
            nth -= absent
            number, low = number + 1, 0

    @property
    def range_count(self) -> int:
        """How many ranges of consecutive ids the set consists of."""
        self.measure()
        count = sum(size & (1 << _RUNS_BITS) - 1 for size in self._sizes.values())
        # A range that goes on in the next chunk was counted in both.
        for number, after in pairwise(sorted(self._chunks)):
            if after == number + 1 and _LOW in self._chunks[number] and 0 in self._chunks[after]:
                count -= 1
        return count

    # -- size and stored form

    def measure(self) -> None:
        """Bring chunks into their smallest form where ids were added, and `nbytes` up to date."""
        for number in list(self._touched):
            self._measure(number)

    def _measure(self, number: int) -> None:
        self._touched.pop(number, None)
        chunk = self._chunks[number]
        self.nbytes -= self._sizes.get(number, 0) >> _RUNS_BITS
        if chunk is _FULL:
            size = _FULL_SIZE
        else:
            chunk.run_optimize()
            found = chunk.get_statistics()
            ids_bytes = found["n_bytes_array_containers"] + found["n_bytes_run_containers"]
            ids_bytes += found["n_bytes_bitset_containers"] * _BITS_FIFTHS // 5
            size = CHUNK_BYTES + ids_bytes << _RUNS_BITS | chunk.difference_cardinality(chunk.shift(1))
        self._sizes[number] = size
        self.nbytes += size >> _RUNS_BITS

    @property
    def chunk_count(self) -> int:
        """How many chunks hold any id."""
        return len(self._chunks)

    def encode(self, number: int) -> bytes | None:
        """One chunk, as it is stored: 8 KiB and some bytes at most; None when no id is in it."""
        if number not in self._chunks:
            return None
        if number in self._touched:
            self._measure(number)
        return bytes(self._chunks[number].serialize())

    def load(self, number: int, stored: bytes) -> None:
        """Take in a chunk that `encode` made. Raises ValueError when it is none."""
        chunk = BitMap.deserialize(stored)
        if not chunk or chunk.max() > _LOW:
            raise ValueError(f"{len(stored)} bytes are no chunk of entry ids")
        self._count += len(chunk)
        self._chunks[number] = _FULL if len(chunk) == CHUNK_IDS else chunk
        self._measure(number)


def _absent_at(chunk: BitMap, low: int, nth: int) -> int:
    """The `nth` id (from 0 on) of those from `low` on that are not in a chunk."""
    ids = range(low, CHUNK_IDS)
    return low + bisect_left(ids, nth + 1, key=lambda one: one + 1 - low - chunk.range_cardinality(low, one + 1))


def _first_absent(chunk: BitMap, low: int) -> int:
    """The lowest id from `low` on that is not in a chunk; `CHUNK_IDS` when all are. Stretches are short, as a rule."""
    if low not in chunk:
        return low
    step = 1
    low += 1
    while low + step <= CHUNK_IDS and chunk.contains_range(low, low + step):
        low += step
        step *= 2
    while step:
        if low + step <= CHUNK_IDS and chunk.contains_range(low, low + step):
            low += step
        step //= 2
    return low
