# SPDX-License-Identifier: Apache-2.0
"""What the admin port does to subscriptions: made, deleted, moved forward and back. See `topic_admin` for the list.

What is done to a partitioned topic is done to those of its partitions that exist; of its subscriptions, to those that a
partition has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.topics import partitions
from penstock.core.errors import (
    AlreadyExists,
    NotAllowed,
    NothingToDo,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.core.names import COMPACTION_SUBSCRIPTION, TopicName
from penstock.core.position import EARLIEST, LATEST
from penstock.storage.ack_sets import WORD_BITS, WORDS_MAX
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from penstock.broker.broker import Broker
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import NamespaceName
    from penstock.core.position import Position

# Messages of one batch that can be told apart: 128 KiB of bits.
BATCH_MESSAGES_MAX: Final = WORDS_MAX * WORD_BITS


# -- finding ----------------------------------------------------------------------------------------------------------


async def topic_of(broker: Broker, name: TopicName, doing: str = "This operation") -> Topic:
    """The topic, loaded. Raises TopicNotFound; NotAllowed for what can be asked of a partition only."""
    broker.places.check_namespace(name.namespace_name)
    if broker.partitions.count(name):
        raise NotAllowed(f"{doing} on a partitioned topic is not allowed: name one of its partitions")
    if not broker.topics.exists(name):
        raise TopicNotFound(str(name))
    return await broker.topics.load(name)


def existing(broker: Broker, name: TopicName) -> list[TopicName]:
    """The topic, or those of its partitions that were made. Raises TopicNotFound when there is no such name."""
    broker.places.check_namespace(name.namespace_name)
    if broker.partitions.count(name):
        return [partition for partition in broker.partitions.names(name) if broker.topics.exists(partition)]
    if not broker.topics.exists(name):
        raise TopicNotFound(str(name))
    return [name]


async def on_each(broker: Broker, name: TopicName, work: Callable[[Topic], Awaitable[object]]) -> None:
    """Do something to the topic, or to each partition that exists."""

    async def load_and_do(one: TopicName) -> None:
        await work(await broker.topics.load(one))

    await partitions.in_turns(load_and_do, existing(broker, name))


async def on_each_subscription(
    broker: Broker, name: TopicName, subscription: str, work: Callable[[Subscription], Awaitable[object]]
) -> None:
    """Do something to a subscription, of each partition that has it. Raises SubscriptionNotFound when none has."""
    found = [one for one in existing(broker, name) if subscription in names_of(broker, one)]
    if not found:
        raise SubscriptionNotFound(str(name), subscription)

    async def load_and_do(one: TopicName) -> None:
        topic = await broker.topics.load(one)
        await work(_subscription(topic, subscription))

    await partitions.in_turns(load_and_do, found)


async def one(broker: Broker, name: TopicName, subscription: str, doing: str) -> Subscription:
    """A subscription of one topic."""
    return _subscription(await topic_of(broker, name, doing), subscription)


def _subscription(topic: Topic, name: str) -> Subscription:
    found = topic.subscriptions.get(name)
    if found is None:
        raise SubscriptionNotFound(topic.text, name)
    return found


def names_of(broker: Broker, name: TopicName) -> list[str]:
    """Subscriptions of one topic, loaded or not, those of readers among them."""
    topic = broker.topics.get(name)
    if topic is not None:
        return list(topic.subscriptions)
    return [record.name for record in broker.catalog.subscriptions(str(name))]


def entry_at(topic: Topic, position: Position, *, exclusive: bool = False) -> int:
    """The entry that a position means as the next one; the words for both ends, too."""
    if position == EARLIEST or position.ledger_id < topic.ledger_id:
        return topic.first_entry_id
    if position == LATEST or position.ledger_id > topic.ledger_id:
        return topic.last_entry_id + 1
    return max(topic.first_entry_id, min(position.entry_id + int(exclusive), topic.last_entry_id + 1))


def _check_stored(name: TopicName, doing: str) -> None:
    if not name.is_persistent:
        raise NotAllowed(f"{doing} on a non-persistent topic is not allowed")


def _check_movable(subscription: str) -> None:
    """Raises NotAllowed for where compaction has come to: what is passed and not compacted goes, and with it values."""
    if subscription == COMPACTION_SUBSCRIPTION:
        raise NotAllowed(f"subscription {subscription} is moved by compaction only")


# -- made and deleted -------------------------------------------------------------------------------------------------


async def list_subscriptions(broker: Broker, name: TopicName) -> list[str]:
    """Names of the subscriptions, of any partition."""
    return sorted({name for one in existing(broker, name) for name in names_of(broker, one)})


async def create_subscription(
    broker: Broker,
    name: TopicName,
    subscription: str,
    position: Position = LATEST,
    batch_index: int = -1,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Make a durable subscription whose next message is at this position. Raises AlreadyExists.

    A topic that does not exist is created, where policies let it be.
    """
    _check_stored(name, "Creating a subscription")
    if not broker.partitions.count(name):
        await broker.topics.get_or_create(name, create=True)
    else:
        await broker.partitions.create_missed(name)
    topics = existing(broker, name)
    if all(subscription in names_of(broker, one) for one in topics):
        raise AlreadyExists("Subscription already exists for topic")

    async def make(topic: Topic) -> None:
        if subscription in topic.subscriptions:
            return
        start = entry_at(topic, position)
        members = await _members_from(topic, start, batch_index) if batch_index > 0 else []
        made = await topic.open_subscription(subscription, durable=True, start=start)
        if members:
            made.reset(start, members)
            await broker.cursors.save(made)
        if properties:
            await _put_properties(made, properties)

    await on_each(broker, name, make)


