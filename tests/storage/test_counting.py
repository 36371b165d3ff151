# SPDX-License-Identifier: Apache-2.0
"""Messages and bytes of entries, counted without reading the entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import counting
from penstock.storage.blocks import HEADER_BYTES
from penstock.storage.counting import Counted
from tests.storage.logs import MemoryLog, entries, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

LEDGER, OTHER = 7, 8
END = 2**62


def append(log: MemoryLog, first: int, counts: Sequence[int], *, size: int = 50) -> None:
    """One block: entries of the ledger between those of another."""
    sent = entries(first, len(counts), size)
    half = len(sent) // 2
    groups = [(LEDGER, first, sent[:half]), (OTHER, first, sent), (LEDGER, first + half, sent[half:])]
    columns = [*counts[:half], *([1_000] * len(sent)), *counts[half:]]
    log.log.append(run_of([group for group in groups if group[2]], log.note, message_counts=columns))
    log.log.commit()


@given(
    blocks=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), min_size=1, max_size=6),
    start=st.integers(0, 20),
    length=st.integers(0, 50),
    messages_max=st.none() | st.integers(0, 300),
    bytes_max=st.none() | st.integers(0, 3_000),
)
def test_a_count_is_what_reading_and_adding_up_would_give(
    blocks: list[list[int]], start: int, length: int, messages_max: int | None, bytes_max: int | None
) -> None:
    with MemoryLog() as log:
        first = 0
        for counts in blocks:
            append(log, first, counts)
            first += len(counts)
        stored = [number for counts in blocks for number in counts]
        sizes = [len(entry) for entry in log.read(LEDGER)]
        end = min(start + length, first)
        want = Counted(start)
        for entry_id in range(start, end):
            grown = Counted(
                entry_id + 1, want.entries + 1, want.messages + stored[entry_id], want.bytes + sizes[entry_id]
            )
            if (messages_max is not None and grown.messages > messages_max) or (
                bytes_max is not None and grown.bytes > bytes_max
            ):
                want = want._replace(next_messages=stored[entry_id])
                break
            want = grown
        found = log.log.count(LEDGER, start, start + length, messages_max=messages_max, bytes_max=bytes_max)
        assert found == want


def test_entries_that_were_deleted_are_not_counted() -> None:
    with MemoryLog() as log:
        append(log, 0, [1, 2, 3, 4])
        log.log.trim(LEDGER, 2)
        assert log.log.count(LEDGER, 0, END)[:3] == (4, 2, 7)


def test_a_count_is_the_same_after_a_restart_and_in_a_sealed_segment() -> None:
    with MemoryLog() as log:
        for block in range(40):
            append(log, block * 4, [1, 2, 3, 4], size=1_000)
        before = log.log.count(LEDGER, 0, END)
        assert before[:3] == (160, 160, 400)
        log.reopen()
        assert log.log.count(LEDGER, 0, END) == before


def test_one_count_reads_so_many_blocks_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BLOCKS_MAX", 3)
    with MemoryLog() as log:
        for block in range(10):
            append(log, block * 2, [5, 5])
        assert log.log.count(LEDGER, 0, END)[:3] == (6, 6, 30)


def test_a_count_stops_before_a_table_that_cannot_be_read() -> None:
    with MemoryLog() as log:
        append(log, 0, [1, 2])
        append(log, 2, [3, 4])
        plan = log.log._index.plan(LEDGER, 2, bytes_max=1, entries_max=1)  # noqa: SLF001 -- where to do damage
        assert plan is not None
        log.files.flip(log.segment(), (plan.spans[0].block_offset + HEADER_BYTES) * 8)
        assert log.log.count(LEDGER, 0, END)[:3] == (2, 2, 3)
        log.files.fail_reads()
        assert log.log.count(LEDGER, 0, END)[:3] == (0, 0, 0)
