# SPDX-License-Identifier: Apache-2.0
"""When a broker that crashed is started again."""

from __future__ import annotations

from penstock.core.units import NS_PER_S
from penstock.processes.restarts import Restarts


def test_a_first_crash_is_followed_by_a_start_at_once_and_later_ones_by_pauses() -> None:
    restarts = Restarts()
    assert [restarts.after_crash(second * NS_PER_S) for second in range(4)] == [0.0, 0.5, 1.0, 2.0]


def test_the_fifth_crash_within_a_minute_is_the_last() -> None:
    restarts = Restarts()
    assert [restarts.after_crash(second * NS_PER_S) for second in (0, 10, 20, 59)] == [0.0, 0.5, 1.0, 2.0]
    assert restarts.after_crash(59 * NS_PER_S) is None


def test_crashes_of_more_than_a_minute_ago_do_not_count() -> None:
    restarts = Restarts()
    assert {restarts.after_crash(16 * number * NS_PER_S) for number in range(100)} == {0.0, 0.5, 1.0, 2.0}
    assert restarts.after_crash(10_000 * NS_PER_S) == 0.0
