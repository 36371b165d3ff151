# SPDX-License-Identifier: Apache-2.0
"""Tables that follow from others, in this process: what `derived` says with Spark.

A day's usage is taken by quarters of an hour, and is never in memory as a whole.

Where: `refreshing` asks `ArrowDeriving` for them, with `--engine arrow`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.tables import (
    DECISIONS,
    GROUP_USAGE,
    KINDS,
    NAMESPACE_USAGE,
    NOISY_NEIGHBOURS,
    QUOTA_FIT,
    TOPIC_USAGE,
    USED,
)
from penstock.spark.accounting.derived import (
    AMPLE_PART,
    COUNTERS,
    LIMITED_PART,
    NOISY_PART,
    SECONDS_PER_MINUTE,
)
from penstock.spark.accounting.schemas import arrow_schema, fitted
from penstock.spark.accounting.store import FILES_PER_DAY_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.accounting.tables import Table
    from penstock.spark.accounting.store import Store

Rows = Any  # pyarrow.Table; pyarrow has no types

# Arrow has no lists as keys; names cannot contain this.
_BETWEEN: Final = "\0"
_OF_NAMESPACE: Final = ("minute", "tenant", "namespace")
_OF_NEIGHBOURS: Final = ("minute", "tenant", "topic", "published_bytes", "resource_groups")
_WHO: Final = (
    "broker", "epoch", "limiter", "reason", "tenant", "namespace", "topic", "resource_group", "client", "since",
)  # fmt: skip


class ArrowDeriving:
    """Makes derived tables, and merges small files, with Arrow."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def usage(self, day: str) -> dict[Table, Rows]:
        """Return the tables of a day that follow from usage."""
        groups = self._store.rows(GROUP_USAGE, [day])
        of_namespaces = [
            namespace_usage(part)
            for part in self._store.quarter_hours(TOPIC_USAGE, day, (*_OF_NAMESPACE, "topic", *COUNTERS))
        ]
        return {
            NAMESPACE_USAGE: pa.concat_tables(
                [namespace_usage(arrow_schema(TOPIC_USAGE).empty_table()), *of_namespaces]
            ),
            NOISY_NEIGHBOURS: noisy_neighbours(self._store.quarter_hours(TOPIC_USAGE, day, _OF_NEIGHBOURS), groups),
            QUOTA_FIT: quota_fit(groups),
        }

    def episodes(self, days: Collection[str], of_day: str) -> Rows:
        """Return the episodes that began on a day, from the decisions of some days."""
        decisions = self._store.rows(DECISIONS, days)
        return episodes(decisions.filter(pc.equal(pc.strftime(decisions["since"], "%Y-%m-%d"), of_day)))

    def compact(self, table: Table, day: str) -> None:
        """Make one file of a day's many small ones."""
        files = self._store.files(table).get(day, [])
        if len(files) > FILES_PER_DAY_MAX:
            # What has a key has a minute, and equal keys the same.
            parts = self._store.quarter_hours(table, day) if table.key else iter([self._store.rows(table, [day])])
            batches = (batch for part in parts for batch in merged(table, part).combine_chunks().to_batches())
            self._store.compact(table, day, pa.RecordBatchReader.from_batches(arrow_schema(table), batches), files)


def merged(table: Table, rows: Rows) -> Rows:
    """Return rows of which those with an equal key are added up."""
    if not table.key:
        return rows
    sums = [one.name for one in table.columns if one.name not in table.key]
    lists = [one.name for one in table.columns if one.type == "strings"]
    for name in lists:
        rows = rows.set_column(rows.column_names.index(name), name, pc.binary_join(rows[name], _BETWEEN))
    found = rows.group_by(list(table.key)).aggregate([(name, "sum") for name in sums])
    found = found.rename_columns(
        [name.removesuffix("_sum") if name not in table.key else name for name in found.column_names]
    )
    for name in lists:
        texts = found[name]
        parts = pc.if_else(pc.equal(texts, ""), pa.scalar([], pa.list_(pa.string())), pc.split_pattern(texts, _BETWEEN))
        found = found.set_column(found.column_names.index(name), name, parts)
    return fitted(table, found).sort_by([(name, "ascending") for name in table.key[:2]])


