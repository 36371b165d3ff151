# SPDX-License-Identifier: Apache-2.0
"""One connection of a simulated client: answers find who asked, and everything ends with the connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.core.checksum import is_sealed
from penstock.core.units import MIB
from penstock.wire import batches, codec
from penstock.wire.client import entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

Type = codec.BaseCommand.Type
# A client that hears nothing for so long gives up and connects again.
TIMEOUT_S = 20.0


class Gone(Exception):
    """The connection ended, or the broker did not answer in time."""


class Refused(Exception):
    """The broker answered with an error."""


class Wire:
    """A connection. `received` is called with every command that nobody asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._requests = 0
        self._asked: dict[int, asyncio.Future[codec.BaseCommand]] = {}
        self._connected: asyncio.Future[codec.BaseCommand] = asyncio.get_running_loop().create_future()
        self.is_open = True
        self.received: Callable[[codec.BaseCommand, bytes], None] = lambda _command, _entry: None
        self.pump = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, port: int) -> Wire:
        """Connect and shake hands. Raises Gone."""
        try:
            wire = cls(*await asyncio.open_connection("127.0.0.1", port, limit=4 * MIB))
        except OSError as error:
            raise Gone from error
        connect = codec.CommandConnect(client_version="sim", protocol_version=20)
        wire.send(Type.CONNECT, connect)
        await wire._answer(wire._connected)
        return wire

    def send(self, kind: int, body: Message) -> None:
        """Send a command."""
        self.write(codec.encode(kind, body))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_open:
            self._writer.write(data)

    def publish(
        self, producer_name: str, sequence_id: int, key: str, payloads: tuple[bytes, ...], *, at_ms: int = 0
    ) -> None:
        """Send a message of producer 0, or a batch, not to be delivered before this time."""
        metadata = codec.MessageMetadata(
            producer_name=producer_name, sequence_id=sequence_id, publish_time=1, partition_key=key
        )
        command = codec.CommandSend(producer_id=0, sequence_id=sequence_id)
        payload = payloads[0]
        if len(payloads) > 1:
            metadata.num_messages_in_batch = command.num_messages = len(payloads)
            metadata.highest_sequence_id = command.highest_sequence_id = sequence_id + len(payloads) - 1
            one = codec.SingleMessageMetadata
            payload = entries.batch((one(partition_key=key, payload_size=0), each) for each in payloads)
        if at_ms:
            metadata.deliver_at_time = at_ms
        self.write(entries.send(command, entries.entry(metadata, payload)))

    async def request(self, kind: int, body: Any) -> codec.BaseCommand:  # noqa: ANN401 - any that has a request_id
        """Send a request; its answer. Raises Gone, Refused."""
        self._requests += 1
        body.request_id = self._requests
        future = self._asked[self._requests] = asyncio.get_running_loop().create_future()
        self.send(kind, body)
        return await self._answer(future)

    async def _answer(self, future: asyncio.Future[codec.BaseCommand]) -> codec.BaseCommand:
        if not self.is_open:
            raise Gone
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await future
        except TimeoutError as error:
            self.abort()
            raise Gone from error
        if answer.type == Type.ERROR:
            raise Refused(answer.error.message)
        return answer

    def stop_reading(self) -> None:
        """Take nothing from the socket."""
        if self.is_open:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def go_on_reading(self) -> None:
        """Take what has come."""
        if self.is_open:
            self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        """Be gone, without a word."""
        self._writer.transport.abort()
        self._end()

    def _end(self) -> None:
        self.is_open = False
        asked, self._asked = self._asked, {}
        for future in (*asked.values(), self._connected):
            if not future.done():
                future.set_exception(Gone())
                future.exception()  # Nobody may be waiting for it any more.

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                data = await self._reader.readexactly(size)
                stop = 4 + int.from_bytes(data[:4], "big")
                self._take(codec.BaseCommand.FromString(data[4:stop]), data[stop:])
        self.abort()

    def _take(self, command: codec.BaseCommand, entry: bytes) -> None:
        if command.type == Type.PING:
            self.write(codec.pong())
        elif command.type == Type.CONNECTED:
            self._connected.set_result(command)
        elif (request_id := _request_id(command)) in self._asked:
            self._asked.pop(request_id).set_result(command)
        elif self.is_open:
            assert not entry or is_sealed(entry)
            self.received(command, entry)


def _request_id(command: codec.BaseCommand) -> int:
    name = codec.BaseCommand.DESCRIPTOR.fields_by_number[command.type].name
    return int(getattr(getattr(command, name), "request_id", -1))


def messages_of(entry: bytes) -> list[tuple[str, bytes]]:
    """Keys and payloads of the messages in an entry; an empty payload if compaction has removed the message."""
    start = 10 + int.from_bytes(entry[6:10], "big")
    metadata, payload = codec.MessageMetadata.FromString(entry[10:start]), entry[start:]
    if not metadata.HasField("num_messages_in_batch"):
        return [(metadata.partition_key, payload)]
    found = batches.single_messages(payload, metadata.num_messages_in_batch)
    return [(one.key or "", payload[one.stop - one.message_bytes : one.stop]) for one in found]
