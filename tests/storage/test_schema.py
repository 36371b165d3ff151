# SPDX-License-Identifier: Apache-2.0
"""A data directory of format 1 becomes one of this format, whatever stops the start in the middle of it."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from penstock.core.errors import MetadataFailed
from penstock.storage.catalog import Catalog
from penstock.storage.catalog_rows import part_row, sealed
from penstock.storage.cursor import Cursor
from penstock.storage.directory import DataDirectory
from penstock.storage.files import write_all
from penstock.storage.schema import SHARED_MIGRATIONS
from penstock.testing.files import FaultyFiles
from penstock.testing.vfs import sqlite_on

if TYPE_CHECKING:
    from penstock.core.errors import PenstockError
    from penstock.storage.files import Files

DATA = DataDirectory(Path("/data"))
OLD = "persistent://public/default/old"
NEW = "persistent://public/default/new"


def old_disk() -> FaultyFiles:
    """A directory of format 1 with two topics."""
    disk = FaultyFiles()
    write_format(disk, b"penstock 1\n")
    cursor = Cursor()
    cursor.acknowledge_many([0, 1, 2, 5, 9_000])
    with sqlite_on(disk) as vfs:
        db = apsw.Connection(str(DATA.metadata), vfs=vfs)
        db.pragma("locking_mode", "exclusive")
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.execute(f"begin; {';'.join(SHARED_MIGRATIONS)}; pragma user_version = {len(SHARED_MIGRATIONS)}; commit")
        with db:
            topics = [sealed(1, OLD, 0, 11, '{"a":"b"}', '{"maxProducers":2}', 7), sealed(2, NEW, 0, 12, "{}", "{}", 0)]
            db.executemany("insert into topics values (?, ?, ?, ?, ?, ?, ?, ?)", topics)
            subscription = (*sealed(1, "audit", "earliest", '{"team":"ops"}'), cursor.mark_delete, cursor.head())
            db.execute("insert into subscriptions values (?, ?, ?, ?, ?, ?, ?)", subscription)
            parts = [part_row(1, "audit", part) for part in cursor.take_changes()]
            db.executemany("insert into cursor_parts values (?, ?, ?, ?, ?, ?)", parts)
            documents = [
                sealed("topic-state", OLD, '{"epoch":3}'),
                sealed("dedup", "persistent://public/default/gone", '{"entry_id":3}'),
                sealed("kept-ledgers", "broker-0", '{"ledgers":[40]}'),
                sealed("clusters", "west", '{"serviceUrl":"x"}'),
            ]
            db.executemany("insert into documents values (?, ?, ?, ?)", documents)
            db.execute("insert or replace into counters values (?, ?, ?)", sealed("next_ledger_id", 1_001))
        db.close()
    disk.sync_directory(DATA.path)
    return disk


def write_format(disk: Files, text: bytes) -> None:
    file = disk.open(DATA.path / "FORMAT", create=True)
    write_all(file, [text], 0)
    file.sync()
    file.close()


def opened(disk: FaultyFiles, vfs: str, posted: SimpleQueue[Any]) -> Catalog:
    return Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)


def check(disk: FaultyFiles) -> None:
    """Open it, and compare."""
    posted = SimpleQueue[Any]()
    with sqlite_on(disk) as vfs:
        catalog = opened(disk, vfs, posted)
        assert {record.name: tuple(record) for record in catalog.topics()} == {
            OLD: (OLD, 1, 0, 11, {"a": "b"}, {"maxProducers": 2}),
            NEW: (NEW, 2, 0, 12, {}, {}),
        }
        assert (catalog.first_retained_entry(OLD), catalog.first_retained_entry(NEW)) == (7, 0)
        assert [tuple(one) for one in catalog.subscriptions(OLD)] == [(OLD, "audit", "earliest", {"team": "ops"})]
        assert (catalog.documents("topic-state"), catalog.documents("dedup")) == ({OLD: {"epoch": 3}}, {})
        assert (catalog.documents("clusters"), catalog.kept_ledgers()) == ({"west": {"serviceUrl": "x"}}, {40})
        cursors: dict[str, Cursor] = {}
        errors: list[PenstockError | None] = []
        catalog.load_cursors(OLD, cursors.update, errors.append)
        while not errors:
            posted.get()()
        assert (cursors["audit"].mark_delete, cursors["audit"].is_acknowledged(9_000)) == (2, True)
        assert not cursors["audit"].is_acknowledged(4)
        catalog.close()
    file = disk.open(DATA.path / "FORMAT")
    assert file.read(64, 0) == b"penstock 2\n"
    names = disk.names(DATA.broker(0))
    assert names == ["topics.sqlite"]


def test_everything_of_a_topic_moves_to_the_file_of_its_broker() -> None:
    disk = old_disk()
    check(disk)
    check(disk)


def test_a_power_cut_anywhere_in_a_migration_loses_nothing() -> None:
    for call in range(1, 1_000):
        disk, chance = old_disk(), random.Random(call)
        disk.lose_power_at(call, cut_ratio=chance.random())
        with sqlite_on(disk) as vfs:
            try:
                catalog = opened(disk, vfs, SimpleQueue())
            except MetadataFailed:
                pass
            else:
                catalog.close()
                if disk_was_enough(disk):
                    break
        disk.crash(chance)
        check(disk)
    else:
        pytest.fail("it never ended")
    assert call > 20


def disk_was_enough(disk: FaultyFiles) -> bool:
    """Whether the power was not cut."""
    try:
        disk.open(DATA.path / "probe", create=True).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_a_failed_sync_or_a_full_disk_in_a_migration_loses_nothing(seed: int) -> None:
    disk, chance = old_disk(), random.Random(seed)
    if seed % 2:
        disk.fail_sync_at(chance.randrange(1, 14))
    else:
        disk.run_full_after(chance.randrange(150_000))
    with sqlite_on(disk) as vfs, suppress(MetadataFailed):
        opened(disk, vfs, SimpleQueue()).close()
    disk.fail_sync_at(0)
    disk.run_full_after(None)
    if chance.random() < 0.5:
        disk.crash(chance)
    else:
        disk.kill()
    check(disk)


def test_a_migration_that_was_cut_short_begins_again_with_what_the_older_version_stored_since() -> None:
    disk = old_disk()
    with sqlite_on(disk) as vfs:  # What a start left that got so far.
        db = apsw.Connection(str(DATA.topics(0)), vfs=vfs)
        db.pragma("locking_mode", "exclusive")
        db.execute("create table subscriptions (a)")
        db.close()
    check(disk)


def test_damage_is_named_and_nothing_is_changed() -> None:
    disk = old_disk()
    with sqlite_on(disk) as vfs:
        db = apsw.Connection(str(DATA.metadata), vfs=vfs)
        db.pragma("locking_mode", "exclusive")
        db.execute("update topics set name = 'persistent://public/default/bold' where ledger_id = 1")
        db.close()
        for _ in range(2):
            with pytest.raises(MetadataFailed, match=r"meta\.sqlite is damaged: DamagedRow: the row of 1 "):
                opened(disk, vfs, SimpleQueue())
        db = apsw.Connection(str(DATA.metadata), vfs=vfs)
        db.pragma("locking_mode", "exclusive")
        assert db.pragma("user_version") == len(SHARED_MIGRATIONS)
        db.close()
