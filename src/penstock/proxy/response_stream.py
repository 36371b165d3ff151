# SPDX-License-Identifier: Apache-2.0
"""Where frames end in what a broker sends, so that a proxy can add answers of its own between them.

Why no buffer: a proxy passes pieces of frames on as they come; only the four bytes of each frame's size are looked at.
If messages are counted, so are the heads of MESSAGE frames (`wire.relayed`).
Where: `relay` passes everything through one. Pure.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.wire.relayed import MessageCounter

_SIZE_BYTES: Final = 4
_read_u32: Final = struct.Struct(">I").unpack_from


class ResponseStream:
    """Follows the frames of one connection of a broker.

    Attributes:
        frame_bytes_max: the largest size that a frame may announce.
        counter: counts messages, from the next frame on; None: messages are not counted.
    """

    __slots__ = ("_left_bytes", "_size", "_waiting", "counter", "frame_bytes_max")

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.counter: MessageCounter | None = None
        self._left_bytes = 0  # of the frame that has begun, behind its size
        self._size = b""  # the first bytes of a size that has not come whole
        self._waiting: list[bytes] = []  # frames to add at the next end of a frame

    @property
    def between_frames(self) -> bool:
        """Whether the last frame has come whole."""
        return not self._left_bytes and not self._size

    @property
    def unfinished(self) -> tuple[int, bytes]:
        """How many bytes of the last frame are missing, and the part of a size that has come."""
        return self._left_bytes, self._size

    @property
    def next_stop(self) -> int:
        """How many bytes are missing of the frame that has begun; of its size, if that has not come whole."""
        return self._left_bytes or _SIZE_BYTES - len(self._size)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the proxy's own frames that wait."""
        return sum(map(len, self._waiting))

    def add(self, frame: bytes) -> Iterable[bytes]:
        """Return what to send now for a frame of the proxy's own; while another frame is unfinished it waits."""
        if self.between_frames:
            return (frame,)
        self._waiting.append(frame)
        return ()

    def passed(self, data: bytes) -> Iterable[bytes]:
        """Return what to send on for the next bytes of the broker: these, and frames that waited.

        Raises:
            ProtocolError: a size that no broker announces; the stream cannot be followed any more.
        """
        if self.counter is not None and self._left_bytes:
            self.counter.more(data)
        if self._left_bytes > len(data):
            self._left_bytes -= len(data)
            return (data,)
        end = self._left_bytes if not self._size else 0
        if self._waiting and not self._size:
            waiting, self._waiting = self._waiting, []
            head = (data[:end], *waiting) if end else tuple(waiting)
            self._follow(data, end)
            return (*head, data[end:]) if end < len(data) else head
        self._follow(data, end)
        if self._waiting and self.between_frames:
            waiting, self._waiting = self._waiting, []
            return (data, *waiting)
        return (data,)

    def _follow(self, data: bytes, pos: int) -> None:
        """Follow the frames that begin in `data` at `pos`, with the part of a size that came before."""
        if self._size:
            missing = _SIZE_BYTES - len(self._size)
            self._size += data[pos : pos + missing]
            pos += missing
            if len(self._size) < _SIZE_BYTES:
                return
            size = self._checked(_read_u32(self._size)[0])
            if self.counter is not None:
                self.counter.begin(data, pos, size)
            pos += size
            self._size = b""
        if self.counter is not None:
            pos = self.counter.follow(data, pos, self._checked)
        else:
            last = len(data) - _SIZE_BYTES
            while pos <= last:
                pos += _SIZE_BYTES + self._checked(_read_u32(data, pos)[0])
        if pos < len(data):
            self._left_bytes, self._size = 0, data[pos:]
        else:
            self._left_bytes = pos - len(data)

    def _checked(self, size: int) -> int:
        if not _SIZE_BYTES <= size <= self.frame_bytes_max:
            raise ProtocolError(
                f"the broker sent a frame of {size} bytes: want {_SIZE_BYTES} to {self.frame_bytes_max}"
            )
        return size
