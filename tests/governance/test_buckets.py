# SPDX-License-Identifier: Apache-2.0
"""Token buckets, example by example and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.resource_group import TokenBucket

RATES = st.integers(1, 10_000_000)
GAPS_NS = st.integers(0, 3 * NS_PER_S)
TOKENS = st.integers(0, 1_000)


def through(bucket: TokenBucket, seconds: int, *, every_ns: int = NS_PER_MS) -> int:
    """How many of a sender that wants to send one message at every tick get through."""
    count = 0
    for now_ns in range(0, seconds * NS_PER_S, every_ns):
        if not bucket.in_debt(now_ns):
            bucket.consume(1, now_ns)
            count += 1
    return count


def test_fifty_a_second_let_three_hundred_through_in_five_seconds_as_in_pulsar() -> None:
    assert 299 <= through(TokenBucket(50, 0), 5) <= 301


def test_twenty_a_second_in_steps_let_a_hundred_through_in_five_seconds_as_in_pulsar() -> None:
    assert through(TokenBucket(20, 0, stepwise=True), 5) == 100


def test_a_run_is_charged_in_full_and_its_debt_is_repaid_before_the_next() -> None:
    bucket = TokenBucket(10, 0)
    bucket.consume(35, 0)
    assert bucket.in_debt(0)
    assert bucket.available(0) == -25
    assert bucket.ready_at_ns() == 2_600 * NS_PER_MS
    assert bucket.in_debt(2_499 * NS_PER_MS)
    assert not bucket.in_debt(2_501 * NS_PER_MS)


def test_debt_is_not_forgiven_when_the_rate_changes() -> None:
    bucket = TokenBucket(10, 0)
    bucket.consume(35, 0)
    bucket.set_rate(1_000, 0)
    assert bucket.available(0) == -25
    assert bucket.ready_at_ns() == 35 * NS_PER_MS


def test_a_higher_rate_gives_nothing_away_at_once() -> None:
    bucket = TokenBucket(10, 0)
    bucket.set_rate(1_000, 0)
    assert bucket.available(0) == 10


def test_a_lower_rate_takes_what_is_above_its_burst() -> None:
    bucket = TokenBucket(1_000, 0)
    bucket.set_rate(10, 0)
    assert bucket.available(0) == 10


def test_a_longer_period_keeps_the_balance_too() -> None:
    bucket = TokenBucket(10, 0)
    bucket.consume(35, 0)
    bucket.set_rate(10, 0, period_ns=10 * NS_PER_S)
    assert bucket.available(0) == -25
    assert bucket.available(20 * NS_PER_S) == -5


def test_time_that_steps_back_adds_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(10, 5 * NS_PER_S)
    bucket.consume(20, 5 * NS_PER_S)
    assert bucket.available(0) == -10
    assert bucket.available(5 * NS_PER_S) == -10


def test_a_long_sleep_gives_one_burst_and_no_more() -> None:
    bucket = TokenBucket(10, 0)
    bucket.consume(10, 0)
    assert bucket.available(10**6 * NS_PER_S) == 10


@pytest.mark.parametrize(("rate", "period_ns"), [(0, NS_PER_S), (-1, NS_PER_S), (1, 0)])
def test_a_bucket_without_a_limit_cannot_be_made(rate: int, period_ns: int) -> None:
    with pytest.raises(ValueError, match="no limit is no bucket"):
        TokenBucket(rate, 0, period_ns=period_ns)


@settings(deadline=None)
@given(rate=RATES, stepwise=st.booleans(), uses=st.lists(st.tuples(GAPS_NS, TOKENS), max_size=50))
def test_over_any_time_no_more_than_its_rate_a_burst_and_one_overshoot_gets_through(
    rate: int, stepwise: bool, uses: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, 0, stepwise=stepwise)
    taken: list[tuple[int, int]] = []
    now_ns = 0
    for gap_ns, tokens in uses:
        now_ns += gap_ns
        if not bucket.in_debt(now_ns):
            bucket.consume(tokens, now_ns)
            taken.append((now_ns, tokens))
    for first, (start_ns, _) in enumerate(taken):
        got = 0
        for when_ns, tokens in taken[first:]:
            # All but the last were charged before it was let in: only the last may overshoot.
            seconds_of_tokens = (when_ns - start_ns) * rate // NS_PER_S + 1
            burst = rate * (2 if stepwise else 1)  # a step may fall due right after the burst
            assert got < seconds_of_tokens + burst
            got += tokens


@settings(deadline=None)
@given(rate=RATES, changes=st.lists(st.tuples(GAPS_NS, TOKENS, RATES), max_size=30))
def test_the_balance_is_exact_after_any_number_of_looks_and_changes(
    rate: int, changes: list[tuple[int, int, int]]
) -> None:
    bucket, often = TokenBucket(rate, 0), TokenBucket(rate, 0)
    now_ns = 0
    for gap_ns, tokens, new_rate in changes:
        for part in range(7):  # Looking often changes nothing.
            often.in_debt(now_ns + gap_ns * part // 7)
        now_ns += gap_ns
        for one in (bucket, often):
            one.consume(tokens, now_ns)
            one.set_rate(new_rate, now_ns)
        assert bucket.available(now_ns) == often.available(now_ns)
        assert bucket.ready_at_ns() == often.ready_at_ns()


@settings(deadline=None)
@given(rate=RATES, debt=st.integers(1, 10**9), rates=st.lists(RATES, max_size=10))
def test_no_change_of_rate_lessens_a_debt(rate: int, debt: int, rates: list[int]) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.consume(rate + debt, 0)
    for new_rate in rates:
        bucket.set_rate(new_rate, 0)
        assert bucket.available(0) == -debt


@settings(deadline=None)
@given(rate=RATES, stepwise=st.booleans(), period_ns=st.integers(1, 60 * NS_PER_S), debt=st.integers(0, 10**6))
def test_it_is_ready_when_it_says_so_and_not_before_it_is_out_of_debt(
    rate: int, stepwise: bool, period_ns: int, debt: int
) -> None:
    bucket = TokenBucket(rate, 0, period_ns=period_ns, stepwise=stepwise)
    bucket.consume(rate + debt, 0)
    ready_ns = bucket.ready_at_ns()
    assert bucket.in_debt(0)
    assert bucket.available(ready_ns) >= 1
    assert ready_ns > 0
