# SPDX-License-Identifier: Apache-2.0
"""One client's socket: bytes in through a shared arena, bytes out through one accounted queue.

Why own sockets and not asyncio's transports: a transport hands over up to 256 KiB before it can be paused, hides what
it has not sent yet (under TLS entirely), and allocates per read. Here a read asks the request memory first, lands in
one arena that all connections of the loop share, and every unsent byte is known.
Where: `Listener` makes one per accepted socket; `broker.session.Session` is its handler.

Theory of operation
    Reading.  readable -> `RequestMemory.grant` says how many bytes may come (0: the connection is muted and waits its
              turn) -> `recvmsg_into` -> `FrameReader` -> events -> `settle` -> the handler. What the handler keeps
              (publish runs on their way to the disk) stays charged until `release`.
    Writing.  `write` queues buffers; one flush a turn sends them with one gathered system call.
    Muting.   A set of reasons; not empty means that the socket is not watched for reading. An unfinished TLS handshake
              reads no frame and asks for no memory, so it is never muted (KIP-72, "Request throttling").
    TLS.      An `SSLObject` over two memory BIOs. Plaintext is taken only as far as granted, ciphertext is read at most
              one record beyond that, so what TLS holds per connection is bounded. Outbound bytes are encrypted in small
              steps just before they are sent, so they are accounted as plaintext until then.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from penstock.core.units import KIB, MIB
from penstock.governance.muting import MuteReason, MuteReasons
from penstock.wire.connection import FrameReader, ProtocolError
from penstock.wire.events import PublishRun

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.listener import Connections
    from penstock.wire.events import Event

Buffer: TypeAlias = bytes | bytearray | memoryview

# One read fills at most this much. Larger reads make longer runs and fewer disk writes.
ARENA_BYTES: Final = 512 * KIB
# Unsent bytes of one connection at which dispatch to it stops, and below which it goes on.
OUTBOUND_BYTES_MAX: Final = 1 * MIB
OUTBOUND_BYTES_MIN: Final = 64 * KIB
# sendmsg takes at most IOV_MAX (1024 on Linux) buffers.
IOVECS_MAX: Final = 1024
# A TLS record holds at most 16 KiB of plaintext and some overhead.
TLS_RECORD_BYTES: Final = 16 * KIB + 512
TLS_READ_BYTES: Final = 64 * KIB
TLS_WRITE_BYTES: Final = 256 * KIB


class Handler(Protocol):
    """Who acts on what a connection brings. Called on the loop only."""

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Frames came in, in order. The lease is the request memory of their publishes: to be given back."""

    def drained(self) -> None:
        """The connection's unsent bytes fell below its share again."""

    def closed(self, reason: str) -> None:
        """The socket is gone; called exactly once."""


