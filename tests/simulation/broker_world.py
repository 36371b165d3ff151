# SPDX-License-Identifier: Apache-2.0
"""A whole broker with its clients, its administrators and its bad days, in virtual time, by seed.

Producers, consumers of all types, administrators and faults do what they do at once: slow readers, disconnects, topics
that are unloaded, policies that change, disks that are slow, held, full or that fail, and losses of power of which only
what was synced survives. At the end all faults are over and everybody gets what is due.

What must hold
- What was answered with a receipt is delivered on every subscription; so is what any subscription was ever sent.
- A position names one message for ever: nothing is delivered that a crash could take back.
- No message has two positions, though producers of the topic with deduplication send again what was not answered.
- What an ACK_RESPONSE has confirmed is not delivered to anybody who subscribes later, also after a crash.
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
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from penstock.broker.composition.administration import administration
from penstock.core.errors import PenstockError
from penstock.core.names import TopicName
from penstock.core.units import KIB, MIB, NS_PER_MS
from penstock.governance.request_memory import RequestLimits
from penstock.storage.limits import LogLimits
from penstock.storage.metadata import close_untouched
from penstock.testing.loop import VirtualClock
from penstock.wire import codec
from tests.net.harness import broker_limits, disk_of, nothing_left, start_broker
from tests.simulation.wire_client import Gone, Refused, Type, Wire, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random
    from typing import Any

    from penstock.testing.loop import VirtualLoop
    from tests.net.harness import Harness

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
KINDS: Final = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key-shared": KEY_SHARED}
KEYS: Final = 5
# The key of messages with a delay, for which Shared and Key_Shared consumers wait.
LATE: Final = "late"
TICK_MS: Final = 1_000
# How long all of it lasts, and how long the broker has at the end to give everybody what is due, in virtual seconds.
LASTS_S: Final = 8.0
REST_S: Final = 240.0
DATA: Final = Path("/simulated")
FRAME_BYTES_MAX: Final = 64 * KIB
LOG_LIMITS: Final = LogLimits(segment_bytes=MIB, run_bytes_max=256 * KIB, commit_bytes_max=256 * KIB)

# Which start of the broker a callback belongs to: with a loss of power all of that one's are dropped.
_life: contextvars.ContextVar[int] = contextvars.ContextVar("life", default=0)


@dataclass(slots=True)
class Sent:
    """A message as its producer knows it."""

    payload: bytes
    key: str
    sequence_id: int
    at_ms: int = 0  # not to be delivered before
    answered: bool = False


@dataclass(slots=True)
class Told:
    """What a subscription's consumers were sent and have confirmed."""

    topic: str
    name: str
    kind: int
    first: list[tuple[int, int]] = field(default_factory=list)  # positions in the order they came first
    seen: set[tuple[int, int]] = field(default_factory=set)
    confirmed: dict[tuple[int, int], int] = field(default_factory=dict)  # when, in events
    deliveries: int = 0


class World:
    """All of it."""

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.disk = disk_of(loop)
        self.clock = VirtualClock(loop.virtual_time)
        self.harness: Harness | None = None
        self.ending = False  # no more faults, no more messages
        self.over = False
        self.events = count()
        self.topics = ["persistent://public/default/plain", "persistent://public/default/once"]
        self.published: dict[bytes, Sent] = {}
        self.positions: dict[tuple[str, int, int], bytes] = {}
        self.position_of: dict[bytes, tuple[int, int]] = {}
        self.told = [Told(topic, name, kind) for topic in self.topics for name, kind in KINDS.items()]
        self._due: Counter[str] = Counter()  # messages that every subscription must be sent
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
                tail_cache_bytes=self.chance.choice((0, MIB)),
                failover_delay_s=self.chance.choice((0.0, 1.0)),
            ),
            log_limits=LOG_LIMITS,
            clock=self.clock,
        )
        await self.in_broker(lambda: self._set_up(harness))
        self.harness = harness
        self.tell("started")

    async def _set_up(self, harness: Harness) -> None:
        broker, topic = harness.broker, self.topics[1]
        await broker.topics.get_or_create(TopicName.parse(topic), create=True)
        await broker.policies.set_topic(topic, "deduplication", value=True)

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
        harness = self.harness
        assert harness is not None
        self.harness = None
        self.tell("is killed" if kill else "loses its power")
        self.disk.lose_power()
        self.loop.threads.abandon()
        ports = {harness.port, harness.tls_port}
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
        close_untouched(harness.broker.catalog._file._db)  # noqa: SLF001 - as the end of its process does
        with contextlib.suppress(OSError, apsw.Error):
            harness.broker.log._index.sealed.close()  # noqa: SLF001
        self._dead += [harness, self._stack.pop_all(), *dead]
        self.disk.heal_all()
        if kill:
            self.disk.kill()
        else:
            self.disk.crash(self.chance)

    # -- what clients report ------------------------------------------------------------------------------------------

    def is_at(self, topic: str, position: tuple[int, int], payload: bytes) -> None:
        """A receipt or a delivery names a position."""
        if (topic, *position) not in self.positions:
            self._due[topic] += 1
        known = self.positions.setdefault((topic, *position), payload)
        assert known == payload, f"{topic} {position} was {known[:40]!r} and is {payload[:40]!r}"
        first = self.position_of.setdefault(payload, position)
        assert first == position, f"{payload[:40]!r} is at {first} and at {position}"

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
                if subscription.backlog
            }

        try:
            await self.loop.until(lambda: not backlogs(), REST_S)
        except Exception as error:
            raise AssertionError(f"never acknowledged: {backlogs()}") from error

    def _all_have_all(self) -> bool:
        return all(len(told.seen) == self._due[told.topic] for told in self.told)

    def missing(self) -> list[tuple[str, bytes]]:
        """What some subscription must get and has not got."""
        due: dict[str, set[tuple[int, int]]] = {topic: set() for topic in self.topics}
        for topic, ledger_id, entry_id in self.positions:
            due[topic].add((ledger_id, entry_id))
        return [
            (told.name, self.positions[told.topic, *position][:40])
            for told in self.told
            for position in sorted(due[told.topic] - told.seen)
        ]

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
        what = self.chance.randrange(6)
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
        elif what == 4:
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
        self.disk.let_go()

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


