# SPDX-License-Identifier: Apache-2.0
"""What a limited broker is taken to miss."""

from __future__ import annotations

import pytest

from penstock.core.units import NS_PER_MS
from penstock.governance.demand import Before, held_back

ELAPSED_NS = 250 * NS_PER_MS
QUOTA = 10_000_000
USED = 2_000_000


def missed(waited_percent: int, *, used: int = USED, demand: int = USED, known: int = USED, waiting: int = 0) -> int:
    return held_back(used, ELAPSED_NS * waited_percent // 100, ELAPSED_NS, QUOTA, Before(demand, known), waiting)


def test_nothing_is_missed_if_nothing_waited() -> None:
    assert missed(0) == 0


def test_an_eighth_is_missed_if_something_waited_half_of_the_time() -> None:
    assert missed(50) == pytest.approx(USED / 8, rel=0.01)


def test_a_group_that_waited_often_but_not_always_misses_an_eighth_and_a_hundredth_of_the_quota_at_most() -> None:
    """What is guessed too high is taken from brokers that would use it, and lost."""
    for percent in range(1, 95):
        assert missed(percent) <= USED // 8 + QUOTA // 100
    assert missed(94) == USED // 8 + QUOTA // 100


def test_a_group_that_always_waits_misses_as_much_as_it_used_and_then_all_it_can_get() -> None:
    assert missed(100) == USED + QUOTA // 100
    assert missed(100, demand=2 * USED + QUOTA // 100) == USED + QUOTA // 100  # the share could not follow yet
    assert missed(100, known=2 * USED + QUOTA // 100) == QUOTA


def test_what_waits_is_to_pass_in_half_a_second_and_more_is_missed_the_longer_that_lasts() -> None:
    assert missed(100, waiting=USED) == 2 * USED
    assert missed(100, waiting=USED // 100, demand=4 * USED) == 4 * USED
    assert missed(100, waiting=100 * QUOTA) == QUOTA


def test_the_estimate_never_falls_while_more_waits() -> None:
    estimates = [missed(percent) for percent in range(101)]
    assert estimates == sorted(estimates)
