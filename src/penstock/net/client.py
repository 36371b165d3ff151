# SPDX-License-Identifier: Apache-2.0
"""A client of a broker on an asyncio loop: many tasks ask over one connection, each hears its own answer.

Why a protocol and not streams: bytes are read where frames are looked for, without a copy or a task for each
connection; who has many connections pays for a buffer of a few kilobytes each.
Where: a client of several brokers opens one for each of them. `wire.client.ClientConnection` knows the protocol.

Theory of operation
    Answers go to the futures of those who wait for them, everything else to `next_event`. Events that nobody takes
    stop the reading, once EVENTS_MAX of them lie there: then the broker's socket fills up, and the broker waits.
    Answers behind them wait, too; so an owner of consumers takes their messages.
    The loop's timers ask a silent broker whether it lives, and end the connection of one that does not answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.core.errors import PenstockError, forget_frames
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.budget import Charge
from penstock.wire.client.connection import ClientConnection
from penstock.wire.client.events import Answered, Connected, ConnectionRefused, RequestFailed
from penstock.wire.client.frames import BUFFER_BYTES

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from penstock.governance.budget import Row
    from penstock.wire.client.consumer import Consumer
    from penstock.wire.client.events import Event
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address
    from penstock.wire.client.producer import Producer


# Events that lie there for `next_event` before no more are read. One read more may add to them.
EVENTS_MAX: Final = 1_000
TIMEOUT_S: Final = 30.0


class AsyncClient(asyncio.BufferedProtocol):
    """A connection to a broker. Open it with `open`, use it in an `async with`, or close it.

    Attributes:
        connection: takes the commands that are not here; their bytes are sent by `flush`.
    """

    def __init__(self, connection: ClientConnection) -> None:
        """Made by `open`."""
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeted: asyncio.Future[Connected] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[Body]] = {}
        self._events: deque[Event] = deque()
        self._more: asyncio.Future[None] | None = None  # of who waits for an event
        self._room: asyncio.Future[None] | None = None  # while the broker takes nothing
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._error: BaseException | None = None  # why it is over
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        connection: ClientConnection | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Connect and shake hands.

        Args:
            host: of the broker, or of a proxy.
            port: of the same.
            connection: says who we are; None for a broker that does not ask.
            tls: the names and certificates that are accepted, and our own certificate.
            timeout_s: for all of it.

        Raises:
            OSError: no connection; TimeoutError: none in time.
            RequestRefused: the broker does not let us in.
            ProtocolError: the peer is no broker.
        """
        client = cls(connection or ClientConnection())
        return await client._shake_hands(
            lambda: client._loop.create_connection(lambda: client, host, port, ssl=tls), timeout_s
        )

    @classmethod
    async def over(cls, sock: socket.socket, *, timeout_s: float = TIMEOUT_S) -> Self:
        """Shake hands over a connected socket, which is closed if that fails. Raises as `open`."""
        client = cls(ClientConnection())
        try:
            return await client._shake_hands(
                lambda: client._loop.create_connection(lambda: client, sock=sock), timeout_s
            )
        except BaseException:
            sock.close()
            raise

    async def _shake_hands(self, connect: Callable[[], Awaitable[object]], timeout_s: float) -> Self:
        try:
            async with asyncio.timeout(timeout_s):
                await connect()
                await self._greeted
        except BaseException:
            self.close()
            raise
        return self

    # -- for tasks ---------------------------------------------------------------------------------------------------

    async def request(self, body: Body, what: str = "", *, timeout_s: float = TIMEOUT_S) -> Body:
        """Send a command and wait for its answer's body; arguments as `ClientConnection.request`.

        Raises:
            RequestRefused: the broker answered with an error.
            TimeoutError: it did not answer in time; its answer will be passed over.
            ConnectionError, ProtocolError, BrokerSilent: the connection is over, and why.
        """
        self._check()
        return await self.answer(self.connection.request(body, what), timeout_s=timeout_s)

    async def open_producer(self, producer: Producer, *, timeout_s: float = TIMEOUT_S) -> None:
        """Open a producer, and send again what it has pending. Raises as `request`."""
        self._check()
        await self.answer(self.connection.open_producer(producer), timeout_s=timeout_s)

    async def subscribe(self, consumer: Consumer, *, timeout_s: float = TIMEOUT_S) -> None:
        """Open a consumer, and grant its permits. Raises as `request`."""
        self._check()
        await self.answer(self.connection.subscribe(consumer), timeout_s=timeout_s)

    async def answer(self, request_id: int, *, timeout_s: float = TIMEOUT_S) -> Body:
        """Send what is queued, and wait for the answer to a request. Raises as `request`."""
        future: asyncio.Future[Body] = self._loop.create_future()
        self._answers[request_id] = future
        self.flush()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._answers.pop(request_id, None)
            self.connection.forget_request(request_id)

    async def next_event(self) -> Event:
        """The next event that is no answer; for one task at a time.

        Raises:
            ConnectionError, ProtocolError, BrokerSilent: the connection is over, and no more events are there.
        """
        while not self._events:
            self._check()
            self._more = self._loop.create_future()
            try:
                await self._more
            finally:
                self._more = None
        event = self._events.popleft()
        if not self._reading and len(self._events) < EVENTS_MAX // 2 and self._transport is not None:
            self._reading = True
            self._hear()
            if self._reading:
                self._transport.resume_reading()
        return event

    def flush(self) -> None:
        """Send what was queued, without waiting. Raises when the connection is over, and why."""
        self._check()
        if self._transport is not None and (parts := self.connection.data_to_send()):
            self._transport.writelines(parts)

    async def drain(self) -> None:
        """Send what was queued, and wait while the broker does not take it. Raises as `flush`."""
        self.flush()
        while self._room is not None:
            await asyncio.shield(self._room)
            self._check()

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, or is about to."""
        return self._error is not None

    def close(self) -> None:
        """Close the connection; those who wait hear of it. A second time does nothing."""
        self._end(ConnectionAbortedError("the client has closed the connection"))

    async def closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._over)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.closed()

    # -- for the loop ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio; CONNECT is sent."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._error is not None:  # Closed meanwhile.
            transport.abort()
            return
        self.flush()
        self._keep_alive()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - frames decide
        """See asyncio."""
        return self.connection.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self.connection.received(nbytes)
        self._hear()

    def eof_received(self) -> None:
        """See asyncio: the transport closes itself."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self._end(exc or ConnectionResetError("the broker closed the connection"))
        self._transport = None
        if not self._over.done():
            self._over.set_result(None)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """See asyncio."""
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Give the events of what was read to those who wait for them."""
        try:
            while len(self._events) < EVENTS_MAX:
                event = self.connection.next_event()
                if event is None:
                    break
                self._give(event)
            else:
                self._reading = False
                if self._transport is not None:
                    self._transport.pause_reading()
            if self._error is None:
                self.flush()
        except PenstockError as error:
            forget_frames(error)
            self._end(error)
        except Exception as error:  # noqa: BLE001 - the credentials' callback's, for those who wait
            self._end(error)

    def _give(self, event: Event) -> None:
        if isinstance(event, Answered | RequestFailed):
            future = self._answers.get(event.request_id)
            if future is None or future.done():
                return
            if isinstance(event, Answered):
                future.set_result(event.body)
            else:
                future.set_exception(event.error)
        elif isinstance(event, Connected):
            if not self._greeted.done():
                self._greeted.set_result(event)
        elif isinstance(event, ConnectionRefused):
            self._end(event.error)
        else:
            self._events.append(event)
            _wake(self._more)

    def _keep_alive(self) -> None:
        try:
            next_ns = self.connection.keep_alive(round(self._loop.time() * NS_PER_S))
            self.flush()
        except (PenstockError, OSError) as error:
            self._end(error)
        else:
            self._timer = self._loop.call_at(next_ns / NS_PER_S, self._keep_alive)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _end(self, error: BaseException) -> None:
        """End the connection: tell everybody why, and let the socket go."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        for future in (self._greeted, *self._answers.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # A waiter gets it; without one, asyncio must not complain.
        _wake(self._more)
        self.resume_writing()
        if self._transport is None:
            if not self._over.done():
                self._over.set_result(None)
        else:
            with suppress(OSError):
                self._transport.abort()


