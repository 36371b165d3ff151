# SPDX-License-Identifier: Apache-2.0
"""Tables that follow from others, and files that are merged."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.accounting.differences import MINUTE_MS
from penstock.accounting.tables import DECISIONS, TABLES, TOPIC_USAGE, of_toml
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting import derived, derived_arrow
from penstock.spark.accounting.batch import usage_of
from penstock.spark.accounting.batch_state import BatchState
from penstock.spark.accounting.batches import GOVERNANCE, Batches
from penstock.spark.accounting.derived import SparkDeriving, compact
from penstock.spark.accounting.derived_arrow import ArrowDeriving, merged
from penstock.spark.accounting.differing import SERIES_SCHEMA
from penstock.spark.accounting.differing_columns import find
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.refreshing import refresh
from penstock.spark.accounting.schemas import arrow_schema
from penstock.spark.accounting.store import open_store
from tests.spark.accounted import NOON, QUERY, RECORDS, add, minutes_of, record, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.spark.accounting.refreshing import Deriving

PRICES = '[[price]]\ncounter = "published_bytes"\nper = 100\nprice = "0.5"'


def decision(sequence: int, kind: str, **given: object) -> dict[str, Any]:
    texts = ("reason", "tenant", "namespace", "topic", "client", "unit")
    return {
        **dict.fromkeys(texts, ""),
        "version": 1,
        "broker": "broker-0",
        "epoch": 1,
        "sequence": sequence,
        "time_ms": NOON + 1_000 * sequence,
        "kind": kind,
        "limiter": "group-quota",
        "resource_group": "gold",
        "before": None,
        "after": None,
        "since_ms": NOON,
        "times": sequence,
        "held_ms": 10 * sequence,
        "observed_only": False,
        "__topic": "persistent://pulsar/system/governance-partition-0",
        "published_ms": NOON,
        "broken": False,
        **given,
    }


def add_decisions(tables: Path, rows: list[dict[str, Any]]) -> None:
    doubles = pa.field("before", pa.float64()), pa.field("after", pa.float64())
    inferred = pa.Table.from_pylist(rows).schema
    schema = pa.schema([next((one for one in doubles if one.name == field.name), field) for field in inferred])
    state = BatchState(directory_of(tables), GOVERNANCE)
    assert state.begins(0, QUERY)
    Batches(GOVERNANCE, state, open_store(directory_of(tables), "parquet"), 0).add_decisions(
        0, pa.Table.from_pylist(rows, schema)
    )


def group_of_three(minute: int, *, limited_ms: int) -> list[dict[str, Any]]:
    """A minute in which one topic published 90 of 100 bytes, and its group waited this long in all."""
    at = 10 * minute
    gold: dict[str, Any] = {"resource_groups": ["gold"]}
    names = ("loud", "small", "tiny")
    topics = [
        record(at + number, minute, topic=f"persistent://t/n/{name}", published_bytes=used * (minute + 1), **gold)
        for number, (name, used) in enumerate(zip(names, (9_000, 700, 300), strict=True))
    ]
    group = record(
        at + 3, minute, "group", published_bytes=10_000 * (minute + 1), publish_limited_ms=limited_ms,
        quota_publish_bytes=200.0, share_publish_bytes=200.0, **gold,
    )  # fmt: skip
    return [*topics, group, record(at + 4, minute, "broker", published_bytes=10_000 * (minute + 1))]


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_derived_tables_follow_from_usage_and_decisions(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    add(tmp_path, 0, group_of_three(0, limited_ms=0))
    add(tmp_path, 1, group_of_three(1, limited_ms=5_000))
    add_decisions(
        tmp_path,
        [
            decision(0, "begun"),
            decision(1, "goes-on"),
            decision(7, "ended"),
            decision(8, "begun", since_ms=NOON + 8_000, times=1),
            decision(9, "flown"),
            {**dict.fromkeys(decision(0, "begun")), "broken": True, "__topic": "x", "published_ms": NOON},
        ],
    )
    store = open_store(directory_of(tmp_path), "parquet")
    day = next(iter(store.files(TOPIC_USAGE)))
    deriving: Deriving = (
        ArrowDeriving(store) if engine == "arrow" else SparkDeriving(request.getfixturevalue("spark"), store)
    )
    assert refresh(deriving, store, prices=of_toml(PRICES)) == [day]

    (first, second) = sorted(rows_of(tmp_path, "namespace_usage"), key=lambda row: row["minute"])
    assert (first["namespace"], first["topics"], first["published_bytes"]) == ("t/n", 3, 10_000)
    assert (second["topics"], second["published_bytes"]) == (3, 10_000)
    (noisy,) = rows_of(tmp_path, "noisy_neighbours")
    assert (noisy["topic"], noisy["minutes"], noisy["part"]) == ("persistent://t/n/loud", 1, 0.9)
    assert (noisy["resource_group"], noisy["published_bytes"], noisy["others"]) == ("gold", 9_000, 2)
    (fit,) = rows_of(tmp_path, "quota_fit")
    assert (fit["kind"], fit["quota"], fit["minutes"], fit["limited_minutes"]) == ("publish_bytes", 200.0, 2, 1)
    assert (fit["highest"], fit["fit"]) == (10_000 / 60, "small")
    done, open_one = sorted(rows_of(tmp_path, "throttle_episodes"), key=lambda row: row["since"])
    assert (done["ended"], done["times"], done["held_ms"]) == (True, 7, 70)
    assert (open_one["ended"], open_one["times"]) == (False, 1)
    (cost,) = [row for row in rows_of(tmp_path, "costs") if not row["unpriced"]]
    assert (cost["amount"], cost["cost"]) == (20_000, Decimal(100))
    assert sorted(row["reason"] for row in rows_of(tmp_path, "refused_records")) == ["not Avro", "unknown kind"]

    assert refresh(deriving, store, prices=of_toml(PRICES)) == []
    with pytest.raises(ConfigurationError, match="no price of published_bytes for t/n, which used 20,000"):
        refresh(
            deriving, store, prices=of_toml('[[price]]\ncounter = "dispatched_bytes"\nprice = 1'), strict_prices=True
        )
    assert refresh(deriving, store, prices=of_toml('[[price]]\ncounter = "dispatched_bytes"\nprice = 1')) == [day]
    (hole,) = rows_of(tmp_path, "costs")
    assert (hole["unpriced"], hole["cost"], hole["amount"]) == (True, None, 20_000)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_merged_files_mean_the_same(
    kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch, records in enumerate(minutes_of([5, 7, 12])):
        # The same minute, in three parts.
        moved = [{**one, "from_ms": NOON, "time_ms": NOON + MINUTE_MS} for one in records]
        add(tmp_path, batch, moved, kind=kind)
    add(tmp_path, 2, [record(99, 5, published_bytes=10**6)], kind=kind)  # repeated: it was done before
    store = open_store(directory_of(tmp_path), kind)
    day = next(iter(store.files(TOPIC_USAGE)))
    before = store.frame(spark, TOPIC_USAGE).groupBy("topic", "minute").sum("published_bytes").collect()
    assert [row["sum(published_bytes)"] for row in before] == [1_200]
    with monkeypatch.context() as patched:  # A day may have more rows than a driver can hold.
        patched.delattr(type(store.frame(spark, TOPIC_USAGE)), "toArrow")
        patched.setattr(derived, "MERGED_ROWS", 1)
        assert compact(spark, store, TOPIC_USAGE, day, files_max=2)
    assert not compact(spark, store, TOPIC_USAGE, day, files_max=2)
    # The first micro-batch closed the minute, so the others corrected it.
    (row, late) = store.frame(spark, TOPIC_USAGE).orderBy("late").collect()
    assert (row["published_bytes"], row["published_messages"], row["late"]) == (500, 5, False)
    assert (late["published_bytes"], late["published_messages"], late["day"]) == (700, 7, day)
    assert store.frame(spark, DECISIONS).count() == 0
    assert set(store.frame(spark, TOPIC_USAGE).columns) == {*(one.name for one in TABLES["topic_usage"].columns), "day"}


def test_all_records_at_once_have_the_same_sums(spark: SparkSession) -> None:
    first, second, third, fourth = minutes_of([5, 7, 12, 30])
    bad = [{**third[0], "published_bytes": -1}, {**third[0], "time_ms": 1 << 60}, {**third[0], "broker": None}]
    later = [record(0, 5, epoch=2, published_bytes=9_000), record(1, 6, topic="persistent://t/n/b", published_bytes=7)]
    records = [*fourth, *first, *first, *bad, *second, *later]  # the third is lost
    given = pa.Table.from_pylist(records, schema=RECORDS)
    found = find(given, SERIES_SCHEMA.empty_table()).to_pylist()
    expected: dict[tuple[str, int], int] = {}
    for row in found:
        if row["kind"] == "used" and row["scope"] == "topic":
            key = row["topic"], row["minute_ms"]
            expected[key] = expected.get(key, 0) + row["published_bytes"]
    rows = usage_of(spark.createDataFrame(given)).collect()
    sums: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row["topic"], round(row["minute"].timestamp() * 1_000)
        sums[key] = sums.get(key, 0) + row["published_bytes"]
    assert sums == expected
    assert sum(sums.values()) == 9_007
    assert rows[0].asDict().keys() == {one.name for one in TOPIC_USAGE.columns}


def test_rows_merged_in_process_have_the_sums_of_equal_names() -> None:
    groups: list[list[str]] = [[], ["gold"], ["gold", "silver"], ["gold"]]
    minute = datetime(2026, 11, 23, 12, tzinfo=UTC)
    rows = [
        {
            **{one.name: "x" if one.type == "string" else 1 for one in TOPIC_USAGE.columns},
            "minute": minute,
            "resource_groups": names,
            "late": False,
        }
        for names in groups
    ]
    found = merged(TOPIC_USAGE, pa.Table.from_pylist(rows, schema=arrow_schema(TOPIC_USAGE))).to_pylist()
    sums = {tuple(row["resource_groups"]): row["published_bytes"] for row in found}
    assert sums == {(): 1, ("gold",): 2, ("gold", "silver"): 1}


def test_a_day_is_merged_and_derived_by_quarters_of_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived_arrow, "FILES_PER_DAY_MAX", 2)
    minutes = (0, 14, 15, 150)  # of three quarters of an hour
    for batch, minute in enumerate(minutes):
        add(tmp_path, batch, group_of_three(minute, limited_ms=5_000 * (batch + 1)))
    store = open_store(directory_of(tmp_path), "parquet")
    (day,) = store.files(TOPIC_USAGE)
    parts = [part for part in store.quarter_hours(TOPIC_USAGE, day) if part.num_rows]
    assert [part.num_rows for part in parts] == [6, 3, 3]
    assert sorted(pa.concat_tables(parts).to_pylist(), key=str) == sorted(store.rows(TOPIC_USAGE).to_pylist(), key=str)

    refresh(ArrowDeriving(store), store)
    (merged_file,) = store.files(TOPIC_USAGE)[day]
    assert pq.ParquetFile(tmp_path / merged_file).num_row_groups == 3, "no more than a quarter of an hour was in memory"
    assert len(rows_of(tmp_path, "namespace_usage")) == len(minutes)
    (noisy,) = rows_of(tmp_path, "noisy_neighbours")
    assert (noisy["topic"], noisy["minutes"]) == ("persistent://t/n/loud", len(minutes))
