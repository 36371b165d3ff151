# SPDX-License-Identifier: Apache-2.0
"""Key_Shared: assigns keys to consumers, as pure functions of the connected consumers.

Why three ways: the hash ring moves few keys when consumers change, halving ranges gives equal shares, and sticky ranges
are chosen by clients. All are identical to Pulsar's, so that a key has the same consumer on both.
Where: `KeyOrder` asks for the consumer of a slot; a subscription adds and removes consumers.

A key is hashed to a slot in 1..65535. Slot 0 is never used: it means "none" in Pulsar's structures.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.core.errors import ConsumerAssignFailed
from penstock.core.hashing import sticky_hash, sticky_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS: Final = 65_536
# Cached key hashes, because hashing takes some microseconds: at most 7 MB.
KEYS_CACHED: Final = 32_768
KEY_BYTES_CACHED: Final = 64

C = TypeVar("C")  # a consumer of any type; compared by identity


class KeySharing(NamedTuple):
    """The Key_Shared policy of a consumer; the first two fields must agree within a subscription.

    `ranges` are the requested slots, both ends inclusive, if ranges are sticky.
    """

    sticky: bool = False
    out_of_order: bool = False
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def mode(self) -> str:
        """The mode, as Pulsar spells it."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"


AUTO_SPLIT: Final = KeySharing()


class Selector(Protocol[C]):
    """Assigns slots to consumers.

    Attributes:
        version: differs after each change of consumers.
    """

    version: int

    def slot(self, key_hash: int) -> int: ...

    def slots(self, hashes: Sequence[int]) -> list[int]: ...

    def add(self, consumer: C, name: str) -> None:
        """Add a consumer. Raises ConsumerAssignFailed."""

    def remove(self, consumer: C) -> None:
        """Remove a consumer; nothing happens if it was never added."""

    def select(self, slot: int) -> C | None:
        """The consumer of a slot, or None."""

    def select_each(self, slots: Sequence[int]) -> list[C | None]:
        """The consumer of each slot, or None."""

    def ranges(self) -> list[tuple[int, int, C]]:
        """First slot, last slot and consumer of each range, ascending."""


@lru_cache(maxsize=KEYS_CACHED)
def _remembered_hash(key: bytes) -> int:
    return sticky_hash(key)


def hash_of(key: bytes) -> int:
    """A key's hash; hashes of short keys are cached."""
    return _remembered_hash(key) if len(key) <= KEY_BYTES_CACHED else sticky_hash(key)


def hashes_of(keys: Sequence[bytes]) -> list[int]:
    """The hashes of many keys."""
    if max(map(len, keys), default=0) <= KEY_BYTES_CACHED:
        return list(map(_remembered_hash, keys))
    remembered = _remembered_hash
    return [remembered(key) if len(key) <= KEY_BYTES_CACHED else sticky_hash(key) for key in keys]


def slot_of(key: bytes) -> int:
    """A key's slot; slot 0 counts as 1."""
    return hash_of(key) % SLOTS or 1


def ring_slot_of(key: bytes) -> int:
    """A key's slot on a ring that starts at 1."""
    return hash_of(key) % (SLOTS - 1) + 1


