# SPDX-License-Identifier: Apache-2.0
"""Ranges of entry ids: the part of a topic's log that the delayed index knows, and the part that it has dropped.

Where: only the delayed index uses them. All ranges are half open. There are rarely more than two, so lists are enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple


class BackFill(NamedTuple):
    """Entries [first, stop) to read from the log again, for the index or for one view."""

    first: int
    stop: int


class Ranges:
    """Disjoint ranges [first, stop) in order; no two of them touch."""

    __slots__ = ("_firsts", "_stops")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> zip[tuple[int, int]]:
        return zip(self._firsts, self._stops, strict=True)

    def add(self, first: int, stop: int) -> None:
        """Add [first, stop) and join it with ranges that it touches."""
        if first >= stop:
            return
        low, high = bisect_left(self._stops, first), bisect_right(self._firsts, stop)
        if low < high:
            first, stop = min(first, self._firsts[low]), max(stop, self._stops[high - 1])
        self._firsts[low:high] = [first]
        self._stops[low:high] = [stop]

    def cut_before(self, first: int) -> None:
        keep = bisect_right(self._stops, first)
        del self._firsts[:keep], self._stops[:keep]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], first)

    def covers(self, first: int, stop: int) -> bool:
        """Return whether all of [first, stop) is included."""
        at = bisect_right(self._firsts, first) - 1
        return first >= stop or (at >= 0 and stop <= self._stops[at])

    def has(self, entry_id: int) -> bool:
        at = bisect_right(self._firsts, entry_id) - 1
        return at >= 0 and entry_id < self._stops[at]

    def missing(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of [first, stop) that are not included, in order."""
        parts = []
        for inside_first, inside_stop in self:
            if inside_stop <= first:
                continue
            if inside_first >= stop:
                break
            if first < inside_first:
                parts.append((first, inside_first))
            first = inside_stop
        if first < stop:
            parts.append((first, stop))
        return parts


class Hull:
    """One range [first, stop) around everything that was added; empty when first == stop."""

    __slots__ = ("first", "stop")

    def __init__(self, first: int = 0, stop: int = 0) -> None:
        self.first, self.stop = first, stop

    def __bool__(self) -> bool:
        return self.first < self.stop

    def add(self, first: int, stop: int) -> None:
        """Extend the range to include [first, stop), which must not be empty."""
        if self:
            first, stop = min(self.first, first), max(self.stop, stop)
        self.first, self.stop = first, stop

    def cut_before(self, first: int) -> None:
        self.first = min(max(self.first, first), self.stop)

    def cut_from(self, stop: int) -> None:
        """Remove everything from `stop` on."""
        self.stop = max(min(self.stop, stop), self.first)

    def overlaps(self, first: int, stop: int) -> bool:
        """Return whether it shares an entry with [first, stop)."""
        return max(self.first, first) < min(self.stop, stop)

    def clear(self) -> None:
        self.first = self.stop = 0
