# SPDX-License-Identifier: Apache-2.0
"""Entries from the inside: their messages as columns, whatever way they were sent.

An entry holds one message, or a batch of them, each behind a metadata of its own; the whole may be compressed; or it
holds a piece of a message that was too large (`chunks`). Everything that cannot be read where it lies is copied, plain,
into one new buffer first, so that the rest works on columns of positions only.
Where: the reader decodes each run of entries; `rows` makes Arrow columns out of what comes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf.message import DecodeError

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import MIB
from penstock.spark.client.deliveries import Deliveries, assembled
from penstock.spark.client.errors import UnreadableEntry
from penstock.spark.client.fields import NO_FIELD, Field, has, last_of, spans_of, walk, windows
from penstock.spark.client.message_id import MessageId
from penstock.wire import compression
from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.errors import ProtocolError
from penstock.wire.varints import read_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.spark.client.chunks import Chunks
    from penstock.spark.client.encryption import Decryption
    from penstock.spark.client.fields import Bytes, Ints

# MessageMetadata
_PRODUCER, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES, _KEY = 1, 2, 3, 4, 6
_COMPRESSION, _UNCOMPRESSED_BYTES, _BATCH_MESSAGES, _EVENT_TIME, _ENCRYPTION = 8, 9, 11, 12, 13
_SCHEMA_VERSION, _KEY_IS_BASE64, _MARKER, _NULL_VALUE, _UUID = 16, 17, 20, 25, 26
_CHUNKS, _CHUNK_ID = 27, 29
_WANTED: Final = frozenset(
    (
        *(_PRODUCER, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES, _KEY, _COMPRESSION, _UNCOMPRESSED_BYTES),
        *(_BATCH_MESSAGES, _EVENT_TIME, _ENCRYPTION, _SCHEMA_VERSION, _KEY_IS_BASE64, _MARKER, _NULL_VALUE),
        *(_UUID, _CHUNKS, _CHUNK_ID),
    )
)
# SingleMessageMetadata
_S_PROPERTIES, _S_KEY, _S_COMPACTED_OUT, _S_EVENT_TIME, _S_KEY_IS_BASE64, _S_SEQUENCE_ID, _S_NULL_VALUE = (
    *(1, 2, 4, 5),
    *(6, 8, 9),
)
_S_WANTED: Final = frozenset(
    (_S_PROPERTIES, _S_KEY, _S_COMPACTED_OUT, _S_EVENT_TIME, _S_KEY_IS_BASE64, _S_SEQUENCE_ID, _S_NULL_VALUE)
)
_S_PAYLOAD_SIZE_TAG: Final = 0x18
_S_TEXT_TAGS: Final = frozenset((0x0A, 0x12))  # properties and key, which every known client writes before the size

_SIZE_BYTES: Final = 4
# Fewer messages are not worth looking whether they are of one size, nor is much that stands before a value.
_ALIKE_MESSAGES_MIN: Final = 16
_ALIKE_HEAD_BYTES_MAX: Final = 256

# Compressed entries are made plain so many bytes at a time, unless one alone is larger.
_PLAIN_BYTES_MAX: Final = 32 * MIB

_read_u32: Final = struct.Struct(">I").unpack_from


@dataclass(slots=True)
class Messages:
    """Messages, a row each. Positions are into `data`; -1 says that there is none."""

    data: Bytes
    ledger_ids: Ints
    entry_ids: Ints
    batch_indexes: Ints  # -1 outside a batch
    batch_sizes: Ints  # 0 outside a batch
    value_starts: Ints  # -1: a null value
    value_stops: Ints
    key_starts: Ints
    key_stops: Ints
    key_is_base64: NDArray[np.bool_]
    publish_ms: Ints
    event_ms: Ints  # 0: none
    sequence_ids: Ints
    producer_starts: Ints
    producer_stops: Ints
    schema_starts: Ints  # of the schema's version
    schema_stops: Ints
    properties: Field  # KeyValue messages, by row

    def __len__(self) -> int:
        return len(self.entry_ids)

    def chosen(self, rows: NDArray[np.bool_]) -> Messages:
        """Some of them."""
        columns = {name: getattr(self, name)[rows] for name in self.__slots__ if name not in {"data", "properties"}}
        return Messages(data=self.data, properties=_renumbered(self.properties, rows), **columns)


def decode(entries: Deliveries, topic: str, chunks: Chunks, decryption: Decryption) -> Iterator[Messages]:
    """All messages of some entries of one topic, in order; in several parts when they take much memory.

    Args:
        entries: whose checksums hold.
        topic: for the text of errors.
        chunks: puts large messages together.
        decryption: of entries that are encrypted.

    Raises:
        EncryptedMessage, UnreadableEntry: an entry that cannot be read here. UnusableFile: a key.
    """
    try:
        fields = _fields(entries)
        if _ENCRYPTION in fields:
            entries = decryption.decrypted(entries, topic)
            fields = _fields(entries)
        if len(entries) > 1 and _plain_bytes(fields) > _PLAIN_BYTES_MAX:
            half = len(entries) // 2
            yield from decode(entries.chosen(slice(half)), topic, chunks, decryption)
            yield from decode(entries.chosen(slice(half, None)), topic, chunks, decryption)
            return
        plain = _plain(entries, fields, topic, chunks)
        if plain is not entries:
            entries, fields = plain, _fields(plain)
        if len(entries):
            yield _of_batches(entries, fields, topic) if _BATCH_MESSAGES in fields else _of_entries(entries, fields)
    except (ProtocolError, DecodeError) as error:
        first, last = _id_of(entries, 0), _id_of(entries, len(entries) - 1)
        raise UnreadableEntry(topic, f"{first} to {last}", str(error)) from error


def message_count(entries: Deliveries) -> int:
    """How many messages the entries hold, as the broker counts permits: what a batch says, else one."""
    said = walk(entries.data, entries.metadata_starts, entries.payload_starts, {_BATCH_MESSAGES})
    return int(last_of(said.get(_BATCH_MESSAGES), len(entries), 1).sum())


def _plain_bytes(fields: dict[int, Field]) -> int:
    """Return the bytes that compressed entries take when decompressed."""
    return int(fields[_UNCOMPRESSED_BYTES].values.sum()) if _UNCOMPRESSED_BYTES in fields else 0


def _fields(entries: Deliveries) -> dict[int, Field]:
    return walk(entries.data, entries.metadata_starts, entries.payload_starts, _WANTED)


def _id_of(entries: Deliveries, row: int) -> MessageId:
    return MessageId(int(entries.ledger_ids[row]), int(entries.entry_ids[row]))


# -- plain ------------------------------------------------------------------------------------------------------------


def _plain(entries: Deliveries, fields: dict[int, Field], topic: str, chunks: Chunks) -> Deliveries:
    """The same entries without compression, markers and pieces: themselves, if there are none."""
    if not {_COMPRESSION, _MARKER, _CHUNKS} & fields.keys():
        return entries
    count = len(entries)
    kinds = last_of(fields.get(_COMPRESSION), count)
    pieces = last_of(fields.get(_CHUNKS), count, 1)
    marked = has(fields.get(_MARKER), count)
    if not kinds.any() and (pieces <= 1).all():
        return entries.chosen(~marked) if marked.any() else entries
    sizes = last_of(fields.get(_UNCOMPRESSED_BYTES), count)
    uuids, chunk_ids = spans_of(fields.get(_UUID), count), last_of(fields.get(_CHUNK_ID), count)
    data = memoryview(entries.data)  # type: ignore[arg-type]  # arrays are buffers
    parts: list[memoryview | bytes] = []
    kept = np.zeros(count, np.bool_)
    for row in np.flatnonzero(~marked).tolist():
        metadata = data[entries.metadata_starts[row] : entries.payload_starts[row]]
        payload: memoryview | bytes = data[entries.payload_starts[row] : entries.payload_stops[row]]
        if pieces[row] > 1:
            uuid = bytes(data[uuids[0][row] : uuids[1][row]])
            whole = chunks.add(uuid, int(chunk_ids[row]), int(pieces[row]), bytes(payload), _id_of(entries, row))
            if whole is None:
                continue
            payload = whole
        kept[row] = True
        parts += (metadata, _decompressed(int(kinds[row]), payload, int(sizes[row]), topic, _id_of(entries, row)))
    return assembled(entries, kept, parts)


def _decompressed(
    kind: int, payload: memoryview | bytes, size: int, topic: str, message_id: MessageId
) -> memoryview | bytes:
    if kind == compression.NONE:
        return payload
    try:
        return compression.decompress(kind, bytes(payload), size)
    except (ProtocolError, UnsupportedVersion) as error:
        raise UnreadableEntry(topic, str(message_id), str(error)) from error


# -- one message an entry ---------------------------------------------------------------------------------------------


def _of_entries(entries: Deliveries, fields: dict[int, Field]) -> Messages:
    count = len(entries)
    keys = spans_of(fields.get(_KEY), count)
    producers = spans_of(fields.get(_PRODUCER), count)
    schemas = spans_of(fields.get(_SCHEMA_VERSION), count)
    null = last_of(fields.get(_NULL_VALUE), count) != 0
    return Messages(
        data=entries.data,
        ledger_ids=entries.ledger_ids,
        entry_ids=entries.entry_ids,
        batch_indexes=np.full(count, -1, np.int64),
        batch_sizes=np.zeros(count, np.int64),
        value_starts=np.where(null, -1, entries.payload_starts) if null.any() else entries.payload_starts,
        value_stops=np.where(null, -1, entries.payload_stops) if null.any() else entries.payload_stops,
        key_starts=keys[0],
        key_stops=keys[1],
        key_is_base64=last_of(fields.get(_KEY_IS_BASE64), count) != 0,
        publish_ms=last_of(fields.get(_PUBLISH_TIME), count),
        event_ms=last_of(fields.get(_EVENT_TIME), count),
        sequence_ids=last_of(fields.get(_SEQUENCE_ID), count),
        producer_starts=producers[0],
        producer_stops=producers[1],
        schema_starts=schemas[0],
        schema_stops=schemas[1],
        properties=fields.get(_PROPERTIES, NO_FIELD),
    )


# -- batches ----------------------------------------------------------------------------------------------------------


def _of_batches(entries: Deliveries, fields: dict[int, Field], topic: str) -> Messages:
    """At least one entry is a batch; one that is none counts as a message whose metadata is the entry's."""
    count = len(entries)
    in_batch = has(fields.get(_BATCH_MESSAGES), count)
    sizes = np.where(in_batch, last_of(fields.get(_BATCH_MESSAGES), count, 1), 1)
    if (sizes < 0).any():
        raise ProtocolError("a batch of a negative number of messages")
    heads, starts, stops = _members(entries, in_batch, sizes, topic)
    rows = np.repeat(np.arange(count), sizes)
    outer = _of_entries(entries, fields)
    inner = _of_members(entries.data, heads, starts)
    alone = ~in_batch[rows]
    firsts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    null = np.where(alone, outer.value_starts[rows] < 0, inner.null)
    messages = Messages(
        data=entries.data,
        ledger_ids=entries.ledger_ids[rows],
        entry_ids=entries.entry_ids[rows],
        batch_indexes=np.where(alone, -1, np.arange(len(rows)) - firsts),
        batch_sizes=np.where(alone, 0, sizes[rows]),
        value_starts=np.where(null, -1, starts),
        value_stops=np.where(null, -1, stops),
        key_starts=np.where(alone, outer.key_starts[rows], inner.key_starts),
        key_stops=np.where(alone, outer.key_stops[rows], inner.key_stops),
        key_is_base64=np.where(alone, outer.key_is_base64[rows], inner.key_is_base64),
        publish_ms=outer.publish_ms[rows],
        event_ms=np.where(alone, outer.event_ms[rows], inner.event_ms),
        sequence_ids=np.where(inner.has_sequence_id, inner.sequence_ids, outer.sequence_ids[rows]),
        producer_starts=outer.producer_starts[rows],
        producer_stops=outer.producer_stops[rows],
        schema_starts=outer.schema_starts[rows],
        schema_stops=outer.schema_stops[rows],
        properties=_merged(outer.properties, inner.properties, in_batch, firsts_of=np.cumsum(sizes) - sizes),
    )
    return messages.chosen(~inner.compacted_out) if inner.compacted_out.any() else messages


