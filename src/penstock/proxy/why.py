# SPDX-License-Identifier: Apache-2.0
"""Explains why clients of this proxy wait: the hold, its setting and value, its numbers, since when, and the remedy.

What brokers do to them is not known here: ask a penstock broker itself, or the metrics of Apache Pulsar.
Where: `penstock why --admin-url PROXY`, the routes under `/admin/v3/why` of a proxy, and its metric of holds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.governance.holds import Hold, HoldKind
from penstock.governance.muting import MuteReason
from penstock.proxy.session import Session
from penstock.stats.explanations import Explanations, Question, Seen
from penstock.stats.limit_holds import LimitHolds, Muted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.governance.budget import BudgetRow
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.net.topic_list_limiter import Owner
    from penstock.proxy.relayed_consumers import RelayedConsumer
    from penstock.proxy.services import Services
    from penstock.stats.explanations import Walk
    from penstock.stats.findings import Json
    from penstock.stats.limit_holds import Sharing


class Why(Explanations):
    """Explanations of a proxy. Nobody is found whom no client here uses."""

    def __init__(
        self, services: Services, connections: Connections, sharing: Sharing | None, budget: Iterable[BudgetRow]
    ) -> None:
        super().__init__(services.clock, services.listings.limiter, budget, used_only=True)
        self._connections = connections
        self._limits = LimitHolds(
            services.clock, lambda: services.groups.in_use, sharing, connections.memory, lambda: None
        )

    async def of_client(self, address: str) -> Json:
        """Explain why a client waits, by its address with or without the port."""
        return await self._answer(Question(of=f"client {address}", client=address))

    async def _walk(self, question: Question) -> Walk:
        address = question.client
        for connection in self._connections.all():
            session = connection.handler
            yield None
            if not isinstance(session, Session) or not _is_client(connection, address):
                continue
            relay, used = session.relay, False
            for producer in list(relay.sends.producers.values()) if relay is not None else ():
                if relay is not None and question.concerns(producer.topic.name):
                    yield Seen.PRODUCER
                    used = True
                    what = f"producer {producer.producer_id} of {producer.topic.name} at {connection.peer}"
                    held = relay.sends.waiting_of(producer.producer_id)
                    for hold in self._limits.of_producer(what, producer, held):
                        yield hold
            for consumer in list(relay.consumers.consumers.values()) if relay is not None else ():
                if question.concerns(consumer.topic):
                    yield Seen.SUBSCRIPTION
                    used = True
                    for hold in self._consumer(connection, consumer):
                        yield hold
            if address is not None:
                yield Seen.CLIENT
                for hold in self._of_listings(partial(_is_owner, connection.id)):
                    yield hold
            if address is not None or used:
                for hold in self._connection(f"client {connection.peer}", connection):
                    yield hold

    def _consumer(self, connection: Connection, consumer: RelayedConsumer) -> Iterator[Hold]:
        permits = consumer.permits
        episode = permits.waits if permits is not None else None
        if permits is None or episode is None or episode.of not in permits.lines or not permits.wanted:
            return
        now_ns = self._clock.monotonic_ns()
        if episode.slows(now_ns, at_once=True):
            what = f"consumer {consumer.consumer_id} of {consumer.topic} at {connection.peer}"
            numbers = {"held_permits": permits.wanted, **episode.numbers(now_ns)}
            yield self._limits.of_group(what, "dispatch", episode.of, episode.since_ns, numbers)

    def _connection(self, what: str, connection: Connection) -> Iterator[Hold]:
        session = connection.handler
        relay = session.relay if isinstance(session, Session) else None
        producers = relay.sends.producers.values() if relay is not None else ()
        at = Muted(
            connection=connection,
            lines=[line for one in producers for line in one.topic.publish_lines],
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
