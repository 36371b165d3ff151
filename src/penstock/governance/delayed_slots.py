# SPDX-License-Identifier: Apache-2.0
"""The delayed messages of a topic that are not due: time slot → entry ids, each kept once, a few bits apiece.

Why bitmaps: ids that are close together cost next to nothing, ids strewn over millions two bytes and their share of a
container. Why also one bitmap of all of them (`members`): it says in a fraction of a microsecond what a reader must
step over, it makes adding something twice harmless, and it makes forgetting cheap: to take ids out of `members` is
enough, the slot drops them when it is due or when it is swept.
Where: the manager of a topic makes one when the topic's first delayed message comes; importing this module imports
the bitmaps, so a broker that never delays anything does without.

Entry ids of 2³² and more need wider bitmaps, half as large again; all are widened once, when the first such id comes.
"""

from __future__ import annotations

from array import array
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from pyroaring import BitMap, BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Bitmap: TypeAlias = BitMap  # BitMap64 has the same methods: what is said of one is meant of both
_WIDE: Final = cast("type[Bitmap]", BitMap64)
_NARROW_MAX: Final = 2**32 - 1

# What things take besides their data, as measured by the growth of a process (benchmarks/delayed.py compares).
_SINGLE_BYTES: Final = 120  # a slot of one message: its place in the table, the time that is its key, and the id
_SLOT_BYTES: Final = 100  # a slot of more, besides its bitmap
_BITMAP_BYTES: Final = 120
_CONTAINER_BYTES: Final = 68
_ARRAY_BYTES: Final = 2  # an id in most containers
# All ids together change with every run; how much they take is looked up after so many changes, and this part of them.
_CHANGES_MIN: Final = 64
_CHANGED_PART: Final = 32
# A stretch of time in which the last slot is looked for: 17 minutes.
_PERIOD_BITS: Final = 20
# Slots may hold this many ids more than are live, and as many again as are, before they are swept.
_STALE_MAX: Final = 4_096


