# SPDX-License-Identifier: Apache-2.0
"""A frozen view of the whole broker, for metrics and the admin API.

Why: rendering live objects would block the loop, show half-finished changes, and depend on their internals. Here
everything is read in one place, on the loop, into plain numbers and strings, and rendered elsewhere.
Where: the admin API takes one for a request; telemetry renders it. No counter exists only for it.

Many topics are read in several turns of the loop. Each topic without its subscriptions, each subscription and each
connection is consistent; two of them may be a few milliseconds apart. Requests that arrive while a snapshot is taken
share it: sixty at once, each with its own, would be sixty portions in each turn.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.process_memory import resident_bytes
from penstock.broker.stats.stats import in_replay
from penstock.broker.subscriptions.state import TYPE_NAMES
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.broker.health import Health
    from penstock.broker.publishing.adaptive_throttling import AdaptiveThrottling, ThrottlingSnapshot
    from penstock.broker.publishing.groups import Groups
    from penstock.broker.publishing.quota_sharing import QuotaSharing
    from penstock.broker.records.recorder import Recorder, RecordsSnapshot
    from penstock.broker.stats.message_rates import MessageRates
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.subscriptions.tail import TailCache
    from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
    from penstock.broker.topics.delayed_index import DelayedIndex
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.shared_listings import SharedListings
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.membership import Registration
    from penstock.governance.delayed_memory import DelayedMemory
    from penstock.governance.resource_group import ClassLimiter, GroupRate
    from penstock.governance.snapshot import MutedReader, RequestMemorySnapshot
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.net.loop_turns import LoopTurns
    from penstock.net.topic_list_limiter import TopicListSnapshot
    from penstock.storage.entry_log import EntryLog, LogStats

# Objects read in one turn of the loop: well under a millisecond. Only publishing may block it for more than five.
ROWS_PER_TURN: Final = 200

# Snapshots that may be in use at a time: responses to slow readers are rendered from them, piece by piece.
HELD_MAX: Final = 4
# A response ends within this time (`admin.http_server`).
HELD_NS_MAX: Final = 60 * NS_PER_S


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
    subscriptions: tuple[SubscriptionSnapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTrafficSnapshot:
    """Publish or dispatch traffic of one resource group on this broker. Rates are per second; -1: no limit."""

    group: str
    traffic: str  # "publish" or "dispatch"
    messages: int  # passed since the group is in use here
    bytes: int
    quota_messages: float  # of all brokers together
    quota_bytes: float
    share_messages: float  # of this broker
    share_bytes: float
    waiting: int  # topics (publish) or subscriptions (dispatch) that wait for the group
    held_messages: int  # SENDs that wait in memory
    held_bytes: int
    throttled_ns: int  # for how long something has been waiting, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUsage:
    """What another broker wants of a group, by its last report; per second."""

    group: str
    traffic: str  # "publish" or "dispatch"
    broker: str
    messages: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSnapshot:
    """Quotas that are shared with other brokers."""

    connected: bool = False  # to the usage topic
    failures: int = 0
    reports: Mapping[str, int] = field(default_factory=dict)  # sent, received, and by reason why they did not count
    remote: tuple[RemoteUsage, ...] = ()
    members: int = 0  # that share quotas now, this broker included
    registration: Registration | None = None  # None: brokers do not register


@dataclass(frozen=True, slots=True, kw_only=True)
class MutedConnection:
    """A connection that is not read, with the reasons and its memory."""

    peer: str
    muted_ns: int  # duration
    reasons: tuple[str, ...]  # oldest first
    held_bytes: int  # read and not handled yet: an unfinished frame, or commands
    want_bytes: int  # size of the next read; 0 if it does not wait for request memory
    command_bytes: int = 0  # charged for its pending commands
    unsent_bytes: int = 0  # answers and messages not sent yet


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Use and limit of one row of the memory budget."""

    used_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Figures of the operating system for this process."""

    resident_bytes: int
    cpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTurnsSnapshot:
    """Durations of the event loop's turns."""

    longest_ns: int = 0  # since the start
    longer: Mapping[int, int] = field(default_factory=dict)  # threshold in ms -> number of turns that took longer


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class BrokerSnapshot:
    """The whole broker, at (nearly) one moment. A key of weak dictionaries, by identity."""

    cluster: str
    started_at_ms: int
    taken_at_ms: int
    stopping: bool
    health: Health
    connections_accepted: int
    connections_open: int
    lookups_pending: int
    topic_loads_pending: int
    muted: tuple[MutedConnection, ...]
    topics: tuple[TopicSnapshot, ...]
    log: LogStats
    log_read_only: bool
    log_stalled: bool
    request_memory: RequestMemorySnapshot
    listings: TopicListSnapshot
    outbound: MemoryUse
    tail_cache: MemoryUse
    delayed_index: MemoryUse = MemoryUse(used_bytes=0, budget_bytes=0)
    rows: Mapping[str, MemoryUse] = field(default_factory=dict)  # the other rows of the memory budget, by name
    resource_groups: tuple[GroupTrafficSnapshot, ...] = ()
    sharing: SharingSnapshot = field(default_factory=SharingSnapshot)
    throttling: ThrottlingSnapshot | None = None  # None: disabled
    records: RecordsSnapshot | None = None  # None: nothing is recorded
    loop_turns: LoopTurnsSnapshot = LoopTurnsSnapshot()
    process: ProcessUse


