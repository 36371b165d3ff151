# SPDX-License-Identifier: Apache-2.0
"""Finds the topics and subscriptions that an admin request names.

An operation on a partitioned topic is applied to its existing partitions; an operation on a subscription, to the
partitions that have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.topics.partitions import in_turns
from penstock.core.errors import NotAllowed, SubscriptionNotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.places import Places
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog


class Finder:
    """Finds topics and subscriptions by name, and loads them."""

    def __init__(self, *, topics: TopicDirectory, catalog: Catalog, places: Places, partitions: Partitions) -> None:
        self._topics = topics
        self._catalog = catalog
        self._places = places
        self._partitions = partitions

    async def topic(self, name: TopicName, doing: str = "This operation") -> Topic:
        """The topic, loaded.

        Raises TopicNotFound; NotAllowed for a partitioned topic if `doing` needs a single topic.
        """
        self._places.check_namespace(name.namespace_name)
        if self._partitions.count(name):
            raise NotAllowed(f"{doing} on a partitioned topic is not allowed: name one of its partitions")
        if not self._topics.exists(name):
            raise TopicNotFound(str(name))
        return await self._topics.load(name)

    def existing(self, name: TopicName) -> list[TopicName]:
        """The topic, or its existing partitions. Raises TopicNotFound."""
        self._places.check_namespace(name.namespace_name)
        if self._partitions.count(name):
            return [partition for partition in self._partitions.names(name) if self._topics.exists(partition)]
        if not self._topics.exists(name):
            raise TopicNotFound(str(name))
        return [name]

    async def on_each(self, name: TopicName, work: Callable[[Topic], Awaitable[object]]) -> None:
        """Call `work` with the topic, or with each existing partition."""

        async def load_and_do(one: TopicName) -> None:
            await work(await self._topics.load(one))

        await in_turns(load_and_do, self.existing(name))

    async def on_each_subscription(
        self, name: TopicName, subscription: str, work: Callable[[Subscription], Awaitable[object]]
    ) -> None:
        """Call `work` with the subscription of each partition that has it. Raises SubscriptionNotFound if none has."""
        found = [one for one in self.existing(name) if subscription in self.subscription_names(one)]
        if not found:
            raise SubscriptionNotFound(str(name), subscription)

        async def load_and_do(one: TopicName) -> None:
            topic = await self._topics.load(one)
            await work(_subscription(topic, subscription))

        await in_turns(load_and_do, found)

    async def subscription(self, name: TopicName, subscription: str, doing: str) -> Subscription:
        """A subscription of one topic. Raises SubscriptionNotFound, and as `topic` does."""
        return _subscription(await self.topic(name, doing), subscription)

    def subscription_names(self, name: TopicName) -> list[str]:
        """Names of the subscriptions of one topic, loaded or not, including those of readers."""
        topic = self._topics.get(name)
        if topic is not None:
            return list(topic.subscriptions)
        return [record.name for record in self._catalog.subscriptions(str(name))]


def _subscription(topic: Topic, name: str) -> Subscription:
    found = topic.subscriptions.get(name)
    if found is None:
        raise SubscriptionNotFound(topic.text, name)
    return found
