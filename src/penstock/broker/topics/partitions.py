# SPDX-License-Identifier: Apache-2.0
"""Creating, growing and deleting partitioned topics with their partitions.

Where: discovery asks for the number of partitions; the admin API creates, grows and deletes. One change at a time,
under the lock of `Changes`, because policies are in the same document.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.elsewhere import of_subscription, of_topic
from penstock.broker.topics.partitioned import KIND, PartitionedTopics
from penstock.core.errors import (
    AlreadyExists,
    ChangedMeanwhile,
    MetadataFailed,
    NotAcceptable,
    NotFound,
    PenstockError,
    ServiceNotReady,
    TopicNotFound,
    Unprocessable,
)
from penstock.core.names import TopicName, is_brokers_own, parent_text
from penstock.core.system_topics import is_record_topic, is_system_topic
from penstock.storage.catalog import ALWAYS
from penstock.storage.topic_counts import CREATING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from penstock.broker.changes import Changes, Submit
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic_life import Deletions, TopicLife
    from penstock.storage.catalog import Catalog, Unconditional


# Partitions created or deleted concurrently, so that their changes share syncs of the catalog.
AT_ONCE: Final = 100
# How often the partitions of a deleted topic are deleted, if other brokers create more of them meanwhile.
DELETIONS_MAX: Final = 10
# Maximum number of partitions if none is set: as many as are created in the minute that administrators wait. A
# mistyped number must not fill the memory with names.
PARTITIONS_MAX: Final = 10_000

# In the document while partitions are created, beside CREATING: the broker that does it.
CREATED_BY: Final = "created_by"

MORE_THAN_NONE: Final = "Number of partitions should be more than 0"


class Partitions(PartitionedTopics):
    """Partitioned topics and their changes. All methods are called on the event loop.

    Attributes:
        expected: full names of topics that this broker creates by itself: clients that are faster try again.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        resources: NamespaceResources,
        topics: TopicDirectory,
        life: TopicLife,
        placement: Placement,
        elsewhere: Elsewhere,
        deletions: Deletions,
        policies_of: Callable[[str], EffectivePolicies],
        partitions_max: Callable[[], int],
    ) -> None:
        """Args: policies_of: policies of a namespace's topics. partitions_max: limit per topic; 0: no limit."""
        super().__init__(catalog, resources)
        self._changes = changes
        self._topics = topics
        self._life = life
        self._placement = placement
        self._elsewhere = elsewhere
        self._deletions = deletions
        self._policies_of = policies_of
        self._partitions_max = partitions_max
        self.expected: set[str] = set()
        self._unfinished: set[str] = set()
        self._busy = Counter[str]()  # with how many requests create partitions of it now

    async def for_client(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions for a client; may create a partitioned topic if the name does not exist.

        Raises:
            TenantNotFound, NamespaceNotFound: its tenant or namespace does not exist.
            TopicNotFound: it does not exist and may not be created.
        """
        self._resources.check_namespace(name.namespace_name)
        if self._resources.is_deleting(str(name.parent)):
            raise TopicNotFound(str(name))
        partitions = self.count(name)
        if partitions or self._topics.exists(name):
            return partitions
        if name.partition >= 0:
            # A partition has no partitions itself. Whether it may be used is checked when it is used.
            if create or name.partition < self.count(name.parent):
                return 0
            raise TopicNotFound(str(name))
        if str(name) in self.expected:
            raise ServiceNotReady(f"{name} is being created: try again")
        if is_record_topic(str(name)):
            raise TopicNotFound(str(name))  # Brokers create it, if they write records.
        policies = self._policies_of(f"{name.tenant}/{name.namespace}")
        if not (create and policies.auto_topic_creation.allowed):
            raise TopicNotFound(str(name))
        if not policies.auto_topic_creation.partitions or is_system_topic(str(name)):
            return 0
        return await self._changes.finish(self._create_on_the_way(name, policies.auto_topic_creation.partitions))

    async def _create_on_the_way(self, name: TopicName, partitions: int) -> int:
        async with self._topics.locked(name), self._changes.lock:
            self._resources.check_namespace(name.namespace_name)
            existing = self.count(name)
            if existing or self._topics.exists(name):
                return existing
            wanted = min(partitions, self._bound)
            document = {"partitions": wanted, "properties": {}}
            with suppress(ChangedMeanwhile):  # Another broker was faster.
                await self._changes.stored(self._put(name, document, None, self._topics.topics_max(name)))
        return self.count(name)

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None) -> None:
        """Create a partitioned topic and its partitions.

        Raises:
            NotAcceptable: the number of partitions is out of range.
            AlreadyExists: there is a topic of this name, or of the name of a partition.
            ServiceNotReady: it is being deleted, perhaps by a broker that has to return first.
            NotAllowed: the namespace would have too many topics.
        """
        self._resources.check_namespace(name.namespace_name)
        self._check_number(partitions)
        if name.partition >= 0:
            raise NotAcceptable(f"Partitioned Topic Name should not contain '-partition-': {name}")
        await self._changes.finish(self._create_document(name, partitions, dict(properties or {})))
        async with self._creating(name, partitions):
            await self.create_missed(name)

    async def _create_document(self, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
        # While this name is held no topic of this name is created; one that was being created is found below. The
        # order matters: deleting a topic holds its name and may then wait for the lock.
        async with self._topics.locked(name), self._changes.lock:
            await self._changes.store_decided(partial(self._decide_creation, name, partitions, properties))

    def _decide_creation(self, name: TopicName, partitions: int, properties: dict[str, str]) -> Submit:
        self._resources.check_namespace(name.namespace_name)
        if self._resources.is_deleting(str(name)):
            raise ServiceNotReady(f"{name} is being deleted: try again")
        if self.count(name) or self._topics.exists(name):
            raise AlreadyExists("This topic already exists")
        topics_max = self._topics.topics_max(name)
        note = self._note(0, partitions) if topics_max else {}
        return self._put(name, {"partitions": partitions, "properties": properties, **note}, None, topics_max)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Add partitions. Each gets the subscriptions of the first partition, starting at the earliest message.

        It is noted first, so that partitions that were created are never left without the others.

        Raises:
            ServiceNotReady: a broker does not answer; the partitions are added when it does.
            NotFound: it is not partitioned.
            NotAcceptable, Unprocessable: the number is smaller than now, or too large.
            NotAllowed: the namespace would have too many topics.
        """
        if partitions <= 0:
            raise NotAcceptable(MORE_THAN_NONE)
        await self._changes.store_alone(partial(self._decide_places, name, partitions))
        async with self._creating(name, partitions):
            await self._grow(name, partitions)

    async def _grow(self, name: TopicName, partitions: int) -> None:
        # Subscriptions are created first: a client that discovers a partition finds its subscription with all
        # messages. Not under the lock: creating a topic may wait for the deletion of another, which may wait for the
        # lock.
        subscriptions = await self._subscriptions(name)
        new = [name.of_partition(index) for index in range(self.count(name), partitions)]
        try:
            await in_turns(lambda partition: self._make(partition, subscriptions), new)
        except TopicNotFound as error:  # All of it is being deleted.
            raise NotFound(f"Partitioned Topic {name} not found") from error

        def grown() -> Submit:
            before = self.document(name)
            # Another request may have added more.
            after = {**before, "partitions": max(before["partitions"], partitions)}
            _without_note(after, partitions)
            return self._put(name, after, before, self._topics.topics_max(name))

        await self._changes.store_alone(grown)

    def _decide_places(self, name: TopicName, partitions: int) -> Submit:
        before = self._growing(name, partitions)
        first, stop = before.get(CREATING, (before["partitions"], partitions))
        # Another request may add partitions at the same time.
        creating = [min(first, before["partitions"]), max(stop, partitions)]
        return self._put(name, {**before, **self._note(*creating)}, before, self._topics.topics_max(name))

    def _note(self, first: int, stop: int) -> dict[str, Any]:
        """Return the document's note that partitions are being created, so that they are created whatever happens."""
        return {CREATING: [first, stop], CREATED_BY: self._placement.own}

    @asynccontextmanager
    async def _creating(self, name: TopicName, partitions: int) -> AsyncIterator[None]:
        """Create partitions that are noted. The note stays if a broker does not answer: then they are created later."""
        text, keep = str(name), False
        self._busy[text] += 1
        try:
            yield
        except ServiceNotReady as error:
            keep = True
            raise ServiceNotReady(f"the rest of {name} is created when all brokers answer: {error}") from error
        finally:
            self._busy -= Counter((text,))
            if not keep:
                # The error of a topic that was deleted, or of a file that failed, is that of the block, too.
                with suppress(PenstockError):
                    await self._forget_note(name, partitions)
            # Also if another request has left a note, of more partitions.
            is_left = keep or CREATING in self._catalog.documents(KIND).get(text, {})
            (self._unfinished.add if is_left else self._unfinished.discard)(text)

    async def _forget_note(self, name: TopicName, partitions: int) -> None:
        if _is_noted(self.document(name), partitions):
            await self.change(name, lambda document: _without_note(document, partitions))

    def find_unfinished(self) -> None:
        """Look for notes of partitions that this broker has to create: its own, and those of brokers left out."""
        noted = ((name, one) for name, one in self._catalog.documents(KIND).items() if CREATING in one)
        self._unfinished.update(name for name, one in noted if self._deletions.are_finished_here(one.get(CREATED_BY)))

    def unfinished(self) -> list[str]:
        """Partitioned topics that `finish_creation` is to be called for, as far as they were found."""
        return [name for name in self._unfinished if name not in self._busy]

    async def finish_creation(self, name: TopicName) -> None:
        """Create the partitions that `create` or `grow` has noted. Raises what those do, and NotFound."""
        self._unfinished.discard(str(name))
        stop = self.document(name).get(CREATING, (0, 0))[1]
        async with self._creating(name, stop):
            await self.create_missed(name)
            if stop > self.count(name):
                await self._grow(name, stop)

    def _growing(self, name: TopicName, partitions: int) -> Mapping[str, Any]:
        """Its document, after checking the new number of partitions."""
        document = self.document(name)
        bound = self._bound
        if partitions > bound:
            raise Unprocessable(
                f"Desired partitions {partitions} can't be greater than the maximum partitions per topic {bound}."
            )
        if partitions < int(document["partitions"]):
            raise Unprocessable(
                f"Desired partitions {partitions} can't be less than the current partitions {document['partitions']}."
            )
        return document

    async def create_missed(self, name: TopicName) -> None:
        """Create the missing partitions. Raises NotFound if it is not partitioned."""
        self.document(name)
        if not name.is_persistent:
            return  # Non-persistent topics are not stored.
        missing = [partition for partition in self.names(name) if not self._topics.exists(partition)]
        await in_turns(lambda partition: self._make(partition, ()), missing)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete it with all its partitions, even if the caller is cancelled.

        Raises:
            NotFound: it is not partitioned.
            PreconditionFailed: clients are connected to a partition, and `force` is not set.
            ServiceNotReady: a broker does not answer; its partitions are deleted when it does.
        """
        self.document(name)
        partitions = self.names(name)
        if not force:
            for partition in partitions:
                await self._life.check_unused_anywhere(partition)
        await self._changes.finish(self.finish_deletion(name, force=force))

    async def finish_deletion(self, name: TopicName, *, force: bool) -> None:
        """As `delete`, also of one that a broker has begun to delete."""
        if not self.count(name):
            raise NotFound(f"Partitioned Topic {name} not found")
        text, deleting = str(name), self._resources.deleting
        deleting.add(text)
        try:
            if any(self._placement.broker_of(one) not in {None, self._placement.own} for one in self.names(name)):
                await self._deletions.begin(text)
            await self._topics.wait_until_loaded(_start_of_partitions(name))
            # Partitions are deleted first: after a crash in between, the rest can be deleted by the same name. This
            # includes partitions left over from a failed growth, so that a new topic of this name does not get them.
            for _ in range(DELETIONS_MAX - 1):
                with suppress(ChangedMeanwhile):  # Another broker has created a partition.
                    return await self._delete_all(name, force=force)
            await self._delete_all(name, force=force)
        except ServiceNotReady as error:
            if not self._deletions.is_noted(text):
                raise
            raise ServiceNotReady(f"the rest of {text} is deleted when all brokers answer: {error}") from error
        except BaseException:
            with suppress(MetadataFailed):
                await self._deletions.end(text)
            raise
        finally:
            deleting.discard(text)

    async def _delete_all(self, name: TopicName, *, force: bool) -> None:
        there = map(TopicName.parse, self._existing(name))
        await in_turns(lambda partition: self._life.delete_if_there(partition, force=force), there)
        await self._delete_document(name)

    def _existing(self, name: TopicName) -> list[str]:
        """The existing partitions, whatever number its document says."""
        start, parent = _start_of_partitions(name), str(name)
        listed = self._topics.names.of(name.domain, str(name.namespace_name))
        found = takewhile(lambda text: text.startswith(start), islice(listed, bisect_left(listed, start), None))
        return [text for text in found if parent_text(text) == parent]

    async def _delete_document(self, name: TopicName) -> None:
        """Raises ChangedMeanwhile if there is a partition."""
        await self._changes.finish(self._forget_document(name))

    async def _forget_document(self, name: TopicName) -> None:
        async with self._changes.lock:
            await self._changes.stored(self._put(name, None, ALWAYS))
        await self._life.forget_partitioned(name)

    async def forget_if_empty(self, name: TopicName) -> None:
        """Delete a partitioned topic if none of its partitions exists."""
        deleting = self._resources.deleting
        if str(name) in deleting or not self.count(name):
            return
        deleting.add(str(name))
        try:
            await self._topics.wait_until_loaded(_start_of_partitions(name))
            if not any(map(self._topics.exists, self.names(name))):
                with suppress(ChangedMeanwhile):  # Another broker has created one.
                    await self._delete_document(name)
        finally:
            deleting.discard(str(name))

    async def change(self, name: TopicName, how: Callable[[dict[str, Any]], object]) -> None:
        """Replace its document by `how(document)`. Raises NotFound if it is not partitioned."""

        def changed() -> Submit:
            document = self.document(name)
            whole = {**document, "properties": dict(document.get("properties") or {})}
            how(whole)
            return self._put(name, whole, document)

        await self._changes.store_alone(changed)

    def _check_number(self, partitions: int) -> None:
        if partitions <= 0:
            raise NotAcceptable(MORE_THAN_NONE)
        if partitions > self._bound:
            raise NotAcceptable(f"Number of partitions should be less than or equal to {self._bound}")

    @property
    def _bound(self) -> int:
        return self._partitions_max() or PARTITIONS_MAX

    async def _subscriptions(self, name: TopicName) -> list[str]:
        first = name.of_partition(0)
        broker = self._placement.broker_of(first)
        if broker in {None, self._placement.own}:
            names = [record.name for record in self._catalog.subscriptions(str(first))]
        else:
            names = await self._elsewhere.ask(broker, "GET", of_topic(first, "/subscriptions"))
        return [name for name in names if not is_brokers_own(name)]

    async def _make(self, partition: TopicName, subscriptions: Iterable[str]) -> None:
        if not partition.is_persistent:
            return
        topic = await self._topics.create_placed(partition, {})
        for subscription in subscriptions:
            if topic is None:
                await self._subscribe_elsewhere(partition, subscription)
                continue
            await topic.open_subscription(subscription, durable=True, start=topic.first_entry_id)

    async def _subscribe_elsewhere(self, partition: TopicName, subscription: str) -> None:
        broker = self._placement.broker_of(partition)
        assert broker is not None, "it was created"
        path = of_topic(partition, f"/subscription/{of_subscription(subscription)}")
        with suppress(AlreadyExists):
            await self._elsewhere.ask(broker, "PUT", path, {"ledgerId": -1, "entryId": -1})

    def _put(
        self,
        name: TopicName,
        document: Mapping[str, Any] | None,
        expected: Mapping[str, Any] | Unconditional | None,
        topics_max: int = 0,
    ) -> Submit:
        put = self._catalog.put_document
        return partial(put, KIND, str(name), document, expected=expected, topics_max=topics_max)


def _without_note(document: dict[str, Any], partitions: int) -> None:
    """Remove the note, unless another request creates more partitions. Places that are not used are given back."""
    if _is_noted(document, partitions):
        document.pop(CREATED_BY, None)
        del document[CREATING]


def _is_noted(document: Mapping[str, Any], partitions: int) -> bool:
    return CREATING in document and document[CREATING][1] == partitions


def _start_of_partitions(name: TopicName) -> str:
    return str(name.of_partition(0))[:-1]


async def in_turns(work: Callable[[TopicName], Any], todo: Iterable[TopicName]) -> None:
    """Do `work` for many topics, in concurrent groups. After a failure no further group is started.

    Names are parsed when they are needed: parsing ten thousand at once would block the loop.
    """
    left = iter(todo)
    while group := list(islice(left, AT_ONCE)):
        done = await asyncio.gather(*map(work, group), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
