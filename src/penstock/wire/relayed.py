# SPDX-License-Identifier: Apache-2.0
"""Cuts a client's stream into frames that a proxy passes on: publishes as columns, all else as the bytes that came.

Why not the broker's reader: a proxy sends nearly everything on unchanged, so decoding it would only cost time. Commands
that a proxy's own limits need are decoded as well. Every command is checked against its limits (`bounds`), as in the
broker, before it is passed on.

Runs of publishes are not copied: they refer to what was read, and are valid until the next read of any connection.
Their checksums are left to the broker. A large frame has a buffer of its own, as in the broker; making one for each
frame costs as much as reading it, so buffers of usual sizes are used again (`SpareBuffers`).
Where: the socket reader of a proxy's client has one. Until `relaying` is set it decodes as `FrameReader` does.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import KIB
from penstock.wire import codec
from penstock.wire.batch_counts import METADATA_WALKED_BYTES_MAX, Implausible, message_count
from penstock.wire.bounds import OutOfBounds
from penstock.wire.codec import BaseCommand
from penstock.wire.events import Command, PublishRun, RefusedCommand, Relayed
from penstock.wire.frame_reader import FrameReader, anonymous_memory, command_of
from penstock.wire.sends import SEND_START, decode_send, decode_sends
from penstock.wire.varints import encode_varint, read_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.wire.events import Event


# ---------------------------------------------------------------------------------------------------------------------
# Counts the messages that a broker sends to one connection, and its answers to SENDs, while a proxy passes them on.
#
#     total:4 | size:4 | MESSAGE | [0e02 size:4 broker's metadata] | [0e01 checksum:4] | size:4 | metadata | payload
#
# Only the heads of MESSAGE frames are looked at: the consumer's id in the command, and the number of messages in the
# metadata. All that one read has brought is counted together. A head that is divided between reads is copied until it
# is whole; there is at most one per connection, of `HEAD_BYTES_MAX`.
#
# Why no columns of frames: a proxy only needs totals. Where: `proxy.response_stream` follows the frames, and calls this
# where messages are counted: for limits of resource groups, and for records of usage.

# A divided head that is longer is not copied, and its entry counts as one message that was not read.
HEAD_BYTES_MAX: Final = 4_096

# Its command's size, and the first bytes of the command.
_MESSAGE_BYTES_MIN: Final = 9
_MESSAGE_START: Final = b"\x08\x09\x4a"
_RECEIPT_START: Final = b"\x08\x07\x3a"
_ERROR_START: Final = b"\x08\x08\x42"
_SEAL_MAGIC: Final = b"\x0e\x01"
_SEAL_BYTES: Final = 6
_BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
_CONSUMER_ID_TAG: Final = 0x08
# Every entry with several messages says so behind this tag, so an entry without such a byte has one.
_MESSAGES_TAG: Final = 0x58
_read_u32: Final = struct.Struct(">I").unpack_from


class Delivered:
    """Counts of what one consumer was sent.

    Attributes:
        entries, messages, bytes: of entries with their metadata, without the command.
        unread: entries of which the number of messages could not be read; each counts as one.
    """

    __slots__ = ("bytes", "entries", "messages", "unread")

    def __init__(self) -> None:
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self.unread = 0


class Answered:
    """Consecutive answers to SENDs of one producer: receipts, or errors."""

    __slots__ = ("producer_id", "sends", "stored")

    def __init__(self, producer_id: int, *, stored: bool) -> None:
        self.producer_id = producer_id
        self.stored = stored
        self.sends = 0


class _TooShort(Exception):
    """A head is not whole yet."""


class MessageCounter:
    """Counts the messages of one connection."""

    __slots__ = ("_answered", "_delivered", "_head", "_head_size", "_starts")

    def __init__(self, *, answers: bool = False) -> None:
        """Args: answers: whether answers to SENDs are counted, too."""
        self._delivered: dict[int, Delivered] = {}
        self._answered: list[Answered] = []
        self._starts = (_MESSAGE_START, _RECEIPT_START, _ERROR_START) if answers else (_MESSAGE_START,)
        self._head = b""
        self._head_size = 0  # of the frame whose head has begun; 0: none has

    def take(self) -> dict[int, Delivered]:
        """Return what was counted since the last call, by consumer id."""
        delivered, self._delivered = self._delivered, {}
        return delivered

    def take_answered(self) -> list[Answered]:
        """Return the answers to SENDs since the last call, in their order."""
        answered, self._answered = self._answered, []
        return answered

    def follow(self, data: bytes, pos: int, checked: Callable[[int], int]) -> int:
        """Count the frames that begin in `data` at `pos` and later; return where the last of them ends or will end.

        Args:
            data: bytes of the broker; a size of four bytes at the end may be missing in part, and is left over.
            pos: where a frame begins.
            checked: returns a frame's size if it is possible, else raises ProtocolError.
        """
        last, end, starts = len(data) - _SIZE_BYTES, len(data), self._starts
        while pos <= last:
            begin = pos + _SIZE_BYTES
            size = checked(_read_u32(data, pos)[0])
            pos = begin + size
            if data.startswith(starts, begin + 4) or end < begin + 7:
                self.begin(data, begin, size)
        return pos

    # Budget: 2 µs per entry of one message on one core, 3 µs per batch; without a counter 0.1 µs.
    def begin(self, data: bytes, begin: int, size: int) -> None:
        """Count a frame of this size whose command's size is at `begin`; it may not have come whole."""
        try:
            self._count(data, begin, size, len(data))
        except _TooShort:
            if len(data) - begin < HEAD_BYTES_MAX:
                self._head, self._head_size = data[begin:], size
            else:
                self._unread(data, begin, size)

    def more(self, data: bytes) -> None:
        """Go on with the frame whose head was not whole, if there is one."""
        size = self._head_size
        if not size:
            return
        missing = min(HEAD_BYTES_MAX, size) - len(self._head)
        head, self._head, self._head_size = self._head + data[:missing], b"", 0
        try:
            self._count(head, 0, size, len(head))
        except _TooShort:
            if len(head) < min(HEAD_BYTES_MAX, size):
                self._head, self._head_size = head, size
            else:
                self._unread(head, 0, size)

    def _count(self, data: bytes, begin: int, size: int, end: int) -> None:
        """Count one frame. Raises _TooShort: its head is not whole in `data`."""
        if size < _MESSAGE_BYTES_MIN:
            return
        if end < begin + _MESSAGE_BYTES_MIN:
            if any(start.startswith(data[begin + 4 : begin + 7]) for start in self._starts):
                raise _TooShort
            return
        if not data.startswith(_MESSAGE_START, begin + 4):
            if data.startswith(self._starts, begin + 4):
                self._count_answer(data, begin, begin + size, end)
            return
        stop = begin + size
        entry = begin + 4 + _read_u32(data, begin)[0]
        consumer_id = self._consumer_id(data, begin, entry, end)
        if consumer_id is None:
            return
        if end < min(entry + 2, stop):
            raise _TooShort
        at = entry
        if data.startswith(_BROKER_METADATA_MAGIC, at):
            at += 6 + self._u32(data, at + 2, end, stop)
            if end < min(at + 2, stop):
                raise _TooShort
            entry = at
        if data.startswith(_SEAL_MAGIC, at):
            at += _SEAL_BYTES
        metadata_stop = at + 4 + self._u32(data, at, end, stop)
        messages, unread = 1, metadata_stop > stop
        if not unread:
            if end < metadata_stop:
                raise _TooShort
            if data.find(_MESSAGES_TAG, at + 4, metadata_stop) >= 0:
                if metadata_stop - at > METADATA_WALKED_BYTES_MAX:
                    unread = True
                else:
                    try:
                        messages = message_count(data[at + 4 : metadata_stop], stop - metadata_stop)
                    except Implausible:
                        unread = True
        self._add(consumer_id, messages, max(0, stop - entry), unread=unread)

    def _count_answer(self, data: bytes, begin: int, stop: int, end: int) -> None:
        producer_id = self._consumer_id(data, begin, stop, end)  # In the same place.
        if producer_id is None:
            return
        stored = data[begin + 5] == _RECEIPT_START[1]
        last = self._answered[-1] if self._answered else None
        if last is None or last.producer_id != producer_id or last.stored is not stored:
            last = Answered(producer_id, stored=stored)
            self._answered.append(last)
        last.sends += 1

    @staticmethod
    def _u32(data: bytes, at: int, end: int, stop: int) -> int:
        """Return a number; one that is not in the frame is too large for it."""
        if at + 4 > stop:
            return stop
        if at + 4 > end:
            raise _TooShort
        number: int = _read_u32(data, at)[0]
        return number

    @staticmethod
    def _consumer_id(data: bytes, begin: int, entry: int, end: int) -> int | None:
        """Return the consumer's id, which all known brokers write first; None if it is not there."""
        try:
            at = begin + 7
            while data[at] > 127:
                at += 1
            if data[at + 1] != _CONSUMER_ID_TAG:
                return None
            number = data[at + 2]
            if number > 127:
                number, at = read_varint(data[at + 2 : at + 12], 0)
        except IndexError:
            if end < entry:
                raise _TooShort from None
            return None
        except OverflowError:
            return None
        return number

    def _unread(self, data: bytes, begin: int, size: int) -> None:
        entry = begin + 4 + _read_u32(data, begin)[0]
        consumer_id = self._consumer_id(data, begin, entry, entry)
        if consumer_id is not None:
            self._add(consumer_id, 1, max(0, begin + size - entry), unread=True)

    def _add(self, consumer_id: int, messages: int, nbytes: int, *, unread: bool) -> None:
        delivered = self._delivered.get(consumer_id)
        if delivered is None:
            delivered = self._delivered[consumer_id] = Delivered()
        delivered.entries += 1
        delivered.messages += messages
        delivered.bytes += nbytes
        delivered.unread += unread