class Producer:
    """Publishes, and on the topic with deduplication sends again what was not answered."""

    def __init__(self, world: World, topic: str, number: int) -> None:
        self._world = world
        self._topic = topic
        self._name = f"p{number}"
        self._again = topic.endswith("once")
        self._sequence = 0
        self._pending: list[Sent] = []
        self._closed = False
        self._wire: Wire | None = None

    async def live(self) -> None:
        """Publish until the end."""
        world = self._world
        while not world.ending or (self._again and self._pending):
            wire = await world.connect()
            try:
                await self._visit(wire)
            except (Gone, Refused) as error:
                world.tell(f"producer {self._name}: {error!r}")
            wire.abort()
            await world.pause(200)

    async def _visit(self, wire: Wire) -> None:
        world, chance = self._world, self._world.chance
        wire.received, self._wire = self._received, wire
        self._closed = False
        command = codec.CommandProducer(topic=self._topic, producer_id=0)
        if self._again:
            command.producer_name = self._name
        answer = await wire.request(Type.PRODUCER, command)
        if self._again:
            last = answer.producer_success.last_sequence_id
            first = self._pending[0].sequence_id if self._pending else None
            world.tell(f"producer {self._name}: stored up to {last}, not answered from {first} to {self._sequence}")
            self._pending = [sent for sent in self._pending if sent.sequence_id > last]
            for sent in self._pending:
                wire.publish(self._name, sent.sequence_id, sent.key, sent.payload, at_ms=sent.at_ms)
        else:
            self._pending = []
        idle = 0
        while wire.is_open and not self._closed and idle < 40:
            if world.ending:
                if not self._pending:
                    return
                idle += 1
            elif len(self._pending) < 50:
                for _ in range(chance.randint(1, 8)):
                    self._publish(wire)
                if chance.random() < 0.02:
                    return  # without waiting for receipts
            await world.pause(200)

    def _publish(self, wire: Wire) -> None:
        chance = self._world.chance
        self._sequence += 1
        key = f"k{chance.randrange(KEYS)}"
        payload = f"{self._topic}|{self._name}|{self._sequence}|".encode()
        payload += bytes(chance.choice((0, 10, 3_000)))
        at_ms = 0
        if chance.random() < 0.05:
            key, at_ms = LATE, self._world.clock.wall_ms() + chance.randrange(5_000)
        sent = Sent(payload, key, self._sequence, at_ms)
        self._pending.append(sent)
        self._world.published[payload] = sent
        wire.publish(self._name, sent.sequence_id, key, payload, at_ms=at_ms)

    def _received(self, command: codec.BaseCommand, _entry: bytes) -> None:
        if command.type == Type.SEND_RECEIPT:
            receipt = command.send_receipt
            sent = self._pending.pop(0)
            assert sent.sequence_id == receipt.sequence_id, (sent, receipt)
            sent.answered = True
            if receipt.message_id.ledgerId < 1 << 63:  # else it was there before
                self._world.is_at(self._topic, (receipt.message_id.ledgerId, receipt.message_id.entryId), sent.payload)
        elif command.type == Type.SEND_ERROR:
            error = command.send_error
            self._world.tell(f"producer {self._name}: {error.sequence_id} failed: {error.message[:50]}")
            assert self._wire is not None
            self._wire.abort()  # As Pulsar's clients do: connect again, and send again.
        elif command.type == Type.CLOSE_PRODUCER:
            self._closed = True


