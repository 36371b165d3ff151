# SPDX-License-Identifier: Apache-2.0
"""Builds the command handlers, and a session for each connection.

Where: the broker makes one `Commands`; listeners pass each accepted connection to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.broker.commands.session import Services, Session

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Mapping

    from penstock.broker.access import Access
    from penstock.broker.commands.consumers import Consumers
    from penstock.broker.commands.handshake import Handshake
    from penstock.broker.commands.lookups import Discovery, LastMessage
    from penstock.broker.commands.producers import Producers
    from penstock.broker.commands.schemas import Schemas
    from penstock.broker.commands.session import Handler
    from penstock.broker.commands.sessions import Sessions
    from penstock.broker.commands.transactions import Transactions
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.publish import PublishServices
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.governance.memory_pool import CommandMemory
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import TopicListMemoryLimiter

log = logging.getLogger(__name__)


class Commands:
    """Makes sessions for connections. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        handshake: Handshake,
        discovery: Discovery,
        producers: Producers,
        consumers: Consumers,
        last_message: LastMessage,
        schemas: Schemas,
        transactions: Transactions,
        coordinator: Coordinator,
        access: Access,
        limits: Callable[[], BrokerLimits],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        reads: LogReads,
        publishing: PublishServices,
        commands_memory: CommandMemory,
        sessions_memory: Row,
        listings: TopicListMemoryLimiter,
        only: Container[int] | None = None,
    ) -> None:
        """Args: only: the types of commands that are handled; None: all."""
        self._sessions = sessions
        self._listings = listings
        handlers: Mapping[int, Handler] = {
            **Session.HANDLERS,
            **handshake.handlers,
            **discovery.handlers,
            **producers.handlers,
            **consumers.handlers,
            **last_message.handlers,
            **schemas.handlers,
            **transactions.handlers,
        }
        # By command type.
        self.handlers = {kind: each for kind, each in handlers.items() if only is None or kind in only}
        self._services = Services(
            access=access,
            limits=limits,
            clock=clock,
            loop=loop,
            reads=reads,
            publishing=publishing,
            commands_memory=commands_memory,
            sessions_memory=sessions_memory,
            handlers=self.handlers,
            coordinator=coordinator,
            check_authentication=handshake.check_authentication,
            producer_detached=producers.detached,
            closed=self._closed,
            refused=sessions.refused,
        )

    def open_session(self, connection: Connection) -> Session:
        session = Session(connection, self._services)
        self._sessions.add(session)
        return session

    def _closed(self, session: Session, reason: str) -> None:
        self._sessions.discard(session)
        self._listings.cancel(session.connection.id)
        log.info("connection %s closed: %s", session.connection.peer, reason)
