# SPDX-License-Identifier: Apache-2.0
"""An old report, sent again, does not make its sender a member."""

from __future__ import annotations

from penstock.core.units import NS_PER_S
from penstock.core.usage_report import UsageReport
from penstock.governance.report_senders import Refusal
from penstock.groups.live_exchange import CLOCKS_APART_MS, REMEMBERED_MAX, LastReports

LEASE_NS = 180 * NS_PER_S
NOW_MS = 1_700_000_000_000


def report(broker: str = "proxy", *, incarnation: int = 5, sequence: int = 9, age_ms: int = 0) -> UsageReport:
    return UsageReport(broker, incarnation, sequence, NOW_MS - age_ms)


def test_only_a_later_report_of_a_process_counts_again() -> None:
    last = LastReports()
    assert last.refuses(report(), NOW_MS, LEASE_NS) is None
    last.came(report())
    assert last.refuses(report(), NOW_MS, LEASE_NS) is Refusal.REPEATED
    assert last.refuses(report(sequence=8), NOW_MS, LEASE_NS) is Refusal.REPEATED
    assert last.refuses(report(incarnation=4, sequence=90), NOW_MS, LEASE_NS) is Refusal.REPEATED
    assert last.refuses(report(sequence=10), NOW_MS, LEASE_NS) is None
    assert last.refuses(report(incarnation=6, sequence=1), NOW_MS, LEASE_NS) is None
    assert last.refuses(report("other"), NOW_MS, LEASE_NS) is None


def test_an_old_report_of_a_process_that_nobody_remembers_does_not_count() -> None:
    last, lease_ms = LastReports(), LEASE_NS // 1_000_000
    assert last.refuses(report(age_ms=lease_ms + CLOCKS_APART_MS), NOW_MS, LEASE_NS) is None
    assert last.refuses(report(age_ms=lease_ms + CLOCKS_APART_MS + 1), NOW_MS, LEASE_NS) is Refusal.OLD
    assert last.refuses(report(age_ms=-CLOCKS_APART_MS), NOW_MS, LEASE_NS) is None


def test_only_so_many_are_remembered_the_latest() -> None:
    last = LastReports()
    last.came(report("first"))
    for number in range(REMEMBERED_MAX - 1):
        last.came(report(f"proxy-{number}"))
    last.came(report("first", sequence=10))
    last.came(report("one more"))
    assert last.refuses(report("first"), NOW_MS, LEASE_NS) is Refusal.REPEATED
    assert last.refuses(report("proxy-0"), NOW_MS, LEASE_NS) is None
