# SPDX-License-Identifier: Apache-2.0
"""The delayed messages of a topic that are due, and how far each view has come with them.

Why: what is due is due for all subscriptions at once, but they take it each at their own pace. So a slot that is due
moves once, whole, to the end of this list, and a view is a place in it: no copy per subscription. What all views have
passed is dropped. Because a slot enters at the end whatever its time, a clock that is set back confuses nobody.
Where: the manager appends, views walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.governance.delayed_slots import first_absent, footprint, widened, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.governance.delayed_id_set import IdSet
    from penstock.governance.delayed_slots import Bitmap

# Segments beyond which neighbours are merged where no view stands between them.
_SEGMENTS_MAX: Final = 128


class Segment:
    """Ids that came due together, and later ones merged into them; the last one of a list is empty, and the end.

    Attributes:
        before: how many ids all earlier segments ever held.
        readers: views that stand here: they have passed everything before, and not all of this.
        begun: whether one of them has passed a part.
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
        """Its ids from this one on that are not acknowledged, in order."""
        if self.ids is None or entry_id > self.last:
            return iter(())
        return acknowledged.out_of(self.ids).iter_equal_or_larger(entry_id)

    def within(self, first: int, stop: int) -> list[int]:
        """Its ids in [first, stop), in order."""
        return [] if self.ids is None or first > self.last else within(self.ids, first, stop)

    def first_absent(self, first: int, stop: int) -> int:
        """The first of [first, stop) that it has not; `stop` if it has all."""
        if self.ids is None or first > self.last:
            return first
        return first_absent(self.ids, first, min(stop, self.last + 1))

    def holds(self, entry_id: int) -> bool:
        """Whether it has this id."""
        return self.ids is not None and entry_id <= self.last and entry_id in self.ids

    def count_after(self, entry_id: int, acknowledged: IdSet) -> int:
        """How many of its ids come after this one, those left out that are acknowledged."""
        if self.ids is None or self.later is None or entry_id >= self.last:
            return 0
        count = self.later.before - self.before - (self.ids.rank(entry_id) if entry_id >= 0 else 0)
        return count - acknowledged.count_in(self.ids, entry_id)


class DueList:
    """Segments in the order in which they came due."""

    __slots__ = ("_merge_at", "end", "head", "length", "size_bytes")

    def __init__(self) -> None:
        self.head = self.end = Segment(0)
        self.length = 0
        self.size_bytes = 0
        self._merge_at = _SEGMENTS_MAX

    def append(self, due_ms: int, ids: Bitmap) -> None:
        """Ids that are due now, at least one."""
        size_bytes = footprint(ids)
        filled = self.end
        filled.due_ms, filled.ids, filled.last, filled.size_bytes = due_ms, ids, ids.max(), size_bytes
        filled.later = self.end = Segment(filled.before + len(ids))
        self.length += 1
        self.size_bytes += size_bytes
        self.trim()

    def enter(self) -> Segment:
        """A view begins at the end: what is due already is not for it."""
        self.end.readers += 1
        return self.end

    def step(self, segment: Segment) -> Segment:
        """A view has passed all of this segment; where it stands now."""
        later = segment.later
        assert later is not None, "nothing comes after the end"
        later.readers += 1
        self.leave(segment)
        return later

    def leave(self, segment: Segment) -> None:
        """A view stands here no more."""
        segment.readers -= 1
        if not segment.readers:
            segment.begun = False
            self.trim()

    def trim(self) -> None:
        """Drop what all views have passed."""
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
        """Whether it is time to merge."""
        return self.length > self._merge_at

    def merge(self) -> None:
        """Join neighbours between which nobody stands: the laggards lose the order of slots, which are all due."""
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
        # If many views stand at many places, it will be in vain next time, too: not before there are twice as many.
        self._merge_at = max(_SEGMENTS_MAX, 2 * self.length)


def _union(ids: Bitmap | None, more: Bitmap | None) -> Bitmap:
    assert ids is not None, "only the end is empty"
    assert more is not None, "only the end is empty"
    if type(ids) is not type(more):  # the first id of 64 bits came between them
        ids, more = widened(ids), widened(more)
    ids |= more
    return ids
