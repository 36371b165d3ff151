# SPDX-License-Identifier: Apache-2.0
"""Subscriptions without a socket, a disk or a broker: plain objects stand in for what `subscriptions/ports` names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.broker.subscriptions.consumer import Consumer, DispatchServices
from penstock.broker.subscriptions.delivery import QueuedEntries
from penstock.broker.subscriptions.key_ranges import AUTO_SPLIT
from penstock.broker.subscriptions.subscription import Subscription
from penstock.broker.subscriptions.tail import Tail
from penstock.core.clock import ManualClock
from penstock.core.durations import Durations
from penstock.core.names import TopicName
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.governance.delayed import DelayedDeliveryTrackerFactory
from penstock.governance.delayed_memory import DelayedMemory
from penstock.governance.delayed_options import DelayedOptions
from penstock.governance.outbound import Reading
from penstock.net.loop_turns import LoopTurns
from penstock.storage.cursor import Cursor
from penstock.storage.damage import MissingEntries
from penstock.storage.results import Batch, ReadResult
from penstock.wire import codec
from penstock.wire.events import AckRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.broker.subscriptions.consumer import DelayedMessages
    from penstock.broker.subscriptions.key_ranges import KeySharing
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.governance.outbound import Holder
    from penstock.net.send_queue import Buffer
    from penstock.net.send_queue import QueuedEntries as Queued
    from penstock.storage.entry_log import EntryLog

T = TypeVar("T")

LEDGER_ID = 1


class Outlet:
    """Keeps what is delivered, up to `room_bytes`; a test takes it out and makes room."""

    def __init__(self, room_bytes: int = 1 << 30) -> None:
        self.peer = "client:1"
        self.is_open = True
        self.room_bytes = room_bytes
        self.out_bytes = self.bytes_out = 0
        self.wanted_bytes = 1
        self.queued: list[QueuedEntries] = []
        self.frames: list[bytes] = []

    def takes_entries(self) -> bool:
        return self.is_open and self.room_bytes >= self.wanted_bytes

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        assert isinstance(wanting, Consumer)
        self.wanted_bytes = nbytes

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: Queued | None = None) -> None:
        assert sum(map(len, buffers)) == nbytes <= self.room_bytes
        self.wanted_bytes = 1
        self.room_bytes -= nbytes
        self.bytes_out += nbytes
        assert isinstance(entries, QueuedEntries)
        self.queued.append(entries)

    def write_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def entry_ids(self) -> list[int]:
        """What was delivered and not put back, in its order."""
        return [entry_id for entries in self.queued for entry_id in entries.entry_ids]


class Client:
    """A client that is told when its consumer must go."""

    protocol_version = codec.PROTOCOL_ACTIVE_CONSUMER_CHANGE
    client_version = "test"
    payer_role = None
    through_proxy = False

    def disconnect_consumer(self, consumer: Consumer) -> None:
        consumer.subscription.remove(consumer)

    async def probe(self) -> bool:
        return True


class Loop:
    """Turns and timers that happen when a test says so."""

    def __init__(self) -> None:
        self.soon: list[Call] = []
        self.later: list[Call] = []

    def call_soon(self, callback: Callable[[], object], /) -> Call:
        self.soon.append(Call(callback))
        return self.soon[-1]

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Call:
        assert delay > 0
        self.later.append(Call(callback))
        return self.later[-1]

    def turn(self) -> None:
        """Let turns pass until nothing is to be done."""
        while self.soon:
            calls, self.soon = self.soon, []
            for call in calls:
                call()

    def pass_time(self) -> None:
        """Let all timers expire that are set, and what follows happen."""
        calls, self.later = self.later, []
        for call in calls:
            call()
        self.turn()


@dataclass
class Call:
    callback: Callable[[], object] | None

    def __call__(self) -> None:
        if self.callback is not None:
            self.callback()

    def cancel(self) -> None:
        self.callback = None


class Log:
    """Entries in memory, read at once; `broken` reads fail."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.missing = MissingEntries()
        self.broken = False
        self.reads = 0

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> asyncio.Future[ReadResult]:
        assert ledger_id == LEDGER_ID
        assert first_bytes_max == bytes_max > 0
        rows = [row for row, one in enumerate(self.batch.entry_ids) if one >= entry_id][:entries_max]
        result = ReadResult(self.batch.entry_ids[rows[-1]] + 1)
        result.batches.append(pick(self.batch, rows))
        return self._answer(result)

    def in_thread(self, read: Callable[[], T]) -> asyncio.Future[T]:
        raise NotImplementedError(read)

    def gather(self, entry_ids: list[int], bytes_max: int) -> asyncio.Future[ReadResult]:
        assert bytes_max > 0
        result = ReadResult(entry_ids[-1] + 1)
        result.batches.append(pick(self.batch, [self.batch.entry_ids.index(one) for one in entry_ids]))
        return self._answer(result)

    def _answer(self, result: ReadResult) -> asyncio.Future[ReadResult]:
        self.reads += 1
        future: asyncio.Future[ReadResult] = asyncio.get_running_loop().create_future()
        if self.broken:
            future.set_exception(OSError("the disk is ill"))
        else:
            future.set_result(result)
        return future


