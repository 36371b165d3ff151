# SPDX-License-Identifier: Apache-2.0
"""Partitioned topics: how many partitions a name has, and what may be done with the name and its partitions.

A partitioned topic is a document of the catalog under its full name: `{"partitions": N, "properties": {}, "policies":
{}}`. Its partitions are topics like any other, called `NAME-partition-I`; the name itself is none, and nobody can
produce to it. A partition is made when the partitioned topic is, or when somebody first uses it.

Where: the directory asks before it creates a topic, discovery when a client wants to know how many there are; the admin
port creates, grows and deletes. One change at a time, under the lock of the policies, which change the same document.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.topics import places, topic_life
from penstock.broker.topics.topic_states import COMPACTION_SUBSCRIPTION
from penstock.core.errors import AlreadyExists, NotAcceptable, NotAllowed, NotFound, TopicNotFound, Unprocessable
from penstock.core.names import TopicName, parent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.broker.broker import Broker
    from penstock.broker.changes import Submit

KIND: Final = "partitioned"
# Partitions that are created or deleted at the same time: their changes share syncs of the catalog.
AT_ONCE: Final = 100
# The most partitions of a topic where no bound is set: what is made within the minute that administrators wait, and
# far beyond what anybody means. A slip of the keyboard must not fill the memory with names.
PARTITIONS_MAX: Final = 10_000

MORE_THAN_NONE: Final = "Number of partitions should be more than 0"


def count(broker: Broker, name: TopicName) -> int:
    """How many partitions this name has; 0 when it is not partitioned."""
    document = broker.catalog.documents(KIND).get(str(name))
    return int(document["partitions"]) if document is not None else 0


def names(broker: Broker, name: TopicName) -> list[TopicName]:
    """Its partitions, by index, whether or not they were made yet; none when it is not partitioned."""
    return [name.of_partition(index) for index in range(count(broker, name))]


def check_usable(broker: Broker, name: TopicName, *, exists: bool) -> None:
    """Raises NotAllowed when this name cannot be a topic, for what is partitioned; TopicNotFound while that goes."""
    if str(name.parent) in broker.topics.closing:
        raise TopicNotFound(str(name))
    if name.partition < 0:
        if count(broker, name):
            raise NotAllowed(f"Found partitioned metadata for non-partitioned topic: {name}")
        return
    partitions = count(broker, name.parent)
    if exists and not partitions:
        return  # Made by an earlier version, or left when its partitioned topic went.
    if not partitions:
        raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
    if name.partition >= partitions:
        raise NotAllowed(f"Illegal topic partition name {name} with max allowed {partitions} partitions")


async def for_client(broker: Broker, name: TopicName, *, create: bool) -> int:
    """How many partitions a client is told; the answer may make a partitioned topic of a name that is nothing yet.

    Raises:
        TenantNotFound, NamespaceNotFound: there is nothing where it should be.
        TopicNotFound: it does not exist and may not be created.
    """
    places.check_namespace(broker, name.namespace_name)
    if str(name.parent) in broker.topics.closing:
        raise TopicNotFound(str(name))
    partitions = count(broker, name)
    if partitions or broker.topics.exists(name):
        return partitions
    if name.partition >= 0:
        # A partition has none itself; whether it may be used is found out when it is.
        if create or name.partition < count(broker, name.parent):
            return 0
        raise TopicNotFound(str(name))
    policies = broker.policies.of_namespace(f"{name.tenant}/{name.namespace}")
    if not (create and policies.allow_auto_topic_creation):
        raise TopicNotFound(str(name))
    if not policies.auto_topic_partitions:
        return 0
    return await broker.changes.finish(_create_on_the_way(broker, name, policies.auto_topic_partitions))


async def _create_on_the_way(broker: Broker, name: TopicName, partitions: int) -> int:
    async with broker.topics.leaving(name), broker.changes.lock:
        places.check_namespace(broker, name.namespace_name)
        existing = count(broker, name)
        if existing or broker.topics.exists(name):
            return existing
        wanted = min(partitions, _bound(broker))
        broker.topics.check_room(name, wanted)
        await broker.changes.stored(_put(broker, name, {"partitions": wanted, "properties": {}}))
    return wanted


async def create(broker: Broker, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None) -> None:
    """Create a partitioned topic and its partitions.

    Raises:
        NotAcceptable: it cannot have so many.
        AlreadyExists: there is a topic of this name, or of one of its partitions.
        NotAllowed: the namespace may not have so many more topics.
    """
    places.check_namespace(broker, name.namespace_name)
    _check_number(broker, partitions)
    if name.partition >= 0:
        raise NotAcceptable(f"Partitioned Topic Name should not contain '-partition-': {name}")
    await broker.changes.finish(_create_document(broker, name, partitions, dict(properties or {})))
    await create_missed(broker, name)


async def _create_document(broker: Broker, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
    # Meanwhile nobody makes a topic of this name; one that is being made is there before we look. In this order: who
    # deletes a topic holds its name, and may then wait for the lock.
    async with broker.topics.leaving(name), broker.changes.lock:
        places.check_namespace(broker, name.namespace_name)
        if count(broker, name) or broker.topics.exists(name) or str(name) in broker.topics.closing:
            raise AlreadyExists("This topic already exists")
        broker.topics.check_room(name, partitions)
        await broker.changes.stored(_put(broker, name, {"partitions": partitions, "properties": properties}))


async def grow(broker: Broker, name: TopicName, partitions: int) -> None:
    """Give it more partitions; each gets the subscriptions that the first one has, from its beginning.

    Raises:
        NotFound: it is not partitioned.
        NotAcceptable, Unprocessable: it would have fewer than now, or too many.
    """
    if partitions <= 0:
        raise NotAcceptable(MORE_THAN_NONE)
    existing = int(_growing(broker, name, partitions)["partitions"])
    broker.topics.check_room(name, partitions - existing)
    # Subscriptions first: a client that learns of a partition finds its subscription there, with all that came. Not
    # under the lock: a topic that is being made may wait for the end of one that is deleted, and that for the lock.
    subscriptions = _subscriptions(broker, name)
    new = [name.of_partition(index) for index in range(existing, partitions)]
    await in_turns(lambda partition: _make(broker, partition, subscriptions), new)
    await broker.changes.store_alone(
        lambda: _put(broker, name, {**_growing(broker, name, partitions), "partitions": partitions})
    )


def _growing(broker: Broker, name: TopicName, partitions: int) -> Mapping[str, Any]:
    """Its document, if it can have so many partitions."""
    document = _document(broker, name)
    bound = _bound(broker)
    if partitions > bound:
        raise Unprocessable(
            f"Desired partitions {partitions} can't be greater than the maximum partitions per topic {bound}."
        )
    if partitions < int(document["partitions"]):
        raise Unprocessable(
            f"Desired partitions {partitions} can't be less than the current partitions {document['partitions']}."
        )
    return document


async def create_missed(broker: Broker, name: TopicName) -> None:
    """Create those partitions that were not made yet. Raises NotFound when it is not partitioned."""
    _document(broker, name)
    if not name.is_persistent:
        return  # There is nothing to store of them.
    missing = [partition for partition in names(broker, name) if not broker.topics.exists(partition)]
    await in_turns(lambda partition: _make(broker, partition, ()), missing)


async def delete(broker: Broker, name: TopicName, *, force: bool) -> None:
    """Delete it with all its partitions.

    Raises:
        NotFound: it is not partitioned.
        PreconditionFailed: clients are connected to a partition, and it is not forced.
    """
    _document(broker, name)
    partitions = names(broker, name)
    if not force:
        for partition in partitions:
            topic_life.check_unused(broker, partition)
    closing = broker.topics.closing
    closing.add(str(name))
    try:
        await broker.topics.arrived(_start_of_partitions(name))
        # Partitions first: after a crash on the way, the rest can be deleted by the same name. Also those that were
        # made for a growth that came to nothing: another topic of this name must not find them.
        there = map(TopicName.parse, _existing(broker, name))
        await in_turns(lambda partition: topic_life.delete_if_there(broker, partition, force=force), there)
        await _delete_document(broker, name)
    finally:
        closing.discard(str(name))


def _start_of_partitions(name: TopicName) -> str:
    return str(name.of_partition(0))[:-1]


def _existing(broker: Broker, name: TopicName) -> list[str]:
    """The partitions that there are, whatever its document says."""
    start, parent = _start_of_partitions(name), str(name)
    listed = broker.topics.names.of(name.domain, str(name.namespace_name))
    found = takewhile(lambda text: text.startswith(start), islice(listed, bisect_left(listed, start), None))
    return [text for text in found if parent_text(text) == parent]


async def _delete_document(broker: Broker, name: TopicName) -> None:
    await broker.changes.store_alone(lambda: _put(broker, name, None))
    await topic_life.forget_documents(broker, str(name))


async def forget_if_empty(broker: Broker, name: TopicName) -> None:
    """Delete a partitioned topic none of whose partitions is there; nothing if it is not partitioned, or has one."""
    closing = broker.topics.closing
    if str(name) in closing or not count(broker, name):
        return
    closing.add(str(name))
    try:
        await broker.topics.arrived(_start_of_partitions(name))
        if not any(map(broker.topics.exists, names(broker, name))):
            await _delete_document(broker, name)
    finally:
        closing.discard(str(name))


async def change(broker: Broker, name: TopicName, how: Callable[[dict[str, Any]], object]) -> None:
    """Change its document in place. Raises NotFound when it is not partitioned."""

    def changed() -> Submit:
        document = _document(broker, name)
        whole = {**document, "properties": dict(document.get("properties") or {})}
        how(whole)
        return _put(broker, name, whole)

    await broker.changes.store_alone(changed)


def of_namespace(broker: Broker, namespace: str, domain: str) -> Iterator[str]:
    """Full names of the partitioned topics in a namespace."""
    start = f"{domain}://{namespace}/"
    return (name for name in broker.catalog.documents(KIND) if name.startswith(start))


def _document(broker: Broker, name: TopicName) -> Mapping[str, Any]:
    document = broker.catalog.documents(KIND).get(str(name))
    if document is None or str(name) in broker.topics.closing:
        raise NotFound(f"Partitioned Topic {name} not found")
    return document


async def in_turns(work: Callable[[TopicName], Any], todo: Iterable[TopicName]) -> None:
    """Do the same to many topics, some at a time; the first failure ends it when its group is through.

    Names are taken when it is their turn: ten thousand parsed at once would hold the loop.
    """
    left = iter(todo)
    while group := list(islice(left, AT_ONCE)):
        done = await asyncio.gather(*map(work, group), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome


def _check_number(broker: Broker, partitions: int) -> None:
    if partitions <= 0:
        raise NotAcceptable(MORE_THAN_NONE)
    bound = _bound(broker)
    if partitions > bound:
        raise NotAcceptable(f"Number of partitions should be less than or equal to {bound}")


def _bound(broker: Broker) -> int:
    return broker.limits.partitions_max or PARTITIONS_MAX


def _subscriptions(broker: Broker, name: TopicName) -> list[str]:
    first = name.of_partition(0)
    records = broker.catalog.subscriptions(str(first))
    return [record.name for record in records if record.name != COMPACTION_SUBSCRIPTION]


async def _make(broker: Broker, partition: TopicName, subscriptions: Iterable[str]) -> None:
    if not partition.is_persistent:
        return
    topic = await broker.topics.create(partition, {})
    for subscription in subscriptions:
        await topic.open_subscription(subscription, durable=True, start=topic.first_entry_id)


def _put(broker: Broker, name: TopicName, document: Mapping[str, Any] | None) -> Submit:
    return partial(broker.catalog.put_document, KIND, str(name), document)
