# SPDX-License-Identifier: Apache-2.0
"""How large parts of a ledger are, as the index tells it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.index import Extent, bytes_from, entry_with_behind, ordered
from tests.storage.logs import MemoryLog

LEDGER = 7


@st.composite
def _ledgers(draw: st.DrawFn) -> list[Extent]:
    """Extents of one ledger, ascending, perhaps with gaps."""
    at, out = 0, []
    for gap, entries, size in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100), st.integers(1, 10_000)), max_size=8)
    ):
        out.append(Extent(at + gap, at + gap + entries, size * entries))
        at += gap + entries
    return out


@pytest.mark.parametrize("sealed", [False, True])
def test_the_log_knows_how_large_parts_of_a_ledger_are(sealed: bool) -> None:
    with MemoryLog() as log:
        sizes = fill(log, 40)
        if sealed:
            log.reopen()
        for first in (0, 50, 1_000, 1_950, 2_000, 9_000):
            assert log.log.bytes_from(LEDGER, [first]) == [sum(sizes[first:])]
        assert log.log.bytes_from(LEDGER, [1_000, 0]) == [sum(sizes[1_000:]), sum(sizes)]


def fill(log: MemoryLog, runs: int) -> list[int]:
    """Append runs of fifty entries, each with larger ones than before; the sizes of all."""
    return [
        len(entry) for first in range(0, 50 * runs, 50) for entry in log.append(LEDGER, first, 50, size=first // 10)
    ]


def test_what_was_trimmed_does_not_count() -> None:
    with MemoryLog() as log:
        sent = log.append(LEDGER, 0, 100)
        log.log.trim(LEDGER, 40)
        assert log.log.bytes_from(LEDGER, [0, 40, 41]) == [sum(map(len, sent[first:])) for first in (40, 40, 41)]


def test_other_ledgers_do_not_count() -> None:
    with MemoryLog() as log:
        log.append(LEDGER, 0, 10)
        log.append(LEDGER + 1, 0, 100)
        assert log.log.bytes_from(LEDGER, [0]) == log.log.bytes_from(LEDGER + 1, [90])


def test_a_ledger_that_is_not_there_takes_nothing() -> None:
    with MemoryLog() as log:
        assert log.log.bytes_from(LEDGER, [0, 5]) == [0, 0]
        assert log.log.bytes_from(LEDGER, []) == []
        assert log.log.entry_within(LEDGER, 100) == 0


def test_a_ledger_that_was_dropped_takes_nothing() -> None:
    with MemoryLog() as log:
        log.append(LEDGER, 0, 10)
        log.log.drop(LEDGER)
        log.log.commit()
        assert log.log.bytes_from(LEDGER, [0]) == [0]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 5_000, 20_000, 100_000, 10_000_000])
def test_the_last_of_a_size_begins_where_one_entry_more_would_be_too_much(sealed: bool, nbytes: int) -> None:
    with MemoryLog() as log:
        sizes = fill(log, 40)
        if sealed:
            log.reopen()
        first = log.log.entry_within(LEDGER, nbytes)
        assert sum(sizes[first:]) <= nbytes
        assert first == 0 or sum(sizes[first - 1 :]) > nbytes


def test_sizes_are_told_again_after_the_index_was_damaged() -> None:
    with MemoryLog() as log:
        sizes = fill(log, 40)
        log.change_index("UPDATE stretches SET spans = zeroblob(length(spans))")
        assert log.log.bytes_from(LEDGER, [123]) == [sum(sizes[123:])]


def test_entries_on_the_move_count_once() -> None:
    twice = [Extent(0, 100, 1_000), Extent(40, 60, 200), Extent(90, 200, 1_100)]
    assert ordered(twice) == [Extent(0, 100, 1_000), Extent(100, 200, 1_000)]


@settings(deadline=None)
@given(extents=_ledgers(), nbytes=st.integers(0, 2_000_000))
def test_what_is_kept_never_takes_more_than_allowed_by_more_than_an_entry(extents: list[Extent], nbytes: int) -> None:
    first = entry_with_behind(extents, nbytes)
    assert bytes_from(extents, first) <= nbytes
    if extents and first > extents[0].first_entry:
        assert bytes_from(extents, first - 1) > nbytes - 1 or bytes_from(extents, first - 1) == bytes_from(
            extents, first
        )


@settings(deadline=None)
@given(extents=_ledgers(), one=st.integers(0, 1_000), other=st.integers(0, 1_000))
def test_further_back_is_never_smaller(extents: list[Extent], one: int, other: int) -> None:
    assert bytes_from(extents, min(one, other)) >= bytes_from(extents, max(one, other))
