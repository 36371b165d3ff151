# SPDX-License-Identifier: Apache-2.0
"""Simulated clients: producers of single messages and batches, consumers of all subscription types.

Where: `broker_world` runs them; what they were sent and have confirmed is checked there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.wire import codec
from tests.simulation.wire_client import Gone, Refused, Type, Wire, messages_of

if TYPE_CHECKING:
    from tests.simulation.broker_world import World

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
KINDS: Final = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key-shared": KEY_SHARED}
KEYS: Final = 5
# The key of messages with a delay, for which Shared and Key_Shared consumers wait.
LATE: Final = "late"
TICK_MS: Final = 1_000
# A position: ledger id and entry id.
Position = tuple[int, int]


@dataclass(slots=True)
class Sent:
    """An entry as its producer knows it: one message, or a batch."""

    payloads: tuple[bytes, ...]
    key: str
    sequence_id: int
    at_ms: int = 0  # not to be delivered before
    answered: bool = False

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message."""
        return self.sequence_id + len(self.payloads) - 1


@dataclass(slots=True)
class Told:
    """What a subscription's consumers were sent and have confirmed."""

    topic: str
    name: str
    kind: int
    first: list[Position] = field(default_factory=list)  # in the order they came first
    seen: set[Position] = field(default_factory=set)
    due: set[Position] = field(default_factory=set)  # known, and not seen
    confirmed: dict[Position, int] = field(default_factory=dict)  # when, in events
    parts: dict[Position, tuple[int, int]] = field(default_factory=dict)  # confirmed messages of a batch, and when
    excused: Position = (-1, -1)  # what is before this need not come: a seek or an unsubscription has passed over it
    unsure: int = 0  # the start of the broker in which the outcome of a seek or an unsubscription is not known
    ended: bool = False  # it was unsubscribed, or may have been
    deliveries: int = 0

    def excuse(self, before: Position) -> None:
        """Entries before this one need not come any more."""
        self.excused = max(self.excused, before)
        self.due = {position for position in self.due if position >= self.excused}

    def forget_confirmed(self, start: Position) -> None:
        """Entries from this one on may come again."""
        self.confirmed = {position: at for position, at in self.confirmed.items() if position < start}
        self.parts = {position: at for position, at in self.parts.items() if position < start}


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
            self._pending = [sent for sent in self._pending if sent.last_sequence_id > last]
            for sent in self._pending:
                wire.publish(self._name, sent.sequence_id, sent.key, sent.payloads, at_ms=sent.at_ms)
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
        key, at_ms, count = f"k{chance.randrange(KEYS)}", 0, 1
        if chance.random() < 0.05:
            key, at_ms = LATE, self._world.clock.wall_ms() + chance.randrange(5_000)
        elif chance.random() < 0.3:
            count = chance.randint(2, 5)
        first = self._sequence + 1
        self._sequence += count
        payloads = tuple(
            f"{self._topic}|{self._name}|{number}|".encode() + bytes(chance.choice((0, 10, 3_000)))
            for number in range(first, first + count)
        )
        sent = Sent(payloads, key, first, at_ms)
        self._pending.append(sent)
        self._world.published[payloads] = sent
        wire.publish(self._name, first, key, payloads, at_ms=at_ms)

    def _received(self, command: codec.BaseCommand, _entry: bytes) -> None:
        if command.type == Type.SEND_RECEIPT:
            receipt = command.send_receipt
            sent = self._pending.pop(0)
            assert sent.sequence_id == receipt.sequence_id, (sent, receipt)
            sent.answered = True
            if receipt.message_id.ledgerId < 1 << 63:  # else it was there before
                self._world.is_at(self._topic, (receipt.message_id.ledgerId, receipt.message_id.entryId), sent.payloads)
        elif command.type == Type.SEND_ERROR:
            error = command.send_error
            self._world.tell(f"producer {self._name}: {error.sequence_id} failed: {error.message[:50]}")
            assert self._wire is not None
            self._wire.abort()  # As Pulsar's clients do: connect again, and send again.
        elif command.type == Type.CLOSE_PRODUCER:
            self._closed = True


