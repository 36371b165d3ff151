# SPDX-License-Identifier: Apache-2.0
"""The topics of this broker, loaded on first use and created when somebody asks for one that does not exist.

Where: sessions ask for a topic by name; the catalog knows what exists, the log knows how far each ledger goes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.broker.topic import Topic
from penstock.core.errors import TopicNotFound
from penstock.storage.cursor import Cursor, DamagedCursorError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.core.names import TopicName
    from penstock.storage.catalog import StoredCursor, TopicRecord

log = logging.getLogger(__name__)


class TopicDirectory:
    """Topics by name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, Topic] = {}
        self._creating: dict[str, asyncio.Future[Topic]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def loaded(self) -> list[Topic]:
        """Topics somebody has used since the start."""
        return list(self._topics.values())

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or, not being persistent, somebody uses it."""
        text = str(name)
        return text in self._topics or self._broker.catalog.topic(text) is not None

    async def get_or_create(self, name: TopicName, *, create: bool) -> Topic:
        """The topic of this name.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            MetadataFailed: it could not be stored.
        """
        text = str(name)
        topic = self._topics.get(text)
        if topic is not None:
            return topic
        pending = self._creating.get(text)
        if pending is None:
            pending = asyncio.ensure_future(self._load_or_create(name, create=create))
            self._creating[text] = pending
            pending.add_done_callback(lambda _done: self._creating.pop(text, None))
        # Shielded: when the client that came first goes away, the others still want the topic.
        return await asyncio.shield(pending)

    async def _load_or_create(self, name: TopicName, *, create: bool) -> Topic:
        text = str(name)
        broker = self._broker
        if not name.is_persistent:
            topic = Topic(broker, name, ledger_id=0, last_entry_id=-1, first_entry_id=0)
        else:
            record = broker.catalog.topic(text)
            if record is None:
                if not (create and broker.limits.auto_create_topics):
                    raise TopicNotFound(text)
                record = await broker.create_topic(text)
            topic = self._load(name, record)
        self._topics[text] = topic
        return topic

    def _load(self, name: TopicName, record: TopicRecord) -> Topic:
        broker = self._broker
        text = str(name)
        cursors = {
            stored.name: _cursor(text, stored.name, broker.catalog.cursor(text, stored.name))
            for stored in broker.catalog.subscriptions(text)
        }
        marks = [cursor.mark_delete for cursor in cursors.values()]
        # What everybody has acknowledged may be gone from the log; the cursors remember that its ids were used.
        last = max([broker.log.last_entry(record.ledger_id), record.first_retained_entry - 1, *marks])
        topic = Topic(
            broker,
            name,
            ledger_id=record.ledger_id,
            last_entry_id=last,
            first_entry_id=record.first_retained_entry,
        )
        for subscription, cursor in cursors.items():
            topic.add_subscription(subscription, cursor=cursor, durable=True)
        topic.first_entry_id = topic.retained_from()
        broker.log.trim(topic.ledger_id, topic.first_entry_id)
        return topic


def _cursor(topic: str, subscription: str, stored: StoredCursor | None) -> Cursor:
    if stored is None:
        return Cursor()
    try:
        return Cursor.decode(stored.encoded)
    except DamagedCursorError as error:
        log.warning("%s: subscription %s goes on from its mark-delete position: %s", topic, subscription, error)
        return Cursor(stored.mark_delete)