def _wake(future: asyncio.Future[Any] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


# ---------------------------------------------------------------------------------------------------------------------
# A client that only asks a broker which it does not trust with its memory.
#
# Why: answers to lookups are small, and those with a schema may be a megabyte. A broker that announces more, sends half
# of it, or sends PINGs without reading the answers, must not take memory that nobody has agreed to. Where: the lookups
# of a proxy share one for each broker and identity.

# Read at a time while no large answer has begun: so many frames are handled in a millisecond or two.
READ_BYTES: Final = 4 * KIB


class AskingClient(AsyncClient):
    """A connection for requests. Its receive buffer is charged as far as it is larger than usual."""

    def __init__(self, connection: ClientConnection, memory: Row) -> None:
        """Made by `open_charged`."""
        super().__init__(connection)
        self._memory = Charge(memory)

    @classmethod
    async def open_charged(
        cls,
        memory: Row,
        address: Address,
        connection: ClientConnection,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Connect and shake hands. Args: memory: pays for large answers. Raises as `AsyncClient.open`."""
        client = cls(connection, memory)
        return await client._shake_hands(
            lambda: client._loop.create_connection(lambda: client, address.host, address.port, ssl=tls), timeout_s
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. If there is no memory for the answer that has begun, the connection ends."""
        try:
            room = super().get_buffer(sizehint)
            self._charge()
            inbound = self.connection.inbound
            if len(inbound.data) <= BUFFER_BYTES:
                room = room[:READ_BYTES]
        except PenstockError as error:
            forget_frames(error)
            self._end(error)
            return memoryview(bytearray(KIB))
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._error is not None:
            return
        super().buffer_updated(nbytes)
        inbound = self.connection.inbound
        if len(inbound.data) > BUFFER_BYTES and not inbound.held_bytes:
            inbound.data, inbound.begin, inbound.end = bytearray(BUFFER_BYTES), 0, 0
            self._charge()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        # Errors refer to this object, and are garbage that is collected later: their memory is not.
        self.connection.inbound.drop()
        self._memory.release()

    def pause_writing(self) -> None:
        """See asyncio: a broker that does not read is not read."""
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._transport is not None and self._error is None:
            self._transport.resume_reading()

    def _charge(self) -> None:
        """Charge what the buffer takes. Raises ServiceNotReady."""
        wanted_bytes = max(0, len(self.connection.inbound.data) - BUFFER_BYTES)
        self._memory.recharge_for("an answer of a broker", wanted_bytes)
