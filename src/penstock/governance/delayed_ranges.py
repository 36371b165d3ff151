# SPDX-License-Identifier: Apache-2.0
"""Ranges of entry ids: the part of a topic's log that the delayed index knows, and the part that it has dropped.

Where: only the delayed index uses them. All ranges are half open. There are rarely more than two, so lists are enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple


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


# ---------------------------------------------------------------------------------------------------------------------
# The horizon of a topic's delayed index: up to which time it is complete, and where in the log the other messages are.
#
# Why by time and not by arrival: an index that is full and takes nothing more would deliver a message of one minute
# after all those of one year. So the messages that are due last are dropped, whatever came first. Two values describe
# them: every message due after `after_ms` that is not in the index lies in the range `left` of the log. No message
# becomes due after `after_ms`. Well before that time, the broker is asked to read `left` again, and the messages that
# are due soonest enter the index. Where: each manager has one; the theory is in docs/internals/delayed-messages.md.

INFINITY: Final = 2**64
# The log is read again when 1/_EARLY_PART of the time until `after_ms` is left.
_EARLY_PART: Final = 8


class Horizon:
    """Up to which deliver time the index is complete.

    Attributes:
        after_ms: messages with a later deliver time may be missing from the index; `INFINITY` when none is.
        left: the part of the log that holds missing messages which a reader may have skipped.
        spilled: an upper bound of their number; a message that several readers skip is counted several times.
        filling: whether that part is being read again.
    """

    __slots__ = (
        "_lowest_ms",
        "_next_after_ms",
        "_next_left",
        "_next_spilled",
        "_read_at_ms",
        "_wide",
        "after_ms",
        "filling",
        "left",
        "spilled",
    )

    def __init__(self) -> None:
        self.after_ms = INFINITY
        self.left = Hull()
        self.spilled = 0
        self.filling = False
        self._read_at_ms = INFINITY
        self._next_after_ms = INFINITY
        self._next_left = Hull()
        self._next_spilled = 0
        self._lowest_ms = INFINITY  # of `after_ms`, and `_wide` of `all_left`, since `watch`
        self._wide = Hull()

    @property
    def is_finite(self) -> bool:
        """Whether any message may be missing from the index."""
        return self.after_ms < INFINITY

    @property
    def takes_until_ms(self) -> int:
        """The latest deliver time that the index accepts."""
        return self._next_after_ms if self.filling else self.after_ms

    def concerns(self, first: int, stop: int) -> bool:
        """Return whether entries of [first, stop) may be missing from the index."""
        return self.left.overlaps(first, stop) or self._next_left.overlaps(first, stop)

    @property
    def all_left(self) -> Hull:
        """One range around all messages that may be missing."""
        everything = Hull(self.left.first, self.left.stop)
        if self._next_left:
            everything.add(self._next_left.first, self._next_left.stop)
        return everything

    def watch(self) -> None:
        """Start a snapshot: a message that is missing at any time until it ends may be missing from it."""
        self._lowest_ms, self._wide = self.after_ms, self.all_left

    def watched(self) -> tuple[int, Hull]:
        """Return the lowest horizon since `watch`, and one range around all messages that were left since then."""
        return self._lowest_ms, self._wide

    def restore(self, after_ms: int, first: int, stop: int) -> None:
        """Set the horizon that a snapshot ends with."""
        self.after_ms, self.left = after_ms, Hull(first, stop)
        self._read_at_ms = 0 if self.left else INFINITY
        self.drop_if_nothing_left()

    def leave(self, first: int, stop: int, count: int) -> None:
        """Note that `count` messages of [first, stop) are due after the horizon and are not put into the index."""
        (self._next_left if self.filling else self.left).add(first, stop)
        self._wide.add(first, stop)
        if self.filling:
            self._next_spilled += count
        else:
            self.spilled += count

    def lower(self, after_ms: int, now_ms: int) -> None:
        """Lower the horizon to `after_ms`, because the index drops later messages."""
        if self.filling:
            self._next_after_ms = min(self._next_after_ms, after_ms)
        self.after_ms = min(self.after_ms, after_ms)
        self._lowest_ms = min(self._lowest_ms, after_ms)
        self._read_at_ms = after_ms - (after_ms - now_ms) // _EARLY_PART

    def is_near(self, now_ms: int) -> bool:
        """Return whether it is time to read the log again."""
        return now_ms >= self._read_at_ms

    def begin(self) -> None:
        """Start to read the left part of the log again, from its beginning."""
        if self.filling:
            self.abort()
        self.filling = True
        self._next_after_ms = INFINITY

    def end(self, now_ms: int) -> None:
        """Finish: the left part was read completely."""
        self.after_ms, self.left, self.spilled = self._next_after_ms, self._next_left, self._next_spilled
        self._reset_next()
        self._read_at_ms = self.after_ms - (self.after_ms - now_ms) // _EARLY_PART
        self.drop_if_nothing_left()

    def abort(self) -> None:
        """Give up because a read failed: the left part stays."""
        if self._next_left:
            self.left.add(self._next_left.first, self._next_left.stop)
        self.spilled += self._next_spilled
        self._reset_next()
        self.drop_if_nothing_left()

    def _reset_next(self) -> None:
        self.filling = False
        self._next_after_ms = INFINITY
        self._next_left = Hull()
        self._next_spilled = 0

    def cut_before(self, entry_id: int) -> None:
        """Forget everything before this entry: every subscription has acknowledged it."""
        self.left.cut_before(entry_id)
        self._next_left.cut_before(entry_id)
        self.drop_if_nothing_left()

    def drop_if_nothing_left(self) -> None:
        """Set the horizon to infinity if nothing is left on disk."""
        if not self.left and not self.filling:
            self.after_ms = self._read_at_ms = INFINITY
            self.spilled = 0
