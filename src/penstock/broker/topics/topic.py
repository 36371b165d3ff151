# SPDX-License-Identifier: Apache-2.0
"""One topic: a ledger, the producers that write it and the subscriptions that read it.

Where: the directory loads or creates topics; `publish` assigns entry ids and reports durable entries; sessions attach
producers and consumers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.accounting.totals import NONE_ENDED
from penstock.broker.policies.retention import retains
from penstock.broker.publishing import checks
from penstock.broker.publishing.checks import WriteAccess
from penstock.broker.subscriptions.replay_reads import ReplayReads
from penstock.broker.subscriptions.replicating import REPLICATED
from penstock.broker.subscriptions.subscription import Subscription
from penstock.broker.subscriptions.tail import Tail
from penstock.broker.topics.topic_states import cancelled_of, compacted_in
from penstock.core.errors import NotAllowed, ServiceNotReady, TopicTerminated
from penstock.core.names import is_brokers_own
from penstock.core.system_topics import is_system_topic
from penstock.governance.resource_group import NOTHING as NOTHING_PUBLISHED
from penstock.storage.catalog_rows import NOTHING
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.policies.policy_table import EffectivePolicies
    from penstock.broker.publishing.deduplication import Deduplication, TopicDeduplication
    from penstock.broker.publishing.limiters import DispatchRate
    from penstock.broker.publishing.ports import ClientCounts
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.publishing.transaction_entries import TransactionEntries
    from penstock.broker.subscriptions.consumer import ConsumedSubscription, DispatchServices
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.broker.subscriptions.tail import TailCache
    from penstock.broker.topics.delayed import DelayedIndexes
    from penstock.broker.topics.delayed_index import DelayedIndex
    from penstock.broker.topics.subscription_store import SubscriptionStore
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.clock import Clock
    from penstock.core.durations import DurationsByName
    from penstock.core.names import TopicName
    from penstock.core.transaction_id import TransactionId
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.governance.holds import Refusals
    from penstock.groups.adaptive_publish import AdaptivePublish, AdaptiveTopic
    from penstock.groups.group import Group
    from penstock.groups.limit import PublishLimit
    from penstock.storage.entry_log import Batch

# Acknowledged entries are trimmed in steps: a subscription created shortly after still finds the last ones, as in
# Pulsar, which trims whole ledgers.
TRIM_STEP_ENTRIES: Final = 1_000
# When a topic or subscription has ended, an operation that has begun before may still look at it for so long. Then the
# references between its parts are cut: a full collection of garbage, which would find them, comes once in many hours.
LET_GO_S: Final = 60.0
# Above all entry ids: usage is not counted, so that trimming waits for nothing.
NOT_COUNTED: Final = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicServices:
    """Services shared by all topics of a broker."""

    clock: Clock
    changes: Changes
    states: TopicStates
    rates: Rates
    deduplication: Deduplication
    delayed_indexes: DelayedIndexes
    store: SubscriptionStore
    tail_cache: TailCache
    dispatch: DispatchServices
    policies_of: Callable[[TopicName], EffectivePolicies]
    publish_times: DurationsByName  # by namespace
    dispatch_waits: DurationsByName  # likewise
    replication_changed: Callable[[Topic], None]  # called when policies may have changed
    reports_topic: str  # full name of the one on which brokers report to each other
    message_bytes_max: int  # of all topics; the policies of a topic may set a lower limit


class Topic:
    """A topic of this broker, persistent or not.

    `next_entry_id` is the id of the next SEND; `last_entry_id` is the last durable entry, which may be read. Entries in
    between are being written to disk, or are kept back by an open transaction. A non-persistent topic counts the same
    way and stores nothing.
    """

    __slots__ = (
        "_services",
        "adaptive",
        "bytes_in",
        "bytes_out_before",
        "chunks_in",
        "clients",
        "closed",
        "coming",
        "compacted",
        "counted",
        "counted_before",
        "created_ms",
        "deduplication",
        "delayed",
        "dispatch_limiter",
        "dispatch_waits",
        "ended",
        "entries_in",
        "fenced",
        "first_entry_id",
        "idle_since_ns",
        "last_entry_id",
        "last_index",
        "ledger_id",
        "messages_in",
        "messages_out_before",
        "name",
        "next_entry_id",
        "partition",
        "persistent",
        "policies",
        "producers",
        "publish_limited_times",
        "publish_lines",
        "publish_times",
        "refusals",
        "replay_reads",
        "resource_groups",
        "shut",
        "subscriptions",
        "system",
        "tail",
        "terminated",
        "text",
        "throttle_lines",
        "transactions",
        "unneeded_before",
        "used",
        "waiting",
        "write_access",
    )

    def __init__(
        self, services: TopicServices, name: TopicName, *, ledger_id: int, last_entry_id: int, first_entry_id: int
    ) -> None:
        self._services = services
        self.name = name
        self.text = str(name)
        # Only brokers publish to it, so the limits of publishers do not apply.
        self.system = is_system_topic(self.text) or self.text == services.reports_topic
        self.persistent = name.is_persistent
        self.partition = name.partition
        self.policies = services.policies_of(name)
        self.publish_times = services.publish_times.of(str(name.namespace_name))
        self.dispatch_waits = services.dispatch_waits.of(str(name.namespace_name))
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        # When the last subscription was deleted, all had acknowledged the entries before this. Not stored: a topic
        # that is loaded again keeps messages until a subscription acknowledges them.
        self.unneeded_before = 0
        # Entries from here on are not in the stored counters of usage yet: after a crash they must be there.
        self.counted_before = NOT_COUNTED
        self.clients: ClientCounts | None = None  # None: usage is not recorded
        self.last_entry_id: int = last_entry_id
        self.next_entry_id = last_entry_id + 1
        # An entry id, and the index of the last message in it, for GET_LAST_MESSAGE_ID.
        self.last_index: tuple[int, asyncio.Future[int]] | None = None
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.coming: tuple[str, ...] = ()  # names of subscriptions that are being stored
        self.tail = Tail()
        self.replay_reads = ReplayReads(services.dispatch.log, services.dispatch.reads, ledger_id, self._replayed)
        self.delayed: DelayedIndex | None = None  # None without Shared subscriptions
        self.terminated = False  # accepts no more messages, permanently
        self.fenced = False  # is being unloaded or deleted: no client attaches, no message is accepted
        self.shut = False  # is moved to another cluster: clients are to connect there, or wait
        self.closed = False  # is not this broker's topic any more; its name may belong to another object
        self.write_access = WriteAccess(services.states.of(self.text).get("epoch"))
        self.deduplication: TopicDeduplication | None = None
        self.ended = NONE_ENDED  # what transactions had sent that have ended
        self.transactions: TransactionEntries | None = None  # None while no transaction uses it, nor was aborted
        self.compacted = compacted_in(services.states.of(self.text))
        self.used = False  # was requested since the last check for inactive topics
        self.idle_since_ns = services.clock.monotonic_ns()
        self.created_ms = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.chunks_in = 0
        # Counts of deleted subscriptions: counters shown to users must not decrease.
        self.messages_out_before = 0
        self.bytes_out_before = 0
        self.publish_limited_times = 0  # how often a rate limit stopped one of its producers
        self.publish_lines: tuple[PublishLimit, ...] = ()
        self.refusals: Refusals | None = None  # of producers, by its backlog quotas, since one was admitted
        self.resource_groups: tuple[Group, ...] = ()
        self.adaptive: AdaptiveTopic | None = None
        self.throttle_lines: tuple[AdaptivePublish, ...] = ()
        self.counted = NOTHING_PUBLISHED
        self.waiting = NOTHING_PUBLISHED
        self.dispatch_limiter: DispatchRate | None = None
        services.rates.topic_changed(self)

    def held(self, messages: int, nbytes: int) -> None:
        """See `LimitedTopic`."""
        self.waiting = self.waiting.plus(messages, nbytes)

    def policies_changed(self) -> None:
        """Pass changed `policies` on to the parts that do not read them each time."""
        self._services.deduplication.policies_changed(self)
        checks.refresh(self)
        self._services.rates.topic_changed(self)
        if self.delayed is not None:
            self.delayed.policies_changed()
        for subscription in self.subscriptions.values():
            subscription.limits_changed()
        self.replication_changed()

    def replication_changed(self) -> None:
        """Look again where it is replicated to, and which of its subscriptions are."""
        self._services.replication_changed(self)

    @property
    def bounds_messages(self) -> bool:
        """Whether its policies set a lower message size limit than the broker's."""
        return 0 < self.policies.max_message_bytes < self._services.message_bytes_max

    @property
    def in_use(self) -> bool:
        """Whether it holds messages, or has a producer or a consumer that checks schemas."""
        if self.producers or self.durable_entry_id >= self.first_entry_id:
            return True
        consumers = (consumer for subscription in self.subscriptions.values() for consumer in subscription.consumers)
        return not all(consumer.takes_any_schema for consumer in consumers)

    @property
    def rests(self) -> bool:
        """Whether its clients are to connect to another cluster, none is here any more, and nothing is under way."""
        subscriptions = [one for one in self.subscriptions.values() if one.replicator is None]
        busy = self.producers or any(one.consumers or one.pending for one in subscriptions)
        return self.shut and not busy and self.next_entry_id == self.last_entry_id + 1

    @property
    def delays(self) -> bool:
        return self.policies.delayed_delivery.active

    def check_open(self) -> None:
        """Call right before attaching a client. Raises ServiceNotReady while the topic is unloaded or deleted."""
        if self.fenced or self.closed:
            raise ServiceNotReady(f"Topic is temporarily unavailable: {self.text} is being unloaded or deleted")
        if self.shut:
            raise ServiceNotReady(f"Topic is temporarily unavailable: {self.text} is moved to another cluster")

    def check_publishable(self) -> None:
        """Call right before attaching a producer. Raises TopicTerminated, or as `check_open` does."""
        self.check_open()
        if self.terminated:
            raise TopicTerminated(self.text)

    def add_subscription(self, name: str, *, cursor: Cursor, durable: bool) -> Subscription:
        self.pass_cancelled(cursor)
        subscription = Subscription(self, name, cursor=cursor, durable=durable, services=self._services.dispatch)
        self.subscriptions[name] = subscription
        subscription.charge()
        self._services.rates.subscription_changed(self, subscription)
        return subscription

    def end_subscription(self, subscription: SubscriptionState) -> None:
        """Remove a subscription; a newer one of the same name stays."""
        ended = self.subscriptions.get(subscription.name)
        if ended is not None and ended is subscription:
            del self.subscriptions[subscription.name]
            self._services.rates.forget_subscription(ended)
            self.messages_out_before += subscription.messages_out
            self.bytes_out_before += subscription.bytes_out
        subscription.delay_nothing()
        subscription.release()
        if ended is subscription:
            self._services.dispatch.loop.call_later(LET_GO_S, ended.let_go)

    def let_go_soon(self) -> None:
        """Drop what refers back to it, in a while: it is not this broker's any more."""
        self._services.dispatch.loop.call_later(LET_GO_S, self._let_go)

    def _let_go(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.let_go()
        self.subscriptions = {}
        del self.replay_reads

    def join_delayed(self, subscription: SubscriptionState) -> DelayedDeliveryView:
        """The subscription's view of the delayed messages; creates the index if necessary."""
        return self._services.delayed_indexes.index_of(self).view_of(subscription)

    def leave_delayed(self, subscription: SubscriptionState) -> None:
        """Remove the subscription's view; the index is removed with the last view."""
        if self.delayed is not None:
            self.delayed.leave(subscription)

    def _replayed(self, batches: list[Batch]) -> None:
        """Cache entries that one subscription replayed, because other subscriptions may need them, too."""
        if len(self.subscriptions) >= 2:
            for batch in batches:
                self._services.tail_cache.add_gathered(self.tail, batch)

    def end_if_idle(self, subscription: SubscriptionState) -> None:
        """Remove a non-durable subscription without consumers."""
        if not (subscription.durable or subscription.fenced or subscription.consumers):
            self.end_subscription(subscription)

    @property
    def messages_out(self) -> int:
        """Messages delivered to all subscriptions since the topic was loaded, deleted ones included."""
        return self.messages_out_before + sum(one.messages_out for one in self.subscriptions.values())

    @property
    def bytes_out(self) -> int:
        """Bytes delivered, counted like `messages_out`."""
        return self.bytes_out_before + sum(one.bytes_out for one in self.subscriptions.values())

    def pass_cancelled(self, cursor: Cursor) -> None:
        """Mark cancelled and aborted messages as acknowledged in a cursor that is new or was moved back."""
        cursor.acknowledge_many(cancelled_of(self._services.states.of(self.text)))
        if self.transactions is not None:
            for entries in self.transactions.aborted_within(cursor.mark_delete + 1, self.last_entry_id):
                cursor.acknowledge_many(entries)

    def before_passed(self, entry_id: int) -> int:
        """Go back from an entry over cancelled and aborted messages: to where a consumer is that none was passed for.

        Who compares positions takes entries that are still there, and that nobody sees, for removed otherwise.
        """
        cancelled = set(cancelled_of(self._services.states.of(self.text)))
        while entry_id >= self.first_entry_id:
            if self.transactions is not None:
                entry_id = self.transactions.last_not_aborted(self.first_entry_id, entry_id)
            if entry_id not in cancelled:
                break
            entry_id -= 1
        return entry_id

    async def open_subscription(
        self, name: str, *, durable: bool, start: int, properties: Mapping[str, str] = NOTHING
    ) -> Subscription:
        """The subscription of this name; if missing, it is created and stored, with `start` as its first entry.

        Raises:
            NotAllowed: it exists with another durability, or the topic has its maximum number of subscriptions.
            MetadataFailed: it could not be stored.
        """
        durable = durable and self.persistent
        existing = self.subscriptions.get(name)
        if existing is not None:
            if existing.durable != durable and self.persistent:
                kind = "durable" if existing.durable else "non-durable"
                raise NotAllowed(f"subscription {name!r} of {self.text} is {kind} already")
            return existing
        self._check_room(name)
        cursor = Cursor(start - 1)
        if not durable:
            return self.add_subscription(name, cursor=cursor, durable=False)
        # Finished even if the client disconnects: a stored subscription that is unknown here would keep entries for
        # ever.
        self.coming += (name,)  # counts from the check on
        return await self._services.changes.finish(self._make_durable(name, cursor, properties))

    async def _make_durable(self, name: str, cursor: Cursor, properties: Mapping[str, str]) -> Subscription:
        initial = "earliest" if cursor.mark_delete < self.first_entry_id else "latest"
        try:
            await self._services.store.create(self, name, cursor, initial=initial, properties=properties)
            # Another client may have created it while we waited.
            made = self.subscriptions.get(name) or self.add_subscription(name, cursor=cursor, durable=True)
        finally:
            at = self.coming.index(name)
            self.coming = self.coming[:at] + self.coming[at + 1 :]
        if REPLICATED in properties:
            self.replication_changed()
        return made

    def _check_room(self, name: str) -> None:
        """Raises NotAllowed if a new subscription would be more than the maximum, with those that are being stored.

        Non-durable subscriptions count, too: otherwise readers would be a way around. Compaction's, and those of
        replicators, are the broker's own.
        """
        bound = self.policies.max_subscriptions
        if bound and self.persistent and not is_brokers_own(name):
            names = {one for one in (*self.subscriptions, *self.coming, name) if not is_brokers_own(one)}
            if len(names) > bound:
                raise NotAllowed(f"Exceed the maximum number of subscriptions of the topic: {self.text}")

    def appended(self, last_entry_id: int) -> None:
        """Entries up to this one are durable: wake the subscriptions that wait for new entries."""
        if self.transactions is not None:
            self.transactions.durable = last_entry_id
            last_entry_id = self._read_through(self.transactions)
        self.last_entry_id = last_entry_id
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                subscription.wake()

    def _read_through(self, transactions: TransactionEntries) -> int:
        """The last entry that may be read; aborted ones that come into reach are acknowledged everywhere."""
        readable = max(transactions.readable, self.last_entry_id)
        for entries in transactions.aborted_within(self.last_entry_id + 1, readable):
            for subscription in self.subscriptions.values():
                subscription.moves.acknowledge_aborted(entries)
        return readable

    def end_transaction(self, transaction: TransactionId, *, commit: bool) -> None:
        """A transaction has ended: what it has kept back may be read, or never will be."""
        if self.transactions is not None:
            messages, nbytes = self.transactions.end(transaction, commit=commit)
            self.ended = self.ended.plus(messages, nbytes, commit=commit)
            self.appended(self.transactions.durable)
            if self.transactions.unused:
                self.transactions = None

    def forget_trimmed(self) -> bool:
        """Forget aborted entries that are not in the log any more; return whether rows of some may be stored."""
        if self.transactions is None or not self.transactions.aborted:
            return False
        self.transactions.forget_before(self.first_entry_id)
        return True

    @property
    def durable_entry_id(self) -> int:
        """The last entry that is on disk, whether it may be read or not."""
        return self.last_entry_id if self.transactions is None else self.transactions.durable

    @property
    def holds_back(self) -> bool:
        """Whether an open transaction keeps durable entries back."""
        return self.durable_entry_id > self.last_entry_id

    def wants_tail(self) -> bool:
        """Whether a connected consumer is likely to read new entries soon, so that caching them pays."""
        for subscription in self.subscriptions.values():  # noqa: SIM110 -- asked for each run, and usually there are few
            if subscription.consumers:
                return True
        return False

    def pass_through(self, batch: Batch) -> None:
        """Deliver entries of a non-persistent topic to consumers with permits. They are not stored."""
        self.last_entry_id = batch.entry_ids[-1]
        for subscription in self.subscriptions.values():
            subscription.offer(batch)

    def retained_from(self) -> int:
        """The first entry to keep: all durable subscriptions have acknowledged the earlier ones, a step ago.

        A topic without a durable subscription keeps everything. With a retention policy, `Retention` moves
        `first_entry_id` instead.
        """
        needed = self.first_needed()
        if needed is None or retains(self.policies):
            return self.first_entry_id
        needed = min(needed, self.counted_before)
        return max(self.first_entry_id, needed // TRIM_STEP_ENTRIES * TRIM_STEP_ENTRIES)

    def first_needed(self) -> int | None:
        """The first entry that a durable subscription needs, retention aside; None without a durable subscription."""
        marks = [s.cursor.mark_delete for s in self.subscriptions.values() if s.durable]
        if not marks:
            return None
        replayed = self._services.deduplication.replay_from(self)
        return min(marks) + 1 if replayed is None else min(min(marks) + 1, replayed)


def subscribed_topic(subscription: SubscriptionState | ConsumedSubscription) -> Topic:
    """The topic of a subscription as a `Topic`, for callers that need more than the subscription's port."""
    topic = subscription.topic
    assert isinstance(topic, Topic), "only topics make subscriptions"
    return topic
