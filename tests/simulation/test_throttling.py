# SPDX-License-Identifier: Apache-2.0
"""How adaptive throttling answers: how fast, how far below its aim, how often it changes its mind."""

from __future__ import annotations

import os
from statistics import mean

import pytest

from tests.simulation.throttle_world import SCENARIOS, Run, calm_day, quota_filled


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {scenario.__name__: scenario() for scenario in SCENARIOS}


def test_after_a_step_the_rate_settles_in_three_cycles_and_does_not_overshoot(runs: dict[str, Run]) -> None:
    run = runs["step"]
    settled_s = run.settled_s()
    assert settled_s is not None
    assert settled_s <= 3
    assert run.overshoot == pytest.approx(0.0, abs=0.01)
    last = run.points[-1]
    assert last.rate is not None
    assert last.rate / last.natural == pytest.approx(0.28, abs=0.01)


@pytest.mark.parametrize(
    "scenario", ["ramp", "spike", "overload", "overload_ends", "delayed_overload", "small_overload"]
)
def test_nobody_is_ever_below_the_floor(runs: dict[str, Run], scenario: str) -> None:
    assert runs[scenario].lowest_part >= 0.0999


@pytest.mark.parametrize("scenario", ["step", "ramp", "spike", "steady_boundary", "overload", "overload_ends"])
def test_it_does_not_flap(runs: dict[str, Run], scenario: str) -> None:
    assert runs[scenario].flaps_per_hour == 0


def test_an_overload_that_is_seen_late_swings_below_the_limit_and_does_not_flap(runs: dict[str, Run]) -> None:
    """Memory crosses much of the range between the watermarks in the time in which nothing is seen of it."""
    run = runs["delayed_overload"]
    assert run.flaps_per_hour == 0
    assert max(run.memory) < 1.0


def test_swings_that_are_longer_than_the_first_hold_lengthen_it(runs: dict[str, Run]) -> None:
    """Every sixteen seconds it would flap 224 times an hour."""
    assert runs["slow_swing"].flaps_per_hour <= 2


def test_a_small_overload_is_held_without_flapping(runs: dict[str, Run]) -> None:
    run = runs["small_overload"]
    assert run.flaps_per_hour <= 2
    assert max(run.memory) < 0.85


def test_an_overload_is_kept_below_the_high_watermark_and_drained_at_full_rate(runs: dict[str, Run]) -> None:
    run = runs["overload"]
    assert max(run.memory) < 1.0
    last = run.points[-60:]
    assert sum(point.passed for point in last) / len(last) == pytest.approx(400, rel=0.05)
    assert 0.70 < run.memory[-1] < 0.85


def test_when_an_overload_ends_all_is_released_within_ten_cycles(runs: dict[str, Run]) -> None:
    run = runs["overload_ends"]
    calm_s = next(at_s for at_s, memory in enumerate(run.memory) if at_s >= 330 and memory <= 0.70)
    released_s = next(point.at_s for point in run.points if point.at_s >= calm_s and not point.active)
    assert released_s - calm_s <= 10


@pytest.mark.parametrize(("fills_in_s", "varies"), [(8.0, 0.0), (8.0, 0.2), (20.0, 0.3)])
def test_a_backlog_quota_is_reached_four_times_later_also_by_a_rate_that_varies(
    fills_in_s: float, varies: float
) -> None:
    """4.78 times is what the law allows if it is evaluated all the time."""
    later = [quota_filled(seed, fills_in_s=fills_in_s, varies=varies) for seed in range(20)]
    assert 4.0 < mean(later) < 4.9


def test_a_day_without_pressure_has_no_activation() -> None:
    for seed in range(int(os.environ.get("PENSTOCK_SIM_DAYS", "1"))):
        replay = calm_day(seed)
        assert replay.decisions == []
        assert all(one.passed == pytest.approx(one.wanted) for one in replay.summaries.values())
        assert replay.summaries["persistent://tenant-0/ns/t0"].wanted > 15_000_000
