# SPDX-License-Identifier: Apache-2.0
"""Rates of counters, for who asks now and then."""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S
from penstock.proxy.rates import Rates

SINCE_NS: Final = 5 * NS_PER_S


def at(seconds: float) -> int:
    return SINCE_NS + round(seconds * NS_PER_S)


def test_before_a_minute_is_over_they_are_those_since_the_start() -> None:
    rates = Rates(2, SINCE_NS)
    assert rates.per_s((10, 1_000), at(10)) == (1, 100)
    assert rates.per_s((10, 1_000), at(20)) == (0.5, 50)


def test_then_they_are_those_of_the_last_minute_and_new_after_another() -> None:
    rates = Rates(1, SINCE_NS)
    assert rates.per_s((60,), at(60)) == (1,)
    assert rates.per_s((1_000,), at(119)) == (1,)
    assert rates.per_s((660,), at(120)) == (10,)
    assert rates.per_s((660,), at(240)) == (0,)


def test_who_asks_at_once_is_answered() -> None:
    assert Rates(1, SINCE_NS).per_s((0,), SINCE_NS) == (0,)
