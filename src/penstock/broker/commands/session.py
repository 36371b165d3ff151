# SPDX-License-Identifier: Apache-2.0
"""One client's session: its producers and consumers, and the dispatch of its commands to handlers.

Where: a `net.Connection` passes events to it. Publishes go to `publish`, flow and acknowledgements to the subscription
directly, other commands to a handler in `handshake`, `discovery`, `producers`, `consumers` or `schemas`. A handler that
must wait (for a topic, for a probe) is one of the session's `requests`, which are cancelled with it. `keep_alive`
checks that the client still answers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from penstock.broker.commands import session_memory
from penstock.broker.publishing.publish import Publish
from penstock.broker.subscriptions.subscription import subscription_of
from penstock.core.errors import MetadataFailed, PenstockError
from penstock.groups.held_sends import HeldSends
from penstock.net.keep_alive import KeepAlive, Requests
from penstock.wire import bounds, codec
from penstock.wire.events import AckRun, Command, Flow, PublishRun, RefusedCommand, UnknownCommand

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from google.protobuf.message import Message

    from penstock.broker.access import Access, Action
    from penstock.broker.access.authorization import Resource
    from penstock.broker.commands.authentication_state import AuthenticationState
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.publishing.publish import PublishServices
    from penstock.broker.subscriptions.consumer import ConsumedSubscription, Consumer
    from penstock.broker.topics.watchers import TopicListWatcher
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.core.clock import Clock
    from penstock.core.transaction_id import TransactionId
    from penstock.governance.budget import Row
    from penstock.governance.memory_pool import CommandMemory, Lease
    from penstock.net.connection import Connection
    from penstock.wire.events import Event

    Handler: TypeAlias = Callable[["Session", Any], None]

log = logging.getLogger(__name__)

UNSOLICITED: Final = 2**64 - 1  # request id of a command that is not an answer
# SENDs in flight when their producer was closed are ignored, for this many producers of a connection.
CLOSED_PRODUCERS_KEPT: Final = 1_000

# What a message id, or a word of an ack set, takes in an ACK.
ACK_ROW_BYTES: Final = 12

Type = codec.BaseCommand.Type

# Possibly large commands that are carried out at once: they need no memory for waiting.
_AT_ONCE: Final = frozenset({Type.CONNECT, Type.AUTH_RESPONSE, Type.ACK, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services shared by all sessions of a broker."""

    access: Access
    limits: Callable[[], BrokerLimits]
    clock: Clock
    loop: asyncio.AbstractEventLoop
    reads: LogReads
    publishing: PublishServices
    commands_memory: CommandMemory
    sessions_memory: Row  # charged for producers, consumers and watchers
    handlers: Mapping[int, Handler]  # by command type
    coordinator: Coordinator  # of transactions
    check_authentication: Callable[[Session, AuthenticationState, int], None]  # called with the monotonic time in ns
    producer_detached: Callable[[Producer], None]
    closed: Callable[[Session, str], None]  # called when a client has disconnected, with the reason
    refused: Callable[[str, int], None]  # counts a command that exceeds a bound: address of its client, and its type


