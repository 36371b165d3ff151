# SPDX-License-Identifier: Apache-2.0
"""A ledger is copied to another log whole: ids, message counts, trim points, and the ids of entries that are lost."""

from __future__ import annotations

import tracemalloc
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.core.checksum import seal
from penstock.core.clock import ManualClock
from penstock.core.errors import PersistenceFailed, ReadFailed
from penstock.core.units import KIB, MIB
from penstock.storage.entry_log import EntryLog, LogLimits
from penstock.storage.files import OsFiles
from penstock.storage.ledger_copy import Ledger, LedgerCopy
from tests.storage.logs import LIMITS, MemoryLog, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.results import ReadResult


@contextmanager
def two(limits: LogLimits = LIMITS) -> Iterator[tuple[MemoryLog, MemoryLog]]:
    with ExitStack() as stack:
        yield stack.enter_context(MemoryLog(limits)), stack.enter_context(MemoryLog(limits))


def copy(source: MemoryLog, target: MemoryLog, *ledgers: Ledger) -> LedgerCopy:
    made = LedgerCopy(source.log, target.log, target.limits)
    made.run(ledgers)
    made.finish()
    target.start()
    return made


def whole(memory: MemoryLog, ledger_id: int = 1) -> ReadResult:
    return memory.log.read(ledger_id, 0, bytes_max=2**30, entries_max=2**30)


def damaged(memory: MemoryLog, ledger_id: int = 1) -> list[int]:
    return [entry_id for _, entry_id in whole(memory, ledger_id).damaged]


def flip(memory: MemoryLog, entry: bytes, number: int = 0) -> None:
    """Flip a bit of this entry on the disk."""
    path = memory.segment(number)
    content = memory.files.open(path).read(64 * KIB, 0)
    memory.files.flip(path, (content.index(entry) + 20) * 8)


def test_entries_come_with_their_ids_and_message_counts_between_those_of_other_ledgers() -> None:
    with two() as (source, target):
        sent = {1: [seal(b"one %d" % number) for number in range(40)], 2: [seal(b"two") for _ in range(40)]}
        for first in range(0, 40, 10):
            groups = [(ledger_id, first, each[first : first + 10]) for ledger_id, each in sent.items()]
            source.log.append(run_of(groups, message_counts=list(range(1, 21))))
            source.log.commit()
        theirs = target.append(7, 0, 5)
        made = copy(source, target, Ledger(1, 0), Ledger(3, 0))
        assert target.read(1) == sent[1]
        assert [n for batch in whole(target).batches for n in batch.message_counts or ()] == [*range(1, 11)] * 4
        assert (target.read(2), target.read(3), target.read(7)) == ([], [], theirs)
        assert (made.lost, target.log.last_entry(1), target.log.last_entry(3)) == (0, 39, -1)


def test_a_ledger_of_many_segments_is_copied_without_what_was_trimmed() -> None:
    with two() as (source, target):
        sent = [entry for first in range(0, 500, 20) for entry in source.append(1, first, 20, size=400)]
        source.log.trim(1, 105)
        copy(source, target, Ledger(1, 110))
        assert target.read(1) == sent[110:]
        assert target.read(1, 110) == sent[110:]
        target.delete_index_and_start()
        target.log.trim(1, 110)
        assert target.read(1, 110) == sent[110:]


def test_ids_stay_used_when_all_entries_are_trimmed() -> None:
    with two() as (source, target):
        source.append(1, 0, 10)
        source.log.trim(1, 10)
        source.log.maintain()
        copy(source, target, Ledger(1, 10))
        assert (target.read(1), target.log.last_entry(1)) == ([], 9)
        new = target.append(1, 10, 2)
        assert target.read(1) == new


@pytest.mark.parametrize("bad", [[0], [7], [5, 6], [19], [17, 18, 19], [3, 9, 19]])
@pytest.mark.parametrize("how", ["reopen", "kill", "without index", "after more"])
def test_damaged_entries_stay_damaged_and_keep_their_ids(bad: list[int], how: str) -> None:
    with two() as (source, target):
        sent = source.append(1, 0, 20)
        for entry_id in bad:
            flip(source, sent[entry_id])
        source.reopen()
        made = copy(source, target, Ledger(1, 0))
        if how == "kill":
            target.kill()
        elif how == "without index":
            target.delete_index_and_start()
        elif how == "after more":
            target.append(2, 0, 200)
            target.reopen()
        assert made.lost == len(bad)
        assert target.read(1) == [entry for number, entry in enumerate(sent) if number not in bad]
        assert damaged(target) == bad
        assert [(one.ledger_id, one.entry_id) for one in target.log.damage()] == [(1, entry_id) for entry_id in bad]
        assert target.log.stats().damaged == len(bad)
        assert target.log.last_entry(1) == 19


