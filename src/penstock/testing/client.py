# SPDX-License-Identifier: Apache-2.0
"""A plain client for tests: blocking sockets, one protobuf per command, and the liberty to misbehave.

Why: the official client retries, batches and hides; a test of what the broker says to a half-sent frame, a wrong
checksum or a lost connection needs every byte in its own hands.
Where: tests of the transport, the crash loop, the flood.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.core.checksum import is_sealed, seal
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from types import TracebackType

Type = BaseCommand.Type
TIMEOUT_S = 10.0
EARLIEST = 2**64 - 1


class Refused(RuntimeError):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(f"error {code}: {message}")


class Frame(NamedTuple):
    """One frame from the broker: its command, and what follows it (an entry, for MESSAGE)."""

    command: BaseCommand
    entry: bytes

    @property
    def payload(self) -> bytes:
        """The message's own bytes, after checksum and metadata; asserts that the checksum holds."""
        assert is_sealed(self.entry), "an entry came with a wrong checksum"
        (metadata_bytes,) = struct.unpack_from(">I", self.entry, 6)
        return self.entry[10 + metadata_bytes :]


def frame(kind: int, **fields: Any) -> bytes:  # noqa: ANN401 - whatever the command's fields are
    """A frame with one command; keyword arguments are fields of its body."""
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    body.SetInParent()
    for name, value in fields.items():
        if isinstance(value, dict):
            getattr(body, name).SetInParent()
            for inner, part in value.items():
                setattr(getattr(body, name), inner, part)
        else:
            setattr(body, name, value)
    data = command.SerializeToString()
    return struct.pack(">II", 4 + len(data), len(data)) + data


def entry(payload: bytes, *, sequence_id: int = 0, producer: str = "p", publish_time: int = 1) -> bytes:
    """A sealed entry that holds one message."""
    metadata = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time)
    data = metadata.SerializeToString()
    return seal(struct.pack(">I", len(data)) + data + payload)


def send(producer_id: int, sequence_id: int, stored: bytes) -> bytes:
    """A SEND frame around an entry."""
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = producer_id, sequence_id
    data = command.SerializeToString()
    return struct.pack(">II", 4 + len(data) + len(stored), len(data)) + data + stored


class RawClient:
    """One connection. Requests block; frames that nobody waits for are kept in `inbox`."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, connect: bool = True) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.inbox: list[Frame] = []
        self._received = b""
        self._requests = 0
        if connect:
            self.write(frame(Type.CONNECT, client_version="raw", protocol_version=20))
            assert self.read().command.type == Type.CONNECTED

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def read(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """The next frame; PINGs are answered and not shown. Raises TimeoutError, ConnectionError at the end."""
        while True:
            self.socket.settimeout(timeout_s)
            whole = self._take()
            if whole is None:
                data = self.socket.recv(1 << 20)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                self._received += data
            elif whole.command.type == Type.PING:
                self.write(frame(Type.PONG))
            else:
                return whole

    def _take(self) -> Frame | None:
        if len(self._received) < 8:
            return None
        total, command_bytes = struct.unpack_from(">II", self._received)
        if len(self._received) < 4 + total:
            return None
        command = BaseCommand.FromString(self._received[8 : 8 + command_bytes])
        rest = self._received[8 + command_bytes : 4 + total]
        self._received = self._received[4 + total :]
        return Frame(command, rest)

    def next(self, *kinds: int, timeout_s: float = TIMEOUT_S) -> Frame:
        """The next frame of one of these types; others go to the inbox."""
        for index, kept in enumerate(self.inbox):
            if kept.command.type in kinds:
                return self.inbox.pop(index)
        while True:
            came = self.read(timeout_s)
            if came.command.type in kinds:
                return came
            self.inbox.append(came)

    def request(self, kind: int, answer: int, **fields: Any) -> Any:  # noqa: ANN401 - the answer's body
        """Send a request and wait for its answer's body; an ERROR is raised."""
        self._requests += 1
        self.write(frame(kind, request_id=self._requests, **fields))
        command = self.next(answer, Type.ERROR).command
        if command.type == Type.ERROR:
            raise Refused(command.error.error, command.error.message)
        return getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[answer].name)

    def produce(self, topic: str, *, producer_id: int = 0, **fields: Any) -> str:  # noqa: ANN401
        """Open a producer; returns its name."""
        answer = self.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer_id, **fields)
        name: str = answer.producer_name
        return name

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        consumer_id: int = 0,
        permits: int = 1000,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        """Open a consumer, from the earliest entry on unless told otherwise, and grant permits."""
        fields.setdefault("subType", 0)
        fields.setdefault("initialPosition", 1)
        self.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=topic,
            subscription=subscription,
            consumer_id=consumer_id,
            **fields,
        )
        if permits:
            self.write(frame(Type.FLOW, consumer_id=consumer_id, messagePermits=permits))

    def publish(self, payloads: Iterable[bytes], *, producer_id: int = 0, first: int = 0) -> list[int]:
        """Send messages and wait for all receipts; returns their entry ids."""
        count = 0
        for count, payload in enumerate(payloads, 1):
            sequence_id = first + count - 1
            self.write(send(producer_id, sequence_id, entry(payload, sequence_id=sequence_id)))
        ids = []
        for _ in range(count):
            answer = self.next(Type.SEND_RECEIPT, Type.SEND_ERROR).command
            if answer.type == Type.SEND_ERROR:
                raise Refused(answer.send_error.error, answer.send_error.message)
            ids.append(answer.send_receipt.message_id.entryId)
        return ids

    def message(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """The next MESSAGE."""
        return self.next(Type.MESSAGE, timeout_s=timeout_s)

    def acknowledge(
        self, came: Frame, *, consumer_id: int = 0, cumulative: bool = False, request_id: int | None = None
    ) -> None:
        """Send an ACK for a MESSAGE; with a request id the broker answers with ACK_RESPONSE."""
        command = BaseCommand(type=Type.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = int(cumulative)  # type: ignore[assignment]
        command.ack.message_id.add().CopyFrom(came.command.message.message_id)
        if request_id is not None:
            command.ack.request_id = request_id
        data = command.SerializeToString()
        self.write(struct.pack(">II", 4 + len(data), len(data)) + data)

    def is_closed(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the broker closes this connection within the time."""
        try:
            while True:
                self.inbox.append(self.read(timeout_s))
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
