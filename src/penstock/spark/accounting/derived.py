# SPDX-License-Identifier: Apache-2.0
"""Tables that follow from others, with Spark: usage of namespaces, episodes, noisy neighbours, quota fit.

Each function is from table to table; one row for each namespace and minute, episode, topic or group at most is
collected. `derived_arrow` has the same in this process; a test compares both.

Where: `refreshing` asks `SparkDeriving` for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from penstock.accounting.tables import (
    DAY,
    DECISIONS,
    GROUP_USAGE,
    KINDS,
    NAMESPACE_USAGE,
    NOISY_NEIGHBOURS,
    QUOTA_FIT,
    TOPIC_USAGE,
    USED,
)
from penstock.spark.accounting.schemas import arrow_schema, fitted
from penstock.spark.accounting.store import FILES_PER_DAY_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.accounting.tables import Table
    from penstock.spark.accounting.directory import Directory
    from penstock.spark.accounting.store import Store

COUNTERS: Final = USED
SECONDS_PER_MINUTE: Final = 60.0
# A topic that used this part of what its limited group published is a noisy neighbour.
NOISY_PART: Final = 0.25
# Of minutes in which something waited: more, and the quota is called small.
LIMITED_PART: Final = 0.01
AMPLE_PART: Final = 0.5
# Rows of a part of a file that is merged, some 20 MB.
MERGED_ROWS: Final = 100_000
_MERGED: Final = "_state/merged"


def namespace_usage(topics: DataFrame) -> DataFrame:
    """Add up `topic_usage` by minute, tenant and namespace."""
    sums = [f.sum(name).alias(name) for name in COUNTERS]
    return topics.groupBy("minute", "tenant", "namespace").agg(f.countDistinct("topic").alias("topics"), *sums)


def episodes(decisions: DataFrame) -> DataFrame:
    """Return one row for each episode of `decisions`: its last record says how often and how long."""
    who = ("broker", "epoch", "limiter", "reason", "tenant", "namespace", "topic", "resource_group", "client", "since")
    last = f.max(f.struct("sequence", "at", "times", "held_ms", "observed_only", "kind")).alias("last")
    of_episodes = decisions.where(f.col("kind") != "changed").groupBy(*who).agg(last)
    return of_episodes.select(
        "*",
        f.col("last.at").alias("until"),
        f.col("last.kind").isin("ended", "refused").alias("ended"),
        *(f.col(f"last.{name}").alias(name) for name in ("times", "held_ms", "observed_only")),
    ).drop("last", "epoch")


def noisy_neighbours(topics: DataFrame, groups: DataFrame) -> DataFrame:
    """Return topics that used a quarter or more of what their group published while it was limited."""
    limited = (
        groups.groupBy("minute", "resource_group")
        .agg(f.sum("publish_limited_ms").alias("limited"))
        .where("limited > 0")
        .select("minute", "resource_group")
    )
    used = (
        topics.select(
            "minute", "tenant", "topic", "published_bytes", f.explode("resource_groups").alias("resource_group")
        )
        .groupBy("minute", "resource_group", "tenant", "topic")
        .agg(f.sum("published_bytes").alias("published_bytes"))
        .where("published_bytes > 0")
        .join(limited, ["minute", "resource_group"])
    )
    of_group = Window.partitionBy("minute", "resource_group")
    together = used.withColumn("all", f.sum("published_bytes").over(of_group)).withColumn(
        "others", f.count("*").over(of_group) - 1
    )
    loud = together.where((f.col("published_bytes") >= NOISY_PART * f.col("all")) & (f.col("others") > 0))
    return loud.groupBy("resource_group", "tenant", "topic").agg(
        f.count("*").alias("minutes"),
        f.sum("published_bytes").alias("published_bytes"),
        (f.sum("published_bytes") / f.sum("all")).alias("part"),
        f.max("others").alias("others"),
    )


def quota_fit(groups: DataFrame) -> DataFrame:
    """Compare what each group used, minute by minute, with its quota."""
    sums = [f.sum(name).alias(name) for name in COUNTERS]
    waits = [f.sum(f"{one}_limited_ms").alias(f"{one}_limited_ms") for one in ("publish", "dispatch")]
    quotas = [_last(f"quota_{kind}") for kind in KINDS]
    minutes = groups.groupBy("minute", "resource_group").agg(*sums, *waits, *quotas)
    found: DataFrame | None = None
    for kind, counter in zip(KINDS, COUNTERS, strict=True):
        rate = f.col(counter) / SECONDS_PER_MINUTE
        limited = f.count_if(f.col(f"{kind.split('_')[0]}_limited_ms") > 0)
        quota = f.max_by(f"quota_{kind}", "minute")
        of_kind = minutes.groupBy("resource_group").agg(
            f.lit(kind).alias("kind"),
            quota.alias("quota"),
            f.count("*").alias("minutes"),
            f.avg(rate).alias("mean"),
            f.percentile(rate, 0.99).alias("p99"),
            f.max(rate).alias("highest"),
            limited.alias("limited_minutes"),
        )
        of_kind = of_kind.where(f.col("quota").isNotNull())
        found = of_kind if found is None else found.unionByName(of_kind)
    assert found is not None
    small = f.col("limited_minutes") > LIMITED_PART * f.col("minutes")
    ample = f.col("highest") < AMPLE_PART * f.col("quota")
    return found.withColumn("fit", f.when(small, "small").when(ample, "ample").otherwise("fits"))


def _last(name: str) -> Column:
    """The quota of a minute, of which brokers may have heard at different times."""
    return f.max(name).alias(name)


class SparkDeriving:
    """Makes derived tables, and merges small files, with Spark."""

    def __init__(self, spark: SparkSession, store: Store) -> None:
        self._spark = spark
        self._store = store

    def usage(self, day: str) -> dict[Table, Any]:
        """Return the tables of a day that follow from usage."""
        topics = self._store.frame(self._spark, TOPIC_USAGE, [day]).drop(DAY)
        groups = self._store.frame(self._spark, GROUP_USAGE, [day]).drop(DAY)
        return {
            NAMESPACE_USAGE: namespace_usage(topics).toArrow(),
            NOISY_NEIGHBOURS: noisy_neighbours(topics, groups).toArrow(),
            QUOTA_FIT: quota_fit(groups).toArrow(),
        }

    def episodes(self, days: Collection[str], of_day: str) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return the episodes that began on a day, from the decisions of some days."""
        decisions = self._store.frame(self._spark, DECISIONS, days).drop(DAY)
        return episodes(decisions.where(f.date_format("since", "yyyy-MM-dd") == of_day)).toArrow()

    def compact(self, table: Table, day: str) -> None:
        """Make one file of a day's many small ones."""
        compact(self._spark, self._store, table, day)


