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

**Nobody takes what another broker still holds.** A report says which share its sender has. A share grows only into what
is free: 104 % of the quota less all reported shares. Several that grow divide it in proportion to what they miss. So
the order in which reports arrive, and whether some are lost, decides how soon a share grows, never whether the quota
is exceeded.

**A newcomer** (a broker without usage) has 1 % of the quota, divided by the number of brokers, which nobody else gets.
If the quota is not used up, it also has an equal part of the rest. Its first report makes the others give way.

**A lease** ends when a broker was not heard for some cycles although it is still a member. The two are then perhaps on
two sides of a partition. Each of the absent brokers counts as holding an n-th of the quota, so the two sides together
never have more than the whole.
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
BOUND_PERCENT: Final = 100 + MARGIN_PERCENT + RESERVE_PERCENT


class Report(NamedTuple):
    """What one broker said last about one number of one group. All amounts have the unit of the quota."""

    used: int
    held: int = 0  # demand that the broker held back
    share: int = 0  # the share that it enforced when it sent the report


class Cluster(NamedTuple):
    """Which brokers there are beside those that sent reports."""

    members: int = 0  # all that are registered; at least the number of reports
    absent: int = 0  # members whose lease has ended; their reports do not count
    reserved: int = 0  # what they may still use for a while, beside their part of the quota
    unknown: bool = False  # some member's shares are not known, so no share may grow


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
    """Max-min fairness on demand. Shares sum to `BOUND_PERCENT` of the quota at most, if shares did before."""
    return max_min_shares(
        quota,
        [report.used + report.held for report in reports],
        [report.share for report in reports],
        cluster,
    )


def max_min_shares(quota: int, demands: list[int], shares: list[int], cluster: Cluster = ALONE) -> list[int]:
    """The same for columns: demand and present share of each broker that reported."""
    terms = _terms(quota, demands, cluster)
    return _grown([_wanted(demand, terms) for demand in demands], shares, terms)


def max_min_share(quota: int, demands: list[int], shares: list[int], cluster: Cluster = ALONE) -> int:
    """Return the last of `max_min_shares`, in half of the time: a broker divides thousands of quotas.

    What the others want is computed only if this share wants to grow and something is free.
    """
    terms = _terms(quota, demands, cluster)
    share, want = shares[-1], _wanted(demands[-1], terms)
    if want > share:
        free = terms.bound - sum(shares)
        if free <= 0:
            want = share
        else:
            wanted = [_wanted(demand, terms) for demand in demands]
            missing = sum([more - held for more, held in zip(wanted, shares, strict=True) if more > held])
            if missing > free:
                want = share + (want - share) * free // missing
    return max(terms.floor, want)


def max_min_settling(quota: int, demands: list[int], shares: list[int]) -> tuple[list[int], bool]:
    """Return `max_min_shares` of all members, and whether all have what they should have.

    If they have, dividing again gives the same.
    """
    terms = _terms(quota, demands, ALONE)
    wanted = [_wanted(demand, terms) for demand in demands]
    missing = sum([want - share for want, share in zip(wanted, shares, strict=True) if want > share])
    return _grown(wanted, shares, terms), terms.bound - sum(shares) >= missing


class _Terms(NamedTuple):
    """What the shares of all brokers depend on."""

    level: int  # no broker with demand gets more, if the quota is short
    margin: int  # what each of them may exceed its demand by
    unused: int  # share of a broker without demand
    floor: int  # a broker's part of the reserve
    bound: int  # of all shares together; 0 if none may grow


def _terms(quota: int, demands: list[int], cluster: Cluster) -> _Terms:
    members, absent, reserved, unknown = cluster
    members = max(members, len(demands) + absent, 1)
    floor = quota * RESERVE_PERCENT // (100 * members)
    if absent:
        quota = quota * (members - absent) // members
    active = len(demands) - demands.count(0)
    idle = members - absent - active
    margin = quota * MARGIN_PERCENT // (100 * active) if active else 0
    rest = quota - sum(demands) - active * margin
    level, unused = quota, floor
    if rest < 0:
        level = water_level(quota, [demand + margin if demand else 0 for demand in demands])
    else:
        spare = rest // max(1, active + (idle > 0))
        margin += spare
        unused = max(floor, spare // idle) if idle else 0
    return _Terms(level, margin, unused, floor, 0 if unknown else quota * (100 + MARGIN_PERCENT) // 100 - reserved)


def _wanted(demand: int, terms: _Terms) -> int:
    """The share that a broker should have, as soon as the others have given way."""
    return min(terms.level, demand + terms.margin) if demand else terms.unused


def water_level(quota: int, demands: Sequence[int]) -> int:
    """The highest share, if demands below it are met and all others get it. The demands must exceed the quota."""
    left, number = quota, len(demands)
    for demand in sorted(demands):
        if demand * number >= left:
            break
        left -= demand
        number -= 1
    return left // number


def _grown(wanted: list[int], shares: Sequence[int], terms: _Terms) -> list[int]:
    """Shrink at once; grow only into what nobody holds. Nobody has less than its part of the reserve."""
    free = max(0, terms.bound - sum(shares))
    floor = terms.floor
    missing = sum([want - share for want, share in zip(wanted, shares, strict=True) if want > share])
    if free >= missing:
        return [max(want, floor) for want in wanted]
    return [
        max(want if want <= share else share + (want - share) * free // missing, floor)
        for want, share in zip(wanted, shares, strict=True)
    ]


RULES: Final[dict[Strategy, Callable[[int, Sequence[Report], Cluster], list[int]]]] = {
    Strategy.RESIDUAL_EVEN: residual_even,
    Strategy.RESIDUAL_PROPORTIONAL: residual_proportional,
    Strategy.PULSAR: pulsar,
    Strategy.MAX_MIN: max_min,
}
