# SPDX-License-Identifier: Apache-2.0
"""Frames as clients make them, in the ways the protocol allows; and a reader that is fed them in pieces."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.checksum import seal
from penstock.wire import codec
from penstock.wire.events import AckRun, Command, Event, PublishRun
from penstock.wire.frame_reader import FrameReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

FRAME_BYTES_MAX = 1 << 20
ARENA_BYTES = 80 * 1024


def varint(value: int, width: int = 1) -> bytes:
    """An unsigned number in at least `width` bytes."""
    encoded: list[int] = []
    while value > 127 or len(encoded) < width - 1:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


def inside(number: int, data: bytes) -> bytes:
    """A field that holds bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def frame(command: bytes, payload: bytes = b"") -> bytes:
    """A frame around an encoded command."""
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def command_frame(kind: int, body: Message) -> bytes:
    """A frame with a simple command."""
    return codec.encode(kind, body)


def connect() -> bytes:
    """What every client says first."""
    return command_frame(codec.BaseCommand.CONNECT, codec.CommandConnect(client_version="test", protocol_version=21))


def entry_body(payload: bytes = b"payload", *, sequence_id: int = 0, **metadata: Any) -> bytes:  # noqa: ANN401 - as the class takes them
    """What an entry holds behind its seal: metadata size, metadata, payload."""
    about = codec.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1_000, **metadata)
    encoded = about.SerializeToString()
    return struct.pack(">I", len(encoded)) + encoded + payload


def send(producer_id: int, sequence_id: int, *, entry: bytes | None = None, **fields: Any) -> bytes:  # noqa: ANN401
    """A SEND as the generated classes write it."""
    body = codec.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    command = codec.BaseCommand(type=codec.BaseCommand.SEND, send=body).SerializeToString()
    messages = fields.get("num_messages", 1)
    if entry is None:
        batch = {"num_messages_in_batch": messages} if messages > 1 else {}
        entry = seal(entry_body(b"message" * max(messages, 1), sequence_id=sequence_id, **batch))
    return frame(command, entry)


@dataclass
class Heard:
    """What a reader said, with runs taken apart into rows."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Note one event, in order."""
        self.events.append(event)
        if isinstance(event, PublishRun):
            self.rows += rows_of(event)
        elif isinstance(event, Command):
            self.rows.append((event.type, event.body.SerializeToString(deterministic=True)))
        elif isinstance(event, AckRun):
            self._add_ack(event)
        else:
            self.rows.append((event,))

    def _add_ack(self, ack: AckRun) -> None:
        """Note its ids one by one: how many commands made a run depends on the read."""
        same = (ack.consumer_id, ack.cumulative, ack.request_id, ack.validation_error, ack.transaction)
        ids = list(zip(ack.ledger_ids, ack.entry_ids, strict=True))
        self.rows += [(*same, *ids[row], ack.ack_sets.get(row)) for row in range(len(ids))] or [same]


def rows_of(run: PublishRun) -> list[tuple[Any, ...]]:
    """(producer id, sequence id, entry, messages, highest, unsealed, corrupt, transaction, rare command) of a row."""
    assert len(run.producer_ids) == len(run.sequence_ids) == len(run.offsets) == len(run.lengths)
    return [
        (
            run.producer_ids[row],
            run.sequence_ids[row],
            bytes(run.data[run.offsets[row] : run.offsets[row] + run.lengths[row]]),
            1 if run.message_counts is None else run.message_counts[row],
            0 if run.highest is None else run.highest[row],
            row in run.unsealed,
            row in run.corrupt,
            run.transaction_rows().get(row),
            run.rare[row].SerializeToString() if row in run.rare else None,
        )
        for row in range(len(run.offsets))
    ]


class Feeder:
    """A reader and its arena, which forgets its contents after every read, as one shared with others does."""

    def __init__(
        self, *, frame_bytes_max: int = FRAME_BYTES_MAX, connected: bool = True, commands_max: int | None = None
    ) -> None:
        self.reader = FrameReader(frame_bytes_max=frame_bytes_max)
        self.commands_max = commands_max  # how many commands it asks for at a time; None for all
        self.reader.admitted = True
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.heard = Heard()
        if connected:
            self.feed(connect())
            self.heard = Heard()

    def feed(self, data: bytes) -> None:
        """Hand over some bytes, in as many reads as the buffers make of them."""
        while data:
            data = data[self.read(data) :]

    def read(self, data: bytes) -> int:
        """One read; returns how much of `data` it took."""
        taken = 0
        for buffer in self.reader.buffers(self.arena):
            part = data[taken : taken + len(buffer)]
            buffer[: len(part)] = part
            taken += len(part)
        wanted = {} if self.commands_max is None else {"commands_max": self.commands_max}
        self._hear(self.reader.received(self.arena, taken, **wanted))
        while self.reader.whole:
            self.reader.keep()
            self.arena[:] = b"\xaa" * len(self.arena)
            self._hear(self.reader.more(**wanted))
        self.arena[:] = b"\xaa" * len(self.arena)
        return taken

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            self.heard.add(event)


def hear(chunks: Iterable[bytes]) -> list[tuple[Any, ...]]:
    """All that a connected reader says to these bytes."""
    feeder = Feeder()
    for chunk in chunks:
        feeder.feed(chunk)
    assert feeder.reader.held_bytes == feeder.reader.missing_bytes == 0
    return feeder.heard.rows