def test_damage_is_known_before_anyone_reads_it_again() -> None:
    with two() as (source, target):
        flip(source, source.append(1, 0, 20)[7])
        copy(source, target, Ledger(1, 0))
        assert [one.entry_id for one in target.log.damage()] == [7]


def test_a_copy_can_be_copied_again_with_its_damage() -> None:
    with two() as (source, target), MemoryLog() as third:
        sent = source.append(1, 0, 20)
        flip(source, sent[4])
        copy(source, target, Ledger(1, 0))
        made = copy(target, third, Ledger(1, 0))
        assert made.lost == 1
        assert (third.read(1), damaged(third)) == (sent[:4] + sent[5:], [4])


def test_entries_that_were_given_up_with_their_file_are_damage_in_the_copy() -> None:
    with two() as (source, target):
        sent = [entry for first in range(0, 500, 20) for entry in source.append(1, first, 20, size=400)]
        source.reopen()
        source.log.close()
        source.files.hide(source.segment(1))
        source.limits = replace(LIMITS, skip_missing=True)
        source.start()
        lost = damaged(source)
        assert len(lost) > 100
        made = copy(source, target, Ledger(1, 0))
        assert made.lost == len(lost)
        assert damaged(target) == lost
        assert target.read(1) == [entry for number, entry in enumerate(sent) if number not in set(lost)]


def test_a_ledger_of_which_a_file_is_missing_is_not_copied() -> None:
    with two() as (source, target):
        for first in range(0, 500, 20):
            source.append(1, first, 20, size=400)
        source.reopen()
        source.log.close()
        source.files.hide(source.segment(1))
        source.start()
        with pytest.raises(PersistenceFailed, match=r"entry 1:\d+ is missing"):
            LedgerCopy(source.log, target.log, LIMITS).run([Ledger(1, 0)])


def test_a_disk_that_cannot_be_read_ends_the_copy() -> None:
    with two() as (source, target):
        source.append(1, 0, 20)
        source.files.fail_reads()
        with pytest.raises(ReadFailed):
            LedgerCopy(source.log, target.log, LIMITS).run([Ledger(1, 0)])


def test_what_an_earlier_copy_has_left_is_replaced() -> None:
    with two() as (source, target):
        sent = source.append(1, 0, 20)
        target.append(1, 0, 12, size=60)  # Others, so that it is seen which of them are read.
        target.reopen()
        target.append(1, 12, 30, size=60)
        theirs = target.append(2, 0, 3)
        copy(source, target, Ledger(1, 2))
        assert (target.read(1), target.read(2)) == (sent[2:], theirs)
        assert target.log.last_entry(1) == 19


def test_entries_that_are_too_large_by_now_are_not_copied_and_the_setting_is_named() -> None:
    with MemoryLog(replace(LIMITS, segment_bytes=256 * KIB)) as source, MemoryLog() as target:
        source.append(1, 0, 1, size=100 * KIB)
        with pytest.raises(PersistenceFailed, match="set maxMessageSize as it was"):
            LedgerCopy(source.log, target.log, LIMITS).run([Ledger(1, 0)])


def test_a_full_disk_ends_the_copy_with_its_reason() -> None:
    with two() as (source, target):
        for first in range(0, 500, 20):
            source.append(1, first, 20, size=400)
        target.files.run_full_after(100 * KIB)
        made = LedgerCopy(source.log, target.log, LIMITS)
        with pytest.raises(PersistenceFailed, match="No space left"):
            made.run([Ledger(1, 0)])
        with pytest.raises(PersistenceFailed, match="No space left"):
            made.finish()
        target.files.run_full_after(None)
        target.start()


def test_a_failed_sync_at_the_end_is_not_overlooked() -> None:
    with two(replace(LIMITS, relaxed=True)) as (source, target):
        source.append(1, 0, 20)
        made = LedgerCopy(source.log, target.log, target.limits)
        made.run([Ledger(1, 0)])
        target.files.fail_sync_at(1)
        with pytest.raises(PersistenceFailed, match="could not be stored"):
            made.finish()
        target.start()


@pytest.mark.real
def test_memory_does_not_grow_with_a_ledger(tmp_path: Path) -> None:
    def opened(name: str) -> EntryLog:
        return EntryLog.open(
            tmp_path / name, OsFiles(), LogLimits(), lambda call: call(), clock=ManualClock(), background=False
        )

    source, target = opened("source"), opened("target")
    entry = seal(bytes(MIB))
    for entry_id in range(100):
        source.append(run_of([(1, entry_id, [entry])]))
        source.commit()
    made = LedgerCopy(source, target, LogLimits())
    tracemalloc.start()
    try:
        made.run([Ledger(1, 0)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    made.finish()
    source.close()
    assert made.bytes >= 100 * MIB
    assert peak < 32 * MIB
