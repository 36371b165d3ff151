# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of usage records in tables, without Spark: drivers killed at every step, and hostile records."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.accounting.differences import COUNTERS, MINUTE_MS
from penstock.accounting.tables import TOPIC_USAGE, of_toml
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting import batch_state, directory
from penstock.spark.accounting.batch_state import BatchState, alone
from penstock.spark.accounting.batches import USAGE
from penstock.spark.accounting.derived_arrow import ArrowDeriving
from penstock.spark.accounting.differing import FOUND, SERIES_SCHEMA
from penstock.spark.accounting.differing_columns import find
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.refreshing import refresh
from penstock.spark.accounting.store import open_store
from tests.spark.accounted import NOON, QUERY, RECORDS, Record, add, minutes_of, record, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and a busy disk would take a second for each."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def used(tables: Path, table: str = "topic_usage") -> dict[int, int]:
    """Bytes by minute."""
    found: dict[int, int] = {}
    for row in rows_of(tables, table):
        minute = round(row["minute"].timestamp() * 1_000 - NOON) // MINUTE_MS
        found[minute] = found.get(minute, 0) + row["published_bytes"]
    return found


def test_counters_become_what_was_used_in_each_minute(tmp_path: Path) -> None:
    first, second, third = minutes_of([5, 5, 9])
    add(tmp_path, 0, first)
    add(tmp_path, 1, second)
    counts = add(tmp_path, 2, third)
    assert used(tmp_path) == {0: 500, 2: 400}
    assert used(tmp_path, "broker_usage") == {0: 500, 2: 400}
    assert counts == {"records": 6, "refused": 0, "late": 0, "lost": 0}
    closed = rows_of(tmp_path, "closed_minutes")
    assert [row["until_minute"].timestamp() * 1_000 - NOON for row in closed] == [60_000, 120_000, 180_000]