class Session:
    """The broker's view of one connected client."""

    def __init__(self, connection: Connection, services: Services) -> None:
        self.connection = connection
        self._services = services
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.protocol_version = 0
        self.client_version = ""
        self.of_broker = services.access.of_brokers  # the client is another broker of this cluster
        self.through_proxy = False  # the client is a proxy, whose own client waits
        self.names_positions = False  # receipts of its replicators name entries by their positions in its cluster
        self.connected = False
        self.role: str | None = None  # authenticated role; None without authentication
        self.original_role: str | None = None  # role of the client behind a proxy
        self.authentication: AuthenticationState | None = None  # None without authentication
        self.held: HeldSends | None = None  # None until SENDs of one of its producers may have to wait
        self.closed_producers: dict[int, None] = {}
        self.creating_producers: dict[int, asyncio.Task[None]] = {}  # still being created
        self.creating_consumers: dict[int, asyncio.Task[None]] = {}  # still being created
        self.requests = Requests(
            connection,
            loop=services.loop,
            commands_memory=services.commands_memory,
            sessions_memory=services.sessions_memory,
        )
        self._keep_alive = KeepAlive(connection, services.limits, services.clock.monotonic_ns())
        if not services.access.enabled:
            connection.admit()

    # -- called by the connection -------------------------------------------------------------------------------------

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Handle the events of one read, in order. The lease is released with the read's last publish."""
        self._keep_alive.heard()
        runs_left = 0
        if lease is not None:
            for event in events:
                runs_left += type(event) is PublishRun
        for event in events:
            if type(event) is PublishRun:
                runs_left -= 1
                run = event if self.held is None or lease is None else self.held.keep_back(event, lease)
                if run is not None:
                    Publish(self._services.publishing, self, None if runs_left else lease).submit(run)
                    lease = lease if runs_left else None
            elif type(event) is AckRun:
                self._on_ack(event)
            elif type(event) is Flow:
                self._on_flow(event)
            elif type(event) is Command:
                self._on_command(event)
            elif type(event) is RefusedCommand:
                self._refuse(event)
            else:
                assert type(event) is UnknownCommand
                self.connection.close(f"unknown command {event.type}")
            if not self.connection.is_open:
                break
        if lease is not None:
            # All of the last run waits for a resource group; or the connection was closed by an event, and the rest is
            # dropped. Publishes already submitted need the lease until they are done.
            self._services.reads.after_appends(lambda: self._services.publishing.release(lease))

    def drained(self) -> None:
        """Sent bytes have left room: subscriptions may dispatch to this client again."""
        for consumer in self.consumers.values():
            if consumer is self.connection.wanting:  # It had too little room, and goes first now.
                consumer.subscription.wake()
        for consumer in self.consumers.values():
            consumer.subscription.wake()
        for watcher in self.watchers.values():
            watcher.notify()

    def closed(self, reason: str) -> None:
        """The connection is closed: end all its producers, consumers and pending requests."""
        self._keep_alive.heard()
        self.requests.close()
        self.detach_all()
        self.held = None  # It refers back.
        self._services.closed(self, reason)

    def detach_all(self) -> None:
        """Detach all producers, consumers and watchers, without telling the client."""
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
        for consumer in list(self.consumers.values()):
            self.forget_consumer(consumer)
        for watcher in self.watchers.values():
            watcher.stop()
        self.watchers.clear()

    def suspend(self, why: str) -> None:
        """Disconnect all producers and consumers; the client must create them again."""
        coming = (*self.creating_producers.values(), *self.creating_consumers.values())
        if not (self.producers or self.consumers or self.watchers or coming):
            return
        log.info("connection %s: %s", self.connection.peer, why)
        if self.watchers:
            self.connection.close(why)  # The protocol cannot end a watcher.
            return
        for task in coming:
            task.cancel()
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)
        for consumer in list(self.consumers.values()):
            self.disconnect_consumer(consumer)

    def require(
        self, action: Action, resource: Resource, *, subscription: str | None = None, refusal: str | None = None
    ) -> None:
        """Raises AuthorizationFailed unless this client may do that; see `Access.require`."""
        self._services.access.require(
            self.role, self.original_role, action, resource, subscription=subscription, refusal=refusal
        )

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check_alive(self, now_ns: int) -> None:
        """Close the connection if the client does not answer, or its credentials have expired."""
        if self.authentication is not None:
            self._services.check_authentication(self, self.authentication, now_ns)
        self._keep_alive.check(now_ns, connected=self.connected)

    async def probe(self) -> bool:
        return await self._keep_alive.probe()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        if not self.connected and command.type != Type.CONNECT:
            self.connection.close("first command is not CONNECT")
            return
        handler = self._services.handlers.get(command.type)
        if handler is None:
            self.connection.close(f"command {command.type} is not one a client may send")
            return
        self.requests.command_bytes = command.nbytes
        try:
            if command.type not in _AT_ONCE:
                self.requests.check_large(command.nbytes)
            handler(self, command.body)
        except PenstockError as error:
            self.reply(codec.error(_request_id(command.body), error.wire_code, str(error)))

    def _refuse(self, refused: RefusedCommand) -> None:
        """Answer a command that exceeds a bound, or close the connection if it has no answer."""
        self._services.refused(self.connection.peer.rpartition(":")[0], refused.type)
        answer = bounds.answer(refused)
        connecting = refused.type == Type.CONNECT
        if answer is None or connecting == self.connected:  # CONNECT was sent twice, or not yet.
            self.connection.close(refused.text)
        elif connecting:
            self.reply(answer)
            self.connection.close_after_flush(refused.text)
        else:
            log.warning("connection %s: %s", self.connection.peer, refused.text)
            self.reply(answer)

    @property
    def payer_role(self) -> str | None:
        """Role of the client: the proven one, behind a proxy the original one; None without authentication."""
        return self.role if self.original_role is None else self.original_role

    @property
    def waiting_bytes(self) -> int:
        return self.requests.waiting_bytes

    def reply(self, frame: bytes) -> None:
        self.connection.write_frame(frame)

    def _on_ping(self, _body: object) -> None:
        self.reply(codec.pong())

    def _on_pong(self, _body: object) -> None:
        self._keep_alive.answered()

    def hold_sends(self) -> HeldSends:
        if self.held is None:
            publishing = self._services.publishing
            self.held = HeldSends(self, publishing.held, submit=self._publish, release=publishing.release)
        return self.held

    def _publish(self, run: PublishRun, lease: Lease, received_ns: int) -> None:
        Publish(self._services.publishing, self, lease, received_ns).submit(run)

    def remember_closed(self, producer_id: int) -> None:
        """Ignore SENDs of this producer that are still in flight."""
        self.closed_producers[producer_id] = None
        while len(self.closed_producers) > CLOSED_PRODUCERS_KEPT:
            del self.closed_producers[next(iter(self.closed_producers))]

    def forget_producer(self, producer: Producer) -> None:
        self.producers.pop(producer.producer_id, None)
        if self.held is not None:
            self.held.forget(producer.producer_id)
        session_memory.release(self._services.sessions_memory, producer)
        if producer.topic.producers.get(producer.name) is producer:
            del producer.topic.producers[producer.name]
            if producer.topic.clients is not None:
                producer.topic.clients.producer_left(producer.topic.text, producer)
            self._services.producer_detached(producer)

    def sent_by_unknown_producer(self, producer_id: int) -> None:
        """Ignore a SEND of a recently closed producer; for any other id, close the connection."""
        if producer_id not in self.closed_producers:
            self.connection.close(f"SEND of unknown producer {producer_id}")

    def _on_flow(self, event: Flow) -> None:
        consumer = self.consumers.get(event.consumer_id)
        if consumer is not None and event.permits:
            consumer.subscription.flow(consumer, event.permits)

    def _on_ack(self, event: AckRun) -> None:
        consumer = self.consumers.get(event.consumer_id)
        if consumer is None:
            return
        if event.transaction is not None and event.refused is None:
            words = sum(map(len, event.ack_sets.values()))  # The request keeps them until they are stored.
            self.requests.command_bytes = ACK_ROW_BYTES * (len(event.entry_ids) + words)
            self._acknowledge_in(event.transaction, consumer, event)
            return
        refusal = event.refused or consumer.subscription.acknowledge(consumer, event)
        if refusal is not None:
            self._refuse_ack(event, refusal)
        elif event.request_id is not None:
            # Not charged: the pending request does not keep the event, which may name a hundred thousand entries.
            self.requests.command_bytes = 0
            answer = partial(self._ack_response, consumer.subscription, event.consumer_id, event.request_id)
            self.requests.start(event.request_id, answer)

    def _refuse_ack(self, event: AckRun, refusal: PenstockError) -> None:
        """Answer failed acknowledgements, if the client asked for an answer. The messages are redelivered."""
        if event.request_id is not None:
            answer = codec.ack_response(
                event.consumer_id, event.request_id, error=refusal.wire_code, message=str(refusal)
            )
            self.reply(answer)

    def _acknowledge_in(self, transaction: TransactionId, consumer: Consumer, event: AckRun) -> None:
        """Without a request id nobody waits for the answer, nor notices a refusal."""
        coordinator, subscription = self._services.coordinator, subscription_of(consumer)
        charged_bytes = self.requests.charge()

        def stored(error: PenstockError | None) -> None:
            self.requests.charge_back(charged_bytes)
            if error is not None:
                self._refuse_ack(event, error)
            elif event.request_id is not None:
                self.reply(codec.ack_response(event.consumer_id, event.request_id))

        try:
            coordinator.check_enabled()
            coordinator.acknowledge(transaction, self.payer_role or "", subscription, consumer, event, stored)
        except PenstockError as error:
            stored(error)

    async def _ack_response(self, subscription: ConsumedSubscription, consumer_id: int, request_id: int) -> None:
        try:
            await subscription.save_cursor()
        except PenstockError as error:
            frame = codec.ack_response(consumer_id, request_id, error=error.wire_code, message=str(error))
        else:
            frame = codec.ack_response(consumer_id, request_id)
        self.reply(frame)

    def disconnect_producer(self, producer: Producer) -> None:
        """Detach a producer and tell the client to reconnect it."""
        self.forget_producer(producer)
        self.remember_closed(producer.producer_id)
        self.reply(codec.close_producer(producer.producer_id, UNSOLICITED))

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer and tell the client to reconnect it."""
        self.forget_consumer(consumer)
        self.reply(codec.close_consumer(consumer.consumer_id, UNSOLICITED))

    def forget_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages are redelivered to others."""
        self.consumers.pop(consumer.consumer_id, None)
        session_memory.release(self._services.sessions_memory, consumer)
        consumer.subscription.remove(consumer)

    def consumer(self, consumer_id: int) -> Consumer:
        """The consumer with this id. Raises MetadataFailed, as Pulsar answers."""
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise MetadataFailed("Consumer not found")
        return consumer

    # Handlers of commands that need only the session.
    HANDLERS: ClassVar[Mapping[int, Handler]] = {
        Type.PING: _on_ping,
        Type.PONG: _on_pong,
    }


def _request_id(body: Message) -> int:
    request_id: int = getattr(body, "request_id", UNSOLICITED)
    return request_id
