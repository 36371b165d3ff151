# SPDX-License-Identifier: Apache-2.0
"""Replays recorded usage of one resource group under other quotas, with the broker's own division of quotas.

Why: quotas are chosen by trying them on what happened. Where: `penstock spark whatif`, distributed by group.

Theory of operation
-------------------

A recording says for each minute and broker what was used, under which quota and share, for how long something waited,
what waited at the end, and which share would have been enough (`NeededRate`). What has arrived in a minute is what was
used, and what waits more than before. Every five seconds the quota is divided by `allocation`, from what arrives.
What fits into a broker's share passes; the rest waits for the next minute. So with the recorded quota
the replay passes what was recorded. What clients would have sent if they had been answered sooner is not known, and
not invented: after minutes that were limited, what passes with a larger quota is at least that.

Messages and bytes of a class (publish, dispatch) pass together: the scarcer one decides.

Whether a minute is limited follows from the strongest evidence that there is (`Evidence`):

1. Less than all of it passes: limited.
2. It was limited as recorded, and the quota is no larger: limited.
3. It was not limited as recorded, and the quota is no smaller: not limited.
4. A share is no larger than what was needed there: limited. Older records do not say what was needed; then a smaller
   quota is not proven to be enough, and the minute counts as limited.

A minute is in columns, not objects. While all demand fits, a minute takes one division and no sums by broker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from operator import add, gt, mul
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.governance.allocation import RULES, Cluster, Report, Strategy, max_min_shares, water_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MINUTE_S: Final = 60
INTERVAL_S: Final = 5
_CYCLES: Final = MINUTE_S // INTERVAL_S
_THOUSAND: Final = 1_000
MINUTE_MS: Final = MINUTE_S * _THOUSAND
# Something waited in nearly all of a minute: twice the share is a first guess at what was needed, as in `demand`.
_ALMOST_ALWAYS: Final = 0.95
# A minute is limited if less than this part of what was wanted passed; shares are rounded down to thousandths.
_PASSED_PART: Final = 0.999

Quotas: TypeAlias = tuple[float | None, float | None]  # messages and bytes per second


class Used(NamedTuple):
    """Usage of one class of traffic in a minute, as one broker recorded it. Pairs are of messages and bytes.

    Attributes:
        needed: the smallest share with which nothing would have waited, as far as the broker saw; None: not recorded.
        held: what waited at the end; None: not recorded.
    """

    messages: int
    bytes: int
    limited_ms: int
    quota: Quotas
    share: Quotas
    needed: Quotas = (None, None)
    held: tuple[float | None, float | None] = (None, None)


class Passed(NamedTuple):
    """Traffic that one broker would have passed in a minute."""

    messages: float
    bytes: float
    share: Quotas  # at the end of the minute
    part: float  # of what was wanted


@dataclass(slots=True)
class Outcome:
    """Result of the replay of a class of traffic.

    Attributes:
        minutes: in which something was used or waited.
        limited: of these, minutes in which something had to wait on some broker.
        limited_most: the same, with minutes that follow a limited one: the rest of a burst may wait in them.
        at_least: whether minutes that were limited as recorded had a larger quota here; more may have been wanted.
        passed: messages and bytes.
        recorded: the same, as recorded.
        waiting: known work that waits at the end, or has waited longest: messages and bytes.
        fairness: mean of Jain's index of what brokers got, compared with max-min fairness; 1 is fair.
    """

    minutes: int = 0
    limited: int = 0
    limited_most: int = 0
    at_least: bool = False
    passed: tuple[float, float] = (0.0, 0.0)
    recorded: tuple[int, int] = (0, 0)
    waiting: tuple[float, float] = (0.0, 0.0)
    waiting_max: tuple[float, float] = (0.0, 0.0)
    fairness_sum: float = 0.0

    @property
    def fairness(self) -> float:
        return self.fairness_sum / self.minutes if self.minutes else 1.0

    def allows(self, target: float) -> bool:
        """Whether at least this part of the minutes is certainly not limited."""
        return self.limited_most <= (1 - target) * self.minutes + _ROUNDING


class Evidence(NamedTuple):
    """Bounds of quotas of one kind that follow from a recorded minute.

    Attributes:
        limited_up_to: with quotas up to this one, something waits; 0: unknown.
        enough_from: with quotas from this one on, nothing waits; infinite: unknown.
        needed: by number of broker: shares must be larger than this; None: unknown.
    """

    limited_up_to: float
    enough_from: float
    needed: Sequence[float] | None


class Columns(NamedTuple):
    """One minute of one class of traffic, by number of broker. Brokers keep their numbers; later ones are added.

    Attributes:
        messages: that have arrived.
        bytes: that have arrived.
        used: messages and bytes of all brokers, as recorded; None: as they have arrived.
        quota: in force.
        evidence: of messages and bytes; None: only sums are known.
    """

    messages: Sequence[float]
    bytes: Sequence[float]
    used: tuple[int, int] | None = None
    quota: Quotas = (None, None)
    evidence: tuple[Evidence | None, Evidence | None] = (None, None)


class QuotaReplay:
    """One class of traffic of one group. Feed it minutes in order."""

    def __init__(self, quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> None:
        """Args: quotas: messages and bytes per second of all brokers together; None: no limit."""
        self.outcome = Outcome()
        self.set_quotas(quotas)
        self._strategy = strategy
        self._recording = Recording()
        self._was_limited = False
        # By kind and number of broker. Missing ones have 0.
        self._shares: list[list[int]] = [[], []]
        self._waiting: list[list[float]] = [[], []]

    def set_quotas(self, quotas: Quotas) -> None:
        """Change the quotas for the minutes that follow."""
        self._quotas = [None if quota is None else round(quota * _THOUSAND) for quota in quotas]

    def feed(self, minute: Mapping[str, Used]) -> dict[str, Passed]:
        """Replay a minute, by broker. Brokers that are not named used nothing."""
        rows = self._recording.rows
        wants, parts = self.feed_columns(self._recording.columns(minute))
        shares = [
            [share / _THOUSAND for share in column] if quota is not None else [None] * len(rows)
            for column, quota in zip(self._shares, self._quotas, strict=True)
        ]
        found = {}
        for name, row in rows.items():
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
            want = amounts
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
        self._count(minute, passed, wants, demands, parts)
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
                shares, settled = max_min_shares(quota, wanted), True
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
        minute: Columns,
        passed: list[float],
        wants: list[Sequence[float]],
        demands: list[list[int]],
        parts: list[float] | None,
    ) -> None:
        outcome = self.outcome
        if not any(round(max(want, default=0) * _THOUSAND / MINUTE_S) for want in wants):
            self._was_limited = False
            return
        limited = self._limits(minute, parts)
        outcome.minutes += 1
        outcome.limited += limited
        outcome.limited_most += limited or self._was_limited
        self._was_limited = limited
        outcome.at_least = outcome.at_least or self._is_beyond_what_was_seen(minute)
        recorded = minute.used or (round(sum(minute.messages)), round(sum(minute.bytes)))
        outcome.passed = (outcome.passed[0] + passed[0], outcome.passed[1] + passed[1])
        outcome.recorded = (outcome.recorded[0] + recorded[0], outcome.recorded[1] + recorded[1])
        outcome.waiting = (sum(self._waiting[0]), sum(self._waiting[1]))
        outcome.waiting_max = (
            max(outcome.waiting_max[0], outcome.waiting[0]),
            max(outcome.waiting_max[1], outcome.waiting[1]),
        )
        outcome.fairness_sum += self._fairness(wants, demands, parts)

    def _limits(self, minute: Columns, parts: list[float] | None) -> bool:
        """Whether something waits in this minute."""
        if parts is not None and min(parts) < _PASSED_PART:
            return True
        for quota, shares, evidence in zip(self._quotas, self._shares, minute.evidence, strict=True):
            if quota is None or evidence is None or quota >= evidence.enough_from * _THOUSAND:
                continue
            if quota <= evidence.limited_up_to * _THOUSAND or evidence.needed is None:
                return True
            if any(need * _THOUSAND >= share for need, share in zip(evidence.needed, shares, strict=True)):
                return True
        return False

    def _is_beyond_what_was_seen(self, minute: Columns) -> bool:
        """Whether the minute was limited with a smaller quota."""
        return any(
            evidence is not None
            and evidence.limited_up_to > 0
            and (quota is None or quota > evidence.limited_up_to * _THOUSAND)
            for quota, evidence in zip(self._quotas, minute.evidence, strict=True)
        )

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


_NOTHING: Final = Used(0, 0, 0, (None, None), (None, None), (0.0, 0.0), (0.0, 0.0))
# Of a number of minutes that is computed.
_ROUNDING: Final = 1e-6


class Recording:
    """Puts recorded minutes into columns, in order.

    Attributes:
        rows: the number of each broker.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._held: dict[str, tuple[float, float]] = {}

    def columns(self, minute: Mapping[str, Used]) -> Columns:
        """Return a minute in columns; new brokers get the next numbers."""
        for name in minute:
            self.rows.setdefault(name, len(self.rows))
        used = [minute.get(name, _NOTHING) for name in self.rows]
        messages: list[float] = []
        nbytes: list[float] = []
        for name, one in zip(self.rows, used, strict=True):
            before = self._held.get(name, (0.0, 0.0))
            now = self._held[name] = (one.held[0] or 0.0, one.held[1] or 0.0)
            messages.append(max(0.0, one.messages + now[0] - before[0]))
            nbytes.append(max(0.0, one.bytes + now[1] - before[1]))
        quota = quotas_of(minute)
        evidence = (_evidence(used, 0, quota[0]), _evidence(used, 1, quota[1]))
        sums = (sum([one.messages for one in used]), sum([one.bytes for one in used]))
        return Columns(messages, nbytes, sums, quota, evidence)