async def delete_subscription(broker: Broker, name: TopicName, subscription: str, *, force: bool = False) -> None:
    """Delete a subscription; its consumers are disconnected when forced, else they are in the way.

    Raises:
        SubscriptionNotFound: there is none.
        PreconditionFailed: consumers are connected, and it is not forced.
    """

    async def delete(found: Subscription) -> None:
        if found.consumers and not force:
            raise PreconditionFailed("Subscription has active connected consumers")
        if found.fenced:
            raise ServiceNotReady(f"subscription {subscription!r} of {found.topic.text} is being reset; try again")
        if subscription == COMPACTION_SUBSCRIPTION:
            # As in Pulsar, the compacted topic goes with it. What is published from now on may be given up before it
            # is compacted, so the compacted topic would go back to older values.
            await broker.compaction.give_up(found.topic)
        for consumer in list(found.consumers):
            consumer.session.disconnect_consumer(consumer)
        if found.topic.subscriptions.get(subscription) is found:  # One that is not durable went with its consumers.
            await broker.subscription_store.delete(found)

    await on_each_subscription(broker, name, subscription, delete)


def get_subscription_properties(broker: Broker, name: TopicName, subscription: str) -> dict[str, str]:
    """What its users attached to a subscription. Raises SubscriptionNotFound."""
    for one in existing(broker, name):
        for record in broker.catalog.subscriptions(str(one)):
            if record.name == subscription:
                return dict(record.properties)
    raise SubscriptionNotFound(str(name), subscription)


async def update_subscription_properties(
    broker: Broker, name: TopicName, subscription: str, properties: Mapping[str, str]
) -> None:
    """Replace what its users attached to a subscription."""
    await on_each_subscription(broker, name, subscription, lambda found: _put_properties(found, properties))


async def _put_properties(subscription: Subscription, properties: Mapping[str, str]) -> None:
    broker, topic = subscription.topic.broker, subscription.topic.text
    broker.subscription_store.check_properties(subscription.name, properties)
    await broker.changes.stored(
        lambda done: broker.catalog.set_subscription_properties(topic, subscription.name, dict(properties), done)
    )


# -- forward ----------------------------------------------------------------------------------------------------------


async def skip_messages(broker: Broker, name: TopicName, subscription: str, count: int) -> None:
    """Acknowledge the next `count` entries."""
    _check_stored(name, "Skipping messages")
    _check_movable(subscription)
    found = await one(broker, name, subscription, "Skip messages")
    found.skip(count)
    await broker.cursors.save(found)


async def skip_all(broker: Broker, name: TopicName, subscription: str) -> None:
    """Acknowledge everything."""
    _check_stored(name, "Clearing a backlog")
    _check_movable(subscription)
    await on_each_subscription(broker, name, subscription, _skip_all)


async def _skip_all(subscription: Subscription) -> None:
    subscription.skip_all()
    await subscription.topic.broker.cursors.save(subscription)


async def expire_older_than(broker: Broker, name: TopicName, subscription: str, seconds: int) -> None:
    """Acknowledge what was published longer ago than this.

    Raises:
        NothingToDo: the subscription has no backlog, on any partition; Pulsar answers the same.
    """
    _check_stored(name, "Expire messages")
    _check_movable(subscription)
    behind = []

    async def expire(found: Subscription) -> None:
        if found.backlog:
            behind.append(found)
            await _expire(found, seconds)

    await on_each_subscription(broker, name, subscription, expire)
    if not behind:
        raise NothingToDo(
            f"Expire message by timestamp not issued on topic {name} for subscription {subscription}: it has no backlog"
        )


async def expire_all_older_than(broker: Broker, name: TopicName, seconds: int) -> None:
    """Acknowledge what was published longer ago than this, for every subscription."""
    _check_stored(name, "Expire messages")

    async def expire(topic: Topic) -> None:
        for subscription in list(topic.subscriptions.values()):
            if subscription.name != COMPACTION_SUBSCRIPTION:
                await _expire(subscription, seconds)

    await on_each(broker, name, expire)


