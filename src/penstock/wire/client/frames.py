# SPDX-License-Identifier: Apache-2.0
"""Frames that a broker sends: one buffer in which they are found, and what each of them says.

Why in place: a reader of whole topics takes thousands of entries a read. It finds them in the buffer and copies each
once; a buffer for each read or an object for each frame would cost more than everything else together.
Where: the owner of a socket reads into `room()` and reports with `filled()`; `ClientConnection` takes the frames.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.core.checksum import SEAL_BYTES, SEAL_MAGIC, is_sealed, seal
from penstock.core.units import KIB, MIB
from penstock.wire import codec
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

# What Pulsar adds to the largest message for the frame around it, and the largest message unless the broker says more.
FRAME_PADDING_BYTES: Final = 10 * KIB
MESSAGE_BYTES_MAX: Final = 5 * MIB
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
# A broker may announce larger messages than the usual 5 MiB; a peer that announces more than this is no broker.
ANNOUNCED_BYTES_MAX: Final = 256 * MIB
# The buffer: enough for answers at first, and what it grows to once more than that comes, unless told otherwise.
_FIRST_BYTES: Final = 4 * KIB
BUFFER_BYTES: Final = 64 * KIB
# Less room than this at the end (or half the buffer), and an unfinished frame is moved to the front.
_ROOM_BYTES_MIN: Final = 256 * KIB
# An unfinished frame of less than this is moved early, when the front half is free.
_LITTLE_BYTES: Final = 256 * KIB

# How a MESSAGE's command begins: field 1 (type) = 9. No MESSAGE is shorter than the sizes, that, and two bytes more.
MESSAGE_START: Final = b"\x08\x09"
_RECEIPT_START: Final = b"\x08\x07"
_HEAD_BYTES: Final = 12
_SIZE_BYTES: Final = 4
_read_u32: Final = struct.Struct(">I").unpack_from
_BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
# Commands that hold numbers only and come by the thousand: their texts need no check.
_WITHOUT_TEXT: Final = frozenset((BaseCommand.MESSAGE, BaseCommand.SEND_RECEIPT))

# The type of a frame whose type a newer broker knows and this version does not.
UNKNOWN: Final = 0
# The body of any command. The generated classes share no useful base.
Body: TypeAlias = Any


class Frame(NamedTuple):
    """One frame, copied out of the buffer: its command, and what follows it (an entry, for MESSAGE)."""

    command: BaseCommand
    entry: bytes

    @property
    def kind(self) -> int:
        """`BaseCommand.Type`, or UNKNOWN."""
        return self.command.type if self.command.HasField("type") else UNKNOWN

    @property
    def body(self) -> Body:
        """The command's own message."""
        return codec.body_in(self.command)

    @property
    def payload(self) -> bytes:
        """The payload of the entry, behind its metadata. Raises ProtocolError when the checksum does not match."""
        entry = entry_in(self.entry)
        if not is_sealed(entry):
            raise ProtocolError("an entry that does not match its checksum")
        return bytes(payload_in(entry))


def decode_frame(data: Buffer, begin: int, stop: int) -> Frame:
    """Decode the frame of `data[begin:stop]`, its size included.

    Raises:
        ProtocolError: its command is longer than the frame, does not parse, or is not complete.
    """
    command_stop = begin + 8 + (_read_u32(data, begin + 4)[0] if stop - begin >= 8 else stop)
    if command_stop > stop:
        raise ProtocolError(f"a command longer than its frame of {stop - begin - _SIZE_BYTES} bytes")
    with memoryview(data) as view:
        command = codec.decode_command(bytes(view[begin + 8 : command_stop]))
        if command.HasField("type"):
            codec.check_body(command, text=command.type not in _WITHOUT_TEXT)
        return Frame(command, bytes(view[command_stop:stop]))


def frame_bytes(data: Buffer, at: int) -> int:
    """How long the frame at `at` is, by the size that it announces and with it."""
    return _SIZE_BYTES + int(_read_u32(data, at)[0])


def entry_in(came: bytes) -> bytes:
    """The sealed entry in what follows a MESSAGE, without the metadata that the broker may have put before it.

    An entry that its producer has not sealed is sealed here. Raises ProtocolError when there is none.
    """
    if came.startswith(_BROKER_METADATA_MAGIC):
        came = came[6 + int.from_bytes(came[2:6], "big") :]
    if len(came) < 4:
        raise ProtocolError("a MESSAGE without an entry")
    return came if came.startswith(SEAL_MAGIC) else seal(came)


