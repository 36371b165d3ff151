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
    Writing.  `write` queues buffers; one flush a turn sends them with one gathered system call. Passed on is what the
              socket has taken, under TLS as ciphertext: whoever lent memory to the queue gets it back then.
    Muting.   A set of reasons; not empty means that the socket is not watched for reading. An unfinished TLS handshake
              reads no frame and asks for no memory, so it is never muted (KIP-72, "Request throttling"). Without memory
              we look at what is next: commands that are carried out at once leave nothing behind, so they are read all
              the same, up to the first publish. A consumer is not muted because publishers flood.
    TLS.      See `tls`. Outbound bytes are accounted as plaintext until the socket has taken the last of them.
    Closing.  Whatever can be large is let go at once, not when the garbage collector finds the cycle of connection and
              session: a thousand unfinished frames of 5 MiB would not wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.units import KIB, MIB
from penstock.governance.muting import MuteReason, MuteReasons
from penstock.net.gather import send_queued
from penstock.net.tls import TLS_PLAIN_BYTES, TlsLayer
from penstock.wire.connection import FrameReader, ProtocolError
from penstock.wire.events import PublishRun
from penstock.wire.layouts import SEND_START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.gather import Buffer
    from penstock.net.listener import Connections
    from penstock.wire.events import Event

log = logging.getLogger(__name__)

