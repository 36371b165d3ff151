# SPDX-License-Identifier: Apache-2.0
"""The loaded topics of this broker: loads a topic on first use, and creates it if it does not exist.

Where: sessions ask for a topic by name. `topic_index` lists the existing topics, `loader` builds a topic from what is
stored, `topic_life` unloads and deletes topics inside `locked`, `partitioned` knows the partitioned topics.

Invariants: a topic is loaded or created once, however many callers ask at the same time. No caller receives a topic
that is being unloaded or deleted: the caller waits until that is done, then starts again.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
from penstock.core.errors import NotAllowed, TopicNotFound
from penstock.core.system_topics import PROXY_REPORTS_TOPIC, REPORTS_TOPIC, is_record_topic, is_system_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.topics.loader import TopicLoader
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.partitioned import PartitionedTopics
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_index import TopicIndex
    from penstock.core.names import TopicName

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
