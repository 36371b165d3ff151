# SPDX-License-Identifier: Apache-2.0
"""What other quotas would have done with recorded usage."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.governance.allocation import Strategy
from penstock.governance.quota_replay import QuotaReplay, Used, recommend, replay
from tests.governance.replay_model import ReplayModel
from tests.simulation.quota_world import Scenario, World, name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.quota_world import Broker

Minute = dict[str, Used]


def used(per_second: float, *, limited_ms: int = 0, quota: float | None = None, share: float | None = None) -> Used:
    messages = round(per_second * 60)
    return Used(messages, messages * 100, limited_ms, (quota, None), (share, None))


def recorded(quota: int, demand: Mapping[int, float]) -> tuple[Minute, list[Broker]]:
    """What brokers would record of a minute in which they share a quota, by their own exchange and limiters."""
    scenario = Scenario(
        name="recorded", brokers=len(demand), demand=lambda broker, _, __: demand[broker], quota=quota, seconds=60
    )
    world = World(scenario, Strategy.MAX_MIN, random.Random(1))
    world.run()
    minute = {}
    for number, broker in enumerate(world.brokers):
        limiter = broker.group.publish
        messages, limited_ms = limiter.messages_passed, limiter.limited_ns(60_000_000_000) // 1_000_000
        share = limiter.share.messages
        minute[name(number)] = Used(messages, messages * 100, limited_ms, (quota, None), (share, None))
    return minute, world.brokers


@pytest.mark.parametrize(
    ("quota", "demand"),
    [(1_000, {0: 300.0, 1: 900.0, 2: 500.0}), (1_000, {0: 100.0, 1: 200.0}), (500, {0: 2_000.0, 1: 2_000.0, 2: 20.0})],
)
def test_the_recorded_quota_reproduces_recorded_usage_and_shares(quota: int, demand: dict[int, float]) -> None:
    minute, brokers = recorded(quota, demand)
    one = QuotaReplay((quota, None))
    passed = one.feed(minute)
    for number, broker in enumerate(brokers):
        was, now = minute[name(number)], passed[name(number)]
        assert now.messages == pytest.approx(was.messages, rel=0.05, abs=quota * 0.6)
        share = broker.group.publish.share.messages
        assert share is not None
        assert now.share[0] == pytest.approx(share, rel=0.02, abs=quota * 0.02)


def test_half_the_quota_predicts_what_half_the_quota_then_does() -> None:
    demand = {0: 300.0, 1: 900.0, 2: 500.0}
    minute, _ = recorded(2_000, demand)
    outcome = replay([minute], (1_000, None))
    after, _ = recorded(1_000, demand)
    live = sum(one.messages for one in after.values())
    assert outcome.passed[0] == pytest.approx(live, rel=0.1)
    assert outcome.limited == 1
    assert outcome.fairness > 0.98


def test_known_work_waits_and_is_done_later() -> None:
    minutes = [{"a": used(200)}, {"a": used(0)}, {"a": used(10)}]
    outcome = replay(minutes, (100, None))
    assert outcome.passed[0] == pytest.approx(210 * 60, rel=0.01)
    assert outcome.waiting_max[0] == pytest.approx(100 * 60, rel=0.05)
    assert outcome.waiting == (0.0, 0.0)
    assert outcome.limited == 1


def test_the_scarcer_limit_decides_for_messages_and_bytes() -> None:
    outcome = replay([{"a": used(100)}], (1_000, 5_000))
    assert outcome.passed[1] == pytest.approx(5_000 * 60, rel=0.06)
    assert outcome.passed[0] == pytest.approx(outcome.passed[1] / 100)


def test_a_recommended_quota_limits_no_more_minutes_than_wanted() -> None:
    minutes = [{"a": used(10 + minute % 10), "b": used(5)} for minute in range(100)]
    minutes[50] = {"a": used(1_000)}
    advice = recommend(minutes, 0, 0.98)
    assert advice is not None
    quota = advice.quota
    assert replay(minutes, (quota, None)).limited <= 1
    assert replay(minutes, (quota * 0.9, None)).limited > 1
    assert recommend([{"a": used(0)}], 0, 0.99) is None


some_minutes = st.lists(
    st.dictionaries(
        st.sampled_from("abc"),
        st.builds(used, st.floats(0, 1e4), limited_ms=st.integers(0, 60_000), quota=st.just(500.0)),
    ),
    max_size=8,
)


@given(some_minutes, st.one_of(st.none(), st.integers(0, 10_000)), st.sampled_from(Strategy))
def test_nothing_is_lost_and_no_quota_is_exceeded(minutes: list[Minute], quota: int | None, rule: Strategy) -> None:
    one = QuotaReplay((quota, None), strategy=rule)
    for minute in minutes:
        passed = one.feed(minute)
        if quota is not None and rule is Strategy.MAX_MIN:
            assert sum(part.messages for part in passed.values()) <= 1.06 * quota * 60 + 1
    outcome = one.outcome
    assert outcome.passed[0] + outcome.waiting[0] >= outcome.recorded[0] * (1 - 1e-9) - 1e-6
    assert 0 <= outcome.limited <= outcome.minutes
    assert 0 < outcome.fairness <= 1 + 1e-9


def columns_of(quota: float | None, wait: int) -> st.SearchStrategy[Minute]:
    """Minutes of up to six brokers, with messages and bytes that do not go together."""
    one = st.builds(
        Used,
        st.integers(0, 60_000),
        st.integers(0, 6_000_000),
        st.integers(0, wait),
        st.tuples(st.just(quota), st.one_of(st.none(), st.just(50_000.0))),
        st.tuples(st.one_of(st.none(), st.floats(0, 500)), st.none()),
        st.tuples(st.one_of(st.none(), st.floats(0, 2_000)), st.one_of(st.none(), st.floats(0, 100_000))),
        st.tuples(st.one_of(st.none(), st.integers(0, 10_000)), st.one_of(st.none(), st.integers(0, 100_000))),
    )
    return st.dictionaries(st.sampled_from("abcdef"), one, max_size=6)


@given(
    st.one_of(st.lists(columns_of(500.0, 0), max_size=6), st.lists(columns_of(500.0, 60_000), max_size=6)),
    st.one_of(st.none(), st.integers(0, 8_000)),
    st.one_of(st.none(), st.integers(0, 1_000_000)),
    st.sampled_from(Strategy),
)
@settings(max_examples=200)
def test_short_cuts_change_nothing(
    minutes: list[Minute], messages: int | None, nbytes: int | None, rule: Strategy
) -> None:
    quotas = (messages, nbytes)
    short, long = QuotaReplay(quotas, strategy=rule), ReplayModel(quotas, strategy=rule)
    for minute in minutes:
        assert short.feed(minute) == long.feed(minute)
    found, want = short.outcome, long.outcome
    assert (found.minutes, found.limited, found.recorded) == (want.minutes, want.limited, want.recorded)
    assert (found.limited_most, found.at_least) == (want.limited_most, want.at_least)
    assert (found.waiting, found.waiting_max) == (want.waiting, want.waiting_max)
    assert found.passed == pytest.approx(want.passed)
    assert found.fairness == pytest.approx(want.fairness)
    assert replay(minutes, quotas, strategy=rule) == found
