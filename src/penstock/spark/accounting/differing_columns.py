# SPDX-License-Identifier: Apache-2.0
"""The same as `differing`, in columns: nearly all records are plain, and need no Python object each.

A series of counters is plain if its records are good, each is there once, no counter goes back, and what each adds
belongs to one minute. All other series are given to `differing.find`, which decides the same row by row; a test
compares both.

Where: `stream` calls it for each part of a micro-batch, by `cogroup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.differences import (
    BETWEEN,
    CLOSE_MS,
    COUNTER_MAX,
    COUNTERS,
    LONG_MS,
    MINUTE_MS,
    NAME_CHARACTERS_MAX,
    OPTIONAL,
    SCOPES,
    SPREAD_MINUTES_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
)
from penstock.accounting.tables import RECORDED
from penstock.spark.accounting import differing
from penstock.spark.accounting.differing import FOUND, NAMES, SERIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Bools: TypeAlias = NDArray[np.bool_]

Rows = Any  # pyarrow.Table; pyarrow has no types


def find(records: Rows, before: Rows) -> Rows:
    """Return what some records say, in rows of `FOUND`.

    Budget: 5 µs a record.

    Args:
        records: columns `FIELDS`, `__topic`, `published_ms` and `broken`.
        before: columns of `SERIES_SCHEMA`, perhaps several rows for a series, of which the highest count.
    """
    if not records.num_rows:
        return differing.find(records, before)
    keys = pa.table(
        {
            "broker": records["broker"],
            "scope": records["scope"],
            "name": _names(records),
            "since_ms": records["counters_since_ms"],
        }
    )
    series = _numbers(pa.concat_tables([keys, before.select(SERIES).cast(keys.schema)]))
    of_record, of_before = series[: records.num_rows], series[records.num_rows :]
    count = int(series.max()) + 1
    high = np.zeros((count, len(COUNTERS)), np.int64)
    np.maximum.at(high, of_before, _counters(before))
    known = np.zeros(count, np.bool_)
    known[of_before] = True

    counters = _counters(records)
    epoch, sequence = _ints(records, "epoch"), _ints(records, "sequence")
    order = np.lexsort((sequence, epoch, of_record))
    mine = of_record[order]
    again = np.zeros(len(order), np.bool_)  # not the first of its series
    again[1:] = mine[1:] == mine[:-1]
    sorted_counters = counters[order]
    earlier = np.empty_like(sorted_counters)
    earlier[1:] = sorted_counters[:-1]
    earlier[~again] = high[mine[~again]]
    added = sorted_counters - earlier
    uses = added.any(axis=1)
    minute_ms, several = _minutes(_ints(records, "from_ms")[order], _ints(records, "time_ms")[order])

    plain = _good(records, keys, counters)[order] & ~(added < 0).any(axis=1) & ~(uses & several)
    twice = again.copy()
    twice[1:] &= (epoch[order][1:] == epoch[order][:-1]) & (sequence[order][1:] == sequence[order][:-1])
    plain &= ~twice
    odd = np.zeros(count, np.bool_)
    odd[mine[~plain]] = True
    plain = ~odd[mine]

    used = plain & uses
    ends = np.append(~again[1:], True)
    changed = plain & ends & ((sorted_counters != high[mine]).any(axis=1) | ~known[mine])
    found = [
        _series(keys, order[changed], sorted_counters[changed]),
        _used(records, keys, order[used], added[used], minute_ms[used]),
        _heard(records, order[plain]),
    ]
    if odd.any():
        found.append(differing.find(records.filter(pa.array(odd[of_record])), before.filter(pa.array(odd[of_before]))))
    return pa.concat_tables(found)


def _names(records: Rows) -> Any:  # noqa: ANN401
    """The same as `differences.name_of`."""
    groups = records["resource_groups"].combine_chunks()
    if isinstance(groups, pa.ChunkedArray):
        groups = pa.concat_arrays(groups.chunks)
    has_any = pc.fill_null(pc.greater(pc.list_value_length(groups), 0), False)
    first = groups.values.take(pc.if_else(has_any, groups.offsets[: len(groups)], pa.scalar(None, pa.int32())))
    namespace, role, subscription = (pc.fill_null(records[one], "") for one in ("namespace", "role", "subscription"))
    names = {
        "topic": records["topic"],
        "group": pc.fill_null(first, ""),
        "principal": pc.binary_join_element_wise(namespace, role, subscription, BETWEEN),
        "namespace": namespace,
    }
    found = ""
    for scope, name in names.items():
        found = pc.if_else(pc.fill_null(pc.equal(records["scope"], scope), False), name, found)
    return found


def _numbers(keys: Rows) -> Ints:
    """Number different rows; the numbers are below the number of rows."""
    number = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        codes = pc.fill_null(pc.dictionary_encode(column).combine_chunks().indices, -1).to_numpy() + 1
        pairs = number * (int(codes.max()) + 1) + codes
        number = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    return number


def _ints(rows: Rows, name: str) -> Ints:
    ints: Ints = pc.fill_null(rows[name], 0).to_numpy()
    return ints


def _counters(rows: Rows) -> Ints:
    return np.stack([_ints(rows, name) for name in COUNTERS], axis=1)


def _good(records: Rows, keys: Rows, counters: Ints) -> Bools:
    """Which records have nothing that `differences.fault_of` might refuse."""
    good = np.ones(records.num_rows, np.bool_)
    needed = [name for name in COUNTERS if name not in OPTIONAL]
    for column in (*keys.columns, *(records[name] for name in ("epoch", "sequence", "from_ms", "time_ms", *needed))):
        good &= pc.is_valid(column).to_numpy()
    for name in ("broker", "name"):
        good &= pc.fill_null(pc.less_equal(pc.utf8_length(keys[name]), NAME_CHARACTERS_MAX), False).to_numpy()
    empty = {name: pc.fill_null(pc.equal(keys[name], ""), True).to_numpy() for name in ("broker", "name")}
    of_broker = pc.fill_null(pc.equal(keys["scope"], "broker"), False).to_numpy()
    good &= ~empty["broker"] & (~empty["name"] | of_broker)
    good &= pc.is_in(keys["scope"], pa.array(sorted(SCOPES))).to_numpy()
    good &= ~pc.fill_null(records["broken"], True).to_numpy()
    from_ms, time_ms = _ints(records, "from_ms"), _ints(records, "time_ms")
    good &= (from_ms >= TIME_MS_MIN) & (from_ms <= time_ms) & (time_ms < TIME_MS_MAX)
    good &= (_ints(records, "epoch") >= 0) & (_ints(records, "sequence") >= 0)
    good &= (counters >= 0).all(axis=1) & (counters < COUNTER_MAX).all(axis=1)
    return good


def _minutes(from_ms: Ints, time_ms: Ints) -> tuple[Ints, Bools]:
    """The last minute of intervals, and which of them have several; as `differences.by_minute` says."""
    long = time_ms - from_ms >= LONG_MS
    from_ms = np.where(long, _rounded(from_ms), from_ms)
    time_ms = np.where(long, _rounded(time_ms), time_ms)
    last = np.maximum(from_ms, time_ms - 1) // MINUTE_MS * MINUTE_MS
    first = np.maximum(from_ms, last - (SPREAD_MINUTES_MAX - 1) * MINUTE_MS) // MINUTE_MS * MINUTE_MS
    return last, first < last


def _rounded(time_ms: Ints) -> Ints:
    over = time_ms % MINUTE_MS
    return np.where(over <= CLOSE_MS, time_ms - over, time_ms)


def _found(kind: str, count: int, columns: Mapping[str, Any]) -> Rows:
    """Return rows of one kind; other columns are null."""
    arrays = []
    for one in FOUND:
        if one.name == "kind":
            arrays.append(pa.repeat(pa.scalar(kind), count))
        elif one.name in columns:
            column = columns[one.name]
            arrays.append(pa.array(column) if isinstance(column, np.ndarray) else column)
        else:
            arrays.append(pa.nulls(count, one.type))
    return pa.table(arrays, names=FOUND.names).cast(FOUND)


def _series(keys: Rows, places: Ints, highest: Ints) -> Rows:
    of_series = keys.take(pa.array(places))
    columns = {name: of_series[name] for name in SERIES}
    return _found("series", len(places), {**columns, **_named(highest)})


def _used(records: Rows, keys: Rows, places: Ints, added: Ints, minute_ms: Ints) -> Rows:
    taken = pa.array(places)
    of_series, about = keys.take(taken), records.select([*NAMES, "resource_groups", *RECORDED]).take(taken)
    columns = {name: of_series[name] for name in SERIES} | {name: about[name] for name in about.column_names}
    return _found("used", len(places), {**columns, **_named(added), "minute_ms": minute_ms})


def _named(counters: Ints) -> dict[str, Ints]:
    return {name: counters[:, row] for row, name in enumerate(COUNTERS)}


def _heard(records: Rows, places: Ints) -> Rows:
    """Which records of each interval of each broker are here; a record and its repetitions are in the same part."""
    rows = records.select(["broker", "epoch", "time_ms", "from_ms", "sequence", "scope"]).take(pa.array(places))
    rows = rows.append_column("ends", pc.equal(rows["scope"], "broker"))
    merged = rows.group_by(["broker", "epoch", "time_ms"]).aggregate(
        [("from_ms", "min"), ("sequence", "min"), ("sequence", "max"), ("sequence", "count_distinct"), ("ends", "any")]
    )
    columns = {
        **{name: merged[name] for name in ("broker", "epoch", "time_ms")},
        "from_ms": merged["from_ms_min"],
        "first": merged["sequence_min"],
        "last": merged["sequence_max"],
        "records": merged["sequence_count_distinct"],
        "ends": merged["ends_any"],
    }
    return _found("heard", merged.num_rows, columns)
