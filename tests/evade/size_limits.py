# SPDX-License-Identifier: Apache-2.0
"""Limits of sizes: the backlog of a topic, the memory of requests, and that of topic listings."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.policies.policy_values import HOLD, QUOTA_SIZE
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.net.listing_memory import TopicListLimits
from penstock.testing.client import Type
from tests.evade import moves as choices
from tests.evade.counting import Retained, Verdict
from tests.evade.player import Player, Publisher
from tests.evade.publish_limits import PUBLISHING
from tests.evade.rows import LASTS_S, ONE, Limiter
from tests.evade.wire import Gone, Refused
from tests.evade.world import NAMESPACES

if TYPE_CHECKING:
    from random import Random

    from tests.evade.moves import Moves
    from tests.evade.wire import Wire
    from tests.evade.world import World

# -- backlogs

QUOTA: Final = 16 * KIB
CHECK_S: Final = 1
BURST: Final = 5
# The check begins with a tick of a quarter of a second, and takes a moment.
LATE_S: Final = 0.3


@dataclass
class Hoarder(Publisher):
    """Publishes to topics that each have a subscription which acknowledges nothing."""

    async def topic_of(self, hand: int, visit: int) -> str:
        topic = await super().topic_of(hand, visit)
        wire = await self.world.wire_for(topic)
        await wire.request(Type.SUBSCRIBE, topic=topic, subscription="s", subType=1, consumer_id=0, durable=True)
        wire.abort()
        return topic


async def backlog_quota(world: World, moves: Moves, chance: Random) -> Verdict:
    quota = {"limitSize": QUOTA, "limitTime": -1, "policy": HOLD}
    for namespace in NAMESPACES:
        await world.harnesses[0].broker.policies.set_namespace_quota(namespace, QUOTA_SIZE, quota)
    counter = Retained(QUOTA, CHECK_S + LATE_S)
    loop = asyncio.get_running_loop()

    def passed(topic: str, _messages: int, entry_bytes: int) -> None:
        # A topic that was deleted, and that a producer made again, keeps nothing until somebody subscribes.
        if topic.startswith("persistent") and world.has_subscription(topic.partition(" at ")[0], "s"):
            counter.add(topic, entry_bytes, loop.time())

    player = Hoarder(world, moves, chance, LASTS_S, lambda: counter.excessive, passed, burst=BURST)
    player.deleted = counter.deleted  # type: ignore[method-assign]
    await player.play()
    return counter.verdict()


# -- request memory

POOL_BYTES: Final = 256 * KIB
FRAME_BYTES: Final = 64 * KIB


@dataclass
class Hoard(Player):
    """Sends SENDs, and parts of them, while the disk answers nothing."""

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        await wire.request(Type.PRODUCER, topic=topic, producer_id=0)
        frame = choices.SHAPES[self.moves.shape].frame_of(0)
        wire.count_from_now()
        while self.going and wire.is_open:
            if self.chance.random() < 0.3:
                wire.write(frame[: self.chance.randrange(1, len(frame))])
                break
            wire.write(frame * self.chance.choice((1, 10, 40)))
            await self.pause()
        await asyncio.sleep(0.1)
        if self.moves.leaves != "and leaves it open":
            wire.abort()


async def request_memory(world: World, moves: Moves, chance: Random) -> Verdict:
    """The disk is held: what the broker has read, it keeps."""
    worst = Verdict("the broker", 0, POOL_BYTES + FRAME_BYTES - 1)
    player = Hoard(world, moves, chance, 1.0, lambda: worst.over)
    topics = [await player.topic_of(hand, 0) for hand in range(choices.HANDS[moves.hands])]
    for topic in dict.fromkeys(topics):
        with contextlib.suppress(Gone, Refused):
            wire = await world.wire_for(topic)
            await wire.request(Type.PRODUCER, topic=topic, producer_id=0)
            wire.abort()
    world.harnesses[0].disk.hold()

    async def watch() -> None:
        nonlocal worst
        while True:
            read = sum(wire.taken_bytes for wire in world.wires if wire.is_open)
            worst = max(worst, Verdict("the broker", read, worst.allowed), key=lambda one: one.passed)
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    try:
        await player.play()
    finally:
        watching.cancel()
        world.harnesses[0].disk.release()
    return worst


# -- topic listings

TOPICS: Final = 40
LISTING_BYTES: Final = 24 * KIB
ASKED: Final = 6  # on each connection


@dataclass
class Lister(Player):
    """Asks for listings, and reads nothing. Each has a pattern of its own, so that none is shared."""

    async def visit(self, wire: Wire, topic: str, hand: int, visit: int) -> None:
        wire.stop_reading()
        for number in range(ASKED):
            wire.send(
                Type.GET_TOPICS_OF_NAMESPACE,
                request_id=100 + number,
                namespace=NAMESPACES[0],
                topics_pattern=f"persistent://{NAMESPACES[0]}/(x{hand}{visit}{number})?long.*",
            )
        await asyncio.sleep(0.1)
        await self.leave(wire)


async def listing_memory(world: World, moves: Moves, chance: Random) -> Verdict:
    """What counts is what waits in the broker's queues: a client that does not read cannot see it."""
    long = "x" * 200
    for number in range(TOPICS):
        await world.admin.topics.create(TopicName.parse(f"persistent://{NAMESPACES[0]}/long-{number}-{long}"))
    harness = world.harnesses[0]
    # Other responses of each connection wait with the listings, and so do the frames around these.
    worst = Verdict("the broker", 0, LISTING_BYTES + KIB * choices.HANDS[moves.hands])
    player = Lister(world, moves, chance, 1.0, lambda: worst.over)

    async def watch() -> None:
        nonlocal worst
        while True:
            waits = sum(connection.queue.unsent_bytes for connection in harness.connections.all())
            worst = max(worst, Verdict("the broker", waits, worst.allowed), key=lambda one: one.passed)
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    try:
        await player.play()
    finally:
        watching.cancel()
    return worst


ROWS: Final = (
    Limiter(
        "backlog-quota",
        "topic",
        "what comes until the next check",
        PUBLISHING,
        backlog_quota,
        settings={
            "policies": PolicyDefaults(backlog_quota_check_interval_in_seconds=CHECK_S),
        },
    ),
    Limiter(
        "request-memory",
        "broker",
        "one frame",
        ("hands", "addresses", "leaves", "timing", "shape", "spread", "visits"),
        request_memory,
        settings={"pool_bytes": POOL_BYTES, "frame_bytes_max": FRAME_BYTES},
        places=(ONE,),
    ),
    Limiter(
        "listing-memory",
        "broker",
        "other responses, a KiB a connection",
        ("hands", "addresses", "leaves", "spread", "visits"),
        listing_memory,
        settings={"listings": TopicListLimits(direct_bytes_max=LISTING_BYTES)},
        places=(ONE,),
    ),
)
