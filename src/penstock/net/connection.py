# SPDX-License-Identifier: Apache-2.0
"""One client's socket: bytes in through a shared arena, bytes out through one accounted queue.

Why own sockets and not asyncio's transports: a transport delivers up to 256 KiB before it can be paused, hides its
unsent bytes (under TLS all of them), and allocates per read. Here a read asks the request memory first and lands in one
arena that all connections of the loop share, and every unsent byte is counted.

Where: `Listener` creates one per accepted socket; `broker.session.Session` is its handler.

Theory of operation
-------------------

    Reading.  Readable → `RequestMemory.grant` says how many bytes may be read (0: the connection is muted and waits) →
              `recvmsg_into` → `FrameReader` → events → `settle` → the handler. What the handler keeps (publish runs
              that wait for the disk) stays charged until `release`.
    Commands. They are decoded and handled one by one. Handling one may mute the connection; then the next one stays
              in its twenty bytes. Bytes that were read and are not handled yet are charged as held, and are handled
              before the next read. `CommandScheduler` limits the commands of one turn of the loop, so a client that
              sends many delays only itself.
    Writing.  `write` queues responses and `deliver` queues entries; one flush per turn sends them with one gathered
              system call. Bytes count as sent when the socket has taken them, under TLS as ciphertext; then their
              memory is released. Entries are queued as views of the run that was read or published. Those that the
              socket does not take at once are copied, so a waiting entry never keeps a run in memory. Bytes that
              several connections send (`write_shared`) exist once and are charged where they are kept; a connection is
              charged for the reference.
    Muting.   A set of reasons; while it is not empty, the socket is not watched for reading. An unfinished TLS
              handshake reads no frames and needs no request memory, so it is never muted (KIP-72, "Request
              throttling"). Without memory, the next bytes are peeked: commands that are handled at once need no memory,
              so they are read up to the first publish. So a flood of publishes does not mute consumers. Complete frames
              may use the reserve; while a small frame is not complete, the connection peeks again a little later.
    TLS.      See `tls`. Outbound bytes are counted as plaintext until the socket has taken the last of them.
    Closing.  Large objects are released at once, not when the garbage collector finds the cycle of connection and
              session: a thousand unfinished frames of 5 MiB could not wait for that.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.core.units import KIB, NS_PER_MS
from penstock.governance.muting import MuteReason, MuteReasons
from penstock.governance.request_memory import LENGTH_BYTES, USEFUL_BYTES
from penstock.net.send_queue import own, send_queued, without
from penstock.net.tls import TLS_PLAIN_BYTES, TLS_WRITE_BYTES, TlsLayer
from penstock.wire.events import Command, PublishRun
from penstock.wire.frame_reader import FrameReader, ProtocolError
from penstock.wire.layouts import SEND_START

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.listener import Connections
    from penstock.net.send_queue import Buffer
    from penstock.wire.events import Event

log = logging.getLogger(__name__)

# The size of the largest read. Larger reads make longer runs and fewer disk writes.
ARENA_BYTES: Final = 512 * KIB
# The size of the first read, and of a read after one that brought more commands than one turn handles (the others take
# memory) or very small publishes (their columns take several times their bytes). Reads of other publishers fill it, and
# then their reads grow.
FIRST_READ_BYTES: Final = 16 * KIB
_READ_GROWTH: Final = 4
# The most acknowledgements and flow permits that are handled at once.
EVENTS_MAX: Final = 128
# Small responses that wait for the socket are joined into buffers of this size: as separate objects they would take
# three times the counted bytes.
JOINED_BYTES: Final = 8 * KIB
_JOIN_BYTES_MAX: Final = KIB
# Responses of one turn of the loop that may be queued before the first flush, even without room.
ANSWERS_BYTES_MIN: Final = 64 * KIB
# A partly sent buffer is copied if it keeps more sent bytes than this in memory.
SENT_BYTES_KEPT: Final = 8 * KIB
# How many bytes are peeked for commands that need no memory; under TLS peeked bytes must be kept, so: one record.
PEEK_BYTES: Final = TLS_PLAIN_BYTES
# The memory of a response by `write_shared` besides its own bytes and the references: the callback and its arguments.
ANSWER_BYTES: Final = 512
REFERENCE_BYTES: Final = 8
# Under TLS each connection has its own ciphertext of shared bytes: it encrypts this much at a time, and is charged for
# it as long as it has shared bytes to send.
TLS_SHARED_BYTES: Final = 64 * KIB
# Complete frames up to this size are read from the reserve: a batch of a Pulsar client is 128 KiB by default. The
# receive buffer holds them, see `listener.SOCKET_RECEIVE_BYTES`. Under TLS only one record can be peeked.
WHOLE_BYTES_MAX: Final = 192 * KIB
# After this time a connection without memory peeks again for the rest of such a frame; it doubles each time.
LOOK_AGAIN_S: Final = 0.02
LOOK_AGAIN_S_MAX: Final = 1.0
# The first bytes of a TLS handshake. A frame that begins like this would be far too large.
TLS_START: Final = b"\x16\x03"
# A client that receives nothing for this long, while others wait for outbound memory, counts as stalled.
STALLED_NS: Final = 50 * NS_PER_MS
# The frame reader of a closed connection.
_NO_FRAMES: Final = FrameReader(frame_bytes_max=0)


class Handler(Protocol):
    """Acts on the events of a connection. Called on the loop only."""

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Handle frames, in order. The lease is the request memory of their publishes and must be released."""

    def drained(self) -> None:
        """The connection has room for more entries again."""

    def closed(self, reason: str) -> None:
        """The connection is closed; called exactly once."""


