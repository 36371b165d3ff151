# SPDX-License-Identifier: Apache-2.0
"""The power is cut, or the process killed, at each step of a transaction: it has happened everywhere, or nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.testing.client import Refused
from tests.broker.consuming import EXCLUSIVE, SHARED, Received
from tests.broker.transacting import TransactingPeer
from tests.net.harness import topic_of
from tests.simulation.test_usage import in_virtual_time

if TYPE_CHECKING:
    from tests.net.harness import Harness
    from tests.simulation.broker_world import World

IN, OUT, ALSO = (f"persistent://public/default/{name}" for name in ("in", "out", "also"))
STEPS = range(1, 61)


class Peers(NamedTuple):
    """One consumes from IN, the others produce."""

    consumer: TransactingPeer
    out: TransactingPeer
    also: TransactingPeer
    received: Received


async def peer_of(harness: Harness) -> TransactingPeer:
    peer = await TransactingPeer.connected(harness)
    assert isinstance(peer, TransactingPeer)
    return peer


async def prepare(harness: Harness) -> Peers:
    """Topics with subscriptions, and a message to acknowledge."""
    consumer, out, also = [await peer_of(harness) for _ in range(3)]
    await consumer.produce(IN)
    await consumer.publish(b"in")
    await consumer.subscribe(SHARED, topic=IN)
    for peer, topic in ((out, OUT), (also, ALSO)):
        await peer.produce(topic)
        await peer.subscribe(EXCLUSIVE, topic=topic, permits=0)
        await peer.close_consumer()
    return Peers(consumer, out, also, await consumer.message())


async def transact(peers: Peers, told: list[str], how: str) -> None:
    """One whole transaction; says in `told` how far it was answered."""
    peer = peers.consumer
    transaction = await peer.open()
    told.append(str(transaction.number))
    await peer.add_topics(transaction, OUT, ALSO)
    await peer.add_subscription(transaction, topic=IN)
    await peers.out.send_in(transaction, b"out")
    await peers.also.send_in(transaction, b"also")
    await peer.acknowledge_in(transaction, peers.received)
    told.append("sent")
    await (peer.commit if how == "commit" else peer.abort)(transaction)
    told.append(how)


async def seen(harness: Harness) -> tuple[bool, bool, bool]:
    """Whether each part of the transaction has happened, for whoever reads now."""
    topics = [await harness.broker.topics.load(TopicName.parse(topic)) for topic in (IN, OUT, ALSO)]
    backlogs = [topic.subscriptions["s"].backlog for topic in topics]
    return backlogs[1] == 1, backlogs[2] == 1, backlogs[0] == 0


async def crash_at(world: World, step: int, how: str, *, kill: bool) -> bool:
    """Whether the transaction had ended before that step."""
    await world.start()
    assert world.harness is not None
    peers = await prepare(world.harness)
    told: list[str] = []
    world.disk.lose_power_at(step)
    with contextlib.suppress(TimeoutError, Refused, asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(3):
            await transact(peers, told, how)
    await world.lose_power(kill=kill)
    await world.start()
    assert world.harness is not None
    happened = set(await seen(world.harness))
    assert len(happened) == 1, (told, await seen(world.harness))
    if how in told:
        assert happened == {how == "commit"}
    assert "sent" in told or happened == {False}
    if "sent" in told:
        await end_again(world.harness, int(told[0]), how)
    world.harness.clock.advance(ms=600_000)  # Whatever is open is aborted now.
    await world.loop.until(lambda: not world.harness.broker.transactions.open_ones(), 60)  # type: ignore[union-attr]
    assert len(set(await seen(world.harness))) == 1
    assert not any(topic_of(world.harness, topic).holds_back for topic in (IN, OUT, ALSO))
    await world.stop()
    return how in told


async def end_again(harness: Harness, number: int, how: str) -> None:
    """The client asks for the same again, as it does when it was not told: now it has happened."""
    peer, transaction = await peer_of(harness), TransactionId(0, number)
    await (peer.commit if how == "commit" else peer.abort)(transaction)
    assert set(await seen(harness)) == {how == "commit"}


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("kill", [True, False])
def test_a_transaction_happens_everywhere_or_nowhere(how: str, *, kill: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    ended = []
    for step in STEPS:
        try:
            ended.append(in_virtual_time(step, partial(crash_at, step=step, how=how, kill=kill)))
        except BaseException as error:
            error.add_note(f"step {step}, {how}, kill={kill}")
            raise
    assert any(ended), "the last steps are after its end"
    assert not all(ended)