class _Slot:
    """Two ids or more that are due at the same time.

    Attributes:
        size_bytes: what they take, within an eighth: counted now and then, reckoned in between.
    """

    __slots__ = ("_counted_bytes", "ids", "size_bytes")

    def __init__(self, ids: Bitmap) -> None:
        self.ids = ids
        self.size_bytes = self._counted_bytes = _SLOT_BYTES + footprint(ids)

    def add(self, entry_ids: list[int]) -> int:
        """Take these in; by how many bytes that is more."""
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
    """Entry ids by when they are due. A slot's time is when all of it is due.

    Attributes:
        members: all ids; what is not in here is in no slot any more, whatever the slot's bitmap says.
        count: how many they are.
    """

    __slots__ = (
        "_changes",
        "_first_ms",
        "_highest",
        "_kind",
        "_members_bytes",
        "_periods",
        "_slots",
        "_slots_bytes",
        "_stored",
        "_swept_ms",
        "_tail",
        "_times",
        "count",
        "members",
    )

    def __init__(self) -> None:
        self._kind: type[Bitmap] = BitMap
        self._slots: dict[int, int | _Slot] = {}
        self._times = BitMap64()  # the keys of `_slots`: an ordered set at a few bytes each
        self._periods = BitMap64()  # the stretches of time in which there were any, to find the last by
        self._tail: list[int] = []  # the times in the last such stretch, if somebody asked for the last
        self.members: Bitmap = BitMap()
        self.count = 0
        self._stored = 0  # ids in all slots, those included that are not in `members` any more
        self._highest = -1
        self._first_ms: int | None = None  # None: to be found out
        self._slots_bytes = 0
        self._members_bytes = footprint(self.members)
        self._changes = 0
        self._swept_ms = 0

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """How much all of it takes; what the last changes did to `members` may be missing."""
        return self._slots_bytes + self._members_bytes

    def settle(self) -> int:
        """`size_bytes`, nothing missing."""
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
        """Put each id, in increasing order, into the slot of its time if it is in none; returns how many were not."""
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
        self._stored += len(entry_ids)
        self._changed(len(entry_ids))
        return len(entry_ids)

    def _put(self, due_ms: int, entry_ids: list[int]) -> None:
        slot = self._slots.get(due_ms)
        if slot is not None and not isinstance(slot, int):
            self._slots_bytes += slot.add(entry_ids)
            return
        if slot is not None:
            entry_ids = [slot, *entry_ids]
            self._slots_bytes -= _SINGLE_BYTES
        self._store(due_ms, entry_ids)

    def _store(self, due_ms: int, entry_ids: list[int]) -> None:
        self._times.add(due_ms)
        self._periods.add(due_ms >> _PERIOD_BITS)
        if self._tail and due_ms > self._tail[0]:
            self._tail = []
        if self._first_ms is not None and due_ms < self._first_ms:
            self._first_ms = due_ms
        if len(entry_ids) == 1:
            self._slots[due_ms] = entry_ids[0]
            self._slots_bytes += _SINGLE_BYTES
        else:
            slot = self._slots[due_ms] = _Slot(self._kind(entry_ids))
            self._slots_bytes += slot.size_bytes

    def restore(self, singles: tuple[Sequence[int], Sequence[int]], slots: Iterable[tuple[int, bytes, bool]]) -> None:
        """Take in what `stored` gave: times and ids of single ones, and the others. There was nothing before."""
        dues_ms, entry_ids = singles
        kept = [(due_ms, _bitmap(stored, wide=wide)) for due_ms, stored, wide in slots]
        highest = max([*entry_ids, *(slot.max() for _, slot in kept)], default=-1)
        if highest > _NARROW_MAX:
            self._kind = _WIDE
            kept = [(due_ms, widened(slot)) for due_ms, slot in kept]
        self._slots = dict(zip(dues_ms, entry_ids, strict=True))
        self._slots.update((due_ms, _Slot(ids)) for due_ms, ids in kept)
        self._times = BitMap64(self._slots)
        self._periods = BitMap64(due_ms >> _PERIOD_BITS for due_ms in self._slots)
        self.members = self._kind(entry_ids if self._kind is _WIDE else array("I", entry_ids))
        if kept:
            self.members = self.members.union(*(slot for _, slot in kept))
            self.members.run_optimize()
        self.count = len(self.members)
        self._stored = len(entry_ids) + sum(len(slot) for _, slot in kept)
        self._highest = highest
        self._slots_bytes = sum(
            _SINGLE_BYTES if isinstance(slot, int) else slot.size_bytes for slot in self._slots.values()
        )
        self.settle()

    def _widen(self) -> None:
        """From now on ids may be of 64 bits."""
        self._kind = _WIDE
        self.members = widened(self.members)
        for due_ms, slot in self._slots.items():
            if not isinstance(slot, int):
                wide = self._slots[due_ms] = _Slot(widened(slot.ids))
                self._slots_bytes += wide.size_bytes - slot.size_bytes

    # -- out ----------------------------------------------------------------------------------------------------------

    @property
    def first_ms(self) -> int | None:
        """The time of the first slot with anything in it; None when there is nothing."""
        while self.count:
            if self._first_ms is None:
                self._first_ms = _next(self._times, 0)  # `min` walks the whole set
                assert self._first_ms is not None, "ids are in slots"
            if self._is_live(self._first_ms):
                return self._first_ms
            self._drop(self._first_ms)
        return None

    @property
    def last_ms(self) -> int | None:
        """The time of the last slot with anything in it; None when there is nothing."""
        while self.count:
            if not self._tail:
                # `max` walks the whole set, too; that of the periods is small.
                period = self._periods.max()
                self._tail = list(self._times.iter_equal_or_larger(period << _PERIOD_BITS))
                if not self._tail:
                    self._periods.discard(period)
                    continue
            due_ms = self._tail[-1]
            if due_ms in self._slots:
                if self._is_live(due_ms):
                    return due_ms
                self._drop(due_ms)
            self._tail.pop()
        return None

    def _is_live(self, due_ms: int) -> bool:
        slot = self._slots[due_ms]
        if self._stored == self.count:
            return True
        return slot in self.members if isinstance(slot, int) else slot.ids.intersect(self.members)

    def take(self, due_ms: int) -> Bitmap:
        """Take a whole slot out; what of it is live."""
        slot = self._drop(due_ms)
        if self._stored + len(slot) != self.count:
            slot &= self.members
        if len(slot) == self.count:
            self.members.clear()
        else:
            self.members -= slot
        self._changed(-len(slot))
        return slot

    def _drop(self, due_ms: int) -> Bitmap:
        slot = self._slots.pop(due_ms)
        self._times.discard(due_ms)
        if due_ms == self._first_ms:
            self._first_ms = None
        if isinstance(slot, int):
            self._slots_bytes -= _SINGLE_BYTES
            ids = self._kind((slot,))
        else:
            self._slots_bytes -= slot.size_bytes
            ids = slot.ids
        self._stored -= len(ids)
        return ids

    def discard(self, entry_id: int) -> bool:
        """Forget one id; False if it is not here."""
        if entry_id not in self.members:
            return False
        self.members.discard(entry_id)
        self._changed(-1)
        return True

    def discard_through(self, entry_id: int) -> None:
        """Forget everything up to this id."""
        gone = self.rank(entry_id)
        if gone == self.count:
            self.clear()
        elif gone:
            self.members.remove_range(0, min(entry_id, self._highest) + 1)
            self._changed(-gone)

    def clear(self) -> None:
        """Forget everything; ids that come later may be wide for all that."""
        self._slots.clear()
        self._times.clear()
        self._periods.clear()
        self._tail = []
        self._first_ms = None
        self.members.clear()
        self.count = self._stored = self._slots_bytes = 0
        self.settle()

    def sweep(self, slots_max: int) -> None:
        """If slots hold many ids that were forgotten, rid so many slots of them."""
        for _ in range(slots_max):
            if self._stored <= 2 * self.count + _STALE_MAX:
                return
            due_ms = _next(self._times, self._swept_ms)
            if due_ms is None:
                self._swept_ms = 0
                continue
            self._swept_ms = due_ms + 1
            left = self._drop(due_ms) & self.members
            if left:
                self._stored += len(left)
                self._store(due_ms, list(left))

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int:
        """The lowest id; there is one at least."""
        return self.members.min()

    def rank(self, entry_id: int) -> int:
        """How many ids up to this one."""
        return self.members.rank(min(entry_id, self._highest)) if entry_id >= 0 and self.count else 0

    def holds(self, entry_id: int) -> bool:
        """Whether this id is here."""
        return entry_id <= self._highest and entry_id in self.members

    def within(self, first: int, stop: int) -> list[int]:
        """The ids in [first, stop), in order."""
        return within(self.members, first, stop) if first <= self._highest else []

    def first_absent(self, first: int, stop: int) -> int:
        """The first of [first, stop) that is not here; `stop` if all are."""
        return first_absent(self.members, first, min(stop, self._highest + 1)) if first <= self._highest else first

    def stored(self) -> Iterator[tuple[int, int | bytes, bool]]:
        """All slots in the order of time: time, the one id or a bitmap's bytes, whether that is wide.

        Slots may come and go between two of them.
        """
        at_ms = 0
        while (due_ms := _next(self._times, at_ms)) is not None:
            at_ms = due_ms + 1
            slot = self._slots[due_ms]
            if isinstance(slot, int):
                if slot in self.members:
                    yield due_ms, slot, False
                continue
            live = slot.ids if self._stored == self.count else slot.ids & self.members
            if live:
                yield due_ms, live.serialize(), not isinstance(live, BitMap)


def within(ids: Bitmap, first: int, stop: int) -> list[int]:
    """The ids in [first, stop), in order."""
    lowest = _next(ids, first)
    if lowest is None or lowest >= stop:
        return []
    return list(takewhile(stop.__gt__, ids.iter_equal_or_larger(first)))


def first_absent(ids: Bitmap, first: int, stop: int) -> int:
    """The first of [first, stop) that is not in; `stop` if all are. Time grows with the logarithm of the answer."""
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
    """How many bytes a bitmap takes."""
    has = ids.get_statistics()
    data = has["n_bytes_array_containers"] + has["n_bytes_run_containers"] + has["n_bytes_bitset_containers"]
    return _BITMAP_BYTES + _CONTAINER_BYTES * has["n_containers"] + data


def widened(ids: Bitmap) -> Bitmap:
    """The same ids in a bitmap that takes ids of 64 bits."""
    return _WIDE(ids)


def _bitmap(stored: bytes, *, wide: bool) -> Bitmap:
    return (_WIDE if wide else BitMap).deserialize(stored)


def _next(ids: Bitmap | BitMap64, from_id: int) -> int | None:
    """The first id from this one on; None when there is none."""
    try:
        return ids.next_set_bit(from_id)
    except ValueError:
        return None
