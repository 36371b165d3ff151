# SPDX-License-Identifier: Apache-2.0
"""Holds of limits, and of connections that are not read: what a broker and a proxy say of them alike.

Where: `broker.stats.why` and `proxy.why` ask for the holds of producers, subscriptions and clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.budget import Row, owner_and_key
from penstock.governance.holds import Hold, HoldKind
from penstock.governance.muting import MuteReason
from penstock.governance.resource_group import NOTHING
from penstock.groups.adaptive_publish import AdaptivePublish
from penstock.net.topic_list_limiter import LimitType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.core.clock import Clock
    from penstock.core.usage_report import FourNumbers
    from penstock.governance.adaptive_throttle import Pressures
    from penstock.governance.budget import BudgetRow
    from penstock.governance.muting import Mute
    from penstock.governance.resource_group import Amount, ClassLimiter
    from penstock.groups.group import Group
    from penstock.groups.group_publish import GroupPublish
    from penstock.groups.ports import LimitedProducer, MeasuredMemory
    from penstock.net.connection import Connection
    from penstock.net.topic_list_limiter import Owner, TopicListMemoryLimiter

# The owner of the broker's own rates; topics use their names, which contain a scheme.
_BROKER: Final = "broker"
_PUBLISH_RATE: Final = (
    "raise publishRate of the topic or its namespace, or maxPublishRatePerTopicInMessages and …InBytes"
)
_DETACH: Final = "or detach the namespace or tenant"
_LIMITS: Final = frozenset((HoldKind.PUBLISH_RATE, HoldKind.GROUP_QUOTA, HoldKind.ADAPTIVE_RATE))
_PUBLISH_RATE_OF_BROKER: Final = "raise brokerPublisherThrottlingMaxMessageRate and …MaxByteRate"

# Waiting listings that are looked at.
_LISTINGS_MAX: Final = 1_000
_LISTINGS: Final = (
    (LimitType.HEAP_MEMORY, "heap", "maxTopicListInFlightHeapMemSizeMB"),
    (LimitType.DIRECT_MEMORY, "direct", "maxTopicListInFlightDirectMemSizeMB"),
)


class Line(Protocol):
    """Producers or consumers that wait for a limit."""

    owner: str
    limiter: ClassLimiter

    @property
    def waiting(self) -> int: ...


class Held(Protocol):
    """What is held of a producer."""

    @property
    def amount(self) -> Amount: ...


class Sharing(Protocol):
    """The other brokers or proxies, and what they use."""

    def others(self, group: str) -> Mapping[str, FourNumbers]:
        """What each of them wants of a group, in thousandths per second."""

    @property
    def members(self) -> int:
        """How many share quotas now, this one included; 0 while there is nothing to share."""

    @property
    def problem(self) -> str | None:
        """Why this one is not registered, and what follows; None if it is, or need not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Muted:
    """A connection that is not read, and what may be said of it.

    Attributes:
        lines: limits of its producers.
        freed_by: what frees request memory.
        broker: behind a proxy, which has not taken `unsent_bytes`.
    """

    connection: Connection
    lines: Iterable[GroupPublish]
    freed_by: str
    broker: str = "its broker"
    unsent_bytes: int = 0


