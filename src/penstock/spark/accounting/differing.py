# SPDX-License-Identifier: Apache-2.0
"""What executors do with usage records: the difference to the counters that were seen before, by minute.

Why in Arrow: a micro-batch has a hundred thousand records. Spark gives this a part of them, with all earlier counters
of the same series, and distributes nothing else. What is decided is `penstock.accounting.differences`.
Where: `stream` calls it for each part, by `cogroup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.accounting.differences import COUNTERS, ZERO, Reading, fault_of, follow, increased
from penstock.accounting.tables import KINDS

if TYPE_CHECKING:
    from penstock.accounting.differences import Counters

RATES: Final = tuple(f"{what}_{kind}" for what in ("quota", "share") for kind in KINDS)
NAMES: Final = ("tenant", "namespace", "topic")
# Of a series of counters.
SERIES: Final = ("broker", "scope", "name", "since_ms")

# What is read of usage records, and of decision records.
FIELDS: Final = (
    "broker", "epoch", "sequence", "from_ms", "time_ms", "scope", "counters_since_ms", *NAMES, "resource_groups",
    *COUNTERS, *RATES,
)  # fmt: skip
DECIDED: Final = (
    "broker", "epoch", "sequence", "time_ms", "kind", "limiter", "reason", "tenant", "namespace", "topic",
    "resource_group", "client", "unit", "before", "after", "since_ms", "times", "held_ms", "observed_only",
)  # fmt: skip

SERIES_SCHEMA: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("scope", pa.string()),
        ("name", pa.string()),
        ("since_ms", pa.int64()),
        *((name, pa.int64()) for name in COUNTERS),
    ]
)
# All that is found, in rows of four kinds: `used`, `series`, `heard` (epoch, from and until when, first and last
# sequence number, how many, whether the broker's own is among them) and `refused` (name: why).
FOUND: Final = pa.schema(
    [
        ("kind", pa.string()),
        *SERIES_SCHEMA,
        ("minute_ms", pa.int64()),
        *((name, pa.string()) for name in NAMES),
        ("resource_groups", pa.list_(pa.string())),
        *((name, pa.float64()) for name in RATES),
        ("epoch", pa.int64()),
        ("from_ms", pa.int64()),
        ("time_ms", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
        ("ends", pa.bool_()),
    ]
)
_BROKEN: Final[str | None] = "not Avro"
_EMPTY: Final = dict.fromkeys(FOUND.names)


def find(records: Any, before: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
    """Return what some records say, in rows of `FOUND`.

    Args:
        records: columns `FIELDS`, `__topic`, `published_ms` and `broken`.
        before: columns of `SERIES_SCHEMA`, perhaps several rows for a series, of which the highest count.
    """
    found: list[dict[str, Any]] = []
    readings, rows, refused = _readings(records)
    found += refused
    high: dict[tuple[Any, ...], Counters] = {}
    for row in before.to_pylist():
        series = tuple(row[name] for name in SERIES)
        counters = tuple(row[name] for name in COUNTERS)
        high[series] = increased(high.get(series, ZERO), counters)[1]
    by_series: dict[tuple[Any, ...], list[Reading]] = {}
    for one in readings:
        by_series.setdefault((one.broker, one.scope, one.name, one.since_ms), []).append(one)
    for series, some in by_series.items():
        already = high.get(series, ZERO)
        increases, highest = follow(already, some)
        if highest != already or series not in high:
            found.append(_row("series", series, highest))
        for one, minutes in increases:
            about = rows[one]
            for minute_ms, counters in minutes:
                row = _row("used", series, counters)
                row["minute_ms"] = minute_ms
                for name in (*NAMES, "resource_groups", *RATES):
                    row[name] = about[name]
                found.append(row)
    found += _heard(readings)
    return pa.Table.from_pylist(found, schema=FOUND)


def _row(kind: str, series: tuple[Any, ...], counters: Counters) -> dict[str, Any]:
    return {
        **_EMPTY,
        "kind": kind,
        **dict(zip(SERIES, series, strict=True)),
        **dict(zip(COUNTERS, counters, strict=True)),
    }


def _readings(records: Any) -> tuple[list[Reading], dict[Reading, dict[str, Any]], list[dict[str, Any]]]:  # noqa: ANN401
    good: list[Reading] = []
    rows: dict[Reading, dict[str, Any]] = {}
    refused: dict[tuple[str, str], list[int]] = {}
    for row in records.to_pylist():
        if row["broken"]:
            one, fault = None, _BROKEN
        else:
            one = _reading(row)
            fault = fault_of(one)
        if fault is not None:
            refused.setdefault((row["__topic"], fault), []).append(row["published_ms"])
        elif one is not None and one not in rows:
            good.append(one)
            rows[one] = row
    rows_refused = [
        {**_EMPTY, "kind": "refused", "topic": topic, "name": fault, "records": len(times), "time_ms": max(times)}
        for (topic, fault), times in refused.items()
    ]
    return good, rows, rows_refused


def _reading(row: dict[str, Any]) -> Reading:
    scope = row["scope"]
    name = row["topic"] if scope == "topic" else ""
    if scope == "group":
        name = (row["resource_groups"] or [""])[0]
    # Only groups have waiting times; in other records they are null.
    counters = [row[name] or 0 for name in COUNTERS[-2:]]
    return Reading(
        row["broker"],
        row["epoch"],
        row["sequence"],
        row["from_ms"],
        row["time_ms"],
        scope,
        name,
        row["counters_since_ms"],
        (*(row[name] for name in COUNTERS[:-2]), *counters),
    )


def _heard(readings: list[Reading]) -> list[dict[str, Any]]:
    """Which records of each interval of each broker are here; a record and its repetitions are in the same part."""
    intervals: dict[tuple[str, int, int], list[Reading]] = {}
    for one in readings:
        intervals.setdefault((one.broker, one.epoch, one.time_ms), []).append(one)
    return [
        {
            **_EMPTY,
            "kind": "heard",
            "broker": broker,
            "epoch": epoch,
            "time_ms": time_ms,
            "from_ms": min(one.from_ms for one in some),
            "first": min(one.sequence for one in some),
            "last": max(one.sequence for one in some),
            "records": len({one.sequence for one in some}),
            "ends": any(one.scope == "broker" for one in some),
        }
        for (broker, epoch, time_ms), some in intervals.items()
    ]