def quotas_of(minute: Mapping[str, Used]) -> Quotas:
    """The quotas in force; when they are changed, brokers hear of it at different times, and the largest counts."""
    messages, nbytes = ([quota for one in minute.values() if (quota := one.quota[kind]) is not None] for kind in (0, 1))
    return max(messages, default=None), max(nbytes, default=None)


def _evidence(used: Sequence[Used], kind: int, quota: float | None) -> Evidence | None:
    known = all(one.needed[kind] is not None or not (one.messages or one.bytes) for one in used)
    needed = [_needed(one, kind) for one in used] if known else None
    if quota is None:
        return None if needed is None else Evidence(0.0, math.inf, needed)
    if any(_is_blamed(one, kind) for one in used):
        return Evidence(quota, math.inf, [_needed(one, kind) for one in used])
    return Evidence(0.0, quota, needed)


def _is_blamed(one: Used, kind: int) -> bool:
    """Whether something waited on a broker, and by what was needed it may have been for this kind of limit."""
    if not one.limited_ms or one.quota[kind] is None:
        return False
    parts = [_needed_part(one, other) for other in (0, 1)]
    return parts[kind] >= min(1.0, max(parts))


def _needed_part(one: Used, kind: int) -> float:
    """Return the needed rate as a part of the share; infinite if it is not known, 0 without a limit."""
    needed, share = one.needed[kind], one.share[kind]
    if one.quota[kind] is None:
        return 0.0
    return math.inf if needed is None or not share else needed / share


