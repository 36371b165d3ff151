# SPDX-License-Identifier: Apache-2.0
"""Disconnects producers, consumers and watchers whose permission was revoked.

Where: called after permissions of a namespace, admins of a tenant, or the broker's access rules have changed. Clients
reconnect, as after an unload, and are then refused. The protocol cannot end a watcher, so its connection is closed;
otherwise the client would wait for updates that never come. A pending command, such as a SUBSCRIBE that waits for the
disk, checks the permission again when it resumes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access.actions import Action
from penstock.core.errors import AuthorizationFailed
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.access import Access
    from penstock.broker.commands.session import Session
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.topics.watchers import TopicListWatcher

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
