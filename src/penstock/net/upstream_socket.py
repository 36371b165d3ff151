# SPDX-License-Identifier: Apache-2.0
"""A proxy's socket to a broker, which belongs to one connection of a client.

Why not asyncio's transports: as with `Connection`, every unsent byte is counted, and no more is read than the client's
connection has room for. Where: `proxy.relay` opens one for each client that it connects to a broker.

Theory of operation
    Reading.  Before each read the handler says how much it has room for. Without room, the socket is not watched until
              `resume`; then the broker's send window fills up, and the broker waits for its slow consumer.
    Writing.  `write` queues frames, which one flush per turn of the loop sends; between `cork` and `uncork` they are
              sent by the latter, from where they were read. What a frame is charged to is released by its callback,
              when the socket has taken the frame or is closed.
    TLS.      See `tls`. The handshake is the first thing that is read and written.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.units import KIB
from penstock.net.send_queue import SendQueue, send_queued, took_all
from penstock.net.tls import TLS_WRITE_BYTES, TlsLayer, plain_reason
from penstock.wire.relayed import is_borrowed

if TYPE_CHECKING:
    import asyncio
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from penstock.net.send_queue import Buffer

log = logging.getLogger(__name__)

# The largest read. A read that fills its buffer is followed by one four times as large.
READ_BYTES_MAX: Final = 256 * KIB
_FIRST_READ_BYTES: Final = 16 * KIB
_READ_GROWTH: Final = 4


class UpstreamHandler(Protocol):
    """Acts on what a broker sends. Called on the loop only."""

    def room_bytes(self) -> int:
        """Return how much may be read now; 0 or less: nothing until `resume` is called."""

    def broker_sent(self, data: bytes) -> None:
        """The broker has sent these bytes, which need not end with a frame."""

    def broker_blocked(self) -> None:
        """The socket takes no more now, or still does not, and more waits for it; `broker_took` follows."""

    def broker_took(self) -> None:
        """The socket has taken all that was queued, after it was blocked."""

    def broker_closed(self, reason: str) -> None:
        """The connection is closed; called exactly once."""


class UpstreamSocket:
    """One socket to a broker."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        handler: UpstreamHandler,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
    ) -> None:
        """Take a connected socket that does not block; `server_name` is the broker's, for TLS."""
        self.is_open = True
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._handler = handler
        self._tls = TlsLayer(tls, sock, server_name=server_name) if tls is not None else None
        self._arena = memoryview(bytearray(_FIRST_READ_BYTES)) if tls is not None else None
        self._queue = SendQueue(shared_bytes=0)
        self._read_bytes = _FIRST_READ_BYTES
        self._reading = False
        self._writer_added = False
        self._flush_scheduled = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._queue.unsent_bytes

    def start(self) -> None:
        """Watch the socket; with TLS, begin the handshake."""
        self._reading = True
        self._loop.add_reader(self._fd, self._on_readable)
        if self._tls is not None:
            self._handshake()

    def resume(self) -> None:
        """Read on, after there was no room."""
        if self.is_open and not self._reading:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)
            if self._tls is not None and self._tls.pending():
                self._loop.call_soon(self._on_readable)

    def write(self, buffers: Sequence[Buffer], nbytes: int, sent: Callable[[], None] | None = None) -> None:
        """Queue bytes; `sent` is called when the socket has taken the last of them, or is closed."""
        if not self.is_open or not (nbytes or self._queue.unsent_bytes):
            if sent is not None:
                sent()
            return
        if nbytes:
            self._queue.add(buffers, nbytes)
        if sent is not None:
            self._queue.when_sent(sent, 0)
        if not self._flush_scheduled and not self._writer_added:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def cork(self) -> None:
        """Let frames wait for `uncork`, which the caller calls before it returns to the loop."""
        self._flush_scheduled = True

    def uncork(self) -> None:
        """Send frames at once; what the socket does not take is copied, as far as its memory is about to be reused."""
        self._flush_scheduled = False
        if self._writer_added:
            self._handler.broker_blocked()  # There is more now that waits.
        else:
            self._flush()
        if self._queue.buffers:
            self._queue.copy_if(is_borrowed)

    def close(self, reason: str) -> None:
        """Close the socket now; unsent bytes are discarded."""
        if not self.is_open:
            return
        self.is_open = False
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writer_added:
            self._loop.remove_writer(self._fd)
        self._sock.close()
        self._tls = None
        for one in self._queue.clear():
            one.passed()
        handler = self._handler
        del self._handler
        handler.broker_closed(reason)

    def _on_readable(self) -> None:
        if not self.is_open or not self._reading:
            return
        try:
            if self._tls is not None and not self._tls.established:
                self._handshake()
            else:
                self._read()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(_reason(error))
        except Exception:
            log.exception("connection to a broker failed")
            self.close("internal error; the proxy's log has it")

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.handshake()
        except OSError as error:
            self.close(f"TLS handshake with the broker failed: {plain_reason(error)}")
            return
        self._flush()

    def _read(self) -> None:
        room_bytes = self._handler.room_bytes()
        if room_bytes <= 0:
            self._reading = False
            self._loop.remove_reader(self._fd)
            return
        wanted = min(room_bytes, self._read_bytes)
        data = self._sock.recv(wanted) if self._tls is None else self._decrypted(wanted)
        if not data:
            self.close("closed by the broker")
            return
        if len(data) == wanted:
            self._read_bytes = min(READ_BYTES_MAX, _READ_GROWTH * self._read_bytes)
        elif len(data) < self._read_bytes // (2 * _READ_GROWTH):
            self._read_bytes = max(_FIRST_READ_BYTES, self._read_bytes // _READ_GROWTH)
        self._handler.broker_sent(data)
        if self.is_open and self._reading and self._tls is not None and self._tls.pending():
            self._loop.call_soon(self._on_readable)

    def _decrypted(self, wanted: int) -> bytes:
        assert self._tls is not None
        assert self._arena is not None
        arena = self._arena[:wanted]
        return bytes(arena[: self._tls.receive([arena])])

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self.is_open:
            return
        try:
            while self._has_output() and self._send_some():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(_reason(error))
            return
        blocked = self._has_output()
        if blocked != self._writer_added:
            self._writer_added = blocked
            if blocked:
                self._loop.add_writer(self._fd, self._flush)
                self._handler.broker_blocked()
            else:
                self._loop.remove_writer(self._fd)
                self._handler.broker_took()

    def _has_output(self) -> bool:
        if self._tls is None:
            return bool(self._queue.buffers)
        return self._tls.has_output() or (self._tls.established and bool(self._queue.buffers))

    def _send_some(self) -> bool:
        """Send with one system call; return whether the socket may take more."""
        queue = self._queue
        before = len(queue.buffers)
        nbytes = (
            send_queued(self._sock, queue.buffers)
            if self._tls is None
            else self._tls.send(queue.buffers, TLS_WRITE_BYTES)
        )
        if nbytes:
            queue.sent(nbytes)
            while queue.passing and queue.passing[0].position <= queue.sent_bytes:
                queue.passing.popleft().passed()
        return self._tls is not None or took_all(queue.buffers, before)


def _reason(error: OSError) -> str:
    return f"the connection to the broker is lost: {error.strerror or error}"
