# SPDX-License-Identifier: Apache-2.0
"""A row of the memory budget counts what is charged, and a budget knows all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.governance.budget import ROWS, Budget, Row
from penstock.governance.memory_pool import CommandMemory


def test_what_fits_is_charged_and_what_does_not_is_refused_and_counted() -> None:
    row = Row("sessions", 100)
    assert row.try_charge(100)
    assert not row.try_charge(1)
    assert (row.used_bytes, row.available_bytes, row.refused_total) == (100, 0, 1)


def test_what_exists_already_is_charged_beyond_the_limit_and_shown() -> None:
    row = Row("dispatch", 100)
    row.charge(130)
    assert row.available_bytes == -30
    row.release(60)
    assert row.try_charge(30)


def test_releasing_more_than_was_charged_is_a_bug_of_ours() -> None:
    row = Row("commands", 100)
    row.charge(10)
    with pytest.raises(AssertionError, match="commands"):
        row.release(11)


def test_a_budget_has_the_rows_of_its_parts_in_their_order() -> None:
    budget = Budget({"sessions": 100, "commands": 3})
    sessions, commands = budget.row("sessions"), budget.add(CommandMemory(budget.limit_bytes("commands")))
    sessions.charge(7)
    assert list(budget) == [sessions, commands]
    assert [(row.name, row.limit_bytes) for row in budget] == [("sessions", 100), ("commands", 3)]
    assert budget.used_bytes() == {"sessions": 7, "commands": 0}


def test_a_row_cannot_be_added_twice() -> None:
    budget = Budget({})
    budget.row("http")
    with pytest.raises(AssertionError, match="http"):
        budget.row("http")


def test_the_page_of_the_memory_ceiling_says_what_is_charged_to_each_row() -> None:
    page = (Path(__file__).parents[2] / "docs/internals/memory-ceiling.md").read_text(encoding="utf-8")
    counted_in = " ".join(line.split("|")[-2] for line in page.splitlines() if line.startswith("| "))
    # Request memory is shown in two parts there.
    rows = [row.name for row in ROWS if row.name != "requests"]
    assert [name for name in ("held", "pending", *rows) if f"`{name}`" not in counted_in] == []
