# SPDX-License-Identifier: Apache-2.0
"""Tables where nothing is renamed and nothing can be locked: drivers killed at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.accounting.differences import MINUTE_MS
from penstock.accounting.tables import BASE, NAMESPACE_USAGE, TOPIC_USAGE
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting import derived_arrow
from penstock.spark.accounting.batch_state import BatchState, alone
from penstock.spark.accounting.batches import USAGE
from penstock.spark.accounting.derived_arrow import ArrowDeriving
from penstock.spark.accounting.directory import Directory, directory_of
from penstock.spark.accounting.refreshing import refresh
from penstock.spark.accounting.store import existing_store, open_store
from tests.spark.accounted import NOON, add, minutes_of
from tests.spark.object_store import Killed, ObjectStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.accounting.tables import Table

MESSAGES = [5, 7, 12]
EXPECTED = {0: 500, 1: 200, 2: 500}


def used(directory: Directory, table: Table = TOPIC_USAGE) -> dict[int, int]:
    """Bytes by minute, as a reader finds them."""
    found: dict[int, int] = {}
    for row in existing_store(directory).rows(table).to_pylist():
        minute = round(row["minute"].timestamp() * 1_000 - NOON) // MINUTE_MS
        found[minute] = found.get(minute, 0) + row["published_bytes"]
    return found


def account(files: ObjectStore) -> None:
    """What a driver does from its start on: micro-batches that are not done, then derived tables and merges."""
    directory = files.directory()
    with alone(directory):
        done = BatchState(directory, USAGE).batch
        for batch, records in enumerate(minutes_of(MESSAGES)):
            if batch >= done:  # Spark may not have noted the last one
                add(directory, batch, records)
        store = open_store(directory, "parquet")
        refresh(ArrowDeriving(store), store)


@pytest.mark.parametrize("torn", [False, True])
def test_a_driver_killed_at_any_change_neither_loses_nor_doubles(torn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived_arrow, "FILES_PER_DAY_MAX", 2)
    undisturbed = ObjectStore(torn=torn)
    account(undisturbed)
    assert len(undisturbed.killed_at) > 30
    for step, left in enumerate(undisturbed.killed_at):
        files = ObjectStore(left)
        seen = used(files.directory()) if step > 2 else {}
        assert seen.items() <= EXPECTED.items(), f"a reader after step {step}"
        account(files)
        for table in (TOPIC_USAGE, NAMESPACE_USAGE):
            assert used(files.directory(), table) == EXPECTED, f"killed at step {step}"
        names = [path for path in files.files if "topic_usage/" in path]
        assert len(names) == 1, "the day was merged"
        assert not [path for path in files.files if "/merging/" in path]


def test_the_first_of_two_writers_stops_at_its_next_step() -> None:
    files = ObjectStore()
    first, second = files.directory(), files.directory()
    records = minutes_of(MESSAGES)
    with alone(first):
        add(first, 0, records[0])
        with alone(second):
            add(second, 1, records[1])
            with pytest.raises(ConfigurationError, match="another process has begun to write these tables"):
                add(first, 2, records[2])
            with pytest.raises(ConfigurationError, match="another process"):
                BatchState(first, USAGE).plan(2, {})
    assert used(files.directory()) == {0: 500, 1: 200}


def test_a_micro_batch_that_is_not_noted_is_not_read() -> None:
    files = ObjectStore()
    add(files.directory(), 0, minutes_of(MESSAGES)[0])
    files.steps = 3  # its tables are there, its note is not
    with pytest.raises(Killed):
        add(files.directory(), 1, minutes_of(MESSAGES)[1])
    assert any(path.endswith("usage-000000000001.parquet") for path in files.files)
    assert used(files.directory()) == {0: 500}


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_paths_and_file_urls_are_directories_of_this_machine(scheme: str, tmp_path: Path) -> None:
    directory = directory_of(f"{scheme}{tmp_path}/ta bles")
    assert str(directory) == f"{tmp_path}/ta bles"
    assert directory.is_local
    directory.write("a/b", b"c")
    assert (tmp_path / "ta bles/a/b").read_bytes() == b"c"


def test_a_url_without_a_driver_says_what_would_write_it() -> None:
    with pytest.raises(ConfigurationError, match=r"neither Arrow nor fsspec has a driver .* use --engine spark"):
        directory_of("hdfs2://namenode/tables")


def test_all_tables_are_empty_before_the_first_record() -> None:
    store = open_store(ObjectStore().directory(), "parquet")
    assert [store.rows(table).num_rows for table in BASE] == [0] * len(BASE)
    with pytest.raises(ConfigurationError, match="mem://tables has no tables"):
        existing_store(ObjectStore().directory())