class Consumer:
    """Subscribes, receives and acknowledges; now and then it reads slowly, asks for messages again, or goes."""

    def __init__(self, world: World, told: Told, number: int) -> None:
        self._world = world
        self._told = told
        self._number = number
        self._since = 0  # in events: what was confirmed before must not come
        self._held: list[tuple[int, int]] = []
        self._closed = False
        self._permits = 0
        self._wire: Wire | None = None

    async def live(self) -> None:
        """Consume until all is told."""
        world = self._world
        while not world.over:
            wire = await world.connect()
            try:
                await self._visit(wire)
            except (Gone, Refused) as error:
                world.tell(f"consumer {self._told.name}-{self._number}: {error!r}")
            wire.abort()
            await world.pause(200)

    async def _visit(self, wire: Wire) -> None:
        world, chance, told = self._world, self._world.chance, self._told
        wire.received = self._received
        self._wire, self._held, self._closed = wire, [], False
        self._since = next(world.events)
        command = codec.CommandSubscribe(
            topic=told.topic,
            subscription=told.name,
            subType=told.kind,  # type: ignore[arg-type]
            consumer_id=0,
            consumer_name=f"c{self._number}",
            request_id=0,
            initialPosition=codec.CommandSubscribe.Earliest,
        )
        if told.kind == KEY_SHARED:
            command.keySharedMeta.keySharedMode = codec.KeySharedMode.AUTO_SPLIT
        await wire.request(Type.SUBSCRIBE, command)
        self._permits = 0
        while wire.is_open and not self._closed and not world.over:
            if self._permits < 10:
                more = chance.choice((1, 10, 50))
                self._permits += more
                wire.send(Type.FLOW, codec.CommandFlow(consumer_id=0, messagePermits=more))
            await world.pause(100)
            await self._do_something(wire)

    async def _do_something(self, wire: Wire) -> None:
        world, chance = self._world, self._world.chance
        what = 1.0 if world.ending else chance.random()
        if what < 0.01:
            self._closed = True
        elif what < 0.03:
            wire.stop_reading()
            await world.pause(3_000)
            wire.go_on_reading()
        elif what < 0.06 and self._held:
            body = codec.CommandRedeliverUnacknowledgedMessages(consumer_id=0)
            if self._told.kind in {SHARED, KEY_SHARED}:
                for position in chance.sample(self._held, len(self._held) // 2):
                    self._held.remove(position)
                    body.message_ids.add(ledgerId=position[0], entryId=position[1])
            else:
                self._held.clear()
            wire.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)
        elif self._held:
            await self._acknowledge(wire)

    async def _acknowledge(self, wire: Wire) -> None:
        chance = self._world.chance
        cumulative = self._told.kind in {EXCLUSIVE, FAILOVER} and chance.random() < 0.5
        body = codec.CommandAck(
            consumer_id=0, ack_type=codec.CommandAck.Cumulative if cumulative else codec.CommandAck.Individual
        )
        if cumulative:
            chosen = sorted(self._held)[: chance.randint(1, len(self._held))]
            body.message_id.add(ledgerId=chosen[-1][0], entryId=chosen[-1][1])
        else:
            chosen = chance.sample(self._held, chance.randint(1, len(self._held)))
            for position in chosen:
                body.message_id.add(ledgerId=position[0], entryId=position[1])
        self._held = [position for position in self._held if position not in chosen]
        if chance.random() < 0.3:
            answer = await wire.request(Type.ACK, body)
            if not answer.ackResponse.HasField("error"):
                now = next(self._world.events)
                for position in chosen:
                    self._told.confirmed.setdefault(position, now)
        else:
            wire.send(Type.ACK, body)

    def _received(self, command: codec.BaseCommand, entry: bytes) -> None:
        if command.type == Type.CLOSE_CONSUMER:
            self._closed = True
        if command.type != Type.MESSAGE:
            return
        told, message_id = self._told, command.message.message_id
        position, payload = (message_id.ledgerId, message_id.entryId), payload_of(entry)
        assert payload in self._world.published, f"nobody has published {payload[:40]!r}"
        self._world.is_at(told.topic, position, payload)
        if told.kind in {SHARED, KEY_SHARED}:
            early_ms = self._world.published[payload].at_ms - self._world.clock.wall_ms()
            assert early_ms <= TICK_MS, f"{told.topic} {told.name}: {position} came {early_ms} ms too early"
        confirmed = told.confirmed.get(position)
        assert confirmed is None or confirmed > self._since, f"{told.topic} {told.name}: {position} was confirmed"
        self._permits -= 1
        told.deliveries += 1
        if position not in told.seen:
            told.seen.add(position)
            told.first.append(position)
        if position not in self._held:
            self._held.append(position)
