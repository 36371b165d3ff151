# SPDX-License-Identifier: Apache-2.0
"""One client's socket: its life, why it is muted, and how much may be queued for it.

Why own sockets and not asyncio's transports: those hide their unsent bytes (under TLS all of them). Here every unsent
byte is counted.

Where: `Listener` creates one per accepted socket; `broker.session.Session` is its handler.

Theory of operation
-------------------

    Reading.  See `socket_reader`.
    Writing.  `write` queues responses and `deliver` queues entries; one flush per turn sends them with one gathered
              system call. Bytes count as sent when the socket has taken them, under TLS as ciphertext; then their
              memory is released. `SendQueue` keeps the bytes and their positions; here is how many there may be.
    Muting.   A set of reasons; while it is not empty, the socket is not watched for reading. An unfinished TLS
              handshake is never muted.
    TLS.      See `tls`. Outbound bytes are counted as plaintext until the socket has taken the last of them.
    Closing.  Large objects are released at once, not when the garbage collector finds the cycle of connection and
              session: a thousand unfinished frames of 5 MiB could not wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.units import KIB, NS_PER_MS
from penstock.governance.holds import HoldKind
from penstock.governance.muting import MuteReasons
from penstock.net.send_queue import JOINED_BYTES, PIECE_BYTES, SendQueue, drop_sent, own, send_queued, took_all
from penstock.net.socket_reader import SocketReader
from penstock.net.stopping import Parting
from penstock.net.tls import TLS_WRITE_BYTES, TlsLayer, plain_reason

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.listener import Connections
    from penstock.net.send_queue import Buffer, QueuedEntries
    from penstock.wire.events import Event
    from penstock.wire.frame_reader import FrameReader

# Responses of one turn of the loop that may be queued before the first flush, even without room.
ANSWERS_BYTES_MIN: Final = 64 * KIB
# The memory of a response by `write_shared` besides its own bytes and the references: the callback and its arguments.
ANSWER_BYTES: Final = 512
REFERENCE_BYTES: Final = 8
# Under TLS each connection has its own ciphertext of shared bytes: it encrypts this much at a time, and is charged for
# it as long as it has shared bytes to send.
TLS_SHARED_BYTES: Final = 64 * KIB
# A client that receives nothing for this long, while others wait for outbound memory, counts as stalled.
STALLED_NS: Final = 50 * NS_PER_MS


class Handler(Protocol):
    """Acts on the events of a connection. Called on the loop only."""

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Handle frames, in order. The lease is the request memory of their publishes and must be released."""

    def drained(self) -> None:
        """The connection has room for more entries again."""

    def closed(self, reason: str) -> None:
        """The connection is closed; called exactly once."""


