# SPDX-License-Identifier: Apache-2.0
"""Which reports of a process have come before, also after it has ceased to be a member.

Why: where reports make members, whoever may write to the usage topic can send an old report of a dead process again,
signature and all. It would be a member for a while, again and again, and keep a part of every quota.
Where: the live exchange asks before a report of a stranger makes it a member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS
from penstock.governance.report_senders import Refusal

if TYPE_CHECKING:
    from penstock.core.usage_report import UsageReport

# Processes of which the last report is remembered; the oldest are forgotten first.
REMEMBERED_MAX: Final = 1_000
# How much the clocks of two machines may differ. A process that nobody here remembers is believed if its report is not
# older than this and a lease.
CLOCKS_APART_MS: Final = 60_000


class LastReports:
    """The last report of each process."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}  # incarnation and sequence, in the order of their arrival

    def refuses(self, report: UsageReport, wall_ms: int, lease_ns: int) -> Refusal | None:
        """Return why the report of a stranger does not make it a member; None if it does."""
        last = self._last.get(report.broker)
        if last is not None and (report.incarnation, report.sequence) <= last:
            return Refusal.REPEATED
        if wall_ms - report.published_ms > lease_ns // NS_PER_MS + CLOCKS_APART_MS:
            return Refusal.OLD
        return None

    def came(self, report: UsageReport) -> None:
        """Remember a report that counts."""
        self._last.pop(report.broker, None)
        self._last[report.broker] = (report.incarnation, report.sequence)
        if len(self._last) > REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
