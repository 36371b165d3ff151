# SPDX-License-Identifier: Apache-2.0
"""The law of adaptive throttling: pressures, natural rates, steps, activation and deactivation of one topic.

A number like A5 is that of a defect in `docs/adr/0040-adaptive-throttling.md`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import NS_PER_S
from penstock.governance.adaptive_throttle import (
    AGAIN_CYCLES,
    CALM_CYCLES,
    CALM_CYCLES_MAX,
    GROWTH_MAX,
    Kind,
    Pressures,
    Seen,
    Throttle,
    ThrottleDecision,
    ThrottleOptions,
    Track,
    Watermarks,
    bounded_step,
    linear_pressure,
    target_rate,
)

OPTIONS = ThrottleOptions()
OBSERVE = replace(OPTIONS, observe_only=True)


class Topic:
    """A topic whose producers want to publish at a rate, and may as far as its throttle allows."""

    def __init__(self, per_s: float, *, message_bytes: int = 100, options: ThrottleOptions = OPTIONS) -> None:
        self.wanted = per_s
        self.message_bytes = message_bytes
        self.options = options
        self.now_ns = 0
        self.messages = 0.0
        self.held = 0.0
        self.window = 1_000  # messages that its producers have in flight at most
        self.limited_ns = 0
        self.throttle = Throttle("t", "tenant", Seen(0, 0), 0)

    def cycle(self, pressure: float = 0.0, *, seconds: float = 1.0) -> ThrottleDecision | None:
        """Let an interval pass, with a pressure on memory at its end."""
        self.pass_time(seconds)
        if self.throttle.measure(self.seen(), self.options, self.now_ns):
            return self.throttle.step(Pressures(memory=pressure), self.options, self.now_ns)
        return None

    def pass_time(self, seconds: float) -> None:
        """Publish."""
        arrived = self.wanted * seconds
        rate = self.throttle.messages.rate if self.throttle.enforced else None
        allowed = arrived + self.held if rate is None else min(arrived + self.held, rate * seconds)
        self.held = min(self.window, arrived + self.held - allowed)
        self.limited_ns += int(seconds * NS_PER_S) if self.held > 0 else 0
        self.messages += allowed
        self.now_ns += int(seconds * NS_PER_S)

    def seen(self) -> Seen:
        """As the broker reports it."""
        messages, held = int(self.messages), int(self.held)
        return Seen(messages, messages * self.message_bytes, held, held * self.message_bytes, self.limited_ns)

    def warm(self, cycles: int = 20) -> Topic:
        """Let it run without pressure."""
        for _ in range(cycles):
            assert self.cycle() is None
        return self

    @property
    def rate(self) -> float | None:
        return self.throttle.messages.rate

    @property
    def natural(self) -> float:
        return self.throttle.messages.natural


# -- pressure


@pytest.mark.parametrize(
    ("value", "pressure"), [(0.0, 0.0), (0.70, 0.0), (0.775, 0.5), (0.85, 1.0), (0.99, 1.0), (7.0, 1.0)]
)
def test_pressure_is_a_straight_line_between_the_watermarks(value: float, pressure: float) -> None:
    assert linear_pressure(value, 0.70, 0.85) == pytest.approx(pressure)


@pytest.mark.parametrize(("low", "high"), [(0.85, 0.70), (0.7, 0.7), (-0.1, 0.5)])
def test_watermarks_cannot_be_the_wrong_way_round(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="want 0 <= low < high"):
        Watermarks(low=low, high=high)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1])
def test_factors_are_parts_of_one(value: float) -> None:
    with pytest.raises(ValueError, match="min_rate_factor"):
        ThrottleOptions(min_rate_factor=value)
    with pytest.raises(ValueError, match="max_rate_change_factor"):
        ThrottleOptions(max_rate_change_factor=value)


def test_the_worst_pressure_counts_and_only_shared_ones_are_weighted() -> None:
    assert Pressures(memory=0.3, backlog=0.6).worst == 0.6
    assert Pressures(memory=0.8, backlog=0.6).worst == 0.8
    assert Pressures(memory=0.3, queueing=0.7).worst == 0.7
    assert Pressures(memory=0.8, backlog=0.6, queueing=0.9, weight=0.5).worst == 0.6
    assert Pressures(memory=0.8, queueing=0.9, weight=0.0).worst == 0.0


# -- rates


def test_the_target_falls_in_a_straight_line_to_the_floor() -> None:
    assert target_rate(1_000, 0.0, 0.1) == 1_000
    assert target_rate(1_000, 0.5, 0.1) == 550
    assert target_rate(1_000, 1.0, 0.1) == pytest.approx(100)
    assert target_rate(2, 1.0, 0.1) == 1, "one message a second always passes"


@given(
    part=st.floats(0.01, 3),
    natural=st.floats(1, 1e9),
    pressure=st.floats(0, 1),
    least=st.floats(0.01, 1),
    change=st.floats(0.01, 1),
)
def test_a_step_is_bounded_and_never_below_the_floor(
    part: float, natural: float, pressure: float, least: float, change: float
) -> None:
    options = ThrottleOptions(min_rate_factor=least, max_rate_change_factor=change)
    current = part * natural
    target = target_rate(natural, pressure, least)
    rate = bounded_step(current, target, natural, options)
    floor = max(1.0, natural * least)
    assert rate >= floor * (1 - 1e-9)
    assert abs(rate - current) <= natural * change * (1 + 1e-6) or rate == pytest.approx(floor)
    assert min(current, target, floor) - 1e-6 <= rate <= max(current, target, floor) + 1e-6


def test_messages_and_bytes_are_limited_independently() -> None:
    topic = Topic(1_000, message_bytes=100).warm()
    topic.cycle(1.0)
    assert topic.rate == pytest.approx(750)
    assert topic.throttle.bytes.rate == pytest.approx(75_000)


def test_a_topic_is_slowed_smoothly_and_monotonically_to_its_floor() -> None:
    topic = Topic(1_000).warm()
    rates = []
    for _ in range(8):
        topic.cycle(1.0)
        rates.append(topic.rate)
    assert rates == pytest.approx([750, 500, 250, 100, 100, 100, 100, 100])


def test_a_lower_pressure_has_a_higher_rate() -> None:
    settled = []
    for pressure in (0.2, 0.5, 0.8):
        topic = Topic(1_000).warm()
        for _ in range(10):
            topic.cycle(pressure)
        settled.append(topic.rate)
    assert settled == pytest.approx([820, 550, 280])


# -- natural rates


def test_higher_rates_are_followed_fast_and_lower_ones_slowly() -> None:
    track = Track()
    for per_s in (1_000.0, 1_000.0, 1_000.0):
        track.sample(per_s, 1.0)
    track.sample(2_000.0, 1.0)
    assert track.natural == pytest.approx(1_300)
    track.sample(300.0, 1.0)
    assert track.natural == pytest.approx(1_250)


def test_a_sample_of_several_intervals_counts_as_that_many() -> None:
    one, several = Track(), Track()
    for track in (one, several):
        for _ in range(3):
            track.sample(1_000.0, 1.0)
    for _ in range(5):
        one.sample(0.0, 1.0)
    several.sample(0.0, 5.0)
    assert several.natural == pytest.approx(one.natural)


def test_an_activation_begins_with_what_was_published_lately_and_not_with_its_peaks() -> None:
    """A fifth too much limits nothing until the pressure is above a fifth, and is the same part of the floor."""
    chance = Random(7)
    peaks, begun = [], []
    for _ in range(40):
        topic = Topic(1_000)
        for _ in range(60):
            topic.wanted = max(0.0, chance.gauss(1_000, 330))
            topic.cycle()
        peaks.append(topic.natural)
        topic.wanted = 1_000
        topic.cycle(0.5)
        begun.append(topic.natural)
    assert mean(peaks) > 1_150
    assert mean(begun) == pytest.approx(1_030, abs=40)


def test_an_activation_in_a_burst_begins_with_the_burst_and_after_a_pause_with_what_was_before() -> None:
    topic = Topic(1_000).warm()
    topic.wanted = 5_000
    for _ in range(8):
        topic.cycle()
    topic.cycle(0.5)
    assert topic.natural > 4_500
    topic = Topic(1_000).warm(60)
    topic.wanted = 10
    for _ in range(10):
        topic.cycle()
    topic.cycle(0.5)
    assert topic.natural > 550


def test_observe_only_reckons_with_the_same_rates_as_an_enforced_limit() -> None:
    chance = Random(7)
    topic = Topic(1_000, options=OBSERVE)
    begun = 0.0
    for second in range(600):
        topic.wanted = max(0.0, chance.gauss(1_000, 330))
        topic.cycle(0.0 if second < 60 else 0.5)
        begun += topic.natural if second >= 60 else 0.0
    assert begun / 540 == pytest.approx(1_030, abs=40)


def test_a4_a_rate_that_changes_each_cycle_lets_no_more_through_than_it_says() -> None:
    """The bucket itself is tested with `governance.buckets`; here, that nothing resets what was charged."""
    from penstock.governance.resource_group import ClassLimiter, GroupRate

    limiter = ClassLimiter()
    passed = 0
    for cycle in range(60):
        now_ns = cycle * NS_PER_S
        limiter.set_share(GroupRate(100 + cycle % 2), now_ns)
        for tick in range(100):
            at_ns = now_ns + tick * NS_PER_S // 100
            if limiter.ready(at_ns):
                limiter.charge(10, 0, at_ns)
                passed += 10
    assert passed <= 60 * 100.5 * 1.01 + 15


def test_a5_throttled_traffic_does_not_lower_the_natural_rate() -> None:
    topic = Topic(1_000).warm()
    for _ in range(600):
        topic.cycle(1.0)
    assert topic.natural >= 1_000
    assert topic.rate == pytest.approx(0.1 * topic.natural)
    for _ in range(CALM_CYCLES + 5):
        topic.cycle(0.0)
    assert not topic.throttle.active
    assert topic.natural >= 1_000


def test_a5_growing_demand_is_seen_while_throttled() -> None:
    topic = Topic(1_000).warm()
    for _ in range(10):
        topic.cycle(0.5)
    before = topic.natural
    topic.window = 100_000
    topic.wanted = 1_800
    for _ in range(20):
        topic.cycle(0.5)
    assert topic.natural > 1.5 * before


def test_a5_a_demand_that_falls_below_the_limit_is_seen_too() -> None:
    topic = Topic(1_000).warm()
    for _ in range(10):
        topic.cycle(0.5)
    topic.wanted = 100
    for _ in range(60):
        topic.cycle(0.5)
    assert topic.natural < 200


def test_a6_the_first_sample_is_taken_whole() -> None:
    topic = Topic(1_000)
    topic.cycle()
    assert topic.natural == 1_000


def test_a6_a_first_sample_of_a_part_of_an_interval_is_corrected_by_the_second() -> None:
    topic = Topic(0)
    topic.pass_time(0.9)
    topic.wanted = 1_000
    topic.cycle(seconds=0.1)
    assert topic.natural == pytest.approx(100)
    topic.cycle()
    assert topic.natural == 1_000


def test_a6_a_topic_without_a_measured_rate_is_not_throttled_in_its_first_cycle() -> None:
    topic = Topic(0)
    assert topic.cycle(1.0) is None
    topic.wanted = 1_000
    decision = topic.cycle(1.0)
    assert decision is not None
    assert decision.kind is Kind.ACTIVATED
    assert topic.rate == pytest.approx(750)


def test_a7_a_dimension_without_a_natural_rate_has_no_limit() -> None:
    topic = Topic(1_000, message_bytes=0).warm()
    topic.cycle(1.0)
    assert topic.rate == pytest.approx(750)
    assert topic.throttle.bytes.rate is None


# -- hysteresis


def test_no_pressure_never_activates() -> None:
    topic = Topic(1_000)
    assert [topic.cycle(0.0) for _ in range(1_000)] == [None] * 1_000


def test_any_pressure_activates() -> None:
    topic = Topic(1_000).warm()
    decision = topic.cycle(0.001)
    assert decision is not None
    assert decision.kind is Kind.ACTIVATED
    assert topic.rate == pytest.approx(999.1)


def test_a3_deactivation_needs_calm_cycles_in_a_row() -> None:
    topic = Topic(1_000).warm()
    topic.cycle(1.0)
    for _ in range(20):  # Around the watermark, for ever.
        for _ in range(CALM_CYCLES - 1):
            topic.cycle(0.0)
            assert topic.throttle.active
        topic.cycle(0.01)
    kinds = []
    for _ in range(CALM_CYCLES):
        decision = topic.cycle(0.0)
        kinds.append(decision.kind if decision is not None else None)
    assert not topic.throttle.active
    assert kinds[-1] is Kind.DEACTIVATED


def test_release_rises_step_by_step_and_ends_within_ten_cycles() -> None:
    topic = Topic(1_000).warm()
    for _ in range(10):
        topic.cycle(1.0)
    rates: list[float | None] = [topic.rate]
    while topic.throttle.active:
        topic.cycle(0.0)
        rates.append(topic.rate)
    assert len(rates) <= 10
    assert rates[-1] is None
    assert all(b - a <= 0.25 * topic.natural + 1 for a, b in pairwise(rates[:-1]) if a is not None and b is not None)


def test_a3_activations_that_follow_each_other_need_ever_more_calm() -> None:
    topic = Topic(1_000).warm()
    needed = []
    for _ in range(6):
        topic.cycle(0.5)
        calm = 0
        while topic.throttle.active:
            topic.cycle(0.0)
            calm += 1
        needed.append(calm)
    assert needed == [5, 10, 20, 40, CALM_CYCLES_MAX, CALM_CYCLES_MAX]
    for _ in range(AGAIN_CYCLES + 1):
        topic.cycle(0.0)
    topic.cycle(0.5)
    for _ in range(CALM_CYCLES):
        topic.cycle(0.0)
    assert not topic.throttle.active


def test_deactivation_needs_both_pressures_to_end() -> None:
    topic = Topic(1_000).warm()
    topic.cycle(1.0)
    for _ in range(50):
        topic.pass_time(1)
        topic.throttle.measure(topic.seen(), OPTIONS, topic.now_ns)
        topic.throttle.step(Pressures(memory=0.0, backlog=0.4), OPTIONS, topic.now_ns)
    assert topic.throttle.active


# -- observe-only


def test_observe_only_decides_the_same_and_enforces_nothing() -> None:
    real, observed = Topic(1_000).warm(), Topic(1_000, options=OBSERVE)
    for _ in range(20):
        observed.cycle()
    pressures = [1.0] * 6 + [0.0] * CALM_CYCLES
    enforced = [real.cycle(pressure) for pressure in pressures]
    would = [observed.cycle(pressure) for pressure in pressures]
    assert [d.kind.value for d in would if d] == [
        {"activated": "would-activate", "step": "would-step", "deactivated": "would-deactivate"}[d.kind.value]
        for d in enforced
        if d
    ]
    assert [d.rate_messages for d in would if d] == [d.rate_messages for d in enforced if d]
    assert not observed.throttle.enforced
    assert observed.messages == pytest.approx(1_000 * (20 + len(pressures)), rel=0.01)


def test_a10_observe_only_switched_on_lets_go_at_once() -> None:
    topic = Topic(1_000).warm()
    for _ in range(10):
        topic.cycle(1.0)
    topic.options = OBSERVE
    decision = topic.cycle(1.0)
    assert decision is not None
    assert (decision.kind, decision.rate_messages) == (Kind.DEACTIVATED, None)
    assert not topic.throttle.enforced
    decision = topic.cycle(1.0)
    assert decision is not None
    assert decision.kind is Kind.WOULD_ACTIVATE


def test_a10_observe_only_switched_off_begins_at_the_natural_rate() -> None:
    topic = Topic(1_000, options=OBSERVE).warm()
    for _ in range(10):
        topic.cycle(1.0)
    assert topic.rate == pytest.approx(100)
    topic.options = OPTIONS
    topic.cycle(1.0)
    topic.cycle(1.0)
    assert topic.throttle.enforced
    assert topic.rate == pytest.approx(750)


# -- hostile shapes


def test_pressure_that_never_ends_leaves_everybody_at_least_the_floor() -> None:
    topic = Topic(1_000).warm()
    for _ in range(10):
        topic.cycle(1.0)
    before = topic.messages
    for _ in range(3_600):
        topic.cycle(1.0)
        assert topic.rate is not None
        assert topic.rate >= 99.9
    assert topic.messages - before >= 3_600 * 99


def test_a_thousand_producers_cannot_raise_the_natural_rate_of_a_throttled_topic_beyond_twice_its_value() -> None:
    topic = Topic(1_000).warm()
    topic.cycle(1.0)
    topic.window, topic.wanted = 10**9, 1_000_000
    for _ in range(100):
        topic.cycle(1.0)
    assert topic.natural <= 1_000 * GROWTH_MAX * 1.01
    assert topic.rate is not None
    assert topic.rate <= 1_000 * GROWTH_MAX * 0.1 * 1.01


def test_a_producer_that_reconnects_each_second_gains_nothing() -> None:
    """Held messages vanish with it, and come again: what is seen is a demand that rises, and is bounded."""
    patient, restless = Topic(1_000).warm(), Topic(1_000).warm()
    for _ in range(120):
        patient.cycle(1.0)
        restless.cycle(1.0)
        restless.held = 0.0
    assert restless.messages <= GROWTH_MAX * patient.messages
    assert restless.natural <= GROWTH_MAX * 1_000 * 1.01


@pytest.mark.parametrize("jump_s", [0, -1, -86_400])
def test_a_clock_that_stands_or_steps_back_changes_nothing(jump_s: int) -> None:
    topic = Topic(1_000).warm()
    topic.cycle(0.5)
    before = (topic.natural, topic.rate, topic.throttle.active)
    topic.now_ns += jump_s * NS_PER_S
    assert not topic.throttle.measure(Seen(10**9, 10**9), OPTIONS, topic.now_ns)
    assert (topic.natural, topic.rate, topic.throttle.active) == before


def test_a_suspended_machine_does_not_forget_the_natural_rate() -> None:
    topic = Topic(1_000).warm()
    topic.now_ns += 5 * NS_PER_S  # Nothing is published meanwhile.
    topic.cycle()
    assert topic.natural > 700


def test_counters_of_a_topic_that_was_loaded_again_are_no_negative_rate() -> None:
    topic = Topic(1_000).warm()
    topic.messages = 0.0
    topic.cycle()
    assert topic.natural > 900


@given(
    wanted=st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    pressures=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    observe=st.booleans(),
)
def test_whatever_happens_an_active_topic_has_its_floor_and_an_inactive_one_no_limit(
    wanted: list[float], pressures: list[float], observe: bool
) -> None:
    topic = Topic(0, options=OBSERVE if observe else OPTIONS)
    for per_s, pressure in zip(wanted, pressures, strict=False):
        topic.wanted = per_s
        topic.cycle(pressure)
        for track in (topic.throttle.messages, topic.throttle.bytes):
            if topic.throttle.active and track.rate is not None:
                assert track.rate >= max(1.0, 0.1 * track.natural) * (1 - 1e-9)
            if not topic.throttle.active:
                assert track.rate is None
