# SPDX-License-Identifier: Apache-2.0
"""The loaded topics of this broker: loads a topic on first use, and creates it if it does not exist.

Where: sessions ask for a topic by name. `topic_index` lists the existing topics, `loader` builds a topic from what is
stored, `topic_life` unloads and deletes topics inside `leaving`, `partitioned` knows the partitioned topics.

Invariants: a topic is loaded or created once, however many callers ask at the same time. No caller receives a topic
that is being unloaded or deleted: the caller waits until that is done, then starts again.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.topics.gate import Gate
from penstock.core.errors import NotAllowed, TopicNotFound
from penstock.core.names import is_system_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.topics.loader import TopicLoader
    from penstock.broker.topics.partitioned import PartitionedTopics
    from penstock.broker.topics.places import Places
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_index import TopicIndex
    from penstock.core.names import TopicName

TOO_MANY_TOPICS: Final = "Exceed maximum number of topics in namespace."


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
        places: Places,
        partitioned: PartitionedTopics,
        policies_of: Callable[[str], EffectivePolicies],
        limits: Callable[[], DirectoryLimits],
    ) -> None:
        """Args: policies_of: policies of a namespace's topics that have none of their own."""
        self._index = index
        self._loader = loader
        self._places = places
        self._partitioned = partitioned
        self._policies_of = policies_of
        self._limits = limits
        self._loads = Gate(lambda: limits().topic_loads_max)
        self._coming: dict[str, asyncio.Future[Topic]] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self.closing = places.closing
        self.names = index.names
        self.feed = index.feed

    def __len__(self) -> int:
        return len(self._index)

    @property
    def loading(self) -> int:
        return len(self._coming)

    # -- queries, answered by `TopicIndex`

    def loaded(self) -> list[Topic]:
        return self._index.loaded()

    def get(self, name: TopicName | str) -> Topic | None:
        return self._index.get(name)

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or is a loaded non-persistent topic."""
        return self._index.exists(name)

    def count(self, namespace: str) -> int:
        """Number of persistent topics in the namespace, each partition counted."""
        return self._index.count(namespace)

    # -- coming -------------------------------------------------------------------------------------------------------

    async def get_or_create(self, name: TopicName, *, create: bool) -> Topic:
        """The topic of this name. It is created if `create` and the namespace's policies allow it.

        Raises:
            TenantNotFound, NamespaceNotFound: its tenant or namespace does not exist.
            TopicNotFound: it does not exist and may not be created.
            NotAllowed: it is a partitioned topic, a partition out of range, or the namespace has too many topics.
            MetadataFailed: it could not be stored.
        """
        topic = await self._got(name, {}, partial(self._check_may_come, name, create=create))
        topic.used = True
        return topic

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        """Load or create a topic without asking the policies; the caller has checked them.

        Raises NamespaceNotFound or TopicNotFound while its namespace or partitioned topic is being deleted.
        """
        return await self._got(name, properties, partial(self._check_place, name))

    async def load(self, name: TopicName) -> Topic:
        """The topic, loaded if necessary. Raises TopicNotFound if it does not exist."""
        return await self._got(name, {}, partial(self._check_exists, name))

    async def _got(self, name: TopicName, properties: Mapping[str, str], check: Callable[[], None]) -> Topic:
        """The topic, once no other caller is unloading or deleting it. `check` raises if it may not be loaded now."""
        text = str(name)
        topic = self._index.get(text)
        while topic is None or topic.fenced:
            leaving = self._leaving.get(text)
            if leaving is not None:
                await asyncio.wait((leaving,))
                topic = self._index.get(text)
            else:
                check()
                topic = await self._come(name, properties)
        return topic

    async def arrived(self, start: str) -> None:
        """Wait for topics that are being loaded or created now and whose names start with `start`."""
        coming = [future for text, future in self._coming.items() if text.startswith(start)]
        if coming:
            await asyncio.wait(coming)

    async def _come(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        text = str(name)
        pending = self._coming.get(text)
        if pending is None:
            pending = asyncio.ensure_future(self._load(name, properties))
            self._coming[text] = pending
            pending.add_done_callback(lambda _done: self._coming.pop(text, None))
        # Shielded: if the first client disconnects, the other callers still need the topic.
        return await asyncio.shield(pending)

    async def _load(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        async with self._loads.turn():
            topic = await self._loader.load(name, properties)
            self._index.add(topic)
        return topic

    def _check_place(self, name: TopicName) -> None:
        self._places.check_namespace(name.namespace_name)
        if str(name.parent) in self._places.closing:
            raise TopicNotFound(str(name))
        if name.partition < 0:
            self._partitioned.check_usable(name, exists=False)

    def _check_exists(self, name: TopicName) -> None:
        if not self.exists(name):
            raise TopicNotFound(str(name))

    def _check_may_come(self, name: TopicName, *, create: bool) -> None:
        self._places.check_namespace(name.namespace_name)
        limits = self._limits()
        if not (limits.persistent_topics if name.is_persistent else limits.non_persistent_topics):
            raise NotAllowed(f"Broker is unable to load {name.domain} topic {name}: they are switched off")
        if self.exists(name):
            self._partitioned.check_usable(name, exists=True)
            return
        self._partitioned.check_usable(name, exists=False)
        effective = self._policies_of(f"{name.tenant}/{name.namespace}")
        # Missing partitions of an existing partitioned topic are created on first use, by any client.
        allowed = effective.auto_topic_creation.allowed or name.partition >= 0
        if not (allowed and (create or (name.partition >= 0 and not name.is_persistent))):
            raise TopicNotFound(str(name))
        self.check_room(name, 1)

    def check_room(self, name: TopicName, wanted: int) -> None:
        """Raises NotAllowed if `wanted` more topics would exceed the namespace's maximum."""
        namespace = f"{name.tenant}/{name.namespace}"
        bound = self._policies_of(namespace).max_topics_per_namespace
        if not bound or not name.is_persistent or is_system_topic(str(name)):
            return
        listed = self.names.of("persistent", namespace)
        if len(listed) + wanted > bound and sum(not is_system_topic(one) for one in listed) + wanted > bound:
            raise NotAllowed(TOO_MANY_TOPICS)

    # -- going --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def leaving(self, name: TopicName | str) -> AsyncIterator[Topic | None]:
        """Lock the topic while it is unloaded or deleted: `get_or_create` waits. Yields the topic if it is loaded."""
        text = str(name)
        while (busy := self._coming.get(text) or self._leaving.get(text)) is not None:
            await asyncio.wait((busy,))
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving[text] = gone
        try:
            yield self._index.get(text)
        finally:
            del self._leaving[text]
            gone.set_result(None)

    def unloaded(self, topic: Topic) -> None:
        """Remove a topic from memory; the next request loads it again."""
        self._loader.let_go(topic)
        self._index.remove(topic)

    def vanished(self, text: str) -> None:
        """Remove a deleted topic from the index."""
        self._index.vanished(text)

    def appeared(self, text: str) -> None:
        """Add a topic to the index, and notify watchers if it is new."""
        self._index.appeared(text)
