# SPDX-License-Identifier: Apache-2.0
"""The brokers that share quotas: who is a member, who was heard lately, and whose usage is known.

Why: a share may grow only if all that the others hold is known, and a member that is silent may be on the other side of
a partition. Where: `quota_exchange` has one, and divides quotas by its `cluster`.

A member that was not heard for three intervals is absent: its lease has ended. Its shares count for one more interval,
because its own clock may not have ended them yet; then it is forgotten. When it is heard again, its shares are unknown
until it sends a complete report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.governance.allocation import Cluster
from penstock.governance.report_senders import Refusal, Sender

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.core.usage_report import UsageReport

# Intervals without a report after which a member is absent.
LEASE_INTERVALS: Final = 3


class QuotaMembers:
    """The other brokers of the cluster.

    Attributes:
        cluster: how quotas are to be divided.
        absent: numbers of the members whose lease has ended.
        outside: this broker is no member, or a later process has its name: it has only its part of the reserve.
        refused: how many reports did not count, and why.
    """

    __slots__ = (
        "_broker",
        "_gives_way_until_ns",
        "_incarnation",
        "_interval_ns",
        "_leases",
        "_names",
        "_registered",
        "_senders",
        "absent",
        "cluster",
        "outside",
        "refused",
    )

    def __init__(self, broker: str, incarnation: int, interval_ns: int, now_ns: int, *, leases: bool) -> None:
        """Args: leases: whether silent members become absent."""
        self.cluster = Cluster(1, unknown=True)
        self.absent: frozenset[int] = frozenset()
        self.outside = True
        self.refused: Counter[Refusal] = Counter()
        self._broker = broker
        self._incarnation = incarnation
        self._interval_ns = interval_ns
        self._leases = leases
        self._senders: dict[str, Sender] = {}
        self._names: list[str | None] = []  # of senders, by number
        self._registered = False
        self._gives_way_until_ns = now_ns

    def set_members(self, brokers: Collection[str], now_ns: int) -> list[int]:
        """Set the registered brokers; return the numbers of those that left."""
        # Who joins after us has heard nobody, and has only the reserve. Who was there before us may have any share.
        harmless = self._registered
        self._registered = self._broker in brokers
        left = []
        for name in set(self._senders) - set(brokers):
            number = self._senders.pop(name).number
            self._names[number] = None
            left.append(number)
        for name in sorted(set(brokers) - set(self._senders) - {self._broker}):
            number = self._names.index(None) if None in self._names else len(self._names)
            self._names[number : number + 1] = [name]
            self._senders[name] = Sender(number, complete=harmless, now_ns=now_ns)
        return left

    def numbers(self) -> list[tuple[str, int]]:
        """Return the names of the other members, with their numbers."""
        return [(name, sender.number) for name, sender in sorted(self._senders.items())]

    def heard(self, number: int, now_ns: int) -> tuple[str, int, int] | None:
        """Return the name of a member, the number of its last report, and how many nanoseconds ago that came.

        None, if it is no member any more.
        """
        name = self._names[number]
        if name is None:
            return None
        sender = self._senders[name]
        return name, sender.sequence, now_ns - sender.heard_ns

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
        if refusal is not None:
            return refusal
        if sender.number in self.absent:
            sender.complete = False
        return sender

    def review(self, now_ns: int) -> tuple[bool, list[int]]:
        """Find out who is absent; return whether quotas are to be divided anew, and who is to be forgotten."""
        silent_ns = {sender: now_ns - sender.heard_ns for sender in self._senders.values() if self._leases}
        absent = frozenset(sender.number for sender, ns in silent_ns.items() if ns >= self._lease_ns)
        forgotten = [
            sender for sender, ns in silent_ns.items() if sender.complete and ns >= self._lease_ns + self._interval_ns
        ]
        for sender in forgotten:
            sender.complete = False
        unknown = not all(sender.complete or sender.number in absent for sender in self._senders.values())
        cluster = Cluster(len(self._senders) + 1, len(absent), unknown=unknown)
        outside = not self._registered or now_ns < self._gives_way_until_ns
        changed = bool(forgotten) or (absent, cluster, outside) != (self.absent, self.cluster, self.outside)
        self.absent, self.cluster, self.outside = absent, cluster, outside
        return changed, [sender.number for sender in forgotten]

    @property
    def unsettled(self) -> bool:
        """Whether a report may change how quotas are divided."""
        return self.cluster.unknown or bool(self.absent)

    @property
    def _lease_ns(self) -> int:
        return LEASE_INTERVALS * self._interval_ns