class Consumer:
    """Subscribes, receives and acknowledges.

    Now and then it reads slowly, asks for messages again, seeks, unsubscribes, or goes.
    """

    def __init__(self, world: World, told: Told, number: int) -> None:
        self._world = world
        self._told = told
        self._number = number
        self._since = 0  # in events: what was confirmed before must not come
        self._held: dict[Position, set[int]] = {}  # batch indexes that are not acknowledged, 0 if it is no batch
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
        self._wire, self._held, self._closed = wire, {}, False
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
        if told.ended and world.harness is not None:
            told.excuse(world.end_of(told.topic))  # Others may have had them deleted before it was subscribed again.
            told.ended = told.unsure == world.life
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
                for position in chance.sample(sorted(self._held), len(self._held) // 2):
                    del self._held[position]
                    body.message_ids.add(ledgerId=position[0], entryId=position[1])
            else:
                self._held.clear()
            wire.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)
        elif what < 0.065 and self._told.seen:
            await self._seek(wire)
        elif what < 0.07 and self._told.kind == EXCLUSIVE:
            await self._unsubscribe(wire)
        elif self._held:
            await self._acknowledge(wire)

    async def _seek(self, wire: Wire) -> None:
        """Go back, or over what has not come yet."""
        world, told = self._world, self._told
        target = world.chance.choice(sorted(told.seen)[-world.chance.choice((20, 500)) :])
        world.tell(f"consumer {told.name}-{self._number} of {told.topic}: seeks {target}")
        body = codec.CommandSeek(consumer_id=0)
        body.message_id.ledgerId, body.message_id.entryId = target
        self._is_passing_over(target, target)
        await wire.request(Type.SEEK, body)
        self._is_passing_over(target, target)
        told.unsure = 0

    async def _unsubscribe(self, wire: Wire) -> None:
        world, told = self._world, self._told
        world.tell(f"consumer {told.name}-{self._number} of {told.topic}: unsubscribes")
        self._is_passing_over((-1, -1), (-1, -1))
        told.ended = True
        await wire.request(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0))
        told.unsure, self._closed = 0, True

    def _is_passing_over(self, start: Position, excused: Position) -> None:
        """Entries from `start` on may come again, those before `excused` need not; without an answer, it is unsure."""
        self._told.forget_confirmed(start)
        self._told.excuse(excused)
        self._told.unsure = self._world.life

    async def _acknowledge(self, wire: Wire) -> None:
        chance, told = self._world.chance, self._told
        cumulative = told.kind in {EXCLUSIVE, FAILOVER} and chance.random() < 0.5
        body = codec.CommandAck(
            consumer_id=0, ack_type=codec.CommandAck.Cumulative if cumulative else codec.CommandAck.Individual
        )
        done: dict[Position, int] = {}  # bits of what is not acknowledged
        if cumulative:
            chosen = sorted(self._held)[: chance.randint(1, len(self._held))]
            body.message_id.add(ledgerId=chosen[-1][0], entryId=chosen[-1][1])
            done = dict.fromkeys(chosen, 0)
        else:
            for position in chance.sample(sorted(self._held), chance.randint(1, len(self._held))):
                message_id = body.message_id.add(ledgerId=position[0], entryId=position[1])
                indexes = self._held[position]
                keep = (
                    set(chance.sample(sorted(indexes), chance.randrange(len(indexes)))) if len(indexes) > 1 else set()
                )
                done[position] = sum(1 << index for index in keep)
                if keep:
                    message_id.ack_set.append(done[position])
                    message_id.batch_size = len(self._world.positions[told.topic, *position])
        for position, left in done.items():
            self._held[position] = {index for index in self._held[position] if left >> index & 1}
            if not left:
                del self._held[position]
        if chance.random() >= 0.3:
            wire.send(Type.ACK, body)
            return
        answer = await wire.request(Type.ACK, body)
        if not answer.ackResponse.HasField("error") and told.unsure != self._world.life:
            now = next(self._world.events)
            for position, left in done.items():
                if left:
                    told.parts[position] = (told.parts.get(position, (left, now))[0] & left, now)
                else:
                    told.confirmed.setdefault(position, now)

    def _received(self, command: codec.BaseCommand, entry: bytes) -> None:
        if command.type == Type.CLOSE_CONSUMER:
            self._closed = True
        if command.type != Type.MESSAGE:
            return
        world, told, message_id = self._world, self._told, command.message.message_id
        position, payloads = (message_id.ledgerId, message_id.entryId), tuple(one for _, one in messages_of(entry))
        assert payloads in world.published, f"nobody has published {payloads[0][:40]!r}"
        world.is_at(told.topic, position, payloads)
        if told.kind in {SHARED, KEY_SHARED}:
            early_ms = world.published[payloads].at_ms - world.clock.wall_ms()
            assert early_ms <= TICK_MS, f"{told.topic} {told.name}: {position} came {early_ms} ms too early"
        confirmed = told.confirmed.get(position)
        assert confirmed is None or confirmed > self._since, f"{told.topic} {told.name}: {position} was confirmed"
        wanted = sum(word << 64 * at for at, word in enumerate(command.message.ack_set)) or (1 << len(payloads)) - 1
        left, at = told.parts.get(position, (wanted, 0))
        assert at > self._since or not wanted & ~left, f"{told.topic} {told.name}: of {position}, {wanted:b} came again"
        self._permits -= len(payloads)
        told.deliveries += 1
        if position not in told.seen:
            told.seen.add(position)
            told.due.discard(position)
            if position >= told.excused:
                told.first.append(position)
        self._held[position] = {index for index in range(len(payloads)) if wanted >> index & 1}
