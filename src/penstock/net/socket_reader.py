# SPDX-License-Identifier: Apache-2.0
"""Reads one client's socket: asks the request memory, receives bytes, and hands frames to the connection's handler.

Why own reads and not asyncio's transports: a transport delivers up to 256 KiB before it can be paused, and allocates
per read. Here a read asks the request memory first and lands in one arena that all connections of the loop share.
Where: each `Connection` has one; the event loop and `CommandScheduler` call it.

Theory of operation
-------------------

    Reading.  Readable → `RequestMemory.try_charge` says how many bytes may be read (0: the connection is muted and
              waits) → `recvmsg_into` → `FrameReader` → events → `recharge` → the handler. What the handler keeps
              (publish runs that wait for the disk) stays charged until `release`.
    Commands. They are decoded and handled one by one. Handling one may mute the connection; then the next one stays
              in its twenty bytes. Bytes that were read and are not handled yet are charged as held, and are handled
              before the next read. `CommandScheduler` limits the commands of one turn of the loop, so a client that
              sends many delays only itself.
    Peeking.  Without memory, the next bytes are peeked: commands that are handled at once need no memory, so they are
              read up to the first publish. So a flood of publishes does not mute consumers. Complete frames may use the
              reserve; while a small frame is not complete, the reader peeks again a little later.
    TLS.      See `tls`. An unfinished handshake reads no frames and needs no request memory (KIP-72, "Request
              throttling").
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.governance.request_values import LENGTH_BYTES, USEFUL_BYTES
from penstock.net.tls import TLS_PLAIN_BYTES, TLS_WRITE_BYTES, plain_reason
from penstock.wire.events import AckRun, Command, Flow, PublishRun, Relayed
from penstock.wire.frame_reader import FrameReader, ProtocolError
from penstock.wire.sends import SEND_START

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.governance.memory_pool import Lease
    from penstock.net.connection import Connection
    from penstock.net.listener import Connections
    from penstock.net.tls import TlsLayer
    from penstock.wire.events import Event

log = logging.getLogger(__name__)

# The size of the largest read. Larger reads make longer runs and fewer disk writes.
# Four batches of 128 KiB, which is their usual limit, fit with their headers.
ARENA_BYTES: Final = 528 * KIB
# A run that fills so much of the arena keeps it, uncopied, and others read into another one.
KEPT_BYTES_MIN: Final = ARENA_BYTES - ARENA_BYTES // 8
# The size of the first read, and of a read after one that brought more commands than one turn handles (the others take
# memory) or very small publishes (their columns take several times their bytes). Reads of other publishers fill it, and
# then their reads grow; they become smaller again when they bring less than a `_READ_LITTLE`-th.
FIRST_READ_BYTES: Final = 16 * KIB
_READ_GROWTH: Final = 4
_READ_LITTLE: Final = 8
# The most acknowledgements and flow permits that are handled at once.
EVENTS_MAX: Final = 128
# How many bytes are peeked for commands that need no memory; under TLS peeked bytes must be kept, so: one record.
PEEK_BYTES: Final = TLS_PLAIN_BYTES
# Complete frames up to this size are read from the reserve: a batch of a Pulsar client is 128 KiB by default. The
# receive buffer holds them, see `listening.SOCKET_RECEIVE_BYTES`. Under TLS only one record can be peeked.
WHOLE_BYTES_MAX: Final = 192 * KIB
# After this time a connection without memory peeks again for the rest of such a frame; it doubles each time.
LOOK_AGAIN_S: Final = 0.02
LOOK_AGAIN_S_MAX: Final = 1.0
# The first bytes of a TLS handshake. A frame that begins like this would be far too large.
TLS_START: Final = b"\x16\x03"
# Events of which a turn handles any number.
_UNCOUNTED: Final = (PublishRun, AckRun, Flow)
# The frame reader of a closed connection.
_NO_FRAMES: Final = FrameReader(frame_bytes_max=0)


class SocketReader:
    """Reads for one connection; `on_readable` is called while it is not muted."""

    def __init__(self, connection: Connection, shared: Connections, sock: socket.socket, tls: TlsLayer | None) -> None:
        self.frames = shared.new_reader(frame_bytes_max=shared.frame_bytes_max, bounds=shared.bounds)
        self._connection = connection
        self._shared = shared
        self._memory = shared.memory
        self._clock = shared.clock
        self._turns = shared.turns
        self._sock = sock
        self._tls = tls
        self._read_bytes = FIRST_READ_BYTES
        self._waits_for_turn = False
        self._look_again_s = 0.0  # the delay of the last timer for `_look_again`
        self._looking: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Read nothing more; release what was read and not handled."""
        self.frames = _NO_FRAMES
        self._tls = None
        if self._looking is not None:
            self._looking.cancel()

    @property
    def _arena(self) -> memoryview:
        return self._shared.arena

    @property
    def _may_act(self) -> bool:
        connection = self._connection
        return connection.is_open and not connection.muted and connection.closing_reason is None

    @property
    def _is_bulky(self) -> bool:
        """Whether the next read may take long: a large read, or a TLS handshake. Other reads do not wait for those."""
        return (
            self._read_bytes > FIRST_READ_BYTES
            or self.frames.missing_bytes > FIRST_READ_BYTES
            or (self._tls is not None and not self._tls.established)
        )

    def on_readable(self) -> None:
        """Read, or continue with commands that were read, if the connection is not muted."""
        if self._waits_for_turn or not self._may_act:
            return
        if self._is_bulky and not self._turns.may_read():
            self._wait_for_turn()
            return
        try:
            if self.frames.whole:
                self._carry_out(0)
            elif self._tls is not None and not self._tls.established:
                self._handshake()
            else:
                self._read()
        except Exception:
            # A bug of penstock. Unfinished work belongs to this connection: close it, the others continue.
            log.exception("connection %s failed", self._connection.peer)
            self._connection.close("internal error; the broker's log has it")

    def take_turn(self) -> None:
        """Continue with commands that were read, or with the next read."""
        self._waits_for_turn = False
        self.on_readable()
        if not self._waits_for_turn and self._may_act:
            self._shared.loop.add_reader(self._sock.fileno(), self.on_readable)

    def _wait_for_turn(self) -> None:
        """Wait, and watch the socket no longer: a turn serves a few ready sockets, which are to be those of others."""
        self._waits_for_turn = True
        self._shared.loop.remove_reader(self._sock.fileno())
        self._turns.wait(self)

    def _read(self) -> None:
        frames = self.frames
        wanted = min(ARENA_BYTES, max(self._read_bytes, frames.missing_bytes))
        granted = self._memory.try_charge(self._connection.id, wanted, frames.missing_bytes, self._clock.monotonic_ns())
        if granted == 0:
            lying_bytes = 0
            if not frames.held_bytes:
                lying_bytes = self._read_commands()
                if lying_bytes == 0:
                    return
            self._look_again_s = 0.0
            granted = self._look_ahead(lying_bytes)
            if granted == 0:
                self._connection.mute(HoldKind.REQUEST_MEMORY)
                return
        self._read_granted(granted, wanted)

    def _read_granted(self, granted: int, wanted: int) -> None:
        try:
            nbytes = self._receive(_clip(self.frames.buffers(self._arena), granted))
        except (BlockingIOError, InterruptedError):
            self._settle(0, ())
        except OSError as error:
            self._connection.close(plain_reason(error))
        else:
            if nbytes == 0:
                self._connection.close("closed by the client")
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
        # Asking costs a call in the next turn of the loop, so a read of publishes alone does not.
        frames, taken = self.frames, int(self._turns.may_take())
        self._connection.bytes_in += nbytes
        self._connection.read_count += 1
        try:
            events = frames.received(
                self._arena,
                nbytes,
                commands_max=taken,
                events_max=EVENTS_MAX,
                kept_bytes_min=self._kept_bytes_min(nbytes),
            )
        except ProtocolError as error:
            self._close_for(error)
            return
        tiny = counted = False
        for event in events:
            if type(event) is PublishRun:
                tiny = tiny or event.is_tiny
            elif type(event) not in _UNCOUNTED:
                counted = True
        taken = int(counted and taken and self._turns.take(0))
        if frames.whole or tiny:
            self._read_bytes = FIRST_READ_BYTES
        elif nbytes >= wanted:
            self._read_bytes = min(ARENA_BYTES, _READ_GROWTH * self._read_bytes)
        elif nbytes < self._read_bytes // _READ_LITTLE:
            self._read_bytes = max(FIRST_READ_BYTES, self._read_bytes // _READ_GROWTH)
        if any(type(event) is PublishRun and event.unused_bytes for event in events):
            self._shared.replace_arena()
        lease = self._settle(nbytes, events)
        if events:
            self._connection.handler.received(events, lease)
        if frames.whole or self._tls is not None:
            self._carry_out(taken)

    def _kept_bytes_min(self, nbytes: int) -> int | None:
        """Return how long a run must be to keep the arena; None: it must not, because there is no memory for that.

        All of the arena is charged then, and the start of an unfinished frame behind the run as well.
        """
        if nbytes < KEPT_BYTES_MIN // 2 or self._memory.available < ARENA_BYTES:
            return None
        return KEPT_BYTES_MIN

    def _carry_out(self, taken: int) -> None:
        """Handle read commands one by one, as far as this turn allows; `taken` of them were handled already."""
        frames = self.frames
        settled_bytes = frames.held_bytes
        while frames.whole and self._may_act:
            if not self._turns.take(taken):
                self._wait_for_turn()
                break
            taken += 1
            try:
                events = frames.more(commands_max=1, events_max=EVENTS_MAX)
            except ProtocolError as error:
                self._close_for(error)
                return
            lease = None
            if len(events) > 1 or type(events[0]) is not Command:  # Usually one command, which needs no lease.
                lease = self._settle(0, events)
                settled_bytes = frames.held_bytes
            self._connection.handler.received(events, lease)
        if self._connection.is_open and self._connection.closing_reason is None:
            if frames.held_bytes != settled_bytes:
                self._settle(0, ())
            frames.keep()
            self._read_on()

    def _count(self, nbytes: int) -> None:
        self._connection.bytes_in += nbytes
        self._connection.read_count += 1

    def _close_for(self, error: ProtocolError) -> None:
        if self._connection.read_count == 1 and self._tls is None and bytes(self._arena[:2]) == TLS_START:
            self._connection.close(
                "the client speaks TLS, and this is the port for clients without; see brokerServicePortTls"
            )
        else:
            self._connection.close(f"protocol error: {error}")

    def _read_commands(self) -> int:
        """Without memory, handle the commands before the next publish; 0 if there were any, or nothing came.

        Called at a frame boundary. Commands are decoded where they were peeked and received when they are handled, so
        they need no memory and no grant. If it returns 0, the connection is not in the queue for memory any more.
        Otherwise so many bytes, which begin with a publish, were peeked into the arena.
        """
        try:
            nbytes = self._peek(self._arena[:PEEK_BYTES])
        except (BlockingIOError, InterruptedError):
            return self._needs_no_memory()
        except OSError as error:
            self._connection.close(plain_reason(error))
            return 0
        if nbytes == 0:
            self._connection.close("closed by the client")
            return 0
        pos = taken = 0
        while pos < nbytes and self._may_act:
            may_take = self._turns.take(taken)
            taken += 1
            try:
                events, length = self.frames.peeked(
                    self._arena[pos:nbytes], commands_max=int(may_take), events_max=EVENTS_MAX
                )
            except ProtocolError as error:
                self._count(0)
                self._close_for(error)
                return 0
            if not events and not may_take:
                self._wait_for_turn()
                return self._needs_no_memory()
            if not events:
                break
            if any(type(event) is PublishRun for event in events):
                self._connection.close("protocol error: a SEND that does not begin with its type")
                return 0
            self._receive_all(self._arena[pos : pos + length])
            self._count(length)
            self._connection.handler.received(events, None)
            pos += length
        return self._needs_no_memory() if pos else nbytes

    def _look_ahead(self, lying_bytes: int = 0) -> int:
        """Without memory, ask for a part of the reserve, for complete frames at the socket; 0 if there is none.

        `lying_bytes` were peeked just now, if any.
        """
        held_bytes, missing_bytes = self.frames.held_bytes, self.frames.missing_bytes
        if missing_bytes > WHOLE_BYTES_MAX or not self._connection.is_open:
            return 0
        try:
            first_bytes = missing_bytes
            if missing_bytes > PEEK_BYTES and self._tls is None:
                lying_bytes = self._count_lying(missing_bytes)
            else:
                lying_bytes = lying_bytes or self._peek(self._arena[:PEEK_BYTES])
                first_bytes = missing_bytes or _frame_bytes(self._arena[:lying_bytes])
                if lying_bytes == PEEK_BYTES < first_bytes <= WHOLE_BYTES_MAX and self._tls is None:
                    lying_bytes = self._count_lying(first_bytes)
            if lying_bytes == 0:
                self._connection.close("closed by the client")
                return 0
        except (BlockingIOError, InterruptedError):
            lying_bytes, first_bytes = 0, missing_bytes
        except OSError as error:
            self._connection.close(plain_reason(error))
            return 0
        whole_bytes = 0
        # A large command might be kept until others are handled, and would hold the reserve. Before the four bytes of
        # its size have come, the length of a frame is unknown.
        if self.frames.holds_publish or (missing_bytes <= USEFUL_BYTES and not 0 < held_bytes < LENGTH_BYTES):
            whole_bytes = _whole_bytes(self._arena[:lying_bytes], missing_bytes)
        asked = max(lying_bytes, first_bytes)
        granted = self._memory.look(self._connection.id, asked, whole_bytes, self._clock.monotonic_ns())
        if granted:
            self._look_again_s = 0.0
        elif whole_bytes == 0 and first_bytes <= WHOLE_BYTES_MAX and self._looking is None:
            # The socket is not watched while it is muted, because it would be readable all the time.
            self._look_again_s = min(LOOK_AGAIN_S_MAX, 2 * self._look_again_s or LOOK_AGAIN_S)
            self._looking = self._shared.loop.call_later(self._look_again_s, self._look_again)
        return granted

    def _look_again(self) -> None:
        self._looking = None
        if (
            self._connection.is_open
            and self._connection.closing_reason is None
            and self._connection.muted.only(HoldKind.REQUEST_MEMORY)
        ):
            try:
                granted = self._look_ahead()
                if granted:
                    self._connection.unmute(HoldKind.REQUEST_MEMORY)
                    self._read_granted(granted, ARENA_BYTES)
            except Exception:
                log.exception("connection %s failed", self._connection.peer)
                self._connection.close("internal error; the broker's log has it")

    def _peek(self, buffer: memoryview) -> int:
        if self._tls is not None:
            return self._tls.peek(buffer)
        return self._sock.recv_into(buffer, len(buffer), socket.MSG_PEEK)

    def _count_lying(self, nbytes: int) -> int:
        """Return how many bytes can be received now, at most so many, without copying them."""
        return self._sock.recv_into(self._arena[:nbytes], nbytes, socket.MSG_PEEK | socket.MSG_TRUNC)

    def _needs_no_memory(self) -> int:
        if self._connection.is_open:
            self._memory.pause(self._connection.id, self._clock.monotonic_ns())
            self._shared.wake()
            self._read_on()
        return 0

    def _read_on(self) -> None:
        """Read decrypted bytes inside TLS: the socket may never become readable for them.

        See KIP-72, hasBytesBuffered.
        """
        if self._tls is not None and self._tls.pending() and not self.frames.whole:
            self._shared.loop.call_soon(self.on_readable)

    def _settle(self, read_bytes: int, events: Sequence[Event]) -> Lease | None:
        """Charge what remains of a read, and of held bytes: these events, and bytes that are not handled yet."""
        pending_bytes = pending_requests = column_bytes = 0
        for event in events:
            if type(event) is PublishRun:
                pending_bytes += len(event.data)
                pending_requests += len(event.offsets)
                column_bytes += event.column_bytes
            elif type(event) is Relayed:
                pending_bytes += len(event.data)
        now_ns = self._clock.monotonic_ns()
        held_bytes = self.frames.held_bytes
        lease = self._memory.recharge(
            self._connection.id, read_bytes, held_bytes, pending_bytes, pending_requests, now_ns, column_bytes
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
                tls.send(self._connection.queue.buffers, TLS_WRITE_BYTES)  # the alert with the reason
            self._connection.close(f"TLS handshake failed: {plain_reason(error)}")
            return
        self._connection.flush()
        if tls.established:
            self._read_on()


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
