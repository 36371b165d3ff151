# SPDX-License-Identifier: Apache-2.0
"""How large parts of a ledger are, as the index tells it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.extents import Extent, bytes_from, entry_with_behind, ordered
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


def test_the_log_knows_how_large_a_ledger_is_whether_its_segments_are_sealed_or_not() -> None:
    with MemoryLog() as log:
        sent = [
            entry for first in range(0, 2_000, 50) for entry in log.append(LEDGER, first, 50, size=40 + first // 10)
        ]
        extents = log.log.extents(LEDGER, 0)
        assert bytes_from(extents, 0) == sum(map(len, sent))
        assert bytes_from(extents, 1_000) == sum(map(len, sent[1_000:]))
        log.reopen()
        assert bytes_from(log.log.extents(LEDGER, 0), 0) == sum(map(len, sent))


def test_what_was_trimmed_does_not_count() -> None:
    with MemoryLog() as log:
        sent = log.append(LEDGER, 0, 100)
        log.log.trim(LEDGER, 40)
        assert bytes_from(log.log.extents(LEDGER, 0), 0) == sum(map(len, sent[40:]))


def test_other_ledgers_do_not_count() -> None:
    with MemoryLog() as log:
        log.append(LEDGER, 0, 10)
        log.append(LEDGER + 1, 0, 100)
        assert bytes_from(log.log.extents(LEDGER, 0), 0) == bytes_from(log.log.extents(LEDGER + 1, 90), 0)


def test_a_ledger_that_is_not_there_takes_nothing() -> None:
    with MemoryLog() as log:
        assert log.log.extents(LEDGER, 0) == []
    assert bytes_from([], 0) == 0
    assert entry_with_behind([], 10) == 0


def test_the_last_megabyte_begins_where_less_than_a_block_too_much_would_be_behind() -> None:
    with MemoryLog() as log:
        sizes = [len(entry) for first in range(0, 1_000, 50) for entry in log.append(LEDGER, first, 50, size=100)]
        first = entry_with_behind(log.log.extents(LEDGER, 0), 20_000)
        assert sum(sizes[first:]) <= 20_000 < sum(sizes[first - 1 :])


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
