# SPDX-License-Identifier: Apache-2.0
"""A set of entry ids, as one bitmap per chunk of 65,536 ids.

Why bitmaps: one million gaps take 16 MB as ranges and 250 KB as bits, and adding an id in the middle costs the same as
at the end. Why chunks: a changed chunk can be stored without the others, in a value of at most 8 KiB. Where: each
`Cursor` has one, for the acknowledged entries above its mark-delete position.

A chunk is a Roaring bitmap with one container. The library does not convert a container of runs when single ids are
added to it, so runs could grow to 128 KiB: after some additions, `_touch` converts a chunk to its smallest form.
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

# The memory of a chunk besides its ids: bitmap object, container and dictionary slots, by RSS over 100,000 of them.
CHUNK_BYTES: Final = 550
# The memory of a container of bits, in fifths of its 8 KiB: it is aligned, and was an array before. Measured: 4.9 to
# 7.2.
_BITS_FIFTHS: Final = 6
# After this many additions a chunk is converted to its smallest form and measured (6 µs).
TOUCHES_MAX: Final = 1_024
# Every chunk in which all ids are set is this one bitmap. It is never changed.
_FULL: Final = BitMap(range(CHUNK_IDS))


# A chunk's last measured size: its bytes, and in the low bits its number of ranges.
_RUNS_BITS: Final = 17
_FULL_SIZE: Final = CHUNK_BYTES << _RUNS_BITS | 1


class EntrySet:
    """Entry ids from 0 on. Ids can only be removed from the front.

    Attributes:
        nbytes: memory of the chunks in bytes, as last measured; `measure` updates it.
        changed: numbers of chunks whose stored form is out of date; the caller that stores them clears it. Removing ids
            from the front does not count: they are removed again when the set is loaded.
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
        return self._count

    def __contains__(self, entry_id: int) -> bool:
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
        """Add `first` to `last`, both included; return how many were not in the set."""
        newly = 0
        for number in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            base = number << CHUNK_BITS
            newly += self._add_within(number, max(first - base, 0), min(last - base, _LOW))
        self._count += newly
        return newly

    def add_many(self, ordered: Sequence[int]) -> int:
        """Add ascending ids, repeats allowed; return how many were not in the set."""
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
        """Note that ids were added to a chunk."""
        self.changed.add(number)
        if len(chunk) == CHUNK_IDS:
            self._chunks[number] = _FULL
        touches = self._touched.get(number, 0) + added
        self._touched[number] = touches
        if touches > TOUCHES_MAX:
            self._measure(number)

    def remove_through(self, last: int) -> int:
        """Remove all ids up to and including `last`; return how many were in the set."""
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
        self.changed.update(self._chunks)
        for chunks in (self._chunks, self._sizes, self._touched):
            chunks.clear()
        self._front = self._count = self.nbytes = 0

    # -- asking

    def first_absent(self, entry_id: int) -> int:
        """Return the lowest id from `entry_id` on that is not in the set."""
        number, low = entry_id >> CHUNK_BITS, entry_id & _LOW
        while (chunk := self._chunks.get(number)) is not None:
            low = CHUNK_IDS if chunk is _FULL else _first_absent(chunk, low)
            if low < CHUNK_IDS:
                break
            number, low = number + 1, 0
        return (number << CHUNK_BITS) + low

    def last_absent(self, entry_id: int) -> int:
        """Return the highest id up to `entry_id` that is not in the set; -1 if all are."""
        number, low = entry_id >> CHUNK_BITS, entry_id & _LOW
        while (chunk := self._chunks.get(number)) is not None:
            low = -1 if chunk is _FULL else _last_absent(chunk, low)
            if low >= 0:
                break
            number, low = number - 1, _LOW
        return (number << CHUNK_BITS) + low

    def first_present(self, entry_id: int, stop: int) -> int:
        """Return the lowest id from `entry_id` on that is in the set, or `stop` if there is none before it."""
        number, low = entry_id >> CHUNK_BITS, entry_id & _LOW
        while number << CHUNK_BITS < stop:
            chunk = self._chunks.get(number)
            if chunk is not None and chunk.max() >= low:
                return min((number << CHUNK_BITS) + int(chunk.next_set_bit(low)), stop)
            number, low = number + 1, 0
        return stop

    def absent_at(self, first: int, nth: int) -> int:
        """Return the `nth` id (from 0) from `first` on that is not in the set."""
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
        """The number of ranges of consecutive ids."""
        self.measure()
        count = sum(size & (1 << _RUNS_BITS) - 1 for size in self._sizes.values())
        # A range that continues in the next chunk was counted in both.
        for number, after in pairwise(sorted(self._chunks)):
            if after == number + 1 and _LOW in self._chunks[number] and 0 in self._chunks[after]:
                count -= 1
        return count

    # -- size and stored form

    def measure(self) -> None:
        """Convert changed chunks to their smallest form and update `nbytes`."""
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
        return len(self._chunks)

    def encode(self, number: int) -> bytes | None:
        """Return the stored form of one chunk, at most 8 KiB and some bytes; None when it has no ids."""
        if number not in self._chunks:
            return None
        if number in self._touched:
            self._measure(number)
        return bytes(self._chunks[number].serialize())

    def load(self, number: int, stored: bytes) -> None:
        """Load a chunk that `encode` made. Raises ValueError when the bytes are no chunk."""
        chunk = BitMap.deserialize(stored)
        if not chunk or chunk.max() > _LOW:
            raise ValueError(f"{len(stored)} bytes are no chunk of entry ids")
        self._count += len(chunk)
        self._chunks[number] = _FULL if len(chunk) == CHUNK_IDS else chunk
        self._measure(number)


def _absent_at(chunk: BitMap, low: int, nth: int) -> int:
    """Return the `nth` id (from 0) from `low` on that is not in a chunk."""
    ids = range(low, CHUNK_IDS)
    return low + bisect_left(ids, nth + 1, key=lambda one: one + 1 - low - chunk.range_cardinality(low, one + 1))


def _first_absent(chunk: BitMap, low: int) -> int:
    """Return the lowest id from `low` on that is not in a chunk; `CHUNK_IDS` when all are.

    Stretches are usually short.
    """
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


def _last_absent(chunk: BitMap, low: int) -> int:
    """Return the highest id up to `low` that is not in a chunk; -1 when all are."""
    if low not in chunk:
        return low
    return bisect_left(range(low + 1), True, key=lambda first: chunk.contains_range(first, low + 1)) - 1
