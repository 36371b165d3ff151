# SPDX-License-Identifier: Apache-2.0
"""Segments that are not there, or too short, at the start: named, passed over, and found again when they come back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import StorageReadOnly
from penstock.core.units import KIB
from penstock.storage.damage import MissingEntries, MissingRange
from tests.storage.logs import HOME, LIMITS, MemoryLog

if TYPE_CHECKING:
    from pathlib import Path


def filled(memory: MemoryLog) -> list[bytes]:
    """Three segments and more of one ledger."""
    return [entry for first in range(0, 500, 20) for entry in memory.append(1, first, 20, size=400)]


def taken_away(memory: MemoryLog, number: int) -> tuple[Path, range]:
    """Stop, take a segment's file away, start; its path and what of ledger 1 it holds."""
    memory.log.close()
    memory.start()
    path = memory.segment(number)
    (stretch,) = memory.log._index.sealed.of_segment(int(path.stem, 16))  # noqa: SLF001 - what the log itself goes by
    memory.log.close()
    memory.files.hide(path)
    memory.start()
    return path, range(stretch.first_entry, stretch.last_entry + 1)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_a_missing_segment_held_is_named_and_passed_over_and_takes_nothing_along(number: int) -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        path, lost = taken_away(memory, number)
        assert memory.read(1) == sent[: lost.start] + sent[lost.stop :]
        assert memory.log.missing.listed() == [
            MissingRange(int(path.stem, 16), 1, lost.start, lost.stop, "its file is missing")
        ]
        stats = memory.log.stats()
        assert (stats.damaged, stats.missing_entries) == (1, len(lost))
        assert memory.log.problems() == (
            f"entries 1:{lost.start} to 1:{lost.stop - 1} of segment {number + 1:x}: its file is missing",
        )
        assert memory.log.last_entry(1) == 499
        assert memory.log.health.ok


def test_a_read_passes_over_many_gaps_that_one_scan_has_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    with MemoryLog() as memory:
        sent = [entry for first in range(0, 900, 20) for entry in memory.append(1, first, 20, size=400)]
        memory.log.close()
        memory.start()
        lost = set[int]()
        for number in (0, 2, 4):
            (stretch,) = memory.log._index.sealed.of_segment(int(memory.segment(number).stem, 16))  # noqa: SLF001
            lost.update(range(stretch.first_entry, stretch.last_entry + 1))
        gone = [memory.segment(number) for number in (0, 2, 4)]
        memory.log.close()
        for path in gone:
            memory.files.hide(path)
        memory.delete_index()
        memory.start()
        assert memory.read(1) == [entry for entry_id, entry in enumerate(sent) if entry_id not in lost]
        assert memory.log.missing.entries == len(lost)
        assert caplog.text.count("building it again from the log") == 1


def test_a_missing_segment_that_comes_back_is_whole_at_the_next_start_whatever_happened_meanwhile() -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        path, lost = taken_away(memory, 1)
        sent += memory.append(1, 500, 20)
        memory.read(1)
        memory.log.maintain()
        memory.reopen()
        memory.log.maintain()
        assert memory.log.missing.entries == len(lost)
        memory.log.close()
        memory.files.show(path)
        memory.start()
        assert memory.read(1) == sent
        assert memory.log.problems() == ()


def test_a_segment_that_was_cut_short_serves_what_is_there_and_all_when_it_is_whole_again() -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        memory.reopen()
        memory.log.close()
        file = memory.files.open(memory.segment(1))
        content = file.read(64 * KIB, 0)
        file.truncate(20_000)
        memory.start()
        (missing,) = memory.log.missing.listed()
        assert missing.reason == "its file was cut to 20000 bytes"
        assert memory.read(1) == sent[: missing.first_entry] + sent[missing.end_entry :]
        memory.log.close()
        file = memory.files.open(memory.segment(1))
        file.write([content[20_000:]], 20_000)
        memory.start()
        assert memory.read(1) == sent


def test_missing_entries_that_were_trimmed_are_not_missed_and_their_segment_is_forgotten() -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        _, lost = taken_away(memory, 0)
        memory.log.trim(1, lost.stop)
        memory.log.maintain()
        assert memory.read(1) == sent[lost.stop :]
        memory.reopen()
        assert memory.log.problems() == ()
        assert memory.read(1) == sent[lost.stop :]


def test_a_segment_that_was_recycled_is_not_missed_after_any_crash() -> None:
    for seed in range(20):
        with MemoryLog() as memory:
            filled(memory)
            memory.log.maintain()
            memory.log.trim(1, 480)
            memory.log.maintain()
            assert memory.log.stats().recycled > 0
            memory.end()
            memory.files.crash(random.Random(seed))
            memory.start()
            assert memory.log.problems() == ()
            assert memory.log.health.ok


