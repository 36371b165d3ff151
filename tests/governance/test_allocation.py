# SPDX-License-Identifier: Apache-2.0
"""Quotas divided between brokers: the examples of PIP-82 to the digit, known defects of Pulsar, and properties."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.governance.allocation import (
    BOUND_PERCENT,
    MARGIN_PERCENT,
    RESERVE_PERCENT,
    Cluster,
    Report,
    Strategy,
    allocate,
    max_min,
    max_min_share,
    max_min_shares,
    water_level,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

EVEN, PROPORTIONAL = Strategy.RESIDUAL_EVEN, Strategy.RESIDUAL_PROPORTIONAL


def used(**brokers: int) -> dict[str, Report]:
    return {name: Report(amount) for name, amount in brokers.items()}


def wanted(**brokers: tuple[int, int]) -> dict[str, Report]:
    """Brokers that use their whole share and hold back the rest of their demand: (share, demand)."""
    return {name: Report(min(pair), max(0, pair[1] - pair[0])) for name, pair in brokers.items()}


# -- the worked examples of the PIP


def test_each_broker_adds_the_whole_rest_in_the_even_split() -> None:
    assert allocate(100, used(one=10, two=50, three=30), strategy=EVEN) == {"one": 20, "two": 60, "three": 40}


def test_each_broker_adds_its_part_of_the_rest_in_the_proportional_split() -> None:
    shares = allocate(10_000, used(one=1_000, two=5_000, three=3_000), strategy=PROPORTIONAL)
    assert shares == {"one": 1_111, "two": 5_556, "three": 3_333}


@pytest.mark.parametrize("strategy", [EVEN, PROPORTIONAL])
def test_the_lower_of_two_brokers_steals_half_of_the_difference(strategy: Strategy) -> None:
    assert allocate(100, used(one=80, two=20), strategy=strategy) == {"one": 80, "two": 50}


@pytest.mark.parametrize("strategy", [EVEN, PROPORTIONAL])
def test_the_dominant_broker_gives_way_when_the_other_one_rises(strategy: Strategy) -> None:
    shares = allocate(110, used(one=80, two=30), strategy=strategy)
    assert shares == {"one": 80, "two": 55}
    shares = allocate(100, used(one=80, two=30), strategy=strategy)
    assert (shares["one"], shares["two"]) == (73, 27 + (73 - 27) // 2)


@pytest.mark.parametrize("strategy", [EVEN, PROPORTIONAL])
def test_the_lowest_broker_is_paired_with_the_highest_and_the_next_with_the_next(strategy: Strategy) -> None:
    shares = allocate(100, used(a=2, b=50, c=8, d=10, e=30), strategy=strategy)
    assert shares == {"a": 2 + (50 - 2) // 2, "b": 50, "c": 8 + (30 - 8) // 2, "d": 10, "e": 30}


@pytest.mark.parametrize("strategy", [EVEN, PROPORTIONAL])
def test_usage_over_the_quota_shrinks_in_proportion(strategy: Strategy) -> None:
    assert allocate(100, used(one=120, two=120, three=60), strategy=strategy) == {"one": 40, "two": 40, "three": 30}
    assert allocate(100, used(one=150, two=150), strategy=strategy) == {"one": 50, "two": 50}


# -- what the PIP asks of any rule


def test_a_share_that_one_broker_does_not_use_is_not_lost() -> None:
    """The PIP's example: allocated 70 and 30, used 80 and 20."""
    assert allocate(1_000, {"one": Report(700, 100), "two": Report(200)}) == {"one": 780, "two": 220}


def test_two_brokers_with_the_same_demand_get_the_same_share() -> None:
    """The PIP's example: allocated 70 and 30, both demand 70."""
    assert allocate(1_000, wanted(one=(700, 700), two=(300, 700))) == {"one": 500, "two": 500}


def test_shares_move_without_jags() -> None:
    """One broker's demand moves by 7: no share moves by more than 14, nor back and forth."""
    before: dict[str, int] = {}
    for demand in range(1, 30_000, 7):
        shares = allocate(20_000, used(one=demand, two=3_000, three=9_000))
        if before:
            assert all(abs(shares[name] - before[name]) <= 14 for name in shares)
            assert shares["one"] >= before["one"]
        before = shares


