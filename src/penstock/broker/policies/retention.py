# SPDX-License-Identifier: Apache-2.0
"""Retention: what may go from a topic, what counts as acknowledged because it is too old, and idle subscriptions.

What is kept, as in Pulsar:
- What a durable subscription has not acknowledged stays, however old and large; TTL and backlog quotas acknowledge in
  its stead.
- Without retention, what all durable subscriptions have acknowledged goes at once (in steps, see `Topic`).
- With retention it goes when it is older than the time *or* when what is behind it is as large as the size, whichever
  comes first; a bound of -1 never comes, and when either is 0 there is no retention.
- A topic without a durable subscription keeps what retention says; without retention it keeps everything. (Pulsar drops
  it ledger by ledger, hours later, at a moment that nobody can foresee. Whoever publishes first and subscribes later
  shall find it; topics that nobody uses go as a whole, see `inactive`.)

Age is the broker's wall clock against the time at which producers stamped a message; a step of the clock makes messages
older or younger, as users would say. What went once does not come back.
Where: `rounds` calls this now and then, the admin port expires messages through it. Reads are few: one entry says
whether anything is old enough at all, a binary search finds where that ends.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.broker.policies.ports import TopicPort
from penstock.core.errors import ServiceNotReady, SubscriptionNotFound, TopicNotFound
from penstock.core.names import COMPACTION_SUBSCRIPTION
from penstock.core.units import MIB, NS_PER_S
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.policies.ports import SubscriptionPort
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog

T = TypeVar("T", bound=TopicPort)

log = logging.getLogger(__name__)

_MS_PER_S: Final = 1_000
_MS_PER_MINUTE: Final = 60 * _MS_PER_S
_NS_PER_MINUTE: Final = 60 * NS_PER_S
# Entries that do not say when they were published are passed over, so many in a row.
_UNDATED_MAX: Final = 16


def retains(policies: EffectivePolicies) -> bool:
    """Whether acknowledged messages are kept for some time or up to some size."""
    return policies.retention.minutes != 0 and policies.retention.mb != 0


def retains_all(policies: EffectivePolicies) -> bool:
    """Whether they are kept for ever."""
    return policies.retention.minutes < 0 and policies.retention.mb < 0


class Retention(Generic[T]):
    """Carries out retention, TTL and the expiration of subscriptions."""

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
        """Keep what it works with.

        Args:
            catalog: knows the first entry that each topic keeps.
            changes: stores it.
            reads: finds entries by their size and age.
            clock: the time against which messages are old.
            trim_log: gives up entries of a ledger before one of them.
            replay_from: the first entry of a topic that deduplication needs; None when it needs none.
            save_cursors: stores all cursors of a topic; returns when they are durable, raises MetadataFailed.
            delete_subscription: ends a subscription of a topic.
        """
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._clock = clock
        self._trim_log = trim_log
        self._replay_from = replay_from
        self._save_cursors = save_cursors
        self._delete_subscription = delete_subscription

    # -- what may go

    def may_trim(self, topic: TopicPort) -> bool:
        """Whether retention may have something to do."""
        policies = topic.policies
        return topic.persistent and retains(policies) and not retains_all(policies)

    async def trim(self, topic: T) -> None:
        """Give up what nobody needs and retention does not keep, to the entry. Raises MetadataFailed."""
        policies = topic.policies
        first, acknowledged = topic.first_entry_id, self._unneeded_until(topic)
        if acknowledged <= first or not topic.persistent or retains_all(policies):
            return
        if not retains(policies):
            # Most of it went when it was acknowledged; see `Topic.retained_from`.
            if topic.first_needed() is not None:
                await self._give_up(topic, acknowledged)
            return
        keep = first
        if policies.retention.minutes > 0:
            before_ms = self._clock.wall_ms() - policies.retention.minutes * _MS_PER_MINUTE
            keep = await self.first_published_since(topic.ledger_id, before_ms, first, acknowledged)
        if policies.retention.mb > 0:
            within = await self._reads.entry_within(topic.ledger_id, policies.retention.mb * MIB)
            keep = max(keep, min(acknowledged, within))
        await self._give_up(topic, keep)

    async def give_up_all(self, topic: T, before_entry: int) -> None:
        """Give up what is before an entry, whatever retention says; nothing that is not acknowledged by then."""
        await self._give_up(topic, before_entry)

    async def _give_up(self, topic: T, keep: int) -> None:
        if keep <= topic.first_entry_id or topic.closed:
            return
        # Cursors that are not stored yet may come back a little older: what they still want must be there. And one that
        # somebody moved back meanwhile wants more.
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
        """The first entry that a subscription needs, or deduplication; the end when nobody needs any."""
        needed = topic.first_needed()
        if needed is None:
            needed = self._replay_from(topic)
        return topic.last_entry_id + 1 if needed is None else needed

    # -- what is too old

    def may_expire(self, topic: TopicPort) -> bool:
        """Whether messages of this topic get too old."""
        return topic.policies.ttl_s > 0 and topic.persistent and bool(topic.subscriptions)

    async def expire_topic(self, topic: TopicPort) -> None:
        """Acknowledge, for every subscription, what is older than the topic's TTL."""
        for subscription in list(topic.subscriptions.values()):
            expires = subscription.durable and subscription.name != COMPACTION_SUBSCRIPTION
            if expires and topic.policies.ttl_s > 0:
                await self.expire(subscription, topic.policies.ttl_s)

    async def expire(self, subscription: SubscriptionPort, older_than_s: int) -> int:
        """Acknowledge, for one subscription, messages older than this; returns how many entries that were."""
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
        """Whether subscriptions of this topic end when nobody uses them."""
        return topic.policies.subscription_expiration_minutes > 0 and topic.persistent

    async def end_idle_subscriptions(self, topic: T) -> None:
        """Delete the subscriptions that nobody has used for too long."""
        now_ns = self._clock.monotonic_ns()
        for subscription in list(topic.subscriptions.values()):
            minutes = topic.policies.subscription_expiration_minutes
            idle_ns = now_ns - subscription.idle_since_ns
            if (
                minutes > 0
                and topic.subscriptions.get(subscription.name) is subscription
                and subscription.durable
                and not subscription.consumers
                and not subscription.replicated
                and subscription.name != COMPACTION_SUBSCRIPTION
                and idle_ns > minutes * _NS_PER_MINUTE
            ):
                log.info("%s: subscription %s ends, unused for %d min", topic.text, subscription.name, minutes)
                with contextlib.suppress(ServiceNotReady, SubscriptionNotFound, TopicNotFound):
                    await self._delete_subscription(topic, subscription.name)

    # -- when entries were published

    async def first_published_since(self, ledger_id: int, wall_ms: int, low: int, high: int) -> int:
        """The first entry of `low` to `high` - 1 that was published at this time or later; `high` when there is none.

        Producers' clocks mostly agree; where they do not, a close neighbour is found. What says nothing of its time
        counts neither as old nor as new, and where nothing else is, as new: it is not given up.
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
        """The first entry from here on that says when it was published, and when; `stop` and 0 if none does."""
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
