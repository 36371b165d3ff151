# SPDX-License-Identifier: Apache-2.0
"""Key_Shared subscriptions: all messages of a key go to one consumer, in order.

Why look ahead: when a consumer has no permits, later entries may be for others. So entries that cannot be sent are set
aside and reading goes on, up to a limit as in Pulsar.
Where: the dispatcher of Key_Shared subscriptions, based on `key_ranges` and `key_order`.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatcher import HeldConsumer, Plan, Send
from penstock.broker.subscriptions.key_order import KeyOrder
from penstock.broker.subscriptions.key_ranges import (
    HashRing,
    RangeHalving,
    StickyRanges,
    check_ranges,
    hash_of,
    hashes_of,
)
from penstock.broker.subscriptions.replay_reads import ENTRIES_MAX
from penstock.broker.subscriptions.shared import Shared
from penstock.core.errors import ConsumerBusy
from penstock.core.hashing import hash_in_slices, sticky_hash
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.wire import metadata
from penstock.wire.plain_keys import plain_keys

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, KeyHashes
    from penstock.broker.subscriptions.key_order import Draining
    from penstock.broker.subscriptions.key_ranges import KeySharing, Selector
    from penstock.governance.budget import Row
    from penstock.storage.results import Batch


# ---------------------------------------------------------------------------------------------------------------------
# Hashes long keys of Key_Shared subscriptions in slices, for one subscription at a time.
#
# Why: a key may be as long as a message, and hashing 5 MB takes half a second. Only the hash is kept. Where: Key_Shared
# dispatchers use it for long keys; the broker has one for all subscriptions.

# Keys up to this length are hashed directly, in at most 20 µs.
LONG_KEY_BYTES: Final = 256
# Bytes hashed in one turn of the loop: about half a millisecond.
SLICE_BYTES: Final = 8 * KIB
# Total bytes of keys hashed at a time; a single key may be longer.
KEYS_BYTES_MAX: Final = 256 * KIB
KEYS_MAX: Final = 1_000
# The next subscription reads its keys again before it starts; after this time the one behind it may start, too.
ASKED_S: Final = 0.05


class LongKeys:
    """Hashes the keys of one subscription at a time; the others wait, without their keys."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._job: Generator[None, None, list[int]] | None = None
        self._done: Callable[[list[int]], None] | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, keys: Sequence[bytes], done: Callable[[list[int]], None], again: Callable[[], None]) -> None:
        """Hash these keys and call `done` with the hashes; if busy, call `again` when the caller may try again."""
        if self._job is not None:
            self._waiting.append(again)
            return
        self._job, self._done = _hashes(keys), done
        self._loop.call_soon(self._step)

    def _step(self) -> None:
        assert self._job is not None
        assert self._done is not None
        try:
            next(self._job)
        except StopIteration as end:
            done, self._job, self._done = self._done, None, None
            done(end.value)
            self._serve()
        else:
            self._loop.call_soon(self._step)

    def _serve(self) -> None:
        """Let the next waiting subscription start; if it does not, the one after it."""
        if self._job is None and self._waiting:
            self._waiting.popleft()()
            self._loop.call_later(ASKED_S, self._serve)


def _hashes(keys: Sequence[bytes]) -> Generator[None, None, list[int]]:
    hashes, since = [], 0
    for key in keys:
        if len(key) > SLICE_BYTES:
            hashes.append((yield from hash_in_slices(key, SLICE_BYTES)))
        else:
            hashes.append(sticky_hash(key))
            since += len(key)
            if since >= SLICE_BYTES:
                since = 0
                yield
    return hashes


# Limits of entries set aside, per consumer and in total: Pulsar's keySharedLookAheadMsgInReplayThreshold*.
LOOK_AHEAD_PER_CONSUMER: Final = 2_000
LOOK_AHEAD_MAX: Final = 20_000
# Minimum of entries examined at a time; otherwise as many as there are permits.
ROWS_AT_ONCE_MIN: Final = 16
# Measured memory of a held and of a waiting entry, in addition to Shared's.
HELD_BYTES: Final = 150
WAITING_BYTES: Final = 200
# Entries with long keys whose hashes are kept until they are sent.
LONG_KEYS_KNOWN: Final = 4 * KEYS_MAX
# Keys of entries that are set aside, when somebody asks why: a few milliseconds.
KEYS_LOOKED_AT: Final = 2_000


