# SPDX-License-Identifier: Apache-2.0
"""TLS of a connection: an SSLObject between two memory BIOs that hold little.

Why not `ssl.SSLSocket`: it hides its unsent bytes, and an unfinished write must be repeated with the same bytes. Where:
a `Connection` of a TLS port has one, and calls it instead of its socket.

Memory: a memory BIO keeps the capacity of its fullest moment, so both are filled by one record at a time. So a
connection holds at most one record that is being read, one behind it, and one decrypted for peeking.
docs/internals/memory-ceiling.md has the measured figures.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import KIB
from penstock.net.send_queue import Buffer, drop_sent, send_queued

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

# A TLS record holds at most 16 KiB of plaintext; on the wire it has at most 256 bytes more, and a header of five.
TLS_PLAIN_BYTES: Final = 16 * KIB
TLS_RECORD_BYTES: Final = TLS_PLAIN_BYTES + 256 + 5
# The bytes that are encrypted at a time, just before they are sent.
TLS_WRITE_BYTES: Final = 256 * KIB


class TlsLayer:
    """The TLS of one connection, from the handshake on."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, *, server_name: str | None = None) -> None:
        """Begin with the handshake; `server_name` is whom to reach, for the client's side."""
        self.established = False
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._ahead = memoryview(b"")  # decrypted for peeking, not yet received
        self._ended = False  # the client closed after bytes that were received
        self._ciphertext: deque[Buffer] = deque()  # encrypted, not yet taken by the socket
        self._plain_bytes = 0  # its length as plaintext, which counts as sent when all of it is

    def pending(self) -> bool:
        """Return whether something waits inside TLS: decrypted bytes, unread ciphertext, or the end of the stream."""
        return bool(self._ahead) or self._ended or self._ssl.pending() > 0 or self._incoming.pending > 0

    def certificate(self) -> Mapping[str, Any] | None:
        """Return the client's certificate as `ssl` describes it; None if it was not sent or not verified."""
        return self._ssl.getpeercert() or None

    def has_output(self) -> bool:
        """Return whether encrypted bytes wait for the socket."""
        return bool(self._ciphertext) or self._outgoing.pending > 0

    def handshake(self) -> None:
        """Do one step of the handshake; raises OSError (ssl.SSLError is one) on failure."""
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(TLS_RECORD_BYTES)
            if not data:
                raise ConnectionResetError
            self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
            self.established = True

    def peek(self, buffer: memoryview) -> int:
        """Like `receive` into one buffer of at most a record, but the bytes will be received again."""
        if len(self._ahead) < len(buffer):
            ahead, self._ahead = self._ahead, memoryview(b"")
            seen = len(ahead)
            buffer[:seen] = ahead
            try:
                seen += self.receive([buffer[seen:]])
            except BlockingIOError:
                if not seen:
                    raise
            self._ahead = memoryview(bytes(buffer[:seen]))
        nbytes = min(len(buffer), len(self._ahead))
        buffer[:nbytes] = self._ahead[:nbytes]
        return nbytes

    def receive(self, buffers: list[memoryview]) -> int:
        """Decrypt the bytes that have arrived into the buffers; 0 means that the client closed.

        Raises:
            BlockingIOError: nothing has arrived. Other OSErrors, ssl.SSLError among them: the connection is lost.
        """
        total = 0
        for buffer in buffers:
            filled = 0
            while filled < len(buffer):
                try:
                    count = self._take(buffer[filled:])
                except BlockingIOError:
                    if total == 0:
                        raise
                    return total
                if count == 0:
                    self._ended = True
                    return total
                filled += count
                total += count
        return total

    def _take(self, buffer: memoryview) -> int:
        """Return the length of the rest of a record, or of one more; 0 at the end of the stream."""
        if self._ahead:
            nbytes = min(len(buffer), len(self._ahead))
            buffer[:nbytes] = self._ahead[:nbytes]
            self._ahead = self._ahead[nbytes:]
            return nbytes
        while True:
            try:
                # With a buffer, `read` returns the number of bytes; the stubs only know the other form.
                return self._ssl.read(len(buffer), buffer)  # type: ignore[return-value]
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLWantReadError:
                # The BIO is empty now, so it never holds more than what is written here.
                data = self._sock.recv(TLS_RECORD_BYTES)
                if not data:
                    return 0
                self._incoming.write(data)

    def send(self, queue: deque[Buffer], step_bytes: int) -> int:
        """Encrypt and send one step of about `step_bytes`.

        Returns the number of plaintext bytes whose last byte of ciphertext the socket has taken.
        """
        if not self._ciphertext:
            self._collect()
            while self.established and queue and self._plain_bytes < step_bytes:
                self._plain_bytes += self._ssl.write(_take_record(queue))
                self._collect()
        if self._ciphertext:
            send_queued(self._sock, self._ciphertext)
        if self._ciphertext:
            return 0
        plain, self._plain_bytes = self._plain_bytes, 0
        return plain

    def _collect(self) -> None:
        if self._outgoing.pending:
            self._ciphertext.append(self._outgoing.read())


def _take_record(queue: deque[Buffer]) -> Buffer:
    """Remove the bytes of one TLS record from the queue.

    Small receipts share a record, because a record costs as much as ten.
    """
    record: Buffer = memoryview(queue[0])[:TLS_PLAIN_BYTES]
    if len(record) < TLS_PLAIN_BYTES and len(queue) > 1:
        joined = bytearray()
        for buffer in queue:
            joined += memoryview(buffer)[: TLS_PLAIN_BYTES - len(joined)]
            if len(joined) == TLS_PLAIN_BYTES:
                break
        record = joined
    drop_sent(queue, len(record))
    return record


def plain_reason(error: Exception) -> str:
    """Say in a few words why a socket failed."""
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset by the client"
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
            return "the client does not speak TLS; see brokerServicePort"
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__
