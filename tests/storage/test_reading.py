# SPDX-License-Identifier: Apache-2.0
"""Reading on a disk that stumbles: what cannot be read now is never taken for lost."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import ReadFailed
from penstock.core.units import KIB
from penstock.storage.compacted import CompactedLedger, wrap
from penstock.storage.limits import LogLimits
from penstock.storage.sparse_reads import read_sparse
from tests.storage.logs import MemoryLog, entries, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.entry_log import EntryLog, ReadResult

READS: Mapping[str, Callable[[EntryLog], ReadResult]] = {
    "in one go": lambda log: log.read(1, 0, bytes_max=2**30, entries_max=2**30),
    "one entry": lambda log: log.read(1, 2, bytes_max=1, entries_max=1),
    "gathered": lambda log: read_sparse(
        lambda first, count: log.read(1, first, bytes_max=2**30, entries_max=count), 1, [0, 2], bytes_max=2**30
    ),
    "compacted": lambda log: CompactedLedger(2, 3, 2).read(log, 1, 0, bytes_max=2**30, entries_max=2**30),
}


def two_ledgers(memory: MemoryLog) -> None:
    """A ledger of three entries and the same compacted, each beside so many others' that they are read one by one."""
    own, others = entries(0, 3), entries(0, 300, size=100)
    memory.log.append(run_of([(1, 0, own), (3, 0, others)]))
    memory.log.append(run_of([(2, 0, [wrap(one, entry) for one, entry in enumerate(own)]), (3, 300, others)]))
    memory.log.commit()


LIMITS = LogLimits(segment_bytes=256 * KIB, run_bytes_max=64 * KIB, commit_bytes_max=64 * KIB)


@pytest.mark.parametrize("how", READS)
def test_a_read_that_fails_is_told_as_such_and_brings_everything_once_the_disk_is_well(how: str) -> None:
    with MemoryLog(LIMITS) as memory:
        two_ledgers(memory)
        whole = READS[how](memory.log)
        memory.files.fail_reads()
        for _ in range(3):
            with pytest.raises(ReadFailed, match="segment 1 cannot be read: Input/output error"):
                READS[how](memory.log)
        memory.files.heal()
        again = READS[how](memory.log)
        assert [list(batch.entries()) for batch in again.batches] == [list(batch.entries()) for batch in whole.batches]
        assert again.damaged == []
        assert memory.log.damage() == []
        assert memory.log.stats().damaged == 0


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("most", [1, 7, 100, 4096])
def test_reads_that_give_too_little_are_continued(how: str, most: int) -> None:
    with MemoryLog(LIMITS) as memory:
        two_ledgers(memory)
        whole = READS[how](memory.log)
        memory.files.shorten_reads(most)
        again = READS[how](memory.log)
        assert [list(batch.entries()) for batch in again.batches] == [list(batch.entries()) for batch in whole.batches]
        assert memory.log.stats().damaged == memory.log.stats().read_failures == 0


def test_an_interrupted_read_is_repeated_at_once() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        memory.files.fail_reads(errno.EINTR, times=5)
        assert memory.read(1) == sent
        assert memory.log.stats().read_failures == 0


def test_a_file_that_gives_no_bytes_before_its_end_is_no_damage() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        memory.files.shorten_reads(0)
        with pytest.raises(ReadFailed, match="no bytes came"):
            memory.read(1)
        memory.files.heal()
        assert memory.read(1) == sent


def test_what_can_be_read_before_a_bad_place_is_served() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 5, size=4 * KIB) + memory.append(1, 5, 5, size=4 * KIB)
        bad = memory.log.stats().bytes_appended // 2

        def fail(_path: object, size: int, offset: int) -> int:
            if offset + size > bad:
                raise OSError(errno.EIO, "Input/output error")
            return size

        memory.log._reader._limits = LogLimits(read_bytes=bad)  # noqa: SLF001 - block by block
        memory.files.on_read = fail
        result = memory.log.read(1, 0, bytes_max=2**30, entries_max=2**30)
        assert [bytes(entry) for batch in result.batches for _, entry in batch.entries()] == sent[:5]
        assert (result.next_entry_id, result.damaged) == (5, [])
        with pytest.raises(ReadFailed):
            memory.read(1, 5)


def test_a_file_that_is_gone_while_the_log_is_open_is_no_damage_and_no_reason_to_build_the_index_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        memory.reopen()
        path = memory.segment()
        memory.files.hide(path)
        with pytest.raises(ReadFailed, match="missing"):
            memory.read(1)
        assert "building it again" not in caplog.text
        memory.files.show(path)
        assert memory.read(1) == sent
        assert memory.log.damage() == []


