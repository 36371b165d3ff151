# SPDX-License-Identifier: Apache-2.0
"""What a socket brings: one large buffer that frames are found in, in place.

Why: entries are copied once, from here into Arrow columns; a buffer per read or an object per frame would cost more
than everything else together.
Where: `Connection` fills it and takes frames one by one or, of messages, a whole run at once.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.units import KIB, MIB
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    import socket

    from penstock.spark.client.fields import Ints

# Many reads of the socket fit before what is unfinished has to be moved to the front.
BUFFER_BYTES: Final = 4 * MIB
# Enough for answers; the first run of messages makes it larger.
_FIRST_BYTES: Final = 32 * KIB
# Less room than this at the end, and what is unfinished is moved.
_ROOM_BYTES_MIN: Final = 256 * KIB
# What is moved before it must be, when there will be more of it: a frame that has begun, mostly.
_LITTLE_BYTES: Final = 256 * KIB
# Brokers may be set to larger messages than the usual 5 MiB; whoever announces more than this is no broker.
FRAME_BYTES_MAX: Final = 256 * MIB

_SIZE_BYTES: Final = 4
_NO_FRAMES: Final = np.zeros(0, np.int64)
_read_u32: Final = struct.Struct(">I").unpack_from
# How a MESSAGE's command begins: field 1 (type) = 9.
_MESSAGE_START: Final = b"\x08\x09"
# No MESSAGE is shorter; where its size and its type are.
_HEAD_BYTES: Final = 12
_HEAD_PLACES: Final = [0, 1, 2, 3, 8, 9]
# Fewer frames of one size in a row are not worth looking for; so many are taken one by one before it is tried again.
_ALIKE_FRAMES_MIN: Final = 8
_ONE_BY_ONE_FRAMES: Final = 64


class Inbound:
    """The receiving half of a connection.

    Attributes:
        data: the buffer. What `take` and `take_messages` point into is there until the next `fill`.
    """

    __slots__ = ("_begin", "_end", "data")

    def __init__(self) -> None:
        self.data = bytearray(_FIRST_BYTES)
        self._begin = self._end = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that have come and were not taken."""
        return self._end - self._begin

    def fill(self, peer: socket.socket) -> bool:
        """Read once; False at the end of the stream. Raises what the socket raises."""
        self._make_room()
        with memoryview(self.data) as view:
            nbytes = peer.recv_into(view[self._end :])
        self._end += nbytes
        return nbytes > 0

    def take(self) -> tuple[int, int] | None:
        """Where the next whole frame begins, its size included, and ends.

        Raises:
            ProtocolError: the size it announces cannot be.
        """
        if self._end - self._begin < _SIZE_BYTES:
            return None
        begin = self._begin
        stop = begin + _SIZE_BYTES + self._frame_size(begin)
        if stop > self._end:
            return None
        self._begin = stop
        return begin, stop

    def take_messages(self, frames_max: int) -> tuple[Ints, int]:
        """Take the MESSAGE frames that are next and whole: where each begins, and where the last ends.

        Stops before a frame of another kind, which `take` then gives.

        Raises:
            ProtocolError: as `take`.
        """
        first, end = self._begin, self._end
        at, found, count = first, [], 0
        while count < frames_max:
            alike = self._alike(at, end, frames_max - count)
            if alike < _ALIKE_FRAMES_MIN:
                starts, stop = self._one_by_one(at, end, min(_ONE_BY_ONE_FRAMES, frames_max - count))
            else:
                frame_bytes = _SIZE_BYTES + _read_u32(self.data, at)[0]
                stop = at + alike * frame_bytes
                starts = np.arange(at, stop, frame_bytes)
            if not len(starts):
                break
            found.append(starts)
            at, count = stop, count + len(starts)
        self._begin = at
        return (np.concatenate(found) if found else _NO_FRAMES), at

    def _alike(self, at: int, end: int, frames_max: int) -> int:
        """How many MESSAGE frames of the size of the first follow one another: mostly nearly all of them do."""
        if end - at < _HEAD_BYTES:
            return 0
        frame_bytes = _SIZE_BYTES + _read_u32(self.data, at)[0]
        count = min((end - at) // frame_bytes, frames_max)
        if count < _ALIKE_FRAMES_MIN or frame_bytes < _HEAD_BYTES:
            return 0
        grid = np.frombuffer(self.data, np.uint8, count * frame_bytes, at).reshape(count, frame_bytes)
        wanted = np.frombuffer(self.data[at : at + _SIZE_BYTES] + _MESSAGE_START, np.uint8)
        same = (grid[:, _HEAD_PLACES] == wanted).all(axis=1)
        return count if same.all() else int(same.argmin())

    def _one_by_one(self, at: int, end: int, frames_max: int) -> tuple[Ints, int]:
        data = self.data
        starts: list[int] = []
        # Budget: 0.5 µs per frame on one core; the size is checked once it turns out not to fit.
        while end - at >= _HEAD_BYTES and len(starts) < frames_max and data.startswith(_MESSAGE_START, at + 8):
            stop = at + _SIZE_BYTES + _read_u32(data, at)[0]
            if stop > end:
                self._frame_size(at)
                break
            starts.append(at)
            at = stop
        return np.array(starts, np.int64), at

    def _frame_size(self, at: int) -> int:
        size: int = _read_u32(self.data, at)[0]
        if not _SIZE_BYTES <= size <= FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame of {size} bytes")
        return size

    def _make_room(self) -> None:
        """Let what is unfinished begin the buffer when little is left behind it, and a larger one when it must."""
        held = self._end - self._begin
        if not held:
            self._begin = self._end = 0
        missing = _SIZE_BYTES + self._frame_size(self._begin) - held if held >= _SIZE_BYTES else 0
        wanted = max(missing, min(_ROOM_BYTES_MIN, len(self.data) // 2))
        # Soon it would have to be moved: cheaper now that it is next to nothing.
        early = self._begin > len(self.data) // 2 and held < _LITTLE_BYTES
        if len(self.data) - self._end >= wanted and not early:
            return
        into = self.data
        if held + wanted > len(into):
            into = bytearray(max(BUFFER_BYTES, held + missing + _ROOM_BYTES_MIN))
        with memoryview(into) as to, memoryview(self.data) as data:
            to[:held] = data[self._begin : self._end]
        self.data, self._begin, self._end = into, 0, held
