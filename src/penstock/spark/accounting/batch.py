# SPDX-License-Identifier: Apache-2.0
"""The tables of usage from all records at once, as one query without memory.

Why: a declarative pipeline makes a table from another one, and accepts no Python functions for it. So this says in
columns what `penstock.accounting.differences` says; a test compares the sums. One thing is simpler: what was used in an
interval of several minutes is put in the last of them.

Where: the pipeline of docs/guide/accounting.md, and users with records in a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from penstock.accounting.differences import (
    CLOSE_MS,
    COUNTER_MAX,
    COUNTERS,
    LONG_MS,
    MINUTE_MS,
    OPTIONAL,
    TIME_MS_MAX,
    TIME_MS_MIN,
)
from penstock.accounting.tables import BROKER_USAGE, GROUP_USAGE, SCHEMA_VERSION, TOPIC_USAGE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.accounting.tables import Table

_SCOPES: Final = {TOPIC_USAGE.name: "topic", GROUP_USAGE.name: "group", BROKER_USAGE.name: "broker"}


def usage_of(records: DataFrame, table: Table = TOPIC_USAGE) -> DataFrame:
    """Return `topic_usage`, `group_usage` or `broker_usage` of usage records; nothing is late.

    Args:
        records: the columns of a usage record, as the Spark source reads them.
        table: which.
    """
    scope = _SCOPES[table.name]
    name = {"topic": f.col("topic"), "group": f.element_at(f.col("resource_groups"), 1), "broker": f.lit("")}[scope]
    given = records.where(f.col("scope") == scope).where(_is_good())
    of_series = Window.partitionBy("broker", name, "counters_since_ms").orderBy("epoch", "sequence")
    before = of_series.rowsBetween(Window.unboundedPreceding, -1)
    counters = {one: f.coalesce(f.col(one), f.lit(0)) for one in COUNTERS}
    used = {
        one: f.greatest(f.lit(0), counter - f.coalesce(f.max(counter).over(before), f.lit(0))).cast("long").alias(one)
        for one, counter in counters.items()
    }
    over = f.col("time_ms") % MINUTE_MS
    is_close = (f.col("time_ms") - f.col("from_ms") >= LONG_MS) & (over <= CLOSE_MS)
    last = f.greatest(f.col("from_ms"), f.col("time_ms") - f.when(is_close, over).otherwise(0) - 1)
    columns: dict[str, Column] = {
        **used,
        "minute": f.timestamp_millis(last - last % MINUTE_MS).alias("minute"),
        "resource_group": name.alias("resource_group"),
        "late": f.lit(False).alias("late"),
        "version": f.lit(SCHEMA_VERSION).cast("long").alias("version"),
    }
    rows = given.select(*(columns.get(one.name, f.col(one.name)) for one in table.columns))
    used_here = [one.name for one in table.columns if one.name in COUNTERS]
    return rows.where(f.greatest(*used_here) > 0)


def _is_good() -> Column:
    """The same as `differences.fault_of`; a record that has a null where there may be none is not good either."""
    good = (f.col("epoch") >= 0) & (f.col("sequence") >= 0) & (f.col("broker") != "")
    good &= f.col("from_ms").between(TIME_MS_MIN, f.col("time_ms")) & (f.col("time_ms") < TIME_MS_MAX)
    for one in COUNTERS:
        value = f.coalesce(f.col(one), f.lit(0)) if one in OPTIONAL else f.col(one)
        good &= value.between(0, COUNTER_MAX - 1)
    return good