@dataclass(slots=True)
class _Members:
    """Own metadata of messages in batches; a message outside a batch has none."""

    key_starts: Ints
    key_stops: Ints
    key_is_base64: NDArray[np.bool_]
    event_ms: Ints
    sequence_ids: Ints
    has_sequence_id: NDArray[np.bool_]
    null: NDArray[np.bool_]
    compacted_out: NDArray[np.bool_]
    properties: Field


def _of_members(data: Bytes, heads: Ints, stops: Ints) -> _Members:
    count = len(heads)
    fields = walk(data, heads, stops, _S_WANTED)
    keys = spans_of(fields.get(_S_KEY), count)
    return _Members(
        key_starts=keys[0],
        key_stops=keys[1],
        key_is_base64=last_of(fields.get(_S_KEY_IS_BASE64), count) != 0,
        event_ms=last_of(fields.get(_S_EVENT_TIME), count),
        sequence_ids=last_of(fields.get(_S_SEQUENCE_ID), count),
        has_sequence_id=has(fields.get(_S_SEQUENCE_ID), count),
        null=last_of(fields.get(_S_NULL_VALUE), count) != 0,
        compacted_out=last_of(fields.get(_S_COMPACTED_OUT), count) != 0,
        properties=fields.get(_S_PROPERTIES, NO_FIELD),
    )


