# SPDX-License-Identifier: Apache-2.0
"""A plain client for tests: blocking sockets, one protobuf per command, and no rules.

Why: the official client retries, batches and hides; a test of half-sent frames, wrong checksums or lost connections
must control every byte.
Where: tests of the transport, the crash loop, the flood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from penstock.core.units import MIB
from penstock.net.blocking import dial, receive, secure
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.client.connection import frame
from penstock.wire.client.frames import Frame, Inbound
from penstock.wire.codec import BaseCommand, CommandSend, MessageMetadata

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable
    from types import TracebackType

__all__ = ["EARLIEST", "TIMEOUT_S", "Frame", "RawClient", "Refused", "Type", "entry", "frame", "send"]

Type = BaseCommand.Type
TIMEOUT_S = 60.0  # of waiting for what must come; on a busy machine it may come late
EARLIEST = 2**64 - 1
# Tests exceed the protocol's limits on purpose.
_FRAME_BYTES_MAX = 2**31


class Refused(RuntimeError):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(f"error {code}: {message}")


def entry(payload: bytes, *, sequence_id: int = 0, producer: str = "p", publish_time: int = 1) -> bytes:
    """An entry with checksum that holds one message."""
    return entries.entry(
        MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time), payload
    )


def send(producer_id: int, sequence_id: int, stored: bytes, **fields: Any) -> bytes:  # noqa: ANN401
    """A SEND frame around an entry; keyword arguments are further fields of its command."""
    return entries.send(CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields), stored)


class RawClient:
    """One connection. Requests block; other frames are kept in `inbox`."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, connect: bool = True, through: str = ""
    ) -> None:
        """Connect to a broker or, with the address `through` of a broker, to a proxy that connects the client to it."""
        plain = dial("127.0.0.1", port, TIMEOUT_S)
        self.socket: socket.socket = plain if tls is None else secure(plain, tls, None)
        self.inbox: list[Frame] = []
        self._inbound = Inbound(frame_bytes_max=_FRAME_BYTES_MAX, buffer_bytes=MIB)
        self._requests = 0
        if connect:
            named = {"proxy_to_broker_url": through} if through else {}
            self.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, **named))
            assert self.read().command.type == Type.CONNECTED

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """The next frame; PINGs are answered and skipped. Raises TimeoutError; ConnectionError at the end."""
        while True:
            while (came := self._inbound.take_frame()) is None:
                if not (nbytes := receive(self.socket, self._inbound, timeout_s)):
                    raise TimeoutError(f"no frame within {timeout_s:g} s")
                self._inbound.filled(nbytes)
            if came.command.type != Type.PING:
                return came
            self.write(frame(Type.PONG))

    def next(self, *kinds: int, timeout_s: float = TIMEOUT_S) -> Frame:
        """The next frame of one of these types; others are kept in the inbox."""
        for index, kept in enumerate(self.inbox):
            if kept.command.type in kinds:
                return self.inbox.pop(index)
        while True:
            came = self.read(timeout_s)
            if came.command.type in kinds:
                return came
            self.inbox.append(came)

    def request(self, kind: int, answer: int, **fields: Any) -> Any:  # noqa: ANN401 - the answer's body
        """Send a request and return the body of its answer; an ERROR is raised."""
        self._requests += 1
        self.write(frame(kind, request_id=self._requests, **fields))
        command = self.next(answer, Type.ERROR).command
        if command.type == Type.ERROR:
            raise Refused(command.error.error, command.error.message)
        return codec.body_in(command)

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
        """Open a consumer and grant permits; it starts at the earliest entry by default."""
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
        return self.next(Type.MESSAGE, timeout_s=timeout_s)

    def acknowledge(
        self, came: Frame, *, consumer_id: int = 0, cumulative: bool = False, request_id: int | None = None
    ) -> None:
        """Send an ACK for a MESSAGE; with a request id the broker answers with ACK_RESPONSE."""
        self.write(
            frame(
                Type.ACK,
                consumer_id=consumer_id,
                ack_type=int(cumulative),
                message_id=[came.command.message.message_id],
                request_id=request_id,
            )
        )

    def is_closed(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the broker closes this connection within this time."""
        try:
            while True:
                self.inbox.append(self.read(timeout_s))
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
