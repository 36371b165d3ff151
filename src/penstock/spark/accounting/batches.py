# SPDX-License-Identifier: Apache-2.0
"""Adds to the tables what was found in a micro-batch, once, and notes it.

Where: `stream` calls it on the driver. It knows no Spark, so tests kill it at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.closing import Heard, Progresses, advance, fault_of_decision, with_version
from penstock.accounting.tables import (
    BROKER_USAGE,
    CLOSED_MINUTES,
    DECISIONS,
    GROUP_USAGE,
    PRINCIPAL_USAGE,
    REFUSED_RECORDS,
    SCHEMA_VERSION,
    STORAGE_USAGE,
    TOPIC_USAGE,
)
from penstock.spark.accounting.differing import SERIES_SCHEMA
from penstock.spark.accounting.schemas import arrow_schema
from penstock.spark.accounting.store import by_day

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.accounting.closing import Closed
    from penstock.accounting.tables import Table
    from penstock.spark.accounting.batch_state import BatchState
    from penstock.spark.accounting.store import Store

Rows = Any  # pyarrow.Table; pyarrow has no types

USAGE: Final = "usage"
TABLES_OF_SCOPES: Final[Mapping[Table, str]] = {
    TOPIC_USAGE: "topic",
    GROUP_USAGE: "group",
    PRINCIPAL_USAGE: "principal",
    STORAGE_USAGE: "namespace",
    BROKER_USAGE: "broker",
}
GOVERNANCE: Final = "governance"


class Batches:
    """Adds the micro-batches of one query to the tables."""

    def __init__(self, kind: str, state: BatchState, store: Store, absent_after_ms: int) -> None:
        self.state = state
        self._kind = kind
        self._store = store
        self._absent_after_ms = absent_after_ms

    def add_usage(self, batch: int, found: Rows) -> None:
        """Add what `differing.find` has found in all parts of a micro-batch."""
        state = self.state
        kinds = {kind: found.filter(pc.equal(found["kind"], kind)) for kind in ("used", "series", "heard", "refused")}
        progress, closed = advance(state.progress, _heard(kinds["heard"]), absent_after_ms=self._absent_after_ms)
        used = _with_late(kinds["used"], state.progress.closed_ms)
        for table, scope in TABLES_OF_SCOPES.items():
            rows = used.filter(pc.equal(used["scope"], scope))
            if scope == "group":
                rows = rows.append_column("resource_group", rows["name"])
            self._append(table, rows, "minute", batch)
        self._append(CLOSED_MINUTES, _closed(closed), "from_minute", batch)
        self._append(REFUSED_RECORDS, _refused(kinds["refused"]), "at", batch)
        state.count("records", pc.sum(kinds["heard"]["records"]).as_py())
        state.count("refused", pc.sum(kinds["refused"]["records"]).as_py())
        state.count("late", pc.sum(used["late"]).as_py())
        state.counts["lost"] = sum(one.lost for one in progress.brokers.values())
        state.done(batch, progress, kinds["series"].select(SERIES_SCHEMA.names))

    def add_decisions(self, batch: int, rows: Rows) -> None:
        """Add decision records, with columns `__topic`, `published_ms` and `broken`."""
        good, refused = _decided(rows)
        self._append(DECISIONS, good, "at", batch)
        self._append(REFUSED_RECORDS, refused, "at", batch)
        self.state.count("records", good.num_rows)
        self.state.count("refused", pc.sum(refused["records"]).as_py())
        self.state.done(batch, Progresses({}))

    def _append(self, table: Table, rows: Rows, at: str, batch: int) -> None:
        columns = {"minute": "minute_ms"}
        schema = arrow_schema(table)
        arrays = []
        for one in schema:
            if one.name == "version" and "version" not in rows.column_names:
                arrays.append(pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int64()), rows.num_rows))
                continue
            array = rows[one.name if one.name in rows.column_names else columns[one.name]]
            if pa.types.is_timestamp(one.type) and pa.types.is_int64(array.type):
                array = array.cast(pa.timestamp("ms", tz="UTC"))
            if pa.types.is_string(one.type) and not one.nullable:
                array = pc.fill_null(array, "")  # a name that the record's version does not have
            arrays.append(array.cast(one.type))
        made = pa.table(arrays, schema=schema)
        self._store.append(table, by_day(table, made, at), self._kind, batch)


def _with_late(used: Rows, closed_ms: int | None) -> Rows:
    late = pc.less(used["minute_ms"], closed_ms if closed_ms is not None else 0)
    return used.append_column("late", late)


def _heard(rows: Rows) -> list[Heard]:
    """Parts of the same interval are in several parts of the micro-batch."""
    merged: dict[tuple[str, int, int], Heard] = {}
    for row in rows.to_pylist():
        one = Heard(*(row[name] for name in Heard._fields))
        key = (one.broker, one.epoch, one.time_ms)
        other = merged.get(key)
        if other is not None:
            one = Heard(
                one.broker,
                one.epoch,
                min(one.from_ms, other.from_ms),
                one.time_ms,
                min(one.first, other.first),
                max(one.last, other.last),
                one.records + other.records,
                one.ends or other.ends,
            )
        merged[key] = one
    return list(merged.values())


def _closed(closed: Sequence[Closed]) -> Rows:
    strings = pa.list_(pa.string())
    return pa.table(
        {
            "from_minute": pa.array([one.from_ms for one in closed], pa.int64()),
            "until_minute": pa.array([one.until_ms for one in closed], pa.int64()),
            "brokers": pa.array([list(one.brokers) for one in closed], strings),
            "absent": pa.array([list(one.absent) for one in closed], strings),
        }
    )


def _refused(rows: Rows) -> Rows:
    """Refusals of all parts, one row for each topic and reason."""
    found: dict[tuple[str, str], list[int]] = {}
    for topic, reason, records, at in zip(
        *(rows[name].to_pylist() for name in ("topic", "name", "records", "time_ms")), strict=True
    ):
        one = found.setdefault((topic, reason), [0, 0])
        one[:] = one[0] + records, max(one[1], at)
    return _refusals(found)


def _refusals(found: Mapping[tuple[str, str], list[int]]) -> Rows:
    return pa.table(
        {
            "topic": pa.array([topic for topic, _ in sorted(found)], pa.string()),
            "reason": pa.array([reason for _, reason in sorted(found)], pa.string()),
            "records": pa.array([found[key][0] for key in sorted(found)], pa.int64()),
            "at": pa.array([found[key][1] for key in sorted(found)], pa.int64()),
        }
    )


def _decided(rows: Rows) -> tuple[Rows, Rows]:
    """Divide decision records in those that can be used and refusals."""
    good: list[bool] = []
    refused: dict[tuple[str, str], list[int]] = {}
    for row in rows.to_pylist():
        fault = "not Avro" if row["broken"] else fault_of_decision(row)
        good.append(fault is None)
        if fault is not None:
            one = refused.setdefault((row["__topic"], with_version(fault, row["version"])), [0, 0])
            one[:] = one[0] + 1, max(one[1], row["published_ms"])
    # The table has a version of its own.
    used = rows.filter(pa.array(good, pa.bool_())).drop_columns("version")
    since = pc.if_else(pc.equal(used["since_ms"], 0), used["time_ms"], used["since_ms"])
    used = used.append_column("at", used["time_ms"]).append_column("since", since)
    return used, _refusals(refused)
