# SPDX-License-Identifier: Apache-2.0
"""Decodes one client's stream of bytes: cuts it into frames and returns their events.

Why no sockets: the same object serves a broker's connection, a test that cuts the stream at every byte, and a fuzzer.

Where: the owner of the socket reads into `buffers(...)`, reports with `received(...)`, and handles the events.

Theory of operation
-------------------

All connections of a loop read into one arena, one after another, so no connection may leave bytes there. The start of
an unfinished frame is copied and put back before the next read. A large frame would be copied again and again, so it
gets a buffer of exactly its size, which the publish run then keeps, unless it is likely to end in the next read. That
buffer is created when the rest is about to be
read, not when the size is known: until the owner has found memory for the rest, only the bytes that have arrived are
held.

A command takes twenty bytes on the wire, a kilobyte as an object, and more while it is handled. So the owner says how
many commands it wants at a time; later frames stay bytes until it asks for more.

Until a client is admitted its frames must be short: authentication needs no longer ones. Every command is checked
against its limits (`bounds`) before it is decoded.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.wire import codec
from penstock.wire.acks import ACK_BYTES_BY_HAND, ACK_START, FLOW_START, decode_ack, decode_flow, take_alike
from penstock.wire.bounds import BOUNDS, Bounds, OutOfBounds
from penstock.wire.errors import ProtocolError
from penstock.wire.events import Command, RefusedCommand
from penstock.wire.sends import SEND_START, decode_send, decode_sends

if TYPE_CHECKING:
    from penstock.wire.events import Event

__all__ = [
    "GREETING_BYTES_MAX", "LARGE_FRAME_BYTES", "FrameReader", "ProtocolError", "anonymous_memory", "command_of",
]  # fmt: skip

# The largest frame of a client that is not admitted yet: CONNECT and AUTH_RESPONSE, with up to 64 KiB of credentials,
# and in a proxy's CONNECT those of its client too.
GREETING_BYTES_MAX: Final = 136 * KIB

# From this size on, an unfinished frame gets its own buffer. Below, copying its start costs less than an allocation and
# a scatter read.
LARGE_FRAME_BYTES: Final = 64 * 1024
# Up to this size, that is so only if it did not begin behind other frames: a client that sends one after another is
# about to send the rest, and copying its start costs less than memory of its own.
_CARRIED_BYTES_MAX: Final = 192 * KIB

# The first bytes of PING and PONG, which do not wait behind other commands.
_SIGNS_OF_LIFE: Final = frozenset((b"\x08\x12", b"\x08\x13"))
# The first bytes of commands that do not count, or may not.
_UNCOUNTED: Final = _SIGNS_OF_LIFE | {ACK_START, FLOW_START}
# No limit.
_ALL: Final = sys.maxsize
_SIZE_BYTES: Final = 4
SEND_TYPE_END: Final = 10
_NOTHING: Final = memoryview(b"")
_read_u32: Final = struct.Struct(">I").unpack_from


class FrameReader:
    """The reading half of one connection.

    Attributes:
        held_bytes: bytes kept that are no events yet: an unfinished frame, and complete frames that are not decoded
            yet.
        missing_bytes: how many more bytes complete the unfinished frame, or its size; 0 between frames, and while there
            are complete ones.
        whole: whether a complete frame is kept. Then `more` comes next, not a read.
        admitted: whether frames after CONNECT may have any size; set by the owner, at once if no authentication is
            needed.
    """

    __slots__ = (
        "_alone", "_bounds", "_carried", "_connected", "_exact", "_frame_bytes_max", "_kept", "_kept_bytes_min", "_pos",
        "_view", "admitted", "held_bytes", "missing_bytes", "whole",
    )  # fmt: skip

    def __init__(self, *, frame_bytes_max: int, bounds: Bounds = BOUNDS) -> None:
        """Refuse frames that announce more than `frame_bytes_max` bytes, and commands that exceed `bounds`."""
        self.held_bytes = 0
        self.missing_bytes = 0
        self.whole = False
        self.admitted = False
        self._bounds = bounds
        self._frame_bytes_max = frame_bytes_max
        self._connected = False  # whether the first frame has come and was CONNECT
        self._kept_bytes_min: int | None = None  # see `received`
        self._alone = True  # whether nothing came before the unfinished frame in the same read
        self._carried = b""  # the start of an unfinished frame, or
        self._exact: memoryview | None = None  # a buffer of its size, filled up to `held_bytes`, or
        self._view = _NOTHING  # while `whole`: frames from `_pos` on
        self._pos = 0
        self._kept = False  # whether `_view` is a copy and not the arena

    @property
    def holds_publish(self) -> bool:
        """Whether the unfinished frame is known to be a SEND."""
        start = self._carried if self._exact is None else self._exact
        return self.held_bytes >= SEND_TYPE_END and bytes(start[8:SEND_TYPE_END]) == SEND_START

    def buffers(self, arena: memoryview) -> list[memoryview]:
        """Return where the next read must put its bytes, in order. May be called again if nothing was read.

        Args:
            arena: writable, larger than LARGE_FRAME_BYTES + 4, and not used for anything else before `received`.
        """
        if self._exact is None and self.held_bytes >= _SIZE_BYTES:
            frame_bytes = self.held_bytes + self.missing_bytes
            if frame_bytes > LARGE_FRAME_BYTES and (self._alone or frame_bytes > _CARRIED_BYTES_MAX):
                self._exact = self._buffer(frame_bytes)
                self._exact[: self.held_bytes] = self._carried
                self._carried = b""
        if self._exact is not None:
            return [self._exact[self.held_bytes :], arena]
        arena[: self.held_bytes] = self._carried
        return [arena[self.held_bytes :]]

    def _buffer(self, nbytes: int) -> memoryview:
        """Return a buffer for a large frame."""
        return anonymous_memory(nbytes)

    def received(
        self,
        arena: memoryview,
        nbytes: int,
        *,
        commands_max: int = _ALL,
        events_max: int = _ALL,
        kept_bytes_min: int | None = None,
    ) -> list[Event]:
        """Decode what a read of `nbytes` brought into `buffers(arena)`; events do not refer to the arena.

        Args:
            arena: the same as for `buffers`.
            nbytes: how many bytes were read.
            commands_max: stop after this many commands. Acknowledgements without a response, FLOW, PING, PONG and SENDs
                do not count. A command in a buffer of its own is decoded in any case.
            events_max: stop after this many events.
            kept_bytes_min: a run of at least so many bytes refers to the arena after all, and has `unused_bytes`; then
                it must not be written to any more.

        Raises:
            ProtocolError: the client does not follow the protocol. The connection must be closed; the events before the
                offending frame are dropped, unanswered.
        """
        events: list[Event] = []
        if self._exact is None:
            end = self.held_bytes + nbytes
        else:
            if nbytes < self.missing_bytes:
                self.held_bytes += nbytes
                self.missing_bytes -= nbytes
                return events
            exact, self._exact = self._exact, None
            self._cut(exact, 0, len(exact), events, keep=exact)
            end = nbytes - self.missing_bytes
        self._view, self._pos, self._kept = arena[:end], 0, False
        self._kept_bytes_min = kept_bytes_min
        self._advance(events, commands_max, events_max)
        self._kept_bytes_min = None
        return events

    def more(self, *, commands_max: int = _ALL, events_max: int = _ALL) -> list[Event]:
        """Decode what follows the last returned events; see `received`."""
        events: list[Event] = []
        if self.whole:
            self._advance(events, commands_max, events_max)
        return events

    def keep(self) -> None:
        """Copy the remaining complete frames: the arena is about to be reused."""
        # A copy is copied again only when half of it was decoded, so all copies together copy each byte about twice.
        if self.whole and (not self._kept or 2 * self._pos > len(self._view)):
            self._view, self._pos, self._kept = memoryview(bytes(self._view[self._pos :])), 0, True

    def peeked(self, view: memoryview, *, commands_max: int = 1, events_max: int = _ALL) -> tuple[list[Event], int]:
        """Decode bytes that were peeked and not received: up to the next SEND, or enough commands or events.

        Called between frames. Returns the events and their bytes; nothing is kept. Args: as `received`.

        Raises:
            ProtocolError: as `received`.
        """
        events: list[Event] = []
        nbytes = self._cut(view, 0, len(view), events, commands_max=commands_max, events_max=events_max, sends=False)
        self.whole = False
        return events, nbytes

    def _advance(self, events: list[Event], commands_max: int, events_max: int) -> None:
        view, end = self._view, len(self._view)
        pos = self._cut(view, self._pos, end, events, commands_max=commands_max, events_max=events_max)
        if self.whole:
            self._pos, self.held_bytes, self.missing_bytes = pos, end - pos, 0
        else:
            self._carry(view[pos:end], alone=pos == 0)
            self._view = _NOTHING

    def _carry(self, unfinished: memoryview, *, alone: bool) -> None:
        self._alone = alone
        self._carried = bytes(unfinished)
        self.held_bytes = len(unfinished)
        if not unfinished:
            self.missing_bytes = 0
        elif self.held_bytes < _SIZE_BYTES:
            self.missing_bytes = _SIZE_BYTES - self.held_bytes
        else:
            self.missing_bytes = _SIZE_BYTES + self._frame_size(unfinished, 0) - self.held_bytes

    def _cut(
        self,
        view: memoryview,
        pos: int,
        end: int,
        events: list[Event],
        *,
        keep: memoryview | None = None,
        commands_max: int = _ALL,
        events_max: int = _ALL,
        sends: bool = True,
    ) -> int:
        """Append the events of complete frames in `view[pos:end]`, up to the limits.

        Returns where the next frame begins, and sets `whole`: whether that frame is complete, too.
        """
        self.whole = False
        while end - pos >= _SIZE_BYTES:
            start = bytes(view[pos + 8 : pos + 10]) if self._connected else b""
            if start == SEND_START and len(events) < events_max and sends:
                run, nbytes = decode_sends(
                    view[pos:end],
                    frame_bytes_max=self._size_max(),
                    bounds=self._bounds,
                    keep=keep,
                    kept_bytes_min=self._kept_bytes_min,
                )
                if run is not None:
                    events.append(run)
                    pos += nbytes
                    continue
            stop = pos + _SIZE_BYTES + self._frame_size(view, pos)
            if stop > end:
                break
            if (
                len(events) >= events_max
                or (start == SEND_START and not sends)
                or (commands_max == 0 and start not in _UNCOUNTED)
            ):
                self.whole = True
                break
            frame = view[pos:stop]
            command = command_of(frame)
            by_hand = start == ACK_START and len(command) <= ACK_BYTES_BY_HAND
            acks = decode_ack(command) if by_hand else None
            if acks is not None and acks.request_id is None:
                events.append(acks)
                pos = stop + take_alike(acks, frame, view[stop:end])
                continue
            if start == FLOW_START and (flow := decode_flow(command)) is not None:
                events.append(flow)
                pos = stop
                continue
            if start not in _SIGNS_OF_LIFE:
                if commands_max == 0:  # It counts after all: an acknowledgement with a response.
                    self.whole = True
                    break
                commands_max -= 1
            events.append(acks if acks is not None else self._checked_event(frame, command, keep))
            pos = stop
        return pos

    def _frame_size(self, view: memoryview, pos: int) -> int:
        """Return the announced size of a frame, without its own four bytes."""
        size: int = _read_u32(view, pos)[0]
        if not _SIZE_BYTES <= size <= self._size_max():
            who = "" if self._connected and self.admitted else " from a client that has not shown who it is"
            raise ProtocolError(f"frame of {size} bytes{who}: want {_SIZE_BYTES} to {self._size_max()}")
        return size

    def _size_max(self) -> int:
        if self._connected and self.admitted:
            return self._frame_bytes_max
        return min(self._frame_bytes_max, GREETING_BYTES_MAX)

    def _checked_event(self, frame: memoryview, command: bytes, keep: memoryview | None) -> Event:
        try:
            self._bounds.check(command)
        except OutOfBounds as refusal:
            if not self._connected and refusal.kind != codec.BaseCommand.CONNECT:
                raise ProtocolError("the first command must be CONNECT") from None
            return RefusedCommand(refusal.kind, refusal.body, refusal.text)
        return self._event(frame, codec.decode_command(command), keep)

    def _event(self, frame: memoryview, command: codec.BaseCommand, keep: memoryview | None) -> Event:
        if not self._connected:
            if not command.HasField("type") or command.type != codec.BaseCommand.CONNECT:
                raise ProtocolError("the first command must be CONNECT")
            self._connected = True
        if command.type == codec.BaseCommand.SEND:
            return decode_send(frame, command, keep=keep)
        event = codec.event_of(command)
        if isinstance(event, Command):
            event.nbytes = len(frame)
        return event


def command_of(frame: memoryview) -> bytes:
    """Return the encoded command of a frame. Raises ProtocolError if it is longer than the frame."""
    command_bytes: int = _read_u32(frame, 4)[0]
    if command_bytes > len(frame) - 8:
        raise ProtocolError(f"command of {command_bytes} bytes in a frame of {len(frame) - 4}")
    return bytes(frame[8 : 8 + command_bytes])


def anonymous_memory(nbytes: int) -> memoryview:
    """Return memory that is resident only as far as it was written.

    Anonymous pages exist from the first write on: the part that has not come yet takes no memory. A bytearray would
    write zeroes to all of it, and a thousand half-sent frames would be resident in full.
    """
    buffer = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_NOHUGEPAGE)  # otherwise the first byte may take 2 MiB
    return memoryview(buffer)
