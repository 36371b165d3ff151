# SPDX-License-Identifier: Apache-2.0
"""The sessions of all connected clients.

Where: `commands` adds each session and removes it when its client disconnects; the broker's tick and stop, revocation
and snapshots iterate over them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access.actions import Action
from penstock.broker.commands.handshake import NO_REQUEST
from penstock.core.errors import AuthorizationFailed, WireCode
from penstock.core.names import NamespaceName
from penstock.governance.holds import HoldKind
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.broker.access import Access
    from penstock.broker.commands.session import Session
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.topics.watchers import TopicListWatcher
    from penstock.net.listener import Connections


# -- limits of connections per broker and per client address -----------------------------------------------------------


def refusal(limits_now: Callable[[], BrokerLimits], connections: Connections, address: str) -> bytes | None:
    """The error frame for a new connection from this address that exceeds a limit; None if it is admitted."""
    limits = limits_now()
    if 0 < limits.connections_max <= len(connections):
        text = "Reached the maximum number of connections"
    elif 0 < limits.connections_per_address_max <= connections.of_address(address):
        text = f"Reached the maximum number of connections on address {address}"
    else:
        return None
    return codec.error(NO_REQUEST, WireCode.NOT_ALLOWED_ERROR, text)


# -- disconnects producers, consumers and watchers whose permission was revoked ----------------------------------------

log = logging.getLogger(__name__)

# Clients checked in one turn of the loop.
_PORTION: Final = 200


class Revocation:
    """Ends unauthorized producers, consumers and watchers. All methods are called on the event loop."""

    def __init__(self, access: Access, sessions: Iterable[Session]) -> None:
        self._access = access
        self._sessions = sessions

    async def disconnect_unauthorized(self, tenant: str | None = None, namespace: str | None = None) -> None:
        """Disconnect clients that are no longer authorized: everywhere, in a tenant, or in a namespace."""
        if not self._access.enabled:
            return
        checks = [
            partial(_check_producer, session, producer)
            for session in self._sessions
            for producer in session.producers.values()
            if _is_in(producer.topic.name.namespace_name, tenant, namespace)
        ]
        checks += [
            partial(_check_consumer, session, consumer)
            for session in self._sessions
            for consumer in session.consumers.values()
            if _is_in(consumer.subscription.topic.name.namespace_name, tenant, namespace)
        ]
        checks += [
            partial(_check_watcher, session, watcher)
            for session in self._sessions
            for watcher in session.watchers.values()
            if _is_in(NamespaceName.parse(watcher.namespace), tenant, namespace)
        ]
        for done, check in enumerate(checks, start=1):
            try:
                check()
            except AuthorizationFailed as error:
                log.info("a client was disconnected from its topic: %s", error)
            if done % _PORTION == 0:
                await asyncio.sleep(0)


def _is_in(name: NamespaceName, tenant: str | None, namespace: str | None) -> bool:
    return tenant in {None, name.tenant} and namespace in {None, name.namespace}


def _check_producer(session: Session, producer: Producer) -> None:
    try:
        session.require(Action.PRODUCE, producer.topic.name)
    except AuthorizationFailed:
        if session.producers.get(producer.producer_id) is producer:
            session.disconnect_producer(producer)
        raise


def _check_consumer(session: Session, consumer: Consumer) -> None:
    subscription = consumer.subscription
    try:
        session.require(Action.CONSUME, subscription.topic.name, subscription=subscription.name)
    except AuthorizationFailed:
        if session.consumers.get(consumer.consumer_id) is consumer:
            session.disconnect_consumer(consumer)
        raise


def _check_watcher(session: Session, watcher: TopicListWatcher) -> None:
    try:
        session.require(Action.LOOKUP, NamespaceName.parse(watcher.namespace))
    except AuthorizationFailed as error:
        session.connection.close(f"it may not watch {watcher.namespace} any more: {error}")
        raise


# Clients that are told apart; refusals of more are counted together.
REFUSED_KEPT_MAX: Final = 1_000


class Sessions(Collection["Session"]):
    """A set of sessions. All methods are called on the event loop."""

    def __init__(self) -> None:
        self._refused: Counter[tuple[str, int]] = Counter()
        self._sessions: dict[Session, None] = {}  # in the order of connecting

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        self._sessions[session] = None

    def discard(self, session: Session) -> None:
        self._sessions.pop(session, None)

    def refused(self, address: str, command: int) -> None:
        """Count a command of a client that was refused because it exceeds a bound."""
        key = (address, command)
        if key not in self._refused and len(self._refused) >= REFUSED_KEPT_MAX:
            key = ("", command)
        self._refused[key] += 1

    def take_refused(self) -> Mapping[tuple[str, int], int]:
        """Return how many commands were refused since the last call, by address of the client and type."""
        refused, self._refused = self._refused, Counter()
        return refused

    def check_alive(self, now_ns: int) -> None:
        for session in list(self._sessions):
            session.check_alive(now_ns)

    def mute_publishers(self, *, stalled: bool) -> None:
        """While a disk write is stalled, do not read from publishers: their messages would only fill the memory."""
        for session in self._sessions:
            if stalled and session.producers:
                session.connection.mute(HoldKind.STORAGE)
            elif not stalled:
                session.connection.unmute(HoldKind.STORAGE)

    def disconnect_producers(self) -> None:
        """Tell all producers of persistent topics to reconnect, which they can when `check_writable` lets them."""
        for session in list(self._sessions):
            for producer in list(session.producers.values()):
                if producer.topic.persistent:
                    session.disconnect_producer(producer)

    def disconnect_members(self) -> None:
        """Tell all producers and consumers to reconnect."""
        for session in list(self._sessions):
            for producer in list(session.producers.values()):
                session.disconnect_producer(producer)
            for consumer in list(session.consumers.values()):
                session.disconnect_consumer(consumer)

    def close(self, reason: str) -> None:
        """Close all connections after sending what is queued."""
        for session in list(self._sessions):
            session.connection.close_after_flush(reason)
