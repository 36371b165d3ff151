# SPDX-License-Identifier: Apache-2.0
"""The streams that turn records of brokers into tables.

Two queries, each with its checkpoint, read the usage records and the decision records through a durable subscription,
so that what was not read is not trimmed. Each micro-batch is given to the executors (`differing`), and what they find
is written by the driver (`batches`, `store`, `batch_state`).

Where: `penstock spark account`, or a program that has a SparkSession of its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.accounting.closing import ABSENT_AFTER_MS
from penstock.accounting.differences import BETWEEN
from penstock.accounting.records import DecisionRecord, UsageRecord, meanings_of
from penstock.spark.accounting.batch_state import BatchState, alone, counts_of, highest
from penstock.spark.accounting.batches import GOVERNANCE, USAGE, Batches
from penstock.spark.accounting.derived import SparkDeriving
from penstock.spark.accounting.differing import DECIDED, FIELDS, FOUND, SERIES_SCHEMA
from penstock.spark.accounting.differing_columns import find
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.late_workers import patiently
from penstock.spark.accounting.records_source import CORRUPT, READ
from penstock.spark.accounting.refreshing import refresh
from penstock.spark.accounting.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.accounting.tables import PriceList
    from penstock.spark.accounting.directory import Directory
    from penstock.spark.accounting.records_source import Source

Rows = Any  # pyarrow.Table; pyarrow has no types

# Of a micro-batch: executors hold about 2 KiB of each, and the driver 1 KiB of what they find.
RECORDS_PER_BATCH: Final = 200_000
REFRESH_S: Final = 600
_MEANINGS: Final = {USAGE: meanings_of(UsageRecord), GOVERNANCE: meanings_of(DecisionRecord)}
_TYPES: Final = {"strings": "array<string>"}  # those that Spark calls otherwise


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Makes tables of records. One process at a time may write the tables of a directory.

    Attributes:
        tables: the directory: a path of the driver's machine, or a URL that Spark's Hadoop drivers can write.
        kind: `parquet` or `delta`.
        records_per_batch: of a micro-batch.
        absent_after_ms: a broker that is this far behind the others is not waited for.
    """

    spark: SparkSession
    source: Source
    tables: Path | str
    kind: str = "parquet"
    records_per_batch: int = RECORDS_PER_BATCH
    absent_after_ms: int = ABSENT_AFTER_MS
    # A day is not compacted while a micro-batch is added to it.
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def directory(self) -> Directory:
        """Where the tables are. Raises ConfigurationError: there is no driver for its URL."""
        return directory_of(self.tables, self.spark)

    def run_once(self) -> dict[str, dict[str, int]]:
        """Read all records that there are; return what was counted so far, by kind of records.

        Raises:
            ConfigurationError: the tables cannot be written, or belong to another checkpoint.
            StreamingQueryException: a query failed; the next run goes on where it was.
        """
        with alone(self.directory):
            for kind in self.source.present():
                patiently(partial(self._run_once, kind))
            return self._counts()

    def _run_once(self, kind: str) -> None:
        self._start(kind, {"availableNow": True}).awaitTermination()

    def run(self, every: str = "1 minute", *, refreshed: Callable[[], object] = lambda: None) -> None:
        """Read records as they come, until the queries are stopped or one fails.

        Args:
            every: how often a micro-batch is begun.
            refreshed: called every ten minutes, perhaps to call `refresh`.
        """
        with alone(self.directory):
            patiently(lambda: self._run(every, refreshed))

    def _run(self, every: str, refreshed: Callable[[], object]) -> None:
        self.spark.streams.resetTerminated()
        queries = [self._start(kind, {"processingTime": every}) for kind in self.source.present()]
        try:
            while not self.spark.streams.awaitAnyTermination(REFRESH_S):
                refreshed()
        finally:
            for query in queries:
                query.stop()
        for query in queries:
            query.awaitTermination()

    def refresh(self, *, prices: PriceList | None = None, strict_prices: bool = False) -> list[str]:
        """Make derived tables anew for the days that have changed; return these. Raises ConfigurationError."""
        with alone(self.directory), self._writing:
            store = open_store(self.directory, self.kind)
            return refresh(SparkDeriving(self.spark, store), store, prices=prices, strict_prices=strict_prices)

    def _counts(self) -> dict[str, dict[str, int]]:
        return counts_of(self.directory, self.source.topics)

    def _start(self, kind: str, trigger: dict[str, Any]) -> StreamingQuery:
        options = self.source.read_options(kind, self.records_per_batch)
        ours = Query(self, kind)
        # A driver that was killed while it wrote its first offsets leaves a file, at which Spark 4.3 would stop.
        self.spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        stream = self.spark.readStream.format("pulsar").options(**options).load()
        writer = stream.writeStream.foreachBatch(ours.add).queryName(f"accounting-{kind}")
        checkpoint = self.directory.url_of(ours.checkpoint)
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


