# SPDX-License-Identifier: Apache-2.0
"""Loads topics with their subscriptions from storage, creates new ones, and releases their memory.

Where: the directory calls this, once for each name at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import ServedElsewhere, TopicNotFound
from penstock.storage.cursor import Cursor, DamagedCursorError, may_have_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.publishing.deduplication import Deduplication
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.topics.delayed_indexes import DelayedIndexes
    from penstock.broker.topics.non_persistent import NonPersistentTopics
    from penstock.broker.topics.restoring import Restoring
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


class TopicCounts(Protocol):
    """Counts what topics do; `records.usage` does."""

    def attach(self, topic: Topic) -> None:
        """Count what a topic does from now on. Called before it is trimmed."""

    async def attached(self, topic: Topic) -> None:
        """Called before a client uses it. Raises MetadataFailed."""

    def detach(self, topic: Topic) -> None:
        """A topic is unloaded or deleted."""


class TopicLoader:
    """Loads topics into memory and releases them.

    Attributes:
        counts: counts usage; None: nobody does.
    """

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        changes: Changes,
        clock: Clock,
        states: TopicStates,
        delayed_indexes: DelayedIndexes,
        deduplication: Deduplication,
        rates: Rates,
        make_topic: MakeTopic,
        own: int,
        created: Callable[[TopicRecord], None],
        restoring: Restoring,
        non_persistent: NonPersistentTopics | None = None,
    ) -> None:
        self._log = entry_log
        self._catalog = catalog
        self._changes = changes
        self._clock = clock
        self._states = states
        self._indexes = delayed_indexes
        self._deduplication = deduplication
        self._rates = rates
        self._make_topic = make_topic
        self._own = own  # number of this broker
        self._created = created  # called with the record of each topic that this broker creates
        self._non_persistent = non_persistent  # tells other brokers, if there are any
        self.counts: TopicCounts | None = None
        self._restoring = restoring

    async def load(self, name: TopicName, properties: Mapping[str, str], topics_max: int) -> Topic:
        """Load a topic; a topic that is not stored is created with `properties`.

        Raises:
            NotAllowed: its namespace would have more than `topics_max` topics, if that is not 0.
            MetadataFailed: it could not be stored or read.
            ServedElsewhere: another broker has created it meanwhile.
        """
        if not name.is_persistent:
            topic = self._make_topic(name, ledger_id=0, last_entry_id=-1, first_entry_id=0)
            topic.created_ms = self._clock.wall_ms()
            if self.counts is not None:
                self.counts.attach(topic)
            if self._non_persistent is not None:
                await self._non_persistent.loaded(topic.text)
            return topic
        text = str(name)
        record = self._catalog.topic(text) or await self._create(text, properties, self._own, topics_max)
        if record.broker != self._own:
            raise ServedElsewhere(text, record.broker)
        topic = self._made_of(name, record, await self._cursors(text))
        try:
            await self._restoring.restore(topic)
            await self._indexes.load(topic)
            if self.counts is not None:
                await self.counts.attached(topic)
        except BaseException:
            # Whoever asks next loads it again, perhaps many times a second: each would leave its cursors charged.
            self.release(topic)
            raise
        return topic

    async def create_elsewhere(self, text: str, properties: Mapping[str, str], broker: int, topics_max: int) -> None:
        """Store a new topic for another broker to load, even if the caller is cancelled.

        Raises MetadataFailed; NotAllowed, as `load` does.
        """
        await self._changes.finish(self._create(text, properties, broker, topics_max))

    async def _create(self, text: str, properties: Mapping[str, str], broker: int, topics_max: int) -> TopicRecord:
        """Store a new topic, unless it exists. Raises MetadataFailed, NotAllowed."""
        catalog, now_ms = self._catalog, self._clock.wall_ms()
        await self._changes.stored(
            lambda done: catalog.create_topic(
                text,
                properties=properties,
                created_wall_ms=now_ms,
                done=done,
                broker=broker,
                topics_max=topics_max,
            )
        )
        record = catalog.topic(text)
        if record is None:
            raise TopicNotFound(text)  # Another broker has deleted it already.
        self._created(record)
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
        first = self._catalog.first_retained_entry(record.name)
        last = max([self._log.last_entry(record.ledger_id), first - 1, *acknowledged])
        topic = self._make_topic(name, ledger_id=record.ledger_id, last_entry_id=last, first_entry_id=first)
        topic.created_ms = record.created_wall_ms
        topic.terminated = bool(self._states.of(topic.text).get("terminated"))
        for subscription, cursor in cursors.items():
            topic.add_subscription(subscription, cursor=cursor, durable=True)
        if self.counts is not None:
            self.counts.attach(topic)
        topic.first_entry_id = topic.retained_from()
        self._log.trim(topic.ledger_id, topic.first_entry_id)
        return topic

    def release(self, topic: Topic) -> None:
        topic.closed = True
        if self.counts is not None:
            self.counts.detach(topic)
        for subscription in topic.subscriptions.values():
            subscription.release()
        self._indexes.close(topic)
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
