# SPDX-License-Identifier: Apache-2.0
"""Loads topics with their subscriptions from storage, creates new ones, and releases their memory.

Where: the directory calls this, once for each name at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from penstock.storage.cursor import Cursor, DamagedCursorError, may_have_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.publishing.deduplication import Deduplication
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.topics.delayed_upkeep import Delays
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog, StoredCursor, TopicRecord
    from penstock.storage.entry_log import EntryLog

log = logging.getLogger(__name__)


class MakeTopic(Protocol):
    """Makes an unused topic from stored values."""

    def __call__(self, name: TopicName, *, ledger_id: int, last_entry_id: int, first_entry_id: int) -> Topic: ...


class TopicLoader:
    """Loads topics into memory and releases them."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        changes: Changes,
        clock: Clock,
        states: TopicStates,
        delays: Delays,
        deduplication: Deduplication,
        rates: Rates,
        make_topic: MakeTopic,
    ) -> None:
        self._log = entry_log
        self._catalog = catalog
        self._changes = changes
        self._clock = clock
        self._states = states
        self._delays = delays
        self._deduplication = deduplication
        self._rates = rates
        self._make_topic = make_topic

    async def load(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        """Load a topic; a topic that is not stored is created with `properties`. Raises MetadataFailed."""
        if not name.is_persistent:
            topic = self._make_topic(name, ledger_id=0, last_entry_id=-1, first_entry_id=0)
            topic.created_ms = self._clock.wall_ms()
            return topic
        text = str(name)
        record = self._catalog.topic(text) or await self._create(text, properties)
        topic = self._made_of(name, record, await self._cursors(text))
        try:
            await self._delays.load(topic)
        except BaseException:
            # Whoever asks next loads it again, perhaps many times a second: each would leave its cursors charged.
            self.let_go(topic)
            raise
        return topic

    async def _create(self, text: str, properties: Mapping[str, str]) -> TopicRecord:
        """Store a new topic. Raises MetadataFailed."""
        catalog, now_ms = self._catalog, self._clock.wall_ms()
        await self._changes.stored(
            lambda done: catalog.create_topic(text, properties=properties, created_wall_ms=now_ms, done=done)
        )
        record = catalog.topic(text)
        assert record is not None
        log.info("topic %s created, ledger %d", text, record.ledger_id)
        return record

    async def _cursors(self, text: str) -> dict[str, Cursor]:
        """The stored cursors of a topic's subscriptions. Raises MetadataFailed."""
        catalog = self._catalog
        stored = {one.name: catalog.cursor(text, one.name) for one in catalog.subscriptions(text)}
        loaded: dict[str, Cursor] = {}
        if any(one is not None and may_have_parts(one.encoded) for one in stored.values()):
            await self._changes.stored(lambda done: catalog.load_cursors(text, loaded.update, done))
        return {name: _checked(text, name, one, loaded.get(name)) for name, one in stored.items()}

    def _made_of(self, name: TopicName, record: TopicRecord, cursors: dict[str, Cursor]) -> Topic:
        acknowledged = [cursor.last_acknowledged for cursor in cursors.values()]
        # Entries that all subscriptions have acknowledged may be gone from the log; cursors prevent that their ids
        # are reused.
        last = max([self._log.last_entry(record.ledger_id), record.first_retained_entry - 1, *acknowledged])
        topic = self._make_topic(
            name, ledger_id=record.ledger_id, last_entry_id=last, first_entry_id=record.first_retained_entry
        )
        topic.created_ms = record.created_wall_ms
        topic.terminated = bool(self._states.of(topic.text).get("terminated"))
        for subscription, cursor in cursors.items():
            topic.add_subscription(subscription, cursor=cursor, durable=True)
        topic.first_entry_id = topic.retained_from()
        self._log.trim(topic.ledger_id, topic.first_entry_id)
        return topic

    def let_go(self, topic: Topic) -> None:
        """Release the memory of an unloaded topic."""
        topic.closed = True
        for subscription in topic.subscriptions.values():
            subscription.release()
        self._delays.close(topic)
        self._deduplication.unloaded(topic)
        self._rates.forget_topic(topic)


def _checked(topic: str, subscription: str, stored: StoredCursor | None, loaded: Cursor | None) -> Cursor:
    """The cursor of a subscription. A damaged part is logged, and its messages are delivered again."""
    if stored is None:
        return Cursor()
    try:
        cursor = loaded or Cursor.load(stored.encoded)
    except DamagedCursorError as error:
        log.warning("%s: subscription %s goes on from its mark-delete position: %s", topic, subscription, error)
        return Cursor(stored.mark_delete)
    if cursor.lost_parts:
        log.warning(
            "%s: %d parts of the cursor of subscription %s are damaged; what was acknowledged there is delivered again",
            topic,
            cursor.lost_parts,
            subscription,
        )
    return cursor