def pick(batch: Batch, rows: Sequence[int]) -> Batch:
    counts = batch.message_counts
    return Batch(
        batch.ledger_id,
        [batch.entry_ids[row] for row in rows],
        batch.data,
        [batch.offsets[row] for row in rows],
        [batch.lengths[row] for row in rows],
        None if counts is None else [counts[row] for row in rows],
    )


def sealed(number: int, key: str = "") -> bytes:
    """An entry as it is stored, with a partition key if one is given."""
    fields = codec.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if key:
        fields.partition_key = key
    head = fields.SerializeToString()
    return b"\x0e\x01\0\0\0\0" + len(head).to_bytes(4, "big") + head + b"%04d" % number


def batch_of(keys: Iterable[str], counts: Sequence[int] | None = None, first: int = 0) -> Batch:
    """A run of entries with these keys, of which each holds so many messages."""
    entries = [sealed(number, key) for number, key in enumerate(keys, first)]
    offsets = [sum(map(len, entries[:row])) for row in range(len(entries))]
    ids = range(first, first + len(entries))
    return Batch(LEDGER_ID, ids, b"".join(entries), offsets, list(map(len, entries)), counts)


@dataclass
class Topic:
    """A persistent topic with these entries, in its tail cache or in the log only."""

    batch: Batch
    cached: bool = True
    partition: int = -1
    name: TopicName = field(default_factory=lambda: TopicName.parse("persistent://public/default/t"))
    persistent: bool = True
    ledger_id: int = LEDGER_ID
    first_entry_id: int = 0
    terminated: bool = False
    holds_back: bool = False
    closed: bool = False
    compacted: None = None
    delays: bool = False
    delayed: DelayedMessages | None = None
    clients: None = None

    def __post_init__(self) -> None:
        self.text = str(self.name)
        self.dispatch_waits = Durations()
        self.policies = SimpleNamespace(max_unacked_per_consumer=0, max_unacked_per_subscription=0)
        self.subscriptions: Mapping[str, SubscriptionState] = {}
        self.tail = Tail()
        if self.cached:
            self.tail.batches.append(self.batch)
            self.tail.firsts.append(self.batch.entry_ids[0])
        self.log = Log(self.batch)
        self.replay_reads: Any = SimpleNamespace(read=self.log.gather, asked_for=lambda _future, entry_ids: entry_ids)
        self.ended: list[SubscriptionState] = []

    @property
    def last_entry_id(self) -> int:
        return self.batch.entry_ids[-1]

    def retained_from(self) -> int:
        return 0

    def join_delayed(self, subscription: SubscriptionState) -> DelayedDeliveryView:
        manager = DelayedDeliveryTrackerFactory(DelayedMemory(MIB)).manager(self.text, 0, DelayedOptions())
        return manager.create_or_get_view(subscription.name, subscription.cursor)

    def leave_delayed(self, subscription: SubscriptionState) -> None:
        raise AssertionError(subscription)

    def pass_cancelled(self, cursor: Cursor) -> None:
        assert cursor is not None

    def end_if_idle(self, subscription: SubscriptionState) -> None:
        self.ended.append(subscription)


