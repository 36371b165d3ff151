# SPDX-License-Identifier: Apache-2.0
"""What a backup relies on: kept segments, a catalog that stands still, holds that have not run out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_S
from penstock.storage.backup import Backup, BackupFailed, KeptLog, restore
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from tests.storage.logs import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class HurryingClock(ManualClock):
    """A clock of a slow machine: four seconds pass from one look to the next."""

    def monotonic_ns(self) -> int:
        self.advance(ns=4 * NS_PER_S)
        return super().monotonic_ns()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose catalog is open, as that of a running broker."""
    catalog = Catalog.open(open_data_directory(tmp_path / "data", OsFiles()), lambda call: call())
    yield tmp_path / "data"
    catalog.close()


def kept(data: Path, hold: int = 1) -> list[KeptLog]:
    return [KeptLog(0, (data / "broker-0" / "log").stat().st_ino, hold, {})]


def take(data: Path, keep: Callable[[int], list[KeptLog]]) -> Path:
    Backup(data, data.parent / "backup", keep=keep, clock=ManualClock()).take(penstock="1", taken_at="now")
    return data.parent / "backup"


def test_segments_are_recycled_only_when_they_are_not_kept_any_more() -> None:
    with MemoryLog() as memory:
        for first in range(0, 2_000, 50):
            memory.append(1, first, 50, size=100)
        before = memory.log.keep(10 * NS_PER_S)
        memory.log.trim(1, 1_990)
        memory.log.maintain()
        memory.log.maintain()
        assert memory.log.stats().recycled == 0
        assert memory.log.keep(0) == before
        memory.clock.advance(ns=10 * NS_PER_S)
        memory.log.maintain()
        assert memory.log.stats().recycled > 0
        assert memory.log.keep(0).hold > before.hold


def test_what_is_kept_ends_with_the_last_durable_entry() -> None:
    with MemoryLog() as memory:
        assert memory.log.keep(0).segments == {}
        memory.append(1, 0, 5)
        (written,) = memory.log.keep(0).segments.values()
        memory.append(1, 5, 5)
        (name,) = memory.log.keep(0).segments
        assert memory.log.keep(0).segments[name] > written
        assert memory.files.exists(memory.log.directory / name)


def test_nobody_changes_the_catalog_while_brokers_say_what_is_durable(data: Path) -> None:
    files = ["meta.sqlite", "broker-0/topics.sqlite"]
    seen = []

    def keep(_seconds: int) -> list[KeptLog]:
        locked = []
        for name in files:
            db = apsw.Connection(str(data / name))
            try:
                db.execute("begin immediate; rollback")
            except apsw.BusyError:
                locked.append(name)
            finally:
                db.close()
        seen.append(locked)
        return kept(data)

    take(data, keep)
    assert seen == [[], files, []]


def test_a_hold_that_ran_out_ends_the_backup(data: Path) -> None:
    holds = iter([1, 1, 2])
    with pytest.raises(BackupFailed, match="take the backup again"):
        take(data, lambda _seconds: kept(data, next(holds)))
    with pytest.raises(BackupFailed, match=r"manifest\.json is missing"):
        restore(data.parent / "backup", data.parent / "restored")


def test_a_hold_of_a_broker_that_was_started_again_is_another_one() -> None:
    """It has kept nothing between the two."""
    with MemoryLog() as memory:
        before = memory.log.keep(NS_PER_S).hold
        memory.reopen()
        assert memory.log.keep(NS_PER_S).hold != before


def test_segments_are_kept_also_while_those_of_an_earlier_backup_are_compared(data: Path) -> None:
    segments = {f"{number:016x}.seg": 10 for number in range(20)}
    for name in segments:
        (data / "broker-0" / "log" / name).write_bytes(b"0123456789")
    asked: list[int] = []

    def keep(seconds: int) -> list[KeptLog]:
        asked.append(seconds)
        return [one._replace(segments=segments) for one in kept(data)]

    first = take(data, keep)
    asked.clear()
    clock = HurryingClock()
    again = Backup(data, data.parent / "again", keep=keep, clock=clock, previous=first)
    again.take(penstock="1", taken_at="now")
    assert again.linked_bytes == 200
    # Before, while the catalog stands still, and in the end; and every ten seconds, of which each comparison took four.
    assert len(asked) > 3 + 4


def test_a_backup_and_what_is_restored_are_for_the_user_alone(data: Path) -> None:
    backup = take(data, lambda _seconds: kept(data))
    restore(backup, data.parent / "restored")
    made = [path for root in (backup, data.parent / "restored") for path in (root, *root.rglob("*"))]
    assert len(made) > 6
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_broker_that_is_not_in_the_directory_ends_the_backup(data: Path) -> None:
    with pytest.raises(BackupFailed, match="is not the data directory"):
        take(data, lambda _seconds: [*kept(data), KeptLog(1, 0, 1, {})])


def test_a_restored_catalog_opens(data: Path) -> None:
    restore(take(data, lambda _seconds: kept(data)), data.parent / "restored")
    catalog = Catalog.open(open_data_directory(data.parent / "restored", OsFiles()), lambda call: call())
    assert "public/default" in catalog.namespaces()
    catalog.close()
