# SPDX-License-Identifier: Apache-2.0
"""A machine with two brokers loses its power at each step of a transaction at both: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from penstock.broker.transactions.others import COMMITS
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.core.units import NS_PER_MS
from penstock.storage.metadata import close_untouched
from penstock.testing.client import Refused
from penstock.testing.loop import VirtualLoop
from tests.broker.cluster import begin
from tests.broker.consuming import EXCLUSIVE, SHARED, Received
from tests.broker.transacting import TransactingPeer
from tests.simulation.broker_world import DATA, World, _life

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from penstock.storage.shared_writer import Writer
    from tests.net.harness import Harness

BROKERS = 2
# So many writes, syncs and the like a transaction needs.
STEPS_MAX = 96
# Brokers settle every five seconds, and those that have just been started do it at once.
SETTLED_S = 12


def topic(number: int, what: str) -> TopicName:
    """A topic of this broker: what is consumed there, or what is produced."""
    return TopicName.parse(f"persistent://public/default/{what}-{number}")


class BrokersWorld(World):
    """A machine with brokers, which lose their power together."""

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        super().__init__(loop, chance)
        self.harnesses: list[Harness] = []
        self._writers: list[Writer] = []

    async def start(self) -> None:
        self._context = contextvars.copy_context()
        self._context.run(_life.set, next(self._lives))
        self._stack = contextlib.AsyncExitStack()
        self._writers = []

        async def start() -> None:
            self.harnesses = await begin(self._stack, DATA, BROKERS, writers=self._writers)

        await self.in_broker(start)
        self.harness = self.harnesses[0]

    def brokers(self) -> list[Harness]:
        return self.harnesses if self.harness is not None else []

    async def lose_power(self, *, kill: bool = False) -> None:
        for writer in self._writers:
            close_untouched(writer._store._file._db)  # noqa: SLF001 - as the end of its process does
        await super().lose_power(kill=kill)
        transports: Any = self.loop._transports  # type: ignore[attr-defined]  # noqa: SLF001
        for transport in list(transports.values()):  # As of processes that are there no more.
            transport.abort()

    async def topic(self, number: int, what: str) -> Topic:
        return await self.harnesses[number].broker.topics.load(topic(number, what))


class Clients(NamedTuple):
    """Of each broker: one that consumes and has got a message, and one that produces."""

    consumers: list[TransactingPeer]
    producers: list[TransactingPeer]
    received: list[Received]


async def peer_of(harness: Harness) -> TransactingPeer:
    return cast("TransactingPeer", await TransactingPeer.connected(harness))


async def prepare(world: BrokersWorld) -> Clients:
    clients = Clients([], [], [])
    for number, harness in enumerate(world.harnesses):
        for what in ("in", "out"):
            await harness.broker.topics.get_or_create(topic(number, what), create=True)
        consumer, producer = await peer_of(harness), await peer_of(harness)
        await consumer.produce(str(topic(number, "in")))
        await consumer.publish(b"in")
        await consumer.subscribe(SHARED, topic=str(topic(number, "in")))
        await producer.produce(str(topic(number, "out")))
        await producer.subscribe(EXCLUSIVE, topic=str(topic(number, "out")), permits=0)
        await producer.close_consumer()
        clients.consumers.append(consumer)
        clients.producers.append(producer)
        clients.received.append(await consumer.message())
    return clients


async def transact(clients: Clients, told: list[str], how: str) -> None:
    """One whole transaction; says in `told` how far it was answered."""
    first = clients.consumers[0]
    transaction = await first.open()
    told.append(str(transaction.number))
    await first.add_topics(transaction, *(str(topic(number, "out")) for number in range(BROKERS)))
    for number, (consumer, producer) in enumerate(zip(clients.consumers, clients.producers, strict=True)):
        await first.add_subscription(transaction, topic=str(topic(number, "in")))
        await producer.send_in(transaction, b"out")
        await consumer.acknowledge_in(transaction, clients.received[number])
    told.append("sent")
    await (first.commit if how == "commit" else first.abort)(transaction)
    told.append(how)


async def seen(world: BrokersWorld) -> set[bool]:
    """Whether each part of the transaction has happened, for whoever reads now."""
    happened = set()
    for number in range(BROKERS):
        happened.add((await world.topic(number, "out")).subscriptions["s"].backlog == 1)
        happened.add((await world.topic(number, "in")).subscriptions["s"].backlog == 0)
    return happened


async def crash_at(world: BrokersWorld, step: int, how: str, *, kill: bool) -> bool:
    """Whether the transaction had ended before that step."""
    await world.start()
    clients = await prepare(world)
    told: list[str] = []
    world.disk.lose_power_at(step)
    with contextlib.suppress(TimeoutError, Refused, asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(3):
            await transact(clients, told, how)
    await world.lose_power(kill=kill)
    await world.start()
    await asyncio.sleep(SETTLED_S)
    happened = await seen(world)
    assert len(happened) == 1, told
    if how in told:
        assert happened == {how == "commit"}
    assert "sent" in told or happened == {False}
    if "sent" in told:
        await end_again(world, int(told[0]), how)
    await asyncio.sleep(70)  # Whatever is open is aborted now.
    assert not any(one.broker.transactions.open_count for one in world.harnesses)
    assert not any(one.broker.transactions.foreign_count for one in world.harnesses)
    assert not world.harnesses[0].broker.catalog.documents(COMMITS)
    assert len(await seen(world)) == 1
    for number in range(BROKERS):
        assert not (await world.topic(number, "out")).holds_back
    world.harness = None
    await world.in_broker(world._stack.aclose)  # noqa: SLF001
    return how in told


async def end_again(world: BrokersWorld, number: int, how: str) -> None:
    """The client asks for the same again, as it does when it was not told: now it has happened."""
    peer, transaction = await peer_of(world.harnesses[0]), TransactionId(0, number)
    await (peer.commit if how == "commit" else peer.abort)(transaction)
    assert await seen(world) == {how == "commit"}


def same(loop: VirtualLoop) -> VirtualLoop:
    return loop


@pytest.mark.parametrize(("how", "kill", "every"), [("commit", True, 2), ("commit", False, 3), ("abort", False, 7)])
def test_a_transaction_happens_at_all_brokers_or_at_none(
    how: str, *, kill: bool, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    ended = []
    for step in range(1, STEPS_MAX, every):
        loop = VirtualLoop(step, thread_delay_ns_max=NS_PER_MS)
        world = BrokersWorld(loop, Random(step))

        async def main(world: BrokersWorld = world, step: int = step) -> bool:
            world._own |= asyncio.all_tasks()  # noqa: SLF001 - it does not end with the power
            return await crash_at(world, step, how, kill=kill)

        try:
            with asyncio.Runner(loop_factory=partial(same, loop)) as runner:
                ended.append(runner.run(main()))
        except BaseException as error:
            error.add_note(f"step {step}, {how}, kill={kill}")
            raise
    assert any(ended), "the last steps are after its end"
    assert not all(ended)
