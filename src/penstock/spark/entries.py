# SPDX-License-Identifier: Apache-2.0
"""Rows that Spark hands over become entries as a broker stores them, without an object per row.

    an entry's payload:  size of metadata, 4 bytes | SingleMessageMetadata | the message, again and again

Why columns: what stands before a message in a batch depends on a few lengths, so it is made once per length and joined
to the messages by Arrow; the joined column's buffer *is* the payload of the batches that are cut from it. At 1 KiB a
message this takes a tenth of a microsecond, where a loop in Python takes two.
Where: `writer` reads `Messages` out of Spark's batches and routes them; what `batches` cuts goes to a `Producer`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BINARY: Final = pa.binary()
_NOTHING: Final = pa.scalar(b"", _BINARY)
# Fields of SingleMessageMetadata, each with its wire type, and the two of KeyValue.
_PROPERTIES: Final = b"\x0a"
_KEY: Final = b"\x12"
_PAYLOAD_SIZE: Final = b"\x18"
_EVENT_TIME: Final = b"\x28"
_KEY_IS_BASE64: Final = b"\x30\x01"
_SEQUENCE_ID: Final = 0x40
_NULL_VALUE: Final = b"\x48\x01"
_PROPERTY_KEY: Final = b"\x0a"
_PROPERTY_VALUE: Final = b"\x12"

_encode_u32: Final = struct.Struct(">I").pack


class Messages(NamedTuple):
    """Columns of equal length: the values and properties of messages to send. A null value is a tombstone."""

    value: pa.BinaryArray
    key: pa.BinaryArray | None = None
    key_is_base64: pa.BooleanArray | None = None
    event_time_ms: pa.Int64Array | None = None
    properties: pa.BinaryArray | None = None  # as `encoded_properties` makes them
    deliver_at_ms: pa.Int64Array | None = None  # not before; of the entry, and so of a message without a batch
    partition: pa.Int64Array | None = None  # the index, instead of the one that the key decides; null or -1: none
    sequence_id: pa.Int64Array | None = None  # grows; None: numbered as they are sent

    def take(self, rows: pa.Array) -> Messages:
        """Return these rows, in this order."""
        return Messages(*(None if column is None else column.take(rows) for column in self))

    def slice(self, start: int, length: int) -> Messages:
        """Return consecutive rows without a copy."""
        return Messages(*(None if column is None else column.slice(start, length) for column in self))


class Batch(NamedTuple):
    """Consecutive rows of one entry: an uncompressed batch."""

    first_row: int
    rows: int
    payload: memoryview


def batches(messages: Messages, *, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    """Split rows into batches of at most `rows_max` rows and `bytes_max` bytes.

    A larger row gets a batch of its own.
    """
    column = _as_in_a_batch(messages)
    _, offsets_buffer, data = column.buffers()
    view = memoryview(data) if data is not None else memoryview(b"")
    offsets = memoryview(offsets_buffer).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    start, count = 0, len(column)
    while start < count:
        last = bisect_right(offsets, offsets[start] + bytes_max, start + 1, min(count, start + rows_max) + 1) - 1
        stop = max(last, start + 1)
        yield Batch(start, stop - start, view[offsets[start] : offsets[stop]])
        start = stop


def _as_in_a_batch(messages: Messages) -> pa.BinaryArray:
    """Return every message with its size and metadata in front."""
    value = messages.value
    pieces: list[pa.Array] = []
    if messages.properties is not None:
        pieces.append(messages.properties)
    if messages.key is not None:
        pieces += [_by_number(pc.binary_length(messages.key), lambda size: _KEY + encode_varint(size)), messages.key]
    sizes = pc.fill_null(pc.binary_length(value), 0)
    pieces.append(_by_number(sizes, lambda size: _PAYLOAD_SIZE + encode_varint(size)))
    if messages.event_time_ms is not None:
        pieces.append(_by_number(messages.event_time_ms, lambda time_ms: _EVENT_TIME + encode_varint(time_ms)))
    if messages.key_is_base64 is not None:
        pieces.append(pc.if_else(messages.key_is_base64, pa.scalar(_KEY_IS_BASE64, _BINARY), _NOTHING))
    if messages.sequence_id is not None:
        pieces.append(_sequence_ids(messages.sequence_id))
    if value.null_count:
        pieces.append(pc.if_else(pc.is_null(value), pa.scalar(_NULL_VALUE, _BINARY), _NOTHING))
    metadata = pieces[0] if len(pieces) == 1 else _joined(*pieces)
    return _joined(_by_number(pc.binary_length(metadata), _encode_u32), metadata, value)


def _sequence_ids(numbers: pa.Int64Array) -> pa.BinaryArray:
    """Encode numbers that are all different, each as a varint of the length of the largest."""
    plain = numbers.to_numpy()
    width = max(1, -(-int(plain.max(initial=0)).bit_length() // 7))
    digits = np.empty((len(plain), 1 + width), np.uint8)
    digits[:, 0] = _SEQUENCE_ID
    for place in range(width):
        digits[:, 1 + place] = plain >> 7 * place & 127
    digits[:, 1:-1] |= 128  # Every byte but the last says that another one follows.
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(1 + width), len(plain), [None, pa.py_buffer(digits)]).cast(
        _BINARY
    )


def _joined(*columns: pa.Array) -> pa.BinaryArray:
    """Concatenate columns row by row; a null adds nothing."""
    return pc.binary_join_element_wise(*columns, _NOTHING, null_handling="skip")


def _by_number(numbers: pa.Array, encode: Callable[[int], bytes]) -> pa.BinaryArray:
    """Encode each number; each distinct number is encoded once. Nulls stay nulls."""
    coded = numbers.dictionary_encode()
    return pa.array(map(encode, coded.dictionary.to_pylist()), _BINARY).take(coded.indices)


def encoded_properties(properties: pa.MapArray) -> pa.BinaryArray:
    """Encode a column of maps from text to text as the field `properties`; a null value becomes an empty one."""
    # Keys and values of all rows lie one after the other; a row's properties are consecutive there, and so they are
    # in the column of encoded pairs: the same bytes with fewer offsets.
    pairs = _encoded_pairs(properties.keys.cast(_BINARY), properties.items.cast(_BINARY))
    _, offsets, data = pairs.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(pairs) + 1, [None, offsets], offset=pairs.offset)
    kept = ends.take(properties.offsets)
    column = pa.Array.from_buffers(_BINARY, len(properties), [None, kept.buffers()[1], data])
    return pc.if_else(properties.is_valid(), column, _NOTHING) if properties.null_count else column


def _encoded_pairs(keys: pa.BinaryArray, values: pa.BinaryArray) -> pa.BinaryArray:
    values = pc.fill_null(values, b"")
    pair = _joined(
        _by_number(pc.binary_length(keys), lambda size: _PROPERTY_KEY + encode_varint(size)),
        keys,
        _by_number(pc.binary_length(values), lambda size: _PROPERTY_VALUE + encode_varint(size)),
        values,
    )
    return _joined(_by_number(pc.binary_length(pair), lambda size: _PROPERTIES + encode_varint(size)), pair)


def said_of(messages: Messages, row: int) -> SingleMessageMetadata:
    """Return the metadata of one message that is sent without a batch."""
    said = SingleMessageMetadata(payload_size=0)
    if messages.properties is not None:
        said.MergeFromString(messages.properties[row].as_py())
    if messages.key is not None and messages.key[row].is_valid:
        said.partition_key = messages.key[row].as_py().decode()
        said.partition_key_b64_encoded = messages.key_is_base64 is not None and messages.key_is_base64[row].as_py()
    if messages.event_time_ms is not None and messages.event_time_ms[row].is_valid:
        said.event_time = messages.event_time_ms[row].as_py()
    said.null_value = not messages.value[row].is_valid
    return said
