# SPDX-License-Identifier: Apache-2.0
"""A ledger whose entries lie between those of others is read whole, in few batches, and of the disk only itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.units import KIB
from penstock.storage.limits import LogLimits
from penstock.storage.ranges import RangeReader
from penstock.testing.files import FaultyFiles
from tests.storage.logs import HOME, MemoryLog, entries, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS = LogLimits(segment_bytes=512 * KIB, run_bytes_max=128 * KIB, commit_bytes_max=128 * KIB)
LEDGERS = range(1, 21)


def alternating(memory: MemoryLog, runs: int, per_run: int, size: int = 400, *, counts: bool = False) -> list[bytes]:
    """Append runs in which the entries of twenty ledgers alternate; return those of each ledger."""
    sent = entries(0, runs * per_run, size)
    for row in range(runs):
        piece = sent[row * per_run : (row + 1) * per_run]
        run = run_of([(ledger_id, row * per_run + at, [one]) for at, one in enumerate(piece) for ledger_id in LEDGERS])
        rows = [at * len(LEDGERS) + ledger for ledger in range(len(LEDGERS)) for at in range(per_run)]
        run.groups = [(ledger_id, row * per_run, per_run) for ledger_id in LEDGERS]
        run.offsets, run.lengths = [run.offsets[at] for at in rows], [run.lengths[at] for at in rows]
        run.message_counts = [2] * len(rows) if counts else None
        memory.log.append(run)
        memory.log.commit()
    return sent


def sorted_together(memory: MemoryLog, runs: int, per_run: int) -> list[bytes]:
    """Append packed runs of twenty ledgers, two in each commit, so that they share a block; return those of each."""
    sent = entries(0, runs * per_run, 400)
    for row in range(runs):
        first = row * per_run
        run = run_of([(ledger_id, first, sent[first : first + per_run]) for ledger_id in LEDGERS], between=b"")
        run.packed = True
        memory.log.append(run)
        if row % 2:
            memory.log.commit()
    return sent


def stored(memory: MemoryLog, how: str) -> list[bytes]:
    if how == "trickling":
        return trickling(memory, 40)
    return sorted_together(memory, 8, 6) if how == "sorted" else alternating(memory, 6, 8, counts=how == "with counts")


def trickling(memory: MemoryLog, number: int) -> list[bytes]:
    """Append the entries of twenty ledgers in turns, each in a commit of its own; return those of each ledger."""
    sent = entries(0, number, size=400)
    for entry_id, one in enumerate(sent):
        for ledger_id in LEDGERS:
            memory.log.append(run_of([(ledger_id, entry_id, [one])]))
            memory.log.commit()
    return sent


class PartlyCached:
    """A file of which only some bytes are in memory, and what was asked of it."""

    def __init__(self, content: bytes, cached: int) -> None:
        files = FaultyFiles()
        self.file = files.open(HOME / "ranges", create=True)
        self.file.write([content], 0)
        self.cached = cached
        self.announced: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.buffers: list[object] = []

    def read(self, size: int, offset: int) -> bytes:
        self.reads.append((offset, size))
        return self.file.read(size, offset)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        self.buffers.append(buffer.obj)
        return self.file.read_cached(buffer[: max(self.cached - offset, 0)], offset)

    def will_read(self, size: int, offset: int) -> None:
        self.announced.append((offset, size))

    def size(self) -> int:
        return self.file.size()


def cut(content: bytes, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    return [content[offset : offset + length] for offset, length in ranges]


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 9_000)), max_size=12), st.integers(0, 400_000))
def test_ranges_are_read_alike_wherever_they_are(gaps: list[tuple[int, int]], cached: int) -> None:
    ranges, at = [], 0
    for gap, length in gaps:
        ranges.append((at + gap, length))
        at += gap + length
    content = bytes(range(256)) * (at // 256 + 1)
    file = PartlyCached(content, cached)
    assert list(RangeReader().read(file, ranges)) == cut(content, ranges)  # type: ignore[arg-type]


def test_what_is_not_in_memory_is_announced_at_once_and_nothing_else_is_read() -> None:
    content, ranges = bytes(range(256)) * 4000, [(row * 100_000, 1_000) for row in range(10)]
    file = PartlyCached(content, cached=250_000)
    found = RangeReader().read(file, ranges)  # type: ignore[arg-type]
    assert [next(found) for _ in range(4)] == cut(content, ranges[:4])
    assert file.announced == ranges[3:]
    assert list(found) == cut(content, ranges[4:])
    assert file.reads == ranges[3:]


def test_a_reader_that_stops_early_gives_its_buffer_back() -> None:
    ranges, file = RangeReader(), PartlyCached(bytes(1_000), cached=1_000)
    for _ in range(3):
        assert next(ranges.read(file, [(0, 10), (500, 10)])) == bytes(10)  # type: ignore[arg-type]
    assert all(buffer is file.buffers[0] for buffer in file.buffers)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "not cached"])
@pytest.mark.parametrize("how", ["alternating", "with counts", "sorted", "trickling"])
def test_a_ledger_between_others_is_read_whole_and_in_few_batches(how: str, *, cached: bool) -> None:
    with MemoryLog(LIMITS) as memory:
        sent = stored(memory, how)
        if not cached:
            memory.files.on_read = lambda _path, size, _offset: size
        result = memory.log.read(7, 0, bytes_max=2**30, entries_max=2**30)
        assert [bytes(entry) for batch in result.batches for _, entry in batch.entries()] == sent
        assert [entry_id for batch in result.batches for entry_id in batch.entry_ids] == list(range(len(sent)))
        assert len(result.batches) == 1
        assert result.batches[0].message_counts == ([2] * len(sent) if how == "with counts" else None)
        for first, number in ((0, 1), (5, 17), (len(sent) - 1, 9)):
            piece = memory.log.read(7, first, bytes_max=2**30, entries_max=number)
            assert [bytes(entry) for batch in piece.batches for _, entry in batch.entries()] == sent[first:][:number]
        limited = memory.log.read(7, 3, bytes_max=3 * len(sent[0]), entries_max=2**30)
        assert limited.next_entry_id == 6


def test_only_the_entries_of_one_ledger_are_read_from_the_disk() -> None:
    with MemoryLog(LIMITS) as memory:
        sent = alternating(memory, 10, 5, size=1_000)
        read = 0

        def note(_path: object, size: int, _offset: int) -> int:
            nonlocal read
            read += size
            return size

        memory.files.on_read = note
        assert memory.read(7) == sent
        assert read <= sum(map(len, sent)) + 10 * 4 * KIB  # What was wanted, and a table for each block.


@pytest.mark.parametrize("how", ["alternating", "sorted", "trickling"])
def test_of_entries_between_others_only_the_damaged_one_is_lost(how: str) -> None:
    with MemoryLog(LIMITS) as memory:
        sent = stored(memory, how)
        path = memory.segment()
        file = memory.files.open(path)
        content = file.read(file.size(), 0)
        places = [at for at in range(len(content)) if content.startswith(sent[20], at)]
        assert len(places) == len(LEDGERS)
        memory.files.flip(path, (places[6] + 100) * 8)
        for ledger_id in LEDGERS:
            result = memory.log.read(ledger_id, 0, bytes_max=2**30, entries_max=2**30)
            got = [bytes(entry) for batch in result.batches for _, entry in batch.entries()]
            if ledger_id == 7:
                assert got == sent[:20] + sent[21:]
                assert result.damaged == [(7, 20)]
            else:
                assert got == sent
                assert result.damaged == []


def test_a_read_that_fails_half_way_brings_the_entries_before() -> None:
    with MemoryLog(LIMITS) as memory:
        sent = trickling(memory, 40)

        def bad(_path: object, size: int, offset: int) -> int:
            if offset + size > 300 * KIB:
                raise OSError(5, "Input/output error")
            return size

        memory.files.on_read = bad
        result = memory.log.read(7, 0, bytes_max=2**30, entries_max=2**30)
        got = [bytes(entry) for batch in result.batches for _, entry in batch.entries()]
        assert 0 < len(got) < 40
        assert got == sent[: len(got)]
        assert result.next_entry_id == len(got)
        memory.files.on_read = None
        assert memory.read(7, len(got)) == sent[len(got) :]
