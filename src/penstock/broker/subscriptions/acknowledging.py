# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of consumers: applied to the cursor, the dispatcher and the delayed messages.

Where: a session passes each ACK to its subscription.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.ports import DispatchServices
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.wire.events import AckRun


class Acknowledging:
    """Applies the acknowledgements of one subscription's consumers."""

    __slots__ = ("_services", "_state")

    def __init__(self, state: SubscriptionState, services: DispatchServices) -> None:
        self._state = state
        self._services = services

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> PenstockError | None:
        """Apply one ACK; ids that do not exist are ignored.

        Returns an error if some of it was not applied: no memory for the acknowledged messages of a batch.
        """
        state = self._state
        topic, dispatcher = state.topic, state.dispatcher
        if dispatcher is None:
            return None
        refusal = None
        last, ledger_id = topic.last_entry_id, topic.ledger_id
        entry_ids: Sequence[int] = ack.entry_ids
        highest = max(entry_ids, default=0)
        if ack.consecutive:  # As a range, all of them take as long as one.
            entry_ids = range(highest + 1 - len(entry_ids), highest + 1)
        members: list[tuple[int, list[int]]] = []
        if ack.ack_sets or ack.ledger_ids.count(ledger_id) < len(entry_ids) or highest > last:
            entry_ids = [
                entry_id
                for row, entry_id in enumerate(ack.entry_ids)
                if entry_id <= last and ack.ledger_ids[row] == ledger_id and row not in ack.ack_sets
            ]
            members = [
                (ack.entry_ids[row], words)
                for row, words in ack.ack_sets.items()
                if ack.ledger_ids[row] == ledger_id and ack.entry_ids[row] <= last
            ]
        if members and not self._services.limits().batch_index_acks:
            # The batch is redelivered as a whole; everything before it is acknowledged.
            entry_ids = [*entry_ids, *(entry_id - 1 for entry_id, _ in members)] if ack.cumulative else entry_ids
            members = []
        if not ack.cumulative:
            newly = state.cursor.acknowledge_many(entry_ids)
            if members:
                whole, refusal = self._acknowledge_members(dispatcher, consumer, members)
                entry_ids = [*entry_ids, *whole]
            if state.view is not None:
                state.acknowledged_for_view(entry_ids)
            dispatcher.acknowledged(consumer, entry_ids, newly)
            state.acks += newly
        elif not dispatcher.individual:
            newly = sum(self._acknowledge_through(entry_id) for entry_id in entry_ids)
            for entry_id, words in members:
                newly += self._acknowledge_through(entry_id - 1)
                try:
                    newly += self._acknowledge_batch(entry_id, words)
                except PenstockError as error:
                    refusal = error
            consumer.acks += newly
            state.acks += newly
        consumer.last_acked_ms = state.last_acked_ms = self._services.clock.wall_ms()
        self._services.cursors.moved(state)
        if topic.terminated:
            state.tell_of_end()
        return refusal

    def _acknowledge_members(
        self, dispatcher: Dispatcher, consumer: Consumer, members: list[tuple[int, list[int]]]
    ) -> tuple[list[int], PenstockError | None]:
        """Acknowledge messages of batches; returns the completed entries, and an error if some were refused."""
        whole, refusal = [], None
        for entry_id, words in members:
            try:
                if self._acknowledge_batch(entry_id, words):
                    whole.append(entry_id)
                else:
                    dispatcher.acknowledged_in_part(consumer, entry_id, self._state.cursor.wanted_of(entry_id))
            except PenstockError as error:
                refusal = error
        return whole, refusal

    def _acknowledge_batch(self, entry_id: int, words: Sequence[int]) -> bool:
        """Acknowledge messages of one batch. True if all are acknowledged now; raises TooManyRequests."""
        state = self._state
        return state.cursor.acknowledge_batch(entry_id, words, partial(state.memory.charge_for_set, entry_id))

    def _acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge up to this entry, except missing entries, which no consumer has received."""
        cursor, missing, ledger_id = self._state.cursor, self._services.log.missing, self._state.topic.ledger_id
        if not missing.any_of(ledger_id):
            return cursor.acknowledge_through(entry_id)
        newly = 0
        for first, end in missing.present(ledger_id, cursor.mark_delete + 1, entry_id + 1):
            for start, last in list(cursor.unacknowledged_ranges(first, end - 1)):
                newly += cursor.acknowledge_many(range(start, last + 1))
        return newly
