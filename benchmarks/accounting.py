# SPDX-License-Identifier: Apache-2.0
"""What accounting takes: time, memory and files, on local[2] or a cluster.

    python -m benchmarks.accounting scale              1,000 to 100,000 resource groups × 100 brokers
    python -m benchmarks.accounting day                10,000 topics × a day of minutes into tables
    python -m benchmarks.accounting day --engine arrow the same from a broker, without Spark, by the hour
    python -m benchmarks.accounting live               a run with 10 tenants, 3 groups, throttling and restarts

`live` starts a broker, publishes as ten tenants under three quotas, kills and restarts the broker and the driver, and
compares the tables with the broker's counters, to the byte. Then it halves a quota, measures, and compares with what
the replay has predicted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

MIB: Final = 1 << 20


def main() -> int:
    """Run one load; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=("scale", "day", "live"))
    parser.add_argument("--master", help="of a Spark cluster")
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--minutes", type=int, default=0, help="scale: 2, day: 1440, live: 2")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--engine", choices=("spark", "arrow"), default="spark", help="day: what makes the tables")
    arguments = parser.parse_args()
    if (arguments.load, arguments.engine) == ("day", "arrow"):
        from benchmarks.accounting_day import day

        return day(arguments.topics, arguments.minutes or 1_440)
    from benchmarks.accounting_live import live
    from penstock.spark.session import local_session

    spark = local_session("accounting", master=arguments.master, settings={"spark.driver.memory": "2g"})
    try:
        return {"scale": _scale, "day": _day, "live": live}[arguments.load](spark, arguments)
    finally:
        spark.stop()


class Memory:
    """The most that this process and all its children had in memory together."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, sum(_rss_bytes(pid) for pid in _family(os.getpid())))
            if self._stop.wait(2):  # Each look at a virtual machine of Java takes 20 ms.
                return


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))
    except OSError:
        return


def _rss_bytes(pid: int) -> int:
    """Memory of a process; pages that a fork shares count once for each, by their part."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


# -- 100,000 groups ----------------------------------------------------------------------------------------------------


def _scale(spark: SparkSession, arguments: argparse.Namespace) -> int:
    from penstock.spark.accounting.scale import simulate

    minutes = arguments.minutes or 2
    simulate(spark, 100, brokers=arguments.brokers, minutes=1)  # workers start
    print(f"{'groups':>8} {'time':>9} {'per group':>11} {'memory':>10} {'limited':>8} {'passed':>7} {'fairness':>8}")
    for groups in arguments.groups:
        with Memory() as memory:
            began = time.monotonic()
            totals = simulate(spark, groups, brokers=arguments.brokers, minutes=minutes)
            elapsed_s = time.monotonic() - began
        print(
            f"{groups:>8,} {elapsed_s:>7.1f} s {elapsed_s / groups * 1e3:>8.2f} ms "
            f"{memory.peak_bytes / MIB:>6,.0f} MiB "
            f"{totals.limited / totals.minutes:>8.1%} {totals.passed / totals.wanted:>7.1%} "
            f"{totals.fairness / totals.minutes:>8.4f}",
            flush=True,
        )
    return 0


# -- a day of 10,000 topics --------------------------------------------------------------------------------------------


def _day(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Micro-batches as the Spark source would give them, of records that executors make up."""
    from penstock.accounting.tables import BASE, DERIVED
    from penstock.spark.accounting.batches import USAGE
    from penstock.spark.accounting.records_source import Source
    from penstock.spark.accounting.stream import Accounting, Query

    minutes, topics = arguments.minutes or 1_440, arguments.topics
    per_batch = max(1, 200_000 // topics)
    with tempfile.TemporaryDirectory(prefix="penstock-accounting-") as scratch, Memory() as memory:
        tables = Path(scratch) / "tables"
        accounting = Accounting(spark=spark, source=Source(url="pulsar://none"), tables=tables)
        query = Query(accounting, USAGE)
        query.checkpoint.mkdir(parents=True)
        (query.checkpoint / "metadata").write_text('{"id":"made up"}', encoding="utf-8")
        began = time.monotonic()
        for batch, first in enumerate(range(0, minutes, per_batch)):
            query.add(_made_up(spark, topics, range(first, min(minutes, first + per_batch))), batch)
        added_s = time.monotonic() - began
        files = {table.name: len(list((tables / table.name).rglob("*.parquet"))) for table in BASE}
        accounting.refresh()
        all_s = time.monotonic() - began
        after = {table.name: len(list((tables / table.name).rglob("*.parquet"))) for table in (*BASE, *DERIVED)}
        nbytes = sum(path.stat().st_size for path in tables.rglob("*.parquet"))
        used = {
            table: spark.read.parquet(str(tables / table)).groupBy().sum("published_bytes").collect()[0][0]
            for table in ("topic_usage", "broker_usage")
        }
    records = minutes * topics
    print(f"{records:,} records of {topics:,} topics in {added_s:.0f} s: {records / added_s:,.0f} records/s")
    print(f"derived tables and merged files after {all_s - added_s:.0f} s; memory {memory.peak_bytes / MIB:,.0f} MiB")
    print(f"files {files}, then {after}, {nbytes / MIB:,.0f} MiB")
    right = set(used.values()) == {1_000 * records}
    print("sums are right" if right else f"WRONG: bytes {used}, want {1_000 * records}")
    return 0 if right else 1


def _made_up(spark: SparkSession, topics: int, minutes: range) -> DataFrame:
    from pyspark.sql import functions as f

    from penstock.accounting.differences import COUNTERS
    from penstock.spark.accounting.differing import RATES

    start = 1_800_000_000_000 // 86_400_000 * 86_400_000
    rows = spark.range(minutes.start * (topics + 1), minutes.stop * (topics + 1), numPartitions=2)
    minute, number = f.floor(f.col("id") / (topics + 1)), f.col("id") % (topics + 1)
    is_topic = number < topics
    used = f.when(is_topic, (minute + 1) * 1_000).otherwise((minute + 1) * 1_000 * topics).cast("long")
    tenant = f.when(is_topic, f.concat(f.lit("tenant-"), number % 100)).otherwise("")
    namespace = f.when(is_topic, f.concat(f.lit("tenant-"), number % 100, f.lit("/namespace"))).otherwise("")
    counters = [(used if name == "published_bytes" else f.lit(0)).cast("long").alias(name) for name in COUNTERS]
    return rows.select(
        f.lit(1).cast("long").alias("version"),
        f.lit("broker-0").alias("broker"),
        f.lit(1).cast("long").alias("epoch"),
        f.col("id").alias("sequence"),
        (f.lit(start) + minute * 60_000).alias("from_ms"),
        (f.lit(start) + minute * 60_000 + 60_000).alias("time_ms"),
        f.when(is_topic, "topic").otherwise("broker").alias("scope"),
        f.lit(start).alias("counters_since_ms"),
        tenant.alias("tenant"),
        namespace.alias("namespace"),
        f.when(is_topic, f.concat(f.lit("persistent://"), namespace, f.lit("/topic-"), number))
        .otherwise("")
        .alias("topic"),
        f.array().cast("array<string>").alias("resource_groups"),
        *counters,
        *(f.lit(None).cast("double").alias(name) for name in RATES),
        f.lit(None).cast("binary").alias("_corrupt_record"),
        f.lit("persistent://pulsar/system/usage-partition-0").alias("__topic"),
        f.timestamp_millis(f.lit(start) + minute * 60_000 + 60_000).alias("__publishTime"),
    )


if __name__ == "__main__":
    sys.exit(main())
