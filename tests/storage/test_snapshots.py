# SPDX-License-Identifier: Apache-2.0
"""Snapshots: the last one saved is found, whole, whatever happens in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage.files import OsFiles
from penstock.storage.snapshots import Snapshots
from penstock.testing.files import FaultyFiles

PLACE = Path("/data/broker-0/delayed")


def test_what_was_saved_last_is_loaded_and_what_was_forgotten_is_not(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "delayed", OsFiles())
    assert (snapshots.ledgers(), snapshots.load(7)) == (set(), None)
    assert snapshots.save(7, [b"first, and longer"]) == 17
    snapshots.save(7, [b"second", b", in two"])
    snapshots.save(8, [b"another"])
    assert (snapshots.ledgers(), snapshots.load(7)) == ({7, 8}, b"second, in two")
    snapshots.forget(7)
    snapshots.forget(7)
    assert (snapshots.ledgers(), snapshots.load(7)) == ({8}, None)


def test_nothing_is_made_before_the_first_one(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "delayed", OsFiles())
    assert snapshots.ledgers() == set()
    assert not (tmp_path / "delayed").exists()


def test_other_files_beside_them_are_no_snapshots(tmp_path: Path) -> None:
    for name in ("7.draft", "x.snapshot", "8.snapshot.old"):
        (tmp_path / name).write_bytes(b"?")
    assert Snapshots(tmp_path, OsFiles()).ledgers() == set()


@pytest.mark.parametrize("seed", range(20))
def test_after_a_loss_of_power_there_is_the_old_one_or_the_new_one(seed: int) -> None:
    chance = random.Random(seed)
    files = FaultyFiles()
    snapshots = Snapshots(PLACE, files)
    old, new = b"old" * 3_000, b"new" * 4_000
    snapshots.save(7, [old])
    files.lose_power_at(call=chance.randrange(1, 9))
    saved = False
    try:
        snapshots.save(7, [new])
        saved = True
    except OSError:
        pass
    files.crash(chance)
    assert Snapshots(PLACE, files).load(7) in ({new} if saved else {old, new})
