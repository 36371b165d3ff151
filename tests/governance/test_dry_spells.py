# SPDX-License-Identifier: Apache-2.0
"""How dry spells add up."""

from __future__ import annotations

import pytest

from penstock.core.units import NS_PER_S
from penstock.governance.dry_spells import WINDOW_NS, DrySpells


def test_a_spell_lasts_from_its_first_refusal_to_its_end() -> None:
    spells = DrySpells()
    spells.start(10)
    spells.start(15)
    spells.stop(30)
    spells.stop(40)
    assert spells.total_ns(100) == 20


def test_a_running_spell_counts_up_to_now() -> None:
    spells = DrySpells()
    spells.start(10)
    assert spells.total_ns(25) == 15


def test_the_percentage_is_the_dry_share_of_the_time_since_somebody_first_looked() -> None:
    spells = DrySpells()
    assert spells.percent(0) == 0.0
    spells.start(2 * NS_PER_S)
    spells.stop(3 * NS_PER_S)
    assert spells.percent(10 * NS_PER_S) == pytest.approx(10.0)


def test_the_percentage_forgets_what_is_older_than_two_windows() -> None:
    spells = DrySpells()
    spells.start(0)
    spells.stop(WINDOW_NS)
    assert spells.percent(WINDOW_NS) == pytest.approx(100.0)
    assert spells.percent(2 * WINDOW_NS) == pytest.approx(0.0)
    assert spells.percent(3 * WINDOW_NS) == pytest.approx(0.0)
    assert spells.total_ns(3 * WINDOW_NS) == WINDOW_NS
