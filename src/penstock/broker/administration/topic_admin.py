# SPDX-License-Identifier: Apache-2.0
"""What the admin port does to topics and subscriptions.

Plain functions on the broker, on its loop. `name` is a `TopicName`; positions are `Position(ledger_id, entry_id)`,
where `EARLIEST` and `LATEST` of `core.position` are words; answers are plain values. They raise `core.errors` with
Pulsar's texts and statuses. Where Pulsar fans out over the partitions of a partitioned topic, so do they (marked *).

    list_partitioned(broker, namespace, *, persistent=True) -> list[str]
    await create_topic(broker, name, properties=None)
    await delete_topic(broker, name, *, force=False)
    await create_partitioned(broker, name, partitions, properties=None)
    await update_partitioned(broker, name, partitions)
    await get_partitioned(broker, name, *, check_auto_creation=False) -> {"partitions": N, "properties": {...}?}
    await create_missed_partitions(broker, name)
    await delete_partitioned(broker, name, *, force=False)
    get_properties(broker, name) -> dict[str, str]                                     * (of the parent)
    await update_properties(broker, name, properties)     merges                       *
    await remove_property(broker, name, key)                                           *

    await list_subscriptions(broker, name) -> list[str]                                *
    await create_subscription(broker, name, subscription, position=LATEST, batch_index=-1, properties=None)  *
    await delete_subscription(broker, name, subscription, *, force=False)                 *
    await skip_messages(broker, name, subscription, count)
    await skip_all(broker, name, subscription)                                         *
    await expire_older_than(broker, name, subscription, seconds)                       *
    await expire_all_older_than(broker, name, seconds)                                 *
    await expire_to_position(broker, name, subscription, position, *, excluded=False)
    await reset_to_time(broker, name, subscription, wall_ms)                           *
    await reset_to_position(broker, name, subscription, position, *, excluded=False, batch_index=-1)
    get_subscription_properties(broker, name, subscription) -> dict[str, str]          *
    await update_subscription_properties(broker, name, subscription, properties)       *
    await peek_message(broker, name, subscription, nth) -> RawMessage                  nth counts from 1
    await get_message(broker, name, position) -> RawMessage
    await examine_message(broker, name, initial_position, nth) -> RawMessage           "earliest" | "latest"
    await last_message_id(broker, name) -> Position, batch_index        (-1, -1) when empty
    await message_id_by_time(broker, name, wall_ms) -> Position
    await message_id_by_index(broker, name, index) -> Position
    await cancel_delayed(broker, name, position)

    await terminate(broker, name) -> Position
    await terminate_partitions(broker, name) -> dict[int, Position]
    await truncate(broker, name)                                                       *
    await trim(broker, name)                                                           *
    await unload(broker, name)                                                         *
    await backlog_size(broker, name, position) -> int bytes, estimated as the broker's statistics are
    await clear_namespace_backlog(broker, namespace, subscription=None, bundle=None)
    await unsubscribe_namespace(broker, namespace, subscription)

`RawMessage` holds ledger_id, entry_id, partition and `entry`: the bytes as they were stored (sealed: magic, checksum,
metadata, payload).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.administration import namespaces
from penstock.broker.administration.delayed_admin import cancel_delayed
from penstock.broker.administration.message_admin import (
    RawMessage,
    backlog_size,
    examine_message,
    get_message,
    last_message_id,
    message_id_by_index,
    message_id_by_time,
    peek_message,
)
from penstock.broker.administration.subscription_admin import (
    clear_backlogs,
    create_subscription,
    delete_subscription,
    existing,
    expire_all_older_than,
    expire_older_than,
    expire_to_position,
    get_subscription_properties,
    list_subscriptions,
    on_each,
    reset_to_position,
    reset_to_time,
    skip_all,
    skip_messages,
    topic_of,
    unsubscribe_namespace,
    update_subscription_properties,
)
from penstock.broker.topics import partitioned, partitions
from penstock.core.errors import AlreadyExists, NotAllowed, TopicNotFound
from penstock.core.names import TopicName, is_system_topic
from penstock.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from penstock.broker.broker import Broker
    from penstock.broker.changes import Submit
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import NamespaceName

__all__ = [
    "RawMessage",
    "backlog_size",
    "cancel_delayed",
    "create_subscription",
    "delete_subscription",
    "examine_message",
    "expire_all_older_than",
    "expire_older_than",
    "expire_to_position",
    "get_message",
    "get_subscription_properties",
    "last_message_id",
    "list_subscriptions",
    "message_id_by_index",
    "message_id_by_time",
    "peek_message",
    "reset_to_position",
    "reset_to_time",
    "skip_all",
    "skip_messages",
    "unsubscribe_namespace",
    "update_subscription_properties",
]


# -- listing ----------------------------------------------------------------------------------------------------------


def list_partitioned(
    broker: Broker, namespace: NamespaceName, *, persistent: bool = True, system: bool = False
) -> list[str]:
    """Full names of the partitioned topics of a namespace. Raises TenantNotFound, NamespaceNotFound."""
    broker.places.check_namespace(namespace)
    names = broker.partitions.of_namespace(str(namespace), "persistent" if persistent else "non-persistent")
    return sorted(name for name in names if system or not is_system_topic(name))


# -- topics without partitions ----------------------------------------------------------------------------------------


async def create_topic(broker: Broker, name: TopicName, properties: Mapping[str, str] | None = None) -> None:
    """Create a topic. Raises AlreadyExists, NotAllowed."""
    broker.places.check_namespace(name.namespace_name)
    if broker.topics.exists(name) or broker.partitions.count(name):
        raise AlreadyExists("This topic already exists")
    broker.partitions.check_usable(name, exists=False)
    broker.topics.check_room(name, 1)
    await broker.topics.create(name, dict(properties or {}))


async def delete_topic(broker: Broker, name: TopicName, *, force: bool = False) -> None:
    """Delete a topic. Raises TopicNotFound, AlreadyExists; PreconditionFailed while in use, unless forced."""
    broker.places.check_namespace(name.namespace_name)
    if broker.partitions.count(name):
        raise AlreadyExists(
            f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
        )
    await broker.topic_life.delete(name, force=force)


def get_properties(broker: Broker, name: TopicName) -> dict[str, str]:
    """What its users attached to a topic, or to a partitioned topic. Raises TopicNotFound."""
    _check_stored(name, "Getting properties")
    broker.places.check_namespace(name.namespace_name)
    document = broker.catalog.documents(partitioned.KIND).get(str(name))
    if document is not None:
        return dict(document.get("properties") or {})
    record = broker.catalog.topic(str(name))
    if record is None:
        raise TopicNotFound(str(name))
    return dict(record.properties)


async def update_properties(broker: Broker, name: TopicName, properties: Mapping[str, str]) -> None:
    """Attach these to a topic, beside what is attached already. Raises TopicNotFound."""
    await _change_properties(broker, name, lambda there: {**there, **properties})


async def remove_property(broker: Broker, name: TopicName, key: str) -> None:
    """Take one off. Raises TopicNotFound."""
    await _change_properties(broker, name, lambda there: {one: value for one, value in there.items() if one != key})


async def _change_properties(broker: Broker, name: TopicName, how: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Replace properties by what `how` makes of them; nobody else changes them in between."""
    get_properties(broker, name)  # raises for a topic that has none
    if broker.partitions.count(name):
        await broker.partitions.change(name, lambda document: document.update(properties=how(document["properties"])))
        return

    def changed() -> Submit:
        return partial(broker.catalog.set_topic_properties, str(name), how(get_properties(broker, name)))

    await broker.changes.store_alone(changed)


