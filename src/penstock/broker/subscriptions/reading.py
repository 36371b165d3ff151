# SPDX-License-Identifier: Apache-2.0
"""New entries, in order: from the tail cache if possible, else by one sequential read of the log.

Entries are delivered as far as permits and room allow; the rest is dropped and read again later, so a stuck consumer
keeps nothing in memory. Entries missing in the log count as acknowledged.
Where: a subscription's dispatch calls this if no entries wait for redelivery.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatcher import HEADER_BYTES
from penstock.broker.subscriptions.replay_reads import BYTES_MAX
from penstock.core.units import KIB
from penstock.storage.results import Batch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, DispatchServices, Timer
    from penstock.broker.subscriptions.delivery import Delivery
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.pending_acks import Undelivered
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.governance.outbound import Reading
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.cursor import Cursor
    from penstock.storage.results import ReadResult


# ---------------------------------------------------------------------------------------------------------------------
# Redelivery: entries delivered again, and delayed entries that are due.
#
# Both wait in the dispatcher, lowest entry first, and go before new entries: gathered from the tail cache, or by a read
# that the subscriptions of a topic share (`ReplayReads`). Where: a subscription's dispatch calls this first.


class Redelivery:
    """Delivers entries that wait for redelivery."""

    __slots__ = ("_delivery", "_reading", "_services", "_state")

    def __init__(
        self, state: SubscriptionState, services: DispatchServices, reading: LogReading, delivery: Delivery
    ) -> None:
        self._state = state
        self._services = services
        self._reading = reading
        self._delivery = delivery

    def send(self, dispatcher: Dispatcher, entry_ids: list[int], ready: Sequence[Consumer]) -> bool:
        """Deliver these entries; False if a read was started."""
        state = self._state
        if state.gate is not None:
            entry_ids = entry_ids[: state.gate.entries_at_most(len(entry_ids))]
        room = self._reading.charge(ready, BYTES_MAX)
        batch = state.topic.tail.gather(entry_ids, room.nbytes)
        if batch is not None:
            self._reading.release(room)
            self._delivery.deliver_again(dispatcher, batch)
            return True
        future = state.topic.replay_reads.read(entry_ids, room.nbytes)
        asked = state.topic.replay_reads.asked_for(future, entry_ids)
        self._reading.wait_for(future, room, partial(self._on_read, asked))
        return False

    def _on_read(self, entry_ids: list[int], dispatcher: Dispatcher, result: ReadResult) -> None:
        """Deliver those entries that still wait; entries not in the log are acknowledged.

        The read may have been shared, and contain other entries too.
        """
        state = self._state
        found = {entry_id for batch in result.batches for entry_id in batch.entry_ids}
        missing = [one for one in entry_ids if one < result.next_entry_id and one not in found]
        if missing:
            lost = self._services.log.missing.within(state.topic.ledger_id, missing[0], missing[-1] + 1)
            gone = [one for one in missing if not any(first <= one < end for first, end in lost)]
            state.cursor.acknowledge_many(gone)
            state.acknowledged_for_view(gone)
            dispatcher.missing(missing)
            self._services.cursors.moved(state)
        for batch in result.batches:
            self._delivery.deliver_again(dispatcher, batch)

    # -- delayed entries ----------------------------------------------------------------------------------------------

    def add_due(self, dispatcher: Dispatcher, ready: list[Consumer]) -> None:
        """Queue delayed entries that are due, as many as these consumers can take."""
        state = self._state
        view, index = state.view, state.topic.delayed
        if view is None or index is None:
            return
        if view.back_fill(state.read_entry_id) is not None:
            index.start_back_fill()
        if not view.may_hold:
            return
        room = dispatcher.due_room(ready)
        now_ms = index.now_ms()
        if room <= 0:
            return
        if not view.has_message_available(now_ms, state.read_entry_id):
            index.set_timer()
            return
        due = view.get_scheduled_messages(now_ms, room, state.read_entry_id)
        if state.pending is not None:
            due = [one for one in due if not state.pending.holds(one)]
        index.count_delivered(view.slots_taken)
        dispatcher.add_replay(due)

    def add_passed(self, entry_ids: Sequence[int]) -> None:
        """Queue these due entries, except those not read yet, sent or acknowledged."""
        state = self._state
        pending = {one for consumer in state.consumers for one in entry_ids if one in consumer.pending_acks}
        if state.dispatcher is not None and state.dispatcher.individual:
            state.dispatcher.add_replay(
                [
                    one
                    for one in entry_ids
                    if one < state.read_entry_id and one not in pending and not state.undelivered.is_acknowledged(one)
                ]
            )


# ---------------------------------------------------------------------------------------------------------------------
# Log reads of one subscription, one at a time, and their cancellation.
#
# Why one at a time: entries are delivered in order, and a read takes outbound memory. A failed read is repeated as long
# as consumers wait; nothing after it is delivered before. Where: `NewEntries` and `Redelivery` start reads here. Moving
# the read position backwards (seek, rewind, a new active consumer) increments `generation`; the result of a read of an
# earlier generation is dropped.

log = logging.getLogger(__name__)

# Maximum size of one read, two of the log; it is also limited by the room of the consumers.
READ_BYTES_MAX: Final = 2_176 * KIB
# Delay before a failed read is repeated; it doubles each time, up to a maximum.
READ_RETRY_S: Final = 0.25
READ_RETRY_MAX_S: Final = 5.0


class LogReading:
    """The read position of a subscription, and its running read."""

    __slots__ = (
        "_failed",
        "_large_bytes",
        "_retry",
        "_services",
        "_state",
        "_wake",
        "failing_since_ns",
        "generation",
        "under_way",
    )

    def __init__(self, state: SubscriptionState, services: DispatchServices, wake: Callable[[], None]) -> None:
        self._state = state
        self._services = services
        self._wake = wake
        self.under_way = False  # or waiting to repeat a failed read
        self.generation = 0
        self.failing_since_ns: int | None = None  # since when reads fail; None after one that did not
        self._failed = 0  # consecutive failed reads
        self._retry: Timer | None = None
        self._large_bytes = 0  # size of an entry that was too large for one read; usually several follow one another

    # -- the read position --------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Move the read position to the first unacknowledged entry."""
        state = self._state
        self.generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        state.read_entry_id = state.cursor.mark_delete + 1
        state.rewound_ns = self._services.turn.began_ns
        if state.view is not None:
            state.view.rewind()

    def step_back(self, entry_id: int) -> None:
        """Move the read position back to this entry."""
        if entry_id < self._state.read_entry_id:
            self.generation += 1
            self._state.read_entry_id = entry_id

    def source_changed(self) -> None:
        """Entries must be read from another ledger: repeat the running read."""
        self.generation += 1
        self._wake()

    # -- reads --------------------------------------------------------------------------------------------------------

    @property
    def bytes_max(self) -> int:
        """Maximum size of the next read; larger than usual while entries are large."""
        return max(READ_BYTES_MAX, self._large_bytes)

    def charge(self, ready: Sequence[Consumer], bytes_max: int) -> Reading:
        """Charge outbound memory for a read for these consumers."""
        return self._services.outlets.outbound.charge_read([consumer.outlet for consumer in ready], bytes_max)

    def release(self, room: Reading) -> None:
        """Release the charge without a read, because the entries were in memory."""
        self._services.outlets.outbound.release_read(room)

    def wait_for(
        self, future: asyncio.Future[ReadResult], room: Reading, deliver: Callable[[Dispatcher, ReadResult], None]
    ) -> None:
        """Deliver the result of this read, if it is still of the current generation."""
        self.under_way = True
        generation = self.generation
        future.add_done_callback(lambda done: self._on_read(done, room, generation, deliver))

    def _on_read(
        self,
        done: asyncio.Future[ReadResult],
        room: Reading,
        generation: int,
        deliver: Callable[[Dispatcher, ReadResult], None],
    ) -> None:
        services = self._services
        # The charged memory is used by the result, in this turn of the loop.
        services.outlets.outbound.release_read(room)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._put_off(error)
            services.outlets.outbound_freed()
            return
        self.under_way = False
        if done.cancelled():
            return
        self._failed, self.failing_since_ns = 0, None
        dispatcher = self._state.dispatcher
        if generation == self.generation and not self._state.fenced and dispatcher is not None:
            result = done.result()
            self._large_bytes = result.too_large_bytes or self._large_bytes * _begins_large(result)
            if result.too_large_bytes:
                for consumer in dispatcher.ready():
                    consumer.outlet.has_no_room(result.too_large_bytes + HEADER_BYTES, consumer)
            deliver(dispatcher, result)
        self._wake()
        services.outlets.outbound_freed()

    def _put_off(self, error: BaseException) -> None:
        """Repeat a failed read later; no entries are lost."""
        state = self._state
        if not self._failed:  # Logged once: the disk may fail for hours.
            self.failing_since_ns = self._services.clock.monotonic_ns()
            log.error("reading %s for subscription %s failed, trying again: %s", state.topic.text, state.name, error)
        wait_s = min(READ_RETRY_S * 2 ** min(self._failed, 16), READ_RETRY_MAX_S)
        self._failed += 1
        self._retry = self._services.loop.call_later(wait_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.under_way = False
        self._wake()


def _begins_large(result: ReadResult) -> bool:
    return not result.batches or result.batches[0].lengths[0] > READ_BYTES_MAX


# Acknowledged and delayed entries may alternate; each alternation takes a microsecond or two.
SKIPS_PER_TURN_MAX: Final = 200
# Maximum of entries read at a time if their delivery times must be decoded, at 5 to 20 µs each: in between the loop
# continues, and due messages go first.
LOOKED_ENTRIES_MAX: Final = 1_000


class NewEntries:
    """Finds, reads and delivers the next entries of a subscription."""

    __slots__ = ("_delivery", "_reading", "_services", "_state")

    def __init__(
        self, state: SubscriptionState, services: DispatchServices, reading: LogReading, delivery: Delivery
    ) -> None:
        self._state = state
        self._services = services
        self._reading = reading
        self._delivery = delivery

    def send_next(self, dispatcher: Dispatcher, ready: list[Consumer]) -> bool:
        """Deliver the next entries to these consumers; False if there are none, or a read was started."""
        state = self._state
        entry_id = self._next_wanted()
        if entry_id is None:
            return True
        if entry_id > state.topic.last_entry_id:
            return False
        compacted = self._compacted(entry_id, ready)
        found = state.topic.tail.find(entry_id) if compacted is None else None
        if found is None:
            self._start_read(entry_id, ready, compacted)
            return False
        batch, row = found
        # A consumer without room for the next entry is not ready any more; others may be.
        stop = unacknowledged_stop(state.undelivered, batch, row)
        reached = self._delivery.deliver_new(dispatcher, batch, row, stop, ready)
        return reached > row or dispatcher.ready() != ready

    def _next_wanted(self) -> int | None:
        """The next entry that is neither acknowledged nor delayed; None if finding it takes another turn."""
        state = self._state
        end = state.topic.last_entry_id + 1
        for _ in range(SKIPS_PER_TURN_MAX):
            entry_id = state.read_entry_id = state.undelivered.next_unacknowledged(state.read_entry_id)
            if state.view is None or entry_id >= end or not state.topic.delays:
                return entry_id
            state.read_entry_id = state.view.next_wanted(entry_id, end)
            if state.read_entry_id == entry_id:
                return entry_id
        return None

    def _compacted(self, entry_id: int, ready: Sequence[Consumer]) -> CompactedLedger | None:
        """The compacted ledger, if this entry is read from it; then its consumer is the only ready one."""
        compacted = self._state.topic.compacted
        wanted = compacted is not None and entry_id <= compacted.horizon and ready[0].reads_compacted
        return compacted if wanted else None

    # -- reading ------------------------------------------------------------------------------------------------------

    def _start_read(self, entry_id: int, ready: Sequence[Consumer], compacted: CompactedLedger | None) -> None:
        state, reads = self._state, self._services.reads
        # Permits count messages. Entries beyond the permits would be dropped, and read again with the next ones.
        wanted = -(-sum(consumer.permits for consumer in ready) // self._delivery.entry_messages)
        if state.gate is not None:
            wanted = state.gate.entries_at_most(wanted)
        index = state.topic.delayed
        if state.view is not None and index is not None and index.manager.unknown(entry_id, entry_id + wanted):
            wanted = min(wanted, LOOKED_ENTRIES_MAX)
        if state.topic.holds_back and compacted is None:
            wanted = min(wanted, state.topic.last_entry_id + 1 - entry_id)
        ledger_id = state.topic.ledger_id
        room = self._reading.charge(ready, self._reading.bytes_max)
        bounds = {"bytes_max": room.nbytes, "entries_max": wanted, "first_bytes_max": room.nbytes}
        if compacted is None:
            future = reads.read(ledger_id, entry_id, **bounds)
        else:
            future = reads.in_thread(partial(compacted.read, self._services.log, ledger_id, entry_id, **bounds))
        self._reading.wait_for(future, room, partial(self._on_read, entry_id))

    def _on_read(self, entry_id: int, dispatcher: Dispatcher, result: ReadResult) -> None:
        state, expected = self._state, entry_id
        if result.members is not None and self._lacks_compacted():
            expected = state.topic.last_entry_id + 1  # Missing entries in between stay in the backlog.
        for compacted, words in (result.members or {}).items():
            state.cursor.acknowledge_batch(compacted, words)
        batches, next_entry_id = result.batches, result.next_entry_id
        if state.topic.holds_back:  # The log has more than may be read.
            batches = [one for one in map(self._readable, batches) if one.entry_ids]
            next_entry_id = min(next_entry_id, state.topic.last_entry_id + 1)
        for batch in batches:
            self._skip_missing(expected, batch.entry_ids[0])
            if not self._deliver_all(dispatcher, batch):
                return
            expected = max(expected, batch.entry_ids[-1] + 1)
        self._skip_missing(expected, next_entry_id)
        state.read_entry_id = max(state.read_entry_id, next_entry_id)

    def _readable(self, batch: Batch) -> Batch:
        """The entries of a batch that no open transaction keeps back."""
        stop = bisect_right(batch.entry_ids, self._state.topic.last_entry_id)
        return batch if stop == len(batch.entry_ids) else first_rows(batch, stop)

    def _deliver_all(self, dispatcher: Dispatcher, batch: Batch) -> bool:
        """Deliver the unacknowledged entries of this batch; False if consumers could not take all."""
        state = self._state
        batch = without_acknowledged(state.undelivered, batch)
        row, rows = 0, len(batch.offsets)
        while row < rows:
            ready = dispatcher.ready()
            if not ready or dispatcher.full or (state.gate is not None and not state.gate.is_open()):
                return False
            reached = self._delivery.deliver_new(dispatcher, batch, row, rows, ready)
            if reached == row and dispatcher.ready() == ready:
                return False
            row = reached
        return True

    def _skip_missing(self, first: int, stop: int) -> None:
        """Acknowledge entries that are not in the log: trimmed, or lost to damage that was logged.

        Entries of a missing segment are kept: a later start may find it.
        """
        state = self._state
        stop = min(stop, state.topic.last_entry_id + 1)
        if first < stop:
            for start, end in self._services.log.missing.present(state.topic.ledger_id, first, stop):
                state.cursor.acknowledge_many(range(start, end))
                state.acknowledged_for_view(range(start, end))
            state.read_entry_id = max(state.read_entry_id, stop)
            self._services.cursors.moved(state)

    def _lacks_compacted(self) -> bool:
        """Whether entries of the compacted ledger are missing; it is unknown which."""
        compacted = self._state.topic.compacted
        return compacted is not None and self._services.log.missing.any_of(compacted.ledger_id)


def first_rows(batch: Batch, stop: int) -> Batch:
    """The rows of a batch before `stop`."""
    counts = batch.message_counts
    return Batch(
        batch.ledger_id,
        batch.entry_ids[:stop],
        batch.data,
        batch.offsets[:stop],
        batch.lengths[:stop],
        counts and counts[:stop],
    )


def unacknowledged_stop(cursor: Cursor | Undelivered, batch: Batch, row: int) -> int:
    """The row that ends the run of unacknowledged entries from this row on."""
    rows = len(batch.offsets)
    if not cursor.acknowledged_above:
        return rows
    ids = batch.entry_ids
    for first, last in cursor.unacknowledged_ranges(ids[row], ids[-1]):
        return bisect_right(ids, last, row + 1, rows) if first == ids[row] else rows
    return rows


def without_acknowledged(cursor: Cursor | Undelivered, batch: Batch) -> Batch:
    """The unacknowledged entries of a batch, gathered so that they are delivered together."""
    ids = batch.entry_ids
    if cursor.none_acknowledged(ids[0], ids[-1]):
        return batch
    # Budget: 0.4 µs per entry. It saves the 20 µs that each run would cost by itself.
    rows = [row for row, entry_id in enumerate(ids) if not cursor.is_acknowledged(entry_id)]
    counts = batch.message_counts
    return Batch(
        batch.ledger_id,
        [ids[row] for row in rows],
        batch.data,
        [batch.offsets[row] for row in rows],
        [batch.lengths[row] for row in rows],
        counts and [counts[row] for row in rows],
    )
