# SPDX-License-Identifier: Apache-2.0
"""How dry depletion add up."""

from __future__ import annotations

import pytest

from penstock.core.units import NS_PER_S
from penstock.governance.request_values import WINDOW_NS, Depletion


def test_a_spell_lasts_from_its_first_refusal_to_its_end() -> None:
    depletion = Depletion()
    depletion.start(10)
    depletion.start(15)
    depletion.stop(30)
    depletion.stop(40)
    assert depletion.total_ns(100) == 20


def test_a_running_spell_counts_up_to_now() -> None:
    depletion = Depletion()
    depletion.start(10)
    assert depletion.total_ns(25) == 15


def test_the_percentage_is_the_dry_share_of_the_time_since_somebody_first_looked() -> None:
    depletion = Depletion()
    assert depletion.percent(0) == 0.0
    depletion.start(2 * NS_PER_S)
    depletion.stop(3 * NS_PER_S)
    assert depletion.percent(10 * NS_PER_S) == pytest.approx(10.0)


def test_the_percentage_forgets_what_is_older_than_two_windows() -> None:
    depletion = Depletion()
    depletion.start(0)
    depletion.stop(WINDOW_NS)
    assert depletion.percent(WINDOW_NS) == pytest.approx(100.0)
    assert depletion.percent(2 * WINDOW_NS) == pytest.approx(0.0)
    assert depletion.percent(3 * WINDOW_NS) == pytest.approx(0.0)
    assert depletion.total_ns(3 * WINDOW_NS) == WINDOW_NS