# -- partitioned topics -----------------------------------------------------------------------------------------------


async def create_partitioned(
    broker: Broker, name: TopicName, count: int, properties: Mapping[str, str] | None = None
) -> None:
    """Create a partitioned topic with so many partitions. Raises as `partitions.create` does."""
    await broker.changes.finish(broker.partitions.create(name, count, properties))


async def update_partitioned(broker: Broker, name: TopicName, count: int) -> None:
    """Give it more partitions. Raises as `partitions.grow` does."""
    broker.places.check_namespace(name.namespace_name)
    await broker.changes.finish(broker.partitions.grow(name, count))


async def get_partitioned(broker: Broker, name: TopicName, *, check_auto_creation: bool = False) -> dict[str, Any]:
    """How many partitions it has (0: it is not partitioned), and its properties.

    With `check_auto_creation` a topic that is not there may be made, as when a client asks. Raises TopicNotFound.
    """
    if check_auto_creation:
        count = await broker.partitions.for_client(name, create=True)
    else:
        broker.places.check_namespace(name.namespace_name)
        count = broker.partitions.count(name)
        if not count and not broker.topics.exists(name):
            raise TopicNotFound(str(name))
    properties = (broker.catalog.documents(partitioned.KIND).get(str(name)) or {}).get("properties")
    return {"partitions": count, **({"properties": dict(properties)} if properties else {})}