# -- defects of Pulsar 4.2 (facts: resource groups as shipped)


def settle(demands: Mapping[str, int], quota: int, strategy: Strategy, cycles: int = 10) -> list[dict[str, int]]:
    """The shares of each cycle when brokers use their share or what they demand, and report that."""
    shares = dict.fromkeys(demands, 0)
    history = []
    for _ in range(cycles):
        reports = {
            name: Report(min(demand, shares[name]), max(0, demand - shares[name])) for name, demand in demands.items()
        }
        if not any(report.used for report in reports.values()) and strategy is Strategy.PULSAR:
            reports = {name: Report(1) for name in demands}
        shares = allocate(quota, reports, strategy=strategy, cluster=Cluster(len(demands)))
        history.append(shares)
    return history


def test_s1_a_newly_busy_broker_is_not_starved() -> None:
    started = {"busy": Report(999_000, 500_000), "new": Report(1_000, 800_000)}
    assert allocate(1_000_000, started, strategy=Strategy.PULSAR)["new"] == 1_000  # a fixed point
    assert allocate(1_000_000, started) == {"busy": 500_000, "new": 500_000}


def test_s1_an_idle_broker_keeps_a_reserve_that_nobody_else_gets() -> None:
    busy = {"busy": Report(10**6, 10**6), "idle": Report(0)}
    shares = allocate(10**6, busy, cluster=Cluster(4))
    assert shares == {"busy": 10**6, "idle": 10**6 * RESERVE_PERCENT // 100 // 4}


def test_s2_a_cold_start_gives_no_broker_the_whole_quota() -> None:
    cold = {name: Report(0) for name in "abcd"}
    assert allocate(1_000, cold, strategy=Strategy.PULSAR) == dict.fromkeys("abcd", 1_000)
    assert allocate(1_000, cold, cluster=Cluster(4)) == dict.fromkeys("abcd", 250)
    # Before the others were heard, a broker has its part of the reserve.
    assert allocate(100_000, {"a": Report(0)}, cluster=Cluster(4, silent=3)) == {"a": 250}


def test_s3_shares_are_fair_after_one_step() -> None:
    history = settle({"hog": 3_000, "one": 500, "two": 500, "three": 100}, 1_000, Strategy.MAX_MIN, cycles=2)
    assert history[-1] == {"hog": 296, "one": 296, "two": 296, "three": 110}


def test_s4_a_broker_that_is_gone_or_silent_does_not_keep_its_usage_for_itself() -> None:
    reports = {"alive": Report(500, 500)}
    assert allocate(1_000, reports, cluster=Cluster(1)) == {"alive": 1_000}
    # Still registered, but silent for too long: it may want everything.
    assert allocate(1_000, reports, cluster=Cluster(2, silent=1)) == {"alive": 500}
    assert allocate(1_000, reports, cluster=Cluster(4, silent=1)) == {"alive": 500}
    assert allocate(1_000, {"alive": Report(100)}, cluster=Cluster(4, silent=1)) == {"alive": 120}


def test_s5_demand_that_was_held_back_counts() -> None:
    reports = {"limited": Report(300, 700), "content": Report(300)}
    assert allocate(1_000, reports, strategy=Strategy.PULSAR) == {"limited": 500, "content": 500}
    assert allocate(1_000, reports) == {"limited": 680, "content": 320}


def test_s9_shares_of_one_call_are_not_changed_by_the_next() -> None:
    reports = used(one=100, two=900)
    first = allocate(1_000, reports)
    kept = dict(first)
    allocate(5, reports)
    assert first == kept
    assert reports == used(one=100, two=900)


def test_s12_shares_of_limited_brokers_sum_to_the_quota_and_not_above() -> None:
    reports = {name: Report(400, 10_000) for name in "abc"}
    assert sum(allocate(1_000, reports).values()) <= 1_000


@pytest.mark.parametrize("quota", [2**24 + 1, 2**40 + 1, 2**60 + 1])
def test_s15_large_rates_are_exact(quota: int) -> None:
    assert allocate(quota, {"one": Report(quota, quota)}) == {"one": quota}
    assert (
        allocate(quota, {"one": Report(1, 0), "two": Report(quota - 1, 0)}, strategy=PROPORTIONAL)["two"] == quota - 1
    )
    assert allocate(quota, {"one": Report(1), "two": Report(quota - 1)}, strategy=Strategy.PULSAR)["two"] == quota - 1


# -- Pulsar's formula, as its own tests describe it


def test_pulsars_share_is_in_proportion_to_usage_and_at_least_one() -> None:
    def share(quota: int, mine: int, others: int) -> int:
        return allocate(quota, used(mine=mine, others=others), strategy=Strategy.PULSAR)["mine"]

    assert share(100, 20, 20) > 20
    assert share(100, 20, 80) == 20
    assert share(100, 20, 130) < 20
    assert share(100, 20, 40) * 2 == pytest.approx(share(100, 40, 20), abs=1)
    assert share(10, 0, 0) == 10
    assert share(100, 0, 50) == 1


# -- properties

AMOUNTS = st.integers(0, 2**34)
REPORTS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.builds(Report, AMOUNTS, AMOUNTS))
STRATEGIES = st.sampled_from(Strategy)
QUOTAS = st.integers(0, 2**34)
CLUSTERS = st.builds(Cluster, st.integers(0, 12), st.integers(0, 3))


