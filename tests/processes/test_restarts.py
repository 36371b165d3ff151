# SPDX-License-Identifier: Apache-2.0
"""When a broker that crashed is started again."""

from __future__ import annotations

from penstock.core.units import NS_PER_S
from penstock.processes.restarts import FORGIVEN_S, PAUSES_S, Restarts


def test_a_first_crash_is_followed_by_a_start_at_once_and_later_ones_by_longer_and_longer_pauses() -> None:
    restarts = Restarts()
    assert [restarts.pause_after_crash(second * NS_PER_S) for second in range(9)] == list(PAUSES_S)


def test_a_broker_that_keeps_crashing_is_started_again_each_minute_without_end() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_after_crash(number * 62 * NS_PER_S) for number in range(1_000)]
    assert set(pauses[8:]) == {60.0}


def test_from_the_fifth_crash_on_it_is_crash_looping() -> None:
    restarts, seen = Restarts(), []
    for second in range(6):
        restarts.pause_after_crash(second * NS_PER_S)
        seen.append(restarts.is_crash_looping)
    assert seen == [False, False, False, False, True, True]


def test_crashes_are_forgotten_once_it_has_served_for_a_minute() -> None:
    restarts = Restarts()
    for _ in range(7):
        restarts.pause_after_crash(0)
        restarts.ready(0)
    assert restarts.pause_after_crash((FORGIVEN_S - 1) * NS_PER_S) == 40.0
    restarts.ready(0)
    assert restarts.pause_after_crash(FORGIVEN_S * NS_PER_S) == 0.0
    assert not restarts.is_crash_looping


def test_the_time_of_a_long_start_does_not_count_as_serving() -> None:
    restarts = Restarts()
    restarts.ready(0)
    assert restarts.pause_after_crash(NS_PER_S) == 0.0
    assert restarts.pause_after_crash(1_000 * NS_PER_S) == 0.5
