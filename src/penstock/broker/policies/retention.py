# SPDX-License-Identifier: Apache-2.0
"""Retention: which entries of a topic are deleted, which messages expire, which subscriptions are deleted.

What is retained, as in Pulsar:
- Entries that a durable subscription has not acknowledged are kept, regardless of age and size. Message TTL and backlog
  quotas acknowledge them on its behalf.
- Without retention, entries are deleted as soon as all durable subscriptions have acknowledged them (in steps, see
  `Topic`).
- With retention, acknowledged entries are deleted when they are older than the time *or* when the entries behind them
  are as large as the size. A bound of -1 is no limit. If either bound is 0 there is no retention.
- A topic without a durable subscription keeps what retention covers, and without retention everything. (Pulsar deletes
  it ledger by ledger, some hours later. Here, a subscription that is created after publishing finds the messages.
  Inactive topics are deleted as a whole, see `inactive`.)

The age of a message is the broker's wall clock minus the publish time that its producer set. If the clock is changed,
messages become older or younger. Deleted entries do not come back.
Where: `periodic_checks` calls this periodically, and the admin port expires messages through it. It reads little: one
entry shows whether any entry is old enough, and a binary search finds the last one.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.broker.policies.policies import TopicPort
from penstock.core.errors import ServiceNotReady, SubscriptionNotFound, TopicNotFound
from penstock.core.names import COMPACTION_SUBSCRIPTION, is_brokers_own
from penstock.core.units import MIB, NS_PER_S
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.policies import SubscriptionPort
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog

T = TypeVar("T", bound=TopicPort)

log = logging.getLogger(__name__)

_MS_PER_S: Final = 1_000
_MS_PER_MINUTE: Final = 60 * _MS_PER_S
_NS_PER_MINUTE: Final = 60 * NS_PER_S
# Maximum number of consecutive entries without publish time that are skipped.
_UNDATED_MAX: Final = 16


def retains(policies: EffectivePolicies) -> bool:
    return policies.retention.minutes != 0 and policies.retention.mb != 0


def retains_all(policies: EffectivePolicies) -> bool:
    """Whether acknowledged messages are retained without limit."""
    return policies.retention.minutes < 0 and policies.retention.mb < 0


class Retention(Generic[T]):
    """Deletes entries by retention, expires messages by TTL, and deletes unused subscriptions."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        clock: Clock,
        trim_log: Callable[[int, int], object],
        replay_from: Callable[[T], int | None],
        save_cursors: Callable[[T], Awaitable[None]],
        delete_subscription: Callable[[T, str], Awaitable[None]],
    ) -> None:
        """Receive the parts that this uses.

        Args:
            catalog: stores the first entry that each topic keeps.
            changes: carries changes of the catalog to their end.
            reads: finds entries by size and publish time.
            clock: the wall clock that ages are measured with.
            trim_log: deletes the entries of a ledger before an entry id.
            replay_from: returns the first entry that deduplication of a topic needs, or None.
            save_cursors: stores all cursors of a topic; returns when they are durable, raises MetadataFailed.
            delete_subscription: deletes a subscription of a topic by its name.
        """
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._clock = clock
        self._trim_log = trim_log
        self._replay_from = replay_from
        self._save_cursors = save_cursors
        self._delete_subscription = delete_subscription

    # -- trimming

    def may_trim(self, topic: TopicPort) -> bool:
        """Whether retention can have entries of this topic to delete."""
        policies = topic.policies
        return topic.persistent and retains(policies) and not retains_all(policies)

    async def trim(self, topic: T) -> None:
        """Delete the entries that no subscription needs and retention does not cover. Raises MetadataFailed."""
        policies = topic.policies
        first, acknowledged = topic.first_entry_id, self._unneeded_until(topic)
        if acknowledged <= first or not topic.persistent or retains_all(policies):
            return
        if not retains(policies):
            # Most entries were deleted when they were acknowledged; see `Topic.retained_from`.
            if topic.first_needed() is not None:
                await self.delete_acknowledged(topic, acknowledged)
            return
        keep = first
        if policies.retention.minutes > 0:
            before_ms = self._clock.wall_ms() - policies.retention.minutes * _MS_PER_MINUTE
            keep = await self.first_published_since(topic.ledger_id, before_ms, first, acknowledged)
        if policies.retention.mb > 0:
            within = await self._reads.entry_within(topic.ledger_id, policies.retention.mb * MIB)
            keep = max(keep, min(acknowledged, within))
        await self.delete_acknowledged(topic, keep)

    async def delete_acknowledged(self, topic: T, keep: int) -> None:
        """Delete the acknowledged entries before `keep`, regardless of retention. Raises MetadataFailed."""
        if keep <= topic.first_entry_id or topic.closed:
            return
        # After a crash, cursors are as they were stored, which may be older: store them first. A subscription may
        # have been moved back meanwhile and need more entries.
        await self._save_cursors(topic)
        keep = min(keep, self._unneeded_until(topic))
        if keep <= topic.first_entry_id or topic.closed:
            return
        with contextlib.suppress(TopicNotFound):  # deleted meanwhile
            await self._changes.stored(lambda done: self._catalog.set_first_retained_entry(topic.text, keep, done))
            topic.first_entry_id = max(topic.first_entry_id, keep)
            if not topic.closed:
                self._trim_log(topic.ledger_id, keep)

    def _unneeded_until(self, topic: T) -> int:
        """The first entry that a subscription or deduplication needs; the one after the last if there is none."""
        needed = topic.first_needed()
        if needed is None:
            needed = self._replay_from(topic)
        return min(topic.last_entry_id + 1 if needed is None else needed, topic.counted_before)

    # -- expiry

    def may_expire(self, topic: TopicPort) -> bool:
        return topic.policies.ttl_s > 0 and topic.persistent and bool(topic.subscriptions)

    async def expire_topic(self, topic: TopicPort) -> None:
        """Expire the messages that are older than the topic's TTL, for every durable subscription."""
        for subscription in list(topic.subscriptions.values()):
            expires = subscription.durable and subscription.name != COMPACTION_SUBSCRIPTION
            if expires and topic.policies.ttl_s > 0:
                await self.expire(subscription, topic.policies.ttl_s)

    async def expire(self, subscription: SubscriptionPort, older_than_s: int) -> int:
        """Expire the messages of one subscription that are older than this; returns the number of entries."""
        topic = subscription.topic
        first = subscription.cursor.next_unacknowledged(subscription.cursor.mark_delete + 1)
        before_ms = self._clock.wall_ms() - older_than_s * _MS_PER_S
        end = await self.first_published_since(topic.ledger_id, before_ms, first, topic.last_entry_id + 1)
        if end <= first or topic.closed:
            return 0
        count = subscription.expire_through(end - 1)
        if count:
            log.info(
                "%s: subscription %s gave up %d entries older than %d s", topic.text, subscription.name, count,
                older_than_s,
            )  # fmt: skip
        return count

    # -- idle subscriptions

    def may_end_subscriptions(self, topic: TopicPort) -> bool:
        return topic.policies.subscription_expiration_minutes > 0 and topic.persistent

    async def end_idle_subscriptions(self, topic: T) -> None:
        """Delete the subscriptions that were unused for longer than the topic's policy allows."""
        now_ns = self._clock.monotonic_ns()
        for subscription in list(topic.subscriptions.values()):
            minutes = topic.policies.subscription_expiration_minutes
            idle_ns = now_ns - subscription.idle_since_ns
            if (
                minutes > 0
                and topic.subscriptions.get(subscription.name) is subscription
                and subscription.durable
                and not subscription.consumers
                and not (is_brokers_own(subscription.name) or subscription.places)
                and idle_ns > minutes * _NS_PER_MINUTE
            ):
                log.info("%s: subscription %s ends, unused for %d min", topic.text, subscription.name, minutes)
                with contextlib.suppress(ServiceNotReady, SubscriptionNotFound, TopicNotFound):
                    await self._delete_subscription(topic, subscription.name)

    # -- when entries were published

    async def first_published_since(self, ledger_id: int, wall_ms: int, low: int, high: int) -> int:
        """The first entry in [low, high) published at this time or later; `high` if there is none.

        The search is binary: if producers' clocks disagree, it finds an entry near that one. Entries without a publish
        time are skipped. If there are no others, they count as new, so that they are not deleted.
        """
        entry_id, published_ms = await self.published(ledger_id, low, high)
        if entry_id >= high or published_ms >= wall_ms:
            return low
        low = entry_id + 1
        while low < high:
            middle = (low + high) // 2
            entry_id, published_ms = await self.published(ledger_id, middle, high)
            if entry_id < high and published_ms < wall_ms:
                low = entry_id + 1
            else:
                high = middle
        return low

    async def published(self, ledger_id: int, entry_id: int, stop: int) -> tuple[int, int]:
        """The first entry from here on that has a publish time, and that time; `stop` and 0 if there is none."""
        for _ in range(_UNDATED_MAX):
            if entry_id >= stop:
                break
            result = await self._reads.read(ledger_id, entry_id, bytes_max=1, entries_max=1)
            if not result.batches:
                break
            batch = result.batches[0]
            entry_id, start = batch.entry_ids[0], batch.offsets[0]
            if entry_id >= stop:
                break
            with contextlib.suppress(ProtocolError):
                published_ms = metadata.publish_time(bytes(batch.data[start : start + batch.lengths[0]]))
                if published_ms > 0:
                    return entry_id, published_ms
            entry_id += 1
        return stop, 0
