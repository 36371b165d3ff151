# SPDX-License-Identifier: Apache-2.0
"""Replays usage cycle by cycle and broker by broker, as the theory of `governance.quota_replay` says it.

Why: the replay itself takes short cuts over columns; tests compare it with this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.governance.allocation import RULES, Cluster, Report, Strategy, max_min_shares, water_level
from penstock.governance.quota_replay import INTERVAL_S, MINUTE_S, Outcome, Passed, Recording, Used

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.governance.quota_replay import Columns, Quotas

_CYCLES: Final = MINUTE_S // INTERVAL_S
_THOUSAND: Final = 1_000
_PASSED_PART: Final = 0.999


@dataclass(slots=True)
class _State:
    """One broker between two minutes."""

    shares: list[int | None] = field(default_factory=lambda: [None, None])
    waiting: list[float] = field(default_factory=lambda: [0.0, 0.0])
    held: tuple[float, float] = (0.0, 0.0)  # as recorded


class ReplayModel:
    """One class of traffic of one group. Feed it minutes in order."""

    def __init__(self, quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> None:
        """Args: quotas: messages and bytes per second of all brokers together; None: no limit."""
        self.outcome = Outcome()
        self._quotas = [None if quota is None else round(quota * _THOUSAND) for quota in quotas]
        self._strategy = strategy
        self._brokers: dict[str, _State] = {}
        self._recording = Recording()
        self._was_limited = False

    def feed(self, minute: Mapping[str, Used]) -> dict[str, Passed]:
        """Replay a minute, by broker. Brokers that are not named used nothing."""
        evidence = self._recording.columns(minute)
        for name in minute:
            self._brokers.setdefault(name, _State())
        names = list(self._brokers)
        used = [minute.get(name, _NOTHING) for name in names]
        states = [self._brokers[name] for name in names]
        came = [self._came(one, state) for one, state in zip(used, states, strict=True)]
        wants = [
            (one[0] + state.waiting[0], one[1] + state.waiting[1]) for one, state in zip(came, states, strict=True)
        ]
        passed_parts = [0.0] * len(names)
        demands = [[round(want[kind] * _THOUSAND / MINUTE_S) for want in wants] for kind in (0, 1)]
        for cycle in range(_CYCLES):
            before = [list(state.shares) for state in states]
            self._divide(states, demands)
            parts = [self._part(want, state) for want, state in zip(wants, states, strict=True)]
            left = _CYCLES - cycle if before == [state.shares for state in states] else 1
            for row, part in enumerate(parts):
                passed_parts[row] += part * left
            if left > 1:
                break  # nothing changes any more
        passed_parts = [part / _CYCLES for part in passed_parts]
        found = {}
        for name, one, state, want, part in zip(names, came, states, wants, passed_parts, strict=True):
            passed = [want[0] * part, want[1] * part]
            for kind, known in enumerate(one):
                state.waiting[kind] = max(0.0, known + state.waiting[kind] - passed[kind])
            shares = tuple(None if share is None else share / _THOUSAND for share in state.shares)
            found[name] = Passed(passed[0], passed[1], (shares[0], shares[1]), part)
        self._count(used, found.values(), demands, evidence)
        return found

    @staticmethod
    def _came(one: Used, state: _State) -> tuple[float, float]:
        """Messages and bytes that have arrived: what was used, and what waits more than before."""
        before, state.held = state.held, (one.held[0] or 0.0, one.held[1] or 0.0)
        return (
            max(0.0, one.messages + state.held[0] - before[0]),
            max(0.0, one.bytes + state.held[1] - before[1]),
        )

    def _divide(self, states: Sequence[_State], demands: Sequence[list[int]]) -> None:
        for kind, quota in enumerate(self._quotas):
            if quota is None:
                continue
            present = [state.shares[kind] or 0 for state in states]
            if self._strategy is Strategy.MAX_MIN:
                shares = max_min_shares(quota, demands[kind], Cluster(members=len(states)))
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

    def _count(
        self, used: Sequence[Used], passed: Iterable[Passed], demands: Sequence[list[int]], evidence: Columns
    ) -> None:
        outcome = self.outcome
        passed = list(passed)
        if not any(demands[0]) and not any(demands[1]):
            self._was_limited = False
            return
        outcome.minutes += 1
        limited = any(one.part < _PASSED_PART for one in passed) or any(self._limits(kind, evidence) for kind in (0, 1))
        outcome.limited += limited
        outcome.limited_most += limited or self._was_limited
        self._was_limited = limited
        for quota, said in zip(self._quotas, evidence.evidence, strict=True):
            if said is not None and said.limited_up_to and (quota is None or quota > said.limited_up_to * _THOUSAND):
                outcome.at_least = True
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

    def _limits(self, kind: int, minute: Columns) -> bool:
        """Whether something waits for a limit, by what the recording says about it."""
        quota, said = self._quotas[kind], minute.evidence[kind]
        if quota is None or said is None or quota >= said.enough_from * _THOUSAND:
            return False
        if quota <= said.limited_up_to * _THOUSAND or said.needed is None:
            return True
        shares = [state.shares[kind] or 0 for state in self._brokers.values()]
        return any(need * _THOUSAND >= share for need, share in zip(said.needed, shares, strict=True))

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