class HashRing(Generic[C]):
    """Each consumer has several points on a ring; a slot belongs to the consumer of the next point.

    Consumers of one name are distinguished by a number, the lowest that is free when they are added. The first consumer
    at a point owns it. A point takes ten bytes, and two more in its consumer's list.
    """

    def __init__(self, points: int) -> None:
        self.version = 0
        self._points_each = points
        self._points = array("H")  # ascending; at equal points in order of arrival
        self._owners: list[C] = []  # of the point with the same index
        # By identity: consumer, name, number among consumers of this name, points.
        self._members: dict[int, tuple[C, str, int, array[int]]] = {}

    def slot(self, key_hash: int) -> int:
        return key_hash % (SLOTS - 1) + 1

    def slots(self, hashes: Sequence[int]) -> list[int]:
        return [key_hash % (SLOTS - 1) + 1 for key_hash in hashes]

    def add(self, consumer: C, name: str) -> None:
        self.version += 1
        taken = {number for _, other, number, _ in self._members.values() if other == name}
        number = next(candidate for candidate in range(len(taken) + 1) if candidate not in taken)
        points = _points_of(name, number, self._points_each)
        self._members[id(consumer)] = (consumer, name, number, points)
        for point in points:
            index = bisect_right(self._points, point)
            self._points.insert(index, point)
            self._owners.insert(index, consumer)

    def remove(self, consumer: C) -> None:
        """Remove a consumer; the next consumer at each of its points owns the point now."""
        member = self._members.pop(id(consumer), None)
        if member is None:
            return
        self.version += 1
        for point in member[3]:
            index = bisect_left(self._points, point)
            while self._owners[index] is not consumer:
                index += 1
            del self._points[index], self._owners[index]

    def select(self, slot: int) -> C | None:
        if not self._points:
            return None
        index = bisect_left(self._points, slot)
        return self._owners[index if index < len(self._points) else 0]

    def select_each(self, slots: Sequence[int]) -> list[C | None]:
        points = self._points
        if not points:
            return [None] * len(slots)
        if len(self._members) == 1:
            return [self._owners[0]] * len(slots)
        owners = [*self._owners, self._owners[0]]
        return [owners[bisect_left(points, slot)] for slot in slots]

    def ranges(self) -> list[tuple[int, int, C]]:
        """Ranges of slots; adjacent ones of one consumer are joined."""
        if not self._points:
            return []
        stretches: list[tuple[int, C]] = []
        below = 0
        for point, owner in zip(self._points, self._owners, strict=True):
            if point != below:  # the first of several at one point
                stretches.append((point, owner))
            below = point
        if below < SLOTS - 1:
            stretches.append((SLOTS - 1, self._owners[0]))
        return _joined(stretches, first=1)


def _points_of(name: str, number: int, points: int) -> array[int]:
    hashes = sticky_hashes(f"{name}\0{number}\0".encode(), (b"%d" % point for point in range(points)))
    return array("H", (found % (SLOTS - 1) + 1 for found in hashes))


