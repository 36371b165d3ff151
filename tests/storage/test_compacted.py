# SPDX-License-Identifier: Apache-2.0
"""A compacted ledger: entries found by the ids that they had in their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.checksum import is_sealed
from penstock.storage.compacted import CompactedLedger, wrap
from tests.storage.logs import MemoryLog, entries, run_of

if TYPE_CHECKING:
    from penstock.storage.results import ReadResult

TOPIC, LEDGER = 1, 2


def compacted(
    log: MemoryLog, ids: list[int], *, horizon: int, members: dict[int, list[int]] | None = None
) -> CompactedLedger:
    """A ledger that holds these ids."""
    kept = [
        wrap(one, entry, (members or {}).get(one, ())) for one, entry in zip(ids, entries(0, len(ids)), strict=True)
    ]
    for row, entry in enumerate(kept):
        log.log.append(run_of([(LEDGER, row, [entry])]))
    log.log.commit()
    return CompactedLedger(LEDGER, len(ids), horizon)


def read(ledger: CompactedLedger, log: MemoryLog, entry_id: int, *, entries_max: int = 1_000) -> ReadResult:
    return ledger.read(log.log, TOPIC, entry_id, bytes_max=2**30, entries_max=entries_max)


def ids_of(result: ReadResult) -> list[int]:
    return [entry_id for batch in result.batches for entry_id, _ in batch.entries()]


@settings(max_examples=30, deadline=None)
@given(ids=st.sets(st.integers(0, 60), max_size=25), start=st.integers(0, 61), at_once=st.integers(1, 7))
def test_reading_on_from_any_id_finds_all_that_follow_and_ends_behind_the_horizon(
    ids: set[int], start: int, at_once: int
) -> None:
    with MemoryLog() as log:
        ledger = compacted(log, sorted(ids), horizon=60)
        found: list[int] = []
        first = start
        while start <= 60:
            result = read(ledger, log, start, entries_max=at_once)
            found += ids_of(result)
            assert result.next_entry_id > start
            start = result.next_entry_id
        assert start == 61
        assert found == [one for one in sorted(ids) if one >= first]


@given(ids=st.sets(st.integers(0, 40), min_size=1, max_size=15), start=st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_a_read_begins_with_the_first_entry_at_or_behind_the_id(ids: set[int], start: int) -> None:
    with MemoryLog() as log:
        assert ids_of(read(compacted(log, sorted(ids), horizon=40), log, start)) == [
            i for i in sorted(ids) if i >= start
        ]


def test_entries_come_out_as_the_topic_had_them() -> None:
    with MemoryLog() as log:
        ledger = compacted(log, [3, 4, 9], horizon=12)
        result = read(ledger, log, 0)
        assert [batch.entry_ids for batch in result.batches] == [range(3, 5), range(9, 10)]
        assert {batch.ledger_id for batch in result.batches} == {TOPIC}
        found = [bytes(entry) for batch in result.batches for _, entry in batch.entries()]
        assert found == entries(0, 3)
        assert all(map(is_sealed, found))
        assert ledger.last(log.log) == (9, entries(2, 1)[0])


@pytest.mark.parametrize("left", [[0], [63], [64], [0, 1, 70, 200]])
def test_what_is_left_of_a_batch_is_told_as_in_an_acknowledgement(left: list[int]) -> None:
    with MemoryLog() as log:
        result = read(compacted(log, [5, 6], horizon=9, members={5: left}), log, 0)
        assert result.members is not None
        bits = sum(word << 64 * place for place, word in enumerate(result.members[5]))
        assert [index for index in range(256) if bits >> index & 1] == left
        assert 6 not in result.members


def test_a_ledger_of_which_nothing_was_kept_ends_at_once() -> None:
    with MemoryLog() as log:
        ledger = CompactedLedger(LEDGER, 0, 7)
        assert read(ledger, log, 0).next_entry_id == 8
        assert ledger.last(log.log) is None


def test_a_damaged_entry_is_passed_over_and_named() -> None:
    with MemoryLog() as log:
        ledger = compacted(log, [1, 3, 5], horizon=6)
        segment = log.files.open(log.segment())
        at = segment.read(segment.size(), 0).find(entries(1, 1)[0])
        log.files.flip(log.segment(), (at + 20) * 8)
        result = read(ledger, log, 0)
        assert ids_of(result) == [1, 5]
        assert result.damaged == [(LEDGER, 1)]
        assert ids_of(read(ledger, log, 2)) == [5]
