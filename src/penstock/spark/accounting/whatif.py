# SPDX-License-Identifier: Apache-2.0
"""Effect that other quotas would have had on recorded usage: `governance.quota_replay`, distributed by group.

Where: `penstock spark whatif`, and programs: `whatif(groups, {"gold": Change(factor=0.5)})` on the table `group_usage`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.accounting.tables import KINDS, RECORDED
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.governance.allocation import Strategy
from penstock.governance.quota_replay import MINUTE_MS, QuotaReplay, Used, quotas_of, recommend
from penstock.spark.accounting.admin_calls import Admin, group_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from penstock.governance.quota_replay import Quotas

# Of the kinds, those of a class of traffic.
CLASSES: Final = {"publish": ("publish_messages", "publish_bytes"), "dispatch": ("dispatch_messages", "dispatch_bytes")}
COUNTERS: Final = {
    "publish_messages": "published_messages",
    "publish_bytes": "published_bytes",
    "dispatch_messages": "dispatched_messages",
    "dispatch_bytes": "dispatched_bytes",
}
# What the admin API calls the quotas.
RATES: Final = {
    "publish_messages": "publishRateInMsgs",
    "publish_bytes": "publishRateInBytes",
    "dispatch_messages": "dispatchRateInMsgs",
    "dispatch_bytes": "dispatchRateInBytes",
}
RESULT: Final = pa.schema(
    [
        ("resource_group", pa.string()),
        ("kind", pa.string()),
        ("quota_recorded", pa.float64()),
        ("quota", pa.float64()),
        ("recommended", pa.float64()),
        ("minutes", pa.int64()),
        ("limited_minutes", pa.int64()),
        ("limited_recorded", pa.int64()),
        ("recorded", pa.float64()),
        ("passed", pa.float64()),
        ("waiting_max", pa.float64()),
        ("fairness", pa.float64()),
        ("share_error", pa.float64()),
        ("passed_at_least", pa.bool_()),
        ("recommended_at_least", pa.bool_()),
    ]
)
_FACTOR: Final = re.compile(r"x([0-9.]+)")
_SUFFIXES: Final = {"k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Change:
    """Other quotas of a group: by kind, None for no limit; and what all others are multiplied by."""

    quotas: Mapping[str, float | None] = field(default_factory=dict)
    factor: float = 1.0

    def of(self, kind: str, recorded: float | None) -> float | None:
        if kind in self.quotas:
            return self.quotas[kind]
        return None if recorded is None else recorded * self.factor


def parse_changes(given: Sequence[str]) -> dict[str, Change]:
    """Read `GROUP=RATE`, `GROUP=xFACTOR` or `GROUP:KIND=RATE`. Raises ConfigurationError."""
    found: dict[str, Change] = {}
    for item in given:
        name, equals, text = item.rpartition("=")
        if not equals or not name:
            raise ConfigurationError(f"--quota {item}: want GROUP=RATE, GROUP=x0.5 or GROUP:KIND=RATE")
        group, _, kind = name.rpartition(":")
        if kind not in KINDS:
            group, kind = name, "publish_messages"
        before = found.get(group, Change())
        try:
            factor = _FACTOR.fullmatch(text)
            if factor is not None:
                found[group] = Change(before.quotas, float(factor[1]))
            else:
                found[group] = Change({**before.quotas, kind: _rate(text)}, before.factor)
        except ValueError as error:
            raise ConfigurationError(f"--quota {item}: {text!r} is no rate") from error
    return found


def _rate(text: str) -> float | None:
    if text in {"none", "-1"}:
        return None
    rate = float(text[:-1]) * _SUFFIXES[text[-1]] if text[-1:] in _SUFFIXES else float(text)
    if not 0 <= rate < 1e15:
        raise ValueError(text)
    return rate


def whatif(
    groups: DataFrame,
    changes: Mapping[str, Change],
    *,
    target: float | None = None,
    strategy: Strategy = Strategy.MAX_MIN,
) -> list[dict[str, Any]]:
    """Replay the table `group_usage`, or a part of it, group by group; return rows of `RESULT`.

    Args:
        groups: the recorded usage.
        changes: other quotas, by group; other groups keep theirs.
        target: also recommend quotas with which this part of the minutes is not limited, for example 0.99.
        strategy: how brokers divide quotas.
    """
    schema = from_arrow_schema(RESULT)
    wanted = dict(changes)

    def of_group(rows: Any) -> Any:  # noqa: ANN401 - pyarrow.Table
        return pa.Table.from_pylist(replayed(rows.to_pylist(), wanted, target, strategy), schema=RESULT)

    limited = ("publish_limited_ms", "dispatch_limited_ms")
    read = groups.select("resource_group", "minute", "broker", *COUNTERS.values(), *limited, *RECORDED)
    result: list[dict[str, Any]] = read.groupBy("resource_group").applyInArrow(of_group, schema).toArrow().to_pylist()
    return sorted(result, key=lambda row: (row["resource_group"], KINDS.index(row["kind"])))


def whatif_in_process(
    groups: Any,  # noqa: ANN401 - pyarrow.Table
    changes: Mapping[str, Change],
    *,
    target: float | None = None,
    strategy: Strategy = Strategy.MAX_MIN,
) -> list[dict[str, Any]]:
    """Do the same in this process, with an Arrow table."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in groups.to_pylist():
        by_group.setdefault(row["resource_group"], []).append(row)
    return [row for name in sorted(by_group) for row in replayed(by_group[name], changes, target, strategy)]


