# SPDX-License-Identifier: Apache-2.0
"""Saves of moved cursors, one save at a time.

Why one at a time: every acknowledgement may request an answer when it is durable, thirty thousand a second. Those that
arrive during a save share the next one, so the backlog is at most one save of the moved cursors.
Where: subscriptions report moves; sessions and the admin API await `save`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.storage.catalog import CursorSave, StoredCursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.subscriptions.ports import SubscribedTopic
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.core.errors import PenstockError
    from penstock.storage.catalog import Catalog
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import EntryLog

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
