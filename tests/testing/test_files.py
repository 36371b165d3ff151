# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage.files import FileLocked, write_all
from penstock.testing.files import PAGE_BYTES, FaultyFiles

FILE = Path("/home/file")
SEEDS = range(50)


def filled(files: FaultyFiles, content: bytes = b"old" * 10_000) -> None:
    """Make a durable file."""
    file = files.open(FILE, create=True)
    file.write([content], 0)
    file.sync()
    files.sync_directory(FILE.parent)


def content(files: FaultyFiles) -> bytes:
    file = files.open(FILE)
    return file.read(file.size(), 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_synced_survives_every_crash(seed: int) -> None:
    files = FaultyFiles()
    filled(files, b"durable" * 5_000)
    files.crash(random.Random(seed))
    assert content(files) == b"durable" * 5_000


def test_some_crashes_keep_some_unsynced_pages_and_lose_others() -> None:
    survivors = set()
    for seed in SEEDS:
        files = FaultyFiles()
        filled(files, bytes(10 * PAGE_BYTES))
        files.open(FILE).write([b"\1" * 10 * PAGE_BYTES], 0)
        files.crash(random.Random(seed))
        survivors.add(content(files).count(1))
    assert {0, 10 * PAGE_BYTES} < survivors
    assert any(survived % PAGE_BYTES for survived in survivors), "a page may be torn between its sectors"


def test_names_that_were_not_synced_may_vanish_and_renames_are_whole() -> None:
    outcomes = set()
    for seed in SEEDS:
        files = FaultyFiles()
        filled(files)
        files.rename(FILE, FILE.with_name("other"))
        files.open(FILE.with_name("new"), create=True)
        files.crash(random.Random(seed))
        outcomes.add(tuple(files.names(FILE.parent)))
    assert outcomes == {("file",), ("other",), ("new", "other")}


def test_a_failed_sync_loses_its_pages_though_a_second_one_succeeds() -> None:
    files = FaultyFiles()
    filled(files, b"old")
    file = files.open(FILE)
    file.write([b"new"], 0)
    files.fail_sync_at(1)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert content(files) == b"new"
    seen = set()
    for seed in SEEDS:
        again = FaultyFiles()
        filled(again, b"old")
        file = again.open(FILE)
        file.write([b"new"], 0)
        again.fail_sync_at(1)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        again.crash(random.Random(seed))
        seen.add(content(again))
    assert b"old" in seen


def test_a_full_disk_takes_what_has_room_and_then_refuses() -> None:
    files = FaultyFiles()
    file = files.open(FILE, create=True)
    files.run_full_after(10)
    with pytest.raises(OSError, match="No space"):
        write_all(file, [b"0123456", b"789abc"], 0)
    assert content(files) == b"0123456789"
    files.run_full_after(None)
    write_all(file, [b"more"], 10)
    assert content(files) == b"0123456789more"


def test_an_allocation_the_disk_has_no_room_for_is_refused() -> None:
    files = FaultyFiles()
    file = files.open(FILE, create=True)
    files.run_full_after(100)
    with pytest.raises(OSError, match="No space"):
        file.allocate(101)


def test_when_power_is_lost_the_write_underway_is_cut_and_nothing_works_until_the_crash_is_over() -> None:
    files = FaultyFiles()
    filled(files, b"")
    file = files.open(FILE)
    files.lose_power_at(2, cut_ratio=0.5)
    file.write([b"whole"], 0)
    with pytest.raises(OSError, match="power is off"):
        write_all(file, [b"halved"], 5)
    with pytest.raises(OSError, match="power is off"):
        file.read(1, 0)
    files.kill()
    assert content(files) == b"wholehal"
    with pytest.raises(OSError, match="power is off"):
        file.read(1, 0)  # It was opened in an earlier life.


def test_a_flipped_bit_is_flipped_for_good() -> None:
    files = FaultyFiles()
    filled(files, b"\0\0\0")
    files.flip(FILE, 9)
    assert content(files) == b"\0\2\0"
    files.crash(random.Random(1))
    assert content(files) == b"\0\2\0"


def test_a_crash_releases_locks() -> None:
    files = FaultyFiles()
    files.lock(FILE, "me")
    with pytest.raises(FileLocked, match="me"):
        files.lock(FILE, "you")
    files.crash(random.Random(1))
    files.lock(FILE, "you").release()
    files.lock(FILE, "me")


def test_the_same_seed_tells_the_same_story() -> None:
    def story(seed: int) -> bytes:
        files = FaultyFiles()
        filled(files, bytes(10 * PAGE_BYTES))
        files.open(FILE).write([b"\1" * 10 * PAGE_BYTES], 0)
        files.crash(random.Random(seed))
        return content(files)

    assert [story(seed) for seed in SEEDS] == [story(seed) for seed in SEEDS]
