# SPDX-License-Identifier: Apache-2.0
"""A clock that moves only when told to."""

from __future__ import annotations

import pytest

from penstock.core.clock import Clock, ManualClock
from penstock.core.units import NS_PER_MS


def test_both_clocks_move_on_together() -> None:
    clock = ManualClock(monotonic_ns=5, wall_ms=1_000)
    clock.advance(ms=2, ns=NS_PER_MS)
    as_any_clock: Clock = clock
    assert as_any_clock.monotonic_ns() == 5 + 3 * NS_PER_MS
    assert as_any_clock.wall_ms() == 1_003


def test_parts_of_a_millisecond_add_up() -> None:
    clock = ManualClock()
    for _ in range(4):
        clock.advance(ns=NS_PER_MS // 4)
    assert clock.wall_ms() == 1


def test_setting_the_wall_clock_lets_no_time_pass() -> None:
    clock = ManualClock(wall_ms=1_000)
    clock.step_wall(ms=-400)
    assert clock.wall_ms() == 600
    assert clock.monotonic_ns() == 0


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock(monotonic_ns=10).advance(ns=-1)
