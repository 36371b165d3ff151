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
    Commands. Decoded and handled one by one: what answers one of them may mute the connection, and then the next stays
              the twenty bytes that it came in. Bytes that were read and are not handled yet are charged as held. They
              come before the next read. `CommandScheduler` says how many commands one turn of the loop carries out, so
              a client that sends many waits for itself.
    Writing.  `write` queues answers and `deliver` entries; one flush a turn sends them with one gathered system call.
              Passed on is what the socket has taken, under TLS as ciphertext: whoever lent memory to the queue gets it
              back then. Entries are queued as they lie in the run that was read or published; those that the socket
              does not take at once are copied, so that an entry that waits never keeps a run in memory. Bytes that
              several connections send (`write_shared`) exist once and are charged where they are kept; a connection
              is charged for the reference.
    Muting.   A set of reasons; not empty means that the socket is not watched for reading. An unfinished TLS handshake
              reads no frame and asks for no memory, so it is never muted (KIP-72, "Request throttling"). Without memory
              we look at what is next: commands that are carried out at once leave nothing behind, so they are read all
              the same, up to the first publish. A consumer is not muted because publishers flood. Whole frames may have
              memory of the reserve; while a small one is not yet whole, we look again a little later.
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

# One read fills at most this much. Larger reads make longer runs and fewer disk writes.
ARENA_BYTES: Final = 512 * KIB
# A connection is read in pieces of this size at first, and again after a read that brought more commands than one turn
# carries out: those that are left take memory. So do the columns of very small publishes, several times their bytes.
# Other publishers fill it, and their reads grow.
FIRST_READ_BYTES: Final = 16 * KIB
_READ_GROWTH: Final = 4
# What consumers say all day, carried out in one go.
EVENTS_MAX: Final = 128
# Small answers that wait for the socket are joined into buffers of this size: as objects of their own they would take
# three times what is counted.
JOINED_BYTES: Final = 8 * KIB
_JOIN_BYTES_MAX: Final = KIB
# Answers of one turn of the loop that may be queued before the socket was asked, however little room there is.
ANSWERS_BYTES_MIN: Final = 64 * KIB
# A buffer that was sent in part is copied when it keeps more than this in memory for nothing.
SENT_BYTES_KEPT: Final = 8 * KIB
# How far we look for commands that need no memory; under TLS what was looked at must be kept, so: one record.
PEEK_BYTES: Final = TLS_PLAIN_BYTES
# What `write_shared` keeps for one answer beside its own bytes and the references: the callback and its arguments.
ANSWER_BYTES: Final = 512
REFERENCE_BYTES: Final = 8
# Under TLS the ciphertext of shared bytes is a connection's own: it encrypts so much of them at a time, and is charged
# for it as long as it has any to send.
TLS_SHARED_BYTES: Final = 64 * KIB
# A whole frame up to this size is read from the reserve: a batch of a Pulsar client is 128 KiB by default. Our receive
# buffer holds it, see `listener.SOCKET_RECEIVE_BYTES`. Under TLS we see no further than one record.
WHOLE_BYTES_MAX: Final = 192 * KIB
# How soon we look again for the rest of such a frame, without memory; twice as long each time.
LOOK_AGAIN_S: Final = 0.02
LOOK_AGAIN_S_MAX: Final = 1.0
# A TLS handshake begins like this, and no frame does that is not far too large.
TLS_START: Final = b"\x16\x03"
# While others wait for outbound memory, a client that takes nothing for so long does not read.
STALLED_NS: Final = 50 * NS_PER_MS
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


class Parcel(Protocol):
    """Entries that were queued together, while they are not all sent."""

    def keep_little(self) -> None:
        """They are not all sent in the turn of the loop in which they were queued."""

    def put_back(self, taken_bytes: int) -> int:
        """Take back the entries behind these bytes; returns how many bytes those take that cannot be taken back."""


