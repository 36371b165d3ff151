# SPDX-License-Identifier: Apache-2.0
"""Many worlds with a whole broker, each made by a seed. `make sim` runs more; `make sim SEED=123` repeats one."""

from __future__ import annotations

import asyncio
import logging
import os
from random import Random

import pytest

from penstock.core.units import NS_PER_MS
from penstock.testing.loop import VirtualLoop
from tests.simulation.broker_world import World

SEEDS = range(int(os.environ.get("PENSTOCK_SIM_SEEDS", "300")) // 50)  # `make sim` has more
ONE = os.environ.get("PENSTOCK_SIM_SEED")
STORY_LINES = 40


def run(seed: int) -> World:
    """Run the world of this seed; what fails says how to repeat it."""
    loop = VirtualLoop(seed, thread_delay_ns_max=NS_PER_MS)
    world = World(loop, Random(seed))
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(world.run())
        world.check_order()
    except BaseException as error:
        story = "\n".join(world.story[-STORY_LINES:])
        error.add_note(f"{story}\nrepeat it with: make sim SEED={seed}")
        raise
    return world


@pytest.mark.parametrize("seed", [int(ONE)] if ONE else SEEDS)
def test_nothing_acknowledged_is_lost_whatever_happens(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    world = run(seed)
    assert all(told.deliveries > 0 for told in world.told)


def test_a_seed_makes_the_same_world_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    first, second = run(7), run(7)
    assert first.story == second.story
    assert [told.first for told in first.told] == [told.first for told in second.told]