def _members(entries: Deliveries, in_batch: NDArray[np.bool_], sizes: Ints, topic: str) -> tuple[Ints, Ints, Ints]:
    """Of each message: where its own metadata begins, where its value begins (and the metadata ends) and stops."""
    if in_batch.all() and (alike := _members_alike(entries, sizes)) is not None:
        return alike
    data = memoryview(entries.data)  # type: ignore[arg-type]  # arrays are buffers
    heads: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    columns = zip(
        in_batch.tolist(), sizes.tolist(), entries.payload_starts.tolist(), entries.payload_stops.tolist(), strict=True
    )
    for row, (batch, size, at, stop) in enumerate(columns):
        if not batch:
            heads.append(at)
            starts.append(at)
            stops.append(stop)
            continue
        try:
            ended = _split(data, at, size, (heads.append, starts.append, stops.append))
        except (IndexError, struct.error, OverflowError, DecodeError) as error:
            raise UnreadableEntry(topic, str(_id_of(entries, row)), f"a batch of {size} that breaks off") from error
        if ended > stop:
            raise UnreadableEntry(topic, str(_id_of(entries, row)), f"a batch of {size} longer than its entry")
    return np.array(heads, np.int64), np.array(starts, np.int64), np.array(stops, np.int64)


def _members_alike(entries: Deliveries, sizes: Ints) -> tuple[Ints, Ints, Ints] | None:
    """As `_members`, of batches whose messages are all as long as the first, each part of them; None otherwise."""
    data, view = entries.data, memoryview(entries.data)  # type: ignore[arg-type]
    count, at = int(sizes.sum()), int(entries.payload_starts[0])
    if count < _ALIKE_MESSAGES_MIN or not sizes[0]:
        return None
    first: list[int] = []
    try:
        _split(view, at, 1, (first.append, first.append, first.append))
        _, start, stop = first
        fixed = _sizes_in(view, at, start)
    except (IndexError, struct.error, OverflowError, DecodeError):
        return None  # The error comes from the decoder that goes through them one by one.
    head, step = start - at, stop - at
    if not max(fixed) < head <= _ALIKE_HEAD_BYTES_MAX:
        return None
    if (entries.payload_starts + sizes * step > entries.payload_stops).any():
        return None
    firsts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    begins = np.repeat(entries.payload_starts, sizes) + step * (np.arange(count) - firsts)
    said = windows(data, head)[begins][:, fixed]
    if (said != said[0]).any():
        return None
    starts = begins + head
    return begins + _SIZE_BYTES, starts, starts + (step - head)


