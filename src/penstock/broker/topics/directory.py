# SPDX-License-Identifier: Apache-2.0
"""The topics of this broker: loaded on first use, created when somebody asks for one that does not exist, and listed.

Where: sessions ask for a topic by name; the catalog knows what exists, the log knows how far each ledger goes.
`topic_life` closes, unloads and deletes topics through `leaving`; `partitioned` knows what is partitioned.

What must hold
- A name is loaded or created once, however many ask at a time, and nobody gets a topic that is on its way out: whoever
  asks for one that is being unloaded or deleted waits for the end of that, and then starts over.
- The index lists what is stored, and what is not persistent and loaded; the feed tells each change of it, in order.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.topics.feed import TopicFeed
from penstock.broker.topics.gate import Gate
from penstock.broker.topics.listing import NameIndex
from penstock.broker.topics.topic import Topic
from penstock.core.errors import NotAllowed, TopicNotFound
from penstock.core.names import is_system_topic
from penstock.storage.cursor import Cursor, DamagedCursorError, may_have_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.broker.broker import Broker
    from penstock.core.names import TopicName
    from penstock.storage.catalog import StoredCursor, TopicRecord

log = logging.getLogger(__name__)

TOO_MANY_TOPICS = "Exceed maximum number of topics in namespace."


class TopicDirectory:
    """Topics by name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, Topic] = {}
        self._coming: dict[str, asyncio.Future[Topic]] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self.closing = broker.places.closing
        self._loads = Gate(lambda: broker.limits.topic_loads_max)
        self.names = NameIndex(record.name for record in broker.catalog.topics())
        self.feed = TopicFeed()

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def loading(self) -> int:
        """Topics being loaded or created."""
        return len(self._coming)

    def loaded(self) -> list[Topic]:
        """Topics somebody has used since the start."""
        return list(self._topics.values())

    def get(self, name: TopicName | str) -> Topic | None:
        """The topic if it is loaded."""
        return self._topics.get(str(name))

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or, not being persistent, somebody uses it."""
        text = str(name)
        return text in self._topics or self._broker.catalog.topic(text) is not None

    def count(self, namespace: str) -> int:
        """How many persistent topics the namespace has, partitions one by one."""
        return len(self.names.of("persistent", namespace))

    # -- coming -------------------------------------------------------------------------------------------------------

    async def get_or_create(self, name: TopicName, *, create: bool) -> Topic:
        """The topic of this name, created if it does not exist, `create` says so, and its namespace's policies too.

        Raises:
            TenantNotFound, NamespaceNotFound: where it should be is nowhere.
            TopicNotFound: it does not exist and may not be created.
            NotAllowed: it is partitioned, or a partition that its partitioned topic does not have, or one too many.
            MetadataFailed: it could not be stored.
        """
        topic = await self._got(name, {}, partial(self._check_may_come, name, create=create))
        topic.used = True
        return topic

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        """Load or create a topic, whatever the policies say: who calls this has asked what must be asked.

        Raises NamespaceNotFound or TopicNotFound while that in which it would be is being deleted.
        """
        return await self._got(name, properties, partial(self._check_place, name))

    async def load(self, name: TopicName) -> Topic:
        """The topic, loaded if it is not. Raises TopicNotFound when it does not exist, or not any more."""
        return await self._got(name, {}, partial(self._check_exists, name))

    async def _got(self, name: TopicName, properties: Mapping[str, str], check: Callable[[], None]) -> Topic:
        """A topic that nobody is about to take away; `check` says, right before it comes, whether it may."""
        text = str(name)
        topic = self._topics.get(text)
        while topic is None or topic.fenced:
            leaving = self._leaving.get(text)
            if leaving is not None:
                await asyncio.wait((leaving,))
                topic = self._topics.get(text)
            else:
                check()
                topic = await self._come(name, properties)
        return topic

    async def arrived(self, start: str) -> None:
        """Return when topics whose names start like this, and that are being loaded or created now, are there."""
        coming = [future for text, future in self._coming.items() if text.startswith(start)]
        if coming:
            await asyncio.wait(coming)

    async def _come(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        text = str(name)
        pending = self._coming.get(text)
        if pending is None:
            pending = asyncio.ensure_future(self._load_or_create(name, properties))
            self._coming[text] = pending
            pending.add_done_callback(lambda _done: self._coming.pop(text, None))
        # Shielded: when the client that came first goes away, the others still want the topic.
        return await asyncio.shield(pending)

    def _check_place(self, name: TopicName) -> None:
        self._broker.places.check_namespace(name.namespace_name)
        if str(name.parent) in self.closing:
            raise TopicNotFound(str(name))
        if name.partition < 0:
            self._broker.partitioned.check_usable(name, exists=False)

    def _check_exists(self, name: TopicName) -> None:
        if not self.exists(name):
            raise TopicNotFound(str(name))

    def _check_may_come(self, name: TopicName, *, create: bool) -> None:
        broker = self._broker
        broker.places.check_namespace(name.namespace_name)
        if not (broker.limits.persistent_topics if name.is_persistent else broker.limits.non_persistent_topics):
            raise NotAllowed(f"Broker is unable to load {name.domain} topic {name}: they are switched off")
        if self.exists(name):
            broker.partitioned.check_usable(name, exists=True)
            return
        broker.partitioned.check_usable(name, exists=False)
        effective = broker.policies.of_namespace(f"{name.tenant}/{name.namespace}")
        # Partitions of what exists are made when they are first used, whoever uses them.
        allowed = effective.allow_auto_topic_creation or name.partition >= 0
        if not (allowed and (create or (name.partition >= 0 and not name.is_persistent))):
            raise TopicNotFound(str(name))
        self.check_room(name, 1)

    def check_room(self, name: TopicName, wanted: int) -> None:
        """Raises NotAllowed when the namespace may not have so many more topics."""
        namespace = f"{name.tenant}/{name.namespace}"
        bound = self._broker.policies.of_namespace(namespace).max_topics_per_namespace
        if not bound or not name.is_persistent or is_system_topic(str(name)):
            return
        listed = self.names.of("persistent", namespace)
        if len(listed) + wanted > bound and sum(not is_system_topic(one) for one in listed) + wanted > bound:
            raise NotAllowed(TOO_MANY_TOPICS)

    async def _load_or_create(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        text = str(name)
        broker = self._broker
        async with self._loads.turn():
            if not name.is_persistent:
                topic = Topic(broker, name, ledger_id=0, last_entry_id=-1, first_entry_id=0)
                topic.created_ms = broker.clock.wall_ms()
            else:
                record = broker.catalog.topic(text)
                if record is None:
                    record = await self._create(text, properties)
                topic = self._load(name, record, await self._cursors(text))
                await broker.delays.load(topic)
            self._topics[text] = topic
            self.appeared(text)
        return topic

    async def _create(self, text: str, properties: Mapping[str, str]) -> TopicRecord:
        """Store a new topic; raises MetadataFailed."""
        catalog, now_ms = self._broker.catalog, self._broker.clock.wall_ms()
        await self._broker.changes.stored(
            lambda done: catalog.create_topic(text, properties=properties, created_wall_ms=now_ms, done=done)
        )
        record = catalog.topic(text)
        assert record is not None
        log.info("topic %s created, ledger %d", text, record.ledger_id)
        return record

    def appeared(self, text: str) -> None:
        """A topic exists: list it, and tell whoever watches, unless it was known."""
        if self.names.add(text):
            self.feed.tell(text, created=True)

    async def _cursors(self, text: str) -> dict[str, Cursor]:
        """The cursors of a topic's subscriptions, as they are stored. Raises MetadataFailed."""
        catalog = self._broker.catalog
        stored = {one.name: catalog.cursor(text, one.name) for one in catalog.subscriptions(text)}
        loaded: dict[str, Cursor] = {}
        if any(one is not None and may_have_parts(one.encoded) for one in stored.values()):
            await self._broker.changes.stored(lambda done: catalog.load_cursors(text, loaded.update, done))
        return {name: _checked(text, name, one, loaded.get(name)) for name, one in stored.items()}

    def _load(self, name: TopicName, record: TopicRecord, cursors: dict[str, Cursor]) -> Topic:
        broker = self._broker
        text = str(name)
        acknowledged = [cursor.last_acknowledged for cursor in cursors.values()]
        # What everybody has acknowledged may be gone from the log; the cursors remember that its ids were used.
        last = max([broker.log.last_entry(record.ledger_id), record.first_retained_entry - 1, *acknowledged])
        topic = Topic(
            broker,
            name,
            ledger_id=record.ledger_id,
            last_entry_id=last,
            first_entry_id=record.first_retained_entry,
        )
        topic.created_ms = record.created_wall_ms
        topic.terminated = bool(broker.states.of(text).get("terminated"))
        for subscription, cursor in cursors.items():
            topic.add_subscription(subscription, cursor=cursor, durable=True)
        topic.first_entry_id = topic.retained_from()
        broker.log.trim(topic.ledger_id, topic.first_entry_id)
        return topic

    # -- going --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def leaving(self, name: TopicName | str) -> AsyncIterator[Topic | None]:
        """While inside, nobody gets this topic, and nobody else lets it go; gives the topic if it is loaded."""
        text = str(name)
        while (busy := self._coming.get(text) or self._leaving.get(text)) is not None:
            await asyncio.wait((busy,))
        gone: asyncio.Future[None] = self._broker.loop.create_future()
        self._leaving[text] = gone
        try:
            yield self._topics.get(text)
        finally:
            del self._leaving[text]
            gone.set_result(None)

    def unloaded(self, topic: Topic) -> None:
        """Nobody uses it any more: the next who asks loads it anew."""
        topic.closed = True
        for subscription in topic.subscriptions.values():
            subscription.release()
        self._broker.delays.close(topic)
        self._broker.deduplication.unloaded(topic)
        self._broker.rates.forget_topic(topic)
        if self._topics.get(topic.text) is topic:
            del self._topics[topic.text]
        if not topic.persistent:
            self.vanished(topic.text)

    def vanished(self, text: str) -> None:
        """A topic does not exist any more."""
        if self.names.discard(text):
            self.feed.tell(text, created=False)


def _checked(topic: str, subscription: str, stored: StoredCursor | None, loaded: Cursor | None) -> Cursor:
    """The cursor of a subscription; what is damaged of it is named, and delivered again."""
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
