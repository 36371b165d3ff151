# SPDX-License-Identifier: Apache-2.0
"""Unused parts of a broker's shares, lent to brokers where something waits: amounts, each of which is used once.

Why: a share is what a broker may use at any time, and it follows demand by reports. Demand that comes in bursts is over
when they arrive. So what no longer fits into the bucket of a share is given away. The lender does not have it any more:
a loan that is lost, or whose holder is killed, is lost, and nothing is used twice.
Where: `quota_exchange` has one `Loans`.

**To whom.** Reports say what waits. All lenders give to each borrower what it can use, and in want of it the same
to all; each lender gives what it has collected to one of them, in turns.

**Soon.** An amount that is used much later than it was added would exceed the quota then. A loan says which report of
its borrower the lender has seen last, and how long ago. The borrower knows when it sent that report, so it knows how
long the two were under way, whatever the clocks say; beyond `LOAN_PART` of an interval, the loan is void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.core.usage_report import KINDS, LOANS_PER_REPORT, NOTHING, Borrower, FourNumbers, Loan
from penstock.governance.allocation import water_level

if TYPE_CHECKING:
    from collections.abc import Callable

# A report and the loan that answers it may together be under way for this part of an interval.
LOAN_PART: Final = 10
# What all members together collect before they lend it: the quota of this time. Less would be more reports.
COLLECTED_NS: Final = 20 * NS_PER_MS


class Loans:
    """Waiting demand of other members, and amounts to lend.

    Groups are places and members are numbers, as in `usage_rows`. Amounts are thousandths.
    """

    __slots__ = ("_age_ns_max", "_borrowed", "_collected", "_count", "_due", "_granted", "_waiting")

    def __init__(self, interval_ns: int) -> None:
        self._age_ns_max = interval_ns // LOAN_PART
        self._waiting: dict[int, dict[int, FourNumbers]] = {}  # by place and member
        self._collected: dict[tuple[int, int], int] = {}  # by place and kind
        self._borrowed: dict[tuple[int, int], int] = {}
        # By place and kind: what members were to get and did not yet, or got before.
        self._due: dict[tuple[int, int], dict[int, float]] = {}
        self._granted: dict[int, list[Loan]] = {}  # by member
        self._count = 0  # of granted loans

    # -- lending

    def waits(self, place: int, number: int, waiting: FourNumbers) -> None:
        """A member said what waits there for a group, of the four kinds."""
        members = self._waiting.setdefault(place, {})
        members.pop(number, None)
        if waiting != NOTHING:
            members[number] = waiting
        elif not members:
            self.forget(place)

    def are_wanted(self, place: int) -> bool:
        """Whether something waits elsewhere for this group."""
        return place in self._waiting

    def forget(self, place: int) -> None:
        """Nothing of this group is lent any more."""
        self._waiting.pop(place, None)
        for column in (self._collected, self._due, self._borrowed):
            for kind in range(KINDS):
                column.pop((place, kind), None)

    def collect(self, place: int, kind: int, group: int, amount: int, quota: int, members: int) -> None:
        """Add what was not used of a quota that so many members share, and lend it if it is worth a report."""
        wanted = {number: waiting[kind] for number, waiting in self._waiting.get(place, {}).items() if waiting[kind]}
        if not wanted:
            return
        key = place, kind
        amount += self._collected.pop(key, 0)
        if amount * members * NS_PER_S < quota * COLLECTED_NS or self._count >= LOANS_PER_REPORT:
            self._collected[key] = min(amount, quota)
            return
        due = self._due[key] = _due(wanted, amount, members, self._due.get(key, {}))
        borrower = max(due, key=due.__getitem__)
        due[borrower] -= amount
        self._granted.setdefault(borrower, []).append(Loan(group, kind, amount))
        self._count += 1

    @property
    def granted(self) -> bool:
        """Whether a report is to carry loans."""
        return bool(self._granted)

    def take(self, heard: Callable[[int], tuple[str, int, int] | None]) -> tuple[Borrower, ...]:
        """Return what the next report lends; `heard` as `QuotaMembers.heard`."""
        granted, self._granted, self._count = self._granted, {}, 0
        borrowers = []
        for number, loans in granted.items():
            found = heard(number)
            if found is not None:
                name, sequence, silent_ns = found
                borrowers.append(Borrower(name, sequence, silent_ns // NS_PER_MS, tuple(sorted(loans))))
        return tuple(borrowers)

    # -- borrowing

    def borrow(self, place: int, kind: int, amount: int) -> None:
        """Remember what was borrowed: what is not used of it is lent again."""
        self._borrowed[place, kind] = self._borrowed.get((place, kind), 0) + amount

    def borrowed(self, place: int, kind: int) -> int:
        """Return what was borrowed since the last call."""
        return self._borrowed.pop((place, kind), 0)

    def are_new(self, borrower: Borrower, sent_ns: int | None, now_ns: int) -> bool:
        """Whether loans to us may be used, which answer a report that we sent at this time; None: nobody knows when."""
        if sent_ns is None:
            return False
        return 0 <= now_ns - sent_ns - borrower.heard_ms_ago * NS_PER_MS <= self._age_ns_max


def _due(wanted: dict[int, int], amount: int, members: int, before: dict[int, float]) -> dict[int, float]:
    """Return the part that each borrower is due of this broker, with the next amount.

    Brokers that do not wait lend as much as this one, as far as it can know.
    """
    together = amount * max(1, members - len(wanted))
    if sum(wanted.values()) > together:
        level = water_level(together, list(wanted.values()))
        wanted = {number: min(want, level) for number, want in wanted.items()}
    total = max(1, sum(wanted.values()))
    return {number: before.get(number, 0.0) + amount * want / total for number, want in wanted.items()}
