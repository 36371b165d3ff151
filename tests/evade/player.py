# SPDX-License-Identifier: Apache-2.0
"""The player: hands that publish or consume as greedily as the moves say, and a tenant administrator beside them.

A hand connects, does its work for a visit, leaves, and comes again. What is refused is tried again a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.names import TopicName
from penstock.testing.client import Type
from tests.evade import moves as choices
from tests.evade.wire import Gone, Refused, Wire, messages_in
from tests.evade.world import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.wire import codec
    from tests.evade.moves import Moves
    from tests.evade.world import World

# SENDs in one write, and without receipt on one connection: more waits in the client.
BURST: Final = 20
WINDOW: Final = 100
# Enough to show what passes a limit, and no more: a connection costs a millisecond.
CONNECTIONS_MAX: Final = 120
PARTITIONS: Final = 3
# How long a hand waits for its receipts before it leaves, and before it tries again what was refused.
LAST_RECEIPTS_S: Final = 0.5
# Who leaves at once has the receipts of what passed without waiting: else nobody would know of it.
GONE_S: Final = 0.002
AGAIN_S: Final = 0.05
# After so many refusals it goes on with plain names: a play that gets nothing tries nothing.
REFUSALS_MAX: Final = 3
DEED_S: Final = 0.15


@dataclass
class Player:
    """What hands of all kinds share.

    Attributes:
        seconds: how long it plays, in virtual time.
        enough: whether so much has passed that it may stop.
    """

    world: World
    moves: Moves
    chance: Random
    seconds: float
    enough: Callable[[], bool]

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.connections = 0
        self.refusals = 0
        self.used: dict[str, None] = {}  # topics, in order

    @property
    def now_s(self) -> float:
        """Seconds since the play began."""
        return self.loop.time() - self.began_s

    @property
    def going(self) -> bool:
        """Whether it still plays."""
        return self.now_s < self.seconds and not self.enough()

    async def play(self) -> None:
        """All hands, until the time is over."""
        self.began_s = self.loop.time()
        tasks = [asyncio.ensure_future(self._hand(number)) for number in range(choices.HANDS[self.moves.hands])]
        tasks.append(asyncio.ensure_future(self._administer()))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _hand(self, number: int) -> None:
        visit = 0
        while self.going and self.connections < CONNECTIONS_MAX:
            try:
                topic = await self.topic_of(number, visit)
                self.connections += 1
                wire = await self.world.wire_for(topic, self.address(number, visit))
                await self.visit(wire, topic, number, visit)
            except (Gone, Refused):
                self.refusals += 1
                if self.refusals == REFUSALS_MAX:
                    self.moves = replace(self.moves, topics="plain", producer="", subscription="s", reader="durable")
            visit += 1
            await asyncio.sleep(AGAIN_S if self.moves.visits == "stays" else 0.001)

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        """Work on one connection."""
        raise NotImplementedError

    async def topic_of(self, hand: int, visit: int) -> str:
        moves = self.moves
        namespace = NAMESPACES[hand % 2 if moves.namespaces != "one namespace" else 0]
        number = choices.SPREADS[moves.spread](hand, visit, self.now_s)
        name = choices.TOPICS[moves.topics](namespace, number)
        if moves.deeds == "makes them partitioned topics" and name not in self.used:
            await self._make_partitioned(name)
        self.used[name] = None
        if moves.deeds == "makes them partitioned topics":
            return f"{name}-partition-{hand % PARTITIONS}"
        return name

    def address(self, hand: int, visit: int) -> str:
        return f"127.0.{visit % 200}.{hand + 2}" if self.moves.addresses != "one address" else "127.0.0.1"

    async def pause(self) -> None:
        """Wait for the next burst."""
        pause_s = choices.TIMINGS[self.moves.timing](self.now_s, self.chance)
        await asyncio.sleep(max(0.001, min(pause_s, self.seconds - self.now_s)))

    async def leave(self, wire: Wire) -> None:
        """End a visit as the moves say."""
        if self.moves.leaves == "at once":
            await asyncio.sleep(GONE_S)
            wire.abort()
        elif self.moves.leaves == "by closing its half":
            wire.end_sending()
        elif self.moves.leaves == "when all is answered":
            await wire.all_answered(min(LAST_RECEIPTS_S, max(0.0, self.seconds - self.now_s)))
            wire.abort()

    # -- a tenant's administrator

    async def _make_partitioned(self, name: str) -> None:
        self.used[name] = None
        with contextlib.suppress(PenstockError):
            await self.world.admin.topics.create_partitioned(TopicName.parse(name), PARTITIONS)

    async def _administer(self) -> None:
        deed = self.moves.deeds
        while self.going and deed in {"unloads the topics", "deletes the topics"}:
            await asyncio.sleep(DEED_S * self.chance.random() * 2)
            for name in list(self.used)[-3:]:
                with contextlib.suppress(PenstockError, Gone, Refused):
                    topics = self.world.admin_of(await self.world.owner(name)).topics
                    if deed == "unloads the topics":
                        await topics.unload(TopicName.parse(name))
                    else:
                        self.deleted(name)
                        await topics.delete(TopicName.parse(name), force=True)
                        self.world.moved(name)

    def deleted(self, topic: str) -> None:
        """A topic is about to be deleted."""


@dataclass
class Publisher(Player):
    """Publishes. `passed` is told topic, messages and bytes of each receipt."""

    passed: Callable[[str, int, int], None]
    burst: int = BURST  # SENDs in one write

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        moves, shape = self.moves, choices.SHAPES[self.moves.shape]
        payer = await self.world.payer(topic)
        wire.on_receipt = lambda _producer: self.passed(payer, shape.messages, shape.entry_bytes)
        producers = 3 if moves.members == "three producers each" else 1
        frames = []
        for producer_id in range(producers):
            await wire.request(
                Type.PRODUCER, topic=topic, producer_id=producer_id, **self._name(hand, visit, producer_id)
            )
            frames.append(shape.frame_of(producer_id))
        sent, began_s = 0, self.now_s
        most, longest_s = choices.VISITS[moves.visits]
        while self.going and wire.is_open:
            for producer_id, frame in enumerate(frames):
                room = WINDOW - wire.unanswered.get(producer_id, 0)
                count = min(self.burst, room, most - sent if most else self.burst)
                if count > 0:
                    wire.publish(producer_id, frame, count)
                    sent += count
            if (most and sent >= most) or (longest_s and self.now_s - began_s >= longest_s):
                break
            await self.pause()
        await self.leave(wire)
        if self.moves.leaves != "when all is answered":
            await self.pause()

    def _name(self, hand: int, visit: int, producer_id: int) -> dict[str, str]:
        name = self.moves.producer
        if not name:
            return {}
        if self.moves.members == "the same name in all hands":
            return {"producer_name": name}
        return {"producer_name": f"{name}{hand}-{visit}-{producer_id}"}


@dataclass
class Reader(Player):
    """Consumes. `passed` is told topic, subscription, messages and bytes of each delivery; "" for none, over REST."""

    passed: Callable[[str, str, int, int], None]

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        moves = self.moves
        name = f"s{hand}-{visit}" if moves.subscription == "a new one each visit" else moves.subscription
        permits = choices.PERMITS[moves.permits]
        # A subscription that ends with its visit is another one at the next.
        passing = f"{name} {hand}-{visit}" if moves.reads == "unsubscribes" or "non-durable" in moves.reader else name
        payer = await self.world.payer(topic)
        got: list[codec.CommandMessage] = []

        def received(command: codec.CommandMessage, entry: bytes) -> None:
            got.append(command)
            self.passed(payer, passing, messages_in(entry), len(entry))

        wire.on_message = received
        await wire.request(
            Type.SUBSCRIBE,
            topic=topic,
            subscription=name,
            subType=choices.KINDS[moves.kind],
            consumer_id=0,
            consumer_name=f"c{hand}",
            initialPosition=1,
            **_reader(moves),
        )
        began_s, seen, granted = self.now_s, 0, 0
        most, longest_s = choices.VISITS[moves.visits]
        while self.going and wire.is_open:
            if granted - len(got) < permits // 2 + 1:
                wire.send(Type.FLOW, consumer_id=0, messagePermits=permits)
                granted += permits
            if len(got) > seen:
                await self._use(wire, topic, name, got[seen:])
                seen = len(got)
            else:
                await self._look_over_rest(topic, name)
            if (most and seen >= most) or (longest_s and self.now_s - began_s >= longest_s):
                break
            await self.pause()
        await self.leave(wire)

    async def _use(self, wire: Wire, topic: str, name: str, got: list[codec.CommandMessage]) -> None:
        reads = self.moves.reads
        if reads == "acknowledges":
            wire.send(Type.ACK, consumer_id=0, ack_type=0, message_id=[one.message_id for one in got])
        elif reads == "seeks to the first":
            await wire.request(Type.SEEK, consumer_id=0, message_id=_EARLIEST)
        elif reads == "asks for redelivery":
            wire.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0)
        elif reads == "unsubscribes":
            await wire.request(Type.UNSUBSCRIBE, consumer_id=0)
            wire.abort()

    async def _look_over_rest(self, topic: str, name: str) -> None:
        """Read stored messages through the admin port, as whoever may consume may."""
        reads = self.moves.reads
        if reads not in {"peeks over REST", "examines over REST"} or not topic.startswith("persistent"):
            return
        if self.world.limited_at_proxy:
            return  # A proxy's groups limit what goes through it in the protocol.
        messages = self.world.admin_of(await self.world.owner(topic)).messages
        for nth in range(1, 11):
            with contextlib.suppress(PenstockError):
                if reads == "peeks over REST":
                    raw = await messages.peek(TopicName.parse(topic), name, nth)
                else:
                    raw = await messages.examine(TopicName.parse(topic), "earliest", nth)
                self.passed(await self.world.payer(topic), "", messages_in(raw.entry), len(raw.entry))


_EARLIEST: Final = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}


def _reader(moves: Moves) -> dict[str, object]:
    """Fields of a SUBSCRIBE."""
    if moves.reader == "non-durable":
        return {"durable": False}
    if moves.reader == "non-durable from the first message":
        return {"durable": False, "start_message_id": _EARLIEST}
    return {"read_compacted": True} if moves.reader == "reads compacted" else {}
