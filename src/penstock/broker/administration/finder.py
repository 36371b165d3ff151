# SPDX-License-Identifier: Apache-2.0
"""Finds the topics and subscriptions that an admin request names.

An operation on a partitioned topic is applied to its existing partitions; an operation on a subscription, to the
partitions that have it.

A topic's broker alone operates on it. An operation on a topic of another broker raises ServedElsewhere, and one on
partitions of several brokers does its part and raises PartitionsElsewhere; then the admin port passes the request on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.topics.partitions import in_turns
from penstock.core.errors import NotAllowed, PartitionsElsewhere, SubscriptionNotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic import Topic
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog


class Finder:
    """Finds topics and subscriptions by name, and loads them."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        catalog: Catalog,
        resources: NamespaceResources,
        partitions: Partitions,
        placement: Placement,
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._resources = resources
        self._partitions = partitions
        self._placement = placement

    async def topic(self, name: TopicName, doing: str = "This operation") -> Topic:
        """The topic, loaded.

        Raises TopicNotFound; NotAllowed for a partitioned topic if `doing` needs a single topic.
        """
        self._resources.check_namespace(name.namespace_name)
        if self._partitions.count(name):
            raise NotAllowed(f"{doing} on a partitioned topic is not allowed: name one of its partitions")
        if not self._topics.exists(name):
            raise TopicNotFound(str(name))
        return await self._topics.load(name)

    def existing(self, name: TopicName) -> list[TopicName]:
        """The topic, or the existing partitions that this broker serves. Raises TopicNotFound, ServedElsewhere."""
        return [one for one in self._existing(name) if self._placement.is_ours(one)]

    def elsewhere(self, name: TopicName) -> dict[TopicName, int]:
        """The other existing partitions of a partitioned topic, with their brokers. Raises as `existing` does."""
        brokers = {one: self._placement.broker_of(one) for one in self._existing(name)}
        return {one: broker for one, broker in brokers.items() if broker not in {None, self._placement.own}}

    def _existing(self, name: TopicName) -> list[TopicName]:
        self._resources.check_namespace(name.namespace_name)
        if self._partitions.count(name):
            return [partition for partition in self._partitions.names(name) if self._topics.exists(partition)]
        if not self._topics.exists(name):
            raise TopicNotFound(str(name))
        self._placement.check_ours(name)
        return [name]

    async def on_each_name(self, name: TopicName, work: Callable[[TopicName], Awaitable[object]]) -> None:
        """Call `work` with the topic, or with each existing partition, loaded or not."""
        await self._on(self.existing(name), work, name)

    async def on_some(self, name: TopicName, ours: list[TopicName], work: Callable[[Topic], Awaitable[object]]) -> None:
        """As `on_each`, but of this broker's partitions only with `ours`."""

        async def load_and_do(one: TopicName) -> None:
            await work(await self._topics.load(one))

        await self._on(ours, load_and_do, name)

    async def on_each(self, name: TopicName, work: Callable[[Topic], Awaitable[object]]) -> None:
        """Call `work` with the topic, or with each existing partition."""
        await self.on_some(name, self.existing(name), work)

    async def on_each_subscription(
        self, name: TopicName, subscription: str, work: Callable[[Subscription], Awaitable[object]]
    ) -> None:
        """Call `work` with the subscription of each partition that has it. Raises SubscriptionNotFound if none has."""
        found = [one for one in self.existing(name) if subscription in self.subscription_names(one)]
        if not (found or self.elsewhere(name)):
            raise SubscriptionNotFound(str(name), subscription)

        async def load_and_do(one: TopicName) -> None:
            topic = await self._topics.load(one)
            await work(_subscription(topic, subscription))

        await self._on(found, load_and_do, name)

    async def _on(self, ours: list[TopicName], work: Callable[[TopicName], Awaitable[object]], name: TopicName) -> None:
        """Call `work` with each of `ours`. Raises PartitionsElsewhere if `name` has partitions on other brokers."""
        rest = self.elsewhere(name)  # Before: `work` may delete or unload the topic.
        await in_turns(work, ours)
        if rest:
            raise PartitionsElsewhere(str(name), {one.local: broker for one, broker in rest.items()}, done=len(ours))

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
