# SPDX-License-Identifier: Apache-2.0
"""A frozen view of the whole broker, for metrics and the admin API.

Why: rendering live objects would block the loop, show half-finished changes, and depend on their internals. Here
everything is read in one place, on the loop, into plain numbers and strings, and rendered elsewhere.
Where: the admin API takes one for a request; telemetry renders it. No counter exists only for it.

Many topics are read in several turns of the loop. Each topic without its subscriptions, each subscription and each
connection is consistent; two of them may be a few milliseconds apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.stats.topic_stats import in_replay
from penstock.broker.subscriptions.state import TYPE_NAMES
from penstock.core.units import NS_PER_MS
from penstock.stats.process import process_use
from penstock.stats.reading import Taking, group_traffic, memory_rows, muted_connections, shared, turns
from penstock.stats.snapshot import ServerSnapshot, SharingSnapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from penstock.broker.health import Health
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.resource_groups import Groups
    from penstock.broker.records.recorder import Recorder
    from penstock.broker.replication.replication import Replication
    from penstock.broker.stats.message_rates import MessageRates
    from penstock.broker.subscriptions.replicating import SubscribedReplicator
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
    from penstock.broker.topics.delayed_index import DelayedIndex
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.shared_listings import SharedListings
    from penstock.broker.topics.topic import Topic
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.core.clock import Clock
    from penstock.core.durations import DurationsByName, DurationsSnapshot
    from penstock.core.membership import Member, Membership
    from penstock.governance.budget import Budget
    from penstock.governance.holds import HoldKind
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.groups.live_exchange import SharedQuotas
    from penstock.net.listener import Connections
    from penstock.net.loop_turns import LoopTurns
    from penstock.stats.disk_space import DiskSpace, DiskUse
    from penstock.stats.expiry import Expiries
    from penstock.stats.reading import Client, Pace
    from penstock.storage.entry_log import EntryLog, LogStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSnapshot:
    """One subscription. Counters start when the subscription is loaded or made."""

    name: str
    type: str  # as in Pulsar: Exclusive, Shared, Failover, Key_Shared
    durable: bool
    consumers: int
    backlog: int  # unacknowledged entries
    unacked: int  # delivered and not acknowledged messages; counted in Shared subscriptions
    blocked: bool  # nothing is delivered until messages are acknowledged
    messages_out: int
    bytes_out: int
    dropped: int  # entries of a non-persistent topic dropped for lack of permits
    delayed: int  # entries held until their delivery time
    delayed_index_bytes: int = 0  # of the topic's shared index; 0 if the subscription does not use it
    in_replay: int  # entries waiting for redelivery
    expired: int  # entries acknowledged by expiry
    # Per second, over the last 30 to 60 seconds.
    message_rate_out: float
    byte_rate_out: float
    redelivery_rate: float
    ack_rate: float
    expiry_rate: float
    drop_rate: float
    # In ms since 1970; 0 for never.
    last_expired_ms: int
    last_flow_ms: int
    last_consumed_ms: int
    last_acked_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorSnapshot:
    """Replication of one topic to one other cluster."""

    cluster: str  # the other one
    connected: bool  # its producer is open
    backlog: int  # entries that were not stored there
    message_rate_out: float
    byte_rate_out: float
    messages_out: int
    delay_s: int  # for how long it has not gone on; 0 while it does


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedSnapshot:
    """The delayed messages of one topic. Times are in ms since 1970; 0 for none."""

    index_bytes: int = 0  # shared by all subscriptions
    next_ms: int = 0  # earliest delivery time in the index
    furthest_ms: int = 0  # latest delivery time in the index
    spilled: int = 0  # upper bound of messages on disk only, for lack of memory
    delivered: int = 0  # over all subscriptions
    lateness_ms_sum: int = 0  # sum of the delays after their delivery time
    lateness_ms_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """One topic loaded since the start; its counters start when it is loaded."""

    name: str  # full name: persistent://tenant/namespace/topic
    namespace: str  # tenant/namespace
    producers: int
    messages_in: int
    bytes_in: int
    entries_in: int
    messages_out: int  # to all subscriptions, deleted ones included
    bytes_out: int
    # Per second, over the last 30 to 60 seconds.
    message_rate_in: float
    byte_rate_in: float
    publish_limited: int  # how often a rate limit stopped its producers
    delayed: DelayedSnapshot = DelayedSnapshot()
    held_for_ms: int | None = None  # how old the open transaction is that keeps entries back; None: none does
    subscriptions: tuple[SubscriptionSnapshot, ...]
    replicators: tuple[ReplicatorSnapshot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsSnapshot:
    """The coordinator of transactions. Counters start with the broker."""

    coordinator: int  # its number
    open: int
    opened: int
    committed: int
    aborted: int  # those that have timed out included
    timed_out: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BrokerSnapshot(ServerSnapshot):
    """The whole broker, at (nearly) one moment."""

    health: Health
    lookups_pending: int
    topic_loads_pending: int
    topics: tuple[TopicSnapshot, ...]
    log: LogStats
    log_read_only: bool
    log_stalled: bool
    publish_times: Mapping[str, DurationsSnapshot] = field(default_factory=dict)  # by namespace
    dispatch_waits: Mapping[str, DurationsSnapshot] = field(default_factory=dict)  # likewise
    disk: DiskUse | None = None  # None: not measured
    transactions: TransactionsSnapshot | None = None  # None: they are not enabled
    subscription_snapshots_pending: int = 0  # of replicated subscriptions, by all topics
    subscription_snapshots_unanswered: int = 0
    brokers: tuple[Member, ...] = ()  # of the cluster, as the supervisor said last
    brokers_age_ns: int = 0


class Snapshots(Taking[BrokerSnapshot]):
    """Takes snapshots. All methods are called on the broker's loop."""

    def __init__(
        self,
        *,
        cluster: str,
        started_at_ms: int,
        stopping: Callable[[], bool],
        health: Callable[[], Health],
        membership: Membership,
        topics: TopicDirectory,
        transactions: Coordinator,
        lookups: ConcurrencyLimit,
        clients: Collection[Client],
        message_rates: MessageRates,
        connections: Connections,
        log: EntryLog,
        listings: SharedListings,
        budget: Budget,
        holds: Callable[[], Awaitable[Mapping[HoldKind, int]]],
        groups: Groups,
        sharing: SharedQuotas | None = None,
        throttling: AdaptiveThrottling[PublishedTopic] | None = None,
        recorder: Recorder | None = None,
        loop_turns: LoopTurns,
        publish_times: DurationsByName,
        dispatch_waits: DurationsByName,
        clock: Clock,
        disk_space: DiskSpace | None = None,
        replication: Callable[[], Replication | None] = lambda: None,
        expiries: Expiries | None = None,
    ) -> None:
        self._cluster = cluster
        self._started_at_ms = started_at_ms
        self._stopping = stopping
        self._health = health
        self._membership = membership
        self._topics = topics
        self._transactions = transactions
        self._lookups = lookups
        self._clients = clients
        self._message_rates = message_rates
        self._connections = connections
        self._log = log
        self._listings = listings
        self._budget = budget
        self._holds = holds
        self._groups = groups
        self._sharing = sharing
        self._throttling = throttling
        self._recorder = recorder
        self._disk_space = disk_space
        self._replication = replication
        self._expiries = expiries
        self._loop_turns = loop_turns
        self._publish_times = publish_times
        self._dispatch_waits = dispatch_waits
        super().__init__(self._read_all, clock)
        # The same without topics, whatever their number; what waits there is counted.
        self.without_topics: Taking[BrokerSnapshot] = Taking(self._read_others, clock)

    async def _read_all(self, pace: Pace) -> BrokerSnapshot:
        """Read everything, in portions, so that the loop continues in between."""
        topics = [await self._topic(topic, pace) for topic in self._topics.loaded()]
        return await self._with_topics(topics, pace)

    async def _read_others(self, pace: Pace) -> BrokerSnapshot:
        return await self._with_topics((), pace)

    async def _with_topics(self, topics: Iterable[TopicSnapshot], pace: Pace) -> BrokerSnapshot:
        connections = self._connections
        now_ns = self._clock.monotonic_ns()
        request_memory = connections.memory.snapshot(now_ns)
        muted = await muted_connections(self._clients, request_memory.muted, now_ns, pace)
        log_health, replication = self._log.health, self._replication()
        return BrokerSnapshot(
            cluster=self._cluster,
            started_at_ms=self._started_at_ms,
            taken_at_ms=self._clock.wall_ms(),
            stopping=self._stopping(),
            health=self._health(),
            brokers=tuple(self._membership.members.values()),
            brokers_age_ns=self._membership.age_ns(now_ns),
            connections_accepted=connections.accepted,
            connections_open=len(connections),
            lookups_pending=self._lookups.inside,
            topic_loads_pending=self._topics.loading,
            muted=muted,
            topics=tuple(topics),
            transactions=_transactions(self._transactions) if self._transactions.enabled else None,
            log=self._log.stats(),
            log_read_only=log_health.read_only is not None,
            log_stalled=log_health.stalled,
            publish_times=self._publish_times.snapshot(),
            dispatch_waits=self._dispatch_waits.snapshot(),
            disk=self._disk_space.last if self._disk_space is not None else None,
            subscription_snapshots_pending=replication.snapshots.pending if replication is not None else 0,
            subscription_snapshots_unanswered=replication.snapshots.timed_out if replication is not None else 0,
            expiries=(self._expiries.last or ()) if self._expiries is not None else (),
            request_memory=request_memory,
            listings=self._listings.snapshot(),
            memory=memory_rows(self._budget),
            holds=await self._holds(),
            resource_groups=await group_traffic(self._groups.in_use, self._clock, pace),
            sharing=await shared(self._sharing, self._groups.in_use, pace) if self._sharing else SharingSnapshot(),
            throttling=self._throttling.snapshot() if self._throttling is not None else None,
            records=self._recorder.snapshot() if self._recorder is not None else None,
            loop_turns=turns(self._loop_turns),
            process=process_use(),
        )

    async def _topic(self, topic: Topic, pace: Pace) -> TopicSnapshot:
        subscriptions, replicators = [], []
        for subscription in list(topic.subscriptions.values()):
            if subscription.replicator is not None:
                replicators.append(self._replicator(subscription, subscription.replicator))
                continue
            subscriptions.append(self._subscription(subscription))
            await pace.rows(1 + len(subscription.consumers))
        await pace.rows(1)
        rate = self._message_rates.rates_in(topic)
        return TopicSnapshot(
            name=topic.text,
            namespace=f"{topic.name.tenant}/{topic.name.namespace}",
            producers=len(topic.producers),
            messages_in=topic.messages_in,
            bytes_in=topic.bytes_in,
            entries_in=topic.entries_in,
            messages_out=topic.messages_out,
            bytes_out=topic.bytes_out,
            message_rate_in=rate.messages,
            byte_rate_in=rate.bytes,
            publish_limited=topic.publish_limited_times,
            delayed=_delayed(topic.delayed) if topic.delayed is not None else DelayedSnapshot(),
            held_for_ms=self._held_for_ms(topic),
            subscriptions=tuple(subscriptions),
            replicators=tuple(replicators),
        )

    def _replicator(self, subscription: Subscription, replicator: SubscribedReplicator) -> ReplicatorSnapshot:
        rate = self._message_rates.rates_out(subscription)
        return ReplicatorSnapshot(
            cluster=replicator.cluster,
            connected=bool(replicator.connection),
            backlog=subscription.backlog,
            message_rate_out=rate.messages,
            byte_rate_out=rate.bytes,
            messages_out=subscription.messages_out,
            delay_s=replicator.delay_s(self._clock.monotonic_ns()),
        )

    def _held_for_ms(self, topic: Topic) -> int | None:
        if topic.transactions is None:
            return None
        found = self._transactions.find(topic.transactions.oldest)
        return (self._clock.monotonic_ns() - found.since_ns) // NS_PER_MS if found is not None else None

    def _subscription(self, subscription: Subscription) -> SubscriptionSnapshot:
        rate = self._message_rates.rates_out(subscription)
        return SubscriptionSnapshot(
            name=subscription.name,
            type=TYPE_NAMES[subscription.kind],
            durable=subscription.durable,
            consumers=len(subscription.consumers),
            backlog=subscription.backlog,
            unacked=subscription.unacked,
            blocked=subscription.blocked,
            messages_out=subscription.messages_out,
            bytes_out=subscription.bytes_out,
            dropped=subscription.dropped,
            delayed=subscription.delayed,
            delayed_index_bytes=subscription.view.buffer_memory_bytes() if subscription.view is not None else 0,
            in_replay=in_replay(subscription),
            expired=subscription.expired,
            message_rate_out=rate.messages,
            byte_rate_out=rate.bytes,
            redelivery_rate=rate.redelivered,
            ack_rate=rate.acks,
            expiry_rate=rate.expired,
            drop_rate=rate.dropped,
            last_expired_ms=subscription.last_expired_ms,
            last_flow_ms=subscription.last_flow_ms,
            last_consumed_ms=subscription.last_consumed_ms,
            last_acked_ms=subscription.last_acked_ms,
        )


def _transactions(coordinator: Coordinator) -> TransactionsSnapshot:
    return TransactionsSnapshot(
        coordinator=coordinator.number,
        open=coordinator.open_count,
        opened=coordinator.opened_total,
        committed=coordinator.committed_total,
        aborted=coordinator.aborted_total,
        timed_out=coordinator.timed_out_total,
    )


def _delayed(index: DelayedIndex) -> DelayedSnapshot:
    manager = index.manager
    return DelayedSnapshot(
        index_bytes=manager.topic_buffer_memory_bytes(),
        next_ms=manager.next_delivery_ms() or 0,
        furthest_ms=manager.furthest_delivery_ms() or 0,
        spilled=manager.spilled,
        delivered=index.delivered,
        lateness_ms_sum=index.lateness_ms_sum,
        lateness_ms_max=index.lateness_ms_max,
    )