class Room:
    """Room for reads, as much as is asked for; what is not given back is seen."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.freed = 0

    @property
    def outbound(self) -> Room:
        return self

    def charge_read(self, holders: Iterable[Holder], bytes_max: int) -> Reading:
        assert list(holders)
        self.taken_bytes += bytes_max
        return Reading(bytes_max, in_turn=False)

    def release_read(self, reading: Reading) -> None:
        self.taken_bytes -= reading.nbytes

    def outbound_freed(self) -> None:
        self.freed += 1


class Saves:
    """Counts how often cursors moved, and which were to be saved at once."""

    def __init__(self) -> None:
        self.moves = 0
        self.saved: list[SubscriptionState] = []

    def moved(self, subscription: SubscriptionState) -> None:
        assert subscription.durable
        self.moves += 1

    async def save(self, *subscriptions: SubscriptionState) -> None:
        self.saved.extend(subscriptions)


class World:
    """One subscription and what it needs."""

    def __init__(self, topic: Topic, kind: int) -> None:
        self.topic = topic
        self.kind = kind
        self.loop = Loop()
        self.memory = Row("dispatch", 1 << 20)
        self.room = Room()
        self.clock = ManualClock()
        self.saves = Saves()
        self.waiting: list[object] = []
        self.limits = SimpleNamespace(
            failover_delay_s=1.0,
            round_robin_entries_max=2,
            batch_index_acks=True,
            key_shared_consistent_hashing=True,
            key_shared_points=100,
        )
        services = DispatchServices(
            clock=self.clock,
            loop=self.loop,
            dispatch_soon=self.loop.call_soon,
            limits=lambda: self.limits,
            log=cast("EntryLog", topic.log),
            reads=topic.log,
            outlets=self.room,
            memory=self.memory,
            memory_waits=SimpleNamespace(add=self.waiting.append),
            long_keys=SimpleNamespace(start=None),
            cursors=self.saves,
            properties=lambda _topic, _name: {},
            turn=LoopTurns(),
        )
        self.subscription = Subscription(topic, "s", cursor=Cursor(-1), durable=True, services=services)

    def consumer(
        self,
        permits: int = 1_000,
        *,
        room_bytes: int = 1 << 30,
        priority_level: int = 0,
        sharing: KeySharing = AUTO_SPLIT,
    ) -> tuple[Consumer, Outlet]:
        """Attach a consumer; nothing is delivered before the next turn of the loop."""
        outlet, number = Outlet(room_bytes), len(self.subscription.consumers)
        consumer = Consumer(
            session=Client(),
            outlet=outlet,
            consumer_id=number,
            name=f"c{number}",
            priority_level=priority_level,
            subscription=self.subscription,
            epoch=None,
            connected_at_ms=0,
            key_sharing=sharing,
        )
        self.subscription.add(consumer, self.kind)
        self.subscription.attached(consumer)
        if permits:
            self.subscription.flow(consumer, permits)
        return consumer, outlet

    def acknowledge(self, consumer: Consumer, *entry_ids: int) -> None:
        """Acknowledge these entries one by one, and let what follows happen."""
        run = AckRun(
            consumer.consumer_id, cumulative=False, ledger_ids=[LEDGER_ID] * len(entry_ids), entry_ids=[*entry_ids]
        )
        assert self.subscription.acknowledge(consumer, run) is None
        self.loop.turn()
