# SPDX-License-Identifier: Apache-2.0
"""The delayed messages of a topic that are not due: time slot → entry ids, each id stored once.

Why two forms: ids that are close to each other take a few bits each in a bitmap, but each bitmap takes 300 bytes. So
slots with few ids are pairs in a table, 17 bytes each (`delayed_times`), and slots with more ids are bitmaps, each with
a mark in the table. Only the table knows the order of time.

Why also one bitmap of all ids (`members`): in a fraction of a microsecond it says which entries a reader must skip. It
makes adding an id twice harmless, and forgetting cheap: an id is only removed from `members`, and its slot drops it
when it is due or swept.

Where: a topic's manager creates one when the topic's first delayed message comes. Importing this module imports the
bitmaps, so a broker that never delays anything does not load them.

Entry ids of 2³² and more need wider bitmaps, half as large again. All bitmaps are widened once, when the first such id
comes.
"""

from __future__ import annotations

from array import array
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from pyroaring import BitMap, BitMap64

from penstock.governance.delayed_times import BITMAP, PAIR_BYTES, TimeTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Bitmap: TypeAlias = BitMap  # or BitMap64, which has the same methods
_WIDE: Final = cast("type[Bitmap]", BitMap64)
_NARROW_MAX: Final = 2**32 - 1

# Memory overheads, as measured by the growth of a process (benchmarks/delayed.py compares).
_SLOT_BYTES: Final = 180  # a slot with a bitmap, without the bitmap: its dictionary entry and its key, a time
_BITMAP_BYTES: Final = 120
_CONTAINER_BYTES: Final = 68
_ARRAY_BYTES: Final = 2  # an id in most containers
# The size of `members` is measured again after this many changes plus 1/_CHANGED_PART of the ids.
_CHANGES_MIN: Final = 64
_CHANGED_PART: Final = 32
# Slots are swept when they hold more than twice the live ids plus this many.
_STALE_MAX: Final = 4_096
# A stored piece holds at most this many bitmaps: a millisecond's work.
_STORED_BITMAPS_MAX: Final = 200


class Tail(NamedTuple):
    """Messages removed from the end of time: from which slot on, and their live ids."""

    from_ms: int
    ids: Bitmap


class Stored(NamedTuple):
    """Slots to be stored: times and ids in the order of time, and a bitmap for each mark among the ids."""

    dues_ms: array[int]
    entry_ids: array[int]
    bitmaps: list[tuple[bytes, bool]]


class _Slot:
    """Ids that are due at the same time, too many to be pairs.

    Attributes:
        size_bytes: memory in bytes, within an eighth; measured now and then, estimated in between.
    """

    __slots__ = ("_counted_bytes", "ids", "size_bytes")

    def __init__(self, ids: Bitmap) -> None:
        self.ids = ids
        self.size_bytes = self._counted_bytes = _SLOT_BYTES + footprint(ids)

    def add(self, entry_ids: list[int]) -> int:
        """Add these ids; return by how many bytes the slot grew."""
        before = self.size_bytes
        if len(entry_ids) == 1:
            entry_id = entry_ids[0]
            in_last_container = entry_id >> 16 == self.ids.max() >> 16
            self.ids.add(entry_id)
            self.size_bytes += _ARRAY_BYTES + (0 if in_last_container else _CONTAINER_BYTES)
        else:
            self.ids.update(entry_ids)
            self.size_bytes += _ARRAY_BYTES * len(entry_ids) + _CONTAINER_BYTES
        if 8 * (self.size_bytes - self._counted_bytes) > self._counted_bytes:
            self.size_bytes = self._counted_bytes = _SLOT_BYTES + footprint(self.ids)
        return self.size_bytes - before


