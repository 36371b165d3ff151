# SPDX-License-Identifier: Apache-2.0
"""The contents of a topic's delayed index: slots that are not due, the list of due messages, and cancelled ids.

Why apart from the manager: the manager decides, this module stores. It creates bitmaps only when the first delayed
message comes. Where: each manager has one. Views ask it which entries are held, and walk its due list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.governance.delayed_due import DueList, Segment
    from penstock.governance.delayed_id_set import IdSet
    from penstock.governance.delayed_slots import Slots, Tail

# The number of slots that one operation sweeps when they hold many forgotten ids.
_SWEPT_SLOTS: Final = 16


class Contents:
    """Entry ids of delayed messages. Attribute `cancelled`: ids that are held forever."""

    __slots__ = ("_due", "cancelled", "slots")

    def __init__(self) -> None:
        self.slots: Slots | None = None
        self._due: DueList | None = None
        self.cancelled: set[int] = set()

    # -- in and out ---------------------------------------------------------------------------------------------------

    def begin(self, slots: Slots | None = None) -> Slots:
        """Create the slots for the first delayed message, or take those of a snapshot."""
        # Here and not above: a broker that never delays anything does without the bitmaps.
        from penstock.governance.delayed_due import DueList  # noqa: PLC0415 - see above
        from penstock.governance.delayed_slots import Slots  # noqa: PLC0415

        self.slots, self._due = slots or Slots(), DueList()
        return self.slots

    def add(self, entry_ids: Sequence[int], dues_ms: Sequence[int]) -> None:
        """Hold these ascending ids until these times; `begin` must have been called."""
        assert self.slots is not None, "begin was called"
        self.slots.add(entry_ids, dues_ms)

    def discard(self, entry_id: int) -> bool:
        """Forget one id that is not due; return False if it is not here."""
        return self.slots is not None and self.slots.discard(entry_id)

    def discard_through(self, entry_id: int) -> None:
        """Forget ids up to this one that are not due."""
        if self.slots is not None:
            self.slots.discard_through(entry_id)

    def take_last(self, least_ms: int, bytes_min: int) -> Tail | None:
        """Remove the messages that are due last: about `bytes_min` bytes, and none that is due before `least_ms`."""
        return None if self.slots is None else self.slots.take_last(least_ms, bytes_min)

    def come_due(self, first_ms: int) -> None:
        """Move the first slot, which has this time, to the due list."""
        assert self.slots is not None, "somebody has seen a slot"
        assert self._due is not None, "there is a list for what is due"
        self._due.append(first_ms, self.slots.take(first_ms))
        if self._due.crowded:
            self._due.merge()

    def clear(self) -> None:
        self.slots = self._due = None
        self.cancelled.clear()

    # -- what is held -------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no message is waiting for its time."""
        return self.slots is None or not self.slots.count

    @property
    def count(self) -> int:
        """The number of messages that are not due."""
        return 0 if self.slots is None else self.slots.count

    @property
    def first_ms(self) -> int | None:
        """The time of the first slot; None without slots."""
        return None if self.slots is None else self.slots.first_ms

    @property
    def last_ms(self) -> int | None:
        """The time of the last slot; None without slots."""
        return None if self.slots is None else self.slots.last_ms

    @property
    def lowest(self) -> int | None:
        """The lowest id that is not due; None without one."""
        return None if self.slots is None or not self.slots.count else self.slots.lowest

    def held(self, first: int, stop: int) -> list[int]:
        """Return the ids of [first, stop) that are not due or are cancelled, in order."""
        held = [] if self.slots is None else self.slots.within(first, stop)
        if self.cancelled:
            held = sorted({*held, *(entry_id for entry_id in self.cancelled if first <= entry_id < stop)})
        return held

    def first_not_held(self, first: int, stop: int) -> int:
        """Return the first id of [first, stop) that `held` would not return; `stop` if there is none."""
        at = -1
        while at != first and first < stop:
            at = first
            first = first if self.slots is None else self.slots.first_absent(first, stop)
            if first in self.cancelled and first < stop:
                first += 1
        return first

    def holds(self, entry_id: int) -> bool:
        """Return whether this message is not due."""
        return self.slots is not None and self.slots.holds(entry_id)

    def count_after(self, entry_id: int, acknowledged: IdSet) -> int:
        """Return how many messages after this entry are not due and not acknowledged."""
        if self.slots is None or not self.slots.count:
            return 0
        return self.slots.count - self.slots.rank(entry_id) - acknowledged.count_in_all(self.slots.members)

    # -- what is due --------------------------------------------------------------------------------------------------

    @property
    def due_segments(self) -> int:
        """The number of due segments that some view has not passed."""
        return 0 if self._due is None else self._due.length

    @property
    def head(self) -> Segment:
        """The oldest due segment."""
        assert self._due is not None, "there are segments"
        return self._due.head

    def enter(self) -> Segment | None:
        """Place a view at the end of the due list; None before the first delayed message."""
        return None if self._due is None else self._due.enter()

    def step(self, segment: Segment) -> Segment:
        """Move a view past this segment."""
        assert self._due is not None, "there is a segment"
        return self._due.step(segment)

    def leave(self, segment: Segment) -> None:
        """Remove a view from this segment."""
        if self._due is not None:
            self._due.leave(segment)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Return the bytes of all contents. Sweeps a few slots if many ids were forgotten."""
        if self.slots is None or self._due is None:
            return 0
        self.slots.sweep(_SWEPT_SLOTS)
        if not self.slots.count and not self._due.length:
            return 0
        return self.slots.size_bytes + self._due.size_bytes