async def create_missed_partitions(broker: Broker, name: TopicName) -> None:
    """Create the partitions that were not made yet. Raises NotFound when it is not partitioned."""
    broker.places.check_namespace(name.namespace_name)
    await broker.changes.finish(broker.partitions.create_missed(name))


async def delete_partitioned(broker: Broker, name: TopicName, *, force: bool = False) -> None:
    """Delete a partitioned topic with its partitions. Raises as `partitions.delete` does."""
    broker.places.check_namespace(name.namespace_name)
    await broker.changes.finish(broker.partitions.delete(name, force=force))


# -- the life of topics -----------------------------------------------------------------------------------------------


async def unload(broker: Broker, name: TopicName) -> None:
    """Take it out of memory; its clients come back. Raises TopicNotFound."""
    await partitions.in_turns(broker.topic_life.unload, existing(broker, name))


async def terminate(broker: Broker, name: TopicName) -> Position:
    """Take no more messages, for ever; returns the last message's position. Raises TopicNotFound, NotAllowed."""
    _check_stored(name, "Termination")
    topic = await topic_of(broker, name, "Termination")
    return Position(topic.ledger_id, await topic.broker.topic_life.terminate(topic))


async def terminate_partitions(broker: Broker, name: TopicName) -> dict[int, Position]:
    """As `terminate`, for all partitions; returns their last messages' positions by index."""
    _check_stored(name, "Termination")
    if not broker.partitions.count(name):
        raise NotAllowed(f"Termination of a non-partitioned topic is not allowed using partitioned-terminate: {name}")
    await broker.partitions.create_missed(name)
    ends: dict[int, Position] = {}

    async def end(topic: Topic) -> None:
        ends[topic.partition] = Position(topic.ledger_id, await topic.broker.topic_life.terminate(topic))

    await on_each(broker, name, end)
    return dict(sorted(ends.items()))


async def truncate(broker: Broker, name: TopicName) -> None:
    """Give up all messages: for every subscription, and on the disk. Raises TopicNotFound, NotAllowed."""
    _check_stored(name, "Truncation")
    await on_each(broker, name, lambda topic: broker.changes.finish(topic.broker.topic_life.truncate(topic)))


async def trim(broker: Broker, name: TopicName) -> None:
    """Give up what nobody needs any more and retention does not keep. Raises TopicNotFound, NotAllowed."""
    _check_stored(name, "Trimming")
    await on_each(broker, name, broker.retention.trim)


async def clear_namespace_backlog(
    broker: Broker, namespace: NamespaceName, subscription: str | None = None, bundle: str | None = None
) -> None:
    """Acknowledge everything in a namespace, or a bundle of it, for one subscription or all."""
    names = namespaces.in_bundle(broker, namespace, bundle)
    await clear_backlogs(broker, map(TopicName.parse, names), subscription)


def _check_stored(name: TopicName, doing: str) -> None:
    if not name.is_persistent:
        raise NotAllowed(f"{doing} of a non-persistent topic is not allowed")
