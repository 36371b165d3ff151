# SPDX-License-Identifier: Apache-2.0
"""Turns of the loop: nobody has it for long, and everybody comes to have it."""

from __future__ import annotations

import asyncio

from penstock.core.clock import ManualClock
from penstock.net.command_scheduler import READS_NS, SLICE_COMMANDS, TURN_COMMANDS, TURN_NS, CommandScheduler


class Client:
    """Has so many commands to carry out, each of which takes so long."""

    def __init__(
        self, turns: CommandScheduler, clock: ManualClock, done: list[Client], commands: int, cost_ns: int = 0
    ) -> None:
        self.turns, self.clock, self.done = turns, clock, done
        self.commands = commands
        self.cost_ns = cost_ns

    def take_turn(self) -> None:
        """Carry out what may be; wait for the rest."""
        taken = 0
        while self.commands and self.turns.take(taken):
            taken += 1
            self.commands -= 1
            self.done.append(self)
            self.clock.advance(ns=self.cost_ns)
        if self.commands:
            self.turns.wait(self)


async def test_one_client_alone_has_as_many_commands_as_a_turn_carries_out() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    done: list[Client] = []
    Client(turns, clock, done, 3 * TURN_COMMANDS).take_turn()
    counts = [len(done)]
    while len(turns):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert counts == [TURN_COMMANDS, 2 * TURN_COMMANDS, 3 * TURN_COMMANDS]


async def test_no_command_is_begun_when_a_turn_has_taken_its_time() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    done: list[Client] = []
    Client(turns, clock, done, 5, cost_ns=TURN_NS // 2).take_turn()
    assert len(done) == 2
    await asyncio.sleep(0)
    assert len(done) == 4


async def test_asking_whether_a_command_may_be_handled_begins_no_turn_and_counts_none() -> None:
    turns = CommandScheduler(asyncio.get_running_loop(), ManualClock())
    assert all(turns.may_take() for _ in range(2 * TURN_COMMANDS))
    taken = 0
    while turns.may_take():
        assert turns.take(0)
        taken += 1
    assert taken == TURN_COMMANDS
    assert not turns.take(0)
    await asyncio.sleep(0)
    assert turns.may_take()


async def test_no_command_may_be_handled_when_a_turn_has_taken_its_time() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    assert turns.take(0)
    clock.advance(ns=TURN_NS)
    assert not turns.may_take()
    await asyncio.sleep(0)
    assert turns.may_take()


async def test_no_socket_is_read_when_a_turn_has_lasted_too_long_and_again_in_the_next() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    assert turns.may_read()
    clock.advance(ns=READS_NS - 1)
    assert turns.may_read()
    clock.advance(ns=1)
    assert not turns.may_read()
    await asyncio.sleep(0)
    assert turns.may_read()


async def test_who_waits_comes_before_the_next_slice_of_another() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    done: list[Client] = []
    greedy = [Client(turns, clock, done, 100 * TURN_COMMANDS) for _ in range(5)]
    for client in greedy:
        client.take_turn()
    modest = Client(turns, clock, done, 1)
    turns.wait(modest)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # The first had the first turn for itself; from then on each has had a slice before the newcomer.
    assert modest in done
    assert done.index(modest) <= TURN_COMMANDS + len(greedy) * SLICE_COMMANDS


async def test_a_turn_nobody_wants_leaves_nothing_behind_on_the_loop() -> None:
    clock = ManualClock()
    turns = CommandScheduler(asyncio.get_running_loop(), clock)
    assert turns.take(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.take(0)
    assert len(turns) == 0
