# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of consumers: applied to the cursor, the dispatcher and the delayed messages.

Where: a session passes each ACK to its subscription.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.storage.catalog import CursorSave, StoredCursor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.subscriptions.consumer import Consumer, DispatchServices, SubscribedTopic
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.storage.catalog import Catalog
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import EntryLog
    from penstock.wire.events import AckRun


# ---------------------------------------------------------------------------------------------------------------------
# Saves of moved cursors, one save at a time.
#
# Why one at a time: every acknowledgement may request an answer when it is durable, thirty thousand a second. Those
# that arrive during a save share the next one, so the backlog is at most one save of the moved cursors. Where:
# subscriptions report moves; sessions and the admin API await `save`.

logger = logging.getLogger(__name__)

# Moved cursors are stored together after at most this time. If the process dies before, acknowledgements without
# ACK_RESPONSE are lost, and their messages redelivered.
CURSOR_SAVE_S: Final = 0.8
# A cursor takes 5 µs of the loop, and more for each changed part.
CURSORS_PER_TURN_MAX: Final = 1_000


class CursorSaves:
    """The moved cursors, the running save, and the next one."""

    def __init__(self, catalog: Catalog, log: EntryLog, loop: asyncio.AbstractEventLoop) -> None:
        self._catalog = catalog
        self._log = log
        self._loop = loop
        self._moved: dict[SubscriptionState, None] = {}  # in order of moving
        self._timer: asyncio.TimerHandle | None = None
        self._left: list[SubscriptionState] = []  # of the running save, not submitted yet
        self._current: asyncio.Future[None] | None = None  # the running save
        self._next: asyncio.Future[None] | None = None
        self._error_logged = False

    def moved(self, subscription: SubscriptionState) -> None:
        """Note that a cursor moved; it is stored with the others within CURSOR_SAVE_S."""
        self._moved[subscription] = None
        if self._timer is None:
            self._timer = self._loop.call_later(CURSOR_SAVE_S, self._save)

    async def save(self, *subscriptions: SubscriptionState) -> None:
        """Store these cursors and all that moved; returns when they are durable.

        Cursors of non-durable subscriptions are never stored. Raises MetadataFailed.
        """
        if any(subscription.durable for subscription in subscriptions):
            self._moved.update(dict.fromkeys(subscriptions))
            await self.save_moved()

    async def save_moved(self) -> None:
        """Store all cursors that moved; returns when they are durable, raises MetadataFailed."""
        await asyncio.shield(self._save())  # Shared: a cancelled caller must not cancel the others.

    def _save(self) -> asyncio.Future[None]:
        """Done when every cursor is durable in its state at the end of this turn of the loop, or later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next is None:
            self._next = self._loop.create_future()
            if self._current is None:
                self._loop.call_soon(self._begin)  # so that saves of one turn are shared
        return self._next

    def _begin(self) -> None:
        assert self._current is None, "one save at a time"
        self._current, self._next = self._next, None
        self._left, self._moved = list(self._moved), {}
        self._save_some()

    def _save_some(self) -> None:
        """Submit as many of the remaining cursors as fit into one turn of the loop."""
        some = self._left[-CURSORS_PER_TURN_MAX:]
        del self._left[-CURSORS_PER_TURN_MAX:]
        saves = []
        topics = set()
        for subscription in some:
            topic = subscription.topic
            if topic.closed or topic.subscriptions.get(subscription.name) is not subscription:
                continue  # The subscription was deleted; its name may be used by another one.
            if subscription.durable:
                cursor = subscription.cursor
                parts = cursor.take_changes()
                saves.append(CursorSave(topic.text, subscription.name, stored_form(cursor), parts))
                topics.add(topic)
                if subscription.places is not None:
                    subscription.places.passed()
            subscription.charge()
        needed_from = {topic: topic.retained_from() for topic in topics}
        self._catalog.save_cursors(saves, partial(self._saved, needed_from))

    def _saved(self, needed_from: Mapping[SubscribedTopic, int], error: PenstockError | None) -> None:
        if error is None:
            self._trim(needed_from)
            if self._left:
                self._save_some()
                return
        elif not self._error_logged:  # The error is permanent, and health reports it.
            self._error_logged = True
            logger.error("cursors cannot be stored any more: %s", error)
        self._finish(error)

    def _finish(self, error: PenstockError | None) -> None:
        future, self._current = self._current, None
        assert future is not None, "somebody asked for this save"
        if error is None:
            future.set_result(None)
        else:
            self._left.clear()
            future.set_exception(error)
            future.exception()  # Mark the exception as retrieved.
        if self._next is not None:
            self._begin()

    def _trim(self, needed_from: Mapping[SubscribedTopic, int]) -> None:
        """Trim entries that every subscription had durably acknowledged.

        That is the position when they were saved. Later acknowledgements may be lost in a crash, and their ids must not
        be reused; and a subscription created or moved back since needs more entries.
        """
        for topic, entry_id in needed_from.items():
            if not topic.closed:
                topic.first_entry_id = max(topic.first_entry_id, min(entry_id, topic.retained_from()))
                self._log.trim(topic.ledger_id, topic.first_entry_id)


def stored_form(cursor: Cursor) -> StoredCursor:
    """The part of a cursor that is stored with every save."""
    return StoredCursor(cursor.mark_delete, cursor.head())


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
