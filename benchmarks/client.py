# SPDX-License-Identifier: Apache-2.0
"""One plain or TLS socket that speaks Pulsar's protocol: a blocking handshake, then non-blocking bulk traffic.

Why: the official clients spend more on a message than the broker does; this spends next to nothing.
Where: `generator` opens one for every connection of a load.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING

from benchmarks import frames
from benchmarks.scan import Fields, UnexpectedFrame, decode_command, unpack_u32

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # (data, start, end, begins of other frames) -> begin of the first unfinished frame
    Scan = Callable[[bytearray, int, int, list[int]], int]

# Holds several reads of large frames, so that little is moved to the front.
RECEIVE_BYTES = 2 * 1024 * 1024
# Below this much room an unfinished frame is moved to the buffer's front; no frame of a load is larger.
ROOM_BYTES_MIN = 512 * 1024
HANDSHAKE_TIMEOUT_S = 20.0
# A topic that is still being loaded answers so; clients try again.
SERVICE_NOT_READY = 6
RETRY_S = 0.05


class Refused(Exception):
    """The broker answered a request with an error."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"error {code}: {text}")


class Client:
    """A connection to one broker."""

    def __init__(self, port: int, tls_ca: Path | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), HANDSHAKE_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls_ca is not None:
            context = ssl.create_default_context(cafile=tls_ca)
            context.check_hostname = False
            self.socket = context.wrap_socket(self.socket)
        self.received = bytearray(RECEIVE_BYTES)
        self.begin = self.end = 0
        self.request_id = 0
        self.request(frames.connect(), frames.CONNECTED)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def fileno(self) -> int:
        """Let selectors wait for this connection."""
        return self.socket.fileno()

    # ------------------------------------------------------------------------------------------------------ handshake

    def open_producer(self, topic: str, producer_id: int) -> None:
        """Look a topic up and open a producer on it."""
        self.look_up(topic)
        self.insist(lambda request_id: frames.producer(topic, producer_id, request_id), frames.PRODUCER_SUCCESS)

    def open_consumer(self, topic: str, subscription: str, consumer_id: int = 0) -> None:
        """Look a topic up and subscribe to it, durably, from its earliest entry on."""
        self.look_up(topic)
        self.insist(lambda request_id: frames.subscribe(topic, subscription, consumer_id, request_id), frames.SUCCESS)

    def look_up(self, topic: str) -> None:
        """Do what every client does before it opens anything; this also makes the broker load the topic."""
        asked = frames.PARTITIONED_METADATA_RESPONSE, frames.LOOKUP_RESPONSE
        self.insist(lambda request_id: frames.partitioned_metadata(topic, request_id), asked[0])
        self.insist(lambda request_id: frames.lookup(topic, request_id, authoritative=False), asked[1])

    def insist(self, encode: Callable[[int], bytes], wanted: int) -> Fields:
        """Send a request, again and again while the broker says that it is not ready yet."""
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        while True:
            self.request_id += 1
            try:
                return self.request(encode(self.request_id), wanted)
            except Refused as refused:
                if refused.code != SERVICE_NOT_READY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def await_receipt(self) -> None:
        """Wait for the receipt of the one entry sent."""
        self.request(b"", frames.SEND_RECEIPT)

    def request(self, frame: bytes, wanted: int) -> Fields:
        """Send one frame and wait for its answer. Raises Refused when the answer is an error."""
        self.socket.sendall(frame)
        while True:
            kind, body = self.next_command()
            if kind == wanted and not is_failure(kind, body):
                return body
            if kind == frames.PING:
                self.socket.sendall(frames.pong())
            elif kind == frames.ACTIVE_CONSUMER_CHANGE:
                continue
            elif kind == frames.ERROR:
                raise Refused(body.numbers[2], body.texts[3].decode())
            elif is_failure(kind, body):
                raise Refused(*failure(kind, body))
            else:
                raise UnexpectedFrame(f"a frame of type {kind} where {wanted} was due")

    def next_command(self) -> tuple[int, Fields]:
        """Wait for one frame."""
        while True:
            kept = self.end - self.begin
            if kept >= 4 and kept >= 4 + unpack_u32(self.received, self.begin)[0]:
                at = self.begin
                self.begin += 4 + unpack_u32(self.received, at)[0]
                return decode_command(self.received, at)
            self.fill()

    # ---------------------------------------------------------------------------------------------------- bulk traffic

    def send(self, data: memoryview) -> int:
        """Send what fits now; return how many bytes did."""
        try:
            return self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def receive(self, scan: Scan) -> None:
        """Read what has come, let `scan` take the whole frames, answer a PING, object to what means trouble."""
        try:
            self.fill()
            while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                self.take(scan)
                self.fill()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        self.take(scan)

    def take(self, scan: Scan) -> None:
        """Let `scan` take the frames received so far."""
        others: list[int] = []
        self.begin = scan(self.received, self.begin, self.end, others)
        for at in others:
            kind, body = decode_command(self.received, at)
            if kind == frames.PING:
                self.socket.send(frames.pong())
            elif kind != frames.ACTIVE_CONSUMER_CHANGE:
                raise UnexpectedFrame(f"a frame of type {kind} in the middle of a load: {body}")

    def fill(self) -> None:
        """Read once into the free part of the buffer. Raises ConnectionError at the end of the stream."""
        if self.begin == self.end:
            self.begin = self.end = 0
        elif RECEIVE_BYTES - self.end < ROOM_BYTES_MIN:
            kept = self.end - self.begin
            self.received[:kept] = self.received[self.begin : self.end]
            self.begin, self.end = 0, kept
        with memoryview(self.received) as view:
            got = self.socket.recv_into(view[self.end :])
        if not got:
            raise ConnectionError("the broker closed the connection")
        self.end += got


def is_failure(kind: int, body: Fields) -> bool:
    """Say whether a lookup's answer is a refusal."""
    lookup_failed, metadata_failed = 2, 1
    return (kind == frames.LOOKUP_RESPONSE and body.numbers.get(3) == lookup_failed) or (
        kind == frames.PARTITIONED_METADATA_RESPONSE and body.numbers.get(3) == metadata_failed
    )


def failure(kind: int, body: Fields) -> tuple[int, str]:
    """Return the code and text of a lookup's refusal."""
    code, text = (6, 7) if kind == frames.LOOKUP_RESPONSE else (4, 5)
    return body.numbers.get(code, 0), body.texts.get(text, b"").decode()