__all__ = ["DECODED", "RelayReader", "SpareBuffers", "is_borrowed", "pick_frames"]

# Commands that are decoded: a proxy answers or delays some of them, and learns from the others what its limits need.
DECODED: Final = frozenset(
    {
        BaseCommand.CONNECT,
        BaseCommand.AUTH_RESPONSE,
        BaseCommand.PRODUCER,
        BaseCommand.CLOSE_PRODUCER,
        BaseCommand.SUBSCRIBE,
        BaseCommand.UNSUBSCRIBE,
        BaseCommand.CLOSE_CONSUMER,
        BaseCommand.FLOW,
        BaseCommand.GET_TOPICS_OF_NAMESPACE,
        BaseCommand.WATCH_TOPIC_LIST,
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
        BaseCommand.LOOKUP,
        BaseCommand.PARTITIONED_METADATA,
    }
)
# So many frames that are not decoded count as one command: cutting one takes 2 µs, handling a command 30 or more.
FRAMES_PER_COMMAND: Final = 16
# Buffers of large frames that are kept for the next ones: batches of clients have at most 128 KiB by default.
SPARE_BYTES: Final = 256 * KIB
SPARES_MAX: Final = 4
_ALL: Final = sys.maxsize
_SIZE_BYTES: Final = 4
_LENGTH_DELIMITED: Final = 2


