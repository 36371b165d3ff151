# SPDX-License-Identifier: Apache-2.0
"""The exchange of usage reports, live: its timer, its connection to the usage topic, and the groups that it limits.

Why apart from `QuotaExchange`: it decides, and needs no clock, topic or membership.
Where: `quota_sharing` of a broker and of a proxy are the two kinds of `SharedQuotas`, which has one while quotas are
shared. Nothing of it exists else: no timer, no task, no connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.quota_exchange import QuotaExchange, quotas_of
from penstock.governance.report_senders import Refusal
from penstock.net.usage_topic import UsageTopic
from penstock.wire.usage_reports import BadUsageReport, decode, encode, group_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.membership import MemberNames, Registration, Registry
    from penstock.core.names import NamespaceName, TopicName
    from penstock.core.usage_report import FourNumbers, UsageReport
    from penstock.governance.quota_exchange import ExchangeOptions
    from penstock.governance.resource_group import ClassLimiter, GroupRates
    from penstock.groups.group import Group, GroupsInUse
    from penstock.net.usage_topic import Reporting


# Members that are remembered; the exchange is made for hundreds.
MEMBERS_MAX: Final = 1_000


class HeardNames:
    """Membership by report: who has sent a signed usage report lately is a member of a proxy without `membershipUrl`.

    Proxies on several machines need no registry for this. With ZooKeeper a process that died is noticed sooner than
    after its reports have stopped, and two processes of one name are told apart. All methods are called on the event
    loop.

    Attributes:
        own: the name of this process.
        names: the members; `own` always is one.
    """

    def __init__(self, own: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.own = own
        self.names = frozenset({own})
        self._clock = clock
        self._loop = loop
        self._until_ns: dict[str, int] = {}
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, name: str, until_ns: int) -> None:
        """See `MemberNames`; a name that is new is a member from now on."""
        if name == self.own or (name not in self._until_ns and len(self._until_ns) >= MEMBERS_MAX):
            return
        self._until_ns[name] = max(until_ns, self._until_ns.get(name, 0))
        self._publish()

    def listen(self, changed: Callable[[], None]) -> None:
        """See `MemberNames`."""
        self._listeners.append(changed)

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._listeners.clear()

    def _publish(self) -> None:
        names = frozenset({self.own, *self._until_ns})
        if self._timer is None and self._until_ns:
            wait_ns = max(0, min(self._until_ns.values()) - self._clock.monotonic_ns())
            self._timer = self._loop.call_later(wait_ns / NS_PER_S, self._expire)
        if names != self.names:
            self.names = names
            for changed in self._listeners:
                changed()

    def _expire(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        self._until_ns = {name: until_ns for name, until_ns in self._until_ns.items() if until_ns > now_ns}
        self._publish()


# Processes of which the last report is remembered; the oldest are forgotten first.
REMEMBERED_MAX: Final = 1_000
# How much the clocks of two machines may differ. A process that nobody here remembers is believed if its report is not
# older than this and a lease.
CLOCKS_APART_MS: Final = 60_000


class LastReports:
    """The last report of each process, also after it has ceased to be a member.

    Where reports make members, whoever may write to the usage topic can send an old report of a dead process again,
    signature and all. It would be a member for a while, again and again, and keep a part of every quota.
    """

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


log = logging.getLogger(__name__)

# A report is evidence for so many intervals that its sender lives.
_PRESENT_INTERVALS: Final = 3


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


class SharedQuotas:
    """The part of a broker or a proxy in the exchange. All methods are called on the event loop.

    Attributes:
        sent: reports that were published.
        received: reports of other members that counted.
        refused: messages on the usage topic that did not count, by reason.
        failures: own errors, and connections to the topic that failed or ended.
    """

    def __init__(
        self,
        groups: GroupsInUse,
        names: MemberNames,
        registry: Registry | None,
        reporting: Reporting,
        options: Callable[[], SharingOptions],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Args: names: of the members; registry: where they register, if they do; options: those in force now."""
        self.sent = 0
        self.received = 0
        self.refused: Counter[str] = Counter()
        self.failures = 0
        self.names = names
        self.reporting = reporting
        self.clock = clock
        self.loop = loop
        self._groups = groups
        self._registry = registry
        self._options = options
        self._running: LiveExchange | None = None
        self._incarnation = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        names.listen(self.review)

    # -- for `GroupsInUse` --------------------------------------------------------------------------------------------

    def share(self, group: Group) -> None:
        """Set the share of a group that is new here, or whose quota changed."""
        if self._running is not None:
            self._running.share(group)
        else:
            group.set_share(group.quota, self.clock.monotonic_ns())

    def forget(self, group: Group) -> None:
        """A group was deleted."""
        if self._running is not None:
            self._running.forget(group.name)

    def review(self) -> None:
        """Begin, continue or end to divide quotas, as attachments, members and options are now."""
        options = self._options()
        wanted = options.enabled and not self._stopping and self._wanted()
        if self._running is not None and (self._running.options != options or not wanted):
            ending = self.loop.create_task(self._running.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self._running = None
            if not wanted:
                self._share_all()
        if wanted and self._running is None:
            # For the others, a later exchange of this process is another process.
            self._incarnation = max(self._incarnation + 1, self.clock.wall_ms())
            self._running = LiveExchange(self, options, self._incarnation)
            self._running.update()
            self._share_all()
        elif self._running is not None:
            self._running.update()

    def _share_all(self) -> None:
        for group in self._groups.in_use.values():
            self.share(group)

    async def stop(self) -> None:
        """Tell the others that this member leaves, and end."""
        self._stopping = True
        running, self._running = self._running, None
        if running is not None:
            await running.leave()
        await asyncio.gather(*self._ending, return_exceptions=True)

    # -- for metrics and explanations ---------------------------------------------------------------------------------

    def others(self, group: str) -> Mapping[str, FourNumbers]:
        """Demand of each other member for a group, as it reported; thousandths per second."""
        return self._running.exchange.others(group_id(group)) if self._running is not None else {}

    @property
    def connected(self) -> bool:
        """Whether reports can be sent."""
        return self._running is not None and self._running.topic.is_open

    @property
    def members(self) -> int:
        """How many share quotas now; 0 while there is nothing to share."""
        return len(self.names.names) if self._running is not None else 0

    @property
    def registration(self) -> Registration | None:
        """The state of the own registration; None: members do not register."""
        return self._registry.registration if self._registry is not None else None

    @property
    def problem(self) -> str | None:
        """Why this member is not registered, and what follows; None if it is, or need not be."""
        registration = self.registration
        return registration.problem if registration is not None else None

    # -- of a broker or a proxy ---------------------------------------------------------------------------------------

    def _wanted(self) -> bool:
        """Whether there is something to share."""
        raise NotImplementedError

    def owner(self, topic: TopicName) -> int:
        """Return the number of the broker that serves the topic."""
        raise NotImplementedError

    async def create_namespace(self, name: NamespaceName) -> None:
        """Create the namespace of the usage topic, if it does not exist. Raises MetadataFailed."""
        raise NotImplementedError


class LiveExchange:
    """The exchange while quotas are shared: its timer, its connection, and the groups that it limits."""

    def __init__(self, sharing: SharedQuotas, options: SharingOptions, incarnation: int) -> None:
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
                lease_ns = _PRESENT_INTERVALS * self.options.exchange.interval_ns
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
        lease_ns = _PRESENT_INTERVALS * self.options.exchange.interval_ns
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
