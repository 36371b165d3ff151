# SPDX-License-Identifier: Apache-2.0
"""The TLS half of a connection: an SSLObject between two memory BIOs, with little in either.

Why not `ssl.SSLSocket`: it hides what it has not sent, and wants an unfinished write repeated with the same bytes.
Where: a `Connection` that came through a TLS port has one, and calls it in place of its socket.

What it holds: a memory BIO keeps the capacity of its fullest moment for as long as it lives, so both are filled by one
record at a time. At most a connection then holds one record that is being read, one behind it, and one decrypted to
look at; docs/internals/memory-ceiling.md has the measured figures.
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

# A TLS record holds at most 16 KiB of plaintext, and on the wire at most 256 bytes and a header of five more.
TLS_PLAIN_BYTES: Final = 16 * KIB
TLS_RECORD_BYTES: Final = TLS_PLAIN_BYTES + 256 + 5
# Encrypted at a time, just before it is sent.
TLS_WRITE_BYTES: Final = 256 * KIB


class TlsLayer:
    """One connection's TLS, from the handshake on."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self.established = False
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ahead = memoryview(b"")  # decrypted to look at, not yet received
        self._ended = False  # the client said goodbye behind bytes that were received
        self._ciphertext: deque[Buffer] = deque()  # encrypted, not yet taken by the socket
        self._plain_bytes = 0  # what it was before encryption; counted as sent when the last of it is

    def pending(self) -> bool:
        """Whether anything waits inside TLS: decrypted bytes, ciphertext not yet looked at, a goodbye."""
        return bool(self._ahead) or self._ended or self._ssl.pending() > 0 or self._incoming.pending > 0

    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate as `ssl` describes it; None for one that was not shown or not verified."""
        return self._ssl.getpeercert() or None

    def has_output(self) -> bool:
        """Whether encrypted bytes wait for the socket."""
        return bool(self._ciphertext) or self._outgoing.pending > 0

    def handshake(self) -> None:
        """Take one step of the handshake; raises OSError (ssl.SSLError is one) on failure."""
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(TLS_RECORD_BYTES)
            if not data:
                raise ConnectionResetError
            self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
            self.established = True

    def peek(self, buffer: memoryview) -> int:
        """Like `receive` into one buffer of a record's size at most, but the bytes will be received again."""
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
        """Decrypt into the buffers what has come and fits; 0 means that the client closed.

        Raises:
            BlockingIOError: nothing has come. Other OSErrors, ssl.SSLError among them: the connection is lost.
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
        """The rest of a record, or one more; 0 at the end of the stream."""
        if self._ahead:
            nbytes = min(len(buffer), len(self._ahead))
            buffer[:nbytes] = self._ahead[:nbytes]
            self._ahead = self._ahead[nbytes:]
            return nbytes
        while True:
            try:
                # With a buffer to fill, `read` returns how many bytes it put there; the stubs know the other form.
                return self._ssl.read(len(buffer), buffer)  # type: ignore[return-value]
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLWantReadError:
                # It has drained the BIO, so that this never holds more than what is put in now.
                data = self._sock.recv(TLS_RECORD_BYTES)
                if not data:
                    return 0
                self._incoming.write(data)

    def send(self, queue: deque[Buffer], step_bytes: int) -> int:
        """Encrypt and send one step of about `step_bytes`.

        Returns the plaintext bytes whose last ciphertext byte the socket has taken.
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
    """Remove from the queue what goes into one TLS record. Receipts are small, and each record costs as much as ten."""
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