class LimitHolds:
    """Makes holds of limits."""

    def __init__(
        self,
        clock: Clock,
        groups: Callable[[], Mapping[str, Group]],
        sharing: Sharing | None,
        requests: BudgetRow,
        memory: Callable[[], MeasuredMemory | None],
    ) -> None:
        """Receive what this reads.

        Args: groups: in use, by name. requests: request memory. memory: as adaptive throttling has measured it.
        """
        self._clock = clock
        self._groups = groups
        self._sharing = sharing
        self._requests = requests
        self._memory = memory

    def of_producer(self, what: str, producer: LimitedProducer, held: Held | None) -> Iterator[Hold]:
        """The limit that a producer waits for, or has waited for a moment ago."""
        episode, now_ns = producer.waits, self._clock.monotonic_ns()
        line = episode.of if episode is not None else None
        if episode is None or line is None or line not in producer.topic.publish_lines:
            return
        if line.limiter.share.limited and episode.slows(now_ns, at_once=True):
            got, amount = producer.messages_in, held.amount if held is not None else NOTHING
            numbers = episode.numbers(now_ns, got=got, wanted=got + amount.messages)
            numbers |= {"held_messages": amount.messages, "held_bytes": amount.bytes}
            yield self.of_line(what, line, episode.since_ns, numbers)

    def of_line(self, what: str, line: GroupPublish, since_ns: int, numbers: Mapping[str, float]) -> Hold:
        """A limit of what is published."""
        if isinstance(line, AdaptivePublish):
            return self._throttle(what, line, since_ns, numbers)
        if line.hold is HoldKind.PUBLISH_RATE:
            return self._publish_rate(what, line, since_ns, numbers)
        return self.of_group(what, "publish", line, since_ns, numbers)

    def of_mute(self, what: str, mute: Mute, at: Muted) -> Hold:
        """A connection that is not read, for a limit of its producers or for a reason of its own."""
        connection = at.connection
        # The connection waits for both alike; which of them refused it, the memory knows.
        reason = connection.refused_by if mute.reason is MuteReason.REQUEST_MEMORY else mute.reason
        kind = HoldKind(reason.value)
        held = mute.waits.numbers(self._clock.monotonic_ns())
        line = next((one for one in at.lines if (one.reason, one.owner) == (mute.reason, mute.owner)), None)
        pool = {"used_bytes": self._requests.used_bytes, "limit_bytes": self._requests.limit_bytes}
        if line is not None:
            hold = self.of_line(what, line, mute.waits.since_ns, {**pool, **held})
            return replace(hold, after=": its connection holds as much of it as it may, and is not read")
        if kind in _LIMITS:
            gone = "a limit that was removed just now"
            return Hold(kind=kind, what=what, of=gone, since_ns=mute.since_ns, lifted_by="the next turn of the loop")
        of_connection = {**pool, "connection_bytes": connection.held_bytes}
        numbers: Mapping[HoldKind, Mapping[str, float]] = {
            HoldKind.REQUEST_MEMORY: of_connection,
            HoldKind.REQUEST_COUNT: of_connection,
            HoldKind.COMMANDS: {"held_bytes": connection.held_bytes},
            HoldKind.OUTBOUND: {"unsent_bytes": connection.out_bytes},
            HoldKind.UPSTREAM: {"unsent_bytes": at.unsent_bytes},
        }
        return Hold(
            kind=kind,
            what=what,
            of=at.broker,
            since_ns=mute.waits.since_ns,
            lifted_by=at.freed_by,
            numbers={**numbers.get(kind, {}), **held},
        )

    def of_group(self, what: str, traffic: str, line: Line, since_ns: int | None, numbers: Mapping[str, float]) -> Hold:
        """A resource group, or one that was."""
        limiter, group = line.limiter, self._groups().get(line.owner)
        now_ns, share = self._clock.monotonic_ns(), limiter.share
        quota = getattr(group.quota, traffic) if group is not None else share
        sharing = self._sharing
        problem = sharing.problem if sharing is not None else None
        return Hold(
            kind=HoldKind.GROUP_QUOTA,
            what=what,
            of=f"{traffic} quota of resource group {line.owner}",
            since_ns=since_ns,
            ready_ns=limiter.delay_ns(now_ns),
            lifted_by=f"raise {traffic}RateInMsgs or {traffic}RateInBytes of the group, {_DETACH}"
            + (f"; {problem}" if problem is not None else ""),
            numbers={
                **balances(limiter, now_ns),
                **per_s("share_", share.messages, share.bytes),
                **per_s("quota_", quota.messages, quota.bytes),
                **({"members": sharing.members} if sharing is not None and sharing.members else {}),
                **self._wanted_elsewhere(line.owner, traffic),
                "waiting": line.waiting,
                **numbers,
            },
        )

    def _wanted_elsewhere(self, group: str, traffic: str) -> dict[str, float]:
        """What the others want of the group per second, by their reports."""
        start = 0 if traffic == "publish" else 2
        wanted: dict[str, float] = {}
        for member, demand in (self._sharing.others(group) if self._sharing is not None else {}).items():
            messages, nbytes = (round(thousandths / 1_000, 3) for thousandths in demand[start : start + 2])
            wanted |= {f"{member}_wants_messages_per_s": messages, f"{member}_wants_bytes_per_s": nbytes}
        return wanted

    def _publish_rate(self, what: str, line: Line, since_ns: int, numbers: Mapping[str, float]) -> Hold:
        now_ns, of_broker, rate = self._clock.monotonic_ns(), line.owner == _BROKER, line.limiter.share
        return Hold(
            kind=HoldKind.PUBLISH_RATE,
            what=what,
            of="the broker" if of_broker else line.owner,
            since_ns=since_ns,
            ready_ns=line.limiter.delay_ns(now_ns),
            lifted_by=_PUBLISH_RATE_OF_BROKER if of_broker else _PUBLISH_RATE,
            numbers={**balances(line.limiter, now_ns), **per_s("", rate.messages, rate.bytes), **numbers},
        )

    def _throttle(self, what: str, line: AdaptivePublish, since_ns: int, numbers: Mapping[str, float]) -> Hold:
        throttle, now_ns = line.throttle, self._clock.monotonic_ns()
        pressures, share = throttle.pressures, line.limiter.share
        return Hold(
            kind=HoldKind.ADAPTIVE_RATE,
            what=what,
            of=line.owner_text,
            since_ns=since_ns,
            lifted_by=_relief(pressures),
            numbers={
                "memory_pressure": round(pressures.memory, 3),
                "backlog_pressure": round(pressures.backlog, 3),
                "queueing_pressure": round(pressures.queueing, 3),
                "weight": round(pressures.weight, 3),
                "throttled_for_s": round((now_ns - (throttle.since_ns or now_ns)) / NS_PER_S, 1),
                **per_s("natural_", throttle.messages.natural, throttle.bytes.natural),
                **per_s("", share.messages, share.bytes),
                **balances(line.limiter, now_ns),
                **(self._memory_in_use() if pressures.memory > 0 else {}),
                **numbers,
            },
        )

    def _memory_in_use(self) -> dict[str, float]:
        measured = self._memory()
        if measured is None:
            return {}
        return {
            "memory_used_bytes": measured.used,
            "memory_limit_bytes": measured.limit,
            "resident_bytes": measured.resident,
            **{f"memory_{owner.replace('-', '_')}_bytes": nbytes for owner, nbytes in measured.owners.items()},
        }


