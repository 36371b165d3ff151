# SPDX-License-Identifier: Apache-2.0
"""How far into the future a topic's delayed index is complete, and where in the log the rest is.

Why a time and not a place: an index that is full and stops taking what comes would deliver a message of one minute
after all those of one year. So what is due last is let go, whatever came first, and two numbers and a range remember
it: everything due after `after_ms` that is not in the index lies in `left`. Nothing becomes due past `after_ms`; well
before, the broker is asked to read `left` again, and what is then due soonest finds its place.
Where: the manager of a topic has one; its theory is in docs/internals/delayed-messages.md.
"""

from __future__ import annotations

from typing import Final

from penstock.governance.delayed_ranges import Hull

INFINITY: Final = 2**64
# The log is read again when this part of the time until `after_ms` is left.
_EARLY_PART: Final = 8


class Horizon:
    """Where the index ends.

    Attributes:
        after_ms: messages with a later deliver time may be missing from the index; `INFINITY` when none is.
        left: the part of the log in which those are that a reader may have stepped over.
        spilled: how many of them there are, at most; a message that several readers come across counts often.
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
        """Whether anything may be missing."""
        return self.after_ms < INFINITY

    @property
    def takes_until_ms(self) -> int:
        """Up to which deliver time the index takes messages."""
        return self._next_after_ms if self.filling else self.after_ms

    def concerns(self, first: int, stop: int) -> bool:
        """Whether entries among [first, stop) may be missing."""
        return self.left.overlaps(first, stop) or self._next_left.overlaps(first, stop)

    @property
    def all_left(self) -> Hull:
        """Where all are that may be missing, in one range."""
        everything = Hull(self.left.first, self.left.stop)
        if self._next_left:
            everything.add(self._next_left.first, self._next_left.stop)
        return everything

    def watch(self) -> None:
        """A snapshot begins: what is missing at any time until it ends may be missing from it."""
        self._lowest_ms, self._wide = self.after_ms, self.all_left

    def watched(self) -> tuple[int, Hull]:
        """The nearest that the horizon was since `watch`, and one range around everything that was left."""
        return self._lowest_ms, self._wide

    def restore(self, after_ms: int, first: int, stop: int) -> None:
        """Begin where a snapshot ends."""
        self.after_ms, self.left = after_ms, Hull(first, stop)
        self._read_at_ms = 0 if self.left else INFINITY
        self.drop_if_nothing_left()

    def leave(self, first: int, stop: int, count: int) -> None:
        """So many messages of [first, stop), due too late, are not put into the index."""
        (self._next_left if self.filling else self.left).add(first, stop)
        self._wide.add(first, stop)
        if self.filling:
            self._next_spilled += count
        else:
            self.spilled += count

    def lower(self, after_ms: int, now_ms: int) -> None:
        """The index lets go of what is due after this, at the time that decides what is due now."""
        if self.filling:
            self._next_after_ms = min(self._next_after_ms, after_ms)
        self.after_ms = min(self.after_ms, after_ms)
        self._lowest_ms = min(self._lowest_ms, after_ms)
        self._read_at_ms = after_ms - (after_ms - now_ms) // _EARLY_PART

    def is_near(self, now_ms: int) -> bool:
        """Whether it is time to read again."""
        return now_ms >= self._read_at_ms

    def begin(self) -> None:
        """What was left is read again, from its beginning."""
        if self.filling:
            self.abort()
        self.filling = True
        self._next_after_ms = INFINITY

    def end(self, now_ms: int) -> None:
        """All of it was read."""
        self.after_ms, self.left, self.spilled = self._next_after_ms, self._next_left, self._next_spilled
        self._reset_next()
        self._read_at_ms = self.after_ms - (self.after_ms - now_ms) // _EARLY_PART
        self.drop_if_nothing_left()

    def abort(self) -> None:
        """Reading failed: what was left is left still."""
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
        """Nobody wants anything before this entry."""
        self.left.cut_before(entry_id)
        self._next_left.cut_before(entry_id)
        self.drop_if_nothing_left()

    def drop_if_nothing_left(self) -> None:
        """If nothing is left on disk, nothing is missing."""
        if not self.left and not self.filling:
            self.after_ms = self._read_at_ms = INFINITY
            self.spilled = 0
