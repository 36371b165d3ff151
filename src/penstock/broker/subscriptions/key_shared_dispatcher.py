# SPDX-License-Identifier: Apache-2.0
"""Key_Shared subscriptions: all messages of a key go to one consumer, in order; other keys go elsewhere meanwhile.

Why look ahead: when a consumer is stuck, what comes next may be for others. So entries that cannot be sent are set
aside and reading goes on, up to a bound that Pulsar has too.
Where: the dispatcher of a subscription whose consumers said Key_Shared, over `key_shared` and `key_shared_order`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatcher import Plan, Send
from penstock.broker.subscriptions.key_shared import HashRing, RangeHalving, StickyRanges, check_ranges, hash_of
from penstock.broker.subscriptions.key_shared_order import KeyOrder
from penstock.broker.subscriptions.long_keys import KEYS_BYTES_MAX, KEYS_MAX, LONG_KEY_BYTES, SLICE_BYTES
from penstock.broker.subscriptions.replay_reads import ENTRIES_MAX
from penstock.broker.subscriptions.shared import Shared
from penstock.core.errors import ConsumerBusy
from penstock.wire import metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.key_shared import KeySharing, Selector
    from penstock.broker.subscriptions.key_shared_order import Draining
    from penstock.broker.subscriptions.ports import KeyHashes
    from penstock.governance.memory_row import MemoryRow
    from penstock.storage.results import Batch

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
    """Each key has one consumer at a time.

    Args:
        sharing: how the first consumer wants keys divided.
        ring_points: of each consumer on the hash ring; None to halve ranges instead. Sticky ranges need neither.
        long_keys: hashes keys that take too long to be hashed at once.
    """

    __slots__ = ("_hashing", "_long_hashes", "_long_keys", "_stuck", "order", "sharing", "sticky")

    def __init__(
        self,
        consumers: list[Consumer],
        *,
        memory: MemoryRow,
        wait_for_memory: Callable[[], None],
        wake: Callable[[], None],
        round_robin_entries_max: Callable[[], int],
        sharing: KeySharing,
        ring_points: int | None,
        long_keys: KeyHashes,
    ) -> None:
        super().__init__(
            consumers,
            memory=memory,
            wait_for_memory=wait_for_memory,
            wake=wake,
            round_robin_entries_max=round_robin_entries_max,
        )
        self.sharing = sharing
        self.sticky: StickyRanges[Consumer] | None = StickyRanges() if sharing.sticky else None
        selector: Selector[Consumer]
        if self.sticky is not None:
            selector = self.sticky
        elif ring_points is not None:
            selector = HashRing(ring_points)
        else:
            selector = RangeHalving()
        self.order: KeyOrder[Consumer] = KeyOrder(selector, in_order=not sharing.out_of_order)
        self._long_keys = long_keys
        self._hashing = False  # long keys, before anything else is read; or it waits for its turn to
        self._long_hashes: dict[int, int] = {}  # entry id -> hash of its long key
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

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """Consumers that have a part of its ranges; all of them when it wants another way of dividing keys."""
        if self.sharing[:2] != consumer.key_sharing[:2]:
            return list(self.consumers)
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
        """With the slots of entries that are pending, and of those that wait."""
        return super().held_bytes() + HELD_BYTES * self.order.held + WAITING_BYTES * len(self.order)

    # -- plans --------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether enough was set aside, or keys are being hashed."""
        return self._hashing or len(self.order) >= self._look_ahead()

    def _look_ahead(self) -> int:
        return min(LOOK_AHEAD_PER_CONSUMER * len(self.consumers), LOOK_AHEAD_MAX)

    def _room(self, ready: list[Consumer]) -> dict[Consumer, int]:
        return {consumer: self.allowance(consumer) for consumer in ready}

    def rows_max(self, ready: list[Consumer]) -> int:
        """One entry for each message that these consumers may be sent, within what may be set aside."""
        at_once = max(sum(map(self.allowance, ready)), ROWS_AT_ONCE_MIN)
        return min(at_once, max(self._look_ahead() - len(self.order), 1))

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Send what may be sent, set the rest aside."""
        slots = self._slots(batch, rows)
        if len(slots) < len(rows):
            stop, rows = rows[len(slots)], rows[: len(slots)]
        ids = [batch.entry_ids[picked] for picked in rows]
        messages = None if counts is None else [counts[picked] for picked in rows]
        planned = self.order.plan(ids, slots, messages, self._room(ready))
        self.charge()
        return Plan(_sends(planned, rows, messages), stop, in_order=False)

    def plan_unstored(self, batch: Batch, rows: range, counts: Sequence[int] | None, ready: list[Consumer]) -> Plan:
        """Each entry goes to the consumer of its key, if it has permits."""
        room = self._room(ready)
        view, selector = memoryview(batch.data), self.order.selector
        planned: dict[Consumer, list[int]] = {}
        long_bytes = 0
        for at, row in enumerate(rows):
            offset = batch.offsets[row]
            key = metadata.routing(view[offset : offset + batch.lengths[row]]).key
            if len(key) > LONG_KEY_BYTES:
                # Nothing of this topic waits, so neither does this: what would take too long to hash is dropped.
                long_bytes += len(key)
                if long_bytes > SLICE_BYTES:
                    continue
            consumer = selector.select(selector.slot(hash_of(key)))
            if consumer is None or room.get(consumer, 0) <= 0:
                continue
            room[consumer] -= 1 if counts is None else counts[row]
            planned.setdefault(consumer, []).append(at)
        return Plan(_sends(planned, rows, counts and counts[rows.start : rows.stop]), rows.stop, in_order=False)

    def plan_replay(
        self, batch: Batch, row: int, stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Those of these entries that wait and may be sent."""
        self._take_in(batch, row, stop)
        messages = None if counts is None else counts[row:stop]
        planned = self.order.plan_waiting(batch.entry_ids[row:stop], messages, self._room(ready))
        self.charge()
        return Plan(_sends(planned, range(row, stop), messages), stop, in_order=False)

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

    def not_sent(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """They wait for their consumer."""
        self.order.release(consumer, entry_ids, again=True)
        self.charge()

    # -- keys ---------------------------------------------------------------------------------------------------------

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
            known = self._long_hashes.get(batch.entry_ids[row])
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
            self._long_hashes.update(zip(entry_ids, hashes, strict=True))
            while len(self._long_hashes) > LONG_KEYS_KNOWN:
                del self._long_hashes[next(iter(self._long_hashes))]
            self._go_on()

        self._long_keys.start(keys, done, self._go_on)

    def _go_on(self) -> None:
        self._hashing, self._stuck = False, None
        self._wake()

    # -- redelivery ---------------------------------------------------------------------------------------------------

    @property
    def has_replay(self) -> bool:
        """Whether entries wait to be sent, or to be sent again."""
        return bool(self.order) or bool(self.replay)

    @property
    def replay_size(self) -> int:
        """How many entries wait and have a key that is known."""
        return len(self.order)

    def next_replay(self, ready: list[Consumer]) -> list[int]:
        """The lowest entries that wait and may be sent; before them what is due, for its keys are not known yet."""
        if self._hashing:
            return []
        if self.replay and len(self.order) < self._look_ahead():
            return self.replay.next(ENTRIES_MAX)
        if not self.order or self._stuck == ready:
            return []
        room = self._room(ready)
        sendable = self.order.sendable(room)
        if not sendable:
            self._stuck = ready
        return sendable[: min(sum(room.values()), ENTRIES_MAX)]

    def missing(self, entry_ids: Iterable[int]) -> None:
        """They wait no longer."""
        entry_ids = list(entry_ids)
        self.order.discard(entry_ids)
        super().missing(entry_ids)

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        self.order.release(consumer, entry_ids, again=True)
        self._stuck = None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer, entry_ids: Sequence[int], newly: int) -> None:
        """A key that nobody holds any more may go to its new consumer."""
        pending = [entry_id for entry_id in entry_ids if entry_id in consumer.pending_acks]
        super().acknowledged(consumer, entry_ids, newly)
        self._settled(consumer, pending)

    def _settled(self, consumer: Consumer, entry_ids: list[int]) -> None:
        freed = self.order.release(consumer, entry_ids, again=False)
        self.charge()
        if freed:
            self._stuck = None
            self._wake()

    def acknowledged_through(self, entry_id: int) -> None:
        """Nothing of what is before waits."""
        super().acknowledged_through(entry_id)
        self.order.discard_through(entry_id)
        self.charge()
        self._stuck = None

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def key_sharing_mode(self) -> str | None:
        """How keys are divided, as Pulsar spells it."""
        return self.sharing.mode

    @property
    def out_of_order(self) -> bool:
        """Whether messages of a key may overtake one another."""
        return not self.order.in_order

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


def _sends(planned: dict[Consumer, list[int]], rows: Sequence[int], messages: Sequence[int] | None) -> list[Send]:
    """What is planned by index into `rows`, and into the messages of each."""
    return [
        Send(
            consumer,
            [rows[at] for at in places],
            len(places) if messages is None else sum(messages[at] for at in places),
        )
        for consumer, places in planned.items()
    ]
