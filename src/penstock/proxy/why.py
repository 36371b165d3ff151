# SPDX-License-Identifier: Apache-2.0
"""Explains why clients of this proxy wait: the hold, its setting and value, its numbers, since when, and the remedy.

Effects of brokers on them are not known here: ask a penstock broker itself, or the metrics of Apache Pulsar.
Where: `penstock why --admin-url PROXY`, the routes under `/admin/v3/why` of a proxy, and its metric of holds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.governance.holds import Hold, HoldKind
from penstock.proxy.session import Session
from penstock.stats.explanations import Explanations, Question, Seen
from penstock.stats.limit_holds import LimitHolds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.governance.budget import BudgetRow
    from penstock.groups.live_exchange import SharedQuotas
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.net.listing_memory import Owner
    from penstock.proxy.consumers import RelayedConsumer
    from penstock.proxy.proxy import Services
    from penstock.proxy.relay import Relay
    from penstock.proxy.relayed_sends import RelayedProducer
    from penstock.stats.explanations import Walk
    from penstock.stats.findings import Json


class Why(Explanations):
    """Explanations of a proxy. Topics and tenants that no client here uses are not found."""

    def __init__(
        self, services: Services, connections: Connections, sharing: SharedQuotas | None, budget: Iterable[BudgetRow]
    ) -> None:
        super().__init__(services.clock, services.listings.limiter, budget, used_only=True)
        self._connections = connections
        self._limits = LimitHolds(
            services.clock, lambda: services.groups.in_use, sharing, connections.memory, lambda: None
        )

    async def of_client(self, address: str) -> Json:
        """Explain why a client waits, by its address with or without the port."""
        return await self._answer(Question(f"client {address}", client=address))

    async def _walk(self, question: Question) -> Walk:
        address, concerns = question.client, question.concerns
        for connection in self._connections.all():
            session, used = connection.handler, address is not None
            yield Seen.OTHER, ()
            if not isinstance(session, Session) or address not in {None, *_addresses(connection)}:
                continue
            relay = session.relay
            if relay is not None:
                for producer in [one for one in relay.sends.producers.values() if concerns(one.topic.name)]:
                    used = True
                    yield Seen.PRODUCER, self._producer(relay, connection, producer)
                for consumer in [one for one in relay.consumers.consumers.values() if concerns(one.topic)]:
                    used = True
                    yield Seen.SUBSCRIPTION, self._consumer(connection, consumer)
            if address is not None:
                yield Seen.CLIENT, self._of_listings(partial(_is_owner, connection.id))
            if used:
                yield Seen.OTHER, self._connection(relay, connection)

    def _producer(self, relay: Relay, connection: Connection, producer: RelayedProducer) -> Iterator[Hold]:
        what = f"producer {producer.producer_id} of {producer.topic.name} at {connection.peer}"
        return self._limits.of_producer(what, producer, relay.sends.waiting_of(producer.producer_id))

    def _consumer(self, connection: Connection, consumer: RelayedConsumer) -> Iterable[Hold]:
        permits = consumer.permits
        if permits is None or not permits.wanted:
            return ()
        what = f"consumer {consumer.consumer_id} of {consumer.topic} at {connection.peer}"
        return self._limits.of_wait(what, permits.waits, permits.lines, {"held_permits": permits.wanted})

    def _connection(self, relay: Relay | None, connection: Connection) -> Iterator[Hold]:
        what = f"client {connection.peer}"
        producers = relay.sends.producers.values() if relay is not None else ()
        yield from self._limits.of_mutes(
            what,
            connection,
            [line for one in producers for line in one.topic.publish_lines],
            freed_by="brokers take what was sent",
            broker=f"broker {relay.target}" if relay is not None else "its broker",
            unsent_bytes=relay.unsent_bytes if relay is not None else 0,
        )
        unread = connection.out_bytes and not connection.room_bytes
        if unread and all(mute.reason is not HoldKind.OUTBOUND for mute in connection.muted.snapshot()):
            yield Hold(kind=HoldKind.OUTBOUND, what=what, numbers={"unsent_bytes": connection.out_bytes})


def _addresses(connection: Connection) -> tuple[str, str]:
    """With and without the port."""
    return connection.peer, connection.peer.rpartition(":")[0]


def _is_owner(connection_id: int, owner: Owner) -> bool:
    return owner.connection == connection_id