class Row(Protocol):
    """A row of the memory budget."""

    @property
    def name(self) -> str: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """The limit."""


class Client(Protocol):
    """A connected client."""

    @property
    def connection(self) -> Connection: ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes charged for pending commands."""


class Snapshots:
    """Takes snapshots. All methods are called on the broker's loop."""

    def __init__(
        self,
        *,
        cluster: str,
        started_at_ms: int,
        stopping: Callable[[], bool],
        health: Callable[[], Health],
        topics: TopicDirectory,
        lookups: ConcurrencyLimit,
        clients: Collection[Client],
        message_rates: MessageRates,
        connections: Connections,
        log: EntryLog,
        listings: SharedListings,
        tail_cache: TailCache,
        delayed_memory: Callable[[], DelayedMemory],
        rows: Sequence[Row],
        groups: Groups,
        sharing: QuotaSharing | None = None,
        throttling: AdaptiveThrottling | None = None,
        recorder: Recorder | None = None,
        loop_turns: LoopTurns,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._started_at_ms = started_at_ms
        self._stopping = stopping
        self._health = health
        self._topics = topics
        self._lookups = lookups
        self._clients = clients
        self._message_rates = message_rates
        self._connections = connections
        self._log = log
        self._listings = listings
        self._tail_cache = tail_cache
        self._delayed_memory = delayed_memory
        self._rows = rows
        self._groups = groups
        self._sharing = sharing
        self._throttling = throttling
        self._recorder = recorder
        self._loop_turns = loop_turns
        self._clock = clock
        self._taking: asyncio.Task[BrokerSnapshot] | None = None
        self._taken: list[tuple[int, weakref.ref[BrokerSnapshot]]] = []  # and when, oldest first

    async def take(self) -> BrokerSnapshot:
        """Return the snapshot that is being taken, or take one.

        If `HELD_MAX` earlier ones are still in use, return the newest of these, so that slow readers cannot make the
        broker hold any number of them.
        """
        if self._taking is None:
            held = self._held()
            if len(held) >= HELD_MAX:
                return held[-1]
            self._taking = asyncio.get_running_loop().create_task(self._read())
            self._taking.add_done_callback(self._has_taken)
        return await asyncio.shield(self._taking)  # A caller that is cancelled must not cancel the others.

    def _held(self) -> list[BrokerSnapshot]:
        since_ns = self._clock.monotonic_ns() - HELD_NS_MAX
        self._taken = [(at_ns, taken) for at_ns, taken in self._taken if at_ns > since_ns and taken() is not None]
        return [snapshot for _, taken in self._taken if (snapshot := taken()) is not None]

    def _has_taken(self, taking: asyncio.Task[BrokerSnapshot]) -> None:
        self._taking = None
        if not taking.cancelled() and taking.exception() is None:
            self._taken.append((self._clock.monotonic_ns(), weakref.ref(taking.result())))

    async def _read(self) -> BrokerSnapshot:
        """Read everything, in portions, so that the loop continues in between."""
        pace = _Pace()
        topics = [await self._topic(topic, pace) for topic in self._topics.loaded()]
        connections = self._connections
        request_memory = connections.memory.snapshot(self._clock.monotonic_ns())
        muted = await self._muted_connections({reader.owner: reader for reader in request_memory.muted}, pace)
        log_health, loop_turns, delayed_memory = self._log.health, self._loop_turns, self._delayed_memory()
        return BrokerSnapshot(
            cluster=self._cluster,
            started_at_ms=self._started_at_ms,
            taken_at_ms=self._clock.wall_ms(),
            stopping=self._stopping(),
            health=self._health(),
            connections_accepted=connections.accepted,
            connections_open=len(connections),
            lookups_pending=self._lookups.inside,
            topic_loads_pending=self._topics.loading,
            muted=muted,
            topics=tuple(topics),
            log=self._log.stats(),
            log_read_only=log_health.read_only is not None,
            log_stalled=log_health.stalled,
            request_memory=request_memory,
            listings=self._listings.snapshot(),
            outbound=MemoryUse(
                used_bytes=connections.outbound.used_bytes, budget_bytes=connections.outbound.budget_bytes
            ),
            tail_cache=MemoryUse(used_bytes=self._tail_cache.used_bytes, budget_bytes=self._tail_cache.budget_bytes),
            delayed_index=MemoryUse(used_bytes=delayed_memory.used_bytes, budget_bytes=delayed_memory.size_bytes),
            rows={row.name: MemoryUse(used_bytes=row.used_bytes, budget_bytes=row.size_bytes) for row in self._rows},
            resource_groups=await self._resource_groups(pace),
            sharing=await self._shared(self._sharing, pace) if self._sharing is not None else SharingSnapshot(),
            throttling=self._throttling.snapshot() if self._throttling is not None else None,
            records=self._recorder.snapshot() if self._recorder is not None else None,
            loop_turns=LoopTurnsSnapshot(longest_ns=loop_turns.longest_ns, longer=dict(loop_turns.longer)),
            process=ProcessUse(resident_bytes=resident_bytes(), cpu_ns=time.process_time_ns()),
        )

    async def _shared(self, sharing: QuotaSharing, pace: _Pace) -> SharingSnapshot:
        remote = []
        for name in list(self._groups.in_use):
            for broker, (*publish, messages_out, bytes_out) in sharing.others(name).items():
                for traffic, (messages, nbytes) in (("publish", publish), ("dispatch", (messages_out, bytes_out))):
                    remote.append(
                        RemoteUsage(
                            group=name, traffic=traffic, broker=broker, messages=messages / 1_000, bytes=nbytes / 1_000
                        )
                    )
            await pace.rows(1)
        return SharingSnapshot(
            connected=sharing.connected,
            failures=sharing.failures,
            reports={"sent": sharing.sent, "received": sharing.received, **sharing.refused},
            remote=tuple(remote),
            members=sharing.members,
            registration=sharing.registry.registration if sharing.registry is not None else None,
        )

    async def _resource_groups(self, pace: _Pace) -> tuple[GroupTrafficSnapshot, ...]:
        rows = []
        for group in list(self._groups.in_use.values()):
            limiter, now_ns = group.limiter, self._clock.monotonic_ns()
            rows.append(_traffic(group.name, "publish", limiter.publish, group.quota.publish, now_ns, group.publish))
            rows.append(
                _traffic(group.name, "dispatch", limiter.dispatch, group.quota.dispatch, now_ns, group.dispatch)
            )
            await pace.rows(2)
        return tuple(rows)

    async def _topic(self, topic: Topic, pace: _Pace) -> TopicSnapshot:
        subscriptions = []
        for subscription in list(topic.subscriptions.values()):
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
            subscriptions=tuple(subscriptions),
        )

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

    async def _muted_connections(self, waiting: dict[int, MutedReader], pace: _Pace) -> tuple[MutedConnection, ...]:
        muted = []
        for client in list(self._clients):
            connection = client.connection
            mutes = connection.muted.snapshot()
            if mutes:
                reader = waiting.get(connection.id)
                muted.append(
                    MutedConnection(
                        peer=connection.peer,
                        muted_ns=self._clock.monotonic_ns() - mutes[0].since_ns,
                        reasons=tuple(dict.fromkeys(mute.reason.value for mute in mutes)),
                        held_bytes=connection.held_bytes,
                        want_bytes=reader.want_bytes if reader is not None else 0,
                        command_bytes=client.waiting_bytes,
                        unsent_bytes=connection.out_bytes,
                    )
                )
            await pace.rows(1)
        return tuple(muted)


class _Waiting(Protocol):
    @property
    def waiting(self) -> int: ...


def _traffic(
    group: str, traffic: str, limiter: ClassLimiter, quota: GroupRate, now_ns: int, line: _Waiting
) -> GroupTrafficSnapshot:
    share = limiter.share
    return GroupTrafficSnapshot(
        group=group,
        traffic=traffic,
        messages=limiter.messages_passed,
        bytes=limiter.bytes_passed,
        quota_messages=-1 if quota.messages is None else quota.messages,
        quota_bytes=-1 if quota.bytes is None else quota.bytes,
        share_messages=-1 if share.messages is None else share.messages,
        share_bytes=-1 if share.bytes is None else share.bytes,
        waiting=line.waiting,
        held_messages=limiter.held.messages,
        held_bytes=limiter.held.bytes,
        throttled_ns=limiter.limited_ns(now_ns),
    )


class _Pace:
    """Yields to the loop after every portion of rows."""

    def __init__(self) -> None:
        self._rows = 0

    async def rows(self, count: int) -> None:
        self._rows += count
        if self._rows >= ROWS_PER_TURN:
            self._rows = 0
            await asyncio.sleep(0)


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
