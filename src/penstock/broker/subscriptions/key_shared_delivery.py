# SPDX-License-Identifier: Apache-2.0
"""Key_Shared subscriptions: all messages of a key go to one consumer, in order; other keys go elsewhere meanwhile.

Why look ahead: when a consumer is stuck, what comes next may be for others. So entries that cannot be sent are set
aside and reading goes on, up to a bound that Pulsar has too.
Where: the delivery of a subscription whose consumers said Key_Shared; `key_shared` and `key_shared_order` decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.again import ENTRIES_MAX
from penstock.broker.subscriptions.delivery_shared import Shared
from penstock.broker.subscriptions.key_shared import HashRing, RangeHalving, StickyRanges, check_ranges, hash_of
from penstock.broker.subscriptions.key_shared_order import KeyOrder
from penstock.broker.subscriptions.long_keys import KEYS_BYTES_MAX, KEYS_MAX, LONG_KEY_BYTES, SLICE_BYTES
from penstock.core.errors import ConsumerBusy
from penstock.wire import metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.key_shared import KeySharing, Selector
    from penstock.broker.subscriptions.key_shared_order import Draining
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer
    from penstock.storage.entry_log import Batch

# Entries set aside, for each consumer and together: what keySharedLookAheadMsgInReplayThreshold* are in Pulsar.
LOOK_AHEAD_PER_CONSUMER: Final = 2_000
LOOK_AHEAD_MAX: Final = 20_000
# Entries looked at in one go, at least; otherwise as many as there are permits.
ROWS_AT_ONCE_MIN: Final = 16
# What is kept of an entry that a consumer holds, and of one that waits, beside what Shared keeps; measured.
HELD_BYTES: Final = 150
WAITING_BYTES: Final = 200
# Entries with long keys whose hashes are remembered until they are sent.
LONG_KEYS_KNOWN: Final = 4 * KEYS_MAX


class KeyShared(Shared):
    """Each key has one consumer at a time."""

    __slots__ = ("_hashing", "_long", "_stuck", "order", "sharing", "sticky")

    def __init__(self, subscription: Subscription, sharing: KeySharing) -> None:
        super().__init__(subscription)
        limits = subscription.topic.broker.limits
        self.sharing = sharing
        self.sticky: StickyRanges[Consumer] | None = StickyRanges() if sharing.sticky else None
        selector: Selector[Consumer]
        if self.sticky is not None:
            selector = self.sticky
        elif limits.key_shared_consistent_hashing:
            selector = HashRing(limits.key_shared_points)
        else:
            selector = RangeHalving()
        self.order: KeyOrder[Consumer] = KeyOrder(selector, in_order=not sharing.out_of_order)
        self._hashing = False  # long keys, before anything else is read; or it waits for its turn to
        self._long: dict[int, int] = {}  # entry id -> hash of its long key
        self._stuck: list[Consumer] | None = None  # who was ready when nothing of what waits could be sent

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Consumers agree on how keys are divided."""
        there, wants = self.sharing, consumer.key_sharing
        if there.sticky != wants.sticky:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription key_shared mode of '{there.mode}' is "
                f"different than the connecting consumer's key_shared mode '{wants.mode}'."
            )
        if there.out_of_order and not wants.out_of_order:
            raise ConsumerBusy(
                "Subscription is of different type. Active subscription allows out of order delivery while the "
                "connecting consumer does not allow it."
            )
        if wants.out_of_order and not there.out_of_order:
            raise ConsumerBusy(
                "Subscription is of different type. Active subscription does not allow out of order delivery while "
                "the connecting consumer allows it."
            )

    def in_the_way(self, consumer: Consumer) -> list[Consumer]:
        """Whoever has a part of the ranges that it asks for, or all when it wants another way of dividing keys."""
        if self.sharing[:2] != consumer.key_sharing[:2]:
            return list(self.subscription.consumers)
        if self.sticky is None:
            return []
        check_ranges(consumer.key_sharing.ranges)
        return self.sticky.conflicting(consumer.key_sharing.ranges)

    def join(self, consumer: Consumer) -> None:
        """It gets its share of the keys. Raises ConsumerAssignFailed."""
        if self.sticky is not None:
            self.sticky.add_ranges(consumer, consumer.key_sharing.ranges)
        else:
            self.order.selector.add(consumer, consumer.name)
        self._stuck = None

    def leave(self, consumer: Consumer) -> None:
        """Its keys, and what it did not acknowledge, go to others."""
        super().leave(consumer)
        self.order.forget(consumer)

    def entry_bytes(self) -> int:
        """With the slot of its key."""
        return super().entry_bytes() + HELD_BYTES

    def held_bytes(self) -> int:
        """With the slots of those that are owed, and of those that wait for theirs."""
        return super().held_bytes() + HELD_BYTES * self.order.held + WAITING_BYTES * len(self.order)

    # -- new entries --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Enough was set aside, or keys are being hashed."""
        return self._hashing or len(self.order) >= self._look_ahead()

    def _look_ahead(self) -> int:
        return min(LOOK_AHEAD_PER_CONSUMER * len(self.subscription.consumers), LOOK_AHEAD_MAX)

    def deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send what may be sent, set the rest aside, step over what is held."""
        room = {consumer: self.allowance(consumer) for consumer in ready}
        at_once = max(sum(room.values()), ROWS_AT_ONCE_MIN)
        stop = min(stop, row + at_once, row + max(self._look_ahead() - len(self.order), 1))
        rows = self.free(batch, row, stop)
        slots = self._slots(batch, rows)
        if len(slots) < len(rows):
            stop, rows = rows[len(slots)], rows[: len(slots)]
        ids = [batch.entry_ids[picked] for picked in rows]
        counts = self.subscription.counts(batch, row, stop)
        messages = None if counts is None else [counts[picked] for picked in rows]
        self._send_planned(batch, rows, messages, self.order.plan(ids, slots, messages, room))
        self.charge()
        return stop

    def _slots(self, batch: Batch, rows: Sequence[int]) -> list[int]:
        """The slots of these rows, up to the first whose key is hashed from now on."""
        slot, routing, slots = self.order.selector.slot, metadata.routing, []
        view, offsets, lengths = memoryview(batch.data), batch.offsets, batch.lengths
        # Budget: 4 µs per entry on one core, most of it to read the metadata.
        for row in rows:
            key = routing(view[offsets[row] : offsets[row] + lengths[row]]).key
            if len(key) <= LONG_KEY_BYTES:
                slots.append(slot(hash_of(key)))
                continue
            known = self._long.get(batch.entry_ids[row])
            if known is None:
                self._hash_long(batch, rows[len(slots) :])
                break
            slots.append(slot(known))
        return slots

    def _hash_long(self, batch: Batch, rows: Sequence[int]) -> None:
        """Hash the long keys of these rows, as many as may be kept meanwhile, and come back."""
        self._hashing = True
        view, nbytes = memoryview(batch.data), 0
        entry_ids: list[int] = []
        keys: list[bytes] = []
        for row in rows:
            key = metadata.routing(view[batch.offsets[row] : batch.offsets[row] + batch.lengths[row]]).key
            nbytes += len(key)
            if keys and (nbytes > KEYS_BYTES_MAX or len(keys) == KEYS_MAX):
                break
            if len(key) > LONG_KEY_BYTES:
                entry_ids.append(batch.entry_ids[row])
                keys.append(key)

        def done(hashes: list[int]) -> None:
            self._long.update(zip(entry_ids, hashes, strict=True))
            while len(self._long) > LONG_KEYS_KNOWN:
                del self._long[next(iter(self._long))]
            self._go_on()

        self.subscription.topic.broker.long_keys.start(keys, done, self._go_on)

    def _go_on(self) -> None:
        self._hashing, self._stuck = False, None
        self.subscription.wake()

    def _send_planned(
        self, batch: Batch, rows: Sequence[int], counts: Sequence[int] | None, planned: dict[Consumer, list[int]]
    ) -> int:
        """Send what was planned; returns how many of it there was no room for, which waits for its consumer."""
        too_many = 0
        for consumer, places in planned.items():
            messages = len(places) if counts is None else sum(counts[place] for place in places)
            picked = [rows[place] for place in places]
            sent = self.subscription.send(consumer, batch, picked, messages)
            if sent < len(picked):
                too_many += len(picked) - sent
                self.order.release(consumer, [batch.entry_ids[row] for row in picked[sent:]], again=True)
        return too_many

    def offer(self, batch: Batch, row: int, stop: int) -> int:
        """Send entries of a topic that stores nothing, each to the consumer of its key; how many could not be."""
        room = {consumer: self.allowance(consumer) for consumer in self.ready()}
        view, selector = memoryview(batch.data), self.order.selector
        planned: dict[Consumer, list[int]] = {}
        counts, dropped, long_bytes = batch.message_counts, 0, 0
        for picked in range(row, stop):
            offset = batch.offsets[picked]
            key = metadata.routing(view[offset : offset + batch.lengths[picked]]).key
            if len(key) > LONG_KEY_BYTES:
                # Nothing of this topic waits, so neither does this: what would take too long to hash is dropped.
                long_bytes += len(key)
                if long_bytes > SLICE_BYTES:
                    dropped += 1
                    continue
            consumer = selector.select(selector.slot(hash_of(key)))
            if consumer is None or room.get(consumer, 0) <= 0:
                dropped += 1
                continue
            room[consumer] -= 1 if counts is None else counts[picked]
            planned.setdefault(consumer, []).append(picked - row)
        return dropped + self._send_planned(
            batch, range(row, stop), None if counts is None else counts[row:stop], planned
        )

    # -- again --------------------------------------------------------------------------------------------------------

    def again(self, ready: list[Consumer]) -> list[int]:
        """The lowest entries that wait and may be sent; before them what is due, for its keys are not known yet."""
        if self._hashing:
            return []
        if self.replay and len(self.order) < self._look_ahead():
            return self.replay.next(ENTRIES_MAX)
        if not self.order or self._stuck == ready:
            return []
        room = {consumer: self.allowance(consumer) for consumer in ready}
        sendable = self.order.sendable(room)
        if not sendable:
            self._stuck = ready
        return sendable[: min(sum(room.values()), ENTRIES_MAX)]

    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self.order) or bool(self.replay)

    def deliver_again(self, batch: Batch, row: int, stop: int) -> bool:
        """Send those of these entries that wait and may be sent."""
        self._take_in(batch, row, stop)
        room = {consumer: self.allowance(consumer) for consumer in self.ready()}
        counts = self.subscription.counts(batch, row, stop)
        window = None if counts is None else counts[row:stop]
        planned = self.order.plan_waiting(batch.entry_ids[row:stop], window, room)
        self._send_planned(batch, range(row, stop), window, planned)
        self.charge()
        return True

    def _take_in(self, batch: Batch, row: int, stop: int) -> None:
        """What is due waits in the order of its key from now on."""
        ids = batch.entry_ids
        due = [one for one in range(row, stop) if ids[one] in self.replay] if self.replay else []
        if due:
            slots = self._slots(batch, due)
            known = due[: len(slots)]
            for one, slot in zip(known, slots, strict=True):
                self.order.wait(ids[one], slot)
            self.replay.discard([ids[one] for one in known])
            self._stuck = None

    def missing(self, entry_ids: Iterable[int]) -> None:
        """They wait for nothing."""
        entry_ids = list(entry_ids)
        self.order.discard(entry_ids)
        super().missing(entry_ids)

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        self.order.release(consumer, entry_ids, again=True)
        self._stuck = None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer, entry_ids: Sequence[int], newly: int) -> None:
        """A key that nobody holds any more may go to its new consumer."""
        owed = [entry_id for entry_id in entry_ids if entry_id in consumer.pending]
        super().acknowledged(consumer, entry_ids, newly)
        self._settled(consumer, owed)

    def _settled(self, consumer: Consumer, entry_ids: list[int]) -> None:
        freed = self.order.release(consumer, entry_ids, again=False)
        self.charge()
        if freed:
            self._stuck = None
            self.subscription.wake()

    def passed(self, entry_id: int) -> None:
        """Nothing of what is behind waits."""
        super().passed(entry_id)
        self.order.discard_through(entry_id)
        self.charge()
        self._stuck = None

    # -- for those who look -------------------------------------------------------------------------------------------

    def hash_ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The slots of each consumer, as ranges with both ends inclusive."""
        ranges: dict[Consumer, list[tuple[int, int]]] = {}
        for first, last, consumer in self.order.selector.ranges():
            ranges.setdefault(consumer, []).append((first, last))
        return ranges

    def draining(self, consumer: Consumer) -> list[Draining]:
        """Slots that went to others while this consumer still has messages of them."""
        return self.order.draining(consumer)

    def drained(self, consumer: Consumer) -> int:
        """How many such slots it has let go since it came."""
        return self.order.cleared.get(id(consumer), 0)
