# SPDX-License-Identifier: Apache-2.0
"""Adaptive throttling: what a payer publishes while the broker's memory is short.

The sentence: while the pressure is high, the payer's rate is at most its floor, reckoned from twice its natural rate;
beside that one warm-up passes, of a second. The natural rate is what the player published before, without pressure.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.governance.adaptive_throttle import GROWTH_MAX
from penstock.stats.process import ProcessMemory
from penstock.testing.client import Type
from tests.evade import moves as choices
from tests.evade.counting import Verdict
from tests.evade.player import Publisher
from tests.evade.rows import Limiter

if TYPE_CHECKING:
    from random import Random

    from tests.evade.moves import Moves
    from tests.evade.world import World

INTERVAL_MS: Final = 100
CALM_S: Final = 2.0
PRESSED_S: Final = 4.0
FLOOR: Final = 0.10  # adaptivePublisherThrottlingMinRateFactor
WARM_UP_S: Final = 1.0
# Each hand publishes 40 entries a second, as long as it gets its receipts.
BURST: Final = 2
NEIGHBOUR: Final = "persistent://public/default/neighbour"
NEIGHBOUR_S: Final = 0.5


class Pressure:
    """The memory that the broker believes to have used."""

    def __init__(self) -> None:
        self.part = 0.0

    def measured(self) -> ProcessMemory:
        """As `MemorySensor`."""
        return ProcessMemory(1_000, round(1_000 * self.part), 1_000, {"requests": 7})


async def adaptive_throttling(world: World, moves: Moves, chance: Random) -> Verdict:
    pressure = Pressure()
    for harness in world.harnesses:
        assert harness.broker.throttling is not None
        harness.broker.throttling.memory, harness.broker.throttling.disk_delay = pressure.measured, lambda: 0.0
    times: list[tuple[float, int]] = []
    loop = asyncio.get_running_loop()

    def passed(_topic: str, messages: int, _entry_bytes: int) -> None:
        times.append((loop.time(), messages))

    steady = replace(moves, timing="steadily")
    player = Publisher(world, steady, chance, CALM_S + PRESSED_S, lambda: False, passed, burst=BURST)
    neighbour = asyncio.create_task(_neighbour(world)) if chance.random() < 0.5 else None
    began_s = loop.time()
    loop.call_later(CALM_S, setattr, pressure, "part", 1.0)
    await player.play()
    if neighbour is not None:
        neighbour.cancel()
    calm = sum(messages for at_s, messages in times if began_s + CALM_S - 1 <= at_s < began_s + CALM_S)
    pressed = sum(messages for at_s, messages in times if at_s >= began_s + CALM_S)
    allowed = calm * (GROWTH_MAX * FLOOR * PRESSED_S + WARM_UP_S)
    return Verdict("the tenant", pressed, max(allowed, LEAST), PRESSED_S)


# Limits are at least one message per second and topic, and none is reckoned from nothing.
LEAST: Final = 50


async def _neighbour(world: World) -> None:
    """Another tenant, which publishes so little that it never pays for the pressure."""
    wire = await world.wire_for(NEIGHBOUR)
    await wire.request(Type.PRODUCER, topic=NEIGHBOUR, producer_id=0)
    frame = choices.SHAPES["tiny"].frame_of(0)
    while wire.is_open:
        wire.publish(0, frame, 1)
        await asyncio.sleep(NEIGHBOUR_S)


ROWS: Final = (
    Limiter(
        "adaptive-throttling",
        "tenant, or its group",
        "a second of the natural rate",
        (
            "topics",
            "spread",
            "namespaces",
            "hands",
            "addresses",
            "visits",
            "leaves",
            "deeds",
            "producer",
            "members",
            "shape",
        ),
        adaptive_throttling,
        settings={"adaptive_throttling": True, "adaptive_interval_ms": INTERVAL_MS},
    ),
)