def payload_in(entry: Buffer) -> memoryview:
    """Return the bytes behind the metadata of a sealed entry. Raises ProtocolError."""
    start = SEAL_BYTES + 4 + int.from_bytes(entry[SEAL_BYTES : SEAL_BYTES + 4], "big")
    if start > len(entry):
        raise ProtocolError("an entry shorter than its metadata")
    return memoryview(entry)[start:]


class Inbound:
    """The receive buffer of one connection.

    Attributes:
        data: the bytes that were read. Places in it hold until the next `room`.
        begin: where the first frame that was not taken begins.
        end: where what was read ends.
        frame_bytes_max: the largest size that a frame may announce.
    """

    __slots__ = ("_buffer_bytes", "begin", "data", "end", "frame_bytes_max")

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Begin with a small buffer, which grows to `buffer_bytes`, or to the largest frame that comes."""
        self.data = bytearray(min(_FIRST_BYTES, buffer_bytes))
        self.begin = self.end = 0
        self.frame_bytes_max = frame_bytes_max
        self._buffer_bytes = buffer_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and not taken."""
        return self.end - self.begin

    @property
    def is_message(self) -> bool:
        """Whether the next frame, as far as it has come, is a MESSAGE as all known brokers write it."""
        return self.held_bytes >= _HEAD_BYTES and self.data.startswith(MESSAGE_START, self.begin + 8)

    @property
    def is_receipt(self) -> bool:
        """Whether the next frame, as far as it has come, is a SEND_RECEIPT as all known brokers write it."""
        return self.held_bytes >= _HEAD_BYTES and self.data.startswith(_RECEIPT_START, self.begin + 8)

    def room(self) -> memoryview:
        """Where the next read puts its bytes; release it before the next call. Raises ProtocolError."""
        self._make_room()
        return memoryview(self.data)[self.end :]

    def drop(self) -> None:
        """Release the buffer, and what was not taken: the connection is over."""
        self.data = bytearray()
        self.begin = self.end = 0

    def filled(self, nbytes: int) -> None:
        """So many bytes were read into `room()`."""
        self.end += nbytes

    def add(self, data: Buffer) -> None:
        """Append bytes that were read elsewhere. Raises ProtocolError."""
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                with self.room() as room:
                    part = view[at : at + len(room)]
                    room[: len(part)] = part
                self.filled(len(part))
                at += len(part)

    def take(self) -> tuple[int, int] | None:
        """Where the next whole frame begins, its size included, and ends; None when there is none yet.

        Raises:
            ProtocolError: the size that it announces cannot be.
        """
        begin = self.begin
        if self.end - begin < _SIZE_BYTES:
            return None
        stop = begin + _SIZE_BYTES + self.frame_size(begin)
        if stop > self.end:
            return None
        self.begin = stop
        return begin, stop

    def take_frame(self) -> Frame | None:
        """The next whole frame; None when there is none yet. Raises ProtocolError."""
        found = self.take()
        return None if found is None else decode_frame(self.data, *found)

    def frame_size(self, at: int) -> int:
        """The size that the frame at `at` announces, its own four bytes not counted. Raises ProtocolError."""
        size: int = _read_u32(self.data, at)[0]
        if not _SIZE_BYTES <= size <= self.frame_bytes_max:
            raise ProtocolError(f"a frame of {size} bytes: want {_SIZE_BYTES} to {self.frame_bytes_max}")
        return size

    def _make_room(self) -> None:
        """Move what is unfinished to the front when little room is left behind it; grow when it does not fit."""
        held = self.end - self.begin
        # The last read filled the buffer: there is more to read at a time.
        full = self.end == len(self.data) < self._buffer_bytes
        if not held:
            self.begin = self.end = 0
        # Not below 0: there may be whole frames that were not taken yet.
        missing = max(0, _SIZE_BYTES + self.frame_size(self.begin) - held) if held >= _SIZE_BYTES else 0
        wanted = max(missing, min(_ROOM_BYTES_MIN, len(self.data) // 2))
        # Soon it would have to be moved: cheaper now that it is next to nothing.
        early = self.begin > len(self.data) // 2 and held < _LITTLE_BYTES
        if len(self.data) - self.end >= wanted and not early and not full:
            return
        into = self.data
        if full or held + wanted > len(into):
            room_bytes = min(_ROOM_BYTES_MIN, self._buffer_bytes // 2)
            into = bytearray(max(self._buffer_bytes, held + (missing or held) + room_bytes))
        with memoryview(into) as to, memoryview(self.data) as data:
            to[:held] = data[self.begin : self.end]
        self.data, self.begin, self.end = into, 0, held
