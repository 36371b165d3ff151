# SPDX-License-Identifier: Apache-2.0
"""The loaded topics of this broker: loads a topic on first use, and creates it if it does not exist.

Where: sessions ask for a topic by name. `TopicIndex` lists the existing topics, `TopicLoader` builds a topic from what
is stored, `topic_life` unloads and deletes topics inside `locked`, `partitioned` knows the partitioned topics.

Invariants: a topic is loaded or created once, however many callers ask at the same time. No caller receives a topic
that is being unloaded or deleted: the caller waits until that is done, then starts again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
from penstock.broker.topics.listing import NameIndex
from penstock.broker.topics.listing_blocks import TopicFeed
from penstock.broker.topics.non_persistent import NON_PERSISTENT
from penstock.core.errors import NotAllowed, ServedElsewhere, TopicNotFound
from penstock.core.system_topics import PROXY_REPORTS_TOPIC, REPORTS_TOPIC, is_record_topic, is_system_topic
from penstock.storage.cursor import Cursor, DamagedCursorError, may_have_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.publishing.deduplication import Deduplication
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.topics.delayed import DelayedIndexes
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.non_persistent import NonPersistentTopics
    from penstock.broker.topics.partitioned import PartitionedTopics
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.restoring import Restoring
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog, StoredCursor, TopicRecord
    from penstock.storage.entry_log import EntryLog


# ---------------------------------------------------------------------------------------------------------------------
# The index of all topics, and of those that are loaded.
#
# Invariants: the names are those of stored topics and of loaded non-persistent topics; the feed reports each change, in
# order. Where: the directory adds and removes topics; other parts look up existing topics here.


class TopicIndex:
    """Topics by name."""

    def __init__(self, catalog: Catalog, non_persistent: NonPersistentTopics | None = None) -> None:
        """Args: non_persistent: those of all brokers; None if this one is alone."""
        self._catalog = catalog
        self._non_persistent = non_persistent
        self._loaded: dict[str, Topic] = {}
        elsewhere = non_persistent.names() if non_persistent is not None else []
        self.names = NameIndex([*(record.name for record in catalog.topics()), *elsewhere])
        self.feed = TopicFeed()

    def __len__(self) -> int:
        return len(self._loaded)

    def loaded(self) -> list[Topic]:
        return list(self._loaded.values())

    def get(self, name: TopicName | str) -> Topic | None:
        return self._loaded.get(str(name))

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or is a non-persistent topic that is loaded, by any broker."""
        text = str(name)
        return (
            text in self._loaded
            or self._catalog.topic(text) is not None
            or (not name.is_persistent and text in self._catalog.documents(NON_PERSISTENT))
        )

    def count(self, namespace: str) -> int:
        """Number of persistent topics in the namespace, each partition counted."""
        return len(self.names.of("persistent", namespace))

    def add(self, topic: Topic) -> None:
        self._loaded[topic.text] = topic
        self.add_name(topic.text)

    def remove(self, topic: Topic) -> None:
        """Remove an unloaded topic; a newer object of the same name stays."""
        if self._loaded.get(topic.text) is topic:
            del self._loaded[topic.text]
        if not topic.persistent:
            self.remove_name(topic.text)
            if self._non_persistent is not None:
                self._non_persistent.gone(topic.text)

    def add_name(self, text: str) -> bool:
        """Add a name, and notify listeners of the feed if it is new; returns whether it is."""
        new = self.names.add(text)
        if new:
            self.feed.report(text, created=True)
        return new

    def remove_name(self, text: str) -> None:
        """Remove a name, and notify listeners of the feed if it was known."""
        if self.names.discard(text):
            self.feed.report(text, created=False)


# -- loads topics with their subscriptions from storage, creates new ones, and releases their memory -------------------

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
        prepare: called before a client uses a loaded topic, for replication; None: nobody is.
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
        self.prepare: Callable[[Topic], Awaitable[None]] | None = None
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
            if self.prepare is not None:
                await self.prepare(topic)
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
            if subscription.replicator is not None:
                subscription.replicator.end()
            subscription.release()
        self._indexes.close(topic)
        self._deduplication.unloaded(topic)
        self._rates.forget_topic(topic)
        topic.let_go_soon()


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


