# SPDX-License-Identifier: Apache-2.0
"""Brokers share a quota in a made-up world: soon fairly, never far above the quota, and without leaving it unused."""

from __future__ import annotations

import os
import random
from itertools import accumulate

import pytest

from penstock.core.units import NS_PER_S
from penstock.governance.allocation import BOUND_PERCENT, Strategy
from penstock.governance.resource_group import BURST_NS
from tests.simulation.arrivals import Arrivals, Pattern
from tests.simulation.quota_scenarios import IRREGULAR, NAMED, faulty_irregular
from tests.simulation.quota_table import PAGE, STRATEGIES, irregular_row, row
from tests.simulation.quota_world import INTERVAL_S, TICKS_PER_S, Faults, OneBroker, Scenario, Second, World

QUOTA = 10_000
SEEDS = range(int(os.environ.get("PENSTOCK_SIM_SEEDS", "150")) // 10)  # `make sim` has more
MANY = 100 if "PENSTOCK_SIM_SEEDS" in os.environ else 25  # and larger ones: the work grows with the square


def run(scenario: Scenario, strategy: Strategy = Strategy.MAX_MIN, seed: int = 1) -> list[Second]:
    return list(World(scenario, strategy, random.Random(seed)).run())


def assert_fair(seconds: list[Second]) -> None:
    for second in seconds:
        for served, fair in zip(second.served, second.fair, strict=True):
            assert abs(served - fair) <= 0.1 * fair + 0.01 * QUOTA, (served, fair)
        assert sum(second.served) >= 0.98 * second.possible


def test_a_cold_start_is_fair_within_two_cycles_and_never_over_the_quota() -> None:
    seconds = run(Scenario(name="cold start", brokers=4, demand=lambda *_: QUOTA, seconds=20, quota=QUOTA))
    assert max(sum(second.served) for second in seconds) <= 1.05 * QUOTA
    assert_fair(seconds[2 * INTERVAL_S :])


def test_a_hog_gives_way_to_brokers_that_rise() -> None:
    scenario = Scenario(
        name="hog and risers",
        brokers=4,
        demand=lambda broker, now_s, _: 2 * QUOTA if broker == 0 else QUOTA / 2 if now_s > 15 else 0,
        seconds=30,
    )
    seconds = run(scenario)
    assert max(sum(second.served) for second in seconds) <= 1.05 * QUOTA
    assert seconds[14].served[0] >= 0.98 * QUOTA
    assert_fair(seconds[15 + 2 * INTERVAL_S :])


def test_a_partition_leaves_the_quota_in_use_and_is_forgotten_after_it_has_healed() -> None:
    scenario = Scenario(
        name="partition",
        brokers=4,
        demand=lambda broker, now_s, _: 2 * QUOTA if broker == 0 or now_s > 20 else QUOTA / 20,
        seconds=60,
        faults=Faults(partition=(10, 45, frozenset({0, 1}))),
    )
    seconds = run(scenario)
    assert max(sum(second.served) for second in seconds) <= 1.05 * QUOTA
    assert min(sum(second.served) for second in seconds[5:45]) >= 0.95 * QUOTA
    assert_fair(seconds[45 + 2 * INTERVAL_S :])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_round_exceeds_the_bound_of_shares_and_one_burst_whatever_is_lost_late_killed_or_frozen(seed: int) -> None:
    """A round is one interval, from any moment on, a cold start included. What was lent before may be used in it."""
    scenario = faulty_irregular(seed)
    world = World(scenario, Strategy.MAX_MIN, random.Random(seed))
    world.run()
    assert worst_round(world) <= bound(scenario)
    assert max(world.shares) <= QUOTA * BOUND_PERCENT / 100 + 1


@pytest.mark.parametrize("brokers", [4, MANY])
def test_members_that_all_begin_while_reports_are_lost_stay_within_the_bound(brokers: int) -> None:
    faults = Faults(delay_s=(0.001, 0.5), loss=0.4, repeated=0.2)
    scenario = Scenario(
        name="lossy cold start",
        brokers=brokers,
        demand=lambda *_: QUOTA,
        seconds=4,
        keeps=True,
        interval_s=1,
        faults=faults,
    )
    world = World(scenario, Strategy.MAX_MIN, random.Random(brokers))
    world.run()
    assert worst_round(world) <= bound(scenario)
    assert max(world.shares) <= QUOTA * BOUND_PERCENT / 100 + 1
    assert sum(map(sum, (second.served for second in world.seconds))) > 0


def worst_round(world: World) -> int:
    ticks = round(world.scenario.interval_s * TICKS_PER_S)
    totals = list(accumulate(world.spent, initial=0))
    return max(later - earlier for later, earlier in zip(totals[ticks:], totals, strict=False))


def bound(scenario: Scenario) -> float:
    """What all may use in a round: 105 % of the quota, one burst, and a message of each broker."""
    return QUOTA * (scenario.interval_s * 1.05 + BURST_NS / NS_PER_S) + scenario.brokers


@pytest.mark.parametrize("name", ["hog leaves", "late riser"])
def test_the_documented_table_is_what_the_simulation_shows(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (scenario,) = (scenario for scenario in NAMED if scenario.name == name)
    for strategy in STRATEGIES:
        assert f"| {' | '.join(row(scenario, strategy))} |" in page, "run make sim"


@pytest.mark.parametrize("pattern", [Pattern.POISSON, Pattern.TIMER])
def test_the_documented_table_of_irregular_arrivals_is_what_the_simulation_shows(pattern: Pattern) -> None:
    (scenario,) = (scenario for scenario in IRREGULAR if scenario.name == f"hog and 3 others, {pattern}")
    assert f"| {' | '.join(irregular_row(scenario))} |" in PAGE.read_text(encoding="utf-8"), "run make sim"


@pytest.mark.parametrize("pattern", Pattern)
def test_irregular_arrivals_have_the_mean_rate_that_they_are_given(pattern: Pattern) -> None:
    seconds, rate, brokers = 300, 100.0, 8
    arrivals = Arrivals((pattern,) * brokers, (rate,) * brokers, seconds)
    chance = random.Random(1)
    total = sum(
        arrivals(broker, tick / TICKS_PER_S, chance) / TICKS_PER_S
        for broker in range(brokers)
        for tick in range(1, seconds * TICKS_PER_S + 1)
    )
    assert total == pytest.approx(rate * seconds * brokers, rel=0.1)


def test_what_waits_at_one_broker_is_kept_and_served_fairly() -> None:
    one = OneBroker(3)
    assert one.serve([10, 50, 2], 12) == [5, 5, 2]
    assert one.serve([0, 0, 0], 12) == [5, 7, 0]
    assert one.serve([0, 0, 0], None) == [0, 38, 0]