class Outbound:
    """Unsent bytes of all connections, against one budget; sets each connection's share."""

    __slots__ = ("budget_bytes", "busy", "used_bytes")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.busy = 0  # connections with unsent bytes

    def share_bytes(self) -> int:
        """How many unsent bytes one connection may hold before dispatch to it stops.

        The floor lets everybody make progress, so the true bound is the budget plus 64 KiB per connection.
        """
        return max(OUTBOUND_BYTES_MIN, min(OUTBOUND_BYTES_MAX, self.budget_bytes // max(1, self.busy)))


class Connection:
    """One accepted socket."""

    def __init__(
        self, sock: socket.socket, *, connection_id: int, shared: Connections, tls: ssl.SSLContext | None = None
    ) -> None:
        self.id = connection_id
        self.peer = _peer_name(sock)
        self.handler: Handler
        self.muted = MuteReasons()
        self.out_bytes = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.read_count = 0  # reads that brought bytes; the keep-alive looks for movement here
        self._sock = sock
        self._fd = sock.fileno()
        self._shared = shared
        self._loop = shared.loop
        self._arena = shared.arena
        self._memory = shared.memory
        self._outbound = shared.outbound
        self._clock = shared.clock
        self._reader = FrameReader(frame_bytes_max=shared.frame_bytes_max)
        self._queue: deque[Buffer] = deque()
        self._flush_scheduled = False
        self._writer_added = False
        self._closing_reason: str | None = None
        self._stalled = False  # unsent bytes passed the share, `drained` is owed
        self._open = True
        self._tls = _Tls(tls) if tls is not None else None

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the socket still exists."""
        return self._open

    @property
    def writable(self) -> bool:
        """Whether dispatch may queue more for this peer."""
        return self._open and self.out_bytes < self._outbound.share_bytes()

    def start(self) -> None:
        """Watch the socket."""
        self._loop.add_reader(self._fd, self._on_readable)

    def close(self, reason: str) -> None:
        """Drop the socket now; what was not sent is discarded."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        if self._writer_added:
            self._loop.remove_writer(self._fd)
        if self.out_bytes:
            self._outbound.busy -= 1
        self._outbound.used_bytes -= self.out_bytes
        self.out_bytes = 0
        self._queue.clear()
        self._sock.close()
        self._shared.gone(self)
        self.handler.closed(reason)

    def close_after_flush(self, reason: str) -> None:
        """Send what is queued, then close. Nothing more is read."""
        if not self._open:
            return
        self._closing_reason = reason
        self._loop.remove_reader(self._fd)
        self._flush()

    # -- muting -------------------------------------------------------------------------------------------------------

    def mute(self, reason: MuteReason, owner: str | None = None) -> None:
        """Stop reading for this reason."""
        now_ns = self._clock.monotonic_ns()
        if self.muted.add(reason, owner, now_ns=now_ns) and self._open:
            self._loop.remove_reader(self._fd)
        if reason is not MuteReason.REQUEST_MEMORY:
            # It would not use its turn: it gives up its place in the queue for request memory, and asks again when the
            # last other reason is gone.
            self.muted.discard(MuteReason.REQUEST_MEMORY)
            self._memory.pause(self.id, now_ns)
            self._shared.wake()

    def unmute(self, reason: MuteReason, owner: str | None = None) -> None:
        """Take one reason back; the last one gone, read on at once.

        Reading at once rather than on the next readiness matters under TLS: decrypted bytes may wait inside while the
        socket itself has nothing more to say (KAFKA-13559).
        """
        if self.muted.discard(reason, owner) and self._open and self._closing_reason is None:
            self._loop.add_reader(self._fd, self._on_readable)
            self._loop.call_soon(self._on_readable)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if not self._open or self.muted or self._closing_reason is not None:
            return
        if self._tls is not None and not self._tls.established:
            self._handshake()
            return
        reader = self._reader
        granted = self._memory.grant(self.id, ARENA_BYTES, reader.missing_bytes, self._clock.monotonic_ns())
        if granted == 0:
            self.mute(MuteReason.REQUEST_MEMORY)
            return
        try:
            buffers = _clip(reader.buffers(self._arena), granted)
            nbytes = self._receive(buffers, granted)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            self._settle(0, 0, 0)
            return
        except (OSError, ssl.SSLError) as error:
            self.close(_plain_reason(error))
            return
        if nbytes == 0:
            self.close("closed by the client")
            return
        self._on_bytes(nbytes)

    def _receive(self, buffers: list[memoryview], granted: int) -> int:
        if self._tls is not None:
            return self._tls.receive(self._sock, buffers, granted)
        if len(buffers) == 1:
            return self._sock.recv_into(buffers[0])
        return self._sock.recvmsg_into(buffers)[0]

    def _on_bytes(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self.read_count += 1
        try:
            events = self._reader.received(self._arena, nbytes)
        except ProtocolError as error:
            self._settle(nbytes, 0, 0)
            self.close(f"protocol error: {error}")
            return
        pending_bytes = pending_requests = 0
        for event in events:
            if type(event) is PublishRun:
                pending_bytes += len(event.data)
                pending_requests += len(event.offsets)
        lease = self._settle(nbytes, pending_bytes, pending_requests)
        if events:
            self.handler.received(events, lease)
        if self._tls is not None and self._tls.pending() and self._open:
            # Decrypted bytes wait inside; the socket may never become readable for them (KIP-72, hasBytesBuffered).
            self._loop.call_soon(self._on_readable)

    def _settle(self, read_bytes: int, pending_bytes: int, pending_requests: int) -> Lease | None:
        now_ns = self._clock.monotonic_ns()
        held_bytes = self._reader.held_bytes
        lease = self._memory.settle(self.id, read_bytes, held_bytes, pending_bytes, pending_requests, now_ns)
        if self._memory.waiting:
            self._shared.wake()
        return lease

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.handshake(self._sock)
        except (OSError, ssl.SSLError) as error:
            self.close(f"TLS handshake failed: {_plain_reason(error)}")
            return
        self._flush()
        if self._tls.established and self._tls.pending():
            self._loop.call_soon(self._on_readable)

    # -- writing ------------------------------------------------------------------------------------------------------

    def deliver(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue messages for the consumers of this peer; one flush a turn sends everything that was queued in it."""
        if not self._open:
            return
        if self.out_bytes == 0:
            self._outbound.busy += 1
        self._queue.extend(buffers)
        self.out_bytes += nbytes
        self._outbound.used_bytes += nbytes
        if self.out_bytes >= self._outbound.share_bytes():
            self._stalled = True
        if not self._flush_scheduled and not self._writer_added:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue answers. A peer that does not take its answers gets to ask nothing more until it does."""
        self.deliver(buffers, nbytes)
        if self._stalled:
            self.mute(MuteReason.OUTBOUND)

    def write_frame(self, frame: bytes) -> None:
        """Queue one frame."""
        self.write((frame,), len(frame))

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._open:
            return
        try:
            while self._has_output():
                self._send_some()
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ssl.SSLError) as error:
            self.close(_plain_reason(error))
            return
        self._after_flush()

    def _has_output(self) -> bool:
        if self._tls is None:
            return bool(self._queue)
        return self._tls.has_output() or (self._tls.established and bool(self._queue))

    def _after_flush(self) -> None:
        blocked = self._has_output()
        if blocked != self._writer_added:
            self._writer_added = blocked
            if blocked:
                self._loop.add_writer(self._fd, self._flush)
            else:
                self._loop.remove_writer(self._fd)
        if not blocked and self._closing_reason is not None:
            self.close(self._closing_reason)
        elif self._stalled and self.out_bytes < self._outbound.share_bytes() // 2:
            self._stalled = False
            self.unmute(MuteReason.OUTBOUND)
            self.handler.drained()

    def _send_some(self) -> None:
        """One system call's worth; raises BlockingIOError when the socket takes no more."""
        if self._tls is not None:
            self._account_sent(self._tls.send(self._sock, self._queue))
            return
        queue = self._queue
        sent = self._sock.send(queue[0]) if len(queue) == 1 else self._sock.sendmsg(list(islice(queue, IOVECS_MAX)))
        _drop_sent(queue, sent)
        self._account_sent(sent)

    def _account_sent(self, nbytes: int) -> None:
        if nbytes == 0:
            return
        self.bytes_out += nbytes
        self.out_bytes -= nbytes
        self._outbound.used_bytes -= nbytes
        if self.out_bytes == 0:
            self._outbound.busy -= 1


class _Tls:
    """The TLS half of a connection: an SSLObject between two memory BIOs, bounded on both sides."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ciphertext: memoryview | None = None  # encrypted, not yet taken by the socket
        self._plain_bytes = 0  # what it was before encryption; counted as sent when the last of it is
        self.established = False

    def pending(self) -> int:
        """Bytes that wait inside TLS: decrypted ones, and ciphertext not yet looked at."""
        return self._ssl.pending() or self._incoming.pending

    def has_output(self) -> bool:
        """Whether encrypted bytes wait for the socket."""
        return self._ciphertext is not None or self._outgoing.pending > 0

    def handshake(self, sock: socket.socket) -> None:
        """Take one step of the handshake; raises on failure."""
        with contextlib.suppress(BlockingIOError):
            data = sock.recv(TLS_READ_BYTES)
            if not data:
                raise ConnectionResetError("closed by the client")
            self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
            self.established = True

    def receive(self, sock: socket.socket, buffers: list[memoryview], granted: int) -> int:
        """Decrypt at most `granted` bytes into the buffers; 0 means that the client closed."""
        total = self._decrypt(buffers)
        if total < 0:
            return 0
        room = sum(map(len, buffers))
        if total < room:
            try:
                data = sock.recv(min(TLS_READ_BYTES, granted - total + TLS_RECORD_BYTES))
            except BlockingIOError:
                if total == 0:
                    raise
                return total
            if not data:
                return total
            self._incoming.write(data)
            more = self._decrypt(_skip(buffers, total))
            total += max(more, 0)
            if more < 0 and total == 0:
                return 0
        if total == 0:
            raise ssl.SSLWantReadError
        return total

    def _decrypt(self, buffers: list[memoryview]) -> int:
        """Fill the buffers as far as whole records allow; -1 when the peer said goodbye and nothing came before."""
        total = 0
        for buffer in buffers:
            filled = 0
            while filled < len(buffer):
                try:
                    # With a buffer to fill, `read` returns how many bytes it put there; the stubs know the other form.
                    count: int = self._ssl.read(len(buffer) - filled, buffer[filled:])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    return total
                except ssl.SSLZeroReturnError:
                    count = 0
                if count == 0:
                    return total or -1
                filled += count
                total += count
        return total

    def send(self, sock: socket.socket, queue: deque[Buffer]) -> int:
        """Encrypt and send one step; returns the plaintext bytes whose last ciphertext byte the socket has taken."""
        if self._ciphertext is None:
            if self.established:
                self._encrypt(queue)
            self._ciphertext = memoryview(self._outgoing.read())
        if self._ciphertext:
            self._ciphertext = self._ciphertext[sock.send(self._ciphertext) :]
        if self._ciphertext:
            return 0
        self._ciphertext = None
        plain, self._plain_bytes = self._plain_bytes, 0
        return plain

    def _encrypt(self, queue: deque[Buffer]) -> None:
        while queue and self._plain_bytes < TLS_WRITE_BYTES:
            taken = self._ssl.write(memoryview(queue[0])[: TLS_WRITE_BYTES - self._plain_bytes])
            self._plain_bytes += taken
            _drop_sent(queue, taken)


def _clip(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """The same buffers, `nbytes` long together at most."""
    first = buffers[0]
    if len(first) >= nbytes:
        return [first[:nbytes]]
    if len(buffers) == 1:
        return buffers
    return [first, buffers[1][: nbytes - len(first)]]


def _skip(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """The buffers behind their first `nbytes` bytes."""
    rest = []
    for buffer in buffers:
        if nbytes < len(buffer):
            rest.append(buffer[nbytes:])
        nbytes = max(0, nbytes - len(buffer))
    return rest


def _drop_sent(queue: deque[Buffer], nbytes: int) -> None:
    """Remove the first `nbytes` bytes of the queued buffers."""
    while nbytes:
        head = queue[0]
        if nbytes < len(head):
            queue[0] = memoryview(head)[nbytes:]
            return
        nbytes -= len(head)
        queue.popleft()


def _peer_name(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    return f"{host}:{port}"


def _plain_reason(error: Exception) -> str:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset by the client"
    return str(error) or type(error).__name__