async def _expire(subscription: Subscription, seconds: int) -> None:
    broker = subscription.topic.broker
    await broker.retention.expire(subscription, seconds)
    await broker.cursors.save(subscription)


async def expire_to_position(
    broker: Broker, name: TopicName, subscription: str, position: Position, *, excluded: bool = False
) -> None:
    """Acknowledge everything up to this position, or with `excluded` before it."""
    _check_stored(name, "Expire messages")
    _check_movable(subscription)
    found = await one(broker, name, subscription, "Expire messages at a position")
    topic = found.topic
    if position != LATEST and position > (topic.ledger_id, topic.last_entry_id):
        raise PreconditionFailed(f"Invalid message position {position}: {topic.text} ends at {topic.last_entry_id}")
    found.expire_through(entry_at(topic, position, exclusive=not excluded) - 1)
    await broker.cursors.save(found)


# -- anywhere ---------------------------------------------------------------------------------------------------------


async def reset_to_time(broker: Broker, name: TopicName, subscription: str, wall_ms: int) -> None:
    """Go on from the first message published at this time or later; consumers are disconnected, and come back."""
    _check_stored(name, "Reset-cursor")
    _check_movable(subscription)

    async def reset(found: Subscription) -> None:
        await found.move_to(await broker.reads.first_published_since(found.topic, wall_ms))

    await on_each_subscription(broker, name, subscription, reset)


async def reset_to_position(
    broker: Broker,
    name: TopicName,
    subscription: str,
    position: Position,
    *,
    excluded: bool = False,
    batch_index: int = -1,
) -> None:
    """Go on from this message, or with `excluded` from the one after it."""
    _check_stored(name, "Reset-cursor at a position")
    _check_movable(subscription)
    if broker.partitions.count(name) and position not in {EARLIEST, LATEST}:
        raise NotAllowed("Reset-cursor at position is not allowed for partitioned-topic")

    async def reset(found: Subscription) -> None:
        topic = found.topic
        if batch_index < 0 or position in {EARLIEST, LATEST}:
            await found.move_to(entry_at(topic, position, exclusive=excluded))
            return
        start = entry_at(topic, position)
        members = await _members_from(topic, start, batch_index + int(excluded))
        await found.move_to(*((start, members) if members else (start + 1,)))

    await on_each_subscription(broker, name, subscription, reset)


async def _members_from(topic: Topic, entry_id: int, index: int) -> list[int]:
    """Which messages of a batch come from `index` on, as an ack set; none when the entry ends before.

    Raises:
        PreconditionFailed: the entry says that it holds more messages than can be told apart. Its producer wrote that
            number, and it may be any.
    """
    entry = await topic.broker.reads.read_entry(topic.ledger_id, entry_id)
    try:
        size = (metadata.batch_size(entry) or 1) if entry is not None else 1
    except ProtocolError:
        size = 1
    if index >= size:
        return []
    if size > BATCH_MESSAGES_MAX:
        raise PreconditionFailed(
            f"Invalid batch index {index}: entry {topic.ledger_id}:{entry_id} says that it holds {size:,} messages; "
            f"up to {BATCH_MESSAGES_MAX:,} can be told apart: name the entry without a batch index"
        )
    words = [-1] * (size // WORD_BITS) + [(1 << size % WORD_BITS) - 1] * (size % WORD_BITS > 0)
    first = index // WORD_BITS
    words[:first] = [0] * first
    words[first] &= -1 << index % WORD_BITS
    return words


# -- all of a namespace -----------------------------------------------------------------------------------------------


async def clear_backlogs(broker: Broker, topics: Iterable[TopicName], subscription: str | None) -> None:
    """Acknowledge everything on these topics, for one subscription or all."""
    if subscription is not None:
        _check_movable(subscription)

    async def clear(name: TopicName) -> None:
        if not name.is_persistent or not names_of(broker, name):
            return
        topic = await broker.topics.load(name)
        for found in list(topic.subscriptions.values()):
            if found.name == subscription or (subscription is None and found.name != COMPACTION_SUBSCRIPTION):
                await _skip_all(found)

    await partitions.in_turns(clear, topics)


async def unsubscribe_namespace(broker: Broker, namespace: NamespaceName, subscription: str) -> None:
    """Delete a subscription from all topics of a namespace. Raises PreconditionFailed where consumers are connected."""
    broker.places.check_namespace(namespace)
    listed = [
        name for domain in ("persistent", "non-persistent") for name in broker.topics.names.of(domain, str(namespace))
    ]

    async def unsubscribe(name: TopicName) -> None:
        if subscription in names_of(broker, name):
            await delete_subscription(broker, name, subscription)

    await partitions.in_turns(unsubscribe, map(TopicName.parse, listed))