@given(quota=QUOTAS, reports=REPORTS, strategy=STRATEGIES, cluster=CLUSTERS)
def test_each_reporting_broker_has_a_share_of_zero_or_more(
    quota: int, reports: dict[str, Report], strategy: Strategy, cluster: Cluster
) -> None:
    shares = allocate(quota, reports, strategy=strategy, cluster=cluster)
    assert shares.keys() == reports.keys()
    assert all(share >= 0 for share in shares.values())


@given(quota=QUOTAS, reports=REPORTS, cluster=CLUSTERS)
def test_max_min_shares_never_sum_to_more_than_the_bound(
    quota: int, reports: dict[str, Report], cluster: Cluster
) -> None:
    shares = allocate(quota, reports, cluster=cluster)
    assert sum(shares.values()) <= quota * BOUND_PERCENT // 100


@given(
    quota=QUOTAS,
    demands=st.lists(st.one_of(st.just(0), st.integers(1, 2**34)), min_size=1, max_size=8),
    more=st.lists(st.one_of(st.just(0), st.integers(1, 2**34), st.none()), min_size=8, max_size=8),
    members=st.integers(0, 12),
)
@settings(max_examples=1_000)
def test_demand_of_others_that_is_more_or_unknown_never_makes_a_max_min_share_larger(
    quota: int, demands: list[int], more: list[int | None], members: int
) -> None:
    """So shares sum to the bound at most, if no broker divides by less than the others divide by for themselves."""
    members = max(members, len(demands))
    others = list(zip(demands[:-1], more[: len(demands) - 1], strict=True))
    seen = [demand + additional for demand, additional in others if additional is not None] + demands[-1:]
    share = max_min_share(quota, seen, Cluster(members, len(demands) - len(seen)))
    assert share <= max_min_share(quota, demands, Cluster(members)) + len(demands)  # rounded down


@given(quota=QUOTAS, reports=REPORTS, strategy=STRATEGIES, cluster=CLUSTERS, seed=st.integers(0, 100))
def test_shares_do_not_depend_on_the_order_of_reports(
    quota: int, reports: dict[str, Report], strategy: Strategy, cluster: Cluster, seed: int
) -> None:
    names = list(reports)
    random.Random(seed).shuffle(names)
    shuffled = {name: reports[name] for name in names}
    shares = allocate(quota, reports, strategy=strategy, cluster=cluster)
    assert allocate(quota, shuffled, strategy=strategy, cluster=cluster) == shares


@given(quota=QUOTAS, reports=REPORTS, strategy=STRATEGIES, cluster=CLUSTERS)
def test_brokers_that_saw_the_same_reports_agree(
    quota: int, reports: dict[str, Report], strategy: Strategy, cluster: Cluster
) -> None:
    first = allocate(quota, reports, strategy=strategy, cluster=cluster)
    assert allocate(quota, dict(reports), strategy=strategy, cluster=cluster) == first


ONE = st.builds(Report, st.integers(1, 2**34), AMOUNTS)


