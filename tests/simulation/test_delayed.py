# SPDX-License-Identifier: Apache-2.0
"""The delayed index in a made-up world: whatever happens in whatever order, messages come in time, to all, and once.

`PENSTOCK_SIM_SEEDS` says how many worlds are tried (make sim); a failure names its seed, and `PENSTOCK_SIM_SEED` runs
that one alone.
"""

from __future__ import annotations

import os
import random

import pytest

from penstock.governance.delayed import TIME_MAX_MS, DelayedOptions
from tests.simulation.delayed_world import MEMORY_BYTES, World

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "50"))
ONE = os.environ.get("PENSTOCK_SIM_SEED")
TESTS = 10
STEPS = 300


def seeds() -> list[range]:
    if ONE is not None:
        return [range(int(ONE), int(ONE) + 1)]
    return [range(SEEDS * part // TESTS, SEEDS * (part + 1) // TESTS) for part in range(TESTS)]


@pytest.mark.parametrize("some", seeds(), ids=lambda some: f"{some.start}-{some.stop - 1}")
def test_every_message_reaches_every_subscription_after_its_time_and_once_when_acknowledged(some: range) -> None:
    for seed in some:
        try:
            live(random.Random(seed))
        except BaseException as error:
            error.add_note(f"to run this world alone: make sim SEED={seed}")
            raise


def live(chance: random.Random) -> None:
    world = World(chance, memory_bytes=chance.choice([0, 2_000, 10_000, MEMORY_BYTES]))
    world.join("a", -1)
    for _ in range(STEPS):
        step(world, chance)
        if chance.random() < 0.05:
            world.check_counts()
    world.memory.limit_bytes = chance.choice([2_000, MEMORY_BYTES])
    world.drain()
    for member in world.members.values():
        assert member.cursor.mark_delete == len(world.log) - 1, (
            f"{member.name} misses {member.cursor.mark_delete + 1}, due at {world.log[member.cursor.mark_delete + 1]}"
        )
    assert world.memory.used_bytes == 0


def step(world: World, chance: random.Random) -> None:
    """Something happens."""
    members = list(world.members.values())
    member = chance.choice(members) if members else world.join("a", len(world.log) - 1)
    anywhere = chance.randrange(len(world.log) + 1)
    what = chance.random()
    if what < 0.20:
        world.publish([deliver_at(world, chance) for _ in range(chance.randrange(1, 9))])
    elif what < 0.50:
        if not member.stalled:
            world.dispatch(member, chance.randrange(1, 12))
    elif what < 0.68:
        owed = sorted(member.owed)
        some = chance.sample(owed, chance.randrange(len(owed) + 1))
        (world.give_back if chance.random() < 0.2 else world.acknowledge)(member, some)
    elif what < 0.78:
        world.pass_time(chance.choice([10, 400, 1_000, 5_000, 30_000]))
    elif what < 0.80:
        world.pass_time(chance.choice([-100, -10_000, -60_000, 60_000, 600_000]))
    elif what < 0.84:
        world.fill_index()
    elif what < 0.88:
        world.write_snapshot()
    elif what < 0.89:
        world.restart(tail_first=chance.random() < 0.5)
    elif what < 0.91:
        world.disconnect(member)
    elif what < 0.92:
        world.seek(member, anywhere)
    elif what < 0.93:
        world.skip_through(member, anywhere - 1)
    elif what < 0.935:
        world.clear_backlog(member)
    elif what < 0.95:
        member.stalled = not member.stalled
    elif what < 0.96:
        world.set_options(DelayedOptions(tick_ms=chance.choice([1, 100, 1_000, 7_000]), strict=chance.random() < 0.5))
    elif what < 0.97 and len(members) < 5:
        world.join(f"s{chance.randrange(10**9)}", anywhere - 1)
    elif what < 0.975:
        world.unsubscribe(member.name)
    elif what < 0.98:
        world.memory.limit_bytes = chance.choice([0, 1_000, 5_000, MEMORY_BYTES])
    elif what < 0.985:
        world.break_off_filling()
    elif what < 0.99 and world.log:
        unsent = [entry for entry in world.waiting if all(entry not in one.owed for one in members)]
        if unsent:
            world.cancel(chance.choice(sorted(unsent)))
    elif world.waiting:
        world.acknowledge(member, [chance.choice(sorted(world.waiting))])


def deliver_at(world: World, chance: random.Random) -> int:
    """A deliver time, or none."""
    kind = chance.random()
    if kind < 0.4:
        return 0
    if kind < 0.95:
        return max(world.now_ms + chance.choice([-500, 1, 700, 3_000, 20_000, 300_000]) + chance.randrange(1_000), 1)
    return world.now_ms + 10**9 if kind < 0.99 else TIME_MAX_MS // 2 - 1
