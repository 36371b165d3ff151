# SPDX-License-Identifier: Apache-2.0
"""Quantiles of how long requests waited."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.durations import BOUNDS_NS
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.wait_times import QUANTILES, WINDOW_NS, WINDOWS, WaitTimes


def test_before_the_first_wait_there_are_no_quantiles_and_no_counts() -> None:
    seen = WaitTimes().snapshot(0)
    assert (seen.count, seen.sum_ns, sum(seen.times.counts)) == (0, 0, 0)
    assert [quantile for quantile, _ in seen.quantiles_ns] == list(QUANTILES)
    assert all(math.isnan(wait) for _, wait in seen.quantiles_ns)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_every_quantile_is_at_most_three_per_cent_above_the_exact_one_and_the_highest_is_exact(
    waits: list[int],
) -> None:
    times = WaitTimes()
    for wait in waits:
        times.observe(wait, 0)
    ordered = sorted(waits)
    for quantile, found in times.snapshot(0).quantiles_ns:
        exact = ordered[math.ceil(quantile * len(ordered)) - 1]
        assert exact <= found <= exact * 33 / 32
    assert dict(times.snapshot(0).quantiles_ns)[1.0] == max(waits)


def test_quantiles_forget_what_is_older_than_five_minutes_and_counts_do_not() -> None:
    times = WaitTimes()
    times.observe(9 * NS_PER_S, 0)
    for minute in range(1, WINDOWS + 1):
        times.observe(NS_PER_MS, minute * WINDOW_NS)
    seen = times.snapshot(WINDOWS * WINDOW_NS)
    assert dict(seen.quantiles_ns)[1.0] == NS_PER_MS
    assert (seen.count, seen.sum_ns) == (WINDOWS + 1, 9 * NS_PER_S + WINDOWS * NS_PER_MS)


def test_quantiles_end_when_nobody_has_waited_for_five_minutes() -> None:
    times = WaitTimes()
    times.observe(NS_PER_MS, 0)
    assert dict(times.snapshot(WINDOWS * WINDOW_NS - 1).quantiles_ns)[0.5] == NS_PER_MS
    assert math.isnan(dict(times.snapshot(WINDOWS * WINDOW_NS).quantiles_ns)[0.5])


def test_a_wait_as_long_as_a_bound_belongs_below_it_and_a_longer_one_above() -> None:
    times = WaitTimes()
    times.observe(BOUNDS_NS[-1], 0)
    times.observe(BOUNDS_NS[-1] + 1, 0)
    assert times.snapshot(0).times.counts[-2:] == (1, 1)