def _needed(one: Used, kind: int) -> float:
    """The share that is needed on a broker: at least what it saw, and more than a share with which something waited."""
    needed = one.needed[kind] or 0.0
    if not _is_blamed(one, kind):
        return needed
    share, part = one.share[kind] or one.quota[kind] or 0.0, min(1.0, one.limited_ms / MINUTE_MS)
    if needed > share and part < _ALMOST_ALWAYS:
        return needed
    return max(needed, share * (1 + part))


def replay(minutes: Iterable[Mapping[str, Used]], quotas: Quotas, *, strategy: Strategy = Strategy.MAX_MIN) -> Outcome:
    """Replay minutes, in order, and return what would have become of them."""
    recording = Recording()
    return _replay(map(recording.columns, minutes), quotas, strategy)


def _replay(minutes: Iterable[Columns], quotas: Quotas, strategy: Strategy = Strategy.MAX_MIN) -> Outcome:
    one = QuotaReplay(quotas, strategy=strategy)
    for minute in minutes:
        one.feed_columns(minute)
    return one.outcome


class Advice(NamedTuple):
    """A recommended quota.

    Attributes:
        quota: a whole number per second.
        at_least: whether more may be needed: minutes that were limited do not tell what was wanted in them.
    """

    quota: float
    at_least: bool


def recommend(minutes: Sequence[Mapping[str, Used]], kind: int, target: float) -> Advice | None:
    """Return the smallest quota with which at least the part `target` of the minutes is certainly not limited.

    It exceeds each quota with which, as recorded, a larger part of its own minutes was limited.

    Args:
        minutes: in order.
        kind: 0: messages, 1: bytes; the other is not limited.
        target: for example 0.99.

    Returns:
        A quota, to one part in 200, or None if nothing was used.
    """
    if not any(one.messages or one.bytes for minute in minutes for one in minute.values()):
        return None
    columns = list(map(Recording().columns, minutes))
    low = float(math.floor(_too_small(columns, kind, target)))
    high = low + 1
    for _ in range(60):
        if _replay(columns, _only(kind, high)).allows(target):
            break
        low, high = high, high * 2
    else:
        return None
    while high - low > max(1.0, high / 200):
        middle = float(round((low + high) / 2))
        if _replay(columns, _only(kind, middle)).allows(target):
            high = middle
        else:
            low = middle
    said = [one.evidence[kind] for one in columns]
    return Advice(high, at_least=any(one is not None and 0 < one.limited_up_to < high for one in said))


def _too_small(minutes: Iterable[Columns], kind: int, target: float) -> float:
    """The largest quota of whose own minutes more were limited than may be; 0: there is none."""
    counts: dict[float, list[int]] = {}
    for minute in minutes:
        evidence, quota = minute.evidence[kind], minute.quota[kind]
        if evidence is not None and quota is not None:
            count = counts.setdefault(quota, [0, 0])
            count[0] += 1
            count[1] += evidence.limited_up_to > 0
    return max((quota for quota, (all_, limited) in counts.items() if limited > (1 - target) * all_), default=0.0)


def _only(kind: int, quota: float) -> Quotas:
    return (quota, None) if kind == 0 else (None, quota)
