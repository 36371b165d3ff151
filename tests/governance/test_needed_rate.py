# SPDX-License-Identifier: Apache-2.0
"""The smallest rate with which nothing would have waited, measured while traffic passes or waits."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.resource_group import BURST_NS, POINTS_MAX, NeededRate
from tests.governance.recorded_group import BROKER, Arrival, recorded

WITHIN_A_MINUTE = st.lists(
    st.builds(Arrival, st.integers(0, 59_000 * NS_PER_MS), st.integers(1, 50), st.integers(1, 200)),
    min_size=1,
    max_size=40,
).map(lambda arrivals: sorted({one.at_ns: one for one in arrivals}.values()))


def needed(arrivals: list[Arrival], quota: float | None) -> float:
    (minute,) = recorded(arrivals, quota, 1)
    rate = minute[BROKER].needed[0]
    assert rate is not None
    return rate


@given(WITHIN_A_MINUTE)
def test_with_more_nothing_waits_and_with_less_something_does(arrivals: list[Arrival]) -> None:
    rate = needed(arrivals, None)
    (enough,) = recorded(arrivals, math.floor(rate) + 1, 1)
    assert enough[BROKER].limited_ms == 0
    if rate > 1:
        live = recorded(arrivals, rate * 0.98, 2)
        assert any(minute[BROKER].limited_ms > 0 or minute[BROKER].held != (0, 0) for minute in live)


@given(WITHIN_A_MINUTE, st.integers(1, 10_000))
def test_what_waits_has_arrived_and_is_measured_too(arrivals: list[Arrival], quota: int) -> None:
    assert needed(arrivals, quota) == pytest.approx(needed(arrivals, None))


def test_a_batch_that_is_repaid_before_the_next_one_needs_its_mean_and_a_stream_needs_its_peak() -> None:
    batches = [Arrival(second * NS_PER_S, 1, 1_000) for second in range(0, 60, 10)]
    assert needed(batches, None) == pytest.approx(100, rel=0.01)
    stream = [Arrival(10 * NS_PER_S + step * 10 * NS_PER_MS, 1, 5) for step in range(100)]
    assert needed(stream, None) == pytest.approx(500, rel=0.06)


def test_entries_that_are_read_at_once_wait_for_each_other() -> None:
    assert needed([Arrival(0, 100, 1)], None) == pytest.approx(99 * NS_PER_S / BURST_NS)


def test_the_rate_is_that_of_the_time_since_it_was_taken() -> None:
    one = NeededRate(BURST_NS, 0)
    one.arrived(100, 100, 0)
    assert one.take() > 0
    assert one.take() == 0


def test_what_is_dropped_is_not_taken_for_what_arrives_later() -> None:
    one = NeededRate(BURST_NS, 0)
    one.arrived(100, 1, 0)
    one.settled(0)  # All of it was dropped with its client.
    one.take()
    one.arrived(50, 50, NS_PER_S)
    assert one.take() >= 49 * NS_PER_S / BURST_NS


def test_memory_is_bounded_whatever_arrives() -> None:
    one, total, at_ns = NeededRate(BURST_NS, 0), 0, 0
    chance = random.Random(7)
    for step in range(20_000):
        at_ns += max(1, 100 * NS_PER_MS - step * 5_000) if step % 3 else chance.randrange(NS_PER_MS)
        total += step
        one.arrived(total, 1, at_ns)
        assert len(one._points) <= POINTS_MAX  # noqa: SLF001 - the bound
