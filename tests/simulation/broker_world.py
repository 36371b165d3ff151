# SPDX-License-Identifier: Apache-2.0
"""A whole broker with its clients, its administrators and its bad days, in virtual time, by seed.

Producers, consumers of all types, administrators and faults do what they do at once: slow readers, disconnects, topics
that are unloaded or compacted, policies that change, disks that are slow, held, full or that fail, and losses of power
of which only what was synced survives. At the end all faults are over and everybody gets what is due.

What must hold
- What was answered with a receipt is delivered on every subscription, unless a seek or an unsubscription has passed
  over it; so is what any subscription was ever sent.
- A position names one message for ever: nothing is delivered that a crash could take back.
- No message has two positions, though producers of the topic with deduplication send again what was not answered.
- What an ACK_RESPONSE has confirmed is not delivered to anybody who subscribes later, also after a crash, until a
  seek or an unsubscription. Of a batch, this holds for each message.
- Who reads a compacted topic gets the last message of each key.
- Exclusive, Failover and Key_Shared: of one key, messages come for the first time in the order of their positions.
- A delayed message is not delivered to Shared and Key_Shared consumers more than a tick before its time.
- Everything is acknowledged in the end, and no subscription has a backlog.
- When all clients are gone, no memory, no permit and no task is left.

Where: tests/simulation/test_broker.py runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import os
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from penstock.broker.composition.administration import administration
from penstock.core.errors import PenstockError
from penstock.core.names import COMPACTION_SUBSCRIPTION, TopicName
from penstock.core.units import KIB, MIB, NS_PER_MS
from penstock.governance.request_values import RequestLimits
from penstock.storage.limits import LogLimits
from penstock.storage.metadata import close_untouched
from penstock.testing.loop import VirtualClock
from penstock.wire import codec
from tests.net.harness import broker_limits, disk_of, metadata_files, nothing_left, start_broker
from tests.simulation.clients import (
    EXCLUSIVE,
    KEY_SHARED,
    KINDS,
    LATE,
    SHARED,
    Consumer,
    Position,
    Producer,
    Sent,
    Told,
)
from tests.simulation.wire_client import Gone, Refused, Type, Wire, messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random
    from typing import Any

    from penstock.testing.loop import VirtualLoop
    from tests.net.harness import Harness

# How long all of it lasts, and how long the broker has at the end to give everybody what is due, in virtual seconds.
LASTS_S: Final = 8.0
REST_S: Final = 240.0
DATA: Final = Path("/simulated")
FRAME_BYTES_MAX: Final = 64 * KIB
LOG_LIMITS: Final = LogLimits(segment_bytes=MIB, run_bytes_max=256 * KIB, commit_bytes_max=256 * KIB)

# Which start of the broker a callback belongs to: with a loss of power all of that one's are dropped.
_life: contextvars.ContextVar[int] = contextvars.ContextVar("life", default=0)


class World:
    """All of it."""

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.disk = disk_of(loop)
        self.clock = VirtualClock(loop.virtual_time)
        self.harness: Harness | None = None
        self.limits: dict[str, Any] = {}  # of the broker, beside what it always has here
        self.ending = False  # no more faults, no more messages
        self.over = False
        self.events = count()
        self.topics = ["persistent://public/default/plain", "persistent://public/default/once"]
        self.published: dict[tuple[bytes, ...], Sent] = {}
        self.positions: dict[tuple[str, int, int], tuple[bytes, ...]] = {}
        self.position_of: dict[tuple[bytes, ...], Position] = {}
        self.told = [Told(topic, name, kind) for topic in self.topics for name, kind in KINDS.items()]
        self.story: list[str] = []
        self._lives = count(1)
        self._stack = contextlib.AsyncExitStack()
        self._dead: list[object] = []  # kept, so that nothing of them happens before the end
        self._own: set[asyncio.Task[Any]] = set()
        self._context = contextvars.copy_context()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._wires: list[Wire] = []

    # -- the broker's life --------------------------------------------------------------------------------------------

    def tell(self, what: str) -> None:
        """Remember what happened, for whoever looks into a failure."""
        self.story.append(f"{self.loop.time():9.4f} {what}")

    async def start(self) -> None:
        """Start the broker; a disk that cannot do it is healed."""
        self._context = contextvars.copy_context()
        self._context.run(_life.set, next(self._lives))
        self._stack = contextlib.AsyncExitStack()
        harness = self._context.run(
            start_broker,
            self._stack,
            DATA,
            request_limits=RequestLimits(
                request_bytes_max=self.chance.choice((2 * FRAME_BYTES_MAX, MIB)),
                requests_max=self.chance.choice((-1, 20)),
                frame_bytes_max=FRAME_BYTES_MAX,
            ),
            outbound_bytes=self.chance.choice((FRAME_BYTES_MAX, MIB)),
            limits=replace(
                broker_limits(FRAME_BYTES_MAX),
                memory_limit_bytes=0,
                memory_rows={"tail-cache": self.chance.choice((0, MIB))},
                failover_delay_s=self.chance.choice((0.0, 1.0)),
                **self.limits,
            ),
            log_limits=LOG_LIMITS,
            clock=self.clock,
        )
        await self.in_broker(lambda: self._set_up(harness))
        self.harness = harness
        self.tell("started")

    def brokers(self) -> Sequence[Harness]:
        """All brokers that run."""
        return [self.harness] if self.harness is not None else []

    async def _set_up(self, harness: Harness) -> None:
        broker, topic = harness.broker, self.topics[1]
        await broker.topics.get_or_create(TopicName.parse(topic), create=True)
        await broker.policies.set_topic(topic, "deduplication", value=True)
        # From the first message on, compaction keeps what it has not seen.
        plain = await broker.topics.get_or_create(TopicName.parse(self.topics[0]), create=True)
        if COMPACTION_SUBSCRIPTION not in plain.subscriptions:
            await plain.open_subscription(COMPACTION_SUBSCRIPTION, durable=True, start=plain.first_entry_id)

    async def in_broker(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something inside the broker, as the admin port does: with a loss of power it ends."""
        task = asyncio.get_running_loop().create_task(work(), context=self._context)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def stop(self) -> None:
        """Stop the broker in good order."""
        harness = self.harness
        assert harness is not None
        self.harness = None
        await self.in_broker(self._stack.aclose)
        await nothing_left(harness)
        self.tell("stopped")

    async def lose_power(self, *, kill: bool = False) -> None:
        """End the broker in the middle of what it does. What was synced survives; with `kill`, all of the disk."""
        brokers = self.brokers()
        assert brokers
        self.harness = None
        self.tell("is killed" if kill else "loses its power")
        self.disk.lose_power()
        self.loop.threads.abandon()
        ports = {port for one in brokers for port in (one.port, one.tls_port, one.peer_port)}
        for sock in list(self.loop.network.sockets.values()):
            if sock.name[1] in ports:
                sock.close()
        life = self._context[_life]
        dead = [task for task in asyncio.all_tasks() if task not in self._own and task is not asyncio.current_task()]
        dead.sort(key=asyncio.Task.get_name)
        for task in dead:
            task.cancel()
        for _ in range(200):
            if all(task.done() for task in dead):
                break
            await asyncio.sleep(0)
        self.loop.forget(lambda context: context.get(_life) == life)
        for one in brokers:
            for file in metadata_files(one.broker.catalog):
                close_untouched(file._db)  # noqa: SLF001 - as the end of its process does
            with contextlib.suppress(OSError, apsw.Error):
                one.broker.log._index.sealed.close()  # noqa: SLF001
        self._dead += [*brokers, self._stack.pop_all(), *dead]
        self.disk.heal_all()
        if kill:
            self.disk.kill()
        else:
            self.disk.crash(self.chance)

    # -- what clients report ------------------------------------------------------------------------------------------

    def is_at(self, topic: str, position: Position, payloads: tuple[bytes, ...]) -> None:
        """A receipt or a delivery names a position."""
        if (topic, *position) not in self.positions:
            for told in self.told:
                if told.topic == topic and position >= told.excused:
                    told.due.add(position)
        known = self.positions.setdefault((topic, *position), payloads)
        assert known == payloads, f"{topic} {position} was {known[0][:40]!r} and is {payloads[0][:40]!r}"
        first = self.position_of.setdefault(payloads, position)
        assert first == position, f"{payloads[0][:40]!r} is at {first} and at {position}"

    @property
    def life(self) -> int:
        """The number of this start of the broker."""
        return self._context[_life]

    def end_of(self, topic: str) -> Position:
        """The position after the last entry that the broker has now."""
        assert self.harness is not None
        loaded = self.harness.broker.topics.get(topic)
        assert loaded is not None
        return (loaded.ledger_id, loaded.last_entry_id + 1)

    # -- everybody ----------------------------------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of the world."""
        task = asyncio.get_running_loop().create_task(work)
        self._own.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What must hold does not, as a client has seen; or a client is wrong."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def pause(self, longest_ms: float) -> None:
        """Let a while pass."""
        await asyncio.sleep(self.chance.random() * longest_ms / 1_000)

    async def connect(self) -> Wire:
        """A new connection, as soon as there is a broker."""
        while True:
            if self.harness is not None:
                with contextlib.suppress(Gone, Refused):
                    wire = await Wire.open(self.harness.port)
                    self._own.add(wire.pump)
                    self._wires.append(wire)
                    wire.pump.add_done_callback(self._ended)
                    return wire
            await self.pause(100)

    async def run(self) -> None:
        """All of it, from the first start to the last check."""
        self._own |= asyncio.all_tasks()
        main = self.begin(self._live())
        try:
            await asyncio.wait([main, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            main.result()
        finally:
            self._failed.cancel()
            for wire in self._wires:
                wire.abort()
            await asyncio.sleep(0)

    async def _live(self) -> None:
        await self.start()
        producers = [self.begin(Producer(self, topic, number).live()) for topic in self.topics for number in range(2)]
        consumers = [
            self.begin(Consumer(self, told, number).live())
            for told in self.told
            for number in range(2 if told.kind != EXCLUSIVE else 1)
        ]
        faults = self.begin(self._faults())
        administrator = self.begin(self._administer())
        await asyncio.sleep(LASTS_S)
        self.ending = True
        self.tell("the end begins")
        await asyncio.gather(faults, administrator, *producers)
        await self._all_is_told()
        await self._all_is_acknowledged()
        await self._all_is_compacted()
        self.over = True
        await asyncio.gather(*consumers)
        await self._nothing_is_left()
        await self.stop()

    async def _all_is_told(self) -> None:
        try:
            await self.loop.until(self._all_have_all, REST_S)
        except Exception as error:
            raise AssertionError(f"never delivered: {self.missing()[:5]} of {len(self.missing())}") from error

    async def _all_is_acknowledged(self) -> None:
        harness = self.harness
        assert harness is not None

        def backlogs() -> dict[tuple[str, str], int]:
            return {
                (topic.text, name): subscription.backlog
                for topic in harness.broker.topics.loaded()
                for name, subscription in topic.subscriptions.items()
                if subscription.backlog and name != COMPACTION_SUBSCRIPTION
            }

        try:
            await self.loop.until(lambda: not backlogs(), REST_S)
        except Exception as error:
            raise AssertionError(f"never acknowledged: {backlogs()}") from error

    def _all_have_all(self) -> bool:
        return not any(told.due for told in self.told)

    def missing(self) -> list[tuple[str, bytes]]:
        """What some subscription must get and has not got."""
        return [
            (told.name, self.positions[told.topic, *position][0][:40])
            for told in self.told
            for position in sorted(told.due)
        ]

    async def _all_is_compacted(self) -> None:
        """Compact a topic once more: its reader gets the last message of each key, and no other compacted one."""
        topic = self.topics[0]
        while self.harness is None or not await self._compacted(topic):
            await self.pause(500)
        loaded = self.harness.broker.topics.get(topic)
        assert loaded is not None
        assert loaded.compacted is not None
        horizon = loaded.compacted.horizon
        last: dict[str, bytes] = {}
        for (name, *_), payloads in sorted(self.positions.items()):
            if name == topic:
                last[self.published[payloads].key] = payloads[-1]
        got: list[tuple[int, str, bytes]] = []

        def received(command: codec.BaseCommand, entry: bytes) -> None:
            if command.type == Type.MESSAGE:
                entry_id = command.message.message_id.entryId
                got.extend((entry_id, key, payload) for key, payload in messages_of(entry) if payload)

        wire = await self.connect()
        wire.received = received
        command = codec.CommandSubscribe(
            topic=topic,
            subscription="reader",
            subType=codec.CommandSubscribe.Exclusive,
            consumer_id=0,
            request_id=0,
            initialPosition=codec.CommandSubscribe.Earliest,
            durable=False,
            read_compacted=True,
        )
        await wire.request(Type.SUBSCRIBE, command)
        wire.send(Type.FLOW, codec.CommandFlow(consumer_id=0, messagePermits=10_000))
        try:
            await self.loop.until(lambda: {key: payload for _, key, payload in got} == last, REST_S)
        except Exception as error:
            wrong = {key for _, key, payload in got if last.get(key) != payload} | set(last) - {
                key for _, key, _ in got
            }
            raise AssertionError(f"compaction has lost the last message of {wrong}") from error
        compacted = Counter(key for entry_id, key, _ in got if entry_id <= horizon)
        assert max(compacted.values(), default=0) <= 1, compacted
        wire.abort()

    async def _compacted(self, topic: str) -> bool:
        assert self.harness is not None
        broker = self.harness.broker

        async def compact() -> None:
            with contextlib.suppress(PenstockError):
                await administration(broker).topics.compact(TopicName.parse(topic))
            while broker.compaction.progress(topic).status == "RUNNING":  # noqa: ASYNC110 - nothing tells of its end
                await asyncio.sleep(0.01)

        await self.in_broker(compact)
        return broker.compaction.progress(topic).status == "SUCCESS"

    async def _nothing_is_left(self) -> None:
        harness = self.harness
        assert harness is not None
        broker = harness.broker
        await self.loop.until(lambda: not broker.sessions and not len(harness.connections), REST_S)
        await self.loop.until(lambda: not broker.changes.unfinished, REST_S)
        rows = (broker.sessions_memory, broker.dispatch_memory)
        await self.loop.until(lambda: not any(row.used_bytes for row in rows), REST_S)
        await self.loop.until(lambda: not harness.connections.outbound.used_bytes, REST_S)
        await self.loop.until(lambda: harness.used == 0, REST_S)
        for topic in broker.topics.loaded():
            assert not topic.producers, topic.text
            for subscription in topic.subscriptions.values():
                assert not subscription.consumers, subscription.name
                assert not subscription.unacked, subscription.name
        left = [task for task in asyncio.all_tasks() if task not in self._own and not task.done()]
        assert left == [], left

    def check_order(self) -> None:
        """Of each key, what came first was published first."""
        for told in self.told:
            if told.kind == SHARED:
                continue
            last: dict[str, tuple[int, int]] = {}
            for position in told.first:
                key = self.published[self.positions[told.topic, *position]].key
                if key == LATE and told.kind == KEY_SHARED:
                    continue
                before = last.get(key, (-1, -1))
                assert before < position, f"{told.topic} {told.name}: {position} of {key} came after {before}"
                last[key] = position

    # -- administrators and faults ------------------------------------------------------------------------------------

    async def _administer(self) -> None:
        while not self.ending:
            await self.pause(800)
            if self.harness is not None:
                with contextlib.suppress(PenstockError):
                    await self.in_broker(self._change_something)
        await self._while_there_is_a_broker(self._lift_limits)

    async def _while_there_is_a_broker(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            if self.harness is not None:
                with contextlib.suppress(PenstockError):
                    await self.in_broker(work)
                    return
            await self.pause(500)

    async def _change_something(self) -> None:
        assert self.harness is not None
        broker, topic = self.harness.broker, self.chance.choice(self.topics)
        what = self.chance.randrange(8)
        self.tell(f"administrator: {what} of {topic}")
        if what == 0:
            await administration(broker).topics.unload(TopicName.parse(topic))
        elif what == 1:
            rate = {"publishThrottlingRateInMsg": self.chance.choice((20, 200)), "publishThrottlingRateInByte": -1}
            await broker.policies.set_topic(topic, "publishRate", self.chance.choice((None, rate)))
        elif what == 2:
            rate = {
                "dispatchThrottlingRateInMsg": self.chance.choice((50, 500)),
                "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": 1,
            }
            key = self.chance.choice(("dispatchRate", "subscriptionDispatchRate"))
            await broker.policies.set_topic(topic, key, self.chance.choice((None, rate)))
        elif what == 3:
            await administration(broker).snapshots.take()
        elif what in {4, 5}:
            await administration(broker).topics.compact(TopicName.parse(topic))
        elif what == 6:
            most = self.chance.choice((None, 5, 50))
            await broker.policies.set_topic(topic, "maxUnackedMessagesPerConsumer", most)
        else:
            await broker.policies.set_topic(topic, "maxUnackedMessagesPerSubscription", self.chance.choice((None, 20)))

    async def _lift_limits(self) -> None:
        assert self.harness is not None
        policies = self.harness.broker.policies
        for topic in self.topics:
            for key in (
                "publishRate",
                "dispatchRate",
                "subscriptionDispatchRate",
                "maxUnackedMessagesPerConsumer",
                "maxUnackedMessagesPerSubscription",
            ):
                await policies.set_topic(topic, key, None)

    async def _faults(self) -> None:
        while not self.ending:
            await self.pause(3_000)
            await self.chance.choice(
                (
                    self._slow_disk,
                    self._held_disk,
                    self._unreadable_disk,
                    self._failing_sync,
                    self._stop_and_start,
                    self._full_disk,
                    self._crash,
                )
            )()
        self.disk.heal_all()
        if self.harness is None or self.harness.broker.log.health.read_only or self.harness.broker.catalog.failed:
            await self._restart(kill=True)

    async def _restart(self, *, kill: bool) -> None:
        if self.harness is not None:
            await self.lose_power(kill=kill)
        await self.pause(500)
        await self.start()

    async def _crash(self) -> None:
        await self._restart(kill=self.chance.random() < 0.3)

    async def _stop_and_start(self) -> None:
        self.disk.heal_all()
        await self.stop()
        await self.pause(500)
        await self.start()

    async def _slow_disk(self) -> None:
        slowest_ms = self.chance.choice((1, 10, 100))
        self.tell(f"disk: up to {slowest_ms} ms")
        self.disk.sync_ns = self.disk.read_ns = lambda: self.chance.randrange(slowest_ms * NS_PER_MS)

    async def _held_disk(self) -> None:
        self.tell("disk: held")
        self.disk.hold()
        await self.pause(2_000)
        self.disk.release()

    async def _unreadable_disk(self) -> None:
        self.tell("disk: cannot be read")
        self.disk.read_error = OSError(errno.EIO, os.strerror(errno.EIO))
        await self.pause(1_000)
        self.disk.read_error = None

    async def _failing_sync(self) -> None:
        self.tell("disk: a sync fails")
        self.disk.fail_sync_at(self.chance.randint(1, 20))
        await self.pause(1_000)
        await self._crash()

    async def _full_disk(self) -> None:
        self.tell("disk: full")
        self.disk.run_full_after(self.chance.randrange(100 * KIB))
        await self.pause(1_000)
        await self._crash()