class Slots:
    """Entry ids by their due time. A slot's time is when all of it is due.

    Attributes:
        members: all live ids. An id that is not in here is forgotten, even if a slot still has it.
        count: the number of live ids.
    """

    __slots__ = (
        "_bitmaps",
        "_bitmaps_bytes",
        "_changes",
        "_highest",
        "_kind",
        "_members_bytes",
        "_stored",
        "_swept_ms",
        "_table",
        "count",
        "members",
    )

    def __init__(self) -> None:
        self._kind: type[Bitmap] = BitMap
        self._table = TimeTable()
        self._bitmaps: dict[int, _Slot] = {}
        self.members: Bitmap = BitMap()
        self.count = 0
        self._stored = 0  # ids in all slots, forgotten ones included
        self._highest = -1
        self._bitmaps_bytes = 0
        self._members_bytes = footprint(self.members)
        self._changes = 0
        self._swept_ms = -1

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Memory in bytes; the latest changes of `members` may be missing."""
        return self._table.size_bytes + self._bitmaps_bytes + self._members_bytes

    def settle(self) -> int:
        """Measure `members` and return the exact `size_bytes`."""
        self._members_bytes = footprint(self.members)
        self._changes = 0
        return self.size_bytes

    def _changed(self, count: int) -> None:
        self.count += count
        self._changes += abs(count)
        if self._changes >= _CHANGES_MIN + self.count // _CHANGED_PART:
            self.settle()

    # -- in -----------------------------------------------------------------------------------------------------------

    def add(self, entry_ids: Sequence[int], dues_ms: Sequence[int]) -> int:
        """Put each id, ascending, into the slot of its time unless it is in a slot already.

        Return how many were added.
        """
        if entry_ids[-1] > _NARROW_MAX and self._kind is BitMap:
            self._widen()
        if entry_ids[0] <= self._highest:
            members = self.members
            new = [row for row, entry_id in enumerate(entry_ids) if entry_id not in members]
            entry_ids, dues_ms = [entry_ids[row] for row in new], [dues_ms[row] for row in new]
            if not new:
                return 0
        slots: dict[int, list[int]] = {}
        for entry_id, due_ms in zip(entry_ids, dues_ms, strict=True):
            if due_ms in slots:
                slots[due_ms].append(entry_id)
            else:
                slots[due_ms] = [entry_id]
        for due_ms, ids in slots.items():
            self._put(due_ms, ids)
        self.members.update(entry_ids)
        self._highest = max(self._highest, entry_ids[-1])
        self._changed(len(entry_ids))
        return len(entry_ids)

    def _put(self, due_ms: int, entry_ids: list[int]) -> None:
        slot = self._bitmaps.get(due_ms)
        if slot is not None:
            self._stored -= len(slot.ids)
            self._bitmaps_bytes += slot.add(entry_ids)
            self._stored += len(slot.ids)
            return
        crowd = self._table.put(due_ms, entry_ids)
        self._stored += len(entry_ids)
        if crowd is not None:
            slot = self._bitmaps[due_ms] = _Slot(self._kind(crowd))
            self._bitmaps_bytes += slot.size_bytes
            self._stored += len(slot.ids) - len(crowd)

    def restore(self, stored: Stored) -> None:
        """Load slots that `stored` yielded. They must be later than all slots that are here."""
        bitmaps = iter(stored.bitmaps)
        singles = array("Q")
        for due_ms, entry_id in zip(stored.dues_ms, stored.entry_ids, strict=True):
            if entry_id != BITMAP:
                singles.append(entry_id)
                continue
            data, wide = next(bitmaps)
            self._restore_ids(ids := (_WIDE if wide else BitMap).deserialize(data))
            slot = self._bitmaps[due_ms] = _Slot(widened(ids) if self._kind is _WIDE and not wide else ids)
            self._bitmaps_bytes += slot.size_bytes
        self._table.restore(stored.dues_ms, stored.entry_ids)
        if singles:
            self._restore_ids(_WIDE(singles) if max(singles) > _NARROW_MAX else BitMap(array("I", singles)))
        self.count = len(self.members)

    def _restore_ids(self, ids: Bitmap) -> None:
        if type(ids) is not self._kind:
            if self._kind is BitMap:
                self._widen()
            else:
                ids = widened(ids)
        self.members |= ids
        self._stored += len(ids)
        self._highest = max(self._highest, ids.max())

    def restored(self) -> None:
        """Finish after the last `restore`."""
        self.members.run_optimize()
        self.settle()

    def _widen(self) -> None:
        """Allow ids of 64 bits from now on."""
        self._kind = _WIDE
        self.members = widened(self.members)
        for due_ms, slot in self._bitmaps.items():
            wide = self._bitmaps[due_ms] = _Slot(widened(slot.ids))
            self._bitmaps_bytes += wide.size_bytes - slot.size_bytes

    # -- out ----------------------------------------------------------------------------------------------------------

    @property
    def first_ms(self) -> int | None:
        """The time of the first slot with a live id; None when there is none."""
        while self.count:
            first_ms = self._table.first_ms
            assert first_ms is not None, "ids are in slots"
            if self._is_live(first_ms):
                return first_ms
            self._drop(first_ms)
        return None

    @property
    def last_ms(self) -> int | None:
        """The time of the last slot with a live id; None when there is none."""
        while self.count:
            last_ms = self._table.last_ms
            assert last_ms is not None, "ids are in slots"
            if self._is_live(last_ms):
                return last_ms
            self._drop(last_ms)
        return None

    def _is_live(self, due_ms: int) -> bool:
        if self._stored == self.count:
            return True
        slot = self._bitmaps.get(due_ms)
        if slot is not None:
            return slot.ids.intersect(self.members)
        return any(entry_id in self.members for entry_id in self._table.at(due_ms))

    def take(self, due_ms: int) -> Bitmap:
        """Remove a whole slot and return its live ids."""
        return self._take(self._drop(due_ms))

    def take_last(self, least_ms: int, bytes_min: int) -> Tail | None:
        """Remove slots from the end of time until that frees `bytes_min` bytes or a thousand slots are removed.

        Returns None when there is no slot at `least_ms` or later.
        """
        if not self._table.count:
            return None
        dues_ms, entry_ids = self._table.tail(least_ms)
        row, freed, gone = len(dues_ms), 0, self._kind()
        while row and (freed < bytes_min or (row < len(dues_ms) and dues_ms[row - 1] == dues_ms[row])):
            row -= 1
            freed += PAIR_BYTES
            if entry_ids[row] == BITMAP:
                slot = self._bitmaps.pop(dues_ms[row])
                freed += slot.size_bytes
                self._bitmaps_bytes -= slot.size_bytes
                self._stored -= len(slot.ids)
                gone |= slot.ids
        if row == len(dues_ms):
            return None
        self._table.cut_tail(dues_ms[row])
        singles = [entry_id for entry_id in entry_ids[row:] if entry_id != BITMAP]
        self._stored -= len(singles)
        gone.update(singles)
        return Tail(dues_ms[row], self._take(gone))

    def _take(self, ids: Bitmap) -> Bitmap:
        """Remove these ids, which are in no slot any more, from `members`; return those that were live."""
        if self._stored + len(ids) != self.count:
            ids &= self.members
        if len(ids) == self.count:
            self.members.clear()
        else:
            self.members -= ids
        self._changed(-len(ids))
        return ids

    def _drop(self, due_ms: int) -> Bitmap:
        ids = self._table.remove(due_ms)
        slot = self._bitmaps.pop(due_ms, None)
        if slot is None:
            self._stored -= len(ids)
            return self._kind(ids if self._kind is _WIDE else array("I", ids))
        self._bitmaps_bytes -= slot.size_bytes
        self._stored -= len(slot.ids)
        return slot.ids

    def discard(self, entry_id: int) -> bool:
        """Forget one id; return False if it is not here."""
        if entry_id not in self.members:
            return False
        self.members.discard(entry_id)
        self._changed(-1)
        return True

    def discard_through(self, entry_id: int) -> None:
        """Forget every id up to this one."""
        gone = self.rank(entry_id)
        if gone == self.count:
            self.clear()
        elif gone:
            self.members.remove_range(0, min(entry_id, self._highest) + 1)
            self._changed(-gone)

    def clear(self) -> None:
        """Forget every id. If ids were widened, they stay wide."""
        self._table.clear()
        self._bitmaps.clear()
        self.members.clear()
        self.count = self._stored = self._bitmaps_bytes = 0
        self.settle()

    def sweep(self, slots_max: int) -> None:
        """If slots hold many forgotten ids, remove these from up to `slots_max` slots."""
        for _ in range(slots_max):
            if self._stored <= 2 * self.count + _STALE_MAX:
                return
            due_ms = self._table.next_ms(self._swept_ms)
            if due_ms is None:
                self._swept_ms = -1
                continue
            self._swept_ms = due_ms
            slot = self._bitmaps.get(due_ms)
            if slot is None or not slot.ids.intersect(self.members):
                left = self._drop(due_ms) & self.members
                if left:
                    self._put(due_ms, list(left))
                continue
            swept = self._bitmaps[due_ms] = _Slot(slot.ids & self.members)
            self._bitmaps_bytes += swept.size_bytes - slot.size_bytes
            self._stored += len(swept.ids) - len(slot.ids)

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int:
        """The lowest live id; there must be one."""
        return self.members.min()

    def rank(self, entry_id: int) -> int:
        """Return the number of live ids up to this one."""
        return self.members.rank(min(entry_id, self._highest)) if entry_id >= 0 and self.count else 0

    def holds(self, entry_id: int) -> bool:
        """Return whether this id is live."""
        return entry_id <= self._highest and entry_id in self.members

    def within(self, first: int, stop: int) -> list[int]:
        """Return the live ids in [first, stop), in order."""
        return within(self.members, first, stop) if first <= self._highest else []

    def first_absent(self, first: int, stop: int) -> int:
        """Return the first of [first, stop) that is not here; `stop` if all are."""
        return first_absent(self.members, first, min(stop, self._highest + 1)) if first <= self._highest else first

    def stored(self) -> Iterator[Stored]:
        """Yield all slots in the order of time, a millisecond's work at a time.

        Slots may be added and removed in between.
        """
        at_ms = -1
        while True:
            dues_ms, entry_ids = self._table.after(at_ms)
            if not dues_ms:
                return
            piece = self._live(dues_ms, entry_ids)
            # Slots after the last bitmap that fits belong to the next piece.
            at_ms = dues_ms[-1] if len(piece.bitmaps) < _STORED_BITMAPS_MAX else piece.dues_ms[-1]
            if piece.dues_ms:
                yield piece

    def _live(self, dues_ms: array[int], entry_ids: array[int]) -> Stored:
        members, all_live = self.members, self._stored == self.count
        if all_live and not self._bitmaps:
            return Stored(dues_ms, entry_ids, [])
        piece = Stored(array("q"), array("Q"), [])
        for due_ms, entry_id in zip(dues_ms, entry_ids, strict=True):
            if entry_id == BITMAP:
                ids = self._bitmaps[due_ms].ids
                live = ids if all_live else ids & members
                if not live:
                    continue
                piece.bitmaps.append((live.serialize(), not isinstance(live, BitMap)))
            elif entry_id not in members:
                continue
            piece.dues_ms.append(due_ms)
            piece.entry_ids.append(entry_id)
            if len(piece.bitmaps) == _STORED_BITMAPS_MAX:
                break
        return piece


def within(ids: Bitmap, first: int, stop: int) -> list[int]:
    """Return the ids in [first, stop), in order."""
    lowest = _next(ids, first)
    if lowest is None or lowest >= stop:
        return []
    return list(takewhile(stop.__gt__, ids.iter_equal_or_larger(first)))


def first_absent(ids: Bitmap, first: int, stop: int) -> int:
    """Return the first of [first, stop) that is not in `ids`; `stop` if all are. Logarithmic in the answer."""
    if first >= stop or first not in ids:
        return first
    step = 1
    while first + step < stop and ids.contains_range(first, first + step + 1):
        step *= 2
    low, high = first + step // 2, min(first + step, stop)  # [first, low] is in; the answer is in (low, high]
    while low + 1 < high:
        middle = (low + high) // 2
        if ids.contains_range(first, middle + 1):
            low = middle
        else:
            high = middle
    return high


def footprint(ids: Bitmap) -> int:
    """Return the memory of a bitmap in bytes."""
    has = ids.get_statistics()
    data = has["n_bytes_array_containers"] + has["n_bytes_run_containers"] + has["n_bytes_bitset_containers"]
    return _BITMAP_BYTES + _CONTAINER_BYTES * has["n_containers"] + data


def bitmap_of(entry_ids: Sequence[int]) -> Bitmap:
    """Return a bitmap of these ids; there must be at least one."""
    return (_WIDE if max(entry_ids) > _NARROW_MAX else BitMap)(entry_ids)


def widened(ids: Bitmap) -> Bitmap:
    """Return the same ids in a bitmap that takes ids of 64 bits."""
    return _WIDE(ids)


def _next(ids: Bitmap | BitMap64, from_id: int) -> int | None:
    """Return the first id from this one on; None when there is none."""
    try:
        return ids.next_set_bit(from_id)
    except ValueError:
        return None
