# SPDX-License-Identifier: Apache-2.0
"""Limits of publishing: of a resource group, of a topic, and of a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.governance.resource_group import GroupRate, GroupRates
from tests.evade import moves as choices
from tests.evade.counting import Payers, Stretches
from tests.evade.player import Publisher
from tests.evade.rows import BYTES, LASTS_S, ONE, PROXY, RATE, WHO, Limiter, group_burst, put_in_group, set_policy

if TYPE_CHECKING:
    from random import Random

    from tests.evade.counting import Verdict
    from tests.evade.moves import Moves
    from tests.evade.world import World

PUBLISHING: Final = (*WHO, "producer", "members", "shape")


def _entry(moves: Moves, *, nbytes: bool) -> int:
    """What one entry costs."""
    shape = choices.SHAPES[moves.shape]
    return shape.entry_bytes if nbytes else shape.messages


async def _publish_for_all(world: World, moves: Moves, chance: Random, counter: Stretches, *, nbytes: bool) -> Verdict:
    """Publish, all of which one payer pays."""
    loop = asyncio.get_running_loop()

    def passed(_topic: str, messages: int, entry_bytes: int) -> None:
        counter.add(entry_bytes if nbytes else messages, loop.time())

    await Publisher(world, moves, chance, LASTS_S, lambda: counter.excessive, passed).play()
    return counter.verdict()


async def _publish_for_each(world: World, moves: Moves, chance: Random, counter: Payers, *, nbytes: bool) -> Verdict:
    """Publish; each topic pays for itself."""
    loop = asyncio.get_running_loop()

    def passed(topic: str, messages: int, entry_bytes: int) -> None:
        counter.add(topic, entry_bytes if nbytes else messages, loop.time())

    await Publisher(world, moves, chance, LASTS_S, lambda: counter.excessive, passed).play()
    return counter.verdict()


async def group_publish_messages(world: World, moves: Moves, chance: Random) -> Verdict:
    await put_in_group(world, GroupRates(publish=GroupRate(messages=RATE)), of_tenant=chance.random() < 0.5)
    burst = group_burst(world, RATE, _entry(moves, nbytes=False))
    return await _publish_for_all(world, moves, chance, Stretches("the group", RATE, burst), nbytes=False)


async def group_publish_bytes(world: World, moves: Moves, chance: Random) -> Verdict:
    await put_in_group(world, GroupRates(publish=GroupRate(bytes=BYTES)), of_tenant=chance.random() < 0.5)
    burst = group_burst(world, BYTES, _entry(moves, nbytes=True))
    return await _publish_for_all(world, moves, chance, Stretches("the group", BYTES, burst), nbytes=True)


async def topic_publish_messages(world: World, moves: Moves, chance: Random) -> Verdict:
    await set_policy(world, "publishRate", {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1})
    counter = Payers(RATE, RATE + _entry(moves, nbytes=False))
    return await _publish_for_each(world, moves, chance, counter, nbytes=False)


async def topic_publish_bytes(world: World, moves: Moves, chance: Random) -> Verdict:
    await set_policy(world, "publishRate", {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": BYTES})
    counter = Payers(BYTES, BYTES + _entry(moves, nbytes=True))
    return await _publish_for_each(world, moves, chance, counter, nbytes=True)


async def broker_publish_messages(world: World, moves: Moves, chance: Random) -> Verdict:
    counter = Stretches("the broker", RATE, RATE + _entry(moves, nbytes=False))
    return await _publish_for_all(world, moves, chance, counter, nbytes=False)


ROWS: Final = (
    Limiter(
        "group-publish-messages",
        "resource group",
        "50 ms of the rate; with several brokers 120 ms more that are lent, and one entry on each",
        PUBLISHING,
        group_publish_messages,
    ),
    Limiter(
        "group-publish-bytes",
        "resource group",
        "50 ms of the rate; with several brokers 120 ms more that are lent, and one entry on each",
        PUBLISHING,
        group_publish_bytes,
    ),
    Limiter(
        "topic-publish-messages",
        "topic",
        "a second of the rate, and one entry",
        PUBLISHING,
        topic_publish_messages,
    ),
    Limiter(
        "topic-publish-bytes",
        "topic",
        "a second of the rate, and one entry",
        PUBLISHING,
        topic_publish_bytes,
    ),
    Limiter(
        "broker-publish-messages",
        "broker",
        "a second of the rate, and one entry",
        PUBLISHING,
        broker_publish_messages,
        settings={"policies": PolicyDefaults(broker_publisher_throttling_max_message_rate=RATE)},
        places=(ONE, PROXY),
    ),
)
