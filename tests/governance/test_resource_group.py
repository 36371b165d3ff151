# SPDX-License-Identifier: Apache-2.0
"""The limits and meters of one resource group on one broker."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import MIB, NS_PER_MS, NS_PER_S
from penstock.governance.resource_group import (
    BURST_NS,
    Amount,
    ClassLimiter,
    GroupLimiter,
    GroupRate,
    GroupRates,
    Meter,
)


def limiter(messages: float | None = None, nbytes: float | None = None) -> ClassLimiter:
    one = ClassLimiter()
    one.set_share(GroupRate(messages, nbytes), 0)
    return one


def passed_in(one: ClassLimiter, seconds: int, *, messages: int = 1, nbytes: int = 10) -> int:
    """How many runs of a sender that always has one ready pass in a time, from 0 on."""
    now_ns = count = 0
    while now_ns < seconds * NS_PER_S:
        one.charge(messages, nbytes, now_ns)
        count += 1
        now_ns += one.delay_ns(now_ns)
    return count


def test_the_rate_holds_within_a_burst() -> None:
    assert 10_000 <= passed_in(limiter(1_000), 10) <= 10_000 + 1_000 * BURST_NS // NS_PER_S + 1


@pytest.mark.parametrize(("rate", "seconds"), [(1, 100), (7, 100), (20, 100), (100, 100), (1_000, 100), (100_000, 10)])
def test_a_timer_that_is_late_by_a_few_milliseconds_costs_no_rate(rate: int, seconds: int) -> None:
    one = limiter(rate)
    now_ns = count = 0
    while now_ns < seconds * NS_PER_S:
        if one.ready(now_ns):
            one.charge(1, 10, now_ns)
            count += 1
        else:
            now_ns += one.delay_ns(now_ns) + 7 * NS_PER_MS
    assert 0.998 * seconds * rate - 1 <= count <= seconds * rate + rate * BURST_NS / NS_PER_S + 1


def test_batches_of_a_thousand_pass_at_one_message_a_second_on_average() -> None:
    assert passed_in(limiter(messages=1), 9_990, messages=1_000) == 10


def test_messages_of_five_mebibytes_pass_at_one_byte_a_second_on_average() -> None:
    assert passed_in(limiter(nbytes=1), 10 * 5 * MIB - 10, nbytes=5 * MIB) == 10


def test_the_stricter_of_messages_and_bytes_wins() -> None:
    assert 100 <= passed_in(limiter(1_000, 100), 10) <= 102
    assert 100 <= passed_in(limiter(10, 1_000_000), 10) <= 102


def test_s6_a_change_of_the_share_keeps_debt_and_gives_no_new_burst() -> None:
    one = limiter(100)
    one.charge(1_000, 0, 0)
    for change in range(100):
        one.set_share(GroupRate(100 + change % 2), 0)
    assert not one.ready(9 * NS_PER_S)
    assert one.ready(10 * NS_PER_S)


def test_a_debt_is_repaid_at_the_new_rate_at_once() -> None:
    one = limiter(1)
    one.charge(1_000, 0, 0)
    assert one.delay_ns(0) > 990 * NS_PER_S
    one.set_share(GroupRate(10_000), 0)
    assert one.delay_ns(0) < 200 * NS_PER_MS


def test_removing_a_limit_lets_everything_pass() -> None:
    one = limiter(1)
    one.charge(1_000, 0, 0)
    one.set_share(GroupRate(), 0)
    assert one.delay_ns(0) == 0
    assert one.left(0) == (None, None)


def test_s15_rates_above_two_to_the_24th_are_exact() -> None:
    rate = 2**24 + 1
    one = limiter(nbytes=rate)
    one.charge(0, 100 * rate, 0)
    balance_ns = BURST_NS - 100 * NS_PER_S
    assert not one.ready(-balance_ns)
    assert one.ready(-balance_ns + 1)
    huge = limiter(nbytes=2**62 + 1)
    huge.charge(0, 2**62 + 1, 0)
    assert huge.left(NS_PER_S - BURST_NS)[1] == 0


def test_a_share_may_be_a_fraction_of_a_message_per_second() -> None:
    assert passed_in(limiter(0.1), 995) == 100


def test_a_share_of_nothing_lets_one_run_pass_and_recovers_with_the_next_share() -> None:
    one = limiter(0)
    assert one.ready(0)
    one.charge(1, 1, 0)
    assert not one.ready(900 * NS_PER_S)
    one.set_share(GroupRate(100), 900 * NS_PER_S)
    assert one.delay_ns(900 * NS_PER_S) < 20 * NS_PER_MS


@pytest.mark.parametrize("rate", [-1, -0.1, math.nan, math.inf])
def test_rates_that_make_no_sense_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="messages per second"):
        GroupRate(messages=rate)


def test_what_is_left_is_rounded_up_because_any_message_passes_a_positive_balance() -> None:
    one = limiter(messages=1, nbytes=1_000)
    assert one.left(0) == (1, 50)
    one.charge(1, 100, 0)
    messages, nbytes = one.left(0)
    assert messages is not None
    assert messages <= 0
    assert nbytes == -50


def test_s7_s9_publish_and_dispatch_are_limited_and_counted_apart() -> None:
    group = GroupLimiter(GroupRates(GroupRate(100, None), GroupRate(None, 1_000)), 0)
    meter = Meter(group, 0)
    group.publish.charge(500, 7, 0)
    group.dispatch.charge(3, 4, 0)
    assert not group.publish.ready(0)
    assert group.dispatch.ready(0)
    usage = meter.take(NS_PER_S)
    assert usage.publish.passed == Amount(500, 7)
    assert usage.dispatch.passed == Amount(3, 4)
    group.set_share(GroupRates(GroupRate(1, 2), GroupRate(3, 4)), NS_PER_S)
    assert group.share == GroupRates(GroupRate(1, 2), GroupRate(3, 4))


def test_the_meter_tells_what_passed_what_waits_and_for_how_long_something_waited() -> None:
    group = GroupLimiter(GroupRates(), 0)
    meter = Meter(group, 0)
    publish = group.publish
    publish.charge(10, 1_000, 0)
    publish.waits(1 * NS_PER_S)
    publish.waits(2 * NS_PER_S)
    publish.held = Amount(3, 300)
    first = meter.take(4 * NS_PER_S)
    assert (first.elapsed_ns, first.publish) == (4 * NS_PER_S, (Amount(10, 1_000), Amount(3, 300), 3 * NS_PER_S))
    publish.waits_no_more(5 * NS_PER_S)
    publish.held = Amount()
    second = meter.take(8 * NS_PER_S)
    assert (second.elapsed_ns, second.publish) == (4 * NS_PER_S, (Amount(), Amount(), 1 * NS_PER_S))
    assert publish.messages_passed == 10, "counters are never reset"


@given(
    st.lists(
        st.tuples(st.integers(1, 10_000), st.integers(1, 10**7), st.integers(0, NS_PER_S), st.integers(1, 5_000)),
        min_size=1,
        max_size=50,
    )
)
def test_over_any_time_no_more_passes_than_rate_burst_and_the_overshoot_of_one_run(
    steps: list[tuple[int, int, int, int]],
) -> None:
    one = limiter(steps[0][3])
    now_ns, allowed, passed, largest = 0, float(steps[0][3]) * BURST_NS / NS_PER_S, 0, 0
    rate = rate_max = steps[0][3]
    for messages, nbytes, gap_ns, new_rate in steps:
        now_ns += gap_ns
        allowed += rate * gap_ns / NS_PER_S
        if one.ready(now_ns):
            one.charge(messages, nbytes, now_ns)
            passed, largest = passed + messages, max(largest, messages)
        rate, rate_max = new_rate, max(rate_max, new_rate)
        one.set_share(GroupRate(rate), now_ns)
    assert passed <= allowed + largest + 1