def of_listings(limiter: TopicListMemoryLimiter, concerns: Callable[[Owner], bool], now_ns: int) -> Iterator[Hold]:
    """Topic listings that wait for memory."""
    for kind, memory, setting in _LISTINGS:
        of_kind = limiter.limiter(kind)
        seen = of_kind.snapshot()
        for one in of_kind.waiting(_LISTINGS_MAX):
            if concerns(one.owner):
                yield Hold(
                    kind=HoldKind.TOPIC_LIST_MEMORY,
                    what=f"a listing of tenant {one.owner.tenant}",
                    of=memory,
                    since_ns=now_ns - one.waited_ns,
                    lifted_by=setting,
                    numbers={
                        "wanted_bytes": one.wants,
                        "used_bytes": seen.acquired,
                        setting: seen.permits_max >> 20,
                        "queue_size": seen.queue_size,
                    },
                )


def of_rows(budget: Iterable[BudgetRow]) -> Iterator[Hold]:
    """Rows of the memory budget that refuse what is charged to them."""
    for row in budget:
        if isinstance(row, Row) and row.refuses:
            owner, key = owner_and_key(row)
            numbers = {"wanted_bytes": row.refused_bytes, "used_bytes": row.used_bytes, "limit_bytes": row.limit_bytes}
            yield Hold(kind=HoldKind.MEMORY_ROW, what="whoever needs more", of=owner, lifted_by=key, numbers=numbers)


def per_s(name: str, messages: float | None, nbytes: float | None) -> dict[str, float]:
    """Rates that are set."""
    rates = (("messages", messages), ("bytes", nbytes))
    return {f"{name}{unit}_per_s": round(rate, 3) for unit, rate in rates if rate}


def balances(limiter: ClassLimiter, now_ns: int) -> dict[str, float]:
    """Messages and bytes that are left, negative in debt; without those that are not limited."""
    left = zip(("messages_left", "bytes_left"), limiter.left(now_ns), strict=True)
    return {name: value for name, value in left if value is not None}


def _relief(pressures: Pressures) -> str:
    """What ends a throttle with these pressures."""
    causes = []
    if pressures.backlog > 0:
        causes.append("consumers of the topic acknowledge, or its backlogQuota is raised")
    if pressures.memory > 0:
        causes.append("the broker needs less memory, or memoryLimitMB is raised")
    if pressures.queueing > 0:
        causes.append("the disk keeps up")
    return ("; ".join(causes) or "some cycles without pressure") + (
        "; or at once: adaptivePublisherThrottlingObserveOnly=true"
    )
