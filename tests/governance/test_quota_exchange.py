# SPDX-License-Identifier: Apache-2.0
"""One broker's part in sharing quotas: what it reports and when, which reports count, and what its shares become."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.core.usage_report import (
    GROUPS_PER_REPORT,
    NOTHING,
    Acknowledgement,
    Covered,
    GroupUsage,
    UsageReport,
    member_id,
)
from penstock.governance.quota_exchange import ExchangeOptions, QuotaExchange, quotas_of
from penstock.governance.quota_members import LEASE_INTERVALS
from penstock.governance.report_senders import Refusal
from penstock.governance.resource_group import GroupLimiter, GroupRate, GroupRates

INTERVAL_S = 5
LEASE_S = LEASE_INTERVALS * INTERVAL_S
WALL_MS = 1_700_000_000_000
QUOTA = 1_000
GROUP = 42


class Group(GroupLimiter):
    topics = 2


class Broker:
    """One exchange, driven by hand: time passes with `pass_time`, and others are heard with `hear`.

    Those that were heard acknowledge each report that asks for it, while `acknowledged` is true.
    """

    def __init__(self, members: tuple[str, ...] = ("a", "b"), name: str = "a", incarnation: int = 10) -> None:
        rates = GroupRates(publish=GroupRate(messages=QUOTA))
        self.group = Group(rates, 0)
        self.exchange = QuotaExchange(name, incarnation, ExchangeOptions(), 0)
        self.exchange.set_group(GROUP, quotas_of(rates), self.group, 0)
        self.exchange.set_members(members, 0)
        self.now_ns = 0
        self.sequence = 0
        self.waiting = 0.0
        self.acknowledged = True
        self.heard: dict[str, int] = {}  # incarnation by name
        self.last = 0  # number of the last own report
        self.poll()

    def pass_time(self, seconds: float, *, rate: float = 0) -> list[UsageReport]:
        """Let time pass while publishers offer messages at this rate; return what was reported."""
        reports = []
        limiter = self.group.publish
        end_ns = self.now_ns + round(seconds * NS_PER_S)
        while self.now_ns < end_ns:
            self.now_ns += 10 * NS_PER_MS
            self.waiting = min(self.waiting + rate / 100, rate / 10 + 1) if rate else 0
            if limiter.ready(self.now_ns):
                left = limiter.left(self.now_ns)[0]
                passes = int(self.waiting) if left is None else min(int(self.waiting), left)
                limiter.charge(passes, passes * 100, self.now_ns)
                self.waiting -= passes
            if self.waiting >= 1:
                limiter.waits(self.now_ns)
            else:
                limiter.waits_no_more(self.now_ns)
            if self.now_ns >= self.exchange.poll_at_ns:
                reports += self.poll()
        return reports

    def poll(self) -> list[UsageReport]:
        reports = self.exchange.poll(self.now_ns, self.wall_ms)
        if reports:
            self.last = reports[-1].sequence
        if self.acknowledged and any(report.urgent for report in reports):
            for name, incarnation in self.heard.items():
                self.sequence += 1
                report = UsageReport(name, incarnation, self.sequence, self.wall_ms, heard=self.acknowledgement)
                self.exchange.receive(report, self.now_ns, self.wall_ms)
        return reports

    @property
    def acknowledgement(self) -> tuple[Acknowledgement, ...]:
        return (Acknowledgement(member_id(self.exchange.broker), self.last),)

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ns // NS_PER_MS

    def hear(
        self,
        broker: str = "b",
        *,
        used: int = 0,
        held: int = 0,
        complete: bool = True,
        incarnation: int = 1,
        sequence: int | None = None,
        late_ms: int = 0,
    ) -> Refusal | None:
        self.sequence += 1
        usage = GroupUsage(GROUP, 1, (used * 1_000, 0, 0, 0), (held * 1_000, 0, 0, 0))
        report = UsageReport(
            broker,
            incarnation,
            self.sequence if sequence is None else sequence,
            self.wall_ms - late_ms,
            (usage,) if used or held or not complete else (),
            Covered() if complete else None,
            heard=self.acknowledgement,
        )
        refusal = self.exchange.receive(report, self.now_ns, self.wall_ms)
        if refusal is None:
            self.heard[broker] = incarnation
        if self.exchange.poll_at_ns <= self.now_ns:
            self.poll()
        return refusal

    def hear_no_more(self) -> None:
        self.heard.clear()

    def settle(self, *, rate: float) -> None:
        """Some cycles with constant usage, in which the other broker is heard."""
        for _ in range(6):
            self.hear()
            self.pass_time(INTERVAL_S, rate=rate)

    @property
    def share(self) -> float:
        share = self.group.publish.share.messages
        assert share is not None
        return share


def usages(reports: list[UsageReport]) -> list[GroupUsage]:
    return [usage for report in reports for usage in report.groups]


# -- shares


def test_a_broker_that_is_alone_has_the_whole_quota_at_once() -> None:
    alone = Broker(members=("a",))
    alone.pass_time(0.3)
    assert alone.share == QUOTA


def test_s2_before_the_others_were_heard_a_broker_has_its_part_of_the_reserve() -> None:
    broker = Broker(members=("a", "b", "c", "d"))
    reports = broker.pass_time(4, rate=3_000)
    assert broker.share == pytest.approx(QUOTA * 0.01 / 4, rel=0.01)
    assert all(report.asks for report in reports)
    for name in "bcd":
        broker.hear(name)
    broker.pass_time(1, rate=3_000)
    assert broker.share > 0.9 * QUOTA


def test_demand_counts_when_all_members_have_acknowledged_it() -> None:
    broker = Broker()
    broker.hear(used=1_000, held=1_000)
    broker.acknowledged = False
    reports = broker.pass_time(2, rate=3_000)
    assert broker.share <= 0.05 * QUOTA
    assert all(report.urgent for report in reports[-3:])
    assert all(usages([report]) for report in reports[-3:])  # in each report, until it is acknowledged
    broker.acknowledged = True
    reports = broker.pass_time(3, rate=3_000)
    assert 0.48 * QUOTA <= broker.share <= 0.5 * QUOTA
    assert not reports[-1].urgent


def test_less_demand_of_others_counts_at_once_and_more_before_it_is_acknowledged() -> None:
    broker = Broker()
    broker.hear(used=900)
    broker.pass_time(3, rate=3_000)
    broker.hear(used=100, complete=False)
    assert broker.share >= 0.8 * QUOTA
    broker.hear(used=500, held=500, complete=False)
    assert broker.share <= 0.5 * QUOTA


def test_what_is_lowered_and_rises_again_is_to_be_acknowledged_again() -> None:
    """The acknowledgement of the first report may come from a member that has heard the second."""
    broker = Broker()
    broker.hear(used=1_000, held=1_000)
    broker.pass_time(3, rate=3_000)
    assert broker.share >= 0.48 * QUOTA
    broker.pass_time(3)
    assert broker.share <= 0.05 * QUOTA
    broker.acknowledged = False
    broker.pass_time(3, rate=3_000)
    assert broker.share <= 0.05 * QUOTA


def test_s4_a_zero_report_frees_what_a_broker_used_and_so_does_its_loss() -> None:
    for ending in ("zero report", "not listed", "left"):
        broker = Broker()
        broker.hear(used=600, held=600)
        broker.pass_time(2, rate=3_000)
        assert broker.share <= 0.55 * QUOTA
        if ending == "zero report":
            broker.hear(complete=False)
        elif ending == "not listed":
            broker.hear()
        else:
            broker.exchange.set_members(["a"], broker.now_ns)
        broker.pass_time(2, rate=3_000)
        assert broker.share >= 0.98 * QUOTA, ending


def test_s4_a_silent_member_counts_as_if_it_wanted_everything() -> None:
    broker = Broker()
    broker.hear(used=100)
    broker.pass_time(1, rate=3_000)
    broker.hear_no_more()
    broker.pass_time(LEASE_S - 2 * INTERVAL_S, rate=3_000)
    assert broker.share >= 0.85 * QUOTA
    broker.pass_time(2 * INTERVAL_S, rate=3_000)
    assert 0.48 * QUOTA <= broker.share <= 0.5 * QUOTA


def test_a_member_that_does_not_acknowledge_counts_as_if_it_wanted_everything_though_it_is_heard() -> None:
    """It may not hear this broker, and then it does not wait for acknowledgements before it uses more."""
    broker = Broker()
    broker.hear(used=100)
    broker.pass_time(1, rate=3_000)
    broker.hear_no_more()
    reports: list[UsageReport] = []
    for _ in range(2 * LEASE_INTERVALS + 2):
        broker.sequence += 1
        report = UsageReport("b", 1, broker.sequence, broker.wall_ms)
        assert broker.exchange.receive(report, broker.now_ns, broker.wall_ms) is None
        reports = broker.pass_time(INTERVAL_S / 2, rate=3_000)
    assert 0.48 * QUOTA <= broker.share <= 0.5 * QUOTA
    assert reports[-1].asks


def test_while_a_member_is_silent_nobody_asks_for_more_than_all_members_know() -> None:
    """What it asked for, others would give up, and it could not use that."""
    broker = Broker()
    broker.hear(used=900)
    broker.pass_time(1, rate=100)
    broker.hear_no_more()
    broker.pass_time(1, rate=3_000)
    assert _wanted(broker) > 200
    broker.pass_time(2 * INTERVAL_S, rate=3_000)
    assert _wanted(broker) <= 200
    broker.hear(used=900)
    broker.pass_time(1, rate=3_000)
    assert _wanted(broker) > 200


def _wanted(broker: Broker) -> int:
    """What the next complete report says that it wants, in messages per second."""
    broker.exchange.report_all(broker.now_ns)
    (usage,) = usages(broker.pass_time(0.3, rate=3_000)[-1:])
    return (usage.used[0] + usage.held[0]) // 1_000


def test_a_member_that_joined_and_was_never_heard_takes_nothing_and_is_not_waited_for() -> None:
    broker = Broker(members=("a",))
    broker.pass_time(1, rate=100)
    broker.exchange.set_members(["a", "b"], broker.now_ns)
    broker.pass_time(3 * INTERVAL_S, rate=3_000)
    assert broker.share >= 0.98 * QUOTA


def test_a_complete_report_that_acknowledges_nothing_does_not_make_its_sender_known() -> None:
    """What it acknowledges of an earlier process with our name says nothing either."""
    broker = Broker()
    last = broker.last
    for unknown in (0, last - 5):
        broker.last = unknown
        broker.hear(used=100)
        broker.last = last
        assert broker.pass_time(0.5, rate=3_000)[-1].asks
    broker.hear(used=100)
    assert not broker.pass_time(1, rate=3_000)[-1].asks


@pytest.mark.parametrize("silent_s", [LEASE_S + 2 * INTERVAL_S, LEASE_S + 0.4 * INTERVAL_S])
def test_a_member_that_is_heard_again_is_asked_before_any_share_grows(silent_s: float) -> None:
    broker = Broker()
    broker.hear(used=100)
    broker.pass_time(1, rate=3_000)
    broker.hear_no_more()
    broker.pass_time(silent_s, rate=3_000)
    assert broker.share <= 0.5 * QUOTA
    broker.hear(used=500, held=500, complete=False)
    assert broker.pass_time(1, rate=3_000)[-1].asks
    assert broker.share <= 0.5 * QUOTA
    broker.hear(used=100)
    assert not broker.pass_time(1, rate=3_000)[-1].asks
    assert broker.share >= 0.7 * QUOTA


def test_a_new_group_waits_until_all_members_have_said_whether_they_use_it() -> None:
    broker = Broker()
    broker.hear()
    group = Group(GroupRates(publish=GroupRate(messages=QUOTA)), 0)
    broker.exchange.set_group(7, (QUOTA * 1_000, None, None, None), group, broker.now_ns)
    assert broker.pass_time(0.5)[-1].asks
    assert group.publish.share.messages == QUOTA * 0.01 / 2
    broker.hear()
    assert not any(report.asks for report in broker.pass_time(INTERVAL_S))
    assert group.publish.share.messages == QUOTA // 2


def test_a_broker_that_lost_its_registration_has_only_its_part_of_the_reserve() -> None:
    broker = Broker()
    broker.hear()
    broker.pass_time(1, rate=3_000)
    assert broker.share > 0.9 * QUOTA
    broker.exchange.set_members(["b"], broker.now_ns)
    broker.pass_time(0.3)
    assert broker.share == QUOTA * 0.01 / 2


def test_a_broker_that_is_registered_again_begins_with_its_part_of_the_reserve() -> None:
    """The others have divided without it meanwhile, and do not know what it wants."""
    broker = Broker()
    broker.hear()
    broker.pass_time(1, rate=3_000)
    broker.exchange.set_members(["b"], broker.now_ns)
    broker.pass_time(0.3, rate=3_000)
    broker.acknowledged = False
    broker.exchange.set_members(["a", "b"], broker.now_ns)
    assert broker.pass_time(1, rate=3_000)[-1].asks
    assert broker.share == QUOTA * 0.01 / 2
    broker.acknowledged = True
    broker.hear()
    broker.pass_time(1, rate=3_000)
    assert broker.share > 0.9 * QUOTA


# -- which reports count


def test_repeated_and_reordered_reports_are_ignored_and_counted() -> None:
    broker = Broker()
    assert broker.hear(used=100, sequence=5) is None
    assert broker.hear(used=900, sequence=5) is Refusal.REPEATED
    assert broker.hear(used=900, sequence=4) is Refusal.REPEATED
    assert broker.exchange.refused[Refusal.REPEATED] == 2


def test_reports_of_brokers_that_are_no_members_are_ignored() -> None:
    assert Broker().hear("stranger", used=100) is Refusal.STRANGER


def test_old_reports_are_ignored_by_their_time_and_clocks_may_be_ten_minutes_apart() -> None:
    for ahead_ms in (0, 600_000, -600_000):
        broker = Broker()
        assert broker.hear(used=100, late_ms=ahead_ms) is None
        broker.pass_time(INTERVAL_S)
        assert broker.hear(used=100, late_ms=ahead_ms + 9_000) is None
        assert broker.hear(used=100, late_ms=ahead_ms + 11_000) is Refusal.OLD
        assert broker.hear(used=100, late_ms=ahead_ms) is None


def test_a_clock_that_is_set_costs_one_report() -> None:
    broker = Broker()
    broker.hear(used=100)
    assert broker.hear(used=100, late_ms=3_600_000) is Refusal.OLD
    assert broker.hear(used=100, late_ms=3_600_000) is None
    assert broker.hear(used=100, late_ms=0) is None


def test_of_two_brokers_with_one_name_the_later_counts() -> None:
    broker = Broker()
    assert broker.hear(used=100, incarnation=2) is None
    assert broker.hear(used=100, incarnation=1) is Refusal.TWIN
    assert broker.hear(used=100, incarnation=3, sequence=1) is None
    assert broker.exchange.refused[Refusal.TWIN] == 1


def test_a_broker_gives_way_to_a_later_one_with_its_name() -> None:
    broker = Broker()
    broker.hear()
    broker.pass_time(1, rate=3_000)
    assert broker.share > 0.9 * QUOTA
    assert broker.hear("a", used=100, incarnation=9) is Refusal.TWIN
    broker.pass_time(0.3, rate=3_000)
    assert broker.share > 0.9 * QUOTA
    assert broker.hear("a", used=100, incarnation=11) is Refusal.TWIN
    broker.pass_time(0.3, rate=3_000)
    assert broker.share == QUOTA * 0.01 / 2


def test_the_own_report_that_comes_back_changes_nothing() -> None:
    broker = Broker()
    broker.hear()
    (report, *_) = broker.pass_time(INTERVAL_S + 1, rate=100)
    assert broker.exchange.receive(report, broker.now_ns, broker.wall_ms) is Refusal.REPEATED


# -- what is reported


def test_steady_usage_is_reported_in_complete_reports_only_and_life_in_each_cycle() -> None:
    broker = Broker()
    broker.settle(rate=300)
    reports = []
    for _ in range(5):
        broker.hear()
        reports += broker.pass_time(INTERVAL_S, rate=302)
    assert len(reports) == 5
    assert len(usages(reports)) == 1
    assert [report.covered for report in reports].count(Covered()) == 1


def test_a_change_by_a_tenth_is_reported_in_the_next_cycle() -> None:
    broker = Broker()
    broker.settle(rate=300)
    broker.hear()
    changed = usages(broker.pass_time(INTERVAL_S, rate=400))
    assert [usage.used[0] for usage in changed] == [pytest.approx(400_000, rel=0.02)]
    assert changed[0].topics == 2


def test_the_end_of_usage_is_reported_at_once_if_others_want_it() -> None:
    broker = Broker()
    broker.hear(used=500, held=1_000)
    broker.pass_time(INTERVAL_S, rate=3_000)
    broker.hear(used=500, held=1_000)
    reports = broker.pass_time(1)
    assert usages(reports)[-1].used == usages(reports)[-1].held == NOTHING


def test_no_more_than_fifty_reports_are_sent_in_a_cycle() -> None:
    broker = Broker()
    broker.hear(used=500, held=1_000)
    sent = sum(len(broker.pass_time(0.05, rate=rate * 100)) for rate in [1, 9] * 50)
    assert 2 < sent <= 50


def test_reports_that_wait_for_acknowledgements_are_acknowledged_fifty_times_in_a_cycle_at_most() -> None:
    broker = Broker()
    broker.hear()
    sent: list[UsageReport] = []
    for _ in range(INTERVAL_S * 100):
        sent += broker.pass_time(0.01)
        broker.sequence += 1
        report = UsageReport("b", 1, broker.sequence, broker.wall_ms, urgent=True)
        assert broker.exchange.receive(report, broker.now_ns, broker.wall_ms) is None
    assert 45 < len(sent) <= 52
    for earlier, report in pairwise(sent[2:]):
        assert [one.member for one in report.heard] == [member_id("b")]
        assert report.heard > earlier.heard


def test_what_was_reported_early_is_repeated_in_the_next_cycle() -> None:
    """The early report may have been lost."""
    broker = Broker()
    broker.hear(used=500, held=1_000)
    broker.pass_time(6 * INTERVAL_S + 1.5, rate=3_000)
    broker.hear(used=500, held=1_000)
    broker.pass_time(1)
    broker.hear(used=500, held=1_000)
    cycle = [usages([report]) for report in broker.pass_time(INTERVAL_S)]
    assert [usage.used for listed in cycle for usage in listed] == [NOTHING]


def test_many_groups_are_reported_in_several_reports_that_cover_all_ids() -> None:
    broker = Broker()
    groups = {number: Group(GroupRates(publish=GroupRate(messages=10)), 0) for number in range(GROUPS_PER_REPORT + 5)}
    for number, group in groups.items():
        broker.exchange.set_group(number, (10_000, None, None, None), group, 0)
    listener = Broker(members=("a", "b"), name="b")
    for group in groups.values():
        group.publish.charge(1, 1, 0)
    broker.pass_time(8)
    broker.exchange.set_members(["a"], broker.now_ns)
    broker.exchange.set_members(["a", "b"], broker.now_ns)
    complete = [report for report in broker.pass_time(5 * INTERVAL_S) if report.covered]
    for report in complete:
        answer = report._replace(heard=listener.acknowledgement)
        assert listener.exchange.receive(answer, 0, WALL_MS) is None
    assert not listener.pass_time(INTERVAL_S)[-1].asks


# -- groups


def test_a_changed_quota_is_in_force_at_once_and_a_removed_one_too() -> None:
    broker = Broker(members=("a",))
    broker.pass_time(1, rate=10)
    for quota in (5_000, 100, 2**40 + 1):
        broker.exchange.set_group(GROUP, (quota * 1_000, None, None, None), broker.group, broker.now_ns)
        assert broker.share == quota
    broker.exchange.set_group(GROUP, (None, None, None, None), broker.group, broker.now_ns)
    assert broker.group.publish.share.messages is None


def test_a_removed_group_is_forgotten_and_may_come_back() -> None:
    broker = Broker()
    broker.hear(used=900, held=900)
    broker.exchange.remove_group(GROUP)
    assert not broker.exchange.serves(GROUP)
    assert broker.hear(used=900, held=900) is None
    broker.exchange.set_group(GROUP, (QUOTA * 1_000, None, None, None), broker.group, broker.now_ns)
    broker.hear()
    broker.pass_time(3, rate=3_000)
    assert broker.share >= 0.9 * QUOTA