def replayed(
    rows: Sequence[Mapping[str, Any]], changes: Mapping[str, Change], target: float | None, strategy: Strategy
) -> list[dict[str, Any]]:
    """Replay the rows of one group."""
    if not rows:
        return []
    group = rows[0]["resource_group"]
    change = changes.get(group, Change())
    found = []
    for name, kinds in CLASSES.items():
        minutes = _minutes(rows, name)
        recorded = quotas_of(minutes[-1])
        quotas = _changed(change, kinds, recorded)
        one = QuotaReplay(quotas, strategy=strategy)
        errors: list[list[float]] = [[], []]
        limited = 0
        for minute in minutes:
            one.set_quotas(_changed(change, kinds, quotas_of(minute)))
            passed = one.feed(minute)
            limited += any(used.limited_ms for used in minute.values())
            for broker, used in minute.items():
                for row, (share, quota) in enumerate(zip(used.share, used.quota, strict=True)):
                    now = passed[broker].share[row]
                    if share is not None and now is not None and quota:
                        errors[row].append(abs(now - share) / quota)
        outcome = one.outcome
        for row, kind in enumerate(kinds):
            best = recommend(minutes, row, target) if target is not None and recorded[row] is not None else None
            if recorded[row] is None and quotas[row] is None:
                continue
            found.append(
                {
                    "resource_group": group,
                    "kind": kind,
                    "quota_recorded": recorded[row],
                    "quota": quotas[row],
                    "recommended": best.quota if best is not None else None,
                    "minutes": outcome.minutes,
                    "limited_minutes": outcome.limited,
                    "limited_recorded": limited,
                    "recorded": float(outcome.recorded[row]),
                    "passed": outcome.passed[row],
                    "waiting_max": outcome.waiting_max[row],
                    "fairness": outcome.fairness,
                    "share_error": sum(errors[row]) / len(errors[row]) if errors[row] else None,
                    "passed_at_least": outcome.at_least,
                    "recommended_at_least": best is not None and best.at_least,
                }
            )
    return found


def _changed(change: Change, kinds: Sequence[str], recorded: Quotas) -> Quotas:
    messages, nbytes = (change.of(kind, quota) for kind, quota in zip(kinds, recorded, strict=True))
    return messages, nbytes


def _minutes(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Used]]:
    """One class of traffic, by minute and broker.

    Of rows of the same minute and broker, amounts add up, and the largest need and the least waiting count.
    """
    found: dict[Any, dict[str, Used]] = {}
    for row in rows:
        minute = found.setdefault(row["minute"], {})
        used, before = _used(row, name), minute.get(row["broker"])
        minute[row["broker"]] = used if before is None else _together(before, used)
    return [found[minute] for minute in sorted(found)]


def _used(row: Mapping[str, Any], name: str) -> Used:
    kinds = CLASSES[name]

    def pair(what: str) -> Quotas:
        return row.get(f"{what}_{kinds[0]}"), row.get(f"{what}_{kinds[1]}")

    limited_ms = min(MINUTE_MS, row[f"{name}_limited_ms"])
    messages, nbytes = (row[COUNTERS[kind]] for kind in kinds)
    return Used(messages, nbytes, limited_ms, pair("quota"), pair("share"), pair("needed"), pair("held"))


def _together(one: Used, other: Used) -> Used:
    return Used(
        one.messages + other.messages,
        one.bytes + other.bytes,
        min(MINUTE_MS, one.limited_ms + other.limited_ms),
        other.quota,
        other.share,
        _each(max, one.needed, other.needed),
        _each(min, one.held, other.held),
    )


def _each(choose: Callable[[float, float], float], one: Quotas, other: Quotas) -> Quotas:
    messages, nbytes = (
        choose(first, second) if first is not None and second is not None else None
        for first, second in zip(one, other, strict=True)
    )
    return messages, nbytes


def wanted_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the rates that are to be set, by group and member: the recommended ones, or those that were replayed.

    Quotas that are as they were recorded are left out.
    """
    changed: dict[str, dict[str, int]] = {}
    for row in rows:
        quota = row["recommended"] if row["recommended"] is not None else row["quota"]
        if quota != row["quota_recorded"]:
            rate = -1 if quota is None else max(1, round(quota))
            changed.setdefault(row["resource_group"], {})[RATES[row["kind"]]] = rate
    return changed


def apply(admin_url: str, rows: Sequence[Mapping[str, Any]], *, token: str | None = None) -> list[str]:
    """Set quotas of groups through the admin API: the recommended ones, or those that were replayed.

    Returns:
        What was changed, in words. Quotas that are as they were recorded are left alone.

    Raises:
        PenstockError: the broker did not answer, or refused.
    """
    admin = Admin(admin_url, token)
    said = []
    for group, rates in wanted_rates(rows).items():
        try:
            admin.ask("PUT", group_path(group), rates)
        except PenstockError as error:
            raise PenstockError(f"the quotas of {group!r} were not set: {error}") from error
        said.append(f"{group}: {', '.join(f'{name}={rate}' for name, rate in rates.items())}")
    return said
