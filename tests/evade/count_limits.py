# SPDX-License-Identifier: Apache-2.0
"""Limits of numbers: of topics, producers, consumers, subscriptions and connections, and how often one subscribes.

A hand asks for five at once, on one connection or on five, because a check that waits for something else between the
look and the act lets all five pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.errors import PenstockError
from penstock.core.names import TopicName
from penstock.testing.client import Type
from tests.evade import moves as choices
from tests.evade.counting import Levels, Payers
from tests.evade.player import CONNECTIONS_MAX, PARTITIONS, Player
from tests.evade.rows import ONE, PROXY, SEVERAL, WHO, Limiter, set_policy
from tests.evade.wire import Gone, Refused
from tests.evade.world import NAMESPACES

if TYPE_CHECKING:
    from random import Random

    from tests.evade.counting import Verdict
    from tests.evade.moves import Moves
    from tests.evade.wire import Wire
    from tests.evade.world import World

CROWDED: Final = (*WHO, "producer", "members", "subscription", "kind", "reader")
LIMIT: Final = 3
AT_ONCE: Final = 5
# How long a hand keeps what it has got, and how long a play lasts.
KEEPS_S: Final = 0.1
LASTS_S: Final = 1.0


@dataclass
class Crowd(Player):
    """Asks for more of something than there may be. `levels` has what there is."""

    levels: Levels

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        wires = [wire, *await self._more_wires(topic, hand, visit)]
        try:
            asked = [self.one(wires[n % len(wires)], topic, f"{hand}-{visit}-{n}") for n in range(AT_ONCE)]
            await asyncio.gather(*(_refusable(one) for one in asked))
            await asyncio.sleep(KEEPS_S)
        finally:
            if self.moves.leaves != "and leaves it open":
                for one in wires:
                    self._gone(one)
                    await self.leave(one)

    async def _more_wires(self, topic: str, hand: int, visit: int) -> list[Wire]:
        if self.moves.members == "one producer each" or self.connections > 50:
            return []
        self.connections += AT_ONCE - 1
        address = self.address(hand, visit)
        return [await self.world.wire_for(topic, address) for _ in range(AT_ONCE - 1)]

    async def one(self, wire: Wire, topic: str, name: str) -> None:
        """Ask for one more. Raises Gone, Refused."""
        raise NotImplementedError

    def held(self, wire: Wire, payer: str, thing: str) -> None:
        """There is one more, as long as the connection is open."""
        if wire.is_open:
            self.levels.begun(payer, thing)
            wire.owned.append((payer, thing))
            wire.on_gone = partial(self._gone, wire)

    def _gone(self, wire: Wire) -> None:
        for payer, thing in wire.owned:
            self.levels.ended(payer, thing)
        wire.owned.clear()


async def _refusable(one: object) -> None:
    with contextlib.suppress(Gone, Refused, PenstockError):
        await one  # type: ignore[misc]


class Producers(Crowd):
    """Producers of a topic."""

    async def one(self, wire: Wire, topic: str, name: str) -> None:
        producer_id = int(name.rpartition("-")[2])
        named = {"producer_name": f"{self.moves.producer}{name}"} if self.moves.producer else {}
        await wire.request(Type.PRODUCER, topic=topic, producer_id=producer_id, **named)
        self.held(wire, topic, name)


class Consumers(Crowd):
    """Consumers of a topic, or of a subscription."""

    by_subscription = False

    async def one(self, wire: Wire, topic: str, name: str) -> None:
        subscription = self.moves.subscription
        if subscription == "a new one each visit":
            subscription = f"s{name}"
        await subscribe(wire, topic, subscription, int(name.rpartition("-")[2]), self.moves)
        self.held(wire, f"{topic} {subscription}" if self.by_subscription else topic, name)


class ConsumersOfSubscription(Consumers):
    """Consumers of a subscription."""

    by_subscription = True


class Subscriptions(Crowd):
    """Durable subscriptions of a topic: they stay when their consumers go."""

    async def one(self, wire: Wire, topic: str, name: str) -> None:
        if not topic.startswith("persistent"):
            raise Refused("it has none that stay")
        subscription = f"{self.moves.subscription}{name}"
        number, way = int(name.rpartition("-")[2]), self.chance.choice(("SUBSCRIBE", "PRODUCER", "REST"))
        if way == "REST":
            admin = self.world.admin_of(await self.world.owner(topic))
            await admin.subscriptions.create(TopicName.parse(topic), subscription)
        elif way == "PRODUCER":
            await wire.request(Type.PRODUCER, topic=topic, producer_id=number, initial_subscription_name=subscription)
        else:
            await subscribe(wire, topic, subscription, number, self.moves, durable=True)
        self.levels.begun(topic, subscription)

    def deleted(self, topic: str) -> None:
        self.levels.each.pop(topic, None)


class Topics(Crowd):
    """Topics of a namespace, each partition counted; of non-persistent ones nothing is stored."""

    async def one(self, wire: Wire, topic: str, name: str) -> None:
        del wire
        hand, visit, number = map(int, name.split("-"))
        namespace = NAMESPACES[hand % 2 if self.moves.namespaces != "one namespace" else 0]
        own = choices.TOPICS[self.moves.topics](namespace, 100 * visit + 10 * hand + number)
        if not own.startswith("persistent"):
            own = choices.TOPICS["plain"](namespace, 100 * visit + 10 * hand + number)
        if self.moves.deeds == "makes them partitioned topics":
            await self.world.admin.topics.create_partitioned(TopicName.parse(own), PARTITIONS)
            for partition in range(PARTITIONS):
                self._made(namespace, f"{own}-partition-{partition}")
            return
        if self.chance.random() < 0.3:
            await self.world.admin.topics.create(TopicName.parse(own))
        else:
            new = await self.world.wire_for(own)
            await new.request(Type.PRODUCER, topic=own, producer_id=0)
        self._made(namespace, own)

    def _made(self, namespace: str, topic: str) -> None:
        self.used[topic] = None
        self.levels.begun(namespace, topic)

    def deleted(self, topic: str) -> None:
        for namespace in NAMESPACES:
            self.levels.ended(namespace, topic)


class Connections(Crowd):
    """Connections to a broker, or from an address."""

    by_address = True

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        broker = await self.world.owner(topic)
        payer = self.address(hand, visit) if self.by_address and self.world.proxy is None else ""
        self.held(wire, f"broker {broker} {payer}", f"{hand}-{visit}")
        opened = await asyncio.gather(
            *(self.world.wire_for(topic, self.address(hand, visit)) for _ in range(AT_ONCE)), return_exceptions=True
        )
        self.connections += AT_ONCE
        wires = [wire]
        for number, one in enumerate(opened):
            if not isinstance(one, BaseException):
                wires.append(one)
                self.held(one, f"broker {broker} {payer}", f"{hand}-{visit}-{number}")
        await asyncio.sleep(KEEPS_S)
        for each in wires:
            self._gone(each)
            each.abort()


class AllConnections(Connections):
    """Connections to a broker."""

    by_address = False


async def subscribe(
    wire: Wire, topic: str, subscription: str, consumer_id: int, moves: Moves, *, durable: bool | None = None
) -> None:
    """Subscribe as the moves say. Raises Gone, Refused."""
    await wire.request(
        Type.SUBSCRIBE,
        topic=topic,
        subscription=subscription,
        subType=choices.KINDS[moves.kind],
        consumer_id=consumer_id,
        consumer_name="c",
        durable="non-durable" not in moves.reader if durable is None else durable,
    )


async def _crowd(kind: type[Crowd], policy: str, world: World, moves: Moves, chance: Random) -> Verdict:
    """Play against a policy of the namespaces; without one, the limit is a setting."""
    if policy:
        await set_policy(world, policy, LIMIT)
    levels = Levels(LIMIT)
    await kind(world, moves, chance, LASTS_S, lambda: levels.excessive, levels).play()
    return levels.verdict()


def _row(name: str, payer: str, kind: type[Crowd], policy: str = "", **more: object) -> Limiter:
    return Limiter(name, payer, "none", CROWDED, partial(_crowd, kind, policy), **more)  # type: ignore[arg-type]


@dataclass
class Subscriber(Player):
    """Subscribes again and again. `rate` counts, by what the broker takes for a consumer."""

    rate: Payers

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        while self.going and wire.is_open:
            subscription = f"s{hand}-{visit}" if "new" in self.moves.subscription else self.moves.subscription
            await subscribe(wire, topic, subscription, 0, self.moves)
            self.rate.add(await self.world.payer(topic), 1, self.loop.time())
            if self.chance.random() < 0.5:
                await self.leave(wire)
                return
            await wire.request(Type.CLOSE_CONSUMER, consumer_id=0)
            await asyncio.sleep(0.01)


async def subscribe_rate(world: World, moves: Moves, chance: Random) -> Verdict:
    await set_policy(world, "subscribeRate", {"subscribeThrottlingRatePerConsumer": LIMIT, "ratePeriodInSecond": 1})
    consumers = CONNECTIONS_MAX if moves.leaves == "and leaves it open" else choices.HANDS[moves.hands]
    counter = Payers(LIMIT * (consumers + 1), 2 * LIMIT * (consumers + 1))
    await Subscriber(world, moves, chance, 2 * LASTS_S, lambda: counter.excessive, counter).play()
    return counter.verdict()


_PER_ADDRESS: Final = {"connections_per_address_max": LIMIT}
ROWS: Final = (
    _row("topics-per-namespace", "namespace", Topics, "maxTopicsPerNamespace"),
    _row("producers-per-topic", "topic", Producers, "maxProducersPerTopic"),
    _row("consumers-per-topic", "topic", Consumers, "maxConsumersPerTopic"),
    _row("consumers-per-subscription", "subscription", ConsumersOfSubscription, "maxConsumersPerSubscription"),
    _row("subscriptions-per-topic", "topic", Subscriptions, "maxSubscriptionsPerTopic"),
    _row(
        "producers-per-address",
        "client address, of a topic",
        Producers,
        settings={"policies": PolicyDefaults(max_same_address_producers_per_topic=LIMIT)},
        places=(PROXY,),  # without it, who has more addresses is more payers
    ),
    _row("connections-per-address", "client address", Connections, settings=_PER_ADDRESS),
    _row("connections-of-broker", "broker", AllConnections, settings={"connections_max": LIMIT}, places=(ONE, SEVERAL)),
    Limiter(
        "subscribe-rate",
        "role, on a topic: for each consumer at once, and one more",
        "the number of two periods",
        (*WHO, "subscription", "kind", "reader"),
        subscribe_rate,
    ),
)
