# SPDX-License-Identifier: Apache-2.0
"""A client of a broker on a blocking socket, for a thread that has nothing else to do.

Why: a task of Spark and a test wait for one thing at a time. Each wait has a deadline.
Where: `dial` opens the socket; `BlockingClient` puts `wire.client.ClientConnection` on it.

A connection that nobody reads from for a minute is closed by the broker, which takes it for dead: PINGs are answered
only while something is waited for. `poll` says whether a connection that was left alone can still be used.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.units import KIB, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.wire.client.events import Answered, Connected, ConnectionRefused, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.wire.client.connection import ClientConnection
    from penstock.wire.client.events import Event
    from penstock.wire.client.frames import Body, Inbound

# Frames are joined to writes of about this size: a write costs more than to copy what is smaller.
_WRITE_BYTES: Final = 256 * KIB


class NoAnswer(PenstockError):
    """The broker is connected, and did not answer in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket that sends small writes at once. Raises OSError."""
    # The receive buffer is left to the kernel: it grows further than most machines let us ask for.
    peer = socket.create_connection((host, port), timeout_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def secure(peer: socket.socket, tls: ssl.SSLContext, host: str | None) -> ssl.SSLSocket:
    """The same connection after a TLS handshake with `host`, if one is named; closed on failure. Raises OSError."""
    try:
        return tls.wrap_socket(peer, server_hostname=host)
    except BaseException:
        peer.close()
        raise


def receive(peer: socket.socket, inbound: Inbound, timeout_s: float) -> int:
    """Read once; returns how many bytes, 0 when none came in time.

    Raises:
        ConnectionError: the broker closed the connection.
        OSError: it ended otherwise.
        ProtocolError: it announces a frame that cannot be.
    """
    with inbound.room() as room:
        try:
            _wait_at_most(peer, timeout_s)
            nbytes = peer.recv_into(room)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return 0
    if not nbytes:
        raise ConnectionError("the broker closed it")
    return nbytes


def _wait_at_most(peer: socket.socket, timeout_s: float) -> None:
    if peer.gettimeout() != timeout_s:  # To set it costs a system call.
        peer.settimeout(timeout_s)


class BlockingClient:
    """A connection to a broker. Close it at the end.

    Attributes:
        connection: takes the commands; their bytes are sent by `flush`, and before each wait.
    """

    def __init__(
        self,
        peer: socket.socket,
        connection: ClientConnection,
        *,
        write_timeout_s: float,
        clock: Clock | None = None,
    ) -> None:
        """Own a connected socket; nothing is sent yet.

        Args:
            peer: closed by `close`.
            connection: at its beginning.
            write_timeout_s: how long the broker may take nothing of what is written.
            clock: for deadlines.
        """
        self.connection = connection
        self._socket = peer
        self._clock = clock or SystemClock()
        self._write_timeout_s = write_timeout_s
        self._kept: deque[Event] = deque()  # that came while something else was waited for

    def fileno(self) -> int:
        """For selectors. They do not see bytes that TLS has decrypted already: read until nothing comes."""
        return self._socket.fileno()

    def shake_hands(self, timeout_s: float) -> Connected:
        """Wait until the broker lets us in.

        Raises:
            RequestRefused: it does not.
            NoAnswer: it does not say.
            OSError: the connection ended.
            ProtocolError: the peer is no broker.
        """
        with suppress(OSError):  # The peer that has closed the connection has perhaps said why.
            self.flush()
        event = self.next_event(timeout_s)
        if isinstance(event, ConnectionRefused):
            raise event.error
        if isinstance(event, Connected):
            return event
        raise NoAnswer(timeout_s)

    def answer(self, request_id: int, timeout_s: float) -> Body:
        """Wait for the answer to a request; other events wait for `next_event`.

        Raises:
            RequestRefused: the broker answered with an error.
            NoAnswer: it did not answer in time; its answer will be passed over.
            OSError: the connection ended.
            ProtocolError: the bytes are not the protocol.
        """
        deadline_ns = self._deadline(timeout_s)
        while (event := self._next(deadline_ns)) is not None:
            if isinstance(event, Answered) and event.request_id == request_id:
                return event.body
            if isinstance(event, RequestFailed) and event.request_id == request_id:
                raise event.error
            self._kept.append(event)
        self.connection.forget_request(request_id)
        raise NoAnswer(timeout_s)

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event; None when none comes in time. 0 only takes what has come already.

        Raises:
            OSError: the connection ended.
            ProtocolError: the bytes are not the protocol.
        """
        return self._kept.popleft() if self._kept else self._next(self._deadline(timeout_s))

    def take_event(self, *, before_messages: bool = False) -> Event | None:
        """The next event in what was received, as `ClientConnection.next_event`. Raises as `next_event`."""
        event = self.connection.next_event(before_messages=before_messages)
        try:
            self.flush()
        except OSError:
            if event is not None:
                self._kept.append(event)  # `remains` still tells it.
            raise
        return event

    def take_receipts(self) -> int:
        """Take the receipts that come next, as `ClientConnection.take_receipts`; none before events that wait."""
        return 0 if self._kept else self.connection.take_receipts()

    def receive(self, timeout_s: float) -> bool:
        """Read once; False when nothing comes in time. Raises as `next_event`."""
        self.flush()
        nbytes = receive(self._socket, self.connection.inbound, timeout_s)
        if nbytes:
            self.connection.received(nbytes)
        return nbytes > 0

    def poll(self) -> None:
        """Read what has come, and keep its events. Raises as `next_event` when the connection cannot be used."""
        while (event := self._next(self._deadline(0))) is not None:
            self._kept.append(event)

    def forget_events(self) -> None:
        """Forget events that came while something else was waited for: the connection begins something new."""
        self._kept.clear()

    def remains(self) -> Iterator[Event]:
        """Yield events that came before the connection ended or is given up; nothing is sent any more.

        Raises:
            OSError, ProtocolError: at the end.
        """
        yield from self._kept
        self._kept.clear()
        while True:
            while (event := self.connection.next_event()) is not None:
                yield event
            if not (nbytes := receive(self._socket, self.connection.inbound, 0)):
                return
            self.connection.received(nbytes)

    def flush(self) -> None:
        """Send what was queued; blocks while the broker does not take it. Raises OSError."""
        if parts := self.connection.data_to_send():
            self.write(*parts)

    def write(self, *parts: Buffer) -> None:
        """Send bytes as they are. Raises OSError, also when nothing was taken for `write_timeout_s`."""
        _wait_at_most(self._socket, self._write_timeout_s)
        joined: list[Buffer] = []
        joined_bytes = 0
        for part in parts:
            joined.append(part)
            joined_bytes += len(part)
            if joined_bytes >= _WRITE_BYTES:
                self._socket.sendall(joined[0] if len(joined) == 1 else b"".join(joined))
                joined, joined_bytes = [], 0
        if joined:
            self._socket.sendall(joined[0] if len(joined) == 1 else b"".join(joined))

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._socket.close()

    def _deadline(self, timeout_s: float) -> int:
        return self._clock.monotonic_ns() + round(timeout_s * NS_PER_S)

    def _next(self, deadline_ns: int) -> Event | None:
        while (event := self.take_event()) is None:
            remaining_s = max(0.0, (deadline_ns - self._clock.monotonic_ns()) / NS_PER_S)
            if not self.receive(remaining_s) and remaining_s == 0.0:
                return None
        return event
