# SPDX-License-Identifier: Apache-2.0
"""One plain or TLS socket to a broker: a blocking handshake, then non-blocking bulk traffic.

Why: the official clients spend more on a message than the broker does; this spends next to nothing.
Where: `generator` opens one for every connection of a load. What is said before the load is `net.blocking`'s business.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.bench_scan import UnexpectedFrame
from penstock.core.errors import WireCode
from penstock.net.blocking import BlockingClient, dial, receive, secure
from penstock.wire import codec
from penstock.wire.client.connection import ClientConnection, Hello
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import Inbound, decode_frame, frame_bytes
from penstock.wire.client.producer import Producer
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    # (data, start, end, begins of other frames) -> begin of the first unfinished frame
    Scan = Callable[[bytearray, int, int, list[int]], int]

# Holds several reads of large frames, so that little is moved to the front.
RECEIVE_BYTES = 2 * 1024 * 1024
TIMEOUT_S = 20.0
RETRY_S = 0.05
# No features: what a broker adds to entries would have to be taken off again.
HELLO = Hello(client_version="penstock-benchmark", protocol_version=20, features=frozenset())


class Traffic:
    """One socket to a broker of any protocol, which sends ready bytes and lets a scanner find what comes back."""

    socket: socket.socket

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def fileno(self) -> int:
        """Let selectors wait for this connection."""
        return self.socket.fileno()

    def send(self, data: memoryview) -> int:
        """Send what fits now; return how many bytes did."""
        try:
            return self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def receive(self, scan: Scan) -> None:
        """Read what has come, and let `scan` take what is complete. Raises UnexpectedFrame."""
        raise NotImplementedError


class Client(Traffic):
    """A connection to one broker."""

    def __init__(self, port: int, tls_ca: Path | None = None, through: str = "") -> None:
        """Connect to a broker or, with the URL `through` of a broker, to a proxy that connects the client to it."""
        self.socket: socket.socket = dial("127.0.0.1", port, TIMEOUT_S)
        if tls_ca is not None:
            context = ssl.create_default_context(cafile=tls_ca)
            context.check_hostname = False
            self.socket = secure(self.socket, context, None)
        self.inbound = Inbound(buffer_bytes=RECEIVE_BYTES)
        self.connection = ClientConnection(replace(HELLO, proxy_to_broker_url=through), inbound=self.inbound)
        self.blocking = BlockingClient(self.socket, self.connection, write_timeout_s=TIMEOUT_S)
        self.blocking.shake_hands(TIMEOUT_S)

    # ------------------------------------------------------------------------------------------------------ handshake

    def open_producer(self, topic: str, producer_id: int) -> None:
        """Look a topic up and open a producer on it."""
        self.look_up(topic)
        self.insist(lambda: self.connection.open_producer(Producer(producer_id, topic)))

    def open_consumer(
        self, topic: str, subscription: str, kind: codec.CommandSubscribe.SubType = codec.CommandSubscribe.Exclusive
    ) -> None:
        """Look a topic up and subscribe to it, durably, from its earliest entry on, as consumer 0."""
        self.look_up(topic)
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=0,
            request_id=0,
            initialPosition=codec.CommandSubscribe.Earliest,
        )
        self.insist(lambda: self.connection.subscribe(Consumer(body)))

    def look_up(self, topic: str) -> None:
        """Do what every client does before it opens anything; this also makes the broker load the topic."""
        for body in (
            codec.CommandPartitionedTopicMetadata(topic=topic, request_id=0),
            codec.CommandLookupTopic(topic=topic, request_id=0, authoritative=False),
        ):
            self.insist(lambda body=body: self.connection.request(body))  # type: ignore[misc]

    def insist(self, ask: Callable[[], int]) -> None:
        """Make a request, again and again while the broker says that it is not ready yet."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.blocking.answer(ask(), TIMEOUT_S)
            except RequestRefused as refused:
                # A topic that is still being loaded answers so; clients try again.
                if refused.code is not WireCode.SERVICE_NOT_READY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
            else:
                return

    def await_receipt(self) -> None:
        """Wait for the receipt of the one entry sent."""
        while (came := self.inbound.take_frame()) is None or came.kind != BaseCommand.SEND_RECEIPT:
            if came is not None:
                raise UnexpectedFrame(f"where a receipt was due: {came.command}")
            if not self.blocking.receive(TIMEOUT_S):
                raise TimeoutError(f"no receipt within {TIMEOUT_S:g} s")

    # ---------------------------------------------------------------------------------------------------- bulk traffic

    def receive(self, scan: Scan) -> None:
        """Read what has come, let `scan` take the whole frames, answer a PING, object to what means trouble."""
        self.inbound.filled(receive(self.socket, self.inbound, 0.0))
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            self.take(scan)
            self.inbound.filled(receive(self.socket, self.inbound, 0.0))
        self.take(scan)

    def take(self, scan: Scan) -> None:
        """Let `scan` take the frames received so far."""
        others: list[int] = []
        inbound = self.inbound
        inbound.begin = scan(inbound.data, inbound.begin, inbound.end, others)
        for at in others:
            came = decode_frame(inbound.data, at, at + frame_bytes(inbound.data, at))
            if came.kind == BaseCommand.PING:
                self.socket.send(codec.pong())
            elif came.kind != BaseCommand.ACTIVE_CONSUMER_CHANGE:
                raise UnexpectedFrame(f"in the middle of a load: {came.command}")