def _sizes_in(data: memoryview, at: int, start: int) -> list[int]:
    """Which bytes of what stands before a value say how long the parts are, counted from `at`."""
    places = list(range(_SIZE_BYTES))
    place = at + _SIZE_BYTES
    while place < start and data[place] in _S_TEXT_TAGS:
        length, text = read_varint(data, place + 1)  # type: ignore[arg-type]  # a view reads as bytes do
        places += range(place - at, text - at)
        place = text + length
    # The size of the value, when it stands here; else all of it, whatever it is.
    is_size = place < start and data[place] == _S_PAYLOAD_SIZE_TAG
    end = read_varint(data, place + 1)[1] if is_size else start  # type: ignore[arg-type]
    return [*places, *range(place - at, end - at)]


def _split(data: memoryview, at: int, size: int, append: tuple[Callable[[int], None], ...]) -> int:
    """Find the messages of one batch; returns where the last one ends."""
    add_head, add_start, add_stop = append
    for _ in range(size):
        # Budget: 1 µs per message on one core. The size comes after texts at most, and takes one or two bytes.
        head = place = at + _SIZE_BYTES
        start = head + _read_u32(data, at)[0]
        while data[place] in _S_TEXT_TAGS and place < start:
            length, place = read_varint(data, place + 1)  # type: ignore[arg-type]  # a view reads as bytes do
            place += length
        if data[place] == _S_PAYLOAD_SIZE_TAG and place < start:
            value_bytes = data[place + 1]
            if value_bytes > 127:
                value_bytes, _ = read_varint(data, place + 1)  # type: ignore[arg-type]
        else:
            value_bytes = SingleMessageMetadata.FromString(bytes(data[head:start])).payload_size
        at = start + value_bytes
        add_head(head)
        add_start(start)
        add_stop(at)
    return at


def _merged(outer: Field, inner: Field, in_batch: NDArray[np.bool_], firsts_of: Ints) -> Field:
    """Properties by message: those of entries that are no batch, and those of the messages of batches."""
    own = ~in_batch[outer.rows]
    return Field(
        np.concatenate((firsts_of[outer.rows[own]], inner.rows)),
        np.concatenate((outer.values[own], inner.values)),
        np.concatenate((outer.stops[own], inner.stops)),
    )


def _renumbered(properties: Field, chosen: NDArray[np.bool_]) -> Field:
    kept = chosen[properties.rows]
    numbers = np.cumsum(chosen) - 1
    return Field(numbers[properties.rows[kept]], properties.values[kept], properties.stops[kept])