class Killed(BaseException):
    """The driver is gone."""


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_driver_killed_at_any_step_neither_loses_nor_doubles(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = minutes_of([5, 7, 12])
    steps = 0
    died = True
    while died:
        tables = tmp_path / f"{kind}-{steps}"
        died = False
        left = steps

        def put(unfinished: Path, path: Path, done: Callable[[Path, Path], None] = directory.put_in_place) -> None:
            nonlocal left, died
            if kind == "after":
                done(unfinished, path)
            left -= 1
            if left < 0 and not died:
                died = True
                raise Killed
            if kind == "before":
                done(unfinished, path)

        with monkeypatch.context() as patched:
            patched.setattr(directory, "put_in_place", put)
            for batch, records in enumerate(batches):
                try:
                    add(tables, batch, records)
                except Killed:
                    add(tables, batch, records)  # the next driver: Spark repeats the micro-batch
        add(tables, len(batches) - 1, batches[-1])  # Spark had not noted the last one
        assert used(tables) == {0: 500, 1: 200, 2: 500}, f"killed {kind} step {steps}"
        assert used(tables, "broker_usage") == {0: 500, 1: 200, 2: 500}
        assert len(rows_of(tables, "closed_minutes")) == 3
        steps += 1
    assert steps > 12


def test_counters_are_in_few_files_however_many_micro_batches_there_were(tmp_path: Path) -> None:
    for batch, records in enumerate(minutes_of(range(1, 21))):
        add(tmp_path, batch, records)
    assert sum(used(tmp_path).values()) == 2_000
    assert len(list((tmp_path / "_state" / USAGE).glob("series-*"))) <= 2 * batch_state.FILES_MAX
    assert len(BatchState(directory_of(tmp_path), USAGE).files) <= batch_state.FILES_MAX


def test_hostile_records_are_refused_and_counted_and_the_next_good_one_tells_what_they_hid(tmp_path: Path) -> None:
    (first, first_end), (second, second_end), (third, third_end) = minutes_of([5, 7, 12])
    broken = {**dict.fromkeys(RECORDS.names), "broken": True, "__topic": "x", "published_ms": NOON}
    forged = [
        {**second, "published_messages": -1},
        {**second, "published_bytes": 1 << 62},
        {**second, "scope": "planet"},
        {**second, "time_ms": 1 << 60},
        {**second, "broker": None},
    ]
    add(tmp_path, 0, [first, first_end])
    counts = add(tmp_path, 1, [broken, broken, *forged, second_end])
    assert counts["refused"] == 7
    assert counts["lost"] == 1
    assert used(tmp_path) == {0: 500}
    assert sum(row["records"] for row in rows_of(tmp_path, "refused_records")) == 7
    add(tmp_path, 2, [third, third_end])
    assert used(tmp_path) == {0: 500, 2: 700}


def test_repeated_and_disordered_records_add_nothing(tmp_path: Path) -> None:
    batches = minutes_of([5, 7, 12])
    add(tmp_path, 0, [*reversed([one for records in batches for one in records]), *batches[1]])
    add(tmp_path, 1, [*batches[0], *batches[2]])
    assert used(tmp_path) == {0: 500, 1: 200, 2: 500}


def test_what_comes_hours_late_corrects_a_closed_minute_and_is_counted(tmp_path: Path) -> None:
    others = [record(0, 60, "broker", broker=f"broker-{number}") for number in (1, 2)]
    add(tmp_path, 0, [*minutes_of([5])[0], *others])
    counts = add(tmp_path, 1, minutes_of([5, 9])[1])
    assert used(tmp_path) == {0: 500, 1: 400}
    assert [row["late"] for row in rows_of(tmp_path, "topic_usage")] == [False, True]
    assert counts["late"] == 2  # the topic's and the broker's
    assert {tuple(row["absent"]) for row in rows_of(tmp_path, "closed_minutes")} == {(), ("broker-0",)}


def test_counters_of_a_restarted_epoch_go_on_and_new_ones_begin_anew(tmp_path: Path) -> None:
    add(tmp_path, 0, minutes_of([5])[0])
    again = record(0, 1, epoch=2, published_bytes=700)
    moved = record(0, 2, broker="broker-1", counters_since_ms=NOON + 1, published_bytes=50)
    add(tmp_path, 1, [again, moved])
    assert used(tmp_path) == {0: 500, 1: 200, 2: 50}


def test_names_of_every_legal_character_stay_as_they_are(tmp_path: Path) -> None:
    topic = "persistent://-=:._aZ9/=:-/ %2F=day=1 日本 'q' \"r\" \\ \t🐍"
    add(tmp_path, 0, [record(0, 0, topic=topic, tenant="-=:._aZ9", namespace="-=:._aZ9/=:-", published_bytes=7)])
    (row,) = rows_of(tmp_path, "topic_usage")
    assert (row["topic"], row["tenant"], row["published_bytes"]) == (topic, "-=:._aZ9", 7)


def test_usage_of_groups_has_quota_share_and_waiting_times(tmp_path: Path) -> None:
    given = record(
        0, 0, "group", resource_groups=["gold"], published_bytes=9, publish_limited_ms=500, dispatch_limited_ms=0,
        quota_publish_bytes=10.0, share_publish_bytes=4.5,
    )  # fmt: skip
    add(tmp_path, 0, [given])
    (row,) = rows_of(tmp_path, "group_usage")
    assert (row["resource_group"], row["publish_limited_ms"]) == ("gold", 500)
    assert (row["quota_publish_bytes"], row["share_publish_bytes"], row["quota_dispatch_bytes"]) == (10.0, 4.5, None)


def test_chunks_are_counted_apart_and_counters_of_an_earlier_version_go_on(tmp_path: Path) -> None:
    first, second = minutes_of([5, 9])
    add(tmp_path, 0, first)  # as earlier versions record it: without chunks
    state = tmp_path / "_state" / "usage"
    (series,) = state.glob("series-*.parquet")
    older = pq.read_table(series).drop_columns(list(COUNTERS[7:]))
    pq.write_table(older, series)
    add(tmp_path, 1, [{**one, "published_chunks": 3, "aborted_bytes": 7} for one in second])
    for table in ("topic_usage", "broker_usage"):
        rows = sorted(rows_of(tmp_path, table), key=lambda row: row["minute"])
        assert [(row["published_messages"], row["published_chunks"]) for row in rows] == [(5, 0), (4, 3)], table
        assert [(row["committed_bytes"], row["aborted_bytes"]) for row in rows] == [(0, 0), (0, 7)], table


def test_principals_and_storage_have_tables_and_a_bill(tmp_path: Path) -> None:
    def at(minute: int) -> list[Record]:
        """What was used in a minute: 100 bytes published by alice, twice as much read, and 60 byte-hours."""
        about = {"tenant": "t", "namespace": "t/n", "role": "alice"}
        bytes_now, first = 100 * (minute + 1), 4 * minute
        published = {"published_bytes": bytes_now, "published_messages": minute + 1}
        read = {"dispatched_bytes": 2 * bytes_now, "dispatched_messages": 2}
        return [
            record(first, minute, "principal", **about, **published, connected_ms=60_000 * (minute + 1)),
            record(first + 1, minute, "principal", **about, **read, subscription="orders"),
            record(first + 2, minute, "namespace", **about, stored_byte_hours=60 * (minute + 1)),
            record(first + 3, minute, "topic", **published, **read),
        ]

    for batch in range(2):
        add(tmp_path, batch, at(batch))
    rows = rows_of(tmp_path, "principal_usage")
    assert [(row["role"], row["published_bytes"], row["connected_ms"]) for row in rows if not row["subscription"]] == [
        ("alice", 100, 60_000),
        ("alice", 100, 60_000),
    ]
    assert sum(row["dispatched_bytes"] for row in rows if row["subscription"] == "orders") == 400
    assert [row["stored_byte_hours"] for row in rows_of(tmp_path, "storage_usage")] == [60, 60]

    prices = of_toml(
        'currency = "EUR"\n'
        + "".join(
            f'[[price]]\ncounter = "{counter}"\nprice = {price}\n'
            for counter, price in (("published_bytes", 1), ("dispatched_bytes", 2), ("stored_byte_hours", 3))
        )
    )
    store = open_store(directory_of(tmp_path), "parquet")
    refresh(ArrowDeriving(store), store, prices=prices)
    bill = {row["counter"]: row["cost"] for row in rows_of(tmp_path, "costs") if not row["unpriced"]}
    assert bill == {"published_bytes": 200, "dispatched_bytes": 800, "stored_byte_hours": 360}
    of_roles = [row for row in rows_of(tmp_path, "principal_costs") if not row["unpriced"]]
    assert {(row["role"], row["counter"]): row["cost"] for row in of_roles} == {
        ("alice", "published_bytes"): 200,
        ("alice", "dispatched_bytes"): 800,
    }
    assert not [row for row in rows_of(tmp_path, "principal_costs") if row["counter"] == "connected_ms"]


def test_a_checkpoint_of_other_tables_and_missing_notes_are_refused(tmp_path: Path) -> None:
    batches = minutes_of([1, 2, 3])
    add(tmp_path, 0, batches[0])
    with pytest.raises(ConfigurationError, match="the checkpoint is not the one"):
        add(tmp_path, 1, batches[1], query="another")
    with pytest.raises(ConfigurationError, match="micro-batch 2 follows 0"):
        add(tmp_path, 2, batches[2])
    note = json.loads((tmp_path / "_state" / USAGE / "000000000000.json").read_text(encoding="utf-8"))
    assert note["query"] == QUERY


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    other = directory_of(tmp_path)
    with alone(directory_of(tmp_path)), pytest.raises(ConfigurationError, match="another process"), alone(other):
        pass
    with alone(other):
        pass


def test_a_part_without_records_finds_nothing() -> None:
    assert find(RECORDS.empty_table(), SERIES_SCHEMA.empty_table()).schema == FOUND


@pytest.mark.parametrize("step", range(3))
def test_a_merge_that_an_earlier_version_has_not_ended_loses_nothing(step: int, tmp_path: Path) -> None:
    for batch, records in enumerate(minutes_of([5, 7])):
        add(tmp_path, batch, records)
    kept = open_store(directory_of(tmp_path), "parquet")
    day, files = next(iter(kept.files(TOPIC_USAGE).items()))
    present = tmp_path / "topic_usage" / f"day={day}"
    new, old = present.with_name(f"_new-{day}"), present.with_name(f"_old-{day}")
    merged = pa.concat_tables([pq.read_table(tmp_path / name, partitioning=None) for name in files])
    new.mkdir()
    pq.write_table(merged, new / files[-1].rsplit("/", 1)[1])
    if step > 0:
        present.rename(old)
    if step > 1:
        new.rename(present)
    assert used(tmp_path) == {0: 500, 1: 200} or step == 1
    add(tmp_path, 2, minutes_of([5, 7, 12])[2])
    assert used(tmp_path) == {0: 500, 1: 200, 2: 500}
    assert [path.name for path in (tmp_path / "topic_usage").iterdir()] == [present.name]