# One read fills at most this much. Larger reads make longer runs and fewer disk writes.
ARENA_BYTES: Final = 512 * KIB
# Unsent bytes of one connection at which dispatch to it stops, and below which it goes on.
OUTBOUND_BYTES_MAX: Final = 4 * MIB
OUTBOUND_BYTES_MIN: Final = 64 * KIB
# How far we look for commands that need no memory; under TLS what was looked at must be kept, so: one record.
PEEK_BYTES: Final = TLS_PLAIN_BYTES
# A TLS handshake begins like this, and no frame does that is not far too large.
TLS_START: Final = b"\x16\x03"
# The reader of a connection that reads no more.
_NO_FRAMES: Final = FrameReader(frame_bytes_max=0)


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
        self.read_bytes_max = ARENA_BYTES  # whoever publishes at a bounded rate is read in smaller pieces
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
        self._passing: deque[tuple[int, Callable[[], None]]] = deque()  # by how many bytes out: whom to tell
        self._flush_scheduled = False
        self._writer_added = False
        self._closing_reason: str | None = None
        self._stalled = False  # unsent bytes passed the share, `drained` is owed
        self._open = True
        self._tls = TlsLayer(tls, sock) if tls is not None else None

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the socket still exists."""
        return self._open

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate as `ssl` describes it, if it showed one and TLS verified it."""
        return self._tls.certificate() if self._tls is not None else None

    @property
    def writable(self) -> bool:
        """Whether dispatch may queue more for this peer."""
        return self.room_bytes > 0

    @property
    def room_bytes(self) -> int:
        """How much of its share of the outbound bytes this connection has left; 0 when it is gone."""
        return max(0, self._outbound.share_bytes() - self.out_bytes) if self._open else 0

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
        passing, self._passing = self._passing, deque()
        for _, passed in passing:
            passed()
        self._sock.close()
        self._reader = _NO_FRAMES
        self._tls = None
        self._shared.gone(self)
        handler = self.handler
        del self.handler
        handler.closed(reason)

    def close_after_flush(self, reason: str) -> None:
        """Send what is queued, then close. Nothing more is read."""
        if not self._open:
            return
        self._closing_reason = reason
        self._loop.remove_reader(self._fd)
        self._reader = _NO_FRAMES
        self._memory.forget(self.id, self._clock.monotonic_ns())
        self._shared.wake()
        self._flush()

    def assign(self, tenant: str) -> None:
        """Count the request memory this client uses as this tenant's."""
        if self._open:
            self._memory.assign(self.id, tenant)

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
        try:
            if self._tls is not None and not self._tls.established:
                self._handshake()
            else:
                self._read()
        except Exception:
            # Our own fault, and whatever was half done belongs to this connection: it ends, the others go on.
            log.exception("connection %s failed", self.peer)
            self.close("internal error; the broker's log has it")

    def _read(self) -> None:
        reader = self._reader
        wanted = min(ARENA_BYTES, max(self.read_bytes_max, reader.missing_bytes))
        granted = self._memory.grant(self.id, wanted, reader.missing_bytes, self._clock.monotonic_ns())
        if granted == 0:
            if reader.held_bytes or not self._read_commands():
                self.mute(MuteReason.REQUEST_MEMORY)
            return
        try:
            nbytes = self._receive(_clip(reader.buffers(self._arena), granted))
        except (BlockingIOError, InterruptedError):
            self._settle(0, 0, 0)
        except OSError as error:
            self.close(_plain_reason(error))
        else:
            if nbytes == 0:
                self.close("closed by the client")
            else:
                self._on_bytes(nbytes)
                self._read_on()

    def _receive(self, buffers: list[memoryview]) -> int:
        if self._tls is not None:
            return self._tls.receive(buffers)
        if len(buffers) == 1:
            return self._sock.recv_into(buffers[0])
        return self._sock.recvmsg_into(buffers)[0]

    def _on_bytes(self, nbytes: int) -> None:
        events = self._events(nbytes)
        if events is None:
            return
        pending_bytes = pending_requests = 0
        for event in events:
            if type(event) is PublishRun:
                pending_bytes += len(event.data)
                pending_requests += len(event.offsets)
        lease = self._settle(nbytes, pending_bytes, pending_requests)
        if events:
            self.handler.received(events, lease)

    def _events(self, nbytes: int) -> list[Event] | None:
        """What the bytes that just came mean; None if they mean nothing, and the connection is closed."""
        self.bytes_in += nbytes
        self.read_count += 1
        try:
            return self._reader.received(self._arena, nbytes)
        except ProtocolError as error:
            if self.read_count == 1 and self._tls is None and bytes(self._arena[:2]) == TLS_START:
                self.close("the client speaks TLS, and this is the port for clients without; see brokerServicePortTls")
            else:
                self.close(f"protocol error: {error}")
            return None

    def _read_commands(self) -> bool:
        """Without memory, carry out the commands before the next publish; False: that comes first, or nothing whole.

        Called at the boundary of two frames. Whole commands are read into the arena and leave nothing behind, so they
        need no grant. True puts us out of the queue for memory: we are no reader in need.
        """
        try:
            nbytes = self._peek(self._arena[:PEEK_BYTES])
        except (BlockingIOError, InterruptedError):
            return self._needs_no_memory()
        except OSError as error:
            self.close(_plain_reason(error))
            return True
        if nbytes == 0:
            self.close("closed by the client")
            return True
        commands_bytes = _commands_bytes(self._arena[:nbytes])
        if commands_bytes == 0:
            return False
        self._receive([self._arena[:commands_bytes]])
        events = self._events(commands_bytes)
        if events is not None:
            if any(type(event) is PublishRun for event in events):
                self.close("protocol error: a SEND that does not begin with its type")
                return True
            self.handler.received(events, None)
        return self._needs_no_memory()

    def _peek(self, buffer: memoryview) -> int:
        if self._tls is not None:
            return self._tls.peek(buffer)
        return self._sock.recv_into(buffer, len(buffer), socket.MSG_PEEK)

    def _needs_no_memory(self) -> bool:
        if self._open:
            self._memory.pause(self.id, self._clock.monotonic_ns())
            self._shared.wake()
            self._read_on()
        return True

    def _read_on(self) -> None:
        """Decrypted bytes may wait inside; the socket may never become readable for them (KIP-72, hasBytesBuffered)."""
        if self._tls is not None and self._tls.pending():
            self._loop.call_soon(self._on_readable)

    def _settle(self, read_bytes: int, pending_bytes: int, pending_requests: int) -> Lease | None:
        now_ns = self._clock.monotonic_ns()
        held_bytes = self._reader.held_bytes
        lease = self._memory.settle(self.id, read_bytes, held_bytes, pending_bytes, pending_requests, now_ns)
        if self._memory.waiting:
            self._shared.wake()
        return lease

    def _handshake(self) -> None:
        tls = self._tls
        assert tls is not None
        try:
            tls.handshake()
        except OSError as error:
            with contextlib.suppress(OSError):
                tls.send(self._queue)  # the alert that tells the client why
            self.close(f"TLS handshake failed: {_plain_reason(error)}")
            return
        self._flush()
        if tls.established:
            self._read_on()

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

    def write_until_passed(self, buffers: Sequence[Buffer], nbytes: int, passed: Callable[[], None]) -> None:
        """Queue an answer, and call `passed` once the socket has taken the last of it, or is gone."""
        if not self._open:
            passed()
            return
        self.write(buffers, nbytes)
        self._passing.append((self.bytes_out + self.out_bytes, passed))

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
        except OSError as error:
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
            self._account_sent(self._tls.send(self._queue))
            return
        self._account_sent(send_queued(self._sock, self._queue))

    def _account_sent(self, nbytes: int) -> None:
        if nbytes == 0:
            return
        self.bytes_out += nbytes
        self.out_bytes -= nbytes
        self._outbound.used_bytes -= nbytes
        if self.out_bytes == 0:
            self._outbound.busy -= 1
        while self._passing and self._passing[0][0] <= self.bytes_out:
            self._passing.popleft()[1]()


def _commands_bytes(view: memoryview) -> int:
    """How long the whole frames at its front are, up to the first that is a SEND. Says nothing about their validity."""
    pos = 0
    while True:
        stop = pos + 4 + int.from_bytes(view[pos : pos + 4], "big")
        # Ten bytes tell the type; a command without any is invalid, and shorter.
        if len(view) < pos + 10 or stop > len(view) or bytes(view[pos + 8 : pos + 10]) == SEND_START:
            return pos
        pos = stop


def _clip(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """The same buffers, `nbytes` long together at most."""
    first = buffers[0]
    if len(first) >= nbytes:
        return [first[:nbytes]]
    if len(buffers) == 1:
        return buffers
    return [first, buffers[1][: nbytes - len(first)]]


def _peer_name(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    return f"{host}:{port}"


def _plain_reason(error: Exception) -> str:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset by the client"
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
            return "the client does not speak TLS; see brokerServicePort"
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__
