# SPDX-License-Identifier: Apache-2.0
"""Bytes to events: cuts one client's stream into frames and says what they mean.

Why no sockets: the same object serves a broker's connection, a test that cuts the stream at every byte, and a fuzzer.
Where: the owner of the socket reads into `buffers(...)`, reports with `received(...)`, and acts on the events.

Theory of operation
    All connections of a loop read into one arena, one after another; nothing of a connection may stay there. So the
    start of an unfinished frame is carried over in a copy of its own and put back before the next read. A frame so
    large that this would copy it again and again gets a buffer of exactly its size, which the publish run then keeps.
    That buffer is made when the rest is about to be read, not when the size is seen: until the owner has found memory
    for the rest, only what has arrived is held.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final

from penstock.wire import codec
from penstock.wire.acks import ACK_START, FLOW_START, decode_ack, decode_flow, take_alike
from penstock.wire.errors import ProtocolError
from penstock.wire.layouts import SEND_START
from penstock.wire.runs import decode_send, decode_sends

if TYPE_CHECKING:
    from penstock.wire.events import Event

__all__ = ["LARGE_FRAME_BYTES", "FrameReader", "ProtocolError"]

# From this size on, an unfinished frame gets its own buffer. Below, carrying its start over costs less than one more
# allocation and a scatter read.
LARGE_FRAME_BYTES: Final = 64 * 1024

_SIZE_BYTES: Final = 4
_read_u32: Final = struct.Struct(">I").unpack_from


class FrameReader:
    """The reading half of one connection.

    Attributes:
        held_bytes: bytes of an unfinished frame which this object keeps; 0 between frames.
        missing_bytes: how many more bytes finish that frame, or tell its size; 0 between frames.
    """

    __slots__ = ("_carried", "_connected", "_exact", "_frame_bytes_max", "held_bytes", "missing_bytes")

    def __init__(self, *, frame_bytes_max: int) -> None:
        """Refuse frames that announce more than `frame_bytes_max` bytes."""
        self.held_bytes = 0
        self.missing_bytes = 0
        self._frame_bytes_max = frame_bytes_max
        self._connected = False  # whether the first frame has come, and was CONNECT
        self._carried = b""  # the start of an unfinished frame, or
        self._exact: memoryview | None = None  # a buffer of its size, filled up to `held_bytes`

    def buffers(self, arena: memoryview) -> list[memoryview]:
        """Where the next read must put its bytes, in order. May be asked again when nothing was read.

        Args:
            arena: writable, larger than LARGE_FRAME_BYTES + 4, and not used for anything else before `received`.
        """
        if self._exact is None and self.held_bytes >= _SIZE_BYTES:
            frame_bytes = self.held_bytes + self.missing_bytes
            if frame_bytes > LARGE_FRAME_BYTES:
                # Anonymous pages exist from the first write on: what has not come yet takes no memory. A bytearray
                # would write zeroes to all of it, and a thousand half-sent frames would be resident in full.
                buffer = mmap.mmap(-1, frame_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                buffer.madvise(mmap.MADV_NOHUGEPAGE)  # or the first byte may bring in 2 MiB
                self._exact = memoryview(buffer)
                self._exact[: self.held_bytes] = self._carried
                self._carried = b""
        if self._exact is not None:
            return [self._exact[self.held_bytes :], arena]
        arena[: self.held_bytes] = self._carried
        return [arena[self.held_bytes :]]

    def received(self, arena: memoryview, nbytes: int) -> list[Event]:
        """Decode what a read of `nbytes` brought into `buffers(arena)`; the events own all they refer to.

        Raises:
            ProtocolError: the peer does not speak the protocol. The connection must be closed; what came before the
                offending frame in the same read is dropped with it, unanswered.
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
            self._cut(exact, len(exact), events, keep=exact)
            end = nbytes - self.missing_bytes
        pos = self._cut(arena, end, events)
        self._carry(arena[pos:end])
        return events

    def _carry(self, unfinished: memoryview) -> None:
        self._carried = bytes(unfinished)
        self.held_bytes = len(unfinished)
        if not unfinished:
            self.missing_bytes = 0
        elif self.held_bytes < _SIZE_BYTES:
            self.missing_bytes = _SIZE_BYTES - self.held_bytes
        else:
            self.missing_bytes = _SIZE_BYTES + self._frame_size(unfinished, 0) - self.held_bytes

    def _cut(self, view: memoryview, end: int, events: list[Event], keep: memoryview | None = None) -> int:
        """Append the events of all whole frames in `view[:end]`; returns where the unfinished one begins."""
        pos = 0
        while end - pos >= _SIZE_BYTES:
            start = bytes(view[pos + 8 : pos + 10]) if self._connected else b""
            if start == SEND_START:
                run, nbytes = decode_sends(view[pos:end], frame_bytes_max=self._frame_bytes_max, keep=keep)
                if run is not None:
                    events.append(run)
                    pos += nbytes
                    continue
            stop = pos + _SIZE_BYTES + self._frame_size(view, pos)
            if stop > end:
                break
            frame = view[pos:stop]
            command = _command_of(frame)
            pos = stop
            if start == ACK_START and (acks := decode_ack(command)) is not None:
                events.append(acks)
                pos += take_alike(acks, frame, view[stop:end])
            elif start == FLOW_START and (flow := decode_flow(command)) is not None:
                events.append(flow)
            else:
                events.append(self._event(frame, codec.decode_command(command), keep))
        return pos

    def _frame_size(self, view: memoryview, pos: int) -> int:
        """What a frame announces, its own four bytes not counted."""
        size: int = _read_u32(view, pos)[0]
        if not _SIZE_BYTES <= size <= self._frame_bytes_max:
            raise ProtocolError(f"frame of {size} bytes: want {_SIZE_BYTES} to {self._frame_bytes_max}")
        return size

    def _event(self, frame: memoryview, command: codec.BaseCommand, keep: memoryview | None) -> Event:
        if not self._connected:
            if not command.HasField("type") or command.type != codec.BaseCommand.CONNECT:
                raise ProtocolError("the first command must be CONNECT")
            self._connected = True
        if command.type == codec.BaseCommand.SEND:
            return decode_send(frame, command, keep=keep)
        return codec.event_of(command)


def _command_of(frame: memoryview) -> bytes:
    command_bytes: int = _read_u32(frame, 4)[0]
    if command_bytes > len(frame) - 8:
        raise ProtocolError(f"command of {command_bytes} bytes in a frame of {len(frame) - 4}")
    return bytes(frame[8 : 8 + command_bytes])
