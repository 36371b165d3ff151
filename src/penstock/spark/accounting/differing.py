# SPDX-License-Identifier: Apache-2.0
"""Work of executors on usage records: differences to the counters that were seen before, by minute.

Spark gives a part of the records, with all earlier counters of the same series, and distributes nothing else. The
rules are those of `penstock.accounting.differences`.
Where: `differing_columns` calls it for the few records that are not plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.accounting.closing import with_version
from penstock.accounting.differences import COUNTERS, OPTIONAL, ZERO, Reading, fault_of, follow, increased, name_of
from penstock.accounting.tables import RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.accounting.differences import Counters

NAMES: Final = ("tenant", "namespace", "topic", "role", "subscription")
# Of a series of counters.
SERIES: Final = ("broker", "scope", "name", "since_ms")

# What is read of usage records, and of decision records.
FIELDS: Final = (
    "version", "broker", "epoch", "sequence", "from_ms", "time_ms", "scope", "counters_since_ms", *NAMES,
    "resource_groups", *COUNTERS, *RECORDED,
)  # fmt: skip
DECIDED: Final = (
    "version", "broker", "epoch", "sequence", "time_ms", "kind", "limiter", "reason", "tenant", "namespace", "topic",
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
        *((name, pa.float64()) for name in RECORDED),
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

    Budget: 20 µs a record. Names are copied by Arrow, from the rows that have them.

    Args:
        records: columns `FIELDS`, `__topic`, `published_ms` and `broken`.
        before: columns of `SERIES_SCHEMA`, perhaps several rows for a series, of which the highest count.
    """
    readings, found = _readings(records)
    high: dict[tuple[Any, ...], Counters] = {}
    for row in _rows(before, (*SERIES, *COUNTERS)):
        # An earlier version has noted fewer counters.
        series, counters = row[: len(SERIES)], tuple(one or 0 for one in row[len(SERIES) :])
        high[series] = increased(high.get(series, ZERO), counters)[1]
    by_series: dict[tuple[Any, ...], list[Reading]] = {}
    for one in readings:
        by_series.setdefault((one.broker, one.scope, one.name, one.since_ms), []).append(one)
    used: list[tuple[Any, ...]] = []
    places: list[int] = []
    for series, some in by_series.items():
        already = high.get(series, ZERO)
        increases, highest = follow(already, some)
        if highest != already or series not in high:
            found.append(_row("series", series, highest))
        for one, minutes in increases:
            place = readings[one]
            for minute_ms, counters in minutes:
                used.append((*series, *counters, minute_ms))
                places.append(place)
    found += _heard(readings)
    return pa.concat_tables([pa.Table.from_pylist(found, schema=FOUND), _used(used, records, places)])


def _used(rows: list[tuple[Any, ...]], records: Any, places: list[int]) -> Any:  # noqa: ANN401
    """Return rows of kind `used`; `places`: which records have their names and rates."""
    names = (*SERIES, *COUNTERS, "minute_ms")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    about = records.select([*NAMES, "resource_groups", *RECORDED]).take(pa.array(places, pa.int64()))
    arrays = []
    for one in FOUND:
        if one.name == "kind":
            arrays.append(pa.repeat(pa.scalar("used"), len(rows)))
        elif one.name in columns:
            arrays.append(pa.array(columns[one.name], one.type))
        elif one.name in about.column_names:
            arrays.append(about[one.name].cast(one.type))
        else:
            arrays.append(pa.nulls(len(rows), one.type))
    return pa.table(arrays, schema=FOUND)


def _rows(table: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _row(kind: str, series: tuple[Any, ...], counters: Counters) -> dict[str, Any]:
    return {
        **_EMPTY,
        "kind": kind,
        **dict(zip(SERIES, series, strict=True)),
        **dict(zip(COUNTERS, counters, strict=True)),
    }


def _readings(records: Any) -> tuple[dict[Reading, int], list[dict[str, Any]]]:  # noqa: ANN401
    """Return the good records, once each, with their places, and rows that say what is wrong with the others."""
    good: dict[Reading, int] = {}
    refused: dict[tuple[str, str], list[int]] = {}
    about = ("broker", "epoch", "sequence", "from_ms", "time_ms", "scope", "counters_since_ms")
    named = ("topic", "resource_groups", "namespace", "role", "subscription")
    rows = _rows(records, (*about, *named, *COUNTERS, "broken", "__topic", "published_ms", "version"))
    for place, row in enumerate(rows):
        broker, epoch, sequence, from_ms, time_ms, scope, since_ms = row[:7]
        name: Any = name_of(scope, *row[7:12])
        counted, (broken, topic, published_ms, version) = row[12 : 12 + len(COUNTERS)], row[12 + len(COUNTERS) :]
        counters = (*counted[: -len(OPTIONAL)], *(one or 0 for one in counted[-len(OPTIONAL) :]))
        one = Reading(broker, epoch, sequence, from_ms, time_ms, scope, name, since_ms, counters)
        fault = _BROKEN if broken else fault_of(one)
        if fault is None:
            good.setdefault(one, place)
        else:
            refused.setdefault((topic, with_version(fault, version)), []).append(published_ms)
    found = [
        {**_EMPTY, "kind": "refused", "topic": topic, "name": fault, "records": len(times), "time_ms": max(times)}
        for (topic, fault), times in refused.items()
    ]
    return good, found


def _heard(readings: Iterable[Reading]) -> list[dict[str, Any]]:
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
