# SPDX-License-Identifier: Apache-2.0
"""The exchange of usage reports, live: its timer, its connection to the usage topic, and the groups that it limits.

Why apart from `QuotaExchange`: it decides, and needs no clock, topic or membership.
Where: a broker's `quota_sharing` and a proxy's have one while quotas are shared.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.quota_exchange import QuotaExchange, quotas_of
from penstock.governance.quota_members import LEASE_INTERVALS
from penstock.governance.report_senders import Refusal
from penstock.groups.last_reports import LastReports
from penstock.net.usage_topic import UsageTopic
from penstock.wire.usage_reports import BadUsageReport, decode, encode, group_id

if TYPE_CHECKING:
    import asyncio
    from collections import Counter

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.membership import MemberNames
    from penstock.core.names import NamespaceName, TopicName
    from penstock.core.usage_report import UsageReport
    from penstock.governance.quota_exchange import ExchangeOptions
    from penstock.governance.resource_group import ClassLimiter, GroupRates
    from penstock.groups.group import Group
    from penstock.net.usage_topic import Reporting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """How quotas are shared.

    Attributes:
        topic: full name of the usage topic.
        enabled: if not, each broker enforces whole quotas.
        exchange: how often brokers report, and how they divide.
    """

    topic: TopicName
    enabled: bool
    exchange: ExchangeOptions


class SharingHost(Protocol):
    """What an exchange uses of the broker or proxy that it belongs to, and counts there."""

    sent: int  # reports that were published
    received: int  # reports of other members that counted
    refused: Counter[str]  # messages on the usage topic that did not count, by reason
    failures: int  # own errors, and connections to the topic that failed or ended

    @property
    def reporting(self) -> Reporting: ...
    @property
    def names(self) -> MemberNames: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def owner(self, topic: TopicName) -> int:
        """The number of the broker that serves the topic."""

    async def create_namespace(self, name: NamespaceName) -> None:
        """Create the namespace of the usage topic, if it does not exist."""


class LiveExchange:
    """The exchange while quotas are shared: its timer, its connection, and the groups that it limits."""

    def __init__(self, sharing: SharingHost, options: SharingOptions, incarnation: int) -> None:
        self.options = options
        self._sharing = sharing
        self._clock = sharing.clock
        self._name = sharing.names.own
        self._incarnation = incarnation
        self.exchange = QuotaExchange(self._name, incarnation, options.exchange, self._clock.monotonic_ns())
        self.topic = UsageTopic(
            str(options.topic),
            f"{self._name}-{incarnation}",
            sharing.reporting.dial,
            owner=lambda: sharing.owner(options.topic),
            prepare=lambda: sharing.create_namespace(options.topic.namespace_name),
            clock=self._clock,
            heard=self._heard,
            connected=self._connected,
            failed=self._failed,
        )
        self._members: frozenset[str] = frozenset()
        self._own_sequence = 0  # of the last own report that came back
        self._last = LastReports()
        self._limited: dict[str, _Limited] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._ended = False

    # -- changes

    def update(self) -> None:
        """Take the members, and the place of the topic, into account."""
        members = self._sharing.names.names
        if members != self._members:
            if self._name in members - self._members:
                self.exchange.report_all(self._clock.monotonic_ns())
            self._members = members
            self.exchange.set_members(members, self._clock.monotonic_ns())
        self.topic.move()
        self._schedule()

    def share(self, group: Group) -> None:
        """Give a group its share of its present quota."""
        limited = self._limited.get(group.name)
        if limited is None or limited.group is not group:
            limited = self._limited[group.name] = _Limited(group)
        now_ns = self._clock.monotonic_ns()
        self.exchange.set_group(group_id(group.name), quotas_of(group.quota), limited, now_ns)
        self._schedule()

    def forget(self, name: str) -> None:
        """A group was deleted."""
        self._limited.pop(name, None)
        self.exchange.remove_group(group_id(name))

    async def end(self) -> None:
        """Stop, and disconnect."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        await self.topic.close()

    async def leave(self) -> None:
        """Report that this broker uses nothing any more, and stop."""
        self._publish(self.exchange.leave(self._clock.wall_ms()))
        await self.end()

    # -- time and reports

    def _schedule(self) -> None:
        """Poll when the exchange has something to do."""
        at_ns = self.exchange.poll_at_ns
        if self._ended or (self._timer is not None and self._timer_ns <= at_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        wait_s = max(0, at_ns - self._clock.monotonic_ns()) / NS_PER_S
        self._timer = self._sharing.loop.call_later(wait_s, self._poll)

    def _poll(self) -> None:
        self._timer = None
        try:
            for report in self.exchange.poll(self._clock.monotonic_ns(), self._clock.wall_ms()):
                self._publish(report)
        except Exception:
            self._failed()
            log.exception("shares of resource groups were not computed")
            self._timer_ns = self._clock.monotonic_ns() + self.options.exchange.interval_ns
            self._timer = self._sharing.loop.call_later(self.options.exchange.interval_ns / NS_PER_S, self._poll)
        self._schedule()

    def _publish(self, report: UsageReport) -> None:
        if self._name not in self._members:
            return  # Nobody counts on it. If another process has the name, its reports must not be taken for old ones.
        if self.topic.publish(encode(report, self._sharing.reporting.key)):
            self._sharing.sent += 1

    def _heard(self, payload: Buffer) -> None:
        try:
            report = decode(bytes(payload), self._sharing.reporting.key, self.exchange.serves)
            if (report.broker, report.incarnation) == (self._name, self._incarnation):
                if report.sequence > self._own_sequence:  # Everybody receives its own; others hear this one, too.
                    self._own_sequence = report.sequence
                    self._is_heard(self._name)
                return
            refusal = self.exchange.receive(report, self._clock.monotonic_ns(), self._clock.wall_ms())
            if refusal is Refusal.STRANGER:
                lease_ns = LEASE_INTERVALS * self.options.exchange.interval_ns
                refusal = self._last.refuses(report, self._clock.wall_ms(), lease_ns) or refusal
            if refusal is Refusal.STRANGER:
                self._is_heard(report.broker)
                if report.broker in self._members:  # Where reports make members, it is one now.
                    refusal = self.exchange.receive(report, self._clock.monotonic_ns(), self._clock.wall_ms())
        except BadUsageReport as error:
            self._refuse(error.what, error)
        except Exception:
            self._failed()
            log.exception("a usage report was ignored")
        else:
            if refusal is None:
                self._last.came(report)
                self._sharing.received += 1
                self._is_heard(report.broker)
            else:
                self._refuse(refusal, f"report {report.sequence} of {report.broker}")
            self._schedule()

    def _is_heard(self, name: str) -> None:
        lease_ns = LEASE_INTERVALS * self.options.exchange.interval_ns
        self._sharing.names.hear(name, self._clock.monotonic_ns() + lease_ns)

    def _refuse(self, reason: str, what: object) -> None:
        if not self._sharing.refused[reason]:  # Later ones are only counted.
            log.warning("usage report ignored as %s: %s", reason, what)
        self._sharing.refused[reason] += 1

    def _connected(self) -> None:
        """Reports may have been lost: say all there is to say."""
        self.exchange.report_all(self._clock.monotonic_ns())
        self._schedule()

    def _failed(self) -> None:
        self._sharing.failures += 1


class _Limited:
    """A group as the exchange sees it: `LimitedGroup`."""

    __slots__ = ("dispatch", "group", "publish")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.publish: ClassLimiter = group.limiter.publish
        self.dispatch: ClassLimiter = group.limiter.dispatch

    @property
    def topics(self) -> int:
        return self.group.topics

    def set_share(self, share: GroupRates, now_ns: int) -> None:
        self.group.set_share(share, now_ns)

    def borrow(self, kind: int, amount: int, now_ns: int) -> None:
        self.group.borrow(kind, amount, now_ns)
