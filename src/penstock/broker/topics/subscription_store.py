# SPDX-License-Identifier: Apache-2.0
"""What is stored of a subscription when it is made and when it ends.

Where: a topic stores a new durable subscription; clients and administrators end one. How far it has come in between is
`subscriptions/cursor_saves`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.policies.retention import retains
from penstock.broker.subscriptions.cursor_saves import stored_form
from penstock.core.errors import ServiceNotReady, TooManyRequests
from penstock.storage.catalog import SubscriptionRecord
from penstock.storage.catalog_rows import bulk_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.storage.catalog import Catalog
    from penstock.storage.cursor import Cursor


class SubscriptionStore:
    """Durable subscriptions in the catalog. Everything is called on the loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        bulk_bytes_max: Callable[[], int],
        ended: Callable[[Subscription], None],
    ) -> None:
        """Args: bulk_bytes_max: what long names and properties of all may take. ended: is told of each that ends."""
        self._catalog = catalog
        self._changes = changes
        self._bulk_bytes_max = bulk_bytes_max
        self._ended = ended

    async def create(
        self, topic: Topic, name: str, cursor: Cursor, *, initial: str, properties: Mapping[str, str]
    ) -> None:
        """Store a new durable subscription. Raises MetadataFailed; TooManyRequests, see `check_properties`."""
        self.check_properties(name, properties)
        record = SubscriptionRecord(topic.text, name, initial, properties)
        await self._changes.stored(lambda done: self._catalog.create_subscription(record, stored_form(cursor), done))

    def check_properties(self, name: str, properties: Mapping[str, str]) -> None:
        """Return if a subscription may have these properties: long ones stay in memory as long as it is there.

        Raises:
            TooManyRequests: those of all subscriptions take as much as producers and consumers may.
        """
        nbytes, bound = bulk_bytes(name, properties), self._bulk_bytes_max()
        if nbytes and self._catalog.bulk_bytes + nbytes > bound:
            raise TooManyRequests(
                f"the name and properties of subscription {name[:100]!r} take {nbytes:,} bytes, and such long ones "
                f"have {self._catalog.bulk_bytes:,} of {bound:,} in use; delete others, or raise sessionsMB"
            )

    async def delete(self, subscription: Subscription) -> None:
        """End a subscription. Nobody joins it from now on; consumers that it has are the caller's to disconnect.

        Raises:
            ServiceNotReady: it is being reset, or deleted already.
            SubscriptionNotFound, TopicNotFound: it is not there any more.
            MetadataFailed: it could not be deleted, and goes on.
        """
        if subscription.fenced:
            raise ServiceNotReady(f"subscription {subscription.name!r} of {subscription.topic.text} is being reset")
        subscription.fenced = True
        await self._changes.finish(self._delete(subscription))

    async def _delete(self, subscription: Subscription) -> None:
        topic = subscription.topic
        try:
            if subscription.durable:
                await self._forget(topic, subscription.name)
        except BaseException:
            subscription.fenced = False
            subscription.wake()
            raise
        topic.end_subscription(subscription)
        self._ended(subscription)

    async def _forget(self, topic: Topic, name: str) -> None:
        # Its cursor told how far the topic was reclaimed; from now on the topic says so itself. What was acknowledged
        # behind that may still be looked at, but nobody needs it.
        topic.unneeded_before = 0 if retains(topic.policies) else topic.first_needed() or 0
        topic.first_entry_id = topic.retained_from()
        stored, catalog = self._changes.stored, self._catalog
        await stored(lambda done: catalog.set_first_retained_entry(topic.text, topic.first_entry_id, done))
        await stored(lambda done: catalog.delete_subscription(topic.text, name, done))
