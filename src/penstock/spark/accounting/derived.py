# SPDX-License-Identifier: Apache-2.0
"""Tables that follow from others, day by day: usage of namespaces, episodes, noisy neighbours, quota fit, costs.

Why apart from the stream: they are no sums of what micro-batches add. A day is made anew when its files have changed,
also by records that came late, so nothing has to be corrected. Each function is from table to table, and collects one
row for each namespace and minute, episode, topic or group at most.

Where: `penstock spark account` calls `refresh` after it has read what there is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from penstock.accounting.prices import PRICED
from penstock.accounting.tables import (
    BASE,
    COSTS,
    DAY,
    DECISIONS,
    EPISODES,
    GROUP_USAGE,
    KINDS,
    NAMESPACE_USAGE,
    NOISY_NEIGHBOURS,
    QUOTA_FIT,
    SCHEMA_VERSION,
    TOPIC_USAGE,
)
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.schemas import arrow_schema
from penstock.spark.accounting.store import FILES_PER_DAY_MAX, put_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.accounting.prices import PriceList
    from penstock.accounting.tables import Table
    from penstock.spark.accounting.store import Store

COUNTERS: Final = PRICED
SECONDS_PER_MINUTE: Final = 60.0
# A topic that used this part of what its limited group published is a noisy neighbour.
NOISY_PART: Final = 0.25
# Of minutes in which something waited: more, and the quota is called small.
LIMITED_PART: Final = 0.01
AMPLE_PART: Final = 0.5
# Rows of a part of a file that is merged, some 20 MB.
MERGED_ROWS: Final = 100_000


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


def costs(namespaces: Any, prices: PriceList, *, strict: bool) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return rows of the table `costs` for a day of `namespace_usage`, an Arrow table.

    Raises:
        ConfigurationError: there is a hole in the price list, and `strict`.
    """
    sums = namespaces.group_by(["tenant", "namespace"]).aggregate([(name, "sum") for name in PRICED])
    rows = []
    for used in sums.sort_by("namespace").to_pylist():
        for counter in PRICED:
            amount = used[f"{counter}_sum"]
            if not amount:
                continue
            price = prices.price(counter, used["tenant"], used["namespace"])
            if price is None and strict:
                raise ConfigurationError(
                    f"the price list has no price of {counter} for {used['namespace']}, which used {amount:,}"
                )
            rows.append(
                {
                    "tenant": used["tenant"],
                    "namespace": used["namespace"],
                    "counter": counter,
                    "amount": amount,
                    "price": price.price if price else None,
                    "per": price.per if price else None,
                    "cost": prices.cost(counter, amount, used["tenant"], used["namespace"]),
                    "currency": prices.currency,
                    "unpriced": price is None,
                }
            )
    return rows


def refresh(
    spark: SparkSession, store: Store, *, prices: PriceList | None = None, strict_prices: bool = False
) -> list[str]:
    """Make derived tables anew for days that have changed, and merge small files; return these days.

    Raises:
        ConfigurationError: the price list has a hole, with `strict_prices`.
    """
    note = store.directory / "_state" / "derived.json"
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    files = {table.name: store.files(table) for table in BASE}
    said = "" if prices is None else repr(sorted(map(repr, prices.all)))
    days = sorted({day for of_table in files.values() for day in of_table})
    changed = []
    for day in days:
        mark = _mark([path for of_table in files.values() for path in of_table.get(day, [])], said)
        if known.get(day) == mark:
            continue
        changed.append(day)
        for table in BASE:
            compact(spark, store, table, day)
        _derive(spark, store, day, prices, strict=strict_prices)
        known[day] = _mark([path for table in BASE for path in store.files(table).get(day, [])], said)
        unfinished = note.with_name("_derived")
        unfinished.write_text(json.dumps(known), encoding="utf-8")
        put_in_place(unfinished, note)
    return changed


def _derive(spark: SparkSession, store: Store, day: str, prices: PriceList | None, *, strict: bool) -> None:
    topics = store.frame(spark, TOPIC_USAGE, [day]).drop(DAY)
    groups = store.frame(spark, GROUP_USAGE, [day]).drop(DAY)
    makers: Mapping[Table, Callable[[], DataFrame]] = {
        NAMESPACE_USAGE: lambda: namespace_usage(topics),
        NOISY_NEIGHBOURS: lambda: noisy_neighbours(topics, groups),
        QUOTA_FIT: lambda: quota_fit(groups),
    }
    made = {table: fitted(table, make().toArrow()) for table, make in makers.items()}
    if prices is not None:
        priced = costs(made[NAMESPACE_USAGE], prices, strict=strict)
        rows = [{**row, "version": SCHEMA_VERSION} for row in priced]
        made[COSTS] = pa.Table.from_pylist(rows, schema=arrow_schema(COSTS))
    for table, rows in made.items():
        store.replace(table, day, rows)
    # An episode belongs to the day on which it began; later records of it are of that day and the next one.
    since = f.date_format("since", "yyyy-MM-dd")
    for of_day in (_day_before(day), day):
        known = [one for one in (of_day, _day_after(of_day)) if one in store.files(DECISIONS)]
        if known:
            found = episodes(store.frame(spark, DECISIONS, known).drop(DAY).where(since == of_day))
            store.replace(EPISODES, of_day, fitted(EPISODES, found.toArrow()))


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
    merged = store.directory / "_state" / "_merging"
    try:
        rows.write.mode("overwrite").parquet(str(merged))
        store.compact(table, day, _read_back(table, merged), files)
    finally:
        shutil.rmtree(merged, ignore_errors=True)
    return True


def _read_back(table: Table, directory: Path) -> Any:  # noqa: ANN401 - pyarrow.RecordBatchReader
    """Read what Spark has written, in its order, a part at a time."""
    rows = ds.dataset([str(path) for path in sorted(directory.glob("part-*.parquet"))], format="parquet")
    parts = rows.to_batches(batch_size=MERGED_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False)
    fitting = (batch for part in parts for batch in fitted(table, pa.Table.from_batches([part])).to_batches())
    return pa.RecordBatchReader.from_batches(arrow_schema(table), fitting)


def fitted(table: Table, rows: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return rows with the columns of a table, in their order."""
    if "version" not in rows.column_names:
        rows = rows.append_column("version", pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int64()), rows.num_rows))
    schema = arrow_schema(table)
    return pa.table([rows[one.name].cast(one.type) for one in schema], schema=schema)


def _mark(files: list[Path], said: str) -> str:
    """Identify what a day was made of."""
    names = "\n".join(sorted(f"{path.parent.parent.name}/{path.name} {path.stat().st_size}" for path in files))
    return hashlib.sha256(f"{names}\n{said}".encode()).hexdigest()


def _day_before(day: str) -> str:
    return str(date.fromisoformat(day) - timedelta(days=1))


def _day_after(day: str) -> str:
    return str(date.fromisoformat(day) + timedelta(days=1))
