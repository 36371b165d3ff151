# SPDX-License-Identifier: Apache-2.0
"""Micro-batches whose records and remembered counters Spark divides among tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from penstock.accounting.tables import BROKER_USAGE, GROUP_USAGE, TOPIC_USAGE
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.batch_state import BatchState
from penstock.spark.accounting.batches import USAGE
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.records_source import Source
from penstock.spark.accounting.store import existing_store
from penstock.spark.accounting.stream import Accounting, Query
from tests.spark.accounted import RECORDS, Record, record, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BROKERS = [f"broker-{number}" for number in range(24)]


def names_of(number: int) -> dict[str, Record]:
    """Members of a broker's records, by scope; its own have no names: they are empty, or null."""
    own: Record = {"tenant": None, "namespace": None, "topic": None} if number % 2 else {}
    return {"topic": {}, "group": {"resource_groups": [f"group-{number}"]}, "broker": own}


def micro_batch(spark: SparkSession, minute: int) -> DataFrame:
    """What the Spark source gives: of every broker a topic, a group and the broker itself, which use 100 a minute."""
    used = 100 * (minute + 1)
    rows = [
        record(3 * minute + place, minute, scope, broker=broker, published_messages=used, **more)
        for number, broker in enumerate(BROKERS)
        for place, (scope, more) in enumerate(names_of(number).items())
    ]
    given = spark.createDataFrame(pa.Table.from_pylist(rows, schema=RECORDS))
    published, corrupt = f.timestamp_millis("published_ms"), f.lit(None).cast("string")
    return given.withColumns({"__publishTime": published, "_corrupt_record": corrupt})


def begin_checkpoint(tables: Path, query: Query) -> None:
    directory_of(tables).note(f"{query.checkpoint}/metadata", {"id": "made up"})


def test_records_of_an_earlier_version_have_fewer_fields(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(Accounting(spark=spark, source=Source(url="pulsar://none"), tables=tmp_path), USAGE)
    begin_checkpoint(tmp_path, query)

    query.add(micro_batch(spark, 0).drop("needed_publish_messages", "held_publish_bytes"), 0)

    rows = rows_of(tmp_path, "group_usage")
    assert {(row["published_messages"], row["needed_publish_messages"]) for row in rows} == {(100, None)}


def test_counters_that_are_remembered_are_given_to_the_task_that_has_their_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(Accounting(spark=spark, source=Source(url="pulsar://none"), tables=tmp_path), USAGE)
    begin_checkpoint(tmp_path, query)

    for batch in range(3):
        query.add(micro_batch(spark, batch), batch)

    for table in ("topic_usage", "group_usage", "broker_usage"):
        found = [(row["broker"], row["minute"].minute, row["published_messages"]) for row in rows_of(tmp_path, table)]
        assert sorted(found) == sorted((broker, minute, 100) for broker in BROKERS for minute in range(3)), table


def test_tables_at_a_url_are_written_by_a_driver_of_hadoop_and_read_by_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A scheme of Hadoop that is neither a path nor known to Arrow.
    spark._jsc.hadoopConfiguration().set("fs.pfile.impl", "org.apache.hadoop.fs.ProxyLocalFileSystem")  # noqa: SLF001
    accounting = Accounting(spark=spark, source=Source(url="pulsar://none"), tables=f"pfile://{tmp_path}/tables")
    directory = accounting.directory
    query = Query(accounting, USAGE)
    directory.note(f"{query.checkpoint}/metadata", {"id": "made up"})
    for batch in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(BatchState, "done", killed)
            with pytest.raises(RuntimeError, match="killed"):
                query.add(micro_batch(spark, batch), batch)
        query = Query(accounting, USAGE)  # the next driver: Spark repeats the micro-batch
        query.add(micro_batch(spark, batch), batch)

    assert len(accounting.refresh()) == 1
    store = existing_store(directory)
    for table in (TOPIC_USAGE, GROUP_USAGE, BROKER_USAGE):
        rows = store.frame(spark, table).collect()
        found = [(row["broker"], row["minute"].minute, row["published_messages"]) for row in rows]
        assert sorted(found) == sorted((broker, minute, 100) for broker in BROKERS for minute in range(3)), table.name
        assert [len(files) for files in store.files(table).values()] == [3]
    with pytest.raises(ConfigurationError, match="no-such-scheme://host/tables: Spark has no Hadoop driver for it"):
        directory_of("no-such-scheme://host/tables", spark)


def killed(*_: object) -> None:
    raise RuntimeError("killed")
