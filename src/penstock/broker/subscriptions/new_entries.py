# SPDX-License-Identifier: Apache-2.0
"""New entries, in their order: out of the tail cache when they are there, else by one sequential read of the log.

What was read is handed to consumers at once, as far as permits and unsent bytes allow; the rest is forgotten and read
again later, so a stuck consumer pins nothing. Entries that the log does not have count as acknowledged.
Where: a subscription's dispatch comes here when nothing waits to be delivered again.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.storage.results import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.delivery import Delivery
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.log_reading import LogReading
    from penstock.broker.subscriptions.ports import DispatchServices
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.cursor import Cursor
    from penstock.storage.results import ReadResult

# Acknowledged and delayed entries may take turns, and each change of turns takes a microsecond or two.
SKIPS_PER_TURN_MAX: Final = 200
# So many entries are read at once whose delivery times have to be looked at, 5 to 20 µs each: in between the loop is
# for others, and what is due goes first.
LOOKED_ENTRIES_MAX: Final = 1_000


class NewEntries:
    """Finds, reads and hands over what a subscription delivers next."""

    __slots__ = ("_delivery", "_reading", "_services", "_state")

    def __init__(
        self, state: SubscriptionState, services: DispatchServices, reading: LogReading, delivery: Delivery
    ) -> None:
        self._state = state
        self._services = services
        self._reading = reading
        self._delivery = delivery

    def send_next(self, dispatcher: Dispatcher, ready: list[Consumer]) -> bool:
        """Deliver the next piece to these consumers; False when there is none, or a read was started for it."""
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
        # Who has no room for the next entry is not ready any more; then others may be.
        stop = unacknowledged_stop(state.cursor, batch, row)
        reached = self._delivery.deliver_new(dispatcher, batch, row, stop, ready)
        return reached > row or dispatcher.ready() != ready

    def _next_wanted(self) -> int | None:
        """The next entry that is neither acknowledged nor held; None when finding it takes another turn."""
        state = self._state
        end = state.topic.last_entry_id + 1
        for _ in range(SKIPS_PER_TURN_MAX):
            entry_id = state.read_entry_id = state.cursor.next_unacknowledged(state.read_entry_id)
            if state.view is None or entry_id >= end or not state.topic.delays:
                return entry_id
            state.read_entry_id = state.view.next_wanted(entry_id, end)
            if state.read_entry_id == entry_id:
                return entry_id
        return None

    def _compacted(self, entry_id: int, ready: Sequence[Consumer]) -> CompactedLedger | None:
        """The compacted topic if this entry is read from there; a consumer that wants that is the only one ready."""
        compacted = self._state.topic.compacted
        wanted = compacted is not None and entry_id <= compacted.horizon and ready[0].reads_compacted
        return compacted if wanted else None

    # -- reading ------------------------------------------------------------------------------------------------------

    def _start_read(self, entry_id: int, ready: Sequence[Consumer], compacted: CompactedLedger | None) -> None:
        state, reads = self._state, self._services.reads
        # Permits count messages. What does not fit them would be read for nothing, and again with the next.
        wanted = -(-sum(consumer.permits for consumer in ready) // self._delivery.entry_messages)
        if state.gate is not None:
            wanted = state.gate.entries_at_most(wanted)
        index = state.topic.delayed
        if state.view is not None and index is not None and index.manager.unknown(entry_id, entry_id + wanted):
            wanted = min(wanted, LOOKED_ENTRIES_MAX)
        ledger_id = state.topic.ledger_id
        room = self._reading.take_room(ready, self._reading.bytes_max)
        bounds = {"bytes_max": room.nbytes, "entries_max": wanted, "first_bytes_max": room.nbytes}
        if compacted is None:
            future = reads.read(ledger_id, entry_id, **bounds)
        else:
            future = reads.in_thread(partial(compacted.read, self._services.log, ledger_id, entry_id, **bounds))
        self._reading.wait_for(future, room, partial(self._on_read, entry_id))

    def _on_read(self, entry_id: int, dispatcher: Dispatcher, result: ReadResult) -> None:
        state, expected = self._state, entry_id
        if result.members is not None and self._lacks_compacted():
            expected = state.topic.last_entry_id + 1  # What lies between may be missing: it stays in the backlog.
        for compacted, words in (result.members or {}).items():
            state.cursor.acknowledge_batch(compacted, words)
        for batch in result.batches:
            self._skip_missing(expected, batch.entry_ids[0])
            if not self._deliver_all(dispatcher, batch):
                return
            expected = max(expected, batch.entry_ids[-1] + 1)
        self._skip_missing(expected, result.next_entry_id)
        state.read_entry_id = max(state.read_entry_id, result.next_entry_id)

    def _deliver_all(self, dispatcher: Dispatcher, batch: Batch) -> bool:
        """Deliver what of this batch is still wanted; False when the consumers could not take all of it."""
        state = self._state
        batch = without_acknowledged(state.cursor, batch)
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
        """Entries that the log does not have (reclaimed, or lost to damage it has named) count as acknowledged.

        Not so those whose segment is missing: a later start may find it.
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
        """Whether something of the compacted topic is missing; nobody can say which entries these are."""
        compacted = self._state.topic.compacted
        return compacted is not None and self._services.log.missing.any_of(compacted.ledger_id)


def unacknowledged_stop(cursor: Cursor, batch: Batch, row: int) -> int:
    """The row after the last that may be delivered together with this one: the next acknowledged entry ends it."""
    rows = len(batch.offsets)
    if not cursor.acknowledged_above:
        return rows
    ids = batch.entry_ids
    for first, last in cursor.unacknowledged_ranges(ids[row], ids[-1]):
        return bisect_right(ids, last, row + 1, rows) if first == ids[row] else rows
    return rows


def without_acknowledged(cursor: Cursor, batch: Batch) -> Batch:
    """The entries of a batch that are not acknowledged: they go out together, whatever lies between them."""
    ids = batch.entry_ids
    if cursor.none_acknowledged(ids[0], ids[-1]):
        return batch
    # Budget: 0.4 µs an entry. It spares the 20 µs that each piece would cost by itself.
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
