# SPDX-License-Identifier: Apache-2.0
"""Holds of limits, and of connections that are not read: what a broker and a proxy say of them alike.

Where: `broker.stats.why` and `proxy.why` ask for the holds of producers, subscriptions and clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from penstock.core.units import NS_PER_S
from penstock.governance.budget import Row, owner_and_key
from penstock.governance.holds import Hold, HoldKind
from penstock.governance.resource_group import NOTHING
from penstock.groups.adaptive_publish import AdaptivePublish
from penstock.groups.limit import Limit, PublishLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import Pressures
    from penstock.governance.budget import BudgetRow
    from penstock.governance.holds import Episode
    from penstock.governance.muting import Mute
    from penstock.governance.resource_group import Amount, ClassLimiter
    from penstock.groups.group import Group
    from penstock.groups.live_exchange import SharedQuotas
    from penstock.groups.ports import LimitedProducer, MeasuredMemory
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import Owner, TopicListMemoryLimiter

L = TypeVar("L", bound=Limit[Any])

# The owner of the broker's own rates; topics use their names, which contain a scheme.
_BROKER: Final = "broker"
_PUBLISH_RATE: Final = (
    "raise publishRate of the topic or its namespace, or maxPublishRatePerTopicInMessages and …InBytes"
)
_LIMITS: Final = frozenset((HoldKind.PUBLISH_RATE, HoldKind.GROUP_QUOTA, HoldKind.ADAPTIVE_RATE))
_PUBLISH_RATE_OF_BROKER: Final = "raise brokerPublisherThrottlingMaxMessageRate and …MaxByteRate"

# Waiting listings that are looked at.
_LISTINGS_MAX: Final = 1_000


class Held(Protocol):
    """Held SENDs of a producer."""

    @property
    def amount(self) -> Amount: ...


class Said(NamedTuple):
    """Description of a limit: its owner, what lifts it besides time, and its numbers."""

    of: str
    lifted_by: str
    numbers: Mapping[str, float]


class LimitHolds:
    """Makes holds of limits."""

    def __init__(
        self,
        clock: Clock,
        groups: Callable[[], Mapping[str, Group]],
        sharing: SharedQuotas | None,
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
        got, amount = producer.messages_in, held.amount if held is not None else NOTHING
        limits = producer.topic.publish_lines
        numbers = {"held_messages": amount.messages, "held_bytes": amount.bytes}
        yield from self.of_wait(what, producer.waits, limits, numbers, got=got, wanted=got + amount.messages)

    def of_wait(
        self,
        what: str,
        waits: Episode[L] | None,
        limits: Collection[L],
        numbers: Mapping[str, float],
        *,
        got: int | None = None,
        wanted: int | None = None,
    ) -> Iterator[Hold]:
        """A wait for one of these limits, or for one that was lifted. Args: got, wanted: see `Episode.numbers`."""
        limit, now_ns = waits.of if waits is not None else None, self._clock.monotonic_ns()
        if waits is None or limit is None or limit not in limits or not limit.limiter.share.limited:
            return
        if waits.slows(now_ns, at_once=True):
            yield self.of_limit(what, limit, waits.since_ns, {**waits.numbers(now_ns, got, wanted), **numbers})

    def of_limit(
        self, what: str, limit: Limit[Any], since_ns: int, numbers: Mapping[str, float], said: Said | None = None
    ) -> Hold:
        """Return the hold of a waiter for a limit. Args: said: of the limit; None: it is one that proxies have, too."""
        limiter, now_ns = limit.limiter, self._clock.monotonic_ns()
        if said is None and isinstance(limit, AdaptivePublish):
            said = self._said_of_throttle(limit, now_ns)
        elif said is None:
            said = _said_of_rate(limit) if limit.hold is HoldKind.PUBLISH_RATE else self._said_of_group(limit)
        return Hold(
            kind=limit.hold,
            what=what,
            of=said.of,
            since_ns=since_ns,
            ready_ns=limiter.delay_ns(now_ns),
            lifted_by=said.lifted_by,
            numbers={**said.numbers, **_balances(limiter, now_ns), **numbers},
        )

    def of_mutes(
        self,
        what: str,
        connection: Connection,
        limits: Collection[PublishLimit],
        *,
        broker: str = "its broker",
        unsent_bytes: int = 0,
        freed_by: str = "it is freed",
        tenants: Callable[[Mute], frozenset[str] | None] = lambda _mute: None,
    ) -> Iterator[Hold]:
        """Why a connection is not read: for a limit of its producers, or for a reason of its own.

        `freed_by` frees request memory. Behind a proxy, `broker` has not taken `unsent_bytes`. `tenants` says who may
        see whose limit it is.
        """
        now_ns, requests = self._clock.monotonic_ns(), self._requests
        pool = {"used_bytes": requests.used_bytes, "limit_bytes": requests.limit_bytes}
        of_requests = {**pool, "connection_bytes": connection.held_bytes}
        numbers: Mapping[HoldKind, Mapping[str, float]] = {
            HoldKind.REQUEST_MEMORY: of_requests,
            HoldKind.REQUEST_COUNT: of_requests,
            HoldKind.COMMANDS: {"held_bytes": connection.held_bytes},
            HoldKind.OUTBOUND: {"unsent_bytes": connection.out_bytes},
            HoldKind.UPSTREAM: {"unsent_bytes": unsent_bytes},
        }
        for mute in connection.muted.snapshot():
            # The connection waits for both alike; which of them refused it, the memory knows.
            kind = connection.refused_by if mute.reason is HoldKind.REQUEST_MEMORY else mute.reason
            held = mute.waits.numbers(now_ns)
            limit = next((one for one in limits if (one.hold, one.owner) == (mute.reason, mute.owner)), None)
            if limit is not None:
                hold = self.of_limit(what, limit, mute.waits.since_ns, {**pool, **held})
                hold = replace(hold, after=": its connection holds as much of it as it may, and is not read")
            else:
                gone = kind in _LIMITS
                hold = Hold(
                    kind=kind,
                    what=what,
                    of="a limit that was removed just now" if gone else broker,
                    since_ns=mute.waits.since_ns,
                    lifted_by="the next turn of the loop" if gone else freed_by,
                    numbers={**numbers.get(kind, {}), **held},
                )
            yield replace(hold, tenants=tenants(mute))

    def _said_of_group(self, limit: Limit[Any]) -> Said:
        """A resource group, or one that was."""
        traffic = "publish" if isinstance(limit, PublishLimit) else "dispatch"
        group, share, sharing = self._groups().get(limit.owner), limit.limiter.share, self._sharing
        quota = getattr(group.quota, traffic) if group is not None else share
        problem = sharing.problem if sharing is not None else None
        return Said(
            f"{traffic} quota of resource group {limit.owner}",
            f"raise {traffic}RateInMsgs or {traffic}RateInBytes of the group, or detach the namespace or tenant"
            + (f"; {problem}" if problem is not None else ""),
            {
                **per("s", "share_", share.messages, share.bytes),
                **per("s", "quota_", quota.messages, quota.bytes),
                **({"members": sharing.members} if sharing is not None and sharing.members else {}),
                **self._wanted_elsewhere(limit.owner, traffic),
                "waiting": limit.waiting,
            },
        )

    def _wanted_elsewhere(self, group: str, traffic: str) -> dict[str, float]:
        """Return the others' demand for the group per second, by their reports."""
        start = 0 if traffic == "publish" else 2
        wanted: dict[str, float] = {}
        for member, demand in (self._sharing.others(group) if self._sharing is not None else {}).items():
            messages, nbytes = (round(thousandths / 1_000, 3) for thousandths in demand[start : start + 2])
            wanted |= {f"{member}_wants_messages_per_s": messages, f"{member}_wants_bytes_per_s": nbytes}
        return wanted

    def _said_of_throttle(self, limit: AdaptivePublish, now_ns: int) -> Said:
        throttle, pressures, share = limit.throttle, limit.throttle.pressures, limit.limiter.share
        return Said(
            limit.owner_text,
            _relief(pressures),
            {
                "memory_pressure": round(pressures.memory, 3),
                "backlog_pressure": round(pressures.backlog, 3),
                "queueing_pressure": round(pressures.queueing, 3),
                "weight": round(pressures.weight, 3),
                "throttled_for_s": round((now_ns - (throttle.since_ns or now_ns)) / NS_PER_S, 1),
                **per("s", "natural_", throttle.messages.natural, throttle.bytes.natural),
                **per("s", "", share.messages, share.bytes),
                **(self._memory_in_use() if pressures.memory > 0 else {}),
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
    for row in limiter.rows():
        seen, (_, setting) = row.semaphore.snapshot(), owner_and_key(row)
        for one in row.semaphore.waiting(_LISTINGS_MAX):
            if concerns(one.owner):
                yield Hold(
                    kind=HoldKind.TOPIC_LIST_MEMORY,
                    what=f"a listing of tenant {one.owner.tenant}",
                    of=row.name.removeprefix("listings-"),
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


def per(unit: str, name: str, messages: float | None, nbytes: float | None) -> dict[str, float]:
    """Messages and bytes per second, or period, if they are limited."""
    rates = (("messages", messages), ("bytes", nbytes))
    return {f"{name}{what}_per_{unit}": round(one, 3) for what, one in rates if one}


def _balances(limiter: ClassLimiter, now_ns: int) -> dict[str, float]:
    """Messages and bytes that are left, negative in debt; without those that are not limited."""
    left = zip(("messages_left", "bytes_left"), limiter.left(now_ns), strict=True)
    return {name: value for name, value in left if value is not None}


def _said_of_rate(limit: Limit[Any]) -> Said:
    of_broker, share = limit.owner == _BROKER, limit.limiter.share
    raised = _PUBLISH_RATE_OF_BROKER if of_broker else _PUBLISH_RATE
    return Said("the broker" if of_broker else limit.owner, raised, per("s", "", share.messages, share.bytes))


def _relief(pressures: Pressures) -> str:
    """Return the events that end a throttle with these pressures."""
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
