# SPDX-License-Identifier: Apache-2.0
"""A share that is only observed counts what a limiter with that share would have done."""

from __future__ import annotations

import random

import pytest

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.observed_rate import WAITING_MAX, ObservedRate
from penstock.governance.resource_group import UNLIMITED, Amount, ClassLimiter, GroupRate

SECONDS = 120


def arrivals(seed: int) -> list[tuple[int, int]]:
    """Times in ns, and messages of a run: bursts and pauses, which need about 100 a second."""
    chance = random.Random(seed)
    found, at_ns = [], 0
    while at_ns < SECONDS * NS_PER_S:
        at_ns += int(chance.expovariate(1 / chance.choice((5, 50, 400))) * NS_PER_MS)
        found.append((at_ns, chance.choice((1, 1, 3, 40))))
    return found


def limited_by(share: GroupRate, given: list[tuple[int, int]]) -> int:
    """For how long runs wait for a limiter with this share, of which waiters are woken as brokers do."""
    limiter = ClassLimiter()
    limiter.set_share(share, 0)
    waiting: list[int] = []
    wake_ns = 0

    def pass_some(now_ns: int) -> int:
        while waiting and limiter.ready(now_ns):
            limiter.charge(waiting.pop(0), 0, now_ns)
        if waiting:
            return now_ns + limiter.delay_ns(now_ns)
        limiter.waits_no_more(now_ns)
        return 0

    for at_ns, messages in given:
        while wake_ns and wake_ns <= at_ns:
            wake_ns = pass_some(wake_ns)
        waiting.append(messages)
        if wake_ns == 0:
            wake_ns = pass_some(at_ns)
            if waiting:
                limiter.waits(at_ns)
    end_ns = 0
    while wake_ns:
        end_ns = wake_ns
        wake_ns = pass_some(wake_ns)
    assert limiter.waits_since_ns is None
    return limiter.limited_ns(end_ns)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("per_second", [40, 120, 400])
def test_it_counts_for_how_long_a_limiter_would_have_made_something_wait(seed: int, per_second: int) -> None:
    share = GroupRate(messages=per_second)
    in_force = ClassLimiter()
    in_force.observed = ObservedRate(share, in_force, 0)
    given = arrivals(seed)
    for at_ns, messages in given:
        in_force.charge(messages, 0, at_ns)
    observed = in_force.observed
    assert observed.arrived == Amount(sum(messages for _, messages in given), 0)
    measured, exact = observed.limited_ns(given[-1][0] * 100), limited_by(share, given)
    assert measured == exact


def test_what_waits_for_the_limit_in_force_has_arrived_and_what_is_dropped_has_not_passed() -> None:
    in_force = ClassLimiter()
    in_force.set_share(GroupRate(messages=1), 0)
    in_force.observed = observed = ObservedRate(GroupRate(messages=10), in_force, 0)
    in_force.charge(1, 100, 0)
    in_force.held = Amount(5, 500)
    in_force.waits(0)
    in_force.arrived(5, 0)
    assert observed.arrived == Amount(6, 600)
    in_force.held = Amount()  # its client is gone
    in_force.waits_no_more(NS_PER_S)
    in_force.charge(2, 200, NS_PER_S)
    assert observed.arrived == Amount(8, 800)


def test_time_that_is_still_to_be_waited_is_not_counted_yet() -> None:
    in_force = ClassLimiter()
    in_force.observed = observed = ObservedRate(GroupRate(messages=1), in_force, 0)
    in_force.charge(10, 0, 0)
    in_force.charge(1, 0, 0)
    assert observed.limited_ns(0) == 0
    assert observed.limited_ns(2 * NS_PER_S) == 2 * NS_PER_S
    assert 9 * NS_PER_S < observed.limited_ns(100 * NS_PER_S) < 12 * NS_PER_S


def test_runs_that_wait_are_bounded() -> None:
    in_force = ClassLimiter()
    in_force.observed = observed = ObservedRate(GroupRate(messages=100), in_force, 0)
    for _ in range(3 * WAITING_MAX):
        in_force.charge(1, 0, 0)
    assert len(observed._waiting) <= WAITING_MAX  # noqa: SLF001
    assert 29 * NS_PER_S < observed.limited_ns(100 * NS_PER_S) < 31 * NS_PER_S


def test_nothing_is_measured_unless_somebody_asks() -> None:
    limiter = ClassLimiter()
    limiter.charge(5, 5, 0)
    assert limiter.observed is None
    assert limiter.share == UNLIMITED
