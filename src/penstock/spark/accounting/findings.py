# SPDX-License-Identifier: Apache-2.0
"""Findings in the tables of accounting: the few figures that a report shows.

Why without Spark: files of columns are added up here in seconds, and a report should not wait for a virtual machine.
Where: `penstock spark report`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.tables import (
    CLOSED_MINUTES,
    COSTS,
    EPISODES,
    GROUP_USAGE,
    NOISY_NEIGHBOURS,
    QUOTA_FIT,
    REFUSED_RECORDS,
    TOPIC_USAGE,
)
from penstock.governance.allocation import Strategy
from penstock.spark.accounting.whatif import replayed

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from penstock.spark.accounting.store import Store

Row = dict[str, Any]

TENANTS_SHOWN: Final = 3  # with a line of their own
TALKERS_SHOWN: Final = 15
EPISODES_SHOWN: Final = 200
GROUPS_REPLAYED: Final = 20
ROWS_SHOWN: Final = 30
OTHERS: Final = "others"


@dataclass(kw_only=True)
class Findings:
    """All that a report shows. Amounts are bytes, times are UTC."""

    days: list[str] = field(default_factory=list)
    minutes: list[datetime] = field(default_factory=list)
    tenants: dict[str, list[int]] = field(default_factory=dict)  # published bytes of each minute
    fairness: list[tuple[datetime, float]] = field(default_factory=list)
    totals: Row = field(default_factory=dict)
    topics: list[Row] = field(default_factory=list)
    episodes: list[Row] = field(default_factory=list)
    episodes_all: int = 0
    noisy: list[Row] = field(default_factory=list)
    fit: list[Row] = field(default_factory=list)
    advice: list[Row] = field(default_factory=list)
    costs: list[Row] = field(default_factory=list)
    closed_until: datetime | None = None
    late_rows: int = 0
    refused: int = 0


def gather(store: Store, *, days: Collection[str] | None = None, target: float = 0.99) -> Findings:
    """Read the tables. `days`: only these; `target`: of recommended quotas."""
    found = Findings()
    topics = store.rows(TOPIC_USAGE, days, ("minute", "tenant", "topic", *_COUNTERS, "late"))
    found.days = sorted(day for day in store.files(TOPIC_USAGE) if days is None or day in days)
    if topics.num_rows:
        found.totals = {name: pc.sum(topics[name]).as_py() for name in _COUNTERS}
        found.late_rows = pc.sum(topics["late"]).as_py()
        _add_usage(found, topics)
    closed = store.rows(CLOSED_MINUTES, None, ("until_minute",))
    found.closed_until = pc.max(closed["until_minute"]).as_py()
    found.refused = pc.sum(store.rows(REFUSED_RECORDS, days, ("records",))["records"]).as_py() or 0
    episodes = store.rows(EPISODES, days).sort_by([("held_ms", "descending")])
    found.episodes_all = episodes.num_rows
    found.episodes = episodes.slice(0, EPISODES_SHOWN).to_pylist()
    found.noisy = _most(store.rows(NOISY_NEIGHBOURS, days), "published_bytes")
    found.fit = store.rows(QUOTA_FIT, days).sort_by("resource_group").slice(0, ROWS_SHOWN).to_pylist()
    found.costs = _most(store.rows(COSTS, days), "cost")
    _advise(found, store.rows(GROUP_USAGE, days), target)
    return found


_COUNTERS: Final = ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")


def _most(rows: Any, column: str) -> list[Row]:  # noqa: ANN401
    found: list[Row] = rows.sort_by([(column, "descending")]).slice(0, ROWS_SHOWN).to_pylist()
    return found


def _add_usage(found: Findings, topics: Any) -> None:  # noqa: ANN401
    by_tenant = topics.group_by(["tenant"]).aggregate([("published_bytes", "sum")])
    tenants = [row["tenant"] for row in by_tenant.sort_by([("published_bytes_sum", "descending")]).to_pylist()]
    shown = tenants[:TENANTS_SHOWN]
    sums = topics.group_by(["minute", "tenant"]).aggregate([("published_bytes", "sum")]).sort_by("minute")
    found.minutes = sorted(set(sums["minute"].to_pylist()))
    place = {minute: row for row, minute in enumerate(found.minutes)}
    names = [*shown, OTHERS] if len(tenants) > len(shown) else shown
    found.tenants = {name: [0] * len(place) for name in names}
    of_minute: dict[Any, list[int]] = {}
    for minute, tenant, used in zip(*(sums[name].to_pylist() for name in sums.column_names), strict=True):
        found.tenants[tenant if tenant in shown else OTHERS][place[minute]] += used
        of_minute.setdefault(minute, []).append(used)
    found.fairness = [(minute, jain(of_minute[minute])) for minute in found.minutes]
    talkers = topics.group_by(["tenant", "topic"]).aggregate([(name, "sum") for name in _COUNTERS])
    for row in _most(talkers, "published_bytes_sum")[:TALKERS_SHOWN]:
        found.topics.append({name.removesuffix("_sum"): value for name, value in row.items()})


def jain(amounts: list[int]) -> float:
    """Jain's index of fairness: 1 if all have the same, 1/n if one of n has all."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def _advise(found: Findings, groups: Any, target: float) -> None:  # noqa: ANN401
    """Replay the busiest groups, for quotas that would have limited few minutes."""
    busiest = groups.group_by("resource_group").aggregate([("published_bytes", "sum"), ("dispatched_bytes", "sum")])
    for row in _most(busiest, "published_bytes_sum")[:GROUPS_REPLAYED]:
        rows = groups.filter(pc.equal(groups["resource_group"], pa.scalar(row["resource_group"])))
        found.advice += replayed(rows.to_pylist(), {}, target, Strategy.MAX_MIN)
