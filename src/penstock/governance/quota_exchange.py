# SPDX-License-Identifier: Apache-2.0
"""One broker's part in sharing the quotas of resource groups: measure, report, listen, and set the own shares (PIP-82).

Why: brokers enforce a quota together without asking each other. Each one says what its groups use and miss, hears the
others, and computes its own shares by the same function (`allocation`).
Where: the live exchange gives it the time, the members and decoded reports, and publishes what `poll` returns;
simulations do the same on a virtual clock. Pure, without a clock.

Theory of operation
-------------------

**Measuring.** Twenty times per interval the counters of groups become estimates of their demand (`own_usage`). A
broker with many groups measures some of them each time, in turn.

**Reporting.** In each interval one report is sent. It lists the groups whose demand changed by 10 % or by 1 % of the
quota. Every few intervals it is complete: groups that it does not list are not used, so a lost
report does no harm for long. A change by 1 % of the quota, or to or from nothing, is reported at once, but at most
fifty times per interval, and once more in the next regular report. A report without groups says that the sender lives.

**Sharing.** A group's shares are computed when its demand was reported, when a report said something new about it, or
when its quota or the members changed. They follow from what was reported, not from the latest estimate.

**Acknowledging.** More demand is listed in each report until all members have acknowledged one; only then the broker
counts it for itself. A member divides by what it has heard before it acknowledges that. Less demand counts at once,
here and wherever it is heard. So for each broker, all others divide by the demand by which it divides itself, or by
more: and then shares never sum to more than `allocation.BOUND_PERCENT` of the quota.

**Asking.** While it is not known what all members use (after a start, when a silent member is heard again, or when a
group begins), each report asks for complete reports, and whoever is not known counts as if it wanted everything.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_S
from penstock.core.usage_report import (
    GROUP_ID_MAX,
    GROUPS_PER_REPORT,
    NOTHING,
    Covered,
    FourNumbers,
    GroupUsage,
    Loan,
    UsageReport,
)
from penstock.governance.allocation import RESERVE_PERCENT, RULES, Report, Strategy, max_min_share
from penstock.governance.loans import Loans
from penstock.governance.own_usage import Change, Demands, FourQuotas, LimitedGroup, OwnUsage, share_of
from penstock.governance.quota_members import QuotaMembers
from penstock.governance.report_senders import Refusal, Sender
from penstock.governance.resource_group import BURST_NS, GroupRate, GroupRates
from penstock.governance.usage_rows import UsageRows

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Sequence

# Per interval: measurements, early reports, and complete reports that others ask for.
MEASURED_PER_INTERVAL: Final = 20
EARLY_PER_INTERVAL: Final = 50
COMPLETE_PER_INTERVAL: Final = 5
# Groups that are measured at a time: the loop has other work.
MEASURED_AT_ONCE: Final = 500
# Groups whose shares are computed at a time after the members have changed: 2 ms.
DIVIDED_AT_ONCE: Final = 100
# A quota is contended if brokers demand nine tenths of it, or one demands more than its share: then changes are urgent.
_CONTENDED_TENTHS: Final = 9

_THOUSAND: Final = 1_000
_NEVER_NS: Final = 1 << 63
_UNLIMITED: Final[FourQuotas] = (None, None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    """How often brokers report, and how they divide.

    Attributes:
        interval_ns: time between two regular reports.
        complete_every: a complete report is sent once in so many intervals.
        measured_at_once: groups that are measured at a time; with many groups, each is measured less often.
        strategy: how quotas are divided. All but max-min divide once per interval, and report nothing early.
    """

    interval_ns: int = 5 * NS_PER_S
    complete_every: int = 5
    measured_at_once: int = MEASURED_AT_ONCE
    strategy: Strategy = Strategy.MAX_MIN

    def __post_init__(self) -> None:
        if self.interval_ns < EARLY_PER_INTERVAL or self.complete_every < 1:
            raise ValueError(
                f"want an interval of {EARLY_PER_INTERVAL} ns or more and a complete report in 1 or more of them, "
                f"got {self.interval_ns} and {self.complete_every}"
            )


class QuotaExchange:
    """Usage of all brokers as one of them knows it, and its shares."""

    def __init__(self, broker: str, incarnation: int, options: ExchangeOptions, now_ns: int) -> None:
        """Args: incarnation: the wall clock when this process began; the later of two processes counts."""
        self.broker = broker
        self.incarnation = incarnation
        self.options = options
        self._fair = options.strategy is Strategy.MAX_MIN
        self._members = QuotaMembers(broker, incarnation, options.interval_ns, now_ns, leases=self._fair)
        # Groups: their ids in order, and the places of their rows and columns.
        self._ids = array("Q")
        self._places = array("i")
        self._free_places: list[int] = []
        # By place.
        self._id_of = array("Q")
        self._groups: list[LimitedGroup | None] = []
        self._quotas: list[FourQuotas] = []
        self._own = OwnUsage()
        self._others = UsageRows()
        self._loans = Loans(options.interval_ns)
        self._lending: set[int] = set()  # places whose unused amounts are counted
        # Places to report: at once, and in the regular report. The latter has those of early reports, too: they may
        # have been lost.
        self._early: set[int] = set()
        # Places with demand that not all members know, and the reports of it that they have not acknowledged.
        self._unknown: dict[int, list[Demands]] = {}
        self._fresh: dict[int, set[int]] = {}  # new places, and the members that have not said yet what they use
        self._changed: set[int] = set()
        self._to_review = False  # a report may have changed how quotas are divided
        self._heard: set[int] = set()  # places of which a report said something new
        self._sequence = incarnation  # so numbers are never used again
        self._cycle = 0
        self._to_divide = 0  # groups whose shares are to be computed, because the members have changed
        self._measured = 0  # how many of the groups were measured in this round
        self._next_measure_ns = self._next_regular_ns = now_ns
        self._sent_ns = now_ns - options.interval_ns
        self._complete_ns = now_ns  # when a complete report was sent last
        self._complete_at_ns = now_ns  # when one is due before its turn
        self._is_acknowledged = False  # perhaps all members know some demand now
        self._answers = False  # whether another broker waits for acknowledgements

    @property
    def refused(self) -> Counter[Refusal]:
        """How many reports did not count, and why."""
        return self._members.refused

    @property
    def nbytes(self) -> int:
        """Memory of what is known of all brokers' usage."""
        columns = (self._ids, self._places, self._id_of)
        lists = len(self._groups) * 16
        return self._own.nbytes + self._others.nbytes + lists + sum(len(column) * column.itemsize for column in columns)

    def others(self, group: int) -> dict[str, FourNumbers]:
        """Return what each of the other brokers wants of a group; thousandths per second."""
        place = self._place(group)
        if place is None:
            return {}
        return {
            name: _four(list(demand))
            for name, number in self._members.numbers()
            if (demand := self._others.demand(place, number))
        }

    # -- groups and members

    def set_group(self, group: int, quotas: FourQuotas, limited: LimitedGroup, now_ns: int) -> None:
        """Begin to share a group, or change its quotas (thousandths per second; None: no limit)."""
        at = bisect_left(self._ids, group)
        if at == len(self._ids) or self._ids[at] != group:
            self._insert(at, group)
        place = self._places[at]
        if self._groups[place] is not limited:
            self._groups[place] = limited
            self._own.count(place, limited, now_ns)
        self._quotas[place] = quotas
        self._apply(place, now_ns)

    def remove_group(self, group: int) -> None:
        """Forget a group. The other brokers learn it from the next complete report."""
        place = self._place(group)
        if place is None:
            return
        at = bisect_left(self._ids, group)
        del self._ids[at], self._places[at]
        self._others.clear_group(place)
        self._groups[place] = None
        self._free_places.append(place)
        self._heard.discard(place)
        self._lending.discard(place)
        self._loans.forget(place)
        self._early.discard(place)
        self._changed.discard(place)
        self._unknown.pop(place, None)
        self._fresh.pop(place, None)

    def serves(self, group: int) -> bool:
        """Whether a group is shared here: others need not be decoded."""
        return self._place(group) is not None

    def set_members(self, brokers: Collection[str], now_ns: int) -> None:
        """Set the registered brokers of the cluster. What others used is forgotten when they leave."""
        if self._members.outside:  # Others may have forgotten what this broker wants.
            for place in self._places:
                if self._own.reported(place) != NOTHING:
                    self._own.know_nothing(place)
                    self._unknown[place] = []
        for number in self._members.set_members(brokers, now_ns):
            self._forget(number)
            self._has_said_all(number)
        self._review(now_ns)
        self._to_divide = len(self._places)

    # -- time

    @property
    def poll_at_ns(self) -> int:
        """When `poll` has something to do, if nothing arrives before."""
        if self._to_divide or self._heard or self._to_review or self._is_acknowledged:
            return 0
        at_ns = min(self._next_measure_ns, self._next_regular_ns, self._complete_at_ns)
        if self._early or self._loans.granted or self._answers:
            at_ns = min(at_ns, self._sent_ns + self.options.interval_ns // EARLY_PER_INTERVAL)
        return at_ns

    def poll(self, now_ns: int, wall_ms: int) -> list[UsageReport]:
        """Measure, if it is time; return the reports to publish: usually one, or none."""
        interval_ns = self.options.interval_ns
        if self._to_review:
            self._to_review = False
            self._review(now_ns)
        if self._is_acknowledged:
            self._is_acknowledged = False
            self._count_known(now_ns)
        if self._to_divide:
            self._divide_some(now_ns)
        while self._heard:
            self._apply(self._heard.pop(), now_ns)
        due = now_ns >= self._complete_at_ns
        if now_ns >= self._next_measure_ns:
            self._next_measure_ns = now_ns + interval_ns // MEASURED_PER_INTERVAL
            self._review(now_ns)
            self._count_known(now_ns)
            self._measure(now_ns)
            due = due or self._is_urgent(now_ns)
        regular = now_ns >= self._next_regular_ns
        if regular:
            self._next_regular_ns += interval_ns * (1 + (now_ns - self._next_regular_ns) // interval_ns)
            self._cycle += 1
            if not self._fair:
                self._apply_all(now_ns)
        elif (
            self._early or self._loans.granted or self._answers
        ) and now_ns - self._sent_ns >= interval_ns // EARLY_PER_INTERVAL:
            due = True
        return self._reports(now_ns, wall_ms, regular=regular) if due or regular else []

    def _measure(self, now_ns: int) -> None:
        start = self._measured if self._measured < len(self._places) else 0
        self._measured = start + self.options.measured_at_once
        for place in self._places[start : self._measured]:
            group = self._groups[place]
            assert group is not None
            if self._fair:
                self._lend(place, group, now_ns)
            change = self._own.measure(place, self._quotas[place], group, now_ns, with_held=self._fair)
            self._to_report(place, change)
            if change is Change.EARLY and self._fair:
                self._report_demand(place, now_ns)
                self._apply(place, now_ns)
        if not self._members.all_answer(now_ns):
            self._early.update(filter(self._own.rises, self._unknown))

    def _lend(self, place: int, group: LimitedGroup, now_ns: int) -> None:
        """Lend what was not used since the last measurement, if something waits elsewhere.

        If something waits here, it came only now, and may use it.
        """
        lends = self._loans.are_wanted(place) or self._own.waits(place)
        began = lends and place not in self._lending
        (self._lending.add if lends else self._lending.discard)(place)
        if not lends:
            return
        stopped = self._own.elapsed_ns(place, now_ns) > 2 * self._measured_ns
        for first, limiter in ((0, group.publish), (2, group.dispatch)):
            for kind, spilled in enumerate(limiter.spilled(now_ns), first):
                quota, borrowed = self._quotas[place][kind], self._loans.borrowed(place, kind)
                if quota is None or began or stopped:
                    continue  # What was not used before, or while this process was stopped, nobody can use any more.
                most = share_of(group, kind) * self._measured_ns * 2 // NS_PER_S
                amount = min(spilled, most + borrowed)
                if limiter.waits_since_ns is not None:
                    group.borrow(kind, amount, now_ns)
                else:
                    members = self._members.cluster.members
                    self._loans.collect(place, kind, self._id_of[place], amount, quota, members)

    @property
    def _measured_ns(self) -> int:
        """Time between two measurements of a group."""
        rounds = 1 + len(self._places) // self.options.measured_at_once
        return rounds * self.options.interval_ns // MEASURED_PER_INTERVAL

    def _to_report(self, place: int, change: Change) -> None:
        if change is not Change.NONE:
            self._changed.add(place)
        if change is Change.EARLY and self._fair:
            self._early.add(place)

    # -- reports

    def report_all(self, now_ns: int) -> None:
        """Let the next report be complete: earlier ones may have been lost."""
        self._complete_at_ns = min(self._complete_at_ns, now_ns)

    def leave(self, wall_ms: int) -> UsageReport:
        """Return the last report of this process: it uses nothing any more."""
        self._sequence += 1
        return UsageReport(self.broker, self.incarnation, self._sequence, wall_ms, covered=Covered())

    def receive(self, report: UsageReport, now_ns: int, wall_ms: int) -> Refusal | None:
        """Take a report of another broker into account; or return why it does not count."""
        sender = self._members.accept(report, now_ns, wall_ms)
        self._to_review = self._to_review or self._members.asks or isinstance(sender, Refusal)
        if isinstance(sender, Refusal):
            return sender
        self._answers = self._answers or report.urgent
        self._is_acknowledged = self._is_acknowledged or bool(report.heard and self._unknown)
        if report.asks:
            # At most some times per interval: all may ask at the same time, again and again.
            at_ns = max(now_ns, self._complete_ns + self.options.interval_ns // COMPLETE_PER_INTERVAL)
            self._complete_at_ns = min(self._complete_at_ns, at_ns)
        for borrower in report.borrowers:
            sent_ns = self._members.sent_ns(borrower.sequence)
            if borrower.broker == self.broker and self._loans.are_new(borrower, sent_ns, now_ns):
                self._borrow(borrower.loans, now_ns)
        for usage in report.groups:
            place = self._place(usage.group)
            if place is None:
                continue
            self._learn(place, sender.number, usage)
            if self._fair and self._own.stale[place]:
                self._heard.add(place)
        if report.covered is not None:
            self._forget_unlisted(sender, report, report.covered)
            if self._members.hears_us(report, now_ns) and sender.has_covered(report.covered):
                self._has_said_all(sender.number)
                self._to_review = True
        return None

    def _borrow(self, loans: Sequence[Loan], now_ns: int) -> None:
        for loan in loans:
            place = self._place(loan.group)
            quota = None if place is None else self._quotas[place][loan.kind]
            if place is not None and quota is not None:
                group = self._groups[place]
                assert group is not None
                amount = min(loan.amount, quota * BURST_NS // NS_PER_S)
                self._loans.borrow(place, loan.kind, amount)
                group.borrow(loan.kind, amount, now_ns)

    def _learn(self, place: int, number: int, usage: GroupUsage) -> None:
        """Remember what a broker uses of a group."""
        demands = _sum(usage.used, usage.held) if self._fair else usage.used
        others = self._others
        changed = others.remove(place, number) if demands == NOTHING else others.put(place, number, demands)
        self._loans.waits(place, number, usage.waiting)
        if changed:
            self._own.stale[place] = True

    def _forget_unlisted(self, sender: Sender, report: UsageReport, covered: Covered) -> None:
        listed = {usage.group for usage in report.groups}
        for place in self._others.groups_of(sender.number):
            group = self._id_of[place]
            if covered.first <= group <= covered.last and group not in listed:
                self._others.remove(place, sender.number)
                self._loans.waits(place, sender.number, NOTHING)
                if self._fair:
                    self._heard.add(place)

    def _reports(self, now_ns: int, wall_ms: int, *, regular: bool) -> list[UsageReport]:
        complete = now_ns >= self._complete_at_ns or (regular and self._cycle % self.options.complete_every == 0)
        urgent = self._is_urgent(now_ns)
        due = self._early | self._changed if regular or complete else set(self._early)
        for place in due:
            self._report_demand(place, now_ns)
        due |= self._unknown.keys()
        if complete:
            due.update([place for place in self._places if self._own.reported(place) != NOTHING])
            self._complete_ns, self._complete_at_ns = now_ns, _NEVER_NS
        elif len(due) > GROUPS_PER_REPORT:
            due = set(islice(chain(self._unknown, due), GROUPS_PER_REPORT))
        usages = [self._usage(place, now_ns) for place in sorted(due, key=self._id_of.__getitem__)]
        if complete:
            usages = [usage for usage in usages if _sum(usage.used, usage.held) != NOTHING]
        if regular:
            self._changed -= due
        self._early -= due
        self._sent_ns = now_ns
        self._answers = False
        heard = self._members.acknowledgements(now_ns, every=regular or complete or self._asks)
        reports = [
            self._report(part, complete=complete, wall_ms=wall_ms)._replace(heard=heard, urgent=urgent)
            for part in _parts(usages)
        ]
        if self._loans.granted:
            known = partial(self._members.heard, now_ns=now_ns)
            reports[-1] = reports[-1]._replace(borrowers=self._loans.take(known))
        for report in reports:
            self._members.sent(report.sequence, now_ns)
        for place, waiting in self._unknown.items():
            if len(reports) == 1 and place in due:
                self._own.sent(place, waiting, self._sequence)
            else:
                waiting.clear()  # A member may acknowledge this report without having heard of the group.
        return reports

    def _report(self, part: _Part, wall_ms: int, *, complete: bool) -> UsageReport:
        usages, first, last = part
        self._sequence += 1
        return UsageReport(
            self.broker,
            self.incarnation,
            self._sequence,
            wall_ms,
            tuple(usages),
            covered=Covered(first, last) if complete else None,
            asks=self._asks,
        )

    def _usage(self, place: int, now_ns: int) -> GroupUsage:
        """The group as it is reported: from now on all brokers reckon with this."""
        group, quotas = self._groups[place], self._quotas[place]
        assert group is not None
        shares = self._apply(place, now_ns)
        demand = self._own.reported(place)
        used = _four([min(want, want if share is None else share) for want, share in zip(demand, shares, strict=True)])
        held = _four([want - amount for want, amount in zip(demand, used, strict=True)])
        waiting = self._own.waiting(place, quotas, group)
        return GroupUsage(self._id_of[place], group.topics, used, held, waiting)

    def _report_demand(self, place: int, now_ns: int) -> None:
        """Let the latest estimate be what is reported. More than before counts when all members know it."""
        reports = self._unknown.get(place, [])
        if self._own.report(place, reports, rises=self._members.all_answer(now_ns)):
            self._unknown[place] = reports

    def _count_known(self, now_ns: int) -> None:
        known = self._members.known_by_all(now_ns)
        acknowledged = [place for place, reports in self._unknown.items() if reports and reports[0].sequence <= known]
        for place in acknowledged:
            if self._own.all_know(place, self._unknown[place], known):
                del self._unknown[place]
            self._apply(place, now_ns)

    def _is_urgent(self, now_ns: int) -> bool:
        """Whether this broker waits for acknowledgements."""
        return self._asks or any(map(self._own.is_contended, self._unknown)) or self._members.lease_ends(now_ns)

    @property
    def _asks(self) -> bool:
        return self._members.asks or bool(self._fresh)

    # -- shares

    def _apply_all(self, now_ns: int) -> None:
        for place in self._places:
            self._apply(place, now_ns)

    def _divide_some(self, now_ns: int) -> None:
        """Compute the shares of some groups, from the last one on; `poll_at_ns` asks for the next ones."""
        last = min(self._to_divide, len(self._places))
        self._to_divide = max(0, last - DIVIDED_AT_ONCE)
        for place in self._places[self._to_divide : last]:
            self._apply(place, now_ns)

    def _apply(self, place: int, now_ns: int) -> list[int | None]:
        """Compute and enforce the own shares of a group."""
        group, quotas, own, others = self._groups[place], self._quotas[place], self._own, self._others
        assert group is not None
        own.stale[place] = False
        shares: list[int | None] = [None, None, None, None]
        contended = False
        rows = others.rows(place)
        reported = own.reported(place)
        for kind, quota in enumerate(quotas):
            if quota is None:
                continue
            demands = others.kind(rows, kind)
            contended = contended or (sum(demands) + reported[kind]) * 10 > quota * _CONTENDED_TENTHS
            demands.append(own.known(place, kind) if self._fair else reported[kind])
            shares[kind] = self._share(place, quota, demands)
        self._to_report(place, own.set_contended(place, quotas, group, contended=contended))
        publish = _changed(group.publish.share, shares[0], shares[1])
        dispatch = _changed(group.dispatch.share, shares[2], shares[3])
        if publish is not group.publish.share or dispatch is not group.dispatch.share:
            group.set_share(GroupRates(publish, dispatch), now_ns)
        return shares

    def _share(self, place: int, quota: int, demands: list[int]) -> int:
        """Return the own share, by the demands of all; the own one is the last."""
        cluster = self._members.cluster
        if self._members.outside:
            return quota * RESERVE_PERCENT // (100 * cluster.members)
        if not self._fair:
            return RULES[self.options.strategy](quota, list(map(Report, demands)), cluster)[-1]
        if place in self._fresh:
            cluster = cluster._replace(silent=min(cluster.members - 1, cluster.silent + len(self._fresh[place])))
        return max_min_share(quota, demands, cluster)

    # -- members

    def _review(self, now_ns: int) -> None:
        """Find out who is absent. If that changes anything, `poll` computes all shares, some at a time."""
        changed, forgotten = self._members.review(now_ns)
        for number in forgotten:
            self._forget(number)
        if changed:
            self._to_divide = len(self._places)

    def _forget(self, number: int) -> None:
        for place in self._others.groups_of(number):
            self._others.remove(place, number)
            self._loans.waits(place, number, NOTHING)

    def _has_said_all(self, number: int) -> None:
        """A member has said which groups it uses, or has left: new groups need not wait for it."""
        for place, numbers in list(self._fresh.items()):
            numbers.discard(number)
            if not numbers:
                del self._fresh[place]
            self._heard.add(place)

    # -- places

    def _place(self, group: int) -> int | None:
        at = bisect_left(self._ids, group)
        return self._places[at] if at < len(self._ids) and self._ids[at] == group else None

    def _insert(self, at: int, group: int) -> None:
        if self._free_places:
            place = self._free_places.pop()
            self._id_of[place] = group
        else:
            place = len(self._groups)
            self._groups.append(None)
            self._quotas.append(_UNLIMITED)
            self._id_of.append(group)
        self._own.begin(place)
        self._others.add_group(place)
        if self._fair and (numbers := self._members.known()):
            last = next(reversed(self._fresh.values()), None)
            self._fresh[place] = last if last == numbers else numbers  # one object for all that begin together
        self._ids.insert(at, group)
        self._places.insert(at, place)


def quotas_of(rates: GroupRates) -> FourQuotas:
    """Return a quota in thousandths per second."""
    publish, dispatch = rates.publish, rates.dispatch
    return (
        _thousandths(publish.messages),
        _thousandths(publish.bytes),
        _thousandths(dispatch.messages),
        _thousandths(dispatch.bytes),
    )


_Part = tuple[list[GroupUsage], int, int]  # what one report lists, and the first and last id that it covers


def _parts(usages: list[GroupUsage]) -> list[_Part]:
    """Divide what is to be reported into reports of a bounded size, which cover all ids together."""
    cuts = [*range(0, len(usages), GROUPS_PER_REPORT), len(usages)] if usages else [0, 0]
    parts = []
    first = 0
    for start, end in pairwise(cuts):
        last = usages[end].group - 1 if end < len(usages) else GROUP_ID_MAX
        parts.append((usages[start:end], first, last))
        first = last + 1
    return parts


def _sum(first: FourNumbers, second: FourNumbers) -> FourNumbers:
    return (first[0] + second[0], first[1] + second[1], first[2] + second[2], first[3] + second[3])


def _four(numbers: list[int]) -> FourNumbers:
    first, second, third, fourth = numbers
    return first, second, third, fourth


def _changed(before: GroupRate, messages: int | None, nbytes: int | None) -> GroupRate:
    """Return the rate of these shares; the same object if it is the same."""
    now = (_rate(messages), _rate(nbytes))
    return before if now == (before.messages, before.bytes) else GroupRate(*now)


def _rate(share: int | None) -> float | None:
    if share is None:
        return None
    return share // _THOUSAND if share % _THOUSAND == 0 else share / _THOUSAND


def _thousandths(rate: float | None) -> int | None:
    if rate is None:
        return None
    return rate * _THOUSAND if isinstance(rate, int) else round(rate * _THOUSAND)