class KeyShared(Shared):
    """Each key has one consumer at a time.

    Args:
        sharing: the Key_Shared policy of the first consumer.
        ring_points: points of each consumer on the hash ring; None to halve ranges instead. Unused with sticky ranges.
        long_keys: hashes long keys in slices.
    """

    __slots__ = ("_hashing", "_long_hashes", "_long_keys", "_stuck", "order", "sharing", "sticky")

    def __init__(
        self,
        consumers: list[Consumer],
        *,
        memory: Row,
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
        self._hashing = False  # long keys are being hashed, or wait for it; nothing else is read
        self._long_hashes: dict[int, int] = {}  # entry id -> hash of its long key
        self._stuck: list[Consumer] | None = None  # the ready consumers when no waiting entry could be sent

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignFailed or ConsumerBusy if its policy does not fit the others'."""
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
        """Consumers with overlapping ranges; all consumers if its policy differs from theirs."""
        if self.sharing[:2] != consumer.key_sharing[:2]:
            return list(self.consumers)
        if self.sticky is None:
            return []
        check_ranges(consumer.key_sharing.ranges)
        return self.sticky.conflicting(consumer.key_sharing.ranges)

    def join(self, consumer: Consumer) -> None:
        """Assign it a share of the keys. Raises ConsumerAssignFailed."""
        if self.sticky is not None:
            self.sticky.add_ranges(consumer, consumer.key_sharing.ranges)
        else:
            self.order.selector.add(consumer, consumer.name)
        self._stuck = None

    def leave(self, consumer: Consumer) -> None:
        """Reassign its keys, and redeliver its unacknowledged entries to others."""
        super().leave(consumer)
        self.order.forget(consumer)

    def entry_bytes(self) -> int:
        return super().entry_bytes() + HELD_BYTES

    def held_bytes(self) -> int:
        return super().held_bytes() + HELD_BYTES * self.order.held + WAITING_BYTES * len(self.order)

    # -- plans --------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the look-ahead limit is reached, or keys are being hashed."""
        return self._hashing or len(self.order) >= self._look_ahead()

    def _look_ahead(self) -> int:
        return min(LOOK_AHEAD_PER_CONSUMER * len(self.consumers), LOOK_AHEAD_MAX)

    @property
    def look_ahead(self) -> tuple[int, int]:
        return len(self.order), self._look_ahead()

    def held_keys(self) -> Iterator[HeldConsumer]:
        """Consumers of the keys of entries that are set aside, and why each cannot be sent them.

        Budget: 2 µs per key, of at most KEYS_LOOKED_AT, whose entries are counted.
        """
        waiting: Counter[tuple[Consumer, Consumer | None]] = Counter()
        for consumer, holder, entries in islice(self.order.waiting_keys(), KEYS_LOOKED_AT):
            waiting[consumer, holder] += entries
        first_held = self.order.first_held({holder for _, holder in waiting if holder is not None})
        for (consumer, holder), entries in waiting.items():
            if holder is not None:
                yield HeldConsumer(HoldKind.KEY_BLOCKED, consumer, entries, holder, first_held.get(holder, 0))
            else:
                yield HeldConsumer(self._hold_of(consumer), consumer, entries)

    def _room(self, ready: list[Consumer]) -> dict[Consumer, int]:
        return dict(zip(ready, self.allowances(ready), strict=True))

    def rows_max(self, ready: list[Consumer]) -> int:
        """One entry per message that these consumers may be sent, within the look-ahead limit."""
        at_once = max(sum(self.allowances(ready)), ROWS_AT_ONCE_MIN)
        return min(at_once, max(self._look_ahead() - len(self.order), 1))

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Send what can be sent, set the rest aside."""
        slots = self._slots(batch, rows)
        if len(slots) < len(rows):
            stop, rows = rows[len(slots)], rows[: len(slots)]
        if isinstance(rows, range):
            ids, messages = batch.entry_ids[rows.start : rows.stop], counts and counts[rows.start : rows.stop]
        else:
            ids = [batch.entry_ids[picked] for picked in rows]
            messages = counts and [counts[picked] for picked in rows]
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
                # Entries of a non-persistent topic never wait, so those with a key that is too long to hash at once
                # are dropped.
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
        """Plan those of these entries that wait and can be sent."""
        self._take_in(batch, row, stop)
        messages = None if counts is None else counts[row:stop]
        planned = self.order.plan_waiting(batch.entry_ids[row:stop], messages, self._room(ready))
        self.charge()
        return Plan(_sends(planned, range(row, stop), messages), stop, in_order=False)

    def _take_in(self, batch: Batch, row: int, stop: int) -> None:
        """Queue due delayed entries in the order of their keys."""
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
        """Queue them again for their consumer."""
        self.order.release(consumer, entry_ids, again=True)
        self.charge()

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _slots(self, batch: Batch, rows: Sequence[int]) -> list[int]:
        """The slots of these rows, up to the first one whose key must be hashed in slices."""
        selector, offsets, lengths = self.order.selector, batch.offsets, batch.lengths
        plain = plain_keys(batch.data, offsets, lengths, rows)
        keys = [key for key in plain if key is not None]
        if len(keys) == len(plain):
            return selector.slots(hashes_of(keys))
        slots, view = [], memoryview(batch.data)
        # Budget: 4 µs per entry on one core, mostly for decoding the metadata.
        for at, row in enumerate(rows):
            key = plain[at]
            if key is None:
                key = metadata.routing(view[offsets[row] : offsets[row] + lengths[row]]).key
            if len(key) <= LONG_KEY_BYTES:
                slots.append(selector.slot(hash_of(key)))
                continue
            known = self._long_hashes.get(batch.entry_ids[row])
            if known is None:
                self._hash_long(batch, rows[len(slots) :])
                break
            slots.append(selector.slot(known))
        return slots

    def _hash_long(self, batch: Batch, rows: Sequence[int]) -> None:
        """Hash the long keys of these rows, as many as may be kept at a time, then wake the subscription."""
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
        """Whether entries wait to be sent or redelivered."""
        return bool(self.order) or bool(self.replay)

    @property
    def replay_size(self) -> int:
        """Number of waiting entries whose keys are known."""
        return len(self.order)

    def next_replay(self, ready: list[Consumer]) -> list[int]:
        """The lowest waiting entries that can be sent; due delayed entries first, because their keys are unknown."""
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
        entry_ids = list(entry_ids)
        self.order.discard(entry_ids)
        super().missing(entry_ids)

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        self.order.release(consumer, entry_ids, again=True)
        self._stuck = None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def _settled(self, consumer: Consumer, entry_ids: Sequence[int]) -> None:
        """Release their keys, which may go to their new consumers then."""
        freed = self.order.release(consumer, entry_ids, again=False)
        self.charge()
        if freed:
            self._stuck = None
            self._wake()

    def acknowledged_through(self, entry_id: int) -> None:
        super().acknowledged_through(entry_id)
        self.order.discard_through(entry_id)
        self.charge()
        self._stuck = None

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def key_sharing_mode(self) -> str | None:
        return self.sharing.mode

    @property
    def out_of_order(self) -> bool:
        return not self.order.in_order

    def hash_ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        ranges: dict[Consumer, list[tuple[int, int]]] = {}
        for first, last, consumer in self.order.selector.ranges():
            ranges.setdefault(consumer, []).append((first, last))
        return ranges

    def draining(self, consumer: Consumer) -> list[Draining]:
        return self.order.draining(consumer)

    def drained(self, consumer: Consumer) -> int:
        return self.order.cleared.get(id(consumer), 0)


def _sends(
    planned: Mapping[Consumer, Sequence[int]], rows: Sequence[int], messages: Sequence[int] | None
) -> list[Send]:
    """Sends for a plan of indices into `rows`."""
    return [
        Send(
            consumer,
            rows if len(places) == len(rows) else [rows[at] for at in places],
            len(places) if messages is None else sum(messages[at] for at in places),
        )
        for consumer, places in planned.items()
    ]
