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
import sys
from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import KIB
from penstock.wire import codec
from penstock.wire.bounds import OutOfBounds
from penstock.wire.codec import BaseCommand
from penstock.wire.events import Command, PublishRun, RefusedCommand, Relayed
from penstock.wire.frame_reader import FrameReader, anonymous_memory, command_of
from penstock.wire.layouts import SEND_START
from penstock.wire.runs import decode_send, decode_sends
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.wire.events import Event

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
