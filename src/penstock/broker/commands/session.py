# SPDX-License-Identifier: Apache-2.0
"""One client: its producers and consumers, whether it lives, and who answers each of its commands.

Where: a `net.Connection` hands events up; publishes go to `publish`, flow and acknowledgements to the subscription at
once, everything else to a handler in `handshake`, `discovery`, `producers`, `consumers` or `schemas`. A handler that
must wait (a topic to create, a peer to probe) is a task of this session and ends with it.

Every request is answered exactly once: by its handler, or with the error that the handler raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from penstock.broker.commands import consumers, discovery, handshake, producers, schemas
from penstock.broker.publishing.publish import Publish
from penstock.core.errors import MetadataFailed, PenstockError, ServiceNotReady, WireCode
from penstock.core.units import NS_PER_S
from penstock.governance.muting import MuteReason
from penstock.wire import codec
from penstock.wire.events import AckRun, Command, Flow, PublishRun, UnknownCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from google.protobuf.message import Message

    from penstock.broker.access import Action
    from penstock.broker.access.authorization import Resource
    from penstock.broker.broker import Broker
    from penstock.broker.commands.handshake import Login
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer, Producer
    from penstock.broker.topics.watchers import TopicListWatcher
    from penstock.governance.memory_pool import Lease
    from penstock.net.connection import Connection
    from penstock.wire.events import Event

    Handler: TypeAlias = Callable[["Session", Any], None]
    # Not a coroutine: a task that is cancelled before its first step would leave that one behind, never awaited.
    Work: TypeAlias = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)

UNSOLICITED: Final = 2**64 - 1  # request id of what the broker says on its own
# SENDs that were on their way when their producer was closed are swallowed, for this many producers of a connection.
CLOSED_PRODUCERS_KEPT: Final = 1_000

Type = codec.BaseCommand.Type


class Session:
    """The broker's view of one connected client."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.protocol_version = 0
        self.client_version = ""
        self.through_proxy = False  # the client is one, and its client waits for it
        self.connected = False
        self.role: str | None = None  # who the client is; None while nobody has to say
        self.original_role: str | None = None  # whom it speaks for, when it is a proxy
        self.login: Login | None = None  # None while nobody has to say who it is
        self.closed_producers: dict[int, None] = {}
        self.creating_producers: dict[int, asyncio.Task[None]] = {}  # whom a CLOSE_PRODUCER may find still coming
        self._creating: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ping_outstanding = False
        self._heard: asyncio.Event | None = None  # set while somebody waits for a sign of life
        self._movement = (0, 0)  # reads and bytes sent, at the last check
        self._next_check_ns = broker.clock.monotonic_ns() + broker.limits.keep_alive_ns

    # -- what the connection calls ------------------------------------------------------------------------------------

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Act on what one read brought, in order; the lease is given back with the last publish of it."""
        self._was_heard()
        runs_left = sum(type(event) is PublishRun for event in events) if lease is not None else 0
        for event in events:
            if type(event) is PublishRun:
                runs_left -= 1
                Publish(self.broker, self, None if runs_left else lease).submit(event)
                lease = lease if runs_left else None
            elif type(event) is AckRun:
                self._on_ack(event)
            elif type(event) is Flow:
                self._on_flow(event)
            elif type(event) is Command:
                self._on_command(event)
            else:
                assert type(event) is UnknownCommand
                self.connection.close(f"unknown command {event.type}")
            if not self.connection.is_open:
                break
        if lease is not None:
            # Closed half-way: what lies behind is not carried out. What went to the log before may still be there, and
            # gives the lease back in its turn.
            self.broker.after_appends(lambda: self.broker.connections.release(lease))

    def drained(self) -> None:
        """Unsent bytes went down: subscriptions may dispatch to this client again."""
        for consumer in self.consumers.values():
            consumer.subscription.wake()
        for watcher in self.watchers.values():
            watcher.tell()

    def closed(self, reason: str) -> None:
        """The socket is gone: so are all producers, consumers and waiting requests of it."""
        self._was_heard()
        for task in self._tasks:
            task.cancel()
        self.let_go()
        self.broker.session_closed(self, reason)

    def let_go(self) -> None:
        """Nothing more goes to this client or comes from it."""
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
        for consumer in list(self.consumers.values()):
            self.forget_consumer(consumer)
        for watcher in self.watchers.values():
            watcher.stop()
        self.watchers.clear()

    def require(
        self, action: Action, resource: Resource, *, subscription: str | None = None, refusal: str | None = None
    ) -> None:
        """Return if this client may do that; see `Access.require`. Raises AuthorizationFailed."""
        self.broker.access.require(
            self.role, self.original_role, action, resource, subscription=subscription, refusal=refusal
        )

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check_alive(self, now_ns: int) -> None:
        """Every keep-alive interval: close if nothing at all came since the last PING, else send another.

        While we do not read, an answer could not be seen, and the check is put off; unless we do not read because the
        client takes no answers: then it must have taken some since.
        """
        if self.login is not None:
            handshake.check_login(self, self.login, now_ns)
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + self.broker.limits.keep_alive_ns
        connection = self.connection
        if not self.connected:
            connection.close("no CONNECT within the keep-alive interval")
            return
        came, went = connection.read_count, connection.bytes_out
        moved = (came, went) != self._movement if connection.muted else came != self._movement[0]
        excused = any(mute.reason is not MuteReason.OUTBOUND for mute in connection.muted.snapshot())
        if self._ping_outstanding and not moved and not excused:
            connection.close("no answer to PING")
            return
        self._movement = (came, went)
        self._ping_outstanding = True
        connection.write_frame(codec.ping())

    async def probe(self) -> bool:
        """Whether the client still answers; it is closed when it doesn't.

        Asked before a newcomer is refused for a name or a place that this client holds: after a half-open connection
        the newcomer usually is the same client.
        """
        if not self.connection.is_open:
            return False
        if self.connection.muted:
            return True
        before = self.connection.read_count
        self.connection.write_frame(codec.ping())
        heard = self._heard = self._heard or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.broker.limits.liveness_check_ns / NS_PER_S):
                await heard.wait()
        # A part of a large frame is an answer, too, though it is no event.
        if self.connection.read_count == before:
            self.connection.close("no answer to a liveness probe")
        return self.connection.is_open

    def _was_heard(self) -> None:
        if self._heard is not None:
            self._heard.set()
            self._heard = None

    # -- commands -----------------------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        if not self.connected and command.type != Type.CONNECT:
            self.connection.close("first command is not CONNECT")
            return
        handler = self._handlers.get(command.type)
        if handler is None:
            self.connection.close(f"command {command.type} is not one a client may send")
            return
        try:
            handler(self, command.body)
        except PenstockError as error:
            self.reply(codec.error(_request_id(command.body), error.wire_code, str(error)))

    def request(self, request_id: int, answer: Work) -> asyncio.Task[None]:
        """Run a request that may have to wait; whatever it raises becomes its ERROR."""
        task = self.broker.loop.create_task(self._answered(request_id, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answered(self, request_id: int, answer: Work) -> None:
        try:
            await answer()
        except PenstockError as error:
            self.reply(codec.error(request_id, error.wire_code, str(error)))
        except Exception:
            log.exception("request %d of %s failed", request_id, self.connection.peer)
            self.reply(codec.error(request_id, WireCode.UNKNOWN_ERROR, "internal error; the broker's log has it"))

    def reply(self, frame: bytes) -> None:
        """Send one frame."""
        self.connection.write_frame(frame)

    def _on_ping(self, _body: object) -> None:
        self.reply(codec.pong())

    def _on_pong(self, _body: object) -> None:
        self._ping_outstanding = False

    async def create_once(self, key: tuple[str, int], creation: Work) -> None:
        """One creation at a time for each id that the client chose."""
        if key in self._creating:
            raise ServiceNotReady(f"{key[0]} {key[1]} is still being created; try again")
        self._creating.add(key)
        try:
            await creation()
        finally:
            self._creating.discard(key)

    def remember_closed(self, producer_id: int) -> None:
        """SENDs of this producer may still be on their way; they are swallowed."""
        self.closed_producers[producer_id] = None
        while len(self.closed_producers) > CLOSED_PRODUCERS_KEPT:
            del self.closed_producers[next(iter(self.closed_producers))]

    def forget_producer(self, producer: Producer) -> None:
        """It is gone, or was told to go."""
        self.producers.pop(producer.producer_id, None)
        if producer.topic.producers.get(producer.name) is producer:
            del producer.topic.producers[producer.name]
            producers.left(producer)

    def sent_by_unknown_producer(self, producer_id: int) -> None:
        """A SEND of a producer that isn't there: swallowed if it was closed lately, else the client is confused."""
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
        if event.txn is not None:
            if event.request_id is not None:
                text = "transactions are not enabled on this broker"
                self.reply(
                    codec.ack_response(
                        event.consumer_id, event.request_id, error=WireCode.NOT_ALLOWED_ERROR, message=text
                    )
                )
            return
        consumer.subscription.acknowledge(consumer, event)
        if event.request_id is not None:
            self.request(event.request_id, partial(self._ack_response, consumer.subscription, event))

    async def _ack_response(self, subscription: Subscription, event: AckRun) -> None:
        assert event.request_id is not None
        try:
            await self.broker.save_cursor(subscription)
        except PenstockError as error:
            frame = codec.ack_response(event.consumer_id, event.request_id, error=error.wire_code, message=str(error))
        else:
            frame = codec.ack_response(event.consumer_id, event.request_id)
        self.reply(frame)

    def disconnect_producer(self, producer: Producer) -> None:
        """Tell the client that this producer must connect anew."""
        self.forget_producer(producer)
        self.remember_closed(producer.producer_id)
        self.reply(codec.close_producer(producer.producer_id, UNSOLICITED))

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Tell the client that this consumer must connect anew."""
        self.forget_consumer(consumer)
        self.reply(codec.close_consumer(consumer.consumer_id, UNSOLICITED))

    def forget_consumer(self, consumer: Consumer) -> None:
        """It is gone, or was told to go; what it had not acknowledged goes to others."""
        self.consumers.pop(consumer.consumer_id, None)
        consumer.subscription.remove(consumer)

    def consumer(self, consumer_id: int) -> Consumer:
        """The consumer of this id. Raises MetadataFailed, as Pulsar answers."""
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise MetadataFailed("Consumer not found")
        return consumer

    def _on_transaction(self, body: Message) -> None:
        text = "transactions are not enabled on this broker"
        self.reply(codec.error(_request_id(body), WireCode.NOT_ALLOWED_ERROR, text))

    _handlers: ClassVar[Mapping[int, Handler]] = {
        **handshake.HANDLERS,
        **discovery.HANDLERS,
        **producers.HANDLERS,
        **consumers.HANDLERS,
        **schemas.HANDLERS,
        Type.PING: _on_ping,
        Type.PONG: _on_pong,
        Type.NEW_TXN: _on_transaction,
        Type.ADD_PARTITION_TO_TXN: _on_transaction,
        Type.ADD_SUBSCRIPTION_TO_TXN: _on_transaction,
        Type.END_TXN: _on_transaction,
        Type.TC_CLIENT_CONNECT_REQUEST: _on_transaction,
    }


def _request_id(body: Message) -> int:
    request_id: int = getattr(body, "request_id", UNSOLICITED)
    return request_id