def compact(spark: SparkSession, store: Store, table: Table, day: str, *, files_max: int = FILES_PER_DAY_MAX) -> bool:
    """Make one file of a day's small ones; rows with an equal key become one. Return whether there were many."""
    files = store.files(table).get(day, [])
    if len(files) <= files_max:
        return False
    rows = store.frame(spark, table, [day]).drop(DAY)
    if table.key:
        sums = [f.sum(one.name).alias(one.name) for one in table.columns if one.name not in table.key]
        # Without sums the key is all there is: repeated rows become one.
        rows = rows.groupBy(*table.key).agg(*sums) if sums else rows.distinct()
        rows = rows.orderBy(*table.key[:2])
    # By way of files: a day of 10,000 topics has 14 million rows, too many for a driver.
    try:
        rows.write.mode("overwrite").parquet(store.directory.url_of(_MERGED))
        store.compact(table, day, _read_back(table, store.directory), files)
    finally:
        store.directory.delete_all(_MERGED)
    return True


def _read_back(table: Table, directory: Directory) -> Any:  # noqa: ANN401 - pyarrow.RecordBatchReader
    """Read what Spark has written, in its order, a part at a time."""
    rows = directory.dataset([name for name in directory.sizes(_MERGED) if "/part-" in name])
    parts = rows.to_batches(batch_size=MERGED_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False)
    fitting = (batch for part in parts for batch in fitted(table, pa.Table.from_batches([part])).to_batches())
    return pa.RecordBatchReader.from_batches(arrow_schema(table), fitting)