def _heads() -> dict[bytes, int]:
    """Return how each command begins, as all known clients write it: its type, and the tag of its body."""
    return {
        bytes((0x08, kind)) + encode_varint(kind << 3 | _LENGTH_DELIMITED): kind
        for kind in BaseCommand.Type.values()
        if kind < 128
    }


_HEADS: Final = _heads()
_HEAD_SIZES: Final = (3, 4)


class SpareBuffers:
    """Buffers of large frames that all clients of a proxy use in turn: at most a megabyte is kept."""

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of this size."""
        if nbytes > SPARE_BYTES:
            return anonymous_memory(nbytes)
        return (self._spare.pop() if self._spare else anonymous_memory(SPARE_BYTES))[:nbytes]

    def give_back(self, data: bytes | memoryview) -> None:
        """If these are in a buffer of `take`, keep it for the next frame. Nothing may refer to it any more."""
        if type(data) is memoryview and type(data.obj) is mmap.mmap:
            whole = memoryview(data.obj)
            if len(whole) == SPARE_BYTES and len(self._spare) < SPARES_MAX:
                self._spare.append(whole)


class RelayReader(FrameReader):
    """Cuts the stream of one client of a proxy.

    Attributes:
        relaying: whether frames are passed on. Until then they are decoded, as a broker does.
        spare: the buffers of large frames.
    """

    __slots__ = ("relaying", "spare")

    def __init__(self, *, spare: SpareBuffers | None = None, **limits: Any) -> None:  # noqa: ANN401 - as FrameReader
        super().__init__(**limits)
        self.relaying = False
        self.spare = spare or SpareBuffers()

    def _buffer(self, nbytes: int) -> memoryview:
        return self.spare.take(nbytes) if self.relaying else super()._buffer(nbytes)

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
        """See `FrameReader`. Consecutive frames that are only passed on are one event."""
        if not self.relaying:
            return super()._cut(
                view, pos, end, events, keep=keep, commands_max=commands_max, events_max=events_max, sends=sends
            )
        self.whole = False
        begin, frames_left = pos, min(commands_max, _ALL // FRAMES_PER_COMMAND) * FRAMES_PER_COMMAND
        while end - pos >= _SIZE_BYTES:
            is_send = bytes(view[pos + 8 : pos + 10]) == SEND_START
            if is_send and sends and len(events) < events_max:
                run, nbytes = decode_sends(
                    view[pos:end], frame_bytes_max=self._size_max(), bounds=self._bounds, keep=keep, relayed=True
                )
                if run is not None:
                    _pass_on(view, begin, pos, events)
                    events.append(run)
                    begin = pos = pos + nbytes
                    continue
            stop = pos + _SIZE_BYTES + self._frame_size(view, pos)
            if stop > end:
                break
            if len(events) >= events_max or frames_left <= 0 or (is_send and not sends):
                self.whole = True
                break
            event = self._event_to_relay(view[pos:stop], keep)
            frames_left -= 1 if event is None else FRAMES_PER_COMMAND
            if event is not None:
                _pass_on(view, begin, pos, events)
                events.append(event)
                begin = stop
            pos = stop
        _pass_on(view, begin, pos, events)
        return pos

    def _event_to_relay(self, frame: memoryview, keep: memoryview | None) -> Event | None:
        """Return the event of a frame that has one of its own; None: it is only passed on."""
        encoded = command_of(frame)
        try:
            self._bounds.check(encoded)
        except OutOfBounds as refusal:
            return RefusedCommand(refusal.kind, refusal.body, refusal.text)
        kind = _kind_of(encoded)
        if kind is not None and kind not in DECODED:
            return None
        command = codec.decode_command(encoded)
        if not command.HasField("type"):
            return None  # A command of a newer protocol: the broker may know it.
        if command.type == BaseCommand.SEND:
            return decode_send(frame, command, keep=keep, relayed=True)
        if command.type not in DECODED:
            return None
        codec.check_body(command)
        return Relayed(bytes(frame), Command(command.type, codec.body_in(command), len(frame)))


def pick_frames(run: PublishRun, rows: Sequence[int]) -> PublishRun:
    """Return a run of these rows, in their order, with a copy of their frames. `run` holds whole frames, in a row."""
    view = memoryview(run.data)
    starts = [0, *(offset + length for offset, length in zip(run.offsets, run.lengths, strict=True))]
    frames, offsets, nbytes = [], [], 0
    for row in rows:
        start, stop = starts[row], starts[row + 1]
        frames.append(view[start:stop])
        offsets.append(nbytes + run.offsets[row] - start)
        nbytes += stop - start
    return PublishRun(
        b"".join(frames),
        [run.producer_ids[row] for row in rows],
        [run.sequence_ids[row] for row in rows],
        offsets,
        [run.lengths[row] for row in rows],
        None if run.message_counts is None else [run.message_counts[row] for row in rows],
    )


def is_borrowed(data: bytes | bytearray | memoryview) -> bool:
    """Whether these bytes of an event are overwritten by the next read: they have no memory of their own."""
    return type(data) is memoryview and type(data.obj) is not mmap.mmap


def _pass_on(view: memoryview, begin: int, end: int, events: list[Event]) -> None:
    if end > begin:
        events.append(Relayed(bytes(view[begin:end])))


def _kind_of(encoded: bytes) -> int | None:
    """Return the type of a command that is written as usual: its type, and one body up to its end; None for others.

    Protobuf uses the last of several types, so a command that only begins like a PING need not be one.
    """
    for size in _HEAD_SIZES:
        kind = _HEADS.get(encoded[:size])
        if kind is not None:
            length, shift, at = 0, 0, size
            while at < len(encoded):
                byte = encoded[at]
                length |= (byte & 127) << shift
                shift += 7
                at += 1
                if byte < 128:
                    return kind if at + length == len(encoded) else None
    return None