class _Passing(NamedTuple):
    """Whom to tell when so many bytes in all have gone out, and what is charged until then."""

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
        self.wanted_bytes = 1  # the least that dispatch can go on with
        self.wanting: object = None  # the consumer that wanted more than there was room for
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
        self._reader = FrameReader(frame_bytes_max=shared.frame_bytes_max, bounds=shared.bounds)
        self._turns = shared.turns
        self._read_bytes = FIRST_READ_BYTES
        self._waits_for_turn = False
        self._joined: bytearray | None = None  # the last buffer of the queue, while small answers may be added to it
        self._queue: deque[Buffer] = deque()
        self._queued = 0  # buffers that were ever queued
        self._unsent_bytes = 0  # all of the queue, with what is shared
        self._borrowed: list[tuple[int, int]] = []  # of the buffers, which may lie in runs: first, and first behind
        self._parcels: deque[tuple[int, int, Parcel]] = deque()  # from, to: of all bytes out, and whose they are
        self._shared_runs: deque[tuple[int, int]] = deque()  # from, to: what of all bytes out is not charged to us
        self._passing: deque[_Passing] = deque()
        self._stalled_at_bytes = -1  # `bytes_out` when `put_back_if_stalled` looked last
        self._stalled_since_ns = 0
        self._put_back_at_bytes = -1  # `bytes_out` when entries were put back: until it moves, it gets none
        self._flush_scheduled = False
        self._writer_added = False
        self._closing_reason: str | None = None
        self._waits = False  # for room; `drained` is owed
        self._answered = False  # answers were queued since everything was sent
        self._asks_no_more = False  # it takes no answers, and is muted for it
        self._open = True
        self._tls = TlsLayer(tls, sock) if tls is not None else None
        self._look_again_s = 0.0  # when a timer runs for it: after how long it was set
        self._looking: asyncio.TimerHandle | None = None

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
        """Whether there is room for more, or everything was sent; `drained` is called when it is again."""
        if self._open and (not self.out_bytes or self.room_bytes > 0):
            return True
        self._waits = True
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and not handled yet: of an unfinished frame, or of commands that wait."""
        return self._reader.held_bytes

    @property
    def room_bytes(self) -> int:
        """How many more bytes of entries may be queued; 0 when the connection is gone."""
        return self._outbound.room_bytes(self) if self._open else 0

    def takes_entries(self) -> bool:
        """Whether dispatch may queue entries now; if not, `drained` is called when it may."""
        if not self._open:
            return False
        stalled = self._unsent_bytes and self._put_back_at_bytes == self.bytes_out
        if not stalled and self._outbound.room_bytes(self) >= self.wanted_bytes:
            return True
        self._wait()
        return False

    def has_no_room(self, nbytes: int, wanting: object) -> None:
        """Dispatch has a piece of `nbytes` for a consumer, and no room for it. `drained` is called when there is."""
        if self._open:
            self.wanted_bytes, self.wanting = nbytes, wanting
            self._wait()

    def _wait(self) -> None:
        self._waits = True
        if not self.out_bytes:  # Otherwise the next flush sees what is left to wait for.
            self._outbound.wait(self)
            self._shared.outbound_freed()

    def go_on(self) -> None:
        """There is room: it waited for that."""
        self._waits = False
        self.handler.drained()

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
        self._discharge(self.out_bytes)
        self._outbound.forget(self)
        self._unsent_bytes = 0
        self._queue.clear()
        self._borrowed.clear()
        self._parcels.clear()
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
        """The client has shown who it is, or need not: its frames may be as large as those of anybody."""
        if self._open:
            self._reader.admitted = True

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
            self._memory.pause(self.id, now_ns, excused=reason is not MuteReason.OUTBOUND)
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

    @property
    def _may_act(self) -> bool:
        return self._open and not self.muted and self._closing_reason is None

    @property
    def _is_bulky(self) -> bool:
        """Whether the next read may take long: much of a publish, or a TLS handshake. Others do not wait for those."""
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
            # Our own fault, and whatever was half done belongs to this connection: it ends, the others go on.
            log.exception("connection %s failed", self.peer)
            self.close("internal error; the broker's log has it")

    def take_turn(self) -> None:
        """Go on with commands that were read, or are about to be."""
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
        """Carry out what was read, command by command, as far as this turn goes; `taken` of them were already."""
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
            if len(events) > 1 or type(events[0]) is not Command:  # Most are one command, which leaves nothing behind.
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
        """Without memory, carry out the commands before the next publish; False: that comes first, or nothing whole.

        Called at the boundary of two frames. Commands are decoded where they were looked at and received when they are
        carried out, so nothing of them is kept and they need no grant. True puts us out of the queue for memory: we are
        no reader in need.
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
            self._receive([self._arena[pos : pos + length]])
            self._count(length)
            self.handler.received(events, None)
            pos += length
        return pos > 0 and self._needs_no_memory()

    def _look_ahead(self) -> int:
        """Without memory, ask for some of the reserve, for whole frames that lie at the socket; 0: there is none."""
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
        # A large command might wait for others while it is kept, and the reserve with it.
        # With less than its size, nobody knows how long the frame is.
        if self._reader.holds_publish or (missing_bytes <= USEFUL_BYTES and not 0 < held_bytes < LENGTH_BYTES):
            whole_bytes = _whole_bytes(self._arena[:lying_bytes], missing_bytes)
        asked = max(lying_bytes, first_bytes)
        granted = self._memory.look(self.id, asked, whole_bytes, self._clock.monotonic_ns())
        if granted:
            self._look_again_s = 0.0
        elif whole_bytes == 0 and first_bytes <= WHOLE_BYTES_MAX and self._looking is None:
            # We do not watch the socket while it is muted: it would be readable all the time.
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
        """Decrypted bytes may wait inside; the socket may never become readable for them (KIP-72, hasBytesBuffered)."""
        if self._tls is not None and self._tls.pending() and not self._reader.whole:
            self._loop.call_soon(self._on_readable)

    def _settle(self, read_bytes: int, events: Sequence[Event]) -> Lease | None:
        """Charge what is left of a read, and of bytes that were held before: these events, and bytes still to come."""
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
                tls.send(self._queue, TLS_WRITE_BYTES)  # the alert that tells the client why
            self.close(f"TLS handshake failed: {_plain_reason(error)}")
            return
        self._flush()
        if tls.established:
            self._read_on()

    # -- writing ------------------------------------------------------------------------------------------------------

    def deliver(self, buffers: Sequence[Buffer], nbytes: int, parcel: Parcel | None = None) -> None:
        """Queue messages for the consumers of this peer; one flush a turn sends everything that was queued in it."""
        if not self._open:
            return
        self.wanted_bytes, self.wanting = 1, None
        if parcel is not None:
            start = self.bytes_out + self._unsent_bytes
            self._parcels.append((start, start + nbytes, parcel))
            if self._writer_added:
                parcel.keep_little()
        if self._writer_added:
            buffers = own(buffers)
        else:
            self._borrowed.append((self._queued, self._queued + len(buffers)))
        self._enqueue(buffers, nbytes)
        self._charge(nbytes)

    def write(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue answers. A peer that does not take its answers gets to ask nothing more until it does."""
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
        """Queue an answer: a head of its own, and behind it buffers that others send, too.

        The shared buffers are charged by whoever keeps them, until `passed` is called: once the socket has taken the
        last of the answer, or is gone.
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
        self._joined = None  # What is being sent cannot grow.
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
        """Let go of runs that entries lie in, and of what was sent of the first buffer: what waits is copied."""
        queue = self._queue
        if not queue:
            return
        if self._borrowed:
            for _, _, parcel in self._parcels:
                parcel.keep_little()
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
        """Where of all bytes out the queue begins. TLS may have taken more from it than the socket has taken."""
        return self.bytes_out + self._unsent_bytes - sum(map(len, self._queue))

    def put_back_if_stalled(self, now_ns: int) -> int:
        """Put back entries that are queued for a client that took nothing for a while; asked again and again.

        Returns how many bytes that were.
        """
        if self._stalled_at_bytes != self.bytes_out or not self._writer_added:
            self._stalled_at_bytes, self._stalled_since_ns = self.bytes_out, now_ns
            return 0
        return self._put_back() if self._parcels and now_ns - self._stalled_since_ns >= STALLED_NS else 0

    def stalled_ns(self, now_ns: int) -> int:
        """For how long the client has been seen to take nothing of what is queued for it."""
        stalled = self._writer_added and self._stalled_at_bytes == self.bytes_out
        return now_ns - self._stalled_since_ns if stalled else 0

    def _put_back(self) -> int:
        begun = self._begun()
        parcels, self._parcels = self._parcels, deque()
        gone: list[tuple[int, int]] = []
        nbytes = 0
        for start, stop, parcel in parcels:
            kept = parcel.put_back(max(0, begun - start))
            if kept:
                self._parcels.append((start - nbytes, start - nbytes + kept, parcel))
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
        """After a flush: whether this client may ask on, and dispatch to it go on."""
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
        """One system call's worth; raises BlockingIOError when the socket takes no more."""
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
        while self._parcels and self._parcels[0][1] <= self.bytes_out:
            self._parcels.popleft()
        while self._passing and self._passing[0].position <= self.bytes_out:
            one = self._passing.popleft()
            self._discharge(one.kept_bytes)
            one.passed()

    def _shared_between(self, start: int, stop: int) -> int:
        """How many of the bytes that just went out are charged to somebody else; forgets runs that are out."""
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
    """How long the frame at its front is, its size included; 4 if not even that has come."""
    return 4 + int.from_bytes(view[:4], "big") if len(view) >= 4 else 4


def _whole_bytes(view: memoryview, missing_bytes: int) -> int:
    """How long its part up to the end of the last whole SEND is; `missing_bytes` end what has begun before."""
    pos = missing_bytes
    if pos > len(view):
        return 0
    while bytes(view[pos + 8 : pos + 10]) == SEND_START and (stop := pos + _frame_bytes(view[pos:])) <= len(view):
        pos = stop
    return pos


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
