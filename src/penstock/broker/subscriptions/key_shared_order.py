# SPDX-License-Identifier: Apache-2.0
"""Key_Shared: what may be sent to whom now, so that the messages of a key stay in order and in one place.

Why: a key changes hands when consumers come and go. Whoever has messages of it that are not acknowledged keeps it until
they are (the key's slot is "draining"), and what was not sent stays ahead of what was published later.
Where: a subscription shows this object the entries it would send, sends what it allows, and reports what was sent,
acknowledged, given back. Pure: consumers are whatever the caller names them by.

Theory of operation. An entry is in one of four places: not seen yet; waiting (seen, and to be sent before any later
entry of its slot); held by the consumer it was sent to; gone. Two rules make the order:
- a slot is held by one consumer at a time: while anybody holds entries of it, only that consumer gets more;
- of the entries of a slot that wait, the lowest goes first, and one that was not seen yet goes only when none waits.
With out-of-order delivery allowed both rules are off, and an entry goes to whoever its slot belongs to.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.key_shared import Selector

C = TypeVar("C")


class Draining(NamedTuple):
    """A slot whose consumer changed while the one before still holds entries of it."""

    slot: int
    entries: int


class _Holder(Generic[C]):
    """Who holds entries of a slot, and how many."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: C) -> None:
        self.consumer = consumer
        self.entries = 0


class KeyOrder(Generic[C]):
    """The slots of one subscription: whose they are, who holds entries of them, and which entries wait."""

    __slots__ = ("_heaps", "_held", "_holders", "_waiting", "cleared", "in_order", "selector")

    def __init__(self, selector: Selector[C], *, in_order: bool) -> None:
        self.selector = selector
        self.in_order = in_order
        self.cleared: dict[int, int] = {}  # by identity of the consumer: slots that it has drained so far
        self._holders: dict[int, _Holder[C]] = {}  # by slot
        self._held: dict[int, int] = {}  # entry id -> slot, of entries that consumers hold
        self._waiting: dict[int, int] = {}  # entry id -> slot
        self._heaps: dict[int, list[int]] = {}  # slot -> its waiting entries; may hold leavers

    # -- what waits

    def __bool__(self) -> bool:
        """Whether any entry waits."""
        return bool(self._waiting)

    def __len__(self) -> int:
        """How many entries wait."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """How many entries consumers hold."""
        return len(self._held)

    def __contains__(self, entry_id: int) -> bool:
        """Whether this entry waits."""
        return entry_id in self._waiting

    def wait(self, entry_id: int, slot: int) -> None:
        """This entry is to be sent before later ones of its slot; said once or more often."""
        if entry_id not in self._waiting:
            self._waiting[entry_id] = slot
            heapq.heappush(self._heaps.setdefault(slot, []), entry_id)

    def discard(self, entry_ids: Iterable[int]) -> None:
        """These entries wait no longer."""
        for entry_id in entry_ids:
            slot = self._waiting.pop(entry_id, None)
            if slot is not None:
                self._first_waiting(slot)

    def discard_through(self, entry_id: int) -> None:
        """Everything up to this entry waits no longer."""
        self.discard([waiting for waiting in self._waiting if waiting <= entry_id])

    def _first_waiting(self, slot: int) -> int | None:
        heap = self._heaps.get(slot)
        if heap is None:
            return None
        while heap and heap[0] not in self._waiting:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[slot]
            return None
        return heap[0]

    # -- who may have what

    def _receiver(self, slot: int, room: dict[C, int]) -> C | None:
        """The consumer that may be sent an entry of this slot, if it has room for one."""
        consumer = self.selector.select(slot)
        if consumer is None or room.get(consumer, 0) <= 0:
            return None
        if self.in_order:
            holder = self._holders.get(slot)
            if holder is not None and holder.consumer is not consumer:
                return None
        return consumer

    def sendable(self, room: dict[C, int]) -> list[int]:
        """Entries that wait and may be sent now, ascending; as many of each slot as its consumer has room for."""
        found: list[int] = []
        for slot, heap in list(self._heaps.items()):
            consumer = self._receiver(slot, room)
            if consumer is not None and self._first_waiting(slot) is not None:
                found += heapq.nsmallest(room[consumer], heap) if len(heap) > 1 else heap
        return sorted({entry_id for entry_id in found if entry_id in self._waiting})

    def plan(
        self, entry_ids: Sequence[int], slots: Sequence[int], messages: Sequence[int] | None, room: dict[C, int]
    ) -> dict[C, list[int]]:
        """Who gets which rows of a run of entries that were not seen yet; the others wait from now on.

        Args:
            entry_ids: of the run, ascending.
            slots: of each entry.
            messages: in each entry; None when each holds one.
            room: how many messages each consumer may be sent; what is planned is taken off.
        """
        rows_of: dict[C, list[int]] = {}
        for row, slot in enumerate(slots):
            consumer = None if self.in_order and slot in self._heaps else self._receiver(slot, room)
            if consumer is None:
                self.wait(entry_ids[row], slot)
                continue
            self._take(consumer, entry_ids[row], slot)
            room[consumer] -= 1 if messages is None else messages[row]
            rows_of.setdefault(consumer, []).append(row)
        return rows_of

    def plan_waiting(
        self, entry_ids: Sequence[int], messages: Sequence[int] | None, room: dict[C, int]
    ) -> dict[C, list[int]]:
        """Who gets which rows of a run of entries some of which wait; the others are passed over."""
        rows_of: dict[C, list[int]] = {}
        for row, entry_id in enumerate(entry_ids):
            slot = self._waiting.get(entry_id)
            if slot is None or (self.in_order and self._first_waiting(slot) != entry_id):
                continue
            consumer = self._receiver(slot, room)
            if consumer is None:
                continue
            self.discard((entry_id,))
            self._take(consumer, entry_id, slot)
            room[consumer] -= 1 if messages is None else messages[row]
            rows_of.setdefault(consumer, []).append(row)
        return rows_of

    # -- who holds what

    def _take(self, consumer: C, entry_id: int, slot: int) -> None:
        self._held[entry_id] = slot
        holder = self._holders.get(slot)
        if holder is None or holder.consumer is not consumer:  # The latter only out of order.
            holder = self._holders[slot] = _Holder(consumer)
        holder.entries += 1

    def release(self, consumer: C, entry_ids: Iterable[int], *, again: bool) -> bool:
        """A consumer no longer holds these entries: acknowledged, or to be sent `again`.

        Returns True when that lets entries go which waited for it.
        """
        freed = False
        for entry_id in entry_ids:
            slot = self._held.pop(entry_id, None)
            if slot is None:
                continue
            if again:
                self.wait(entry_id, slot)
            holder = self._holders.get(slot)
            if holder is None or holder.consumer is not consumer:
                continue
            holder.entries -= 1
            if not holder.entries:
                del self._holders[slot]
                freed = freed or slot in self._heaps
                if self.selector.select(slot) is not consumer:
                    self.cleared[id(consumer)] = self.cleared.get(id(consumer), 0) + 1
        return freed or again

    def forget(self, consumer: C) -> None:
        """A consumer left; what it held was released before."""
        self.selector.remove(consumer)
        self.cleared.pop(id(consumer), None)

    def clear(self) -> None:
        """Nobody holds anything, nothing waits."""
        for kept in (self._holders, self._held, self._waiting, self._heaps):
            kept.clear()

    def draining(self, consumer: C) -> list[Draining]:
        """The slots of others that this consumer still holds entries of."""
        return [
            Draining(slot, holder.entries)
            for slot, holder in self._holders.items()
            if holder.consumer is consumer and self.selector.select(slot) is not consumer
        ]
