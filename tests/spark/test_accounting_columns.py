# SPDX-License-Identifier: Apache-2.0
"""Differences of counters in columns are those of single records, whatever records come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounting.differences import COUNTER_MAX, MINUTE_MS
from penstock.spark.accounting import differing, differing_columns
from penstock.spark.accounting.batches import _heard, _refused
from penstock.spark.accounting.differing import FOUND, SERIES_SCHEMA
from tests.spark.accounted import NOON, RECORDS, Record, record

if TYPE_CHECKING:
    from collections.abc import Callable

SOMETIMES = st.sampled_from([0, 0, 0, 1])
# What is wrong with a few records: forged, damaged, late, or with clocks that are wrong.
ODD = st.sampled_from(
    [
        {},
        {"broken": True},
        {"scope": "galaxy"},
        {"scope": None},
        {"broker": ""},
        {"broker": None},
        {"topic": None},
        {"topic": ""},
        {"topic": "x" * 5_000},
        {"sequence": -1},
        {"sequence": None},
        {"epoch": 0},
        {"time_ms": 5},
        {"from_ms": None},
        {"from_ms": NOON - 30 * MINUTE_MS},
        {"from_ms": NOON - 9_000 * MINUTE_MS},
        {"published_bytes": COUNTER_MAX},
        {"published_bytes": -(1 << 63)},
        {"published_messages": None},
        {"counters_since_ms": NOON + 1},
        {"resource_groups": None},
        {"version": 99},
    ]
)


@st.composite
def batches(draw: Callable[..., Any]) -> list[Record]:
    found: list[Record] = []
    for sequence in range(draw(st.integers(0, 25))):
        scope = draw(st.sampled_from(["topic", "topic", "topic", "group", "principal", "namespace", "broker"]))
        minute = draw(st.integers(0, 3))
        many = draw(st.integers(0, 3)) + 2 * minute
        more = draw(ODD) if draw(SOMETIMES) else {}
        if scope == "group":
            more = {"resource_groups": draw(st.sampled_from([["gold"], ["gold", "x"], ["tin"], []])), **more}
        if scope == "topic":
            more = {"topic": f"persistent://t/n/{draw(st.integers(0, 3))}", "share_publish_bytes": float(many), **more}
        if scope in {"principal", "namespace"}:
            names = {one: draw(st.sampled_from([None, "", "a", "a\0", "b"])) for one in ("role", "subscription")}
            more = {"namespace": draw(st.sampled_from(["t/n", "t/m", "", None])), **names, "connected_ms": many, **more}
        used = {"published_messages": many, "published_bytes": 10 * many}
        found.append({**record(sequence, minute, scope), **used, **more})
        if draw(SOMETIMES):
            found.append({**draw(st.sampled_from(found)), **({"published_bytes": 7} if draw(SOMETIMES) else {})})
    mixed: list[Record] = draw(st.permutations(found))
    return mixed


def said(found: pa.Table) -> dict[str, Any]:
    """What the driver makes of it; the order of rows means nothing."""
    assert found.schema == FOUND
    of_kind = {kind: found.filter(pc.equal(found["kind"], kind)) for kind in ("used", "series", "heard", "refused")}
    return {
        "used": sorted(map(repr, of_kind["used"].to_pylist())),
        "series": sorted(map(repr, of_kind["series"].to_pylist())),
        "heard": sorted(_heard(of_kind["heard"])),
        "refused": _refused(of_kind["refused"]).to_pylist(),
    }


@given(batches(), batches())
def test_in_columns_the_same_is_found_as_record_by_record(first: list[Record], second: list[Record]) -> None:
    before = SERIES_SCHEMA.empty_table()
    for records in (first, second):
        table = pa.Table.from_pylist(records, schema=RECORDS)
        by_rows = differing.find(table, before)
        assert said(differing_columns.find(table, before)) == said(by_rows)
        series = by_rows.filter(pc.equal(by_rows["kind"], "series")).select(SERIES_SCHEMA.names)
        before = pa.concat_tables([before, series])


def test_plain_records_are_not_looked_at_one_by_one(monkeypatch: Any) -> None:  # noqa: ANN401
    records = [
        record(number + 100 * minute, minute, topic=f"persistent://t/n/{number}", published_bytes=minute + 1)
        for minute in range(5)
        for number in range(100)
    ]
    monkeypatch.delattr(differing, "find")

    found = differing_columns.find(pa.Table.from_pylist(records, schema=RECORDS), SERIES_SCHEMA.empty_table())

    assert pc.sum(found.filter(pc.equal(found["kind"], "used"))["published_bytes"]).as_py() == 500
