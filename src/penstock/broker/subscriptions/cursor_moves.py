# SPDX-License-Identifier: Apache-2.0
"""Moves of a cursor: seek, reset, skip, expire, and acknowledgements without a consumer.

Where: SEEK and the admin API move a subscription; expiry, backlog quotas and cancelled messages acknowledge entries.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.subscriptions.log_reading import LogReading
    from penstock.broker.subscriptions.ports import DispatchServices
    from penstock.broker.subscriptions.state import SubscriptionState

# After a seek, a non-durable subscription is kept this long without consumers: the client reconnects.
RECONNECT_S: Final = 60.0


class CursorMoves:
    """Moves the cursor of one subscription."""

    __slots__ = ("_reading", "_services", "_state", "_wake")

    def __init__(
        self, state: SubscriptionState, services: DispatchServices, reading: LogReading, wake: Callable[[], None]
    ) -> None:
        self._state = state
        self._services = services
        self._reading = reading
        self._wake = wake

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        """Seek: disconnect the consumers, then deliver this entry next.

        Args:
            entry_id: the entry.
            members: the messages of its batch to deliver, as an ack set, if not all.

        Raises:
            ServiceNotReady: a seek is running.
            TooManyRequests: there is no memory for the ack set.
            MetadataFailed: the new position could not be stored.
        """
        state, services = self._state, self._services
        if state.fenced:
            raise ServiceNotReady(f"subscription {state.name!r} of {state.topic.text} is being reset already")
        state.memory.check_room(entry_id, members)
        state.fenced = True
        try:
            for consumer in list(state.consumers):
                consumer.session.disconnect_consumer(consumer)
            self.reset(entry_id, members if services.limits().batch_index_acks else ())
            await services.cursors.save(state)
        finally:
            state.fenced = False
            if not state.durable:
                services.loop.call_later(RECONNECT_S, partial(state.topic.end_if_idle, state))

    def reset(self, to_entry_id: int, members: Sequence[int] = ()) -> None:
        """Deliver this entry next; consumers must be detached."""
        state = self._state
        state.cursor.reset(to_entry_id, members)
        state.memory.measure()
        state.topic.pass_cancelled(state.cursor)
        if state.view is not None:
            state.view.was_reset()
            state.view.update_mark_delete_position(state.cursor.mark_delete)
        self._reading.rewind()
        self._services.cursors.moved(state)

    def skip(self, count: int) -> None:
        """Acknowledge the next `count` unacknowledged entries, delivered or not."""
        if count <= 0:
            return
        if count < self._state.backlog:
            self.acknowledge_through(self._state.cursor.nth_unacknowledged(count - 1))
        else:
            self.skip_all()

    def skip_all(self) -> None:
        """Acknowledge all entries, including delayed ones."""
        self.acknowledge_through(self._state.topic.last_entry_id)
        if self._state.view is not None:
            self._state.view.clear()

    def expire_through(self, entry_id: int) -> int:
        """Expire all messages up to this entry; returns the number of entries."""
        state = self._state
        count = self.acknowledge_through(min(entry_id, state.topic.last_entry_id))
        state.expired += count
        state.last_expired_ms = self._services.clock.wall_ms()
        return count

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge all entries up to this one, without a consumer; returns the number of entries."""
        state = self._state
        count = state.cursor.acknowledge_through(entry_id)
        if not count:
            return 0
        if state.view is not None:
            state.view.update_mark_delete_position(state.cursor.mark_delete)
        state.read_entry_id = max(state.read_entry_id, entry_id + 1)
        if state.dispatcher is not None:
            state.dispatcher.acknowledged_through(entry_id)
        self._moved()
        return count

    def acknowledge_cancelled(self, entry_id: int) -> None:
        """Acknowledge one cancelled entry, without a consumer."""
        state = self._state
        if not state.cursor.acknowledge(entry_id):
            return
        state.acknowledged_for_view((entry_id,))
        if state.dispatcher is not None:
            state.dispatcher.acknowledged_elsewhere(entry_id)
        self._moved()

    def acknowledge_aborted(self, entries: range) -> None:
        """Acknowledge entries of an aborted transaction, which come into reach right now: nobody has got them."""
        state = self._state
        state.cursor.acknowledge_many(entries)
        state.acknowledged_for_view(entries)
        self._services.cursors.moved(state)

    def _moved(self) -> None:
        self._services.cursors.moved(self._state)
        self._state.tell_of_end()
        self._wake()
