# SPDX-License-Identifier: Apache-2.0
"""The delayed messages of a topic that are due, and how far each view has come with them.

Why: a message is due for all subscriptions at once, but each takes it at its own pace. So a slot that is due moves
once, as a whole, to the end of this list, and a view is a position in the list; nothing is copied per subscription.
Segments that all views have passed are dropped. A slot goes to the end whatever its time is, so a clock that is set
back does no harm. Where: the manager appends, views walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.governance.delayed_slots import first_absent, footprint, widened, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.governance.delayed_id_set import IdSet
    from penstock.governance.delayed_slots import Bitmap

# Above this number of segments, neighbours without a view between them are merged.
_SEGMENTS_MAX: Final = 128


class Segment:
    """Ids that became due together, and later ones merged into them.

    The last segment of a list is empty and marks the end.

    Attributes:
        before: the number of ids in all earlier segments, dropped ones included.
        readers: the number of views at this segment: they have passed all earlier ones and not all of this one.
        begun: whether one of these views has passed a part of it.
    """

    __slots__ = ("before", "begun", "due_ms", "ids", "last", "later", "readers", "size_bytes")

    def __init__(self, before: int) -> None:
        self.before = before
        self.begun = False
        self.due_ms = 0
        self.ids: Bitmap | None = None
        self.last = -1
        self.later: Segment | None = None
        self.readers = 0
        self.size_bytes = 0

    def from_id(self, entry_id: int, acknowledged: IdSet) -> Iterator[int]:
        """Iterate over the ids from this one on that are not acknowledged, in order."""
        if self.ids is None or entry_id > self.last:
            return iter(())
        return acknowledged.out_of(self.ids).iter_equal_or_larger(entry_id)

    def within(self, first: int, stop: int) -> list[int]:
        """Return the ids in [first, stop), in order."""
        return [] if self.ids is None or first > self.last else within(self.ids, first, stop)

    def first_absent(self, first: int, stop: int) -> int:
        """Return the first of [first, stop) that is not in this segment; `stop` if all are."""
        if self.ids is None or first > self.last:
            return first
        return first_absent(self.ids, first, min(stop, self.last + 1))

    def holds(self, entry_id: int) -> bool:
        return self.ids is not None and entry_id <= self.last and entry_id in self.ids

    def count_after(self, entry_id: int, acknowledged: IdSet) -> int:
        """Return how many ids after this one are not acknowledged."""
        if self.ids is None or self.later is None or entry_id >= self.last:
            return 0
        count = self.later.before - self.before - (self.ids.rank(entry_id) if entry_id >= 0 else 0)
        return count - acknowledged.count_in(self.ids, entry_id)


class DueList:
    """Segments in the order in which they became due."""

    __slots__ = ("_merge_at", "end", "head", "length", "size_bytes")

    def __init__(self) -> None:
        self.head = self.end = Segment(0)
        self.length = 0
        self.size_bytes = 0
        self._merge_at = _SEGMENTS_MAX

    def append(self, due_ms: int, ids: Bitmap) -> None:
        """Add ids that are due now, at least one."""
        size_bytes = footprint(ids)
        filled = self.end
        filled.due_ms, filled.ids, filled.last, filled.size_bytes = due_ms, ids, ids.max(), size_bytes
        filled.later = self.end = Segment(filled.before + len(ids))
        self.length += 1
        self.size_bytes += size_bytes
        self.trim()

    def enter(self) -> Segment:
        """Place a new view at the end: messages that are due already are not for it."""
        self.end.readers += 1
        return self.end

    def step(self, segment: Segment) -> Segment:
        """Move a view from this segment to the next one, and return the next one."""
        later = segment.later
        assert later is not None, "nothing comes after the end"
        later.readers += 1
        self.leave(segment)
        return later

    def leave(self, segment: Segment) -> None:
        """Remove a view from this segment."""
        segment.readers -= 1
        if not segment.readers:
            segment.begun = False
            self.trim()

    def trim(self) -> None:
        """Drop segments that all views have passed."""
        while self.head is not self.end and not self.head.readers:
            self._drop_head()

    def _drop_head(self) -> None:
        head, later = self.head, self.head.later
        assert later is not None, "the end is never dropped"
        self.head = later
        self.length -= 1
        self.size_bytes -= head.size_bytes
        self._merge_at = max(_SEGMENTS_MAX, min(self._merge_at, 2 * self.length))

    @property
    def crowded(self) -> bool:
        """Whether there are so many segments that they should be merged."""
        return self.length > self._merge_at

    def merge(self) -> None:
        """Merge neighbours without a view between them.

        Slow views lose the order of slots, but all these messages are due.
        """
        segment = self.head
        while segment is not self.end and segment.later is not self.end:
            later = segment.later
            assert later is not None, "only the end has nothing after it"
            if later.readers or segment.begun:
                segment = later
                continue
            segment.ids = ids = _union(segment.ids, later.ids)
            segment.last, segment.later = max(segment.last, later.last), later.later
            self.size_bytes -= segment.size_bytes + later.size_bytes
            segment.size_bytes = footprint(ids)
            self.size_bytes += segment.size_bytes
            self.length -= 1
        # If views stand between most segments, merging achieves little: try again when there are twice as many.
        self._merge_at = max(_SEGMENTS_MAX, 2 * self.length)


def _union(ids: Bitmap | None, more: Bitmap | None) -> Bitmap:
    assert ids is not None, "only the end is empty"
    assert more is not None, "only the end is empty"
    if type(ids) is not type(more):  # the first id of 64 bits came between them
        ids, more = widened(ids), widened(more)
    ids |= more
    return ids
