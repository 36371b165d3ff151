# SPDX-License-Identifier: Apache-2.0
"""The topics of this broker: loaded on first use, created when somebody asks for one that does not exist.

Where: sessions ask for a topic by name. `topic_index` knows which there are, `loader` makes one of what is stored,
`topic_life` closes, unloads and deletes topics through `leaving`; `partitioned` knows what is partitioned.

What must hold: a name is loaded or created once, however many ask at a time, and nobody gets a topic that is on its way
out: whoever asks for one that is being unloaded or deleted waits for the end of that, and then starts over.
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
    """Limits of the broker that are asked when a topic is. They change while the broker runs."""

    @property
    def persistent_topics(self) -> bool:
        """Whether there are persistent topics."""
        ...

    @property
    def non_persistent_topics(self) -> bool:
        """Whether there are others."""
        ...

    @property
    def topic_loads_max(self) -> int:
        """How many are loaded at a time; others wait."""
        ...


class TopicDirectory:
    """Topics by name. Everything is called on the loop."""

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
        """Args: policies_of: what holds for topics of a namespace that say nothing of their own."""
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
        """Topics being loaded or created."""
        return len(self._coming)

    # -- what there is, as `TopicIndex` says

    def loaded(self) -> list[Topic]:
        """Topics somebody has used since the start."""
        return self._index.loaded()

    def get(self, name: TopicName | str) -> Topic | None:
        """The topic if it is loaded."""
        return self._index.get(name)

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is stored, or, not being persistent, somebody uses it."""
        return self._index.exists(name)

    def count(self, namespace: str) -> int:
        """How many persistent topics the namespace has, partitions one by one."""
        return self._index.count(namespace)

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
        """Return when topics whose names start like this, and that are being loaded or created now, are there."""
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
        # Shielded: when the client that came first goes away, the others still want the topic.
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
        # Partitions of what exists are made when they are first used, whoever uses them.
        allowed = effective.auto_topic_creation.allowed or name.partition >= 0
        if not (allowed and (create or (name.partition >= 0 and not name.is_persistent))):
            raise TopicNotFound(str(name))
        self.check_room(name, 1)

    def check_room(self, name: TopicName, wanted: int) -> None:
        """Raises NotAllowed when the namespace may not have so many more topics."""
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
        """While inside, nobody gets this topic, and nobody else lets it go; gives the topic if it is loaded."""
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
        """Nobody uses it any more: the next who asks loads it anew."""
        self._loader.let_go(topic)
        self._index.remove(topic)

    def vanished(self, text: str) -> None:
        """A topic does not exist any more."""
        self._index.vanished(text)

    def appeared(self, text: str) -> None:
        """A topic exists: list it, and tell whoever watches, unless it was known."""
        self._index.appeared(text)
