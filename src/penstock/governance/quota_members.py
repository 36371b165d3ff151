# SPDX-License-Identifier: Apache-2.0
"""The brokers that share quotas: who is a member, whose demand is known, and who knows ours.

Why: brokers divide a quota by demands that they heard from each other, so each must know for certain what the others
reckon with. Where: `quota_exchange` has one, and divides quotas by its `cluster`.

**Who must know ours.** More demand of this broker counts once all members have acknowledged the report of it. Members
that were not heard for ten intervals, the lease, need not; nor need a member that joined after us and was never heard:
until it has answered us, we may want everything, for all it knows. While a member is silent, nobody asks for more:
what one asks for, others give up, and it could not be used.

**Whose demand is known.** A member must have said all that it uses, in complete reports that acknowledge one of ours.
That holds for a lease from the moment in which this broker sent the last report that the member has acknowledged. The
member heard that report later than this, and waits for our acknowledgements for a lease after it: so its demand cannot
rise without our knowledge, whatever the clocks say. After that, it is unknown: it may want everything.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from penstock.core.usage_report import Acknowledgement, member_id
from penstock.governance.allocation import Cluster
from penstock.governance.report_senders import Refusal, Sender

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.core.usage_report import UsageReport

# Intervals: how long members rely on each other without hearing anything. While one of them is silent, no demand rises:
# registries have noticed a death by then, and a broker that registers has begun to report.
LEASE_INTERVALS: Final = 10
# A member that was not heard for so many intervals is silent.
SILENT_INTERVALS: Final = 2
# Own reports whose times are remembered: those of a few intervals.
_REMEMBERED: Final = 1_024


class QuotaMembers:
    """The other brokers of the cluster.

    Attributes:
        cluster: how quotas are to be divided.
        asks: some member that was heard lately has not said all that it uses.
        outside: this broker is no member, or a later process has its name: it has only its part of the reserve.
        refused: how many reports did not count, and why.
    """

    __slots__ = (
        "_broker",
        "_gives_way_until_ns",
        "_id",
        "_incarnation",
        "_interval_ns",
        "_leases",
        "_names",
        "_registered",
        "_senders",
        "_sent",
        "asks",
        "cluster",
        "outside",
        "refused",
    )

    def __init__(self, broker: str, incarnation: int, interval_ns: int, now_ns: int, *, leases: bool) -> None:
        """Args: leases: whether silent members count as if they wanted everything."""
        self.cluster = Cluster(1)
        self.asks = False
        self.outside = True
        self.refused: Counter[Refusal] = Counter()
        self._broker = broker
        self._id = member_id(broker)
        self._incarnation = incarnation
        self._interval_ns = interval_ns
        self._leases = leases
        self._senders: dict[str, Sender] = {}
        self._names: list[str | None] = []  # of senders, by number
        self._registered = False
        self._gives_way_until_ns = now_ns
        self._sent: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # own reports: sequence, time

    def set_members(self, brokers: Collection[str], now_ns: int) -> list[int]:
        """Set the registered brokers; return the numbers of those that left."""
        # Who joins after us has heard nobody, and has only the reserve. Who was there before us may have any share.
        harmless = self._registered
        self._registered = self._broker in brokers
        if self._registered and not harmless:  # Others may have forgotten us meanwhile: for them, we begin now.
            for sender in self._senders.values():
                sender.complete = False
        left = []
        for name in set(self._senders) - set(brokers):
            number = self._senders.pop(name).number
            self._names[number] = None
            left.append(number)
        for name in sorted(set(brokers) - set(self._senders) - {self._broker}):
            number = self._names.index(None) if None in self._names else len(self._names)
            self._names[number : number + 1] = [name]
            sender = self._senders[name] = Sender(number, member_id(name), complete=harmless, now_ns=now_ns)
            sender.known_ns -= self._interval_ns  # it may have begun before we learned of it
            if harmless:
                sender.heard_ns -= self._lease_ns  # it need not acknowledge anything before it is heard
        return left

    def numbers(self) -> list[tuple[str, int]]:
        """Return the names of the other members, with their numbers."""
        return [(name, sender.number) for name, sender in sorted(self._senders.items())]

    def known(self) -> set[int]:
        """Return the numbers of the members that have said all that they use."""
        return {sender.number for sender in self._senders.values() if sender.complete}

    def heard(self, number: int, now_ns: int) -> tuple[str, int, int] | None:
        """Return the name of a member, the number of its last report, and how many nanoseconds ago that came.

        None, if it is no member any more.
        """
        name = self._names[number]
        if name is None:
            return None
        sender = self._senders[name]
        return name, sender.sequence, now_ns - sender.heard_ns

    def sent(self, sequence: int, now_ns: int) -> None:
        """An own report was sent."""
        self._sent.append((sequence, now_ns))

    def sent_ns(self, sequence: int) -> int | None:
        """Return when an own report was sent; None if it is not known."""
        return next((ns for number, ns in reversed(self._sent) if number == sequence), None)

    def acknowledgements(self, now_ns: int, *, every: bool) -> tuple[Acknowledgement, ...]:
        """Return what the next report acknowledges: the last reports of all members, or of those that wait for it."""
        heard = [sender for sender in self._counted(now_ns) if sender.seen and (every or sender.waits)]
        for sender in heard:
            sender.waits = False
        return tuple(Acknowledgement(sender.id, sender.seen) for sender in heard)

    def known_by_all(self, now_ns: int) -> float:
        """Return the number of the last own report that all members have acknowledged."""
        return min((sender.acknowledged for sender in self._counted(now_ns)), default=math.inf)

    def all_answer(self, now_ns: int) -> bool:
        """Whether none of those is silent whose acknowledgements are needed."""
        silent_ns = SILENT_INTERVALS * self._interval_ns
        return all(now_ns - sender.heard_ns < silent_ns for sender in self._counted(now_ns))

    def _counted(self, now_ns: int) -> list[Sender]:
        """Members whose acknowledgements are needed."""
        return [sender for sender in self._senders.values() if now_ns - sender.heard_ns < self._lease_ns]

    def accept(self, report: UsageReport, now_ns: int, wall_ms: int) -> Sender | Refusal:
        """Return the sender of a report that counts; otherwise why it does not."""
        sender = self._sender(report, now_ns, wall_ms)
        if isinstance(sender, Refusal):
            self.refused[sender] += 1
        return sender

    def _sender(self, report: UsageReport, now_ns: int, wall_ms: int) -> Sender | Refusal:
        if report.broker == self._broker:
            if report.incarnation == self._incarnation:
                return Refusal.REPEATED  # our own, which everybody receives
            if report.incarnation > self._incarnation:
                self._gives_way_until_ns = now_ns + self._lease_ns
            return Refusal.TWIN
        sender = self._senders.get(report.broker)
        if sender is None:
            return Refusal.STRANGER
        refusal = sender.refuses(report, wall_ms, now_ns, self._interval_ns, self._lease_ns)
        sequence = self._acknowledged(report)
        if sequence is not None and report.incarnation == sender.incarnation:  # even if later reports overtook it
            sender.acknowledges(sequence, self.sent_ns(sequence))
        return refusal or sender

    def _acknowledged(self, report: UsageReport) -> int | None:
        return next((sequence for member, sequence in report.heard if member == self._id), None)

    def hears_us(self, report: UsageReport, now_ns: int) -> bool:
        """Whether a report acknowledges one of ours, so that its sender will wait for our acknowledgements."""
        if not self._leases:
            return True
        sequence = self._acknowledged(report)
        sent_ns = None if sequence is None else self.sent_ns(sequence)
        return sent_ns is not None and now_ns - sent_ns < self._known_for_ns

    def review(self, now_ns: int) -> tuple[bool, list[int]]:
        """Find out whose demand is known; return whether quotas are to be divided anew, and who is to be forgotten."""
        forgotten = []
        for sender in self._senders.values():
            if self._leases and sender.complete and now_ns - sender.known_ns >= self._known_for_ns:
                sender.complete = False
                forgotten.append(sender.number)
        silent = sum(not sender.complete for sender in self._senders.values())
        cluster = Cluster(len(self._senders) + 1, silent)
        outside = not self._registered or now_ns < self._gives_way_until_ns
        changed = bool(forgotten) or (cluster, outside) != (self.cluster, self.outside)
        self.cluster, self.outside = cluster, outside
        self.asks = not all(sender.complete for sender in self._counted(now_ns))
        return changed, forgotten

    def lease_ends(self, now_ns: int) -> bool:
        """Whether some known member must acknowledge something soon."""
        soon_ns = self._lease_ns - self._interval_ns  # without losses, regular reports renew it within two intervals
        return any(sender.complete and now_ns - sender.known_ns >= soon_ns for sender in self._counted(now_ns))

    @property
    def _known_for_ns(self) -> int:
        """A lease, less the time until this broker notices that it has ended."""
        return self._lease_ns - self._interval_ns // 8

    @property
    def _lease_ns(self) -> int:
        return LEASE_INTERVALS * self._interval_ns
