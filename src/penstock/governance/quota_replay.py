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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.allocation import RULES, Cluster, Report, Strategy, max_min_shares, water_level
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


@dataclass(slots=True)
class _State:
    """One broker between two minutes."""

    shares: list[int | None] = field(default_factory=lambda: [None, None])
    waiting: list[float] = field(default_factory=lambda: [0.0, 0.0])


class QuotaReplay:
    """One class of traffic of one group. Feed it minutes in order."""

    def __init__(self, quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> None:
        """Args: quotas: messages and bytes per second of all brokers together; None: no limit."""
        self.outcome = Outcome()
        self._quotas = [None if quota is None else round(quota * _THOUSAND) for quota in quotas]
        self._strategy = strategy
        self._brokers: dict[str, _State] = {}

    def feed(self, minute: Mapping[str, Used]) -> dict[str, Passed]:
        """Replay a minute, by broker. Brokers that are not named used nothing."""
        for name in minute:
            self._brokers.setdefault(name, _State())
        names = list(self._brokers)
        used = [minute.get(name, _NOTHING) for name in names]
        states = [self._brokers[name] for name in names]
        wants = [self._wanted(one, state) for one, state in zip(used, states, strict=True)]
        passed_parts = [0.0] * len(names)
        demands = [[round(want[kind] * _THOUSAND / MINUTE_S) for want in wants] for kind in (0, 1)]
        for cycle in range(_CYCLES):
            before = [list(state.shares) for state in states]
            self._divide(states, demands)
            parts = [self._part(want, state) for want, state in zip(wants, states, strict=True)]
            left = _CYCLES - cycle if before == [state.shares for state in states] else 1
            for row, part in enumerate(parts):
                passed_parts[row] += part * left / _CYCLES
            if left > 1:
                break  # nothing changes any more
        found = {}
        for name, one, state, want, part in zip(names, used, states, wants, passed_parts, strict=True):
            passed = [want[0] * part, want[1] * part]
            for kind, known in enumerate((one.messages, one.bytes)):
                state.waiting[kind] = max(0.0, known + state.waiting[kind] - passed[kind])
            shares = tuple(None if share is None else share / _THOUSAND for share in state.shares)
            found[name] = Passed(passed[0], passed[1], (shares[0], shares[1]), part)
        self._count(used, found.values(), demands)
        return found

    def _wanted(self, one: Used, state: _State) -> tuple[float, float]:
        """Messages and bytes that would pass without a limit."""
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
        return one.messages * (1 + more) + state.waiting[0], one.bytes * (1 + more) + state.waiting[1]

    def _divide(self, states: Sequence[_State], demands: Sequence[list[int]]) -> None:
        for kind, quota in enumerate(self._quotas):
            if quota is None:
                continue
            present = [state.shares[kind] or 0 for state in states]
            if self._strategy is Strategy.MAX_MIN:
                shares = max_min_shares(quota, demands[kind], present, Cluster(members=len(states)))
            else:
                served = [min(want, share) for want, share in zip(demands[kind], present, strict=True)]
                shares = RULES[self._strategy](quota, list(map(Report, served)), Cluster(members=len(states)))
            for state, share in zip(states, shares, strict=True):
                state.shares[kind] = share

    @staticmethod
    def _part(want: tuple[float, float], state: _State) -> float:
        """The part of what is wanted that fits into the shares."""
        part = 1.0
        for amount, share in zip(want, state.shares, strict=True):
            if share is not None and amount * _THOUSAND > share * MINUTE_S:
                part = min(part, share * MINUTE_S / (amount * _THOUSAND))
        return part

    def _count(self, used: Sequence[Used], passed: Iterable[Passed], demands: Sequence[list[int]]) -> None:
        outcome = self.outcome
        passed = list(passed)
        if not any(demands[0]) and not any(demands[1]):
            return
        outcome.minutes += 1
        outcome.limited += any(one.part < _PASSED_PART for one in passed)
        outcome.passed = (
            outcome.passed[0] + sum(one.messages for one in passed),
            outcome.passed[1] + sum(one.bytes for one in passed),
        )
        outcome.recorded = (
            outcome.recorded[0] + sum(one.messages for one in used),
            outcome.recorded[1] + sum(one.bytes for one in used),
        )
        states = self._brokers.values()
        outcome.waiting = (sum(one.waiting[0] for one in states), sum(one.waiting[1] for one in states))
        outcome.waiting_max = (
            max(outcome.waiting_max[0], outcome.waiting[0]),
            max(outcome.waiting_max[1], outcome.waiting[1]),
        )
        outcome.fairness_sum += self._fairness(passed, demands)

    def _fairness(self, passed: Sequence[Passed], demands: Sequence[list[int]]) -> float:
        worst = 1.0
        for kind, quota in enumerate(self._quotas):
            wanted = demands[kind]
            if quota is None or sum(wanted) <= quota:
                continue
            level = max(1, water_level(quota, wanted))
            got = [
                (one.messages, one.bytes)[kind] * _THOUSAND / MINUTE_S / min(want, level)
                for one, want in zip(passed, wanted, strict=True)
                if want
            ]
            squares = sum(part * part for part in got)
            worst = min(worst, sum(got) ** 2 / (len(got) * squares) if squares else 1.0)
        return worst


_NOTHING: Final = Used(0, 0, 0, (None, None), (None, None))


def replay(minutes: Iterable[Mapping[str, Used]], quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> Outcome:
    """Replay minutes, in order, and return what would have become of them."""
    one = QuotaReplay(quotas, strategy=strategy)
    for minute in minutes:
        one.feed(minute)
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
    high = 1.0
    for _ in range(60):
        if replay(minutes, _only(kind, high)).unlimited_part >= target:
            break
        high *= 2
    else:
        return None
    low = 0.0 if high == 1.0 else high / 2
    if not any(one.messages or one.bytes for minute in minutes for one in minute.values()):
        return None
    while high - low > max(1.0, high / 200):
        middle = (low + high) / 2
        if replay(minutes, _only(kind, middle)).unlimited_part >= target:
            high = middle
        else:
            low = middle
    return float(-(-high // 1))


def _only(kind: int, quota: float) -> Quotas:
    return (quota, None) if kind == 0 else (None, quota)
