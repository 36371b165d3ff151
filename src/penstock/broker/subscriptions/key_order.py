# SPDX-License-Identifier: Apache-2.0
"""Key_Shared ordering: decides what can be sent so that messages of a key stay in order at one consumer.

Why: a key is reassigned when consumers change. A consumer with unacknowledged messages of a key keeps it until they are
acknowledged (the key's slot is "draining"), and unsent messages go before later ones.
Where: a subscription asks this object which entries it may send, sends them, and reports what was sent, acknowledged
and returned. Pure: consumers may be any objects.

Theory of operation. An entry is in one of four states: not seen yet; waiting (to be sent before later entries of its
slot); held by a consumer; done. Two rules keep the order:
- A slot is held by one consumer at a time: while a consumer holds entries of it, only this consumer gets more.
- Waiting entries of a slot go lowest first, and an unseen one goes only if none waits.

With out-of-order delivery allowed both rules are off, and an entry goes to the consumer of its slot.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.broker.subscriptions.key_ranges import Selector

C = TypeVar("C")


class Draining(NamedTuple):
    """A slot assigned to another consumer while the previous one still holds entries of it."""

    slot: int
    entries: int


class _Holder(NamedTuple, Generic[C]):
    """The consumer that holds entries of slots, and the selector's version when it got the first ones."""

    consumer: C
    version: int


