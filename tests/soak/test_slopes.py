# SPDX-License-Identifier: Apache-2.0
"""A slope is found where there is one, and not believed where there is noise."""

from __future__ import annotations

import random

import pytest

from tests.soak.slopes import slope

HOURS = [number / 120 for number in range(240)]


def test_a_leak_is_found_in_noise() -> None:
    chance = random.Random(1)
    found = slope(HOURS, [100 + 3 * hour + chance.gauss(0, 1) for hour in HOURS])

    assert found.low > 0
    assert found.low <= 3 <= found.high


def test_noise_alone_has_no_slope_in_nineteen_of_twenty_series() -> None:
    chance = random.Random(2)
    series = [slope(HOURS, [chance.gauss(100, 5) for _ in HOURS]) for _ in range(200)]

    assert 180 <= sum(one.low <= 0 <= one.high for one in series) <= 198


def test_what_never_changes_has_the_slope_zero() -> None:
    assert slope(HOURS, [7.0] * len(HOURS)) == (0.0, 0.0, 0.0)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="19 samples are too few for a slope: it takes 20"):
        slope(HOURS[:19], HOURS[:19])
