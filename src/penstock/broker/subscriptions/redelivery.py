# SPDX-License-Identifier: Apache-2.0
"""Redelivery: entries delivered again, and delayed entries that are due.

Both wait in the dispatcher, lowest entry first, and go before new entries: gathered from the tail cache, or by a read
that the subscriptions of a topic share (`ReplayReads`).
Where: a subscription's dispatch calls this first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.subscriptions.replay_reads import BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.delivery import Delivery
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.log_reading import LogReading
    from penstock.broker.subscriptions.ports import DispatchServices
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.storage.results import ReadResult


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