class Connection:
    """One accepted socket."""

    def __init__(
        self, sock: socket.socket, *, connection_id: int, shared: Connections, tls: ssl.SSLContext | None = None
    ) -> None:
        self.id = connection_id
        self.peer = _peer_name(sock)
        self.handler: Handler
        self.is_open = True
        self.closing_reason: str | None = None  # set while the rest is sent
        self._parting: Parting | None = None  # once nothing more is sent than what is queued
        self.muted = MuteReasons()
        self.out_bytes = 0  # unsent, and charged to this connection
        self.wanted_bytes = 1  # the least room that dispatch needs
        self.wanting: object = None  # the consumer that wanted more than there was room for
        self.bytes_in = 0
        self.read_count = 0  # reads that brought bytes; the keep-alive watches it
        self._sock = sock
        self._fd = sock.fileno()
        self._shared = shared
        self._loop = shared.loop
        self._memory = shared.memory
        self._outbound = shared.outbound
        self._clock = shared.clock
        self._tls = TlsLayer(tls, sock) if tls is not None else None
        self._reader = SocketReader(self, shared, sock, self._tls)
        self.queue = SendQueue(shared_bytes=TLS_SHARED_BYTES if tls is not None else 0)
        self._stalled_at_bytes = -1  # `bytes_out` at the last `put_back_if_stalled`
        self._stalled_since_ns = 0
        self._put_back_at_bytes = -1  # `bytes_out` when entries were put back: until it grows, none are queued
        self._flush_scheduled = False
        self._writer_added = False
        self._waits = False  # for room; `drained` must be called
        self._answered = False  # responses were queued since everything was sent
        self._asks_no_more = False  # its client receives no responses, and it is muted for that

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def bytes_out(self) -> int:
        """Bytes that the socket has taken since it was opened."""
        return self.queue.sent_bytes

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate as `ssl` describes it, if it sent one and TLS verified it."""
        return self._tls.certificate() if self._tls is not None else None

    @property
    def writable(self) -> bool:
        """Whether there is room for more, or everything was sent. If not, `drained` is called later."""
        if self.is_open and (not self.out_bytes or self.room_bytes > 0):
            return True
        self._waits = True
        return False

    @property
    def frames(self) -> FrameReader:
        """The reader that cuts this client's stream."""
        return self._reader.frames

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and not handled yet: of an unfinished frame, or of waiting commands."""
        return self._reader.frames.held_bytes

    @property
    def refused_by(self) -> HoldKind:
        """The hold while it is muted for request memory: on bytes, or on requests to be answered."""
        return self._memory.refused_by(self.id)

    @property
    def room_bytes(self) -> int:
        """How many more bytes of entries may be queued; 0 when the connection is closed."""
        return self._outbound.room_bytes(self) if self.is_open else 0

    def takes_entries(self) -> bool:
        """Return whether dispatch may queue entries now; if not, `drained` is called when it may."""
        if not self.is_open:
            return False
        stalled = self.queue.unsent_bytes and self._put_back_at_bytes == self.queue.sent_bytes
        if not stalled and self._outbound.room_bytes(self) >= self.wanted_bytes:
            return True
        self._wait()
        return False

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """Dispatch has an entry of `nbytes` for a consumer and no room for it.

        `drained` is called when there is room.
        """
        if self.is_open:
            self.wanted_bytes, self.wanting = nbytes, wanting
            self._wait()

    def _wait(self) -> None:
        self._waits = True
        if not self.out_bytes:  # Otherwise the next flush decides whether it still waits.
            self._outbound.wait(self)
            self._shared.outbound_freed()

    def go_on(self) -> None:
        """There is room now: call `drained`."""
        self._waits = False
        self.handler.drained()

    def start(self) -> None:
        """Watch the socket."""
        self._loop.add_reader(self._fd, self._reader.on_readable)

    def close(self, reason: str) -> None:
        """Close the socket now; unsent bytes are discarded."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._fd)
        if self._writer_added:
            self._loop.remove_writer(self._fd)
        self._discharge(self.out_bytes)
        self._outbound.forget(self)
        self.wanting = None
        for one in self.queue.clear():
            one.passed()
        self._sock.close()
        self._reader.close()
        self._tls = None
        self._shared.gone(self)
        handler = self.handler
        del self.handler, self._reader
        handler.closed(reason)

    def close_after_flush(self, reason: str) -> None:
        """Send what is queued, then close. Nothing more is read."""
        if not self.is_open:
            return
        self.closing_reason = reason
        self._loop.remove_reader(self._fd)
        self._reader.close()
        self._memory.forget(self.id, self._clock.monotonic_ns())
        self._shared.wake()
        self.flush()

    def part(self, reason: str) -> None:
        """Send what is queued, then end our side, and close when the client has ended its own (see `stopping`)."""
        if self.is_open and self.closing_reason is None:
            self._parting = Parting(self._sock, self._loop, self._shared.current_arena)
            self.close_after_flush(reason)

    def admit(self) -> None:
        """The client is authenticated, or need not be: allow frames of full size."""
        if self.is_open:
            self._reader.frames.admitted = True

    def assign(self, tenant: str) -> None:
        """Count the request memory of this connection for this tenant."""
        if self.is_open:
            self._memory.assign(self.id, tenant)

    # -- muting -------------------------------------------------------------------------------------------------------

    def mute(self, reason: HoldKind, owner: str | None = None) -> None:
        """Stop reading for this reason."""
        now_ns = self._clock.monotonic_ns()
        if self.muted.add(reason, owner, now_ns=now_ns) and self.is_open:
            self._loop.remove_reader(self._fd)
        if reason is not HoldKind.REQUEST_MEMORY:
            # It could not use a turn, so it gives up its place in the queue for request memory, and asks again when the
            # last other reason is gone.
            self.muted.discard(HoldKind.REQUEST_MEMORY, now_ns=now_ns)
            self._memory.pause(self.id, now_ns, excused=reason is not HoldKind.OUTBOUND)
            self._shared.wake()

    def unmute(self, reason: HoldKind, owner: str | None = None) -> None:
        """Remove one reason; after the last one, read on at once.

        Reading at once rather than on the next readiness matters under TLS: decrypted bytes may wait inside while the
        socket itself has nothing more to read (KAFKA-13559).
        """
        now_ns = self._clock.monotonic_ns()
        if self.muted.discard(reason, owner, now_ns=now_ns) and self.is_open and self.closing_reason is None:
            self._loop.add_reader(self._fd, self._reader.on_readable)
            self._loop.call_soon(self._reader.on_readable)

    # -- writing ------------------------------------------------------------------------------------------------------

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        """Queue messages for consumers of this connection. One flush per turn sends everything that was queued."""
        if not self.is_open:
            return
        self.wanted_bytes, self.wanting = 1, None
        room_bytes = max(0, self.room_bytes - nbytes) if self._writer_added else None
        self._queued(nbytes + self.queue.add_entries(buffers, nbytes, entries, room_bytes=room_bytes))

    def pass_on(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue what a broker has sent, and send it at once: nothing else would go with it.

        Bytes that the socket does not take are cut into pieces, each of which is freed when it is sent.
        """
        if not self.is_open:
            return
        if self._writer_added:
            buffers = own(map(memoryview, buffers))
        self.wanted_bytes, self.wanting = 1, None
        self.queue.add(buffers, nbytes)
        self.out_bytes += nbytes
        self._outbound.charge(nbytes)
        if not self._writer_added:
            self.flush()
            if self._writer_added:
                self.queue.copy_if(_is_large)

    def write(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue responses. A client that does not receive its responses is muted until it does."""
        if not self.is_open:
            return
        self.queue.add_response(buffers, nbytes)
        self._queued(nbytes)
        self._answered = True
        if self.out_bytes >= ANSWERS_BYTES_MIN and not self.room_bytes:
            self._ask_no_more()

    def _ask_no_more(self) -> None:
        self._asks_no_more = True
        self.mute(HoldKind.OUTBOUND)

    def _queued(self, charged_bytes: int) -> None:
        self.out_bytes += charged_bytes
        self._outbound.charge(charged_bytes)
        if not self._flush_scheduled and not self._writer_added:
            self._flush_scheduled = True
            self._shared.flush_soon(self.flush)

    def write_shared(
        self, head: bytes, shared: Sequence[Buffer], shared_bytes: int, passed: Callable[[], None]
    ) -> None:
        """Queue a response: a head of its own, followed by buffers that other connections send, too.

        The owner of the shared buffers is charged for them until `passed` is called: when the socket has taken the last
        byte of the response, or is closed.
        """
        if not self.is_open:
            passed()
            return
        kept_bytes = ANSWER_BYTES + REFERENCE_BYTES * len(shared)
        self._queued(kept_bytes)
        self.write((head,), len(head))
        if shared:
            self._queued(self.queue.add_shared(shared, shared_bytes))
        self.queue.when_sent(passed, kept_bytes)

    def write_frame(self, frame: bytes) -> None:
        """Queue one frame."""
        self.write((frame,), len(frame))

    def flush(self) -> None:
        """Send what the socket takes now; the rest when it takes more."""
        self._flush_scheduled = False
        self.queue.end_joining()
        if not self.is_open:
            return
        try:
            while self._has_output() and self._send_some():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(plain_reason(error))
            return
        self._after_flush()

    def _has_output(self) -> bool:
        if self._tls is None:
            return bool(self.queue.buffers)
        return self._tls.has_output() or (self._tls.established and bool(self.queue.buffers))

    def _after_flush(self) -> None:
        blocked = self._has_output()
        if blocked != self._writer_added:
            self._writer_added = blocked
            if blocked:
                self._loop.add_writer(self._fd, self.flush)
            else:
                self._loop.remove_writer(self._fd)
        kept_bytes = self.queue.after_flush(self.room_bytes if blocked else None)
        if kept_bytes:
            self.out_bytes += kept_bytes
            self._outbound.charge(kept_bytes)
        if not blocked and self.closing_reason is not None:
            if self._parting is None:
                self.close(self.closing_reason)
            else:
                self._parting.begin(partial(self.close, self.closing_reason))
        else:
            self._look_for_room(blocked=blocked)

    def put_back_if_stalled(self, now_ns: int) -> int:
        """Put back entries that are queued for a client that has been stalled for a while; return their bytes.

        Called repeatedly.
        """
        if self._stalled_at_bytes != self.bytes_out or not self._writer_added:
            self._stalled_at_bytes, self._stalled_since_ns = self.bytes_out, now_ns
            return 0
        return self._put_back() if self.queue.entries and now_ns - self._stalled_since_ns >= STALLED_NS else 0

    def stalled_ns(self, now_ns: int) -> int:
        """Return for how long the client has received nothing although something is queued for it."""
        stalled = self._writer_added and self._stalled_at_bytes == self.bytes_out
        return now_ns - self._stalled_since_ns if stalled else 0

    def _put_back(self) -> int:
        nbytes = self.queue.put_back()
        if nbytes:
            self._discharge(nbytes)
            self._waits, self._put_back_at_bytes = True, self.bytes_out
            self._shared.outbound_freed()
        return nbytes

    def _look_for_room(self, *, blocked: bool) -> None:
        """After a flush, decide whether to unmute the client and whether dispatch to it may continue."""
        outbound = self._outbound
        if not self.out_bytes:
            self._answered = False
            if outbound.ends_turn(self):
                self._shared.outbound_freed()
        if not (self._waits or self._asks_no_more or (blocked and self._answered)):
            return
        room_bytes = outbound.room_bytes(self)
        little = not self.out_bytes or room_bytes >= self.out_bytes
        if self._asks_no_more:
            if little or self.out_bytes < JOINED_BYTES // 2:
                self._asks_no_more = False
                self.unmute(HoldKind.OUTBOUND)
        elif blocked and self._answered and not room_bytes and self.out_bytes >= JOINED_BYTES:
            self._ask_no_more()
        if self._waits:
            if little and room_bytes >= self.wanted_bytes:
                self.go_on()
            elif not self.out_bytes:
                self._wait()

    def _send_some(self) -> bool:
        """Send with one system call; returns whether it may take more. Raises BlockingIOError if it takes none."""
        queue, takes_more = self.queue, True
        if self._tls is None:
            before = len(queue.buffers)
            if before == 1:  # as when a receipt is sent alone
                nbytes = self._sock.send(queue.buffers[0])
                if nbytes == len(queue.buffers[0]):
                    queue.buffers.popleft()
                else:
                    drop_sent(queue.buffers, nbytes)
                takes_more = False
            else:
                nbytes = send_queued(self._sock, queue.buffers)
                takes_more = took_all(queue.buffers, before)
        else:
            nbytes = self._tls.send(queue.buffers, TLS_SHARED_BYTES if queue.has_shared else TLS_WRITE_BYTES)
        if nbytes == 0:
            return takes_more
        self._discharge(queue.sent(nbytes))
        while queue.passing and queue.passing[0].position <= queue.sent_bytes:
            one = queue.passing.popleft()
            self._discharge(one.kept_bytes)
            one.passed()
        return takes_more

    def _discharge(self, nbytes: int) -> None:
        self.out_bytes -= nbytes
        self._outbound.release(nbytes)
        if len(self._outbound):
            self._shared.outbound_freed()


def _is_large(buffer: Buffer) -> bool:
    return len(buffer) > PIECE_BYTES


def _peer_name(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "unknown"
    # Of a Unix socket it is a text: another broker of this machine.
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "broker"
