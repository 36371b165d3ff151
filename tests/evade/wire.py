# SPDX-License-Identifier: Apache-2.0
"""One connection of the player, which counts what passed: receipts of what it sent, and messages that it was sent.

Why not the simulation's client: a play opens up to a hundred connections and costs 50 ms, so frames are cut in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

from penstock.testing.client import Type
from penstock.testing.loop import VirtualLoop
from penstock.wire import codec
from penstock.wire.client.connection import frame
from penstock.wire.client.frames import Inbound, entry_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.testing.sockets import MemorySocket
    from penstock.wire.client.frames import Frame

# A broker that says nothing for so long (in virtual time) has stopped to serve this connection.
TIMEOUT_S: Final = 2.0
# Of a client that does not read.
SOCKET_BYTES: Final = 1_024


class Gone(Exception):
    """The connection is closed, or the broker did not answer in time."""


class Refused(Exception):
    """The broker has answered with an error."""


class Wire(asyncio.Protocol):
    """A connection.

    Attributes:
        is_open: until either side has closed it.
        unanswered: SENDs without receipt, by producer id.
        owned: what ends with it, as the player counts it: payers and names.
        on_gone: is called when the broker ends what it has, or the connection is closed.
        on_receipt: is told the producer id of each receipt.
        on_message: is told the consumer id, the message's command and its entry.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.unanswered: dict[int, int] = {}
        self.on_gone: Callable[[], None] = lambda: None
        self.on_receipt: Callable[[int], None] = lambda _producer: None
        self.on_message: Callable[[codec.CommandMessage, bytes], None] = lambda _command, _entry: None
        self.owned: list[tuple[str, str]] = []
        self._all_answered = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._written = self._counted = 0
        self._inbound = Inbound()
        self._requests = 0
        self._asked: dict[int, asyncio.Future[codec.BaseCommand]] = {}

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1", through: str = "") -> Wire:
        """Connect from this address and shake hands; `through`: the broker to which a proxy connects it."""
        loop = asyncio.get_running_loop()
        wire = cls()
        try:
            await loop.create_connection(lambda: wire, "127.0.0.1", port, local_addr=(address, 0))
        except OSError as error:
            raise Gone from error
        named = {"proxy_to_broker_url": through} if through else {}
        wire.send(Type.CONNECT, client_version="evade", protocol_version=20, **named)
        await wire._answer(0)
        return wire

    def send(self, kind: int, **fields: Any) -> None:  # noqa: ANN401 - those of the command
        """Send a command."""
        self.write(frame(kind, **fields))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_open and self._transport is not None:
            self._written += len(data)
            self._transport.write(data)

    def publish(self, producer_id: int, frames: bytes, count: int) -> None:
        """Send so many SENDs of one producer."""
        self._all_answered.clear()
        self.unanswered[producer_id] = self.unanswered.get(producer_id, 0) + count
        self.write(frames * count)

    async def all_answered(self, limit_s: float) -> None:
        """Wait until no SEND is unanswered, or the connection is gone, for so long at most."""
        if self.is_open and any(self.unanswered.values()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._all_answered.wait()

    async def request(self, kind: int, **fields: Any) -> codec.BaseCommand:  # noqa: ANN401
        """Send a request; its answer. Raises Gone, Refused."""
        self._requests += 1
        self.send(kind, request_id=self._requests, **fields)
        return await self._answer(self._requests)

    async def _answer(self, request: int) -> codec.BaseCommand:
        if not self.is_open:
            raise Gone
        future: asyncio.Future[codec.BaseCommand] = asyncio.get_running_loop().create_future()
        self._asked[request] = future
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await future
        except TimeoutError as error:
            raise Gone from error
        finally:
            self._asked.pop(request, None)
        if answer.type == Type.ERROR:
            raise Refused(answer.error.message)
        return answer

    def stop_reading(self) -> None:
        """Take nothing more from the socket, whose buffers hold next to nothing."""
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()
        near = self._socket()
        if near is not None and near.peer is not None:
            near.options[socket.SOL_SOCKET, socket.SO_RCVBUF] = SOCKET_BYTES
            near.peer.options[socket.SOL_SOCKET, socket.SO_SNDBUF] = SOCKET_BYTES

    def count_from_now(self) -> None:
        """Begin to count what the broker takes."""
        self._counted = -self.taken_bytes

    @property
    def taken_bytes(self) -> int:
        """What the broker has read of this connection since it is counted."""
        near = self._socket()
        if self._transport is None or near is None:
            return 0
        unread = len(near.peer.inbox) if near.peer is not None else 0
        return self._counted + self._written - self._transport.get_write_buffer_size() - unread

    def _socket(self) -> MemorySocket | None:
        if self._transport is None or self._transport.is_closing():
            return None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.network.sockets.get(self._transport.get_extra_info("socket").fileno())

    def end_sending(self) -> None:
        """Close this direction, and still receive what comes."""
        if self.is_open and self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Be gone."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._inbound.add(data)
        while (came := self._inbound.take_frame()) is not None:
            self._take(came)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.on_gone()
        self._all_answered.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Gone())

    def _take(self, came: Frame) -> None:
        command = came.command
        if command.type == Type.SEND_RECEIPT:
            self._answered(command.send_receipt.producer_id)
            self.on_receipt(command.send_receipt.producer_id)
        elif command.type == Type.SEND_ERROR:
            self._answered(command.send_error.producer_id)
        elif command.type == Type.MESSAGE:
            self.on_message(command.message, entry_in(came.entry))
        elif command.type == Type.PING:
            self.write(codec.pong())
        elif command.type in {Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER}:
            self.on_gone()
            self.abort()  # As official clients do in the end: connect again.
        else:
            self._settle(command)

    def _answered(self, producer_id: int) -> None:
        if producer_id in self.unanswered:
            self.unanswered[producer_id] -= 1
            if not any(self.unanswered.values()):
                self._all_answered.set()

    def _settle(self, command: codec.BaseCommand) -> None:
        body = codec.body_in(command)
        # An error before the handshake names no request, as CONNECTED does.
        request = 0 if command.type == Type.CONNECTED else int(getattr(body, "request_id", 0))
        future = self._asked.get(request) or (self._asked.get(0) if command.type == Type.ERROR else None)
        if future is not None and not future.done():
            future.set_result(command)


def messages_in(entry: bytes) -> int:
    """How many messages an entry says that it has."""
    start = 10 + int.from_bytes(entry[6:10], "big")
    metadata = codec.MessageMetadata.FromString(entry[10:start])
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