class KeyOrder(Generic[C]):
    """The slots of one subscription: their consumers, held entries, and waiting entries."""

    __slots__ = (
        "_counts", "_heaps", "_held", "_holders", "_old", "_version", "_waiting", "cleared", "in_order", "selector"
    )  # fmt: skip

    def __init__(self, selector: Selector[C], *, in_order: bool) -> None:
        self.selector = selector
        self.in_order = in_order
        self.cleared: dict[int, int] = {}  # by identity of the consumer: number of slots drained so far
        self._holders: dict[int, _Holder[C]] = {}  # by slot
        self._counts: Counter[int] = Counter()  # by slot: how many entries its holder holds
        self._version = selector.version  # of the selector, when it was last looked at
        self._old = 0  # slots whose holder got the first ones of its entries before that version
        self._held: dict[int, int] = {}  # entry id -> slot, of held entries
        self._waiting: dict[int, int] = {}  # entry id -> slot
        self._heaps: dict[int, list[int]] = {}  # slot -> its waiting entries; may contain removed ones

    # -- waiting entries

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        return len(self._held)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._waiting

    def wait(self, entry_id: int, slot: int) -> None:
        """Send this entry before later ones of its slot. May be called again."""
        if entry_id not in self._waiting:
            self._waiting[entry_id] = slot
            heapq.heappush(self._heaps.setdefault(slot, []), entry_id)

    def discard(self, entry_ids: Iterable[int]) -> None:
        for entry_id in entry_ids:
            slot = self._waiting.pop(entry_id, None)
            if slot is not None:
                self._first_waiting(slot)

    def discard_through(self, entry_id: int) -> None:
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

    # -- planning

    def _receiver(self, slot: int, room: dict[C, int]) -> C | None:
        """The consumer that can be sent an entry of this slot now, if it has room."""
        consumer = self.selector.select(slot)
        if consumer is None or room.get(consumer, 0) <= 0:
            return None
        if self.in_order:
            holder = self._holders.get(slot)
            if holder is not None and holder.consumer is not consumer:
                return None
        return consumer

    def sendable(self, room: dict[C, int]) -> list[int]:
        """Waiting entries that can be sent now, ascending; per slot as many as its consumer has room for."""
        found: list[int] = []
        for slot, heap in list(self._heaps.items()):
            consumer = self._receiver(slot, room)
            if consumer is not None and self._first_waiting(slot) is not None:
                found += heapq.nsmallest(room[consumer], heap) if len(heap) > 1 else heap
        return sorted({entry_id for entry_id in found if entry_id in self._waiting})

    def plan(
        self, entry_ids: Sequence[int], slots: Sequence[int], messages: Sequence[int] | None, room: dict[C, int]
    ) -> Mapping[C, Sequence[int]]:
        """Assign rows of a run of unseen entries to consumers; entries not assigned wait from now on.

        Args:
            entry_ids: of the run, ascending.
            slots: of each entry.
            messages: in each entry; None when each holds one.
            room: messages that each consumer may be sent; reduced by what is planned.
        """
        self._look_for_changes()
        consumers = self.selector.select_each(slots)
        if self._is_steady:
            all_rows_of = self._plan_all(entry_ids, slots, consumers, messages, room)
            if all_rows_of is not None:
                return all_rows_of
        rows_of: dict[C, list[int]] = {}
        held, holders, counts, heaps, in_order = self._held, self._holders, self._counts, self._heaps, self.in_order
        version = self._version
        takers: dict[C, tuple[_Holder[C], list[int]]] = {}
        # Budget: 0.6 µs per entry on one core, and 0.2 for `select_each`.
        for row, (slot, consumer) in enumerate(zip(slots, consumers, strict=True)):
            holder = holders.get(slot)
            if (
                consumer is None
                or (in_order and (slot in heaps or (holder is not None and holder[0] is not consumer)))
                or (left := room.get(consumer, 0)) <= 0
            ):
                self.wait(entry_ids[row], slot)
                continue
            taker = takers.get(consumer)
            if taker is None:
                rows_of[consumer] = []
                taker = takers[consumer] = _Holder(consumer, version), rows_of[consumer]
            held[entry_ids[row]] = slot
            if holder is None or holder[0] is not consumer:  # the latter only out of order
                counts[slot] = 0
            if holder is None or holder[0] is not consumer or holder[1] != version:
                self._old -= holder is not None and holder[1] != version
                holders[slot] = taker[0]
            counts[slot] += 1
            room[consumer] = left - (1 if messages is None else messages[row])
            taker[1].append(row)
        return rows_of

    def _plan_all(
        self,
        entry_ids: Sequence[int],
        slots: Sequence[int],
        consumers: Sequence[C | None],
        messages: Sequence[int] | None,
        room: dict[C, int],
    ) -> Mapping[C, Sequence[int]] | None:
        """Assign all rows to these consumers if they have room for all; otherwise None, and nothing is changed.

        In the steady state no slot needs a look at its holder: it is its consumer, if it has one.
        """
        rows_of: dict[C | None, Sequence[int]] = {}
        if len(consumers) and consumers.count(consumers[0]) == len(consumers):
            rows_of[consumers[0]] = range(len(consumers))
        else:
            lists: dict[C | None, list[int]] = {consumer: [] for consumer in dict.fromkeys(consumers)}
            # Budget: 0.06 µs per entry on one core, and 0.2 for the rest.
            for row, consumer in enumerate(consumers):
                lists[consumer].append(row)
            rows_of.update(lists)
        sendable: dict[C, Sequence[int]] = {}
        left: dict[C, int] = {}
        for consumer, rows in rows_of.items():
            if consumer is None:
                return None
            left[consumer] = room.get(consumer, 0) - (
                len(rows) if messages is None else sum(messages[row] for row in rows)
            )
            if left[consumer] < 0:
                return None
            sendable[consumer] = rows
        room.update(left)
        self._held.update(zip(entry_ids, slots, strict=True))
        self._counts.update(slots)
        holder_of = {consumer: _Holder(consumer, self._version) for consumer in sendable}
        if len(holder_of) == 1:
            self._holders.update(dict.fromkeys(slots, *holder_of.values()))
        else:
            for consumer, rows in sendable.items():
                self._holders.update(dict.fromkeys([slots[row] for row in rows], holder_of[consumer]))
        return sendable

    @property
    def _is_steady(self) -> bool:
        """Whether nothing waits, and all held entries were assigned since consumers have changed."""
        return not self._heaps and not self._old and self.in_order

    def _look_for_changes(self) -> None:
        """Note whether consumers have changed."""
        if self.selector.version != self._version:
            self._version = self.selector.version
            self._old = len(self._holders)

    def plan_waiting(
        self, entry_ids: Sequence[int], messages: Sequence[int] | None, room: dict[C, int]
    ) -> dict[C, list[int]]:
        """Assign the waiting ones among a run of entries to consumers; other entries are skipped."""
        self._look_for_changes()
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

    # -- held entries

    def _take(self, consumer: C, entry_id: int, slot: int) -> None:
        self._held[entry_id] = slot
        holder = self._holders.get(slot)
        if holder is None or holder.consumer is not consumer:  # the latter only out of order
            self._old -= holder is not None and holder.version != self._version
            self._holders[slot], self._counts[slot] = _Holder(consumer, self._version), 0
        self._counts[slot] += 1

    def release(self, consumer: C, entry_ids: Iterable[int], *, again: bool) -> bool:
        """Entries are no longer held by a consumer: acknowledged, or to be sent `again`.

        Returns True if entries that waited for it can be sent now.
        """
        self._look_for_changes()
        if self._is_steady and not again:
            self._release_steady(entry_ids)
            return False
        freed = False
        held, holders, counts, heaps = self._held, self._holders, self._counts, self._heaps
        version = self._version
        for entry_id in entry_ids:
            slot = held.pop(entry_id, None)
            if slot is None:
                continue
            if again:
                self.wait(entry_id, slot)
            holder = holders.get(slot)
            if holder is None or holder[0] is not consumer:
                continue
            if counts[slot] > 1:
                counts[slot] -= 1
            else:
                del holders[slot]
                counts.pop(slot)
                freed = freed or slot in heaps
                if holder[1] != version:
                    self._old -= 1
                    if self.selector.select(slot) is not consumer:
                        self.cleared[id(consumer)] = self.cleared.get(id(consumer), 0) + 1
        return freed or again

    def _release_steady(self, entry_ids: Iterable[int]) -> None:
        """Entries are no longer held, by whoever holds them: in the steady state it is the consumer of their slot."""
        holders, counts = self._holders, self._counts
        left_of, forget = counts.get, counts.pop  # A counter's `del` is slow.
        # Budget: 0.15 µs per entry on one core.
        for slot in map(self._held.pop, entry_ids, repeat(None)):
            if slot is not None:
                left = left_of(slot, 1) - 1
                if left:
                    counts[slot] = left
                else:
                    forget(slot)
                    del holders[slot]

    def forget(self, consumer: C) -> None:
        self.selector.remove(consumer)
        self.cleared.pop(id(consumer), None)

    def clear(self) -> None:
        for kept in (self._holders, self._counts, self._held, self._waiting, self._heaps):
            kept.clear()
        self._old = 0

    def draining(self, consumer: C) -> list[Draining]:
        """Slots of other consumers of which this one still holds entries."""
        return [
            Draining(slot, self._counts[slot])
            for slot, holder in self._holders.items()
            if holder.consumer is consumer and self.selector.select(slot) is not consumer
        ]

    # -- why entries wait

    def waiting_keys(self) -> Iterator[tuple[C, C | None, int]]:
        """For each slot of waiting entries: its consumer, another one that holds entries of it, how many wait."""
        for slot, heap in list(self._heaps.items()):
            consumer = self.selector.select(slot)
            if consumer is None or self._first_waiting(slot) is None:
                continue
            holder = self._holders.get(slot) if self.in_order else None
            foreign = holder is not None and holder.consumer is not consumer
            entries = sum(entry_id in self._waiting for entry_id in heap)
            yield consumer, holder.consumer if holder is not None and foreign else None, entries

    def first_held(self, holders: Collection[C]) -> dict[C, int]:
        """For each of these consumers, the first entry that it holds of a slot of others for which entries wait."""
        found: dict[C, int] = {}
        for entry_id, slot in self._held.items() if holders else ():
            holder = self._holders.get(slot)
            if holder is None or holder.consumer not in holders or slot not in self._heaps:
                continue
            if holder.consumer not in found and self.selector.select(slot) is not holder.consumer:
                found[holder.consumer] = entry_id
                if len(found) == len(holders):
                    break
        return found
