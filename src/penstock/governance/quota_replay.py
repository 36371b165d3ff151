# SPDX-License-Identifier: Apache-2.0
"""Replays recorded usage of one resource group under other quotas, with the broker's own division of quotas.

Why: quotas are chosen by trying them on what happened. Where: `penstock spark whatif`, distributed by group.

Theory of operation
-------------------

A recording says for each minute and broker what was used, and for how long something waited. Demand is estimated from
both as brokers do it (`demand.held_back`). Every five seconds the quota is divided by `allocation`, from demands and
present shares. What fits into a broker's share passes.

What was used is known work: if it does not pass, it waits for the next minute. What was wanted beyond it is a guess: if
it does not pass, it is forgotten, because the recording does not say that anybody insisted. So with the recorded quota
the replay passes what was recorded, and with a larger one at most what the guess allows.

Messages and bytes of a class (publish, dispatch) pass together: the scarcer one decides. Waiting of less than a minute
is not seen.

A minute is in columns, not objects. While all demand fits, a minute takes one division and no sums by broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from operator import add, gt, mul
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.allocation import RULES, Cluster, Report, Strategy, max_min_settling, water_level
from penstock.governance.demand import held_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MINUTE_S: Final = 60
INTERVAL_S: Final = 5
_CYCLES: Final = MINUTE_S // INTERVAL_S
_THOUSAND: Final = 1_000
# The broker's estimate doubles and then takes the whole quota; so many measurements are enough for that.
_ESTIMATES: Final = 4
# A minute is limited if less than this part of what was wanted passed; shares are rounded down to thousandths.
_PASSED_PART: Final = 0.999

Quotas: TypeAlias = tuple[float | None, float | None]  # messages and bytes per second


class Used(NamedTuple):
    """What one broker recorded of a minute, of one class of traffic."""

    messages: int
    bytes: int
    limited_ms: int
    quota: Quotas
    share: Quotas


class Passed(NamedTuple):
    """What one broker would have done in a minute."""

    messages: float
    bytes: float
    share: Quotas  # at the end of the minute
    part: float  # of what was wanted


@dataclass(slots=True)
class Outcome:
    """What the replay of a class of traffic found.

    Attributes:
        minutes: in which something was used or waited.
        limited: minutes in which less than was wanted has passed, on some broker.
        passed: messages and bytes.
        recorded: the same, as recorded.
        waiting: known work that waits at the end, or has waited longest: messages and bytes.
        fairness: mean of Jain's index of what brokers got, compared with max-min fairness; 1 is fair.
    """

    minutes: int = 0
    limited: int = 0
    passed: tuple[float, float] = (0.0, 0.0)
    recorded: tuple[int, int] = (0, 0)
    waiting: tuple[float, float] = (0.0, 0.0)
    waiting_max: tuple[float, float] = (0.0, 0.0)
    fairness_sum: float = 0.0

    @property
    def fairness(self) -> float:
        return self.fairness_sum / self.minutes if self.minutes else 1.0

    @property
    def unlimited_part(self) -> float:
        return 1 - self.limited / self.minutes if self.minutes else 1.0


class Columns(NamedTuple):
    """One minute of one class of traffic, by number of broker. Brokers keep their numbers; later ones are added."""

    messages: Sequence[int]
    bytes: Sequence[int]
    guessed: Sequence[float] | None = None  # what is wanted beside, as a part of what was used; None: nothing


class QuotaReplay:
    """One class of traffic of one group. Feed it minutes in order."""

    def __init__(self, quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> None:
        """Args: quotas: messages and bytes per second of all brokers together; None: no limit."""
        self.outcome = Outcome()
        self._quotas = [None if quota is None else round(quota * _THOUSAND) for quota in quotas]
        self._strategy = strategy
        self._rows: dict[str, int] = {}
        # By kind and number of broker. Missing ones have 0.
        self._shares: list[list[int]] = [[], []]
        self._waiting: list[list[float]] = [[], []]

    def feed(self, minute: Mapping[str, Used]) -> dict[str, Passed]:
        """Replay a minute, by broker. Brokers that are not named used nothing."""
        columns = in_columns(minute, self._rows)
        wants, parts = self.feed_columns(columns)
        shares = [
            [share / _THOUSAND for share in column] if quota is not None else [None] * len(self._rows)
            for column, quota in zip(self._shares, self._quotas, strict=True)
        ]
        found = {}
        for name, row in self._rows.items():
            part = parts[row] if parts else 1.0
            found[name] = Passed(wants[0][row] * part, wants[1][row] * part, (shares[0][row], shares[1][row]), part)
        return found

    def feed_columns(self, minute: Columns) -> tuple[list[Sequence[float]], list[float] | None]:
        """The same for columns.

        Returns:
            What was wanted, by kind and broker, and which part of it has passed; None: all.
        """
        known = (minute.messages, minute.bytes)
        waiting = self._waiting
        wants: list[Sequence[float]] = []
        for amounts, queue in zip(known, waiting, strict=True):
            more = minute.guessed
            want = amounts if more is None else [one * (1 + part) for one, part in zip(amounts, more, strict=True)]
            if queue:
                want = list(map(add, want, queue + [0.0] * (len(want) - len(queue))))
            wants.append(want)
        demands = [
            [] if quota is None else [round(want * _THOUSAND / MINUTE_S) for want in column]
            for column, quota in zip(wants, self._quotas, strict=True)
        ]
        parts = self._passed_parts(wants, demands)
        if parts is None:
            passed = [sum(wants[0]), sum(wants[1])]
            self._waiting = [[], []]
        else:
            passed = []
            for kind, amounts in enumerate(known):
                queue = waiting[kind] + [0.0] * (len(amounts) - len(waiting[kind]))
                went = list(map(mul, wants[kind], parts))
                passed.append(sum(went))
                self._waiting[kind] = [
                    max(0.0, one + before - now) for one, before, now in zip(amounts, queue, went, strict=True)
                ]
        self._count(known, passed, wants, demands, parts)
        return wants, parts

    def _passed_parts(self, wants: list[Sequence[float]], demands: list[list[int]]) -> list[float] | None:
        """Divide the quotas until nothing changes, and return which part of what was wanted passes meanwhile."""
        sums: list[float] | None = None  # of the parts, by cycle; they are added in order, so that short cuts are exact
        left = _CYCLES
        while left:
            settled, unchanged = self._divide(demands)
            parts = self._parts(wants, demands)
            weights = (left,) if unchanged else (1, left - 1) if settled else (1,)
            if sums is None and parts is not None:
                sums = [float(_CYCLES - left)] * len(parts)
            if sums is not None:
                for weight in weights:
                    fitting = parts or repeat(1.0, len(sums))
                    sums = [before + part * weight for before, part in zip(sums, fitting, strict=True)]
            left -= sum(weights)
        return None if sums is None else [one / _CYCLES for one in sums]

    def _divide(self, demands: list[list[int]]) -> tuple[bool, bool]:
        """Divide once, and say whether dividing again would change nothing, and whether this time did not, either."""
        all_settled = unchanged = True
        for kind, quota in enumerate(self._quotas):
            if quota is None:
                continue
            wanted, present = demands[kind], self._shares[kind]
            fresh = len(wanted) - len(present)
            present = present + [0] * fresh
            if self._strategy is Strategy.MAX_MIN:
                shares, settled = max_min_settling(quota, wanted, present)
            else:
                served = list(map(Report, map(min, wanted, present)))
                shares, settled = RULES[self._strategy](quota, served, Cluster(members=len(wanted))), False
            same = not fresh and shares == present
            unchanged = unchanged and same
            all_settled = all_settled and (settled or same)
            self._shares[kind] = shares
        return all_settled, unchanged

    def _parts(self, wants: list[Sequence[float]], demands: list[list[int]]) -> list[float] | None:
        """The part of what each broker wants that fits into its shares; None: all."""
        found: list[float] | None = None
        for kind, quota in enumerate(self._quotas):
            # Demands are rounded by less than the thousandth that a share exceeds them by.
            if quota is None or all(map(gt, self._shares[kind], demands[kind])):
                continue
            parts = [
                share * MINUTE_S / (want * _THOUSAND) if want * _THOUSAND > share * MINUTE_S else 1.0
                for want, share in zip(wants[kind], self._shares[kind], strict=True)
            ]
            found = parts if found is None else list(map(min, found, parts))
        return None if found is None or min(found) == 1.0 else found

    def _count(
        self,
        known: tuple[Sequence[int], Sequence[int]],
        passed: list[float],
        wants: list[Sequence[float]],
        demands: list[list[int]],
        parts: list[float] | None,
    ) -> None:
        outcome = self.outcome
        if not any(round(max(want, default=0) * _THOUSAND / MINUTE_S) for want in wants):
            return
        outcome.minutes += 1
        outcome.limited += parts is not None and min(parts) < _PASSED_PART
        outcome.passed = (outcome.passed[0] + passed[0], outcome.passed[1] + passed[1])
        outcome.recorded = (outcome.recorded[0] + sum(known[0]), outcome.recorded[1] + sum(known[1]))
        outcome.waiting = (sum(self._waiting[0]), sum(self._waiting[1]))
        outcome.waiting_max = (
            max(outcome.waiting_max[0], outcome.waiting[0]),
            max(outcome.waiting_max[1], outcome.waiting[1]),
        )
        outcome.fairness_sum += self._fairness(wants, demands, parts)

    def _fairness(self, wants: list[Sequence[float]], demands: list[list[int]], parts: list[float] | None) -> float:
        worst = 1.0
        for kind, quota in enumerate(self._quotas):
            wanted = demands[kind]
            if quota is None or sum(wanted) <= quota:
                continue
            level = max(1, water_level(quota, wanted))
            got = [
                want * part * _THOUSAND / MINUTE_S / min(level, demand)
                for want, part, demand in zip(wants[kind], parts or repeat(1.0, len(wanted)), wanted, strict=True)
                if demand
            ]
            squares = sum([part * part for part in got])
            worst = min(worst, sum(got) ** 2 / (len(got) * squares) if squares else 1.0)
        return worst


_NOTHING: Final = Used(0, 0, 0, (None, None), (None, None))


def in_columns(minute: Mapping[str, Used], rows: dict[str, int]) -> Columns:
    """Put a minute into columns; `rows` has the number of each broker, and gets those of new ones."""
    for name in minute:
        rows.setdefault(name, len(rows))
    used = [minute.get(name, _NOTHING) for name in rows]
    guessed = list(map(_guessed, used)) if any(one.limited_ms for one in used) else None
    return Columns([one.messages for one in used], [one.bytes for one in used], guessed)


def _guessed(one: Used) -> float:
    """What a broker wanted beside what it used, as a part of it, by the time that something waited."""
    more = 0.0
    for amount, quota, share in zip((one.messages, one.bytes), one.quota, one.share, strict=True):
        if quota is None or not one.limited_ms:
            continue
        rate, limit = amount * _THOUSAND // MINUTE_S, round(quota * _THOUSAND)
        if share is not None and rate * 2 < share * _THOUSAND:
            continue  # it waits for the other limit
        demand = rate
        for _ in range(_ESTIMATES):
            demand = rate + held_back(rate, one.limited_ms * NS_PER_MS, MINUTE_S * NS_PER_S, limit, demand)
        more = max(more, demand / rate - 1 if rate else 0.0)
    return more


def replay(minutes: Iterable[Mapping[str, Used]], quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> Outcome:
    """Replay minutes, in order, and return what would have become of them."""
    rows: dict[str, int] = {}
    return _replay((in_columns(minute, rows) for minute in minutes), quotas, strategy)


def _replay(minutes: Iterable[Columns], quotas: Quotas, strategy: Strategy = Strategy.MAX_MIN) -> Outcome:
    one = QuotaReplay(quotas, strategy=strategy)
    for minute in minutes:
        one.feed_columns(minute)
    return one.outcome


def recommend(minutes: Sequence[Mapping[str, Used]], kind: int, target: float) -> float | None:
    """Return the smallest quota with which at least the part `target` of the minutes is not limited.

    Args:
        minutes: in order.
        kind: 0: messages, 1: bytes; the other is not limited.
        target: for example 0.99.

    Returns:
        A whole number per second, to one part in 200, or None if nothing was used.
    """
    rows: dict[str, int] = {}
    columns = [in_columns(minute, rows) for minute in minutes]
    high = 1.0
    for _ in range(60):
        if _replay(columns, _only(kind, high)).unlimited_part >= target:
            break
        high *= 2
    else:
        return None
    low = 0.0 if high == 1.0 else high / 2
    if not any(one.messages or one.bytes for minute in minutes for one in minute.values()):
        return None
    while high - low > max(1.0, high / 200):
        middle = (low + high) / 2
        if _replay(columns, _only(kind, middle)).unlimited_part >= target:
            high = middle
        else:
            low = middle
    return float(-(-high // 1))


def _only(kind: int, quota: float) -> Quotas:
    return (quota, None) if kind == 0 else (None, quota)
