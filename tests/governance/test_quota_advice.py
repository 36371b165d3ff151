# SPDX-License-Identifier: Apache-2.0
"""What is advised and predicted from recordings is what then happens, live and in virtual time."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penstock.governance.quota_replay import QuotaReplay, Used, quotas_of, recommend, replay
from tests.governance.recorded_group import BROKER, Arrival, batchy, bursty, limited, passed, recorded, smooth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TARGET = 0.99
MINUTES = 60
DAYS = range(int(os.environ.get("PENSTOCK_SIM_ADVISED_DAYS", "10")))  # `make sim` has more


class Tenant(NamedTuple):
    """What a tenant sends, and a quota that limits it at times."""

    traffic: Callable[[random.Random, int], Iterator[Arrival]]
    quota: float

    def arrivals(self, seed: int) -> list[Arrival]:
        return list(self.traffic(random.Random(seed), MINUTES))


TENANTS = {
    "smooth": Tenant(lambda chance, minutes: smooth(chance, minutes, 10.0, 10), 120),
    "smooth-above": Tenant(lambda chance, minutes: smooth(chance, minutes, 10.0, 10), 80),
    "bursty": Tenant(lambda chance, minutes: bursty(chance, minutes, 600), 200),
    "batchy": Tenant(lambda chance, minutes: batchy(chance, minutes, 10.0), 130),
}


@pytest.fixture(params=list(TENANTS))
def tenant(request: pytest.FixtureRequest) -> Tenant:
    return TENANTS[request.param]


def test_the_quota_that_was_in_force_passes_what_was_recorded(tenant: Tenant) -> None:
    minutes = recorded(tenant.arrivals(1), tenant.quota, MINUTES)
    same = replay(minutes, (tenant.quota, None))
    assert same.passed[0] == pytest.approx(passed(minutes), rel=0.02)
    assert same.limited == pytest.approx(limited(minutes), abs=1)


@pytest.mark.parametrize("factor", [0.5, 2])
def test_another_quota_passes_what_then_passes(tenant: Tenant, factor: float) -> None:
    minutes = recorded(tenant.arrivals(1), tenant.quota, MINUTES)
    live = recorded(tenant.arrivals(1), tenant.quota * factor, MINUTES)
    other = replay(minutes, (tenant.quota * factor, None))
    assert other.passed[0] == pytest.approx(passed(live), rel=0.1)


def test_each_minute_is_replayed_with_the_quota_that_was_in_force_in_it() -> None:
    arrivals = TENANTS["bursty"].arrivals(1)
    minutes = recorded(arrivals, 400, MINUTES)[:30] + recorded(arrivals, 50, MINUTES)[30:]
    one = QuotaReplay((None, None))
    for minute in minutes:
        one.set_quotas(quotas_of(minute))
        one.feed(minute)
    assert one.outcome.passed[0] == pytest.approx(passed(minutes), rel=0.02)


def test_a_recommended_quota_exceeds_one_that_limits_some_seconds_of_each_minute() -> None:
    minutes = recorded(bursty(random.Random(1), 2, 6_000, 30.0), 200, 2)
    assert limited(minutes) == 2
    assert all(sum(one[BROKER].messages for one in minutes) / 120 < 200 for _ in minutes), "by its mean it would do"
    advice = recommend(minutes, 0, TARGET)
    assert advice is not None
    assert advice.quota > 200
    assert advice.at_least


def closed_loop(quota: float, limited_ms: int) -> dict[str, Used]:
    """A minute of clients that send as fast as they are answered."""
    messages = round(quota * 60)
    needed = (quota * 1.001, None)
    return {BROKER: Used(messages, messages * 100, limited_ms, (quota, None), (quota, None), needed, (0, 0))}


@pytest.mark.parametrize("measured", [True, False])
def test_unknown_demand_is_at_least_what_was_seen(*, measured: bool) -> None:
    minutes = [closed_loop(400, 60_000)] * 10
    if not measured:  # as an older broker records it
        minutes = [{BROKER: minute[BROKER]._replace(needed=(None, None), held=(None, None))} for minute in minutes]
    advice = recommend(minutes, 0, TARGET)
    assert advice is not None
    assert advice.quota > 400
    assert advice.at_least
    assert replay(minutes, (800, None)).at_least
    assert not replay(minutes, (400, None)).at_least
    assert replay(minutes, (800, None)).passed[0] == pytest.approx(10 * 400 * 60), "nothing is invented"


def test_records_without_evidence_advise_no_smaller_quota() -> None:
    minutes = [{BROKER: Used(600, 60_000, 0, (100, None), (100, None))}] * 100
    advice = recommend(minutes, 0, TARGET)
    assert advice is not None
    assert (advice.quota, advice.at_least) == (100, False)


def test_a_quota_of_few_minutes_that_were_all_limited_is_not_recommended() -> None:
    calm = {BROKER: Used(60, 6_000, 0, (100, None), (100, None), (2.0, None), (0, 0))}
    minutes = [calm] * 1_000 + [closed_loop(10, 60_000)] * 2
    advice = recommend(minutes, 0, TARGET)
    assert advice is not None
    assert advice.quota > 10


def day(seed: int) -> tuple[list[Arrival], float]:
    """What a tenant sends on a day, in hours of work and quiet ones, and the quota that it had."""
    chance = random.Random(seed)
    kind = chance.choice(["smooth", "bursty", "batchy"])
    scale = chance.uniform(0.3, 3.0)
    minutes = 120
    if kind == "smooth":
        arrivals = list(smooth(chance, minutes, scale, chance.choice([1, 10, 100])))
    elif kind == "bursty":
        arrivals = list(bursty(chance, minutes, round(200 * scale), chance.uniform(1, 40)))
    else:
        arrivals = list(batchy(chance, minutes, 20 / scale, chance.choice([100, 1_000])))
    mean = sum(one.entries * one.messages for one in arrivals) / (minutes * 60)
    return arrivals, float(round(mean * chance.uniform(0.8, 20)) + 1)


def days_that_limit(seeds: Sequence[int]) -> list[int]:
    """Days on which more minutes are limited by the recommended quota than were to be."""
    found = []
    for seed in seeds:
        arrivals, quota = day(seed)
        minutes = recorded(arrivals, quota, 120)
        advice = recommend(minutes, 0, TARGET)
        assert advice is not None
        then = recorded(arrivals, advice.quota, 120)
        if limited(then) > (1 - TARGET) * len(then):
            found.append(seed)
    return found


def test_no_recommendation_limits() -> None:
    assert days_that_limit(DAYS) == []
