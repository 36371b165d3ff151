# SPDX-License-Identifier: Apache-2.0
"""The brokers that send usage reports: which of their reports count, and until when they are heard.

Why: reports come over a topic that loses, repeats, delays and reorders messages, from brokers that restart and whose
clocks differ. Where: `quota_exchange` has one `Sender` for each other member of the cluster.

**Order.** Reports of one process are numbered. A number that is not higher than the last one is a repetition.

**Age.** A report is old if it was under way for two intervals. Clocks of brokers may be minutes apart, so the time
under way is compared with the least that was seen from this process. Two reports that are late by the same time mean
that a clock was changed.

**Twins.** Two processes with one name have different incarnations (times of their start). The later one counts. The
earlier one counts again when the later one was not heard for a lease.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.core.units import NS_PER_MS
from penstock.core.usage_report import GROUP_ID_MAX

if TYPE_CHECKING:
    from penstock.core.usage_report import Covered, UsageReport

_OLD_INTERVALS = 2


class Refusal(StrEnum):
    """Why a report is ignored."""

    REPEATED = "repeated"  # it or a later one came already
    OLD = "old"  # it was under way for too long
    TWIN = "twin"  # another process with this name counts
    STRANGER = "stranger"  # its sender is no member of the cluster


class Sender:
    """Another broker of the cluster."""

    __slots__ = (
        "_covered_to",
        "_delay_ms",
        "_late_ms",
        "acknowledged",
        "complete",
        "heard_ns",
        "id",
        "incarnation",
        "known_ns",
        "number",
        "seen",
        "sequence",
        "waits",
    )

    def __init__(self, number: int, member: int, *, complete: bool, now_ns: int) -> None:
        """Args: complete: all that it uses is known, for instance because it began after us and was not heard yet."""
        self.number = number
        self.id = member
        self.complete = complete
        self.heard_ns = now_ns  # or when it became a member
        self.incarnation = 0
        self.sequence = 0
        self.seen = 0  # the last of its reports that counted
        self.waits = False  # it wants that to be acknowledged
        self.acknowledged = 0  # the last own report that it has acknowledged
        self.known_ns = now_ns  # when we sent that
        self._covered_to = 0  # ids below were covered by reports in a row
        self._delay_ms: int | None = None  # the least that a report of this incarnation took, by the two clocks
        self._late_ms: int | None = None  # what the last one took, if that was too long

    def refuses(
        self, report: UsageReport, wall_ms: int, now_ns: int, interval_ns: int, lease_ns: int
    ) -> Refusal | None:
        """Return why a report does not count; None, and remember it, if it does."""
        if report.incarnation != self.incarnation:
            if report.incarnation < self.incarnation and now_ns - self.heard_ns < lease_ns:
                return Refusal.TWIN
            self.incarnation, self.sequence = report.incarnation, 0
            self._delay_ms = self._late_ms = None
        if report.sequence <= self.sequence:
            return Refusal.REPEATED
        self.sequence = report.sequence
        if self._is_late(wall_ms - report.published_ms, interval_ns // NS_PER_MS):
            return Refusal.OLD
        self.heard_ns = now_ns
        self.seen = report.sequence
        self.waits = self.waits or report.urgent
        return None

    def acknowledges(self, sequence: int, sent_ns: int | None) -> None:
        """Note that it took an own report into account; `sent_ns` is None if the time of sending was forgotten."""
        if sent_ns is not None and sequence > self.acknowledged:
            self.acknowledged, self.known_ns = sequence, sent_ns

    def has_covered(self, covered: Covered) -> bool:
        """A report spoke of all groups with these ids; when reports have covered all ids, the sender is complete."""
        if covered.first not in {0, self._covered_to}:
            return False
        self._covered_to = covered.last + 1
        if covered.last < GROUP_ID_MAX:
            return False
        self._covered_to = 0
        self.complete = True
        return True

    def _is_late(self, delay_ms: int, interval_ms: int) -> bool:
        if self._delay_ms is None or delay_ms < self._delay_ms:
            self._delay_ms, self._late_ms = delay_ms, None
            return False
        if delay_ms - self._delay_ms <= _OLD_INTERVALS * interval_ms:
            self._late_ms = None
            return False
        if self._late_ms is not None and abs(delay_ms - self._late_ms) <= interval_ms:
            self._delay_ms, self._late_ms = min(delay_ms, self._late_ms), None  # a clock was changed
            return False
        self._late_ms = delay_ms
        return True
