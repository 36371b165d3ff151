# SPDX-License-Identifier: Apache-2.0
"""A set of entry ids of delayed messages, as a bitmap whose memory is counted.

Why: a subscription may acknowledge delayed messages one by one before they are due. They stay in the topic's index for
other subscriptions, but must not count for this one. A Python set takes 70 bytes for each id; a bitmap usually takes at
most two, and counts common ids without a walk. Where: a view has two of them; their bytes are charged with the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.governance.delayed_slots import Bitmap

# The size is measured again after this many changes plus 1/_CHANGED_PART of the ids.
_CHANGES_MIN: Final = 64
_CHANGED_PART: Final = 32


class IdSet:
    """A set of entry ids above the mark-delete position.

    Attributes:
        size_bytes: memory in bytes, within a few percent; 0 when it is empty.
    """

    __slots__ = ("_changes", "_ids", "size_bytes")

    def __init__(self) -> None:
        self._ids: Bitmap | None = None
        self._changes = 0
        self.size_bytes = 0

    def add(self, entry_ids: list[int]) -> None:
        from penstock.governance.delayed_slots import bitmap_of, widened  # noqa: PLC0415 - it imports the bitmaps

        more = bitmap_of(entry_ids)
        if self._ids is None:
            self._ids = more
            self._count()
            return
        if type(self._ids) is not type(more):
            self._ids, more = widened(self._ids), widened(more)
        self._ids |= more
        self._changes += len(entry_ids)
        if self._changes >= _CHANGES_MIN + len(self._ids) // _CHANGED_PART:
            self._count()

    def cut_through(self, entry_id: int) -> None:
        """Remove all ids up to this one."""
        if self._ids is None or entry_id < self._ids.min():
            return
        self._ids.remove_range(0, min(entry_id, self._ids.max()) + 1)
        if self._ids:
            self._count()
        else:
            self.clear()

    def clear(self) -> None:
        self._ids, self._changes, self.size_bytes = None, 0, 0

    def holds(self, entry_id: int) -> bool:
        return self._ids is not None and entry_id in self._ids

    def within(self, first: int, stop: int) -> list[int]:
        """Return the ids in [first, stop), in order."""
        if self._ids is None:
            return []
        from penstock.governance.delayed_slots import within  # noqa: PLC0415 - it imports the bitmaps

        return within(self._ids, first, stop)

    def first_absent(self, first: int, stop: int) -> int:
        """Return the first of [first, stop) that is not in the set; `stop` if all are."""
        if self._ids is None:
            return first
        from penstock.governance.delayed_slots import first_absent  # noqa: PLC0415 - it imports the bitmaps

        return first_absent(self._ids, first, stop)

    def count_in(self, ids: Bitmap | None, after: int = -1) -> int:
        """Return how many of `ids` above `after` are in the set."""
        both = self._shared(ids)
        if both is None:
            return 0
        return len(both) - (both.rank(after) if after >= 0 else 0)

    def count_in_all(self, ids: Bitmap) -> int:
        """Return how many of `ids` are in the set."""
        if self._ids is None:
            return 0
        if type(self._ids) is type(ids):
            return self._ids.intersection_cardinality(ids)
        return self.count_in(ids)

    def out_of(self, ids: Bitmap) -> Bitmap:
        """Return `ids` without those in the set."""
        both = self._shared(ids)
        return ids - both if both else ids

    def _shared(self, ids: Bitmap | None) -> Bitmap | None:
        if self._ids is None or ids is None:
            return None
        if type(self._ids) is type(ids):
            return self._ids & ids
        from penstock.governance.delayed_slots import widened  # noqa: PLC0415 - see above

        return widened(self._ids) & widened(ids)

    def _count(self) -> None:
        from penstock.governance.delayed_slots import footprint  # noqa: PLC0415 - see above

        assert self._ids is not None, "there is something to count"
        self._changes = 0
        self.size_bytes = footprint(self._ids)