class RangeHalving(Generic[C]):
    """Each consumer has one range: a new one takes the lower half of the widest; a removed one's range is merged."""

    def __init__(self) -> None:
        self.version = 0
        self._ends: list[int] = []
        self._owners: list[C] = []  # of the range that ends at the same index

    def slot(self, key_hash: int) -> int:
        return key_hash % SLOTS or 1

    def slots(self, hashes: Sequence[int]) -> list[int]:
        return [key_hash % SLOTS or 1 for key_hash in hashes]

    def add(self, consumer: C, name: str) -> None:  # noqa: ARG002 - names do not matter here
        """Add a consumer.

        Raises:
            ConsumerAssignFailed: no range can be halved any more.
        """
        if not self._ends:
            self.version += 1
            self._ends, self._owners = [SLOTS], [consumer]
            return
        widths = [end - start for start, end in zip([0, *self._ends], self._ends, strict=False)]
        index = widths.index(max(widths))
        if widths[index] <= 1:
            raise ConsumerAssignFailed(
                f"No more range can assigned to new consumer, assigned consumers {len(self._ends)}"
            )
        self.version += 1
        self._ends.insert(index, self._ends[index] - widths[index] // 2)
        self._owners.insert(index, consumer)

    def remove(self, consumer: C) -> None:
        """Remove a consumer: its range goes to the next one above, that of the last one to the next one below."""
        for index, owner in enumerate(self._owners):
            if owner is consumer:
                self.version += 1
                del self._owners[index]
                # The end of the topmost range stays, and the range below grows to it.
                del self._ends[index - 1 if index == len(self._owners) and index else index]
                return

    def select(self, slot: int) -> C | None:
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def select_each(self, slots: Sequence[int]) -> list[C | None]:
        if len(self._owners) == 1:
            return [self._owners[0]] * len(slots)
        return [self.select(slot) for slot in slots]

    def ranges(self) -> list[tuple[int, int, C]]:
        """The range of each consumer. The last one's end is one above the last slot, as Pulsar shows it."""
        starts = [0, *(end + 1 for end in self._ends)]
        return list(zip(starts, self._ends, self._owners, strict=False))


class StickyRanges(Generic[C]):
    """Consumers own the ranges that they requested; other slots have no consumer."""

    def __init__(self) -> None:
        self.version = 0
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, C]] = []

    def slot(self, key_hash: int) -> int:
        return key_hash % SLOTS or 1

    def slots(self, hashes: Sequence[int]) -> list[int]:
        return [key_hash % SLOTS or 1 for key_hash in hashes]

    def conflicting(self, ranges: Sequence[tuple[int, int]]) -> list[C]:
        """The consumers whose ranges overlap these, each once. Call `check_ranges` with `ranges` before.

        As the ranges do not overlap on either side, each pair is compared at most once.
        """
        owners: dict[int, C] = {}
        for start, end in ranges:
            index = max(bisect_right(self._starts, start) - 1, 0)
            while index < len(self._ranges) and self._starts[index] <= end:
                _, high, consumer = self._ranges[index]
                if high >= start:
                    owners[id(consumer)] = consumer
                index += 1
        return list(owners.values())

    def add_ranges(self, consumer: C, ranges: Sequence[tuple[int, int]]) -> None:
        """Add a consumer with these ranges, both ends inclusive.

        Raises:
            ConsumerAssignFailed: they are invalid, or overlap with each other or with another consumer's.
        """
        check_ranges(ranges)
        others = self.conflicting(ranges)
        if others:
            raise ConsumerAssignFailed(f"Range conflict with consumer {others[0]}")
        self.version += 1
        self._ranges = sorted([*self._ranges, *((*ends, consumer) for ends in ranges)], key=lambda range_: range_[0])
        self._starts = [start for start, _, _ in self._ranges]

    def add(self, consumer: C, name: str) -> None:
        """Always raises ConsumerAssignFailed: a consumer needs ranges."""
        raise ConsumerAssignFailed(f"Ranges for KeyShared policy must not be empty: consumer {name!r} of {consumer}")

    def remove(self, consumer: C) -> None:
        self.version += 1
        self._ranges = [range_ for range_ in self._ranges if range_[2] is not consumer]
        self._starts = [start for start, _, _ in self._ranges]

    def select(self, slot: int) -> C | None:
        index = bisect_right(self._starts, slot) - 1
        if index < 0:
            return None
        _, end, consumer = self._ranges[index]
        return consumer if slot <= end else None

    def select_each(self, slots: Sequence[int]) -> list[C | None]:
        return [self.select(slot) for slot in slots]

    def ranges(self) -> list[tuple[int, int, C]]:
        return list(self._ranges)


def check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    """Check the requested ranges of one consumer.

    Raises:
        ConsumerAssignFailed: there are none, one is invalid, or they overlap.
    """
    if not ranges:
        raise ConsumerAssignFailed("Ranges for KeyShared policy must not be empty.")
    below = -1, -1
    for start, end in sorted(ranges):
        if start > end:
            raise ConsumerAssignFailed(f"Fixed hash range start > end for range: [{start},{end}]")
        if start < 0 or end >= SLOTS:
            raise ConsumerAssignFailed(f"hash range [{start},{end}] is not within 0..{SLOTS - 1}")
        if start <= below[1]:
            raise ConsumerAssignFailed(
                f"Consumer's own ranges conflict: [{below[0]},{below[1]}] overlaps with [{start},{end}]"
            )
        below = start, end


def _joined(stretches: list[tuple[int, C]], *, first: int) -> list[tuple[int, int, C]]:
    """Ranges between these ends; adjacent ones of one consumer are joined."""
    ranges: list[tuple[int, int, C]] = []
    start = first
    for end, consumer in stretches:
        if ranges and ranges[-1][2] is consumer:
            ranges[-1] = (ranges[-1][0], end, consumer)
        else:
            ranges.append((start, end, consumer))
        start = end + 1
    return ranges
