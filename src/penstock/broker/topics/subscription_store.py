# SPDX-License-Identifier: Apache-2.0
"""Stores durable subscriptions when they are created and deleted.

Where: a topic stores a new durable subscription; clients and administrators delete one. Its progress in between is
stored by `subscriptions/cursor_saves`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.policies.retention import retains
from penstock.broker.subscriptions.acknowledging import stored_form
from penstock.broker.subscriptions.replicating import with_replicated
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import ServiceNotReady
from penstock.storage.catalog import SubscriptionRecord
from penstock.storage.catalog_rows import bulk_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from penstock.broker.changes import Changes
    from penstock.broker.metadata_memory import MetadataMemory
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.storage.catalog import Catalog
    from penstock.storage.cursor import Cursor


class SubscriptionStore:
    """Durable subscriptions in the catalog. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        memory: MetadataMemory,
    ) -> None:
        """Args: memory: is charged for long names and properties."""
        self._catalog = catalog
        self._changes = changes
        self._memory = memory

    async def create(
        self, topic: Topic, name: str, cursor: Cursor, *, initial: str, properties: Mapping[str, str]
    ) -> None:
        """Store a new durable subscription. Raises MetadataFailed; TooManyRequests, see `room`."""
        record = SubscriptionRecord(topic.text, name, initial, properties)
        with self.charged(name, properties):
            await self._changes.stored(
                lambda done: self._catalog.create_subscription(record, stored_form(cursor), done)
            )

    def charged(self, name: str, properties: Mapping[str, str]) -> AbstractContextManager[None]:
        """Charge for long properties while they are stored. Raises TooManyRequests if it is used up."""
        return self._memory.charged(_what(name), bulk_bytes(name, properties))

    async def put_properties(
        self, subscription: Subscription, properties: Mapping[str, str], *, replicated: bool
    ) -> None:
        """Replace the properties of a durable subscription, and whether it is replicated.

        Raises MetadataFailed; TooManyRequests, see `charged`; SubscriptionNotFound, TopicNotFound.
        """
        topic, name = subscribed_topic(subscription), subscription.name
        was, stored = subscription.replicated, with_replicated(properties, replicated=replicated)
        with self.charged(name, stored):
            await self._changes.stored(
                lambda done: self._catalog.set_subscription_properties(topic.text, name, stored, done)
            )
        if was != replicated:
            topic.replication_changed()

    async def delete(self, subscription: Subscription) -> None:
        """Delete a subscription. No consumer can attach from now on; the caller disconnects its consumers.

        Raises:
            ServiceNotReady: it is being reset or deleted.
            SubscriptionNotFound, TopicNotFound: it does not exist any more.
            MetadataFailed: it could not be deleted, and continues.
        """
        if subscription.fenced:
            raise ServiceNotReady(f"subscription {subscription.name!r} of {subscription.topic.text} is being reset")
        subscription.fenced = True
        await self._changes.finish(self._delete(subscription))

    async def _delete(self, subscription: Subscription) -> None:
        topic = subscribed_topic(subscription)
        try:
            if subscription.durable:
                await self._forget(topic, subscription.name)
        except BaseException:
            subscription.fenced = False
            subscription.wake()
            raise
        topic.end_subscription(subscription)

    async def _forget(self, topic: Topic, name: str) -> None:
        # Its cursor told how far the topic is trimmed; from now on the topic stores that. Acknowledged entries after
        # that may still be read, but no subscription needs them.
        topic.unneeded_before = 0 if retains(topic.policies) else topic.first_needed() or 0
        topic.first_entry_id = topic.retained_from()
        stored, catalog = self._changes.stored, self._catalog
        await stored(lambda done: catalog.set_first_retained_entry(topic.text, topic.first_entry_id, done))
        await stored(lambda done: catalog.delete_subscription(topic.text, name, done))


def _what(name: str) -> str:
    return f"subscription {name[:100]!r}, its name and properties,"