def namespace_usage(topics: Rows) -> Rows:
    """Add up `topic_usage` by minute, tenant and namespace."""
    sums = [(name, "sum") for name in COUNTERS]
    found = topics.group_by(list(_OF_NAMESPACE)).aggregate([*sums, ("topic", "count_distinct")])
    names = {f"{name}_sum": name for name in COUNTERS} | {"topic_count_distinct": "topics"}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def episodes(decisions: Rows) -> Rows:
    """Return one row for each episode of `decisions`: its last record says how often and how long."""
    last = ("at", "times", "held_ms", "observed_only", "kind")
    of_episodes = decisions.filter(pc.not_equal(decisions["kind"], "changed")).sort_by("sequence")
    found = of_episodes.group_by(list(_WHO), use_threads=False).aggregate([(name, "last") for name in last])
    ended = pc.is_in(found["kind_last"], pa.array(["ended", "refused"]))
    names = {f"{name}_last": "until" if name == "at" else name for name in last}
    return found.rename_columns([names.get(name, name) for name in found.column_names]).append_column("ended", ended)


def noisy_neighbours(parts: Iterable[Rows], groups: Rows) -> Rows:
    """Return topics that used a quarter or more of what their group published while it was limited.

    Args:
        parts: rows of `topic_usage`; those of a minute are in one part.
        groups: rows of `group_usage`.
    """
    limited: dict[tuple[Any, str], int] = defaultdict(int)
    for minute, group, limited_ms in _rows(groups, "minute", "resource_group", "publish_limited_ms"):
        limited[minute, group] += limited_ms
    waited = {which for which, limited_ms in limited.items() if limited_ms > 0}
    found: dict[tuple[str, str, str], list[int]] = {}  # minutes, bytes, bytes of all, others
    for part in parts if waited else ():
        for (_, group), by_topic in _used_while(part, waited).items():
            of_topics = {who: published for who, published in by_topic.items() if published > 0}
            together, others = sum(of_topics.values()), len(of_topics) - 1
            for who, published in of_topics.items():
                if others and published >= NOISY_PART * together:
                    minutes, mine, all_, most = found.get((group, *who), [0, 0, 0, 0])
                    found[group, *who] = [minutes + 1, mine + published, all_ + together, max(most, others)]
    rows = [
        {
            "resource_group": group,
            "tenant": tenant,
            "topic": topic,
            "minutes": minutes,
            "published_bytes": mine,
            "part": mine / all_,
            "others": others,
        }
        for (group, tenant, topic), (minutes, mine, all_, others) in found.items()
    ]
    return _table(NOISY_NEIGHBOURS, rows)


def _used_while(topics: Rows, waited: Collection[tuple[Any, str]]) -> dict[tuple[Any, str], dict[tuple[str, str], int]]:
    """Return what each topic published, by minutes and groups that were limited, tenant and topic."""
    minutes = pa.array({minute for minute, _ in waited}, topics.schema.field("minute").type)
    grouped = pc.greater(pc.list_value_length(topics["resource_groups"]), 0)
    topics = topics.filter(pc.and_(grouped, pc.is_in(topics["minute"], minutes)))
    used: dict[tuple[Any, str], dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for minute, tenant, topic, published, names in _rows(topics, *_OF_NEIGHBOURS):
        for name in names:
            if (minute, name) in waited:
                used[minute, name][tenant, topic] += published
    return used


def quota_fit(groups: Rows) -> Rows:
    """Compare what each group used, minute by minute, with its quota."""
    waits = ("publish_limited_ms", "dispatch_limited_ms")
    quotas = [f"quota_{kind}" for kind in KINDS]
    minutes = groups.group_by(["minute", "resource_group"]).aggregate(
        [*((name, "sum") for name in (*USED, *waits)), *((name, "max") for name in quotas)]
    )
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in minutes.sort_by("minute").to_pylist():
        by_group[row["resource_group"]].append(row)
    rows = []
    for group, of_group in by_group.items():
        for kind, counter in zip(KINDS, COUNTERS, strict=True):
            quota = of_group[-1][f"quota_{kind}_max"]
            if quota is None:
                continue
            rates = np.array([row[f"{counter}_sum"] for row in of_group]) / SECONDS_PER_MINUTE
            limited = sum(row[f"{kind.split('_')[0]}_limited_ms_sum"] > 0 for row in of_group)
            small, ample = limited > LIMITED_PART * len(rates), rates.max() < AMPLE_PART * quota
            rows.append(
                {
                    "resource_group": group,
                    "kind": kind,
                    "quota": quota,
                    "minutes": len(rates),
                    "mean": float(rates.mean()),
                    "p99": float(np.percentile(rates, 99)),
                    "highest": float(rates.max()),
                    "limited_minutes": limited,
                    "fit": "small" if small else "ample" if ample else "fits",
                }
            )
    return _table(QUOTA_FIT, rows)


def _rows(table: Rows, *names: str) -> Any:  # noqa: ANN401 - an iterator of rows
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _table(table: Table, rows: list[dict[str, Any]]) -> Rows:
    schema = arrow_schema(table)
    return pa.Table.from_pylist(rows, schema=schema.remove(schema.get_field_index("version")))
