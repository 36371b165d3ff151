# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.core.units import KIB
from penstock.storage.limits import LogLimits
from penstock.storage.segment import RESERVE_BYTES, SegmentStore
from penstock.testing.files import FaultyFile, FaultyFiles

HOME = Path("/log")
LIMITS = LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, spares_max=2, open_files_max=2)


def test_ids_only_grow_and_outlive_the_store() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    assert [store.take(), store.take()] == [1, 2]
    store.recycle(1)
    assert SegmentStore(HOME, files, LIMITS).take() == 3


def test_a_prepared_segment_is_the_next_one_taken() -> None:
    store = SegmentStore(HOME, FaultyFiles(), LIMITS)
    store.prepare()
    store.prepare()
    assert store.ids() == [1]
    assert store.take() == 1


def test_a_recycled_segment_is_written_over_under_a_new_id() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    store.take()
    with store.borrow(1) as file:
        assert file is not None
        file.write([b"old"], 0)
    store.recycle(1)
    assert files.names(HOME) == ["0000000000000001.spare"]
    assert store.take() == 2
    with store.borrow(2) as file:
        assert file is not None
        assert file.read(3, 0) == b"old"
    with store.borrow(1) as file:
        assert file is None


def test_more_dead_segments_than_spares_are_wanted_are_deleted() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    taken = [store.take() for _ in range(4)]
    for segment_id in taken:
        store.recycle(segment_id)
    assert len(files.names(HOME)) == LIMITS.spares_max


def test_a_spare_of_another_size_is_not_used() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    store.recycle(store.take())
    larger = SegmentStore(HOME, files, LogLimits(segment_bytes=128 * KIB, run_bytes_max=16 * KIB))
    with larger.borrow(larger.take()) as file:
        assert file is not None
        assert file.size() == 128 * KIB


def test_a_full_disk_leaves_no_half_made_segment() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    files.run_full_after(10 * KIB)
    with pytest.raises(OSError, match="No space"):
        store.take()
    assert files.names(HOME) == []
    files.run_full_after(None)
    assert store.take() == 1


class CountingFile(FaultyFile):
    """Takes its name from a list when it is closed."""

    def __init__(self, files: CountingFiles, path: Path) -> None:
        opened = FaultyFiles.open(files, path)
        super().__init__(files, opened.inode)
        self.open_names = files.open_names
        self.name = path.stem
        self.open_names.append(self.name)

    def close(self) -> None:
        self.open_names.remove(self.name)


class CountingFiles(FaultyFiles):
    """Knows which files are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open_names: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        file = super().open(path, create=create)
        return file if create else CountingFile(self, path)


def test_no_more_files_stay_open_than_allowed_except_borrowed_ones() -> None:
    files = CountingFiles()
    store = SegmentStore(HOME, files, LIMITS)
    taken = [store.take() for _ in range(4)]
    lent = [store.lend(segment_id) for segment_id in taken]
    assert len(files.open_names) == 4
    for opened in lent:
        assert opened is not None
        store.give_back(opened)
    assert files.open_names == ["0000000000000003", "0000000000000004"]
    store.close()
    assert files.open_names == []


def test_recycling_waits_for_readers() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    store.take()
    opened = store.lend(1)
    assert opened is not None
    recycler = threading.Thread(target=store.recycle, args=(1,))
    recycler.start()
    while (again := store.lend(1)) is not None:  # Until the other thread has begun.
        store.give_back(again)
    assert opened.file.size() == LIMITS.segment_bytes
    assert "0000000000000001.seg" in files.names(HOME)
    store.give_back(opened)
    recycler.join(60)
    assert files.names(HOME) == ["0000000000000001.spare"]


def test_files_that_are_not_segments_are_left_alone() -> None:
    files = FaultyFiles()
    for name in ("notes.txt", "0001.seg", "zzzzzzzzzzzzzzzz.seg", "0000000000000009.seg.bak"):
        files.open(HOME / name, create=True)
    store = SegmentStore(HOME, files, LIMITS)
    assert store.ids() == []
    assert store.take() == 1
    assert len(files.names(HOME)) == 5


def test_a_disk_with_room_for_the_next_segment_and_more_can_be_probed_and_nothing_stays() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    store.probe()
    assert files.names(HOME) == []
    files.run_full_after(LIMITS.segment_bytes + RESERVE_BYTES - 1)
    with pytest.raises(OSError, match="No space left"):
        store.probe()
    assert files.names(HOME) == []


def test_a_prepared_segment_needs_no_room_of_its_own() -> None:
    files = FaultyFiles()
    store = SegmentStore(HOME, files, LIMITS)
    store.prepare()
    files.run_full_after(RESERVE_BYTES + 4 * KIB)
    store.probe()


def test_a_disk_that_does_not_sync_does_not_take_data() -> None:
    files = FaultyFiles()
    files.fail_sync_at(1)
    with pytest.raises(OSError, match="Input/output error"):
        SegmentStore(HOME, files, LIMITS).probe()