def test_a_file_that_is_cut_short_while_the_log_is_open_is_no_damage() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        file = memory.files.open(memory.segment())
        content = file.read(64 * KIB, 0)
        file.truncate(200)
        with pytest.raises(ReadFailed, match="the file ends at 200"):
            memory.read(1)
        file.write([content[200:]], 200)
        assert memory.read(1) == sent
        assert memory.log.damage() == []


def test_bytes_that_were_wrong_on_their_way_only_are_read_once_more_and_are_no_damage() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        reads: list[int] = []

        def flip_once(path: object, size: int, _offset: int) -> int:
            """The first read finds a flipped bit; the second does not."""
            reads.append(size)
            if len(reads) <= 2:
                memory.files.flip(memory.segment(), (at + 20) * 8)
            return size

        at = bytes(memory.files.open(memory.segment()).read(64 * KIB, 0)).index(sent[4])
        memory.files.on_read = flip_once
        assert memory.read(1) == sent
        assert memory.log.damage() == []
        assert len(reads) == 2


def test_a_trouble_is_told_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with MemoryLog() as memory:
        memory.append(1, 0, 10)
        memory.files.fail_reads()
        for _ in range(5):
            with pytest.raises(ReadFailed):
                memory.read(1)
        (trouble,) = memory.log.troubles()
        assert trouble.describe() == "segment 1 cannot be read: Input/output error"
        assert (memory.log.stats().read_failures, memory.log.stats().unreadable) == (5, 1)
        memory.files.heal()
        memory.read(1)
        assert memory.log.troubles() == []
        told = [record.message for record in caplog.records if "segment 1" in record.message]
        assert told == ["segment 1 cannot be read, trying again: Input/output error", "segment 1 can be read again"]


def test_a_trouble_ends_when_the_disk_is_well_though_nobody_reads_any_more() -> None:
    with MemoryLog() as memory:
        memory.append(1, 0, 10)
        memory.files.fail_reads()
        with pytest.raises(ReadFailed):
            memory.read(1)
        memory.log.try_again()
        assert memory.log.troubles() != []
        memory.files.heal()
        memory.log.try_again()
        assert memory.log.troubles() == []


def test_other_places_of_a_segment_that_can_be_read_do_not_end_its_trouble() -> None:
    with MemoryLog() as memory:
        memory.append(1, 0, 10)
        memory.append(2, 0, 10)

        def fail(_path: object, size: int, offset: int) -> int:
            if offset == 0:
                raise OSError(errno.EIO, "Input/output error")
            return size

        memory.files.on_read = fail
        with pytest.raises(ReadFailed):
            memory.read(1)
        memory.read(2)
        assert len(memory.log.troubles()) == 1


def test_an_index_that_the_disk_cannot_read_is_asked_again_and_not_built_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 10)
        memory.reopen()
        memory.files.fail_reads(of="sqlite")
        with pytest.raises(ReadFailed):
            memory.read(1)
        memory.files.heal()
        assert memory.read(1) == sent
        assert "building it again" not in caplog.text


def test_a_log_that_cannot_be_read_at_the_start_is_not_opened_and_all_there_a_moment_later() -> None:
    for of in (".seg", "sqlite"):
        with MemoryLog() as memory:
            sent = memory.append(1, 0, 10)
            memory.end()
            memory.files.kill()
            memory.files.fail_reads(of=of)
            with pytest.raises(OSError, match="Input/output error"):
                memory.start()
            memory.files.heal()
            memory.start()
            assert memory.read(1) == sent
            assert memory.log.damage() == []


def test_a_start_reads_segments_however_little_a_read_gives() -> None:
    with MemoryLog() as memory:
        sent = memory.append(1, 0, 200) + memory.append(1, 200, 5)
        memory.end()
        memory.files.kill()
        memory.files.on_read = lambda path, size, _offset: min(size, 1000) if path.name.endswith(".seg") else size
        memory.start()
        assert memory.read(1) == sent


def test_housework_that_cannot_read_a_segment_leaves_it_as_it_is() -> None:
    limits = LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, commit_bytes_max=32 * KIB)
    with MemoryLog(limits) as memory:
        sent = [entry for first in range(0, 400, 20) for entry in memory.append(1, first, 20, size=400)]
        memory.log.maintain()
        memory.log.trim(1, 130)
        memory.files.fail_reads()
        appended = memory.log.stats().bytes_appended
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                memory.log.maintain()
        assert memory.log.stats().bytes_appended == appended
        memory.files.heal()
        memory.log.maintain()
        assert memory.read(1) == sent[130:]
        assert memory.log.damage() == []
        assert memory.log.stats().moved_bytes > 0
