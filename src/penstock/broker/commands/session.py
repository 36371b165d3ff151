# SPDX-License-Identifier: Apache-2.0
"""One client: its producers and consumers, whether it lives, and who answers each of its commands.

Where: a `net.Connection` hands events up; publishes go to `publish`, flow and acknowledgements to the subscription at
once, everything else to a handler in `handshake`, `discovery`, `producers`, `consumers` or `schemas`. A handler that
must wait (a topic to create, a peer to probe) is a task of this session and ends with it.

Every request is answered exactly once: by its handler, or with the error that the handler raised.

What waits is charged (`governance/command_memory`): while too many requests of a client wait, nothing more of it is
read or carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from penstock.broker.commands import membership, refusals
from penstock.broker.publishing.publish import Publish
from penstock.core.errors import MetadataFailed, PenstockError, ServiceNotReady, WireCode
from penstock.core.units import NS_PER_S
from penstock.governance import command_memory
from penstock.governance.muting import MuteReason
from penstock.wire import codec
from penstock.wire.events import AckRun, Command, Flow, PublishRun, RefusedCommand, UnknownCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from google.protobuf.message import Message

    from penstock.broker.access import Access, Action
    from penstock.broker.access.authorization import Resource
    from penstock.broker.commands.login import Login
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.publishing.publish import PublishServices
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.ports import ConsumedSubscription
    from penstock.broker.topics.watchers import TopicListWatcher
    from penstock.core.clock import Clock
    from penstock.governance.command_memory import CommandMemory
    from penstock.governance.memory_pool import Lease
    from penstock.governance.memory_row import MemoryRow
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

# Commands that may be large and are carried out at once: nobody has to wait for room for them.
_AT_ONCE: Final = frozenset({Type.CONNECT, Type.AUTH_RESPONSE, Type.ACK, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all sessions of a broker share."""

    access: Access
    limits: Callable[[], BrokerLimits]
    clock: Clock
    loop: asyncio.AbstractEventLoop
    reads: LogReads
    publishing: PublishServices
    commands_memory: CommandMemory
    sessions_memory: MemoryRow  # of producers, consumers and watchers
    handlers: Mapping[int, Handler]  # of commands, by their types
    check_login: Callable[[Session, Login, int], None]  # is told the monotonic time in ns
    producer_left: Callable[[Producer], None]
    closed: Callable[[Session, str], None]  # a client is gone, and why


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
        self.through_proxy = False  # the client is one, and its client waits for it
        self.connected = False
        self.role: str | None = None  # who the client is; None while nobody has to say
        self.original_role: str | None = None  # whom it speaks for, when it is a proxy
        self.login: Login | None = None  # None while nobody has to say who it is
        self.closed_producers: dict[int, None] = {}
        self.creating_producers: dict[int, asyncio.Task[None]] = {}  # whom a CLOSE_PRODUCER may find still coming
        self.creating_consumers: dict[int, asyncio.Task[None]] = {}  # ... and a CLOSE_CONSUMER
        self._creating: set[tuple[str, int]] = set()
        self._commands = services.commands_memory.account()
        self._command_bytes = 0  # of the command that is being carried out
        self._tasks: dict[asyncio.Task[None], int] = {}  # requests that wait, and what each of them is charged
        self._ping_outstanding = False
        self._heard: asyncio.Event | None = None  # set while somebody waits for a sign of life
        self._movement = (0, 0)  # reads and bytes sent, at the last check
        self._next_check_ns = services.clock.monotonic_ns() + services.limits().keep_alive_ns
        if not services.access.enabled:
            connection.admit()

    # -- what the connection calls ------------------------------------------------------------------------------------

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Act on what one read brought, in order; the lease is given back with the last publish of it."""
        self._was_heard()
        runs_left = sum(type(event) is PublishRun for event in events) if lease is not None else 0
        for event in events:
            if type(event) is PublishRun:
                runs_left -= 1
                Publish(self._services.publishing, self, None if runs_left else lease).submit(event)
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
            # Closed half-way: what lies behind is not carried out. What went to the log before may still be there, and
            # gives the lease back in its turn.
            self._services.reads.after_appends(lambda: self._services.publishing.release(lease))

    def drained(self) -> None:
        """Unsent bytes went down: subscriptions may dispatch to this client again."""
        for consumer in self.consumers.values():
            if consumer is self.connection.wanting:  # It found too little room, and now goes first.
                consumer.subscription.wake()
        for consumer in self.consumers.values():
            consumer.subscription.wake()
        for watcher in self.watchers.values():
            watcher.tell()

    def closed(self, reason: str) -> None:
        """The socket is gone: so are all producers, consumers and waiting requests of it."""
        self._was_heard()
        for task in self._tasks:
            task.cancel()
        self._commands.close()
        self.let_go()
        self._services.closed(self, reason)

    def let_go(self) -> None:
        """Nothing more goes to this client or comes from it."""
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
        for consumer in list(self.consumers.values()):
            self.forget_consumer(consumer)
        for watcher in self.watchers.values():
            watcher.stop()
        self.watchers.clear()

    def suspend(self, why: str) -> None:
        """Nothing more goes to this client or comes from it until it makes its producers and consumers anew."""
        coming = (*self.creating_producers.values(), *self.creating_consumers.values())
        if not (self.producers or self.consumers or self.watchers or coming):
            return
        log.info("connection %s: %s", self.connection.peer, why)
        if self.watchers:
            self.connection.close(why)  # Nothing in the protocol tells a client that it does not watch any more.
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
        """Return if this client may do that; see `Access.require`. Raises AuthorizationFailed."""
        self._services.access.require(
            self.role, self.original_role, action, resource, subscription=subscription, refusal=refusal
        )

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check_alive(self, now_ns: int) -> None:
        """Every keep-alive interval: close if nothing at all came since the last PING, else send another.

        While we do not read, an answer could not be seen, and the check is put off; unless we do not read because the
        client takes no answers: then it must have taken some since.
        """
        if self.login is not None:
            self._services.check_login(self, self.login, now_ns)
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + self._services.limits().keep_alive_ns
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
        if self._heard is None:
            # One PING for all who ask meanwhile: newcomers must not fill this client's socket with theirs.
            self._heard = asyncio.Event()
            self.connection.write_frame(codec.ping())
        heard = self._heard
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._services.limits().liveness_check_ns / NS_PER_S):
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
        handler = self._services.handlers.get(command.type)
        if handler is None:
            self.connection.close(f"command {command.type} is not one a client may send")
            return
        self._command_bytes = command.nbytes
        try:
            if command.type not in _AT_ONCE:
                self._check_large(command.nbytes)
            handler(self, command.body)
        except PenstockError as error:
            self.reply(codec.error(_request_id(command.body), error.wire_code, str(error)))

    def _refuse(self, refused: RefusedCommand) -> None:
        """Tell the client of a command that holds more than it may, or close it if nothing can be told."""
        answer = refusals.answer(refused)
        connecting = refused.type == Type.CONNECT
        if answer is None or connecting == self.connected:  # It connects twice, or did not connect yet.
            self.connection.close(refused.text)
        elif connecting:
            self.reply(answer)
            self.connection.close_after_flush(refused.text)
        else:
            log.warning("connection %s: %s", self.connection.peer, refused.text)
            self.reply(answer)

    def _check_large(self, nbytes: int) -> None:
        if not self._commands.admits(command_memory.price(nbytes)):
            raise ServiceNotReady(
                f"a command of {nbytes:,} bytes is refused: others as large take what there is for them; try again"
            )

    def request(self, request_id: int, answer: Work) -> asyncio.Task[None]:
        """Run a request that may have to wait; whatever it raises becomes its ERROR."""
        task = self._services.loop.create_task(self._answered(request_id, answer))
        self._tasks[task] = self.charge()
        task.add_done_callback(self._request_ended)
        return task

    @property
    def waiting_bytes(self) -> int:
        """What the commands that wait are charged."""
        return self._commands.used_bytes

    def charge(self) -> int:
        """Charge the command that is being carried out, and now waits; returns what `charge_back` takes when it ends.

        While too much waits, nothing more of this client is read or carried out.
        """
        nbytes = command_memory.price(self._command_bytes)
        self._commands.take(nbytes)
        if self._commands.must_wait:
            self.connection.mute(MuteReason.COMMANDS)
        return nbytes

    def charge_back(self, nbytes: int) -> None:
        """A command that waited has ended."""
        self._commands.give_back(nbytes)
        if self._commands.may_go_on:
            self.connection.unmute(MuteReason.COMMANDS)

    def _request_ended(self, task: asyncio.Task[None]) -> None:
        self.charge_back(self._tasks.pop(task))

    @contextlib.contextmanager
    def waiting_long(self, what: str) -> Iterator[None]:
        """Wait in the request that is being answered for something that need not ever come, such as another's leave.

        Meanwhile it is charged to the row of producers, consumers and watchers, whose like it is, so that the client
        can go on; and may take it back.

        Raises:
            ServiceNotReady: that row is used up.
        """
        task = asyncio.current_task()
        assert task is not None, "only a request can wait"
        nbytes, memory = self._tasks[task], self._services.sessions_memory
        if not memory.try_take(nbytes):
            raise ServiceNotReady(
                f"{what} cannot wait: producers, consumers and watchers take {memory.used_bytes} of "
                f"{memory.size_bytes} bytes; try again, or raise sessionsMB"
            )
        self._tasks[task] = 0
        self.charge_back(nbytes)
        try:
            yield
        finally:
            memory.give_back(nbytes)

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
        membership.give_back(self._services.sessions_memory, producer)
        if producer.topic.producers.get(producer.name) is producer:
            del producer.topic.producers[producer.name]
            self._services.producer_left(producer)

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
        refusal = event.refused or consumer.subscription.acknowledge(consumer, event)
        if refusal is not None:
            self._refuse_ack(event, refusal)
        elif event.request_id is not None:
            # Not the event: it may name a hundred thousand entries.
            self._command_bytes = 0
            answer = partial(self._ack_response, consumer.subscription, event.consumer_id, event.request_id)
            self.request(event.request_id, answer)

    def _refuse_ack(self, event: AckRun, refusal: PenstockError) -> None:
        """What was not acknowledged is delivered again; a client that asked is told so."""
        if event.request_id is not None:
            answer = codec.ack_response(
                event.consumer_id, event.request_id, error=refusal.wire_code, message=str(refusal)
            )
            self.reply(answer)

    async def _ack_response(self, subscription: ConsumedSubscription, consumer_id: int, request_id: int) -> None:
        try:
            await subscription.save_cursor()
        except PenstockError as error:
            frame = codec.ack_response(consumer_id, request_id, error=error.wire_code, message=str(error))
        else:
            frame = codec.ack_response(consumer_id, request_id)
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
        membership.give_back(self._services.sessions_memory, consumer)
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

    # Commands that concern nothing but the session itself.
    HANDLERS: ClassVar[Mapping[int, Handler]] = {
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