def test_no_segment_is_missed_after_a_kill_before_anything_was_written() -> None:
    with MemoryLog() as memory:
        for _ in range(4):
            memory.append(1, memory.log.last_entry(1) + 1, 1)
            memory.kill()
            memory.kill()
        assert memory.log.problems() == ()
        assert memory.log.health.ok


@pytest.mark.parametrize("cut_to", [None, 0, 5_000])
def test_nothing_is_published_over_a_lost_segment_of_which_nobody_knows_what_it_held(cut_to: int | None) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 20, size=400) + memory.append(1, 20, 5)
        memory.end()  # killed before the index knew what is in the segment
        memory.files.kill()
        path = memory.segment()
        content = memory.files.open(path).read(64 * KIB, 0)
        if cut_to is None:
            memory.files.hide(path)
        else:
            memory.files.open(path).truncate(cut_to)
        memory.start()
        assert memory.log.health.read_only is not None
        assert "segment 1 " in memory.log.health.read_only
        memory.append(1, 3, 1)
        assert isinstance(memory.outcomes[-1], StorageReadOnly)
        memory.log.maintain()
        memory.log.close()
        if cut_to is None:
            memory.files.show(path)
        else:
            memory.files.open(path).write([content[cut_to:]], cut_to)
        memory.start()
        assert memory.log.health.ok
        assert memory.read(1) == sent


@pytest.mark.parametrize("known", [True, False])
def test_a_missing_segment_is_given_up_when_that_is_asked_for_and_what_it_held_is_damage(known: bool) -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        if known:
            memory.reopen()
        memory.end()
        memory.files.kill()
        memory.files.hide(memory.segment(1 if known else -1))
        memory.limits = replace(LIMITS, skip_missing=True)
        memory.start()
        assert memory.log.health.ok
        left = memory.read(1)
        assert set(left) < set(sent)
        assert len(memory.log.damage()) == 1
        assert memory.log.missing.pieces == 0
        memory.limits = LIMITS
        memory.reopen()
        assert memory.read(1) == left
        assert len(memory.log.damage()) == 1


def test_a_missing_segment_stays_missing_and_known_when_the_index_is_built_again() -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        path, lost = taken_away(memory, 1)
        memory.change_index("UPDATE stretches SET last_entry = last_entry + 1 WHERE segment <> 2")
        assert memory.read(1) == sent[: lost.start] + sent[lost.stop :]
        assert memory.log.missing.entries == len(lost)
        memory.log.close()
        memory.files.show(path)
        memory.start()
        assert memory.read(1) == sent


def test_what_is_present_between_missing_pieces_is_told() -> None:
    book = MissingEntries()
    book.note(MissingRange(1, 7, 10, 20, "gone"))
    book.note(MissingRange(2, 7, 30, 40, "gone"))
    book.note(MissingRange(2, 7, 32, 38, "gone"))
    assert list(book.present(7, 0, 50)) == [(0, 10), (20, 30), (40, 50)]
    assert list(book.present(7, 12, 35)) == [(20, 30)]
    assert list(book.present(7, 12, 15)) == []
    assert list(book.present(8, 0, 5)) == [(0, 5)]
    assert book.within(7, 15, 31) == [(15, 20), (30, 31)]
    assert (book.pieces, book.entries) == (2, 20)


def test_entries_that_are_in_no_segment_are_missing_and_not_damage_though_the_index_is_gone_with_them() -> None:
    with MemoryLog() as memory:
        sent = filled(memory)
        path, lost = taken_away(memory, 1)
        memory.log.close()
        memory.delete_index()
        memory.start()
        assert memory.read(1) == sent[: lost.start] + sent[lost.stop :]
        assert memory.log.damage() == []
        assert memory.log.missing.within(1, 0, 500) == [(lost.start, lost.stop)]
        memory.log.close()
        memory.files.show(path)
        memory.start()
        assert memory.read(1) == sent
        assert memory.log.problems() == ()


def test_a_segment_that_is_being_written_is_known_though_the_index_was_built_again() -> None:
    with MemoryLog() as memory:
        filled(memory)
        memory.change_index("DELETE FROM stretches")
        memory.append(1, 500, 5)
        memory.read(1)  # finds the index damaged
        memory.append(1, 505, 5)
        memory.end()
        memory.files.kill()
        memory.files.hide(memory.segment(-1))
        memory.start()
        assert memory.log.health.read_only is not None


def test_a_segment_that_holds_nothing_does_not_keep_a_log_on_a_full_disk_from_opening() -> None:
    with MemoryLog() as memory:
        for _ in range(3):
            memory.append(1, memory.log.last_entry(1) + 1, 1)
            memory.log.maintain()  # makes the next segment ready
            memory.kill()
        last = memory.log.last_entry(1)
        memory.end()
        memory.files.kill()
        memory.files.run_full_after(0)
        memory.files.open(HOME / "log" / f"{99:016x}.seg", create=True)
        memory.files.open(HOME / "log" / f"{100:016x}.seg", create=True)
        memory.start()
        assert memory.log.last_entry(1) == last
        memory.files.run_full_after(None)
