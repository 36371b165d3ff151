# SPDX-License-Identifier: Apache-2.0
"""Saves of cursors: which have moved, and one save at a time for all of them.

Why one at a time: every acknowledgement may ask to be told when it is durable, thirty thousand in one second. Those
that come while a save is on its way to the disk share the next one, so no more waits than the cursors that moved.
Where: subscriptions tell that they moved; sessions and the admin port wait for `save`.
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

# Cursors that moved are stored together, at most this much later. Acknowledgements that no ACK_RESPONSE has confirmed
# are redelivered when the process dies before.
CURSOR_SAVE_S: Final = 0.8
# A cursor takes 5 µs of the loop, and some more for each part that changed.
CURSORS_PER_TURN_MAX: Final = 1_000


class CursorSaves:
    """Which cursors moved since they were saved, the save under way, and the one after it."""

    def __init__(self, catalog: Catalog, log: EntryLog, loop: asyncio.AbstractEventLoop) -> None:
        self._catalog = catalog
        self._log = log
        self._loop = loop
        self._moved: dict[SubscriptionState, None] = {}  # in the order in which they moved
        self._timer: asyncio.TimerHandle | None = None
        self._left: list[SubscriptionState] = []  # of the save under way, not submitted yet
        self._current: asyncio.Future[None] | None = None  # the save under way
        self._next: asyncio.Future[None] | None = None
        self._error_told = False

    def moved(self, subscription: SubscriptionState) -> None:
        """A cursor changed; it is stored with all others that did, within CURSOR_SAVE_S."""
        self._moved[subscription] = None
        if self._timer is None:
            self._timer = self._loop.call_later(CURSOR_SAVE_S, self._save)

    async def save(self, *subscriptions: SubscriptionState) -> None:
        """Store these cursors now, and with them all that moved; returns when they are durable.

        Those of subscriptions that are not durable are never stored. Raises MetadataFailed.
        """
        if any(subscription.durable for subscription in subscriptions):
            self._moved.update(dict.fromkeys(subscriptions))
            await self.save_moved()

    async def save_moved(self) -> None:
        """Store all cursors that moved; returns when they are durable, raises MetadataFailed."""
        await asyncio.shield(self._save())  # Shared: whoever gives up waiting must not take it from the others.

    def _save(self) -> asyncio.Future[None]:
        """Done when every cursor is durable as it is at the end of this turn of the loop, or later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next is None:
            self._next = self._loop.create_future()
            if self._current is None:
                self._loop.call_soon(self._begin)  # So that those of one turn share it.
        return self._next

    def _begin(self) -> None:
        assert self._current is None, "one save at a time"
        self._current, self._next = self._next, None
        self._left, self._moved = list(self._moved), {}
        self._save_some()

    def _save_some(self) -> None:
        """Submit as many of those that are left as one turn of the loop has time for."""
        some = self._left[-CURSORS_PER_TURN_MAX:]
        del self._left[-CURSORS_PER_TURN_MAX:]
        saves = []
        topics = set()
        for subscription in some:
            topic = subscription.topic
            if topic.closed or topic.subscriptions.get(subscription.name) is not subscription:
                continue  # What it says now, it says of something that is gone; its name may be another one's.
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
        elif not self._error_told:  # It is final, and health says so from now on.
            self._error_told = True
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
            future.exception()  # Seen, should nobody wait.
        if self._next is not None:
            self._begin()

    def _trim(self, needed_from: Mapping[SubscribedTopic, int]) -> None:
        """What every subscription has durably acknowledged may be reclaimed.

        That is what they had acknowledged when they were saved. Of what came since, a crash would leave nobody who
        knows that those ids were used; and a subscription that was made or moved back since wants more.
        """
        for topic, entry_id in needed_from.items():
            if not topic.closed:
                topic.first_entry_id = max(topic.first_entry_id, min(entry_id, topic.retained_from()))
                self._log.trim(topic.ledger_id, topic.first_entry_id)


def stored_form(cursor: Cursor) -> StoredCursor:
    """What is stored of a cursor with every save."""
    return StoredCursor(cursor.mark_delete, cursor.head())