class Query:
    """The micro-batches of one query, added to the tables."""

    def __init__(self, accounting: Accounting, kind: str) -> None:
        self.checkpoint = f"_checkpoints/{kind}"
        self._spark = accounting.spark
        self._writing = accounting._writing  # noqa: SLF001
        self._kind = kind
        self._directory = accounting.directory
        state = BatchState(self._directory, kind)
        store = open_store(self._directory, accounting.kind)
        self._batches = Batches(kind, state, store, accounting.absent_after_ms)

    def add(self, records: DataFrame, batch: int) -> None:
        """Add a micro-batch, if it was not added before."""
        query = self._directory.document(f"{self.checkpoint}/metadata")
        assert query is not None, "Spark writes it before the first micro-batch"
        if not self._batches.state.begins(batch, query["id"]):
            return
        records = _with_all_fields(records, self._kind)
        if self._kind == USAGE:
            found = self._found(records)
            with self._writing:
                self._batches.add_usage(batch, found)
        else:
            broken = f.col(CORRUPT).isNotNull().alias("broken")
            published = f.unix_millis("__publishTime").alias("published_ms")
            rows = records.select(*DECIDED, "__topic", published, broken).toArrow()
            with self._writing:
                self._batches.add_decisions(batch, rows)

    def _found(self, records: DataFrame) -> Rows:
        spark = self._spark
        # Executors need not reach the directory, and it may be one of this machine.
        before = spark.createDataFrame(highest(self._batches.state.highest()), from_arrow_schema(SERIES_SCHEMA))
        parts = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
        given = records.select(
            _part(parts, f.col("broker"), f.col("scope"), _name(), f.col("counters_since_ms")),
            *FIELDS,
            "__topic",
            f.unix_millis("__publishTime").alias("published_ms"),
            f.col(CORRUPT).isNotNull().alias("broken"),
        )
        known = before.select(
            _part(parts, f.col("broker"), f.col("scope"), f.col("name"), f.col("since_ms")), *SERIES_SCHEMA.names
        )
        grouped = given.groupBy("_part").cogroup(known.groupBy("_part"))
        return grouped.applyInArrow(find, from_arrow_schema(FOUND)).toArrow()


def _with_all_fields(records: DataFrame, kind: str) -> DataFrame:
    """Add the fields that records of an earlier version do not have; they are null."""
    missing = {name: _MEANINGS[kind][name].type.rstrip("?") for name in READ[kind] if name not in records.columns}
    return records.withColumns({name: f.lit(None).cast(_TYPES.get(kind, kind)) for name, kind in missing.items()})


def _name() -> Column:
    """The same as `differences.name_of`."""
    between = [f.coalesce(f.col(name), f.lit("")) for name in ("namespace", "role", "subscription")]
    scope = f.col("scope")
    named = f.when(scope == "topic", f.col("topic")).when(scope == "group", f.element_at("resource_groups", 1))
    return named.when(scope == "principal", f.concat_ws(BETWEEN, *between)).when(scope == "namespace", between[0])


def _part(parts: int, broker: Column, scope: Column, name: Column, since_ms: Column) -> Column:
    """The part that a series belongs to. Without a name it is null in records, and empty in what is remembered."""
    return f.pmod(f.xxhash64(broker, scope, f.coalesce(name, f.lit("")), since_ms), f.lit(parts)).alias("_part")
