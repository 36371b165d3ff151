# SPDX-License-Identifier: Apache-2.0
"""Explains why clients of this proxy wait: the limit, its setting and value, its numbers, since when, and the remedy.

What brokers do to them is not known here: ask a penstock broker itself, or the metrics of Apache Pulsar.
Where: `penstock why --admin-url PROXY` and the routes under `/admin/v3/why` of a proxy. It reads live objects on the
loop, in portions, and returns plain values, as `broker.stats.why` does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from penstock.core.errors import NotFound
from penstock.core.units import NS_PER_MS
from penstock.governance.muting import MuteReason
from penstock.groups.adaptive_publish import AdaptivePublish
from penstock.net.topic_list_limiter import LimitType, Owner
from penstock.proxy.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.core.names import NamespaceName, TopicName
    from penstock.governance.muting import Mute
    from penstock.governance.resource_group import ClassLimiter
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.proxy.quota_sharing import ProxySharing
    from penstock.proxy.relay import Relay
    from penstock.proxy.relayed_consumers import RelayedConsumer
    from penstock.proxy.relayed_sends import RelayedProducer
    from penstock.proxy.services import Services

Json: TypeAlias = dict[str, Any]

# Findings in one answer; more would be the same limits again, and are not looked for.
FINDINGS_MAX: Final = 200
# Clients, producers and consumers looked at in one turn of the loop.
_ROWS_PER_TURN: Final = 50
# Waiting listings that are looked at.
_LISTINGS_MAX: Final = 1_000
_HEAP: Final = "maxTopicListInFlightHeapMemSizeMB"
_DIRECT: Final = "maxTopicListInFlightDirectMemSizeMB"


class Line(Protocol):
    """Producers or consumers that wait for a limit."""

    owner: str

    @property
    def waiting(self) -> int: ...


class Why:
    """Explanations. All methods are called on the proxy's loop, and raise NotFound for what no client here has."""

    def __init__(self, services: Services, connections: Connections, sharing: ProxySharing) -> None:
        self._services = services
        self._connections = connections
        self._sharing = sharing
        # One at a time: sixty at once, each with its portion, would be sixty portions in a turn of the loop.
        self._one = asyncio.Lock()

    async def of_tenant(self, tenant: str) -> Json:
        """Explain why clients wait that use topics of a tenant, or list them."""
        return await self._explain(f"tenant {tenant}", lambda topic: topic.tenant == tenant, tenant=tenant)

    async def of_namespace(self, namespace: NamespaceName) -> Json:
        """Explain why clients wait that use topics of a namespace."""
        return await self._explain(f"namespace {namespace}", lambda topic: topic.namespace_name == namespace)

    async def of_topic(self, name: TopicName) -> Json:
        """Explain why clients wait that use a topic, or its partitions."""
        return await self._explain(f"topic {name}", lambda topic: name in {topic, topic.parent})

    async def of_client(self, address: str) -> Json:
        """Explain why a client waits, by its address with or without the port."""
        return await self._explain(f"client {address}", lambda _topic: True, address=address)

    async def _explain(
        self, of: str, concerns: Callable[[TopicName], bool], *, tenant: str | None = None, address: str | None = None
    ) -> Json:
        findings: list[Json] = []
        producers = consumers = clients = rows = 0
        async with self._one:
            for connection in self._connections.all():
                if len(findings) > FINDINGS_MAX:
                    break
                session = connection.handler
                rows = await _pace(rows + 1)
                if not isinstance(session, Session) or not _is_client(connection, address):
                    continue
                if address is not None:
                    clients += 1
                    findings += self._connection(f"client {connection.peer}", connection)
                    findings += self._listings(partial(_is_owner, connection.id))
                relay = session.relay
                if relay is None:
                    continue
                own_producers = [one for one in relay.sends.producers.values() if concerns(one.topic.name)]
                own_consumers = [one for one in relay.consumers.consumers.values() if concerns(one.topic)]
                producers += len(own_producers)
                consumers += len(own_consumers)
                for producer in own_producers:
                    findings += self._producer(relay, connection, producer)
                    rows = await _pace(rows + 1)
                for consumer in own_consumers:
                    findings += self._consumer(connection, consumer)
                    rows = await _pace(rows + 1)
                if address is None and (own_producers or own_consumers):
                    findings += self._connection(f"client {connection.peer}", connection)
            if tenant is not None:
                findings += self._listings(lambda owner: owner.tenant == tenant)
        if not (producers or consumers or clients or findings):
            raise NotFound(f"no client of this proxy uses {of}")
        return {
            "of": of,
            "slowed": bool(findings),
            "producers": producers,
            "subscriptions": consumers,
            "findings": findings[:FINDINGS_MAX],
            "more": len(findings) > FINDINGS_MAX,
            "unanswered": [],
        }

    # -- limits

    def _producer(self, relay: Relay, connection: Connection, producer: RelayedProducer) -> Iterator[Json]:
        waiting = relay.sends.waiting_of(producer.producer_id)
        if waiting is not None and waiting.line is not None:
            subject = f"producer {producer.producer_id} of {producer.topic.name} at {connection.peer}"
            numbers = {"held_messages": waiting.amount.messages, "held_bytes": waiting.amount.bytes}
            yield self._limit(subject, "publish", waiting.line, waiting.line.limiter, waiting.since_ns, numbers)

    def _consumer(self, connection: Connection, consumer: RelayedConsumer) -> Iterator[Json]:
        permits = consumer.permits
        for line in permits.lines if permits is not None else ():
            assert permits is not None
            if line.waits(permits):
                subject = f"consumer {consumer.consumer_id} of {consumer.topic} at {connection.peer}"
                numbers = {"held_permits": permits.wanted}
                yield self._limit(subject, "dispatch", line, line.limiter, line.limiter.waits_since_ns, numbers)

    def _limit(
        self,
        subject: str,
        traffic: str,
        line: Line,
        limiter: ClassLimiter,
        since_ns: int | None,
        more: dict[str, int],
    ) -> Json:
        """A resource group, or another limit with shares and a balance."""
        now_ns, share = self._services.clock.monotonic_ns(), limiter.share
        left = zip(("messages_left", "bytes_left"), limiter.left(now_ns), strict=True)
        group = None if isinstance(line, AdaptivePublish) else self._services.groups.in_use.get(line.owner)
        quota = getattr(group.quota, traffic) if group is not None else share
        numbers: dict[str, float] = {
            **{name: value for name, value in left if value is not None},
            **{f"share_{name}_per_s": value for name, value in _rates(share.messages, share.bytes)},
            **{f"quota_{name}_per_s": value for name, value in _rates(quota.messages, quota.bytes)},
            **({"members": self._sharing.members} if self._sharing.members else {}),
            **self._wanted_elsewhere(line.owner, traffic),
            "waiting": line.waiting,
            **more,
        }
        wait = f"wait {-(-limiter.delay_ns(now_ns) // NS_PER_MS)} ms for its turn"
        if isinstance(line, AdaptivePublish):
            limit = f"adaptive publish throttle of {line.owner_text}"
            return self._finding(subject, limit, "adaptive-publish-rate", since_ns, numbers, wait)
        remedy = f"{wait}, or raise {traffic}RateInMsgs or {traffic}RateInBytes of the group"
        limit = f"{traffic} quota of resource group {line.owner}"
        return self._finding(subject, limit, "group-quota", since_ns, numbers, remedy)

    def _wanted_elsewhere(self, group: str, traffic: str) -> dict[str, float]:
        """What other proxies want of the group per second, by their reports."""
        start = 0 if traffic == "publish" else 2
        wanted: dict[str, float] = {}
        for proxy, demand in self._sharing.others(group).items():
            messages, nbytes = (round(thousandths / 1_000, 3) for thousandths in demand[start : start + 2])
            wanted |= {f"{proxy}_wants_messages_per_s": messages, f"{proxy}_wants_bytes_per_s": nbytes}
        return wanted

    def _connection(self, subject: str, connection: Connection) -> Iterator[Json]:
        for mute in connection.muted.snapshot():
            found = self._mute(connection, mute)
            if found is not None:
                limit, numbers, remedy = found
                yield self._finding(subject, limit, mute.reason.value, mute.since_ns, numbers, remedy)
        if (
            connection.out_bytes
            and not connection.room_bytes
            and MuteReason.OUTBOUND not in {mute.reason for mute in connection.muted.snapshot()}
        ):
            limit, numbers, remedy = self._outbound(connection)
            yield self._finding(subject, limit, MuteReason.OUTBOUND.value, None, numbers, remedy)

    def _mute(self, connection: Connection, mute: Mute) -> tuple[str, Mapping[str, float], str] | None:
        """The limit, its numbers and the remedy; None if a producer's finding says it."""
        memory = self._connections.memory
        pool = {"used_bytes": memory.used, "queued.max.request.bytes": memory.size}
        match mute.reason:
            case MuteReason.REQUEST_MEMORY:
                held = {**pool, "connection_bytes": connection.held_bytes}
                return (
                    "request memory is used up",
                    held,
                    "brokers take what was sent, or queued.max.request.bytes is raised",
                )
            case MuteReason.REQUEST_COUNT:
                return "too many requests are on their way", pool, "brokers take some, or queued.max.requests is raised"
            case MuteReason.COMMANDS:
                row = self._services.commands_memory
                numbers = {"used_bytes": row.used_bytes, "size_bytes": row.size_bytes}
                return "too many of its lookups wait", numbers, "half of them have ended"
            case MuteReason.OUTBOUND:
                return self._outbound(connection)
            case MuteReason.UPSTREAM:
                relay = connection.handler.relay if isinstance(connection.handler, Session) else None
                target = relay.target if relay is not None else "its broker"
                unsent = {"unsent_bytes": relay.unsent_bytes if relay is not None else 0}
                return f"broker {target} takes nothing", unsent, "the broker takes what was sent; see its own limits"
            case MuteReason.STOPPING:
                return "the proxy is stopping", {}, "the client connects to another proxy"
            case MuteReason.GROUP_QUOTA | MuteReason.ADAPTIVE_RATE:
                of = mute.owner or "its group"
                return f"so much waits for {of} that the connection is not read", pool, "what it holds was sent on"
            case MuteReason.STORAGE | MuteReason.PUBLISH_RATE:
                return None

    def _outbound(self, connection: Connection) -> tuple[str, Mapping[str, float], str]:
        outbound = self._connections.outbound
        numbers = {
            "unsent_bytes": connection.out_bytes,
            "used_bytes": outbound.used_bytes,
            "outboundMB": outbound.budget_bytes >> 20,
        }
        return "its client does not read what it is sent", numbers, "the client reads, or outboundMB is raised"

    def _listings(self, concerns: Callable[[Owner], bool]) -> Iterator[Json]:
        """Topic listings that wait for memory."""
        limiter = self._services.listings.limiter
        for kind, what, setting in (
            (LimitType.HEAP_MEMORY, "heap", _HEAP),
            (LimitType.DIRECT_MEMORY, "direct", _DIRECT),
        ):
            of_kind = limiter.limiter(kind)
            waiting = [one for one in of_kind.waiting(_LISTINGS_MAX) if concerns(one.owner)]
            for one in waiting:
                seen = of_kind.snapshot()
                numbers = {
                    "wanted_bytes": one.wants,
                    "used_bytes": seen.acquired,
                    setting: seen.permits_max >> 20,
                    "queue_size": seen.queue_size,
                }
                since_ns = self._services.clock.monotonic_ns() - one.waited_ns
                limit = f"{what} memory of topic listings is used up"
                remedy = f"other listings have ended, or {setting} is raised"
                yield self._finding(
                    f"a listing of tenant {one.owner.tenant}", limit, "topic-list-memory", since_ns, numbers, remedy
                )

    def _finding(
        self, subject: str, limit: str, reason: str, since_ns: int | None, numbers: Mapping[str, Any], remedy: str
    ) -> Json:
        now_ns = self._services.clock.monotonic_ns()
        return {
            "what": subject,
            "limit": limit,
            "reason": reason,
            "forMs": None if since_ns is None else max(0, now_ns - since_ns) // NS_PER_MS,
            "numbers": dict(numbers),
            "liftedBy": remedy,
        }


def _is_client(connection: Connection, address: str | None) -> bool:
    return address is None or address in {connection.peer, connection.peer.rpartition(":")[0]}


def _is_owner(connection_id: int, owner: Owner) -> bool:
    return owner.connection == connection_id


async def _pace(rows: int) -> int:
    """Yield to the loop after so many rows; returns the rows since then."""
    if rows < _ROWS_PER_TURN:
        return rows
    await asyncio.sleep(0)
    return 0


def _rates(messages: float | None, nbytes: float | None) -> list[tuple[str, float]]:
    return [(name, value) for name, value in (("messages", messages), ("bytes", nbytes)) if value]
