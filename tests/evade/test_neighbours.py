# SPDX-License-Identifier: Apache-2.0
"""What a limit does to others on the same connection, in virtual time: nothing.

The protocol can stop one producer only by not reading its connection, so a limit that mutes is paid by everybody on it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.testing.client import Type
from penstock.testing.loop import VirtualLoop
from tests.evade import moves as choices
from tests.evade.rows import ONE, PROXY, put_in_group, set_policy
from tests.evade.world import NAMESPACES, world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.wire import codec
    from tests.evade.wire import Wire
    from tests.evade.world import Place, World

RATE: Final = 50
SECONDS: Final = 10
# The neighbour sends so many at a time.
FREE_BURST, FREE_EACH_S = 10, 0.025
FREE: Final = "persistent://public/default/free"
LIMITED: Final = f"persistent://{NAMESPACES[0]}/limited"
# A second of the rate, and one read of the connection.
BURST: Final = 2 * RATE
FRAME: Final = choices.SHAPES["small"].frame_of
PLACES: Final = pytest.mark.parametrize("place", [ONE, PROXY], ids=str)


async def of_topic(made: World) -> None:
    await set_policy(made, "publishRate", {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1})
    rate = {"dispatchThrottlingRateInMsg": RATE, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    await set_policy(made, "dispatchRate", rate)


async def of_group(made: World) -> None:
    await put_in_group(made, GroupRates(GroupRate(messages=RATE), GroupRate(messages=RATE)))


LIMITS: Final = pytest.mark.parametrize("limit", [of_topic, of_group], ids=["topic", "group"])


def run(play: Callable[[World], Awaitable[None]], place: Place) -> None:
    """Run a broker, or one behind a proxy, in virtual time."""

    async def main() -> None:
        async with world(place) as made:
            await play(made)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(0)) as runner:
        runner.run(main())


async def press(wire: Wire) -> None:
    """Keep a hundred SENDs of producer 0 on their way."""
    while True:
        wire.publish(0, FRAME(0), 100 - wire.unanswered.get(0, 0))
        await asyncio.sleep(0.01)


@PLACES
@LIMITS
def test_a_producer_in_debt_delays_nothing_else_on_its_connection(
    limit: Callable[[World], Awaitable[None]], place: Place
) -> None:
    async def play(made: World) -> None:
        await limit(made)
        loop, wire = asyncio.get_running_loop(), await made.wire_for(LIMITED)
        await wire.request(Type.PRODUCER, topic=LIMITED, producer_id=0)
        await wire.request(Type.PRODUCER, topic=FREE, producer_id=1)
        sent_at: list[float] = []
        waits: list[float] = []
        passed = 0

        def answered(producer_id: int) -> None:
            nonlocal passed
            if producer_id == 1:
                waits.append(loop.time() - sent_at[len(waits)])
            else:
                passed += 1

        wire.on_receipt = answered
        pressing = asyncio.create_task(press(wire))
        longest_s = 0.0
        for burst in range(round(SECONDS / FREE_EACH_S)):
            sent_at += [loop.time()] * FREE_BURST
            wire.publish(1, FRAME(1), FREE_BURST)
            await asyncio.sleep(FREE_EACH_S)
            if burst % 40 == 0:
                began_s = loop.time()
                await wire.request(Type.PRODUCER, topic=FREE, producer_id=2 + burst)
                longest_s = max(longest_s, loop.time() - began_s)
        pressing.cancel()
        assert len(waits) >= 0.95 * len(sent_at)
        assert sorted(waits)[len(waits) * 99 // 100] <= 0.020
        assert longest_s <= 0.1
        assert 0.95 * RATE * SECONDS <= passed <= RATE * SECONDS + BURST

    run(play, place)


@PLACES
@LIMITS
def test_a_subscription_in_debt_delays_nothing_else_on_its_connection(
    limit: Callable[[World], Awaitable[None]], place: Place
) -> None:
    async def play(made: World) -> None:
        loop = asyncio.get_running_loop()
        stock = await made.wire_for(LIMITED, beside_proxy=True)
        for producer_id, topic in enumerate((LIMITED, FREE)):
            await stock.request(Type.PRODUCER, topic=topic, producer_id=producer_id)
        stock.publish(0, FRAME(0), RATE * SECONDS * 2)
        await stock.all_answered(5)
        await limit(made)
        wire = await made.wire_for(LIMITED)
        got = [0, 0]
        sent_at: list[float] = []
        waits: list[float] = []

        def received(command: codec.CommandMessage, _entry: bytes) -> None:
            got[command.consumer_id] += 1
            if command.consumer_id == 1:
                waits.append(loop.time() - sent_at[len(waits)])

        wire.on_message = received
        for consumer_id, topic in enumerate((LIMITED, FREE)):
            await wire.request(
                Type.SUBSCRIBE, topic=topic, subscription="s", subType=1, consumer_id=consumer_id, initialPosition=1
            )
            wire.send(Type.FLOW, consumer_id=consumer_id, messagePermits=100_000)
        for _ in range(round(SECONDS / FREE_EACH_S)):
            sent_at += [loop.time()] * FREE_BURST
            stock.publish(1, FRAME(1), FREE_BURST)
            await asyncio.sleep(FREE_EACH_S)
        assert len(waits) >= 0.95 * len(sent_at)
        assert sorted(waits)[len(waits) * 99 // 100] <= 0.020
        assert 0.95 * RATE * SECONDS <= got[0] <= RATE * SECONDS + BURST

    run(play, place)