# Brokers and proxies share quotas on these, also where clients may not create topics.
_CREATED_ON_USE: Final = frozenset((REPORTS_TOPIC, PROXY_REPORTS_TOPIC))


class DirectoryLimits(Protocol):
    """Limits of the broker, read whenever a topic is requested. They may change at run time."""

    @property
    def persistent_topics(self) -> bool: ...

    @property
    def non_persistent_topics(self) -> bool: ...

    @property
    def topic_loads_max(self) -> int:
        """Maximum number of concurrent topic loads; further loads wait."""


class TopicDirectory:
    """Topics by name. All methods are called on the event loop."""

    def __init__(
        self,
        index: TopicIndex,
        loader: TopicLoader,
        *,
        resources: NamespaceResources,
        partitioned: PartitionedTopics,
        placement: Placement,
        policies_of: Callable[[str], EffectivePolicies],
        limits: Callable[[], DirectoryLimits],
    ) -> None:
        """Args: policies_of: policies of a namespace's topics that have none of their own."""
        self._index = index
        self._loader = loader
        self._resources = resources
        self._partitioned = partitioned
        self._placement = placement
        self._policies_of = policies_of
        self._limits = limits
        self._loads = ConcurrencyLimit(lambda: limits().topic_loads_max)
        self._pending_loads: dict[str, asyncio.Future[Topic]] = {}
        self._locks: dict[str, asyncio.Future[None]] = {}
        self.deleting = resources.deleting
        self.names = index.names
        self.feed = index.feed

    def __len__(self) -> int:
        return len(self._index)

    @property
    def loading(self) -> int:
        return len(self._pending_loads)

    # -- queries, answered by `TopicIndex`

    def loaded(self) -> list[Topic]:
        return self._index.loaded()

    def get(self, name: TopicName | str) -> Topic | None:
        return self._index.get(name)

    def exists(self, name: TopicName) -> bool:
        return self._index.exists(name)

    def count(self, namespace: str) -> int:
        return self._index.count(namespace)

    # -- loading ------------------------------------------------------------------------------------------------------

    async def get_or_create(self, name: TopicName, *, create: bool) -> Topic:
        """The topic of this name. It is created if `create` and the namespace's policies allow it.

        Raises:
            TenantNotFound, NamespaceNotFound: its tenant or namespace does not exist.
            ServedElsewhere: another broker serves it.
            TopicNotFound: it does not exist and may not be created.
            NotAllowed: it is a partitioned topic, a partition out of range, or the namespace has too many topics.
            MetadataFailed: it could not be stored.
        """
        topic = await self._get_or_load(name, {}, partial(self._check_may_load, name, create=create))
        topic.used = True
        return topic

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        """Load or create a topic here, whether clients may create topics or not.

        Raises NamespaceNotFound or TopicNotFound while its namespace or partitioned topic is being deleted,
        ServedElsewhere, and NotAllowed if the namespace has too many topics.
        """
        return await self._get_or_load(name, properties, partial(self._check_namespace, name))

    async def create_placed(self, name: TopicName, properties: Mapping[str, str]) -> Topic | None:
        """As `create`, but on the broker where the topic is placed; returns it if that is this broker.

        Another broker loads the topic on first use.
        """
        broker = self._placement.broker_of(name)
        if broker is None:
            broker = self._placement.place(name)
            if broker != self._placement.own:
                self._check_namespace(name)
                await self._loader.create_elsewhere(str(name), properties, broker, self.topics_max(name))
        return await self.create(name, properties) if broker == self._placement.own else None

    async def load(self, name: TopicName) -> Topic:
        """The topic, loaded if necessary. Raises TopicNotFound if it does not exist, ServedElsewhere."""
        return await self._get_or_load(name, {}, partial(self._check_exists, name))

    async def _get_or_load(self, name: TopicName, properties: Mapping[str, str], check: Callable[[], None]) -> Topic:
        """The topic, once no other caller is unloading or deleting it. `check` raises if it may not be loaded now."""
        text = str(name)
        topic = self._index.get(text)
        while topic is None or topic.fenced:
            lock = self._locks.get(text)
            if lock is not None:
                await asyncio.wait((lock,))
                topic = self._index.get(text)
            else:
                check()
                topic = await self._load_once(name, properties)
        return topic

    async def wait_until_loaded(self, start: str) -> None:
        """Wait for topics that are being loaded or created now and whose names start with `start`."""
        pending = [future for text, future in self._pending_loads.items() if text.startswith(start)]
        if pending:
            await asyncio.wait(pending)

    async def _load_once(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        text = str(name)
        pending = self._pending_loads.get(text)
        if pending is None:
            pending = asyncio.ensure_future(self._load(name, properties))
            self._pending_loads[text] = pending
            pending.add_done_callback(lambda _done: self._pending_loads.pop(text, None))
        # Shielded: if the first client disconnects, the other callers still need the topic.
        return await asyncio.shield(pending)

    async def _load(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        async with self._loads.turn():
            topic = await self._loader.load(name, properties, self.topics_max(name))
            self._index.add(topic)
        return topic

    def _check_namespace(self, name: TopicName) -> None:
        self._resources.check_namespace(name.namespace_name)
        if self._resources.is_deleting(str(name.parent)):
            raise TopicNotFound(str(name))
        if name.partition < 0:
            self._partitioned.check_usable(name, exists=False)

    def _check_exists(self, name: TopicName) -> None:
        self._placement.check_ours(name)
        if not self.exists(name):
            raise TopicNotFound(str(name))

    def _check_may_load(self, name: TopicName, *, create: bool) -> None:
        self._resources.check_namespace(name.namespace_name)
        limits = self._limits()
        if not (limits.persistent_topics if name.is_persistent else limits.non_persistent_topics):
            raise NotAllowed(f"Broker is unable to load {name.domain} topic {name}: they are switched off")
        self._placement.check_ours(name)
        if self.exists(name):
            self._partitioned.check_usable(name, exists=True)
            return
        self._partitioned.check_usable(name, exists=False)
        if name.partition < 0 and is_record_topic(str(name)):
            raise TopicNotFound(str(name))  # Brokers create it, with a partition for each of them.
        effective = self._policies_of(f"{name.tenant}/{name.namespace}")
        # Missing partitions of an existing partitioned topic are created on first use, by any client.
        allowed = effective.auto_topic_creation.allowed or name.partition >= 0 or str(name) in _CREATED_ON_USE
        if not (allowed and (create or (name.partition >= 0 and not name.is_persistent))):
            raise TopicNotFound(str(name))

    def topics_max(self, name: TopicName) -> int:
        """Maximum number of topics that the namespace of this topic may have with it; 0 if there is none.

        It is compared where the topic is stored (`storage.topic_counts`): only there are all topics known.
        """
        if not name.is_persistent or is_system_topic(str(name)):
            return 0
        return self._policies_of(f"{name.tenant}/{name.namespace}").max_topics_per_namespace

    # -- unloading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def locked(self, name: TopicName | str) -> AsyncIterator[Topic | None]:
        """Lock the topic while it is unloaded or deleted: `get_or_create` waits. Yields the topic if it is loaded."""
        text = str(name)
        while (busy := self._pending_loads.get(text) or self._locks.get(text)) is not None:
            await asyncio.wait((busy,))
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._locks[text] = gone
        try:
            yield self._index.get(text)
        finally:
            del self._locks[text]
            gone.set_result(None)

    def remove(self, topic: Topic) -> None:
        """Remove a topic from memory; the next request loads it again."""
        self._loader.release(topic)
        self._index.remove(topic)

    def remove_name(self, text: str) -> None:
        self._index.remove_name(text)

    def add_name(self, text: str) -> None:
        self._index.add_name(text)
