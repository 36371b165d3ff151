# SPDX-License-Identifier: Apache-2.0
"""Limits of delivery: of a resource group, of a topic, of a subscription and of a broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.testing.client import Type
from tests.evade import moves as choices
from tests.evade.counting import Payers, Stretches
from tests.evade.player import Reader
from tests.evade.rows import (
    BYTES,
    LASTS_S,
    ONE,
    PROXY,
    RATE,
    WHO,
    Limiter,
    group_burst,
    put_in_group,
    set_policy,
)

if TYPE_CHECKING:
    from random import Random

    from tests.evade.counting import Verdict
    from tests.evade.moves import Moves
    from tests.evade.wire import Wire
    from tests.evade.world import World

# What matters to who reads; `shape` is that of the messages that there are.
READING: Final = (*WHO, "shape", "subscription", "kind", "reader", "permits", "reads")
# So many topics have messages, and so many of them; a non-persistent one gets more while somebody reads it.
STOCKED_MAX: Final = 8
ENTRIES: Final = 240
STOCK_BYTES: Final = 512 * 1024
STOCK_S: Final = 1.0
LIVE_ENTRIES: Final = 5
LIVE_S: Final = 0.02


@dataclass
class StockedReader(Reader):
    """A reader for whom somebody else publishes, without a limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stocked: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def topic_of(self, hand: int, visit: int) -> str:
        topic = await super().topic_of(hand, visit)
        if topic not in self._stocked and len(self._stocked) < STOCKED_MAX:
            self._stocked.add(topic)
            await self._stock(topic)
        return topic

    async def _stock(self, topic: str) -> None:
        wire = await self.world.wire_for(topic, beside_proxy=True)  # where nobody looks at what a SEND says
        await wire.request(Type.PRODUCER, topic=topic, producer_id=0)
        shape = choices.SHAPES[self.moves.shape]
        frame = shape.frame_of(0)
        if not topic.startswith("persistent"):
            self._tasks.append(asyncio.create_task(self._go_on(wire, frame)))
            return
        wire.publish(0, frame, min(ENTRIES, STOCK_BYTES // shape.entry_bytes))
        await wire.all_answered(STOCK_S)
        wire.abort()

    async def _go_on(self, wire: Wire, frame: bytes) -> None:
        while self.going and wire.is_open:
            wire.publish(0, frame, LIVE_ENTRIES)
            await asyncio.sleep(LIVE_S)


def _amount(messages: int, entry_bytes: int, *, nbytes: bool) -> int:
    return entry_bytes if nbytes else messages


async def _read_for_all(world: World, moves: Moves, chance: Random, counter: Stretches, *, nbytes: bool) -> Verdict:
    """Read, all of which one payer pays."""
    loop = asyncio.get_running_loop()

    def passed(_topic: str, _subscription: str, messages: int, entry_bytes: int) -> None:
        counter.add(_amount(messages, entry_bytes, nbytes=nbytes), loop.time())

    await StockedReader(world, moves, chance, LASTS_S, lambda: counter.excessive, passed).play()
    return counter.verdict()


async def _read_for_each(
    world: World, moves: Moves, chance: Random, counter: Payers, *, by_subscription: bool = False
) -> Verdict:
    """Read; each topic, or each subscription, pays for itself."""
    loop = asyncio.get_running_loop()

    def passed(topic: str, subscription: str, messages: int, _entry_bytes: int) -> None:
        if subscription or not by_subscription:
            counter.add(f"{topic} {subscription}" if by_subscription else topic, messages, loop.time())

    await StockedReader(world, moves, chance, LASTS_S, lambda: counter.excessive, passed).play()
    return counter.verdict()


def _entry(moves: Moves, *, nbytes: bool = False) -> int:
    shape = choices.SHAPES[moves.shape]
    return _amount(shape.messages, shape.entry_bytes, nbytes=nbytes)


def _burst(moves: Moves) -> float:
    """The messages of a period may come at its end, and those of the next one right after; and one entry."""
    return 2 * RATE + _entry(moves)


def _group_burst(world: World, moves: Moves, rate: float, *, nbytes: bool = False) -> float:
    """A proxy gives permits before it knows what they cost: it may be a second and an entry of each consumer ahead."""
    entry = _entry(moves, nbytes=nbytes)
    if world.proxy is None:
        return group_burst(world, rate, entry)
    return rate + entry * choices.HANDS[moves.hands]


async def group_dispatch_messages(world: World, moves: Moves, chance: Random) -> Verdict:
    await put_in_group(world, GroupRates(dispatch=GroupRate(messages=RATE)), of_tenant=chance.random() < 0.5)
    burst = _group_burst(world, moves, RATE)
    return await _read_for_all(world, moves, chance, Stretches("the group", RATE, burst), nbytes=False)


async def group_dispatch_bytes(world: World, moves: Moves, chance: Random) -> Verdict:
    await put_in_group(world, GroupRates(dispatch=GroupRate(bytes=BYTES)), of_tenant=chance.random() < 0.5)
    burst = _group_burst(world, moves, BYTES, nbytes=True)
    return await _read_for_all(world, moves, chance, Stretches("the group", BYTES, burst), nbytes=True)


_DISPATCH: Final = {
    "dispatchThrottlingRateInMsg": RATE,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}


async def topic_dispatch(world: World, moves: Moves, chance: Random) -> Verdict:
    await set_policy(world, "dispatchRate", _DISPATCH)
    return await _read_for_each(world, moves, chance, Payers(RATE, _burst(moves)))


async def subscription_dispatch(world: World, moves: Moves, chance: Random) -> Verdict:
    await set_policy(world, "subscriptionDispatchRate", _DISPATCH)
    return await _read_for_each(world, moves, chance, Payers(RATE, _burst(moves)), by_subscription=True)


async def broker_dispatch(world: World, moves: Moves, chance: Random) -> Verdict:
    return await _read_for_all(world, moves, chance, Stretches("the broker", RATE, _burst(moves)), nbytes=False)


_GROUP_BURST: Final = (
    "50 ms of the rate; with several brokers 120 ms more that are lent, and one entry on each;"
    " at a proxy a second, and one for each consumer"
)
_PERIODS: Final = "the messages of two periods, and one entry"
ROWS: Final = (
    Limiter("group-dispatch-messages", "resource group", _GROUP_BURST, READING, group_dispatch_messages),
    Limiter("group-dispatch-bytes", "resource group", _GROUP_BURST, READING, group_dispatch_bytes),
    Limiter("topic-dispatch", "topic", _PERIODS, READING, topic_dispatch),
    Limiter("subscription-dispatch", "subscription, until it is deleted", _PERIODS, READING, subscription_dispatch),
    Limiter(
        "broker-dispatch",
        "broker",
        _PERIODS,
        READING,
        broker_dispatch,
        settings={"policies": PolicyDefaults(dispatch_throttling_rate_in_msg=RATE)},
        places=(ONE, PROXY),
    ),
)
