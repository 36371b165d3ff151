# SPDX-License-Identifier: Apache-2.0
"""A row of the memory budget counts what it lends."""

from __future__ import annotations

import pytest

from penstock.governance.memory_row import MemoryRow


def test_what_fits_is_charged_and_what_does_not_is_refused_and_counted() -> None:
    row = MemoryRow("sessions", 100)
    assert row.try_take(100)
    assert not row.try_take(1)
    assert (row.used_bytes, row.available_bytes, row.refused_total) == (100, 0, 1)


def test_what_exists_already_is_charged_beyond_the_size_and_shown() -> None:
    row = MemoryRow("dispatch", 100)
    row.take(130)
    assert row.available_bytes == -30
    row.release(60)
    assert row.try_take(30)


def test_giving_back_more_than_was_lent_is_a_bug_of_ours() -> None:
    row = MemoryRow("commands", 100)
    row.take(10)
    with pytest.raises(AssertionError, match="commands"):
        row.release(11)