@given(quota=QUOTAS, reports=REPORTS, cluster=CLUSTERS, one=ONE, another=ONE, additional=AMOUNTS)
def test_more_demand_never_makes_a_max_min_share_smaller(
    quota: int, reports: dict[str, Report], cluster: Cluster, one: Report, another: Report, additional: int
) -> None:
    more = {**reports, "one": one, "another": another}
    cluster = Cluster(max(cluster.members, len(more) + cluster.silent), cluster.silent)
    less = allocate(quota, more, cluster=cluster)["one"]
    more["one"] = one._replace(used=one.used + additional)
    assert allocate(quota, more, cluster=cluster)["one"] >= less - 1  # rounded down


@given(quota=QUOTAS, more=QUOTAS, reports=REPORTS, cluster=CLUSTERS)
def test_a_larger_quota_never_makes_a_max_min_share_smaller(
    quota: int, more: int, reports: dict[str, Report], cluster: Cluster
) -> None:
    small, large = (allocate(amount, reports, cluster=cluster) for amount in sorted((quota, quota + more)))
    # What is divided by parts is rounded down for each broker, and a larger quota may be divided otherwise.
    assert all(large[name] >= small[name] - len(reports) for name in reports)


@given(quota=QUOTAS, reports=REPORTS)
def test_all_demand_that_fits_beside_the_margin_is_met_and_otherwise_the_whole_quota_is_shared(
    quota: int, reports: dict[str, Report]
) -> None:
    fresh = list(reports.values())
    demands = [report.used + report.held for report in fresh]
    shares = max_min(quota, fresh, Cluster(len(fresh)))
    margin = quota * MARGIN_PERCENT // 100
    if sum(demands) <= quota - margin:
        assert all(share >= demand for share, demand in zip(shares, demands, strict=True))
    else:
        assert sum(shares) >= quota - len(fresh) - 1  # rounded down
        assert sum(map(min, shares, demands)) >= quota - margin - len(fresh) - 1  # no more than the margin is unused
        level = water_level(quota - margin, demands)
        assert all(share >= min(demand, level) for share, demand in zip(shares, demands, strict=True))


@given(quota=st.integers(1, 10**6), demands=st.lists(st.integers(1, 10**6), min_size=1, max_size=8))
def test_max_min_is_fair_after_one_step(quota: int, demands: list[int]) -> None:
    names = [str(number) for number in range(len(demands))]
    history = settle(dict(zip(names, demands, strict=True)), quota, Strategy.MAX_MIN, cycles=1)
    if sum(demands) > quota:
        level = water_level(quota - quota * MARGIN_PERCENT // 100, demands)
        for name, demand in zip(names, demands, strict=True):
            assert history[-1][name] >= min(demand, level) - 1


# Amounts of one size, and quotas near their sum: so that all branches are reached.
FEW = st.integers(0, 100)
NEAR = st.lists(st.builds(Report, st.one_of(st.just(0), FEW), st.just(0)), min_size=1, max_size=6)


@given(
    quota=st.one_of(QUOTAS, st.integers(0, 600)),
    reports=st.one_of(NEAR, st.lists(st.builds(Report, AMOUNTS, AMOUNTS), min_size=1)),
    cluster=CLUSTERS,
)
@settings(max_examples=500)
def test_the_own_share_alone_is_the_last_of_all(quota: int, reports: list[Report], cluster: Cluster) -> None:
    demands = [report.used + report.held for report in reports]
    assert max_min_share(quota, demands, cluster) == max_min(quota, reports, cluster)[-1]


@given(reports=NEAR, more=st.integers(-10, 30), cluster=st.builds(Cluster, st.integers(0, 8), st.integers(0, 2)))
@settings(max_examples=500)
def test_the_own_share_alone_is_the_last_of_all_when_demand_is_about_the_quota(
    reports: list[Report], more: int, cluster: Cluster
) -> None:
    scale = 1_000  # parts of the quota are not rounded to nothing
    demands = [report.used * scale for report in reports]
    quota = max(0, sum(demands) * (100 + more) // 100)
    assert max_min_share(quota, demands, cluster) == max_min_shares(quota, demands, cluster)[-1]
