# SPDX-License-Identifier: Apache-2.0
"""Turns of the loop are measured by the selector, between two looks at the sockets."""

from __future__ import annotations

import asyncio
import selectors
import socket

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_MS
from penstock.net.clock import SystemClock
from penstock.net.loop_turns import READY_MAX, LoopTurns, TimedSelector, timed_loop


def test_a_turn_counts_above_each_threshold_that_it_passes() -> None:
    turns = LoopTurns()
    for turn_ms in (1, 5, 6, 60, 300):
        turns.observe(turn_ms * NS_PER_MS)
    assert turns.longer == {5: 3, 20: 2, 50: 2, 100: 1, 250: 1, 1_000: 0}
    assert turns.longest_ns == 300 * NS_PER_MS


def test_a_turn_is_what_lies_between_two_looks_at_the_sockets() -> None:
    turns, clock = LoopTurns(), ManualClock()
    selector = TimedSelector(turns, clock)
    clock.advance(ms=10)
    selector.select(0)
    clock.advance(ms=30)
    selector.select(0)
    selector.close()
    assert turns.longer[5] == 2
    assert turns.longer[20] == 1
    assert turns.longest_ns == 30 * NS_PER_MS


def test_whoever_holds_the_loop_is_seen() -> None:
    turns, clock = LoopTurns(), SystemClock()

    async def hold() -> None:
        began_ns = clock.monotonic_ns()
        while clock.monotonic_ns() - began_ns < 60 * NS_PER_MS:
            pass

    with asyncio.Runner(loop_factory=lambda: timed_loop(turns, clock)) as runner:
        runner.run(hold())
    assert turns.longer[50] == 1


def test_of_many_ready_sockets_a_few_are_served_in_a_turn_and_all_in_turns() -> None:
    selector = TimedSelector(LoopTurns(), ManualClock())
    pairs = [socket.socketpair() for _ in range(2 * READY_MAX + 1)]
    for ours, theirs in pairs:
        theirs.send(b"x")
        selector.register(ours.fileno(), selectors.EVENT_READ)
    turns = [selector.select(0) for _ in range(3)]
    assert [len(turn) for turn in turns] == [READY_MAX] * 3
    served = {key.fd for turn in turns for key, _ in turn}
    assert served == {ours.fileno() for ours, _ in pairs}
    assert all(events == selectors.EVENT_READ for turn in turns for _, events in turn)
    selector.close()
    for pair in pairs:
        for end in pair:
            end.close()


def test_nobody_ready_is_nobody_served_once_the_time_is_over() -> None:
    selector = TimedSelector(LoopTurns(), SystemClock())
    assert selector.select(0.001) == []
    assert selector.select(-1) == []
    selector.close()
