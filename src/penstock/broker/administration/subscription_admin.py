# SPDX-License-Identifier: Apache-2.0
"""Admin operations on subscriptions: create, delete, skip, expire, reset.

An operation on a subscription of a partitioned topic is applied to the partitions that have it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from penstock.broker.elsewhere import of_namespace, of_subscription, of_topic
from penstock.broker.subscriptions.replicating import REPLICATED, with_replicated, without_replicated
from penstock.broker.topics.partitions import in_turns
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import (
    AlreadyExists,
    NotAllowed,
    NotFound,
    NothingToDo,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from penstock.core.names import COMPACTION_SUBSCRIPTION, REPLICATOR_PREFIX, TopicName, is_brokers_own
from penstock.core.position import EARLIEST, LATEST
from penstock.storage.cursor import WORD_BITS, WORDS_MAX
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.administration.finder import Finder
    from penstock.broker.administration.namespaces import Namespaces
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.retention import Retention
    from penstock.broker.subscriptions.acknowledging import CursorSaves
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.subscription_store import SubscriptionStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import NamespaceName
    from penstock.core.position import Position
    from penstock.storage.catalog import Catalog

# Maximum number of messages in one batch for batch-index acknowledgement: 128 KiB of bits.
BATCH_MESSAGES_MAX: Final = WORDS_MAX * WORD_BITS


class SubscriptionAdmin:
    """Subscriptions of topics, partitioned or not."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        reads: LogReads,
        cursors: CursorSaves,
        store: SubscriptionStore,
        topics: TopicDirectory,
        partitions: Partitions,
        retention: Retention[Topic],
        compaction: Compactor,
        namespaces: Namespaces,
        finder: Finder,
        elsewhere: Elsewhere,
    ) -> None:
        self._catalog = catalog
        self._reads = reads
        self._cursors = cursors
        self._store = store
        self._topics = topics
        self._partitions = partitions
        self._retention = retention
        self._compaction = compaction
        self._namespaces = namespaces
        self._finder = finder
        self._elsewhere = elsewhere

    # -- create and delete --------------------------------------------------------------------------------------------

    async def names(self, name: TopicName) -> list[str]:
        """Names of the subscriptions of the topic or of any partition, without those of replicators."""
        names = {name for one in self._finder.existing(name) for name in self._finder.subscription_names(one)}
        names = {one for one in names if not one.startswith(REPLICATOR_PREFIX)}
        for partition, broker in self._finder.elsewhere(name).items():
            names.update(await self._elsewhere.ask(broker, "GET", of_topic(partition, "/subscriptions")))
        return sorted(names)

    async def create(
        self,
        name: TopicName,
        subscription: str,
        position: Position = LATEST,
        batch_index: int = -1,
        properties: Mapping[str, str] | None = None,
        *,
        replicated: bool = False,
    ) -> None:
        """Create a durable subscription that starts at a position. Raises AlreadyExists, NotAllowed.

        The topic is created if it does not exist and policies allow it. With `replicated`, other clusters are told the
        places of the subscription.
        """
        _check_stored(name, "Creating a subscription")
        if subscription == COMPACTION_SUBSCRIPTION:  # Its backlog is not limited, and it keeps all messages.
            raise NotAllowed(f"subscription {subscription} is made by compaction only")
        if replicated:
            _check_replicable(subscription)
        if not self._partitions.count(name):
            # One that exists may be a partition that another broker has just added, and not announced yet.
            if self._topics.exists(name):
                await self._topics.load(name)
            else:
                await self._topics.get_or_create(name, create=True)
        else:
            await self._partitions.create_missed(name)
        missing = [
            one for one in self._finder.existing(name) if subscription not in self._finder.subscription_names(one)
        ]
        if not (missing or self._finder.elsewhere(name)):
            raise AlreadyExists("Subscription already exists for topic")

        async def make(topic: Topic) -> None:
            if subscription in topic.subscriptions:
                return
            start = entry_at(topic, position)
            members = await self._members_from(topic, start, batch_index) if batch_index > 0 else []
            stored = with_replicated({}, replicated=replicated)
            made = await topic.open_subscription(subscription, durable=True, start=start, properties=stored)
            if members:
                made.moves.reset(start, members)
                await self._cursors.save(made)
            if properties:
                await self._put_properties(made, properties)

        await self._finder.on_some(name, missing, make)

    async def delete(self, name: TopicName, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; with `force`, disconnect its consumers.

        Raises:
            SubscriptionNotFound: it does not exist.
            PreconditionFailed: consumers are connected, and `force` is not set.
        """

        async def delete(found: Subscription) -> None:
            if found.consumers and not force:
                raise PreconditionFailed("Subscription has active connected consumers")
            if found.fenced:
                raise ServiceNotReady(f"subscription {subscription!r} of {found.topic.text} is being reset; try again")
            if subscription == COMPACTION_SUBSCRIPTION:
                # As in Pulsar, the compacted ledger is deleted too. Entries published from now on may be trimmed
                # before they are compacted, so it would show older values.
                await self._compaction.drop_compacted(subscribed_topic(found))
            for consumer in list(found.consumers):
                consumer.session.disconnect_consumer(consumer)
            if found.topic.subscriptions.get(subscription) is found:  # else removed with its consumers
                await self._store.delete(found)

        await self._finder.on_each_subscription(name, subscription, delete)

    async def get_properties(self, name: TopicName, subscription: str) -> dict[str, str]:
        """Properties of a subscription. Raises SubscriptionNotFound."""
        for one in self._finder.existing(name):
            for record in self._catalog.subscriptions(str(one)):
                if record.name == subscription:
                    return without_replicated(record.properties)
        for partition, broker in self._finder.elsewhere(name).items():
            rest = f"/subscription/{of_subscription(subscription)}/properties"
            with contextlib.suppress(NotFound):
                return dict(await self._elsewhere.ask(broker, "GET", of_topic(partition, rest)))
        raise SubscriptionNotFound(str(name), subscription)

    async def update_properties(self, name: TopicName, subscription: str, properties: Mapping[str, str]) -> None:
        await self._finder.on_each_subscription(
            name, subscription, lambda found: self._put_properties(found, properties)
        )

    async def _put_properties(self, subscription: Subscription, properties: Mapping[str, str]) -> None:
        await self._store.put_properties(subscription, properties, replicated=subscription.replicated)

    async def replicated(self, name: TopicName, subscription: str) -> dict[str, bool]:
        """Whether a subscription is replicated, by topic or partition. Raises SubscriptionNotFound."""
        found = {
            str(one): REPLICATED in record.properties
            for one in self._finder.existing(name)
            if (record := self._catalog.subscription(str(one), subscription)) is not None
        }
        for partition, broker in self._finder.elsewhere(name).items():
            rest = f"/subscription/{of_subscription(subscription)}/replicatedSubscriptionStatus"
            with contextlib.suppress(NotFound):
                found.update(await self._elsewhere.ask(broker, "GET", of_topic(partition, rest)))
        if not found:
            raise SubscriptionNotFound(str(name), subscription)
        return found

    async def set_replicated(self, name: TopicName, subscription: str, *, replicated: bool) -> None:
        """Say whether other clusters are to have the places of a subscription.

        Raises SubscriptionNotFound; NotAllowed: it is a reader's, or the broker's own.
        """
        _check_stored(name, "Replicating a subscription")
        _check_replicable(subscription)

        async def put(found: Subscription) -> None:
            if not found.durable:
                raise NotAllowed(f"subscription {subscription} is of a reader, and is not replicated")
            if found.replicated != replicated:
                await self._store.put_properties(found, found.properties, replicated=replicated)

        await self._finder.on_each_subscription(name, subscription, put)

    # -- skip and expire ----------------------------------------------------------------------------------------------

    async def skip_messages(self, name: TopicName, subscription: str, count: int) -> None:
        """Acknowledge the next `count` entries."""
        _check_stored(name, "Skipping messages")
        _check_movable(subscription)
        found = await self._finder.subscription(name, subscription, "Skip messages")
        found.moves.skip(count)
        await self._cursors.save(found)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        _check_stored(name, "Clearing a backlog")
        _check_movable(subscription)
        await self._finder.on_each_subscription(name, subscription, self._skip_all)

    async def _skip_all(self, subscription: Subscription) -> None:
        subscription.moves.skip_all()
        await self._cursors.save(subscription)

    async def expire_older_than(self, name: TopicName, subscription: str, seconds: int) -> None:
        """Expire messages published more than `seconds` ago.

        Raises:
            NothingToDo: the subscription has no backlog on any partition, as in Pulsar.
        """
        _check_stored(name, "Expire messages")
        _check_movable(subscription)
        behind = []

        async def expire(found: Subscription) -> None:
            if found.backlog:
                behind.append(found)
                await self._expire(found, seconds)

        await self._finder.on_each_subscription(name, subscription, expire)
        if not behind:
            raise NothingToDo(
                f"Expire message by timestamp not issued on topic {name} for subscription {subscription}: "
                "it has no backlog"
            )

    async def expire_all_older_than(self, name: TopicName, seconds: int) -> None:
        """Expire messages published more than `seconds` ago, for every subscription."""
        _check_stored(name, "Expire messages")

        async def expire(topic: Topic) -> None:
            for subscription in list(topic.subscriptions.values()):
                if subscription.name != COMPACTION_SUBSCRIPTION:
                    await self._expire(subscription, seconds)

        await self._finder.on_each(name, expire)

    async def _expire(self, subscription: Subscription, seconds: int) -> None:
        await self._retention.expire(subscription, seconds)
        await self._cursors.save(subscription)

    async def expire_to_position(
        self, name: TopicName, subscription: str, position: Position, *, excluded: bool = False
    ) -> None:
        """Expire messages up to this position; with `excluded`, before it."""
        _check_stored(name, "Expire messages")
        _check_movable(subscription)
        found = await self._finder.subscription(name, subscription, "Expire messages at a position")
        topic = subscribed_topic(found)
        if position != LATEST and position > (topic.ledger_id, topic.last_entry_id):
            raise PreconditionFailed(f"Invalid message position {position}: {topic.text} ends at {topic.last_entry_id}")
        found.expire_through(entry_at(topic, position, exclusive=not excluded) - 1)
        await self._cursors.save(found)

    # -- reset --------------------------------------------------------------------------------------------------------

    async def reset_to_time(self, name: TopicName, subscription: str, wall_ms: int) -> None:
        """Reset to the first message published at this time (ms since 1970) or later; consumers reconnect."""
        _check_stored(name, "Reset-cursor")
        _check_movable(subscription)

        async def reset(found: Subscription) -> None:
            await found.move_to(await self._reads.first_published_since(found.topic, wall_ms))

        await self._finder.on_each_subscription(name, subscription, reset)

    async def reset_to_position(
        self,
        name: TopicName,
        subscription: str,
        position: Position,
        *,
        excluded: bool = False,
        batch_index: int = -1,
    ) -> None:
        """Reset to this message; with `excluded`, to the next one."""
        _check_stored(name, "Reset-cursor at a position")
        _check_movable(subscription)
        if self._partitions.count(name) and position not in {EARLIEST, LATEST}:
            raise NotAllowed("Reset-cursor at position is not allowed for partitioned-topic")

        async def reset(found: Subscription) -> None:
            topic = subscribed_topic(found)
            if batch_index < 0 or position in {EARLIEST, LATEST}:
                await found.move_to(entry_at(topic, position, exclusive=excluded))
                return
            start = entry_at(topic, position)
            members = await self._members_from(topic, start, batch_index + int(excluded))
            await found.move_to(*((start, members) if members else (start + 1,)))

        await self._finder.on_each_subscription(name, subscription, reset)

    async def _members_from(self, topic: Topic, entry_id: int, index: int) -> list[int]:
        """An ack set of the messages of a batch from `index` on; empty if the batch ends before.

        Raises:
            PreconditionFailed: the metadata claims more messages than an ack set may have. The producer wrote that
                number.
        """
        entry = await self._reads.read_entry(topic.ledger_id, entry_id)
        try:
            size = (metadata.batch_size(entry) or 1) if entry is not None else 1
        except ProtocolError:
            size = 1
        if index >= size:
            return []
        if size > BATCH_MESSAGES_MAX:
            raise PreconditionFailed(
                f"Invalid batch index {index}: entry {topic.ledger_id}:{entry_id} says that it holds {size:,} "
                f"messages; up to {BATCH_MESSAGES_MAX:,} can be told apart: name the entry without a batch index"
            )
        words = [-1] * (size // WORD_BITS) + [(1 << size % WORD_BITS) - 1] * (size % WORD_BITS > 0)
        first = index // WORD_BITS
        words[:first] = [0] * first
        words[first] &= -1 << index % WORD_BITS
        return words

    # -- namespaces ---------------------------------------------------------------------------------------------------

    async def clear_backlogs(
        self, namespace: NamespaceName, subscription: str | None = None, bundle: str | None = None
    ) -> None:
        """Acknowledge all entries in a namespace or bundle, for one subscription or all."""
        names, brokers = self._namespaces.divided(namespace, bundle)
        if subscription is not None:
            _check_movable(subscription)

        async def clear(name: TopicName) -> None:
            if not name.is_persistent or not self._finder.subscription_names(name):
                return
            topic = await self._topics.load(name)
            for found in list(topic.subscriptions.values()):
                if found.name == subscription or (subscription is None and found.name != COMPACTION_SUBSCRIPTION):
                    await self._skip_all(found)

        await in_turns(clear, names)
        rest = f"{'' if bundle is None else f'/{bundle}'}/clearBacklog"
        rest += "" if subscription is None else f"/{of_subscription(subscription)}"
        await self._elsewhere.ask_all("POST", of_namespace(namespace, rest), brokers)

    async def delete_everywhere(self, namespace: NamespaceName, subscription: str) -> None:
        """Delete it from all topics of a namespace. Raises PreconditionFailed if it has consumers."""
        names, brokers = self._namespaces.divided(namespace)

        async def unsubscribe(name: TopicName) -> None:
            if subscription in self._finder.subscription_names(name):
                await self.delete(name, subscription)

        await in_turns(unsubscribe, names)
        rest = f"/unsubscribe/{of_subscription(subscription)}"
        await self._elsewhere.ask_all("POST", of_namespace(namespace, rest), brokers)


def entry_at(topic: Topic, position: Position, *, exclusive: bool = False) -> int:
    """The next entry for a position, which may be `earliest` or `latest`."""
    if position == EARLIEST or position.ledger_id < topic.ledger_id:
        return topic.first_entry_id
    if position == LATEST or position.ledger_id > topic.ledger_id:
        return topic.last_entry_id + 1
    return max(topic.first_entry_id, min(position.entry_id + int(exclusive), topic.last_entry_id + 1))


def _check_replicable(subscription: str) -> None:
    """Raises NotAllowed for a subscription that other clusters have under the same name for themselves."""
    if is_brokers_own(subscription):
        raise NotAllowed(f"subscription {subscription} is the broker's own, and is not replicated")


def _check_stored(name: TopicName, doing: str) -> None:
    if not name.is_persistent:
        raise NotAllowed(f"{doing} on a non-persistent topic is not allowed")


def _check_movable(subscription: str) -> None:
    """Raises NotAllowed for the compaction subscription: moving it would trim entries that are not compacted."""
    if subscription == COMPACTION_SUBSCRIPTION:
        raise NotAllowed(f"subscription {subscription} is moved by compaction only")