class QueuedEntries(Protocol):
    """Entries that were queued together, while they are not all sent."""

    def compact(self) -> None:
        """They were not all sent in the turn of the loop in which they were queued."""

    def put_back(self, taken_bytes: int) -> int:
        """Take back the entries behind `taken_bytes`; return how many bytes of these entries cannot be taken back."""


class _Passing(NamedTuple):
    """A callback for when `position` bytes in all have been sent, and the bytes that are charged until then."""

    position: int
    passed: Callable[[], None]
    kept_bytes: int


class Connection:
    """One accepted socket."""

    def __init__(
        self, sock: socket.socket, *, connection_id: int, shared: Connections, tls: ssl.SSLContext | None = None
    ) -> None:
        self.id = connection_id
        self.peer = _peer_name(sock)
        self.handler: Handler
        self.muted = MuteReasons()
        self.out_bytes = 0  # unsent, and charged to this connection
        self.wanted_bytes = 1  # the least room that dispatch needs
        self.wanting: object = None  # the consumer that wanted more than there was room for
        self.bytes_in = 0
        self.bytes_out = 0
        self.read_count = 0  # reads that brought bytes; the keep-alive watches it
        self.read_bytes_max = ARENA_BYTES  # smaller for publishers with a rate limit
        self._sock = sock
        self._fd = sock.fileno()
        self._shared = shared
        self._loop = shared.loop
        self._arena = shared.arena
        self._memory = shared.memory
        self._outbound = shared.outbound
        self._clock = shared.clock
        self._reader = FrameReader(frame_bytes_max=shared.frame_bytes_max, bounds=shared.bounds)
        self._turns = shared.turns
        self._read_bytes = FIRST_READ_BYTES
        self._waits_for_turn = False
        self._joined: bytearray | None = None  # the last buffer of the queue, while small responses may be added to it
        self._queue: deque[Buffer] = deque()
        self._queued = 0  # the number of buffers that were ever queued
        self._unsent_bytes = 0  # all of the queue, shared bytes included
        self._borrowed: list[tuple[int, int]] = []  # ranges of buffers that may be views of runs
        self._queued_entries: deque[tuple[int, int, QueuedEntries]] = deque()  # ranges of bytes out
        self._shared_runs: deque[tuple[int, int]] = deque()  # ranges of bytes out that are not charged here
        self._passing: deque[_Passing] = deque()
        self._stalled_at_bytes = -1  # `bytes_out` at the last `put_back_if_stalled`
        self._stalled_since_ns = 0
        self._put_back_at_bytes = -1  # `bytes_out` when entries were put back: until it grows, none are queued
        self._flush_scheduled = False
        self._writer_added = False
        self._closing_reason: str | None = None
        self._waits = False  # for room; `drained` must be called
        self._answered = False  # responses were queued since everything was sent
        self._asks_no_more = False  # its client receives no responses, and it is muted for that
        self._open = True
        self._tls = TlsLayer(tls, sock) if tls is not None else None
        self._look_again_s = 0.0  # the delay of the last timer for `_look_again`
        self._looking: asyncio.TimerHandle | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the socket is open."""
        return self._open

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate as `ssl` describes it, if it sent one and TLS verified it."""
        return self._tls.certificate() if self._tls is not None else None

    @property
    def writable(self) -> bool:
        """Whether there is room for more, or everything was sent. If not, `drained` is called later."""
        if self._open and (not self.out_bytes or self.room_bytes > 0):
            return True
        self._waits = True
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and not handled yet: of an unfinished frame, or of waiting commands."""
        return self._reader.held_bytes

    @property
    def room_bytes(self) -> int:
        """How many more bytes of entries may be queued; 0 when the connection is closed."""
        return self._outbound.room_bytes(self) if self._open else 0

    def takes_entries(self) -> bool:
        """Return whether dispatch may queue entries now; if not, `drained` is called when it may."""
        if not self._open:
            return False
        stalled = self._unsent_bytes and self._put_back_at_bytes == self.bytes_out
        if not stalled and self._outbound.room_bytes(self) >= self.wanted_bytes:
            return True
        self._wait()
        return False

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """Dispatch has an entry of `nbytes` for a consumer and no room for it.

        `drained` is called when there is room.
        """
        if self._open:
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
        self._loop.add_reader(self._fd, self._on_readable)

    def close(self, reason: str) -> None:
        """Close the socket now; unsent bytes are discarded."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        if self._writer_added:
            self._loop.remove_writer(self._fd)
        self._discharge(self.out_bytes)
        self._outbound.forget(self)
        self._unsent_bytes = 0
        self._queue.clear()
        self._borrowed.clear()
        self._queued_entries.clear()
        self._shared_runs.clear()
        self.wanting = None
        passing, self._passing = self._passing, deque()
        for one in passing:
            one.passed()
        self._sock.close()
        self._reader = _NO_FRAMES
        self._tls = None
        if self._looking is not None:
            self._looking.cancel()
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

    def admit(self) -> None:
        """The client is authenticated, or need not be: allow frames of full size."""
        if self._open:
            self._reader.admitted = True

    def assign(self, tenant: str) -> None:
        """Count the request memory of this connection for this tenant."""
        if self._open:
            self._memory.assign(self.id, tenant)

    # -- muting -------------------------------------------------------------------------------------------------------

    def mute(self, reason: MuteReason, owner: str | None = None) -> None:
        """Stop reading for this reason."""
        now_ns = self._clock.monotonic_ns()
        if self.muted.add(reason, owner, now_ns=now_ns) and self._open:
            self._loop.remove_reader(self._fd)
        if reason is not MuteReason.REQUEST_MEMORY:
            # It could not use a turn, so it gives up its place in the queue for request memory, and asks again when the
            # last other reason is gone.
            self.muted.discard(MuteReason.REQUEST_MEMORY)
            self._memory.pause(self.id, now_ns, excused=reason is not MuteReason.OUTBOUND)
            self._shared.wake()

    def unmute(self, reason: MuteReason, owner: str | None = None) -> None:
        """Remove one reason; after the last one, read on at once.

        Reading at once rather than on the next readiness matters under TLS: decrypted bytes may wait inside while the
        socket itself has nothing more to read (KAFKA-13559).
        """
        if self.muted.discard(reason, owner) and self._open and self._closing_reason is None:
            self._loop.add_reader(self._fd, self._on_readable)
            self._loop.call_soon(self._on_readable)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def _may_act(self) -> bool:
        return self._open and not self.muted and self._closing_reason is None

    @property
    def _is_bulky(self) -> bool:
        """Whether the next read may take long: a large read, or a TLS handshake. Other reads do not wait for those."""
        return (
            self._read_bytes > FIRST_READ_BYTES
            or self._reader.missing_bytes > FIRST_READ_BYTES
            or (self._tls is not None and not self._tls.established)
        )

    def _on_readable(self) -> None:
        if self._waits_for_turn or not self._may_act:
            return
        if self._is_bulky and not self._turns.may_read():
            self._wait_for_turn()
            return
        try:
            if self._reader.whole:
                self._carry_out(0)
            elif self._tls is not None and not self._tls.established:
                self._handshake()
            else:
                self._read()
        except Exception:
            # A bug of penstock. Unfinished work belongs to this connection: close it, the others continue.
            log.exception("connection %s failed", self.peer)
            self.close("internal error; the broker's log has it")

    def take_turn(self) -> None:
        """Continue with commands that were read, or with the next read."""
        self._waits_for_turn = False
        self._on_readable()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._turns.wait(self)

    def _read(self) -> None:
        reader = self._reader
        wanted = min(ARENA_BYTES, max(min(self.read_bytes_max, self._read_bytes), reader.missing_bytes))
        granted = self._memory.grant(self.id, wanted, reader.missing_bytes, self._clock.monotonic_ns())
        if granted == 0:
            if not reader.held_bytes and self._read_commands():
                return
            self._look_again_s = 0.0
            granted = self._look_ahead()
            if granted == 0:
                self.mute(MuteReason.REQUEST_MEMORY)
                return
        self._read_granted(granted, wanted)

    def _read_granted(self, granted: int, wanted: int) -> None:
        try:
            nbytes = self._receive(_clip(self._reader.buffers(self._arena), granted))
        except (BlockingIOError, InterruptedError):
            self._settle(0, ())
        except OSError as error:
            self.close(_plain_reason(error))
        else:
            if nbytes == 0:
                self.close("closed by the client")
            else:
                self._on_bytes(nbytes, wanted)

    def _receive(self, buffers: list[memoryview]) -> int:
        if self._tls is not None:
            return self._tls.receive(buffers)
        if len(buffers) == 1:
            return self._sock.recv_into(buffers[0])
        return self._sock.recvmsg_into(buffers)[0]

    def _receive_all(self, peeked: memoryview) -> None:
        """Receive bytes that were peeked, all of them: a socket may return fewer at once than it has."""
        while peeked:
            nbytes = self._receive([peeked])
            assert nbytes, "bytes that were peeked are there"
            peeked = peeked[nbytes:]

    def _on_bytes(self, nbytes: int, wanted: int) -> None:
        reader, taken = self._reader, int(self._turns.take(0))
        self._count(nbytes)
        try:
            events = reader.received(self._arena, nbytes, commands_max=taken, events_max=EVENTS_MAX)
        except ProtocolError as error:
            self._close_for(error)
            return
        if reader.whole or any(type(event) is PublishRun and event.is_tiny for event in events):
            self._read_bytes = FIRST_READ_BYTES
        elif nbytes >= wanted:
            self._read_bytes = min(ARENA_BYTES, _READ_GROWTH * self._read_bytes)
        lease = self._settle(nbytes, events)
        if events:
            self.handler.received(events, lease)
        self._carry_out(taken)

    def _carry_out(self, taken: int) -> None:
        """Handle read commands one by one, as far as this turn allows; `taken` of them were handled already."""
        reader = self._reader
        settled_bytes = reader.held_bytes
        while reader.whole and self._may_act:
            if not self._turns.take(taken):
                self._wait_for_turn()
                break
            taken += 1
            try:
                events = reader.more(commands_max=1, events_max=EVENTS_MAX)
            except ProtocolError as error:
                self._close_for(error)
                return
            lease = None
            if len(events) > 1 or type(events[0]) is not Command:  # Usually one command, which needs no lease.
                lease = self._settle(0, events)
                settled_bytes = reader.held_bytes
            self.handler.received(events, lease)
        if self._open and self._closing_reason is None:
            if reader.held_bytes != settled_bytes:
                self._settle(0, ())
            reader.keep()
            self._read_on()

    def _count(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self.read_count += 1

    def _close_for(self, error: ProtocolError) -> None:
        if self.read_count == 1 and self._tls is None and bytes(self._arena[:2]) == TLS_START:
            self.close("the client speaks TLS, and this is the port for clients without; see brokerServicePortTls")
        else:
            self.close(f"protocol error: {error}")

    def _read_commands(self) -> bool:
        """Without memory, handle the commands before the next publish; False if there are none.

        Called at a frame boundary. Commands are decoded where they were peeked and received when they are handled, so
        they need no memory and no grant. If it returns True, the connection is not in the queue for memory any more.
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
        pos = taken = 0
        while pos < nbytes and self._may_act:
            if not self._turns.take(taken):
                self._wait_for_turn()
                return self._needs_no_memory()
            taken += 1
            try:
                events, length = self._reader.peeked(self._arena[pos:nbytes], events_max=EVENTS_MAX)
            except ProtocolError as error:
                self._count(0)
                self._close_for(error)
                return True
            if not events:
                break
            if any(type(event) is PublishRun for event in events):
                self.close("protocol error: a SEND that does not begin with its type")
                return True
            self._receive_all(self._arena[pos : pos + length])
            self._count(length)
            self.handler.received(events, None)
            pos += length
        return pos > 0 and self._needs_no_memory()

    def _look_ahead(self) -> int:
        """Without memory, ask for a part of the reserve, for complete frames at the socket; 0 if there is none."""
        held_bytes, missing_bytes = self._reader.held_bytes, self._reader.missing_bytes
        if missing_bytes > WHOLE_BYTES_MAX or not self._open:
            return 0
        try:
            lying_bytes = self._peek(self._arena[:PEEK_BYTES])
            if lying_bytes == 0:
                self.close("closed by the client")
                return 0
            first_bytes = missing_bytes or _frame_bytes(self._arena[:lying_bytes])
            if lying_bytes == PEEK_BYTES < first_bytes <= WHOLE_BYTES_MAX and self._tls is None:
                lying_bytes = self._peek(self._arena[:first_bytes])
        except (BlockingIOError, InterruptedError):
            lying_bytes, first_bytes = 0, missing_bytes
        except OSError as error:
            self.close(_plain_reason(error))
            return 0
        whole_bytes = 0
        # A large command might be kept until others are handled, and would hold the reserve. Before the four bytes of
        # its size have come, the length of a frame is unknown.
        if self._reader.holds_publish or (missing_bytes <= USEFUL_BYTES and not 0 < held_bytes < LENGTH_BYTES):
            whole_bytes = _whole_bytes(self._arena[:lying_bytes], missing_bytes)
        asked = max(lying_bytes, first_bytes)
        granted = self._memory.look(self.id, asked, whole_bytes, self._clock.monotonic_ns())
        if granted:
            self._look_again_s = 0.0
        elif whole_bytes == 0 and first_bytes <= WHOLE_BYTES_MAX and self._looking is None:
            # The socket is not watched while it is muted, because it would be readable all the time.
            self._look_again_s = min(LOOK_AGAIN_S_MAX, 2 * self._look_again_s or LOOK_AGAIN_S)
            self._looking = self._loop.call_later(self._look_again_s, self._look_again)
        return granted

    def _look_again(self) -> None:
        self._looking = None
        if self._open and self._closing_reason is None and self.muted.only(MuteReason.REQUEST_MEMORY):
            try:
                granted = self._look_ahead()
                if granted:
                    self.unmute(MuteReason.REQUEST_MEMORY)
                    self._read_granted(granted, ARENA_BYTES)
            except Exception:
                log.exception("connection %s failed", self.peer)
                self.close("internal error; the broker's log has it")

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
        """Read decrypted bytes inside TLS: the socket may never become readable for them.

        See KIP-72, hasBytesBuffered.
        """
        if self._tls is not None and self._tls.pending() and not self._reader.whole:
            self._loop.call_soon(self._on_readable)

    def _settle(self, read_bytes: int, events: Sequence[Event]) -> Lease | None:
        """Charge what remains of a read, and of held bytes: these events, and bytes that are not handled yet."""
        pending_bytes = pending_requests = column_bytes = 0
        for event in events:
            if type(event) is PublishRun:
                pending_bytes += len(event.data)
                pending_requests += len(event.offsets)
                column_bytes += event.column_bytes
        now_ns = self._clock.monotonic_ns()
        held_bytes = self._reader.held_bytes
        lease = self._memory.settle(
            self.id, read_bytes, held_bytes, pending_bytes, pending_requests, now_ns, column_bytes
        )
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
                tls.send(self._queue, TLS_WRITE_BYTES)  # the alert with the reason
            self.close(f"TLS handshake failed: {_plain_reason(error)}")
            return
        self._flush()
        if tls.established:
            self._read_on()

    # -- writing ------------------------------------------------------------------------------------------------------

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        """Queue messages for consumers of this connection. One flush per turn sends everything that was queued."""
        if not self._open:
            return
        self.wanted_bytes, self.wanting = 1, None
        if entries is not None:
            start = self.bytes_out + self._unsent_bytes
            self._queued_entries.append((start, start + nbytes, entries))
            if self._writer_added:
                entries.compact()
        if self._writer_added:
            buffers = own(buffers)
        else:
            self._borrowed.append((self._queued, self._queued + len(buffers)))
        self._enqueue(buffers, nbytes)
        self._charge(nbytes)

    def write(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue responses. A client that does not receive its responses is muted until it does."""
        if not self._open:
            return
        if self._joined is not None and len(self._joined) + nbytes <= JOINED_BYTES:
            self._joined += b"".join(buffers)
            self._unsent_bytes += nbytes
        elif nbytes > len(buffers) * _JOIN_BYTES_MAX:
            self._enqueue(buffers, nbytes)
        else:
            joined = bytearray().join(buffers)
            self._enqueue((joined,), nbytes)
            self._joined = joined
        self._charge(nbytes)
        self._answered = True
        if self.out_bytes >= ANSWERS_BYTES_MIN and not self.room_bytes:
            self._ask_no_more()

    def _ask_no_more(self) -> None:
        self._asks_no_more = True
        self.mute(MuteReason.OUTBOUND)

    def _enqueue(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        self._joined = None
        self._queue.extend(buffers)
        self._queued += len(buffers)
        self._unsent_bytes += nbytes
        if not self._flush_scheduled and not self._writer_added:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_shared(
        self, head: bytes, shared: Sequence[Buffer], shared_bytes: int, passed: Callable[[], None]
    ) -> None:
        """Queue a response: a head of its own, followed by buffers that other connections send, too.

        The owner of the shared buffers is charged for them until `passed` is called: when the socket has taken the last
        byte of the response, or is closed.
        """
        if not self._open:
            passed()
            return
        kept_bytes = ANSWER_BYTES + REFERENCE_BYTES * len(shared)
        self._charge(kept_bytes)
        self.write((head,), len(head))
        if shared:
            if self._tls is not None and not self._shared_runs:
                self._charge(TLS_SHARED_BYTES)
            start = self.bytes_out + self._unsent_bytes
            self._enqueue(shared, shared_bytes)
            self._shared_runs.append((start, start + shared_bytes))
        self._passing.append(_Passing(self.bytes_out + self._unsent_bytes, passed, kept_bytes))

    def write_frame(self, frame: bytes) -> None:
        """Queue one frame."""
        self.write((frame,), len(frame))

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._joined = None  # A buffer that is being sent must not grow.
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
        if blocked:
            self._keep_little()
        self._borrowed.clear()
        if not blocked and self._closing_reason is not None:
            self.close(self._closing_reason)
        else:
            self._look_for_room(blocked=blocked)

    def _keep_little(self) -> None:
        """Copy what waits, to release runs that queued entries are views of, and the sent part of the first buffer."""
        queue = self._queue
        if not queue:
            return
        if self._borrowed:
            for _, _, entries in self._queued_entries:
                entries.compact()
            kept: list[Buffer] = []
            buffers, start, at = list(queue), self._queued - len(queue), 0
            for first, stop in self._borrowed:
                begin, end = max(first - start, at), max(stop - start, at)
                kept += buffers[at:begin]
                kept += own(buffers[begin:end])
                at = end
            kept += buffers[at:]
            self._queued += len(kept) - len(buffers)
            queue.clear()
            queue.extend(kept)
        head = queue[0]
        if type(head) is memoryview and len(memoryview(head.obj)) - len(head) > SENT_BYTES_KEPT:
            shared = self._shared_runs and self._shared_runs[0][0] <= self._begun()
            queue[0] = head if shared else bytes(head)

    def _begun(self) -> int:
        """Return the position in all bytes out at which the queue begins.

        TLS may have taken more from it than the socket.
        """
        return self.bytes_out + self._unsent_bytes - sum(map(len, self._queue))

    def put_back_if_stalled(self, now_ns: int) -> int:
        """Put back entries that are queued for a client that has been stalled for a while; return their bytes.

        Called repeatedly.
        """
        if self._stalled_at_bytes != self.bytes_out or not self._writer_added:
            self._stalled_at_bytes, self._stalled_since_ns = self.bytes_out, now_ns
            return 0
        return self._put_back() if self._queued_entries and now_ns - self._stalled_since_ns >= STALLED_NS else 0

    def stalled_ns(self, now_ns: int) -> int:
        """Return for how long the client has received nothing although something is queued for it."""
        stalled = self._writer_added and self._stalled_at_bytes == self.bytes_out
        return now_ns - self._stalled_since_ns if stalled else 0

    def _put_back(self) -> int:
        begun = self._begun()
        queued, self._queued_entries = self._queued_entries, deque()
        gone: list[tuple[int, int]] = []
        nbytes = 0
        for start, stop, entries in queued:
            kept = entries.put_back(max(0, begun - start))
            if kept:
                self._queued_entries.append((start - nbytes, start - nbytes + kept, entries))
            if start + kept < stop:
                gone.append((start + kept, stop))
                nbytes += stop - start - kept
        if not nbytes:
            return 0
        self._shared_runs = deque(
            (start - _length_before(start, gone), stop - _length_before(stop, gone))
            for start, stop in self._shared_runs
        )
        self._passing = deque(
            one._replace(position=one.position - _length_before(one.position, gone)) for one in self._passing
        )
        kept_buffers = without(self._queue, begun, gone)
        self._queued += len(kept_buffers) - len(self._queue)
        self._queue.clear()
        self._queue.extend(kept_buffers)
        self._unsent_bytes -= nbytes
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
        room_bytes = outbound.room_bytes(self)
        little = not self.out_bytes or room_bytes >= self.out_bytes
        if self._asks_no_more:
            if little or self.out_bytes < JOINED_BYTES // 2:
                self._asks_no_more = False
                self.unmute(MuteReason.OUTBOUND)
        elif blocked and self._answered and not room_bytes and self.out_bytes >= JOINED_BYTES:
            self._ask_no_more()
        if self._waits:
            if little and room_bytes >= self.wanted_bytes:
                self.go_on()
            elif not self.out_bytes:
                self._wait()

    def _send_some(self) -> None:
        """Send with one system call; raises BlockingIOError when the socket takes no more."""
        if self._tls is not None:
            step_bytes = TLS_SHARED_BYTES if self._shared_runs else TLS_WRITE_BYTES
            self._account_sent(self._tls.send(self._queue, step_bytes))
            return
        self._account_sent(send_queued(self._sock, self._queue))

    def _account_sent(self, nbytes: int) -> None:
        if nbytes == 0:
            return
        start = self.bytes_out
        self.bytes_out += nbytes
        self._unsent_bytes -= nbytes
        self._discharge(nbytes - self._shared_between(start, self.bytes_out) if self._shared_runs else nbytes)
        while self._queued_entries and self._queued_entries[0][1] <= self.bytes_out:
            self._queued_entries.popleft()
        while self._passing and self._passing[0].position <= self.bytes_out:
            one = self._passing.popleft()
            self._discharge(one.kept_bytes)
            one.passed()

    def _shared_between(self, start: int, stop: int) -> int:
        """Return how many of the sent bytes are charged elsewhere; forget shared ranges that are sent."""
        total = 0
        while self._shared_runs and self._shared_runs[0][0] < stop:
            first, last = self._shared_runs[0]
            total += min(last, stop) - max(first, start)
            if last > stop:
                break
            self._shared_runs.popleft()
            if self._tls is not None and not self._shared_runs:
                self._discharge(TLS_SHARED_BYTES)
        return total

    def _charge(self, nbytes: int) -> None:
        self.out_bytes += nbytes
        self._outbound.add(nbytes)

    def _discharge(self, nbytes: int) -> None:
        self.out_bytes -= nbytes
        self._outbound.remove(nbytes)
        if len(self._outbound):
            self._shared.outbound_freed()


def _length_before(position: int, ranges: list[tuple[int, int]]) -> int:
    return sum(min(stop, position) - min(start, position) for start, stop in ranges)


def _frame_bytes(view: memoryview) -> int:
    """Return the length of the first frame, its size field included; 4 if the size has not arrived."""
    return 4 + int.from_bytes(view[:4], "big") if len(view) >= 4 else 4


def _whole_bytes(view: memoryview, missing_bytes: int) -> int:
    """Return the length up to the end of the last complete SEND; `missing_bytes` complete the frame begun before."""
    pos = missing_bytes
    if pos > len(view):
        return 0
    while bytes(view[pos + 8 : pos + 10]) == SEND_START and (stop := pos + _frame_bytes(view[pos:])) <= len(view):
        pos = stop
    return pos


def _clip(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """Return the same buffers, at most `nbytes` long together."""
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
