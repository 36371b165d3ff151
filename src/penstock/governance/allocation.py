# SPDX-License-Identifier: Apache-2.0
"""Divide the quota of a resource group between brokers: usage reports → the share of each broker (PIP-82).

Why: each broker enforces its own share of the quota, and computes it from the reports that all brokers have seen. So
the division is a pure function of them: brokers that saw the same reports agree, and nobody has to be asked.

Where: each broker calls it for its groups when a report arrives, for each of the four quotas of a group (messages and
bytes, publish and dispatch). Simulations and the table of strategies call the same functions. Amounts are whole numbers
of any unit, usually thousandths per second; shares are rounded down.

Theory of max-min fairness, the default
---------------------------------------

**Demand** is what a broker used plus what it held back. If all demand fits, each broker gets its demand and an equal
part of the rest. Otherwise the quota is poured over the demands like water: small ones are met, the others get the same
level. Each demand is taken for a little more than it is, by an equal part of 4 % of the quota: so brokers below the
level may grow at once, without waiting for the next report. That is at the expense of those at the level.

**A share depends on what others know.** More demand of one broker never makes the share of another one larger. So the
sum stays within the quota whatever is lost or late, if each broker divides by demands of the others that are not below
those by which they divide themselves. `quota_exchange` sees to that: a broker counts its own demand as far as all
others have acknowledged it, and theirs as it was reported last.

**A broker without usage** has 1 % of the quota, divided by the number of brokers, which nobody else gets.
If the quota is not used up, it also has a part of the rest. Its first report makes the others give way.

**A silent member** (dead, behind a partition, or not heard yet) counts as if it wanted all it can get.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Of this part of the quota, all brokers with demand have an equal part beyond it, if the quota is not short.
MARGIN_PERCENT: Final = 4
# All brokers without usage may together use this part of the quota.
RESERVE_PERCENT: Final = 1
# Max-min shares never sum to more than this part of the quota.
BOUND_PERCENT: Final = 100 + RESERVE_PERCENT


class Report(NamedTuple):
    """Last report of one broker about one number of one group. All amounts have the unit of the quota."""

    used: int
    held: int = 0  # demand that the broker held back


class Cluster(NamedTuple):
    """Which brokers there are beside those that sent reports."""

    members: int = 0  # all that are registered; at least the number of reports
    silent: int = 0  # members whose demand is not known; they have no reports


ALONE: Final = Cluster()


class Strategy(StrEnum):
    """How the quota is divided."""

    RESIDUAL_EVEN = "residual-even"
    RESIDUAL_PROPORTIONAL = "residual-proportional"
    PULSAR = "pulsar"
    MAX_MIN = "max-min"


def allocate(
    quota: int, reports: Mapping[str, Report], *, strategy: Strategy = Strategy.MAX_MIN, cluster: Cluster = ALONE
) -> dict[str, int]:
    """Return the share of each broker that sent a report.

    Args:
        quota: what all brokers together may use; 0 or more.
        reports: the last report of each broker, by its name. A broker that computes its share includes its own report.
        strategy: the rule.
        cluster: which brokers did not report; only max-min uses it.
    """
    return dict(zip(reports, RULES[strategy](quota, list(reports.values()), cluster), strict=True))


# -- the rules of the PIP


def residual_even(quota: int, reports: Sequence[Report], _: Cluster = ALONE) -> list[int]:
    """Each broker adds all of the unused quota to its usage. If the quota is used up: shrink and steal."""
    residual = quota - sum(report.used for report in reports)
    return [report.used + residual for report in reports] if residual > 0 else _shrunk(quota, reports)


def residual_proportional(quota: int, reports: Sequence[Report], _: Cluster = ALONE) -> list[int]:
    """Each broker adds its part of the unused quota, by usage. If the quota is used up: shrink and steal."""
    total = sum(report.used for report in reports)
    if total == 0:
        return [quota] * len(reports)
    return [_part(quota, report, total) for report in reports] if total < quota else _shrunk(quota, reports)


def _shrunk(quota: int, reports: Sequence[Report]) -> list[int]:
    """Usages in proportion to the quota, then pairs: lowest with highest, next with next.

    The lower one of a pair may be low because it is limited, so it may use half of what the higher one has more.
    """
    total = max(1, sum(report.used for report in reports))
    shares = [_part(quota, report, total) for report in reports]
    ordered = sorted(shares)
    stolen: dict[int, int] = {}  # by share; brokers with equal shares are treated alike
    for low, high in zip(ordered[: len(ordered) // 2], reversed(ordered), strict=False):
        stolen.setdefault(low, (high - low) // 2)
    return [share + stolen.get(share, 0) for share in shares]


def _part(quota: int, report: Report, total: int) -> int:
    return (2 * quota * report.used + total) // (2 * total)  # rounded to the nearest


# -- Apache Pulsar 4.2


def pulsar(quota: int, reports: Sequence[Report], _: Cluster = ALONE) -> list[int]:
    """The quota in proportion to usage, and at least 1; all of it while no usage was reported.

    That is what Pulsar's formula, used + (quota − total) · used / total, amounts to. Any ratio is a fixed point of it.
    """
    total = sum(report.used for report in reports)
    if total == 0:
        return [quota] * len(reports)
    return [max(1, quota * report.used // total) for report in reports]


# -- max-min fairness


def max_min(quota: int, reports: Sequence[Report], cluster: Cluster = ALONE) -> list[int]:
    """Max-min fairness on demand. Shares sum to `BOUND_PERCENT` of the quota at most."""
    return max_min_shares(quota, [report.used + report.held for report in reports], cluster)


def max_min_shares(quota: int, demands: list[int], cluster: Cluster = ALONE) -> list[int]:
    """The same for a column: the demand of each broker that reported."""
    terms = _terms(quota, demands, cluster)
    return [_share(demand, terms) for demand in demands]


def max_min_share(quota: int, demands: list[int], cluster: Cluster = ALONE) -> int:
    """Return the last of `max_min_shares`: a broker divides thousands of quotas."""
    return _share(demands[-1], _terms(quota, demands, cluster))


class _Terms(NamedTuple):
    """Terms that the shares of all brokers depend on."""

    level: int  # no broker with demand gets more, if the quota is short
    margin: int  # what each of them may exceed its demand by
    unused: int  # share of a broker without demand
    floor: int  # a broker's part of the reserve


def _terms(quota: int, demands: list[int], cluster: Cluster) -> _Terms:
    members = max(cluster.members, len(demands) + cluster.silent, 1)
    floor = quota * RESERVE_PERCENT // (100 * members)
    active = len(demands) - demands.count(0) + cluster.silent
    idle = members - active
    margin = quota * MARGIN_PERCENT // (100 * active) if active else 0
    rest = quota - sum(demands) - active * margin
    if rest < 0 or cluster.silent:
        wanted = [demand + margin if demand else 0 for demand in demands] + [quota + 1] * cluster.silent
        return _Terms(water_level(quota, wanted), margin, floor, floor)
    spare = rest // max(1, active + (idle > 0))
    return _Terms(quota, margin + spare, max(floor, spare // members), floor)


def _share(demand: int, terms: _Terms) -> int:
    return max(terms.floor, min(terms.level, demand + terms.margin) if demand else terms.unused)


def water_level(quota: int, demands: Sequence[int]) -> int:
    """The highest share, if demands below it are met and all others get it. The demands must exceed the quota."""
    left, number = quota, len(demands)
    for demand in sorted(demands):
        if demand * number >= left:
            break
        left -= demand
        number -= 1
    return left // number


RULES: Final[dict[Strategy, Callable[[int, Sequence[Report], Cluster], list[int]]]] = {
    Strategy.RESIDUAL_EVEN: residual_even,
    Strategy.RESIDUAL_PROPORTIONAL: residual_proportional,
    Strategy.PULSAR: pulsar,
    Strategy.MAX_MIN: max_min,
}
