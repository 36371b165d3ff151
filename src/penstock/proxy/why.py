# SPDX-License-Identifier: Apache-2.0
"""Explains why clients of this proxy wait: the hold, its setting and value, its numbers, since when, and the remedy.

What brokers do to them is not known here: ask a penstock broker itself, or the metrics of Apache Pulsar.
Where: `penstock why --admin-url PROXY` and the routes under `/admin/v3/why` of a proxy. It collects holds on the loop,
in portions, as `broker.stats.why` does; `stats.findings` makes sentences of them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.governance.holds import Hold, HoldKind
from penstock.governance.muting import MuteReason
from penstock.proxy.session import Session
from penstock.stats.findings import FINDINGS_MAX, explanation, pace
from penstock.stats.limit_holds import LimitHolds, Muted, of_listings, of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.core.names import NamespaceName, TopicName
    from penstock.governance.budget import BudgetRow
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.net.topic_list_limiter import Owner
    from penstock.proxy.relay import Relay
    from penstock.proxy.relayed_consumers import RelayedConsumer
    from penstock.proxy.relayed_sends import RelayedProducer
    from penstock.proxy.services import Services
    from penstock.stats.findings import Json
    from penstock.stats.limit_holds import Sharing


class Why:
    """Explanations. All methods are called on the proxy's loop, and raise NotFound for what no client here has."""

    def __init__(
        self, services: Services, connections: Connections, sharing: Sharing | None, budget: Iterable[BudgetRow]
    ) -> None:
        self._services = services
        self._connections = connections
        self._budget = budget
        self._limits = LimitHolds(services.clock, lambda: services.groups.in_use, sharing, lambda: None)
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
        holds: list[Hold] = []
        producers = consumers = clients = rows = 0
        limiter, now_ns = self._services.listings.limiter, self._services.clock.monotonic_ns()
        async with self._one:
            for connection in self._connections.all():
                if len(holds) > FINDINGS_MAX:
                    break
                session = connection.handler
                rows = await pace(rows + 1)
                if not isinstance(session, Session) or not _is_client(connection, address):
                    continue
                if address is not None:
                    clients += 1
                    holds += self._connection(f"client {connection.peer}", connection)
                    holds += of_listings(limiter, partial(_is_owner, connection.id), now_ns)
                relay = session.relay
                if relay is None:
                    continue
                own_producers = [one for one in relay.sends.producers.values() if concerns(one.topic.name)]
                own_consumers = [one for one in relay.consumers.consumers.values() if concerns(one.topic)]
                producers += len(own_producers)
                consumers += len(own_consumers)
                for producer in own_producers:
                    holds += self._producer(relay, connection, producer)
                    rows = await pace(rows + 1)
                for consumer in own_consumers:
                    holds += self._consumer(connection, consumer)
                    rows = await pace(rows + 1)
                if address is None and (own_producers or own_consumers):
                    holds += self._connection(f"client {connection.peer}", connection)
            if tenant is not None:
                holds += of_listings(limiter, lambda owner: owner.tenant == tenant, now_ns)
        if not (producers or consumers or clients or holds):
            raise NotFound(f"no client of this proxy uses {of}")
        holds += of_rows(self._budget)
        return explanation(of, holds, now_ns, producers=producers, subscriptions=consumers)

    def _producer(self, relay: Relay, connection: Connection, producer: RelayedProducer) -> Iterator[Hold]:
        what = f"producer {producer.producer_id} of {producer.topic.name} at {connection.peer}"
        yield from self._limits.of_producer(what, producer, relay.sends.waiting_of(producer.producer_id))

    def _consumer(self, connection: Connection, consumer: RelayedConsumer) -> Iterator[Hold]:
        permits = consumer.permits
        episode = permits.waits if permits is not None else None
        if permits is None or episode is None or episode.of not in permits.lines or not permits.wanted:
            return
        now_ns = self._services.clock.monotonic_ns()
        if episode.slows(now_ns, at_once=True):
            what = f"consumer {consumer.consumer_id} of {consumer.topic} at {connection.peer}"
            numbers = {"held_permits": permits.wanted, **episode.numbers(now_ns)}
            yield self._limits.of_group(what, "dispatch", episode.of, episode.since_ns, numbers)

    def _connection(self, what: str, connection: Connection) -> Iterator[Hold]:
        memory, session = self._connections.memory, connection.handler
        relay = session.relay if isinstance(session, Session) else None
        producers = relay.sends.producers.values() if relay is not None else ()
        at = Muted(
            connection=connection,
            lines=[line for one in producers for line in one.topic.publish_lines],
            pool={"used_bytes": memory.used, "queued.max.request.bytes": memory.size},
            freed_by="brokers take what was sent",
            broker=f"broker {relay.target}" if relay is not None else "its broker",
            unsent_bytes=relay.unsent_bytes if relay is not None else 0,
        )
        mutes = connection.muted.snapshot()
        for mute in mutes:
            yield self._limits.of_mute(what, mute, at)
        unread = connection.out_bytes and not connection.room_bytes
        if unread and MuteReason.OUTBOUND not in {mute.reason for mute in mutes}:
            yield Hold(kind=HoldKind.OUTBOUND, what=what, numbers={"unsent_bytes": connection.out_bytes})


def _is_client(connection: Connection, address: str | None) -> bool:
    return address is None or address in {connection.peer, connection.peer.rpartition(":")[0]}


def _is_owner(connection_id: int, owner: Owner) -> bool:
    return owner.connection == connection_id
