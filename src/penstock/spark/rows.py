# SPDX-License-Identifier: Apache-2.0
"""Messages become Arrow batches that equal the DataFrame's schema to the letter.

    value, or the fields of the topic's schema   | __key  | __topic | __messageId | __publishTime | __eventTime
    __messageProperties, and when asked for: __partition, __sequenceId, __producerName

Why by columns: each column is one buffer and its offsets, cut out of the run's bytes in one go; no row is ever a Python
object, unless its value has to be parsed by itself.
Where: tasks feed what the reader brings through one `RowBuilder`.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.names import TopicName
from penstock.spark import avro_records, json_records, key_values, values
from penstock.spark.broken_values import FAIL
from penstock.spark.client.errors import UnreadableEntry
from penstock.spark.client.fields import spans_of, walk
from penstock.spark.client.message_id import MessageId
from penstock.spark.provenance import PROVENANCE, Origin
from penstock.spark.provenance import TYPE as PROVENANCE_TYPE
from penstock.spark.provenance import column as provenance_column
from penstock.spark.text_columns import as_text, bytes_of, edges_of, texts
from penstock.wire.errors import ProtocolError
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from penstock.spark.broken_values import BrokenValues
    from penstock.spark.client.fields import Bytes, Ints
    from penstock.spark.client.messages import Messages
    from penstock.spark.values import SchemaOf, Values

KEY: Final = "__key"
TOPIC: Final = "__topic"
MESSAGE_ID: Final = "__messageId"
PUBLISH_TIME: Final = "__publishTime"
EVENT_TIME: Final = "__eventTime"
PROPERTIES: Final = "__messageProperties"
PARTITION: Final = "__partition"
SEQUENCE_ID: Final = "__sequenceId"
PRODUCER: Final = "__producerName"

_TEXTS: Final = spark.MapType(spark.StringType(), spark.StringType())
# Name, type and meaning; the first six are there unless columns are named.
COLUMNS: Final[tuple[tuple[str, spark.DataType, str], ...]] = (
    (KEY, spark.BinaryType(), "key of the message; null if it has none"),
    (TOPIC, spark.StringType(), "full name of the topic or partition"),
    (MESSAGE_ID, spark.BinaryType(), "message id; `MessageId.deserialize` of any client reads it"),
    (PUBLISH_TIME, spark.TimestampType(), "publish time"),
    (EVENT_TIME, spark.TimestampType(), "event time; null if the message has none"),
    (PROPERTIES, _TEXTS, "properties; empty if the message has none"),
    (PARTITION, spark.IntegerType(), "on request: index of the partition; -1 if the topic has no partitions"),
    (SEQUENCE_ID, spark.LongType(), "on request: sequence id of the producer"),
    (PRODUCER, spark.StringType(), "on request: name of the producer"),
    (
        PROVENANCE,
        PROVENANCE_TYPE,
        "with the option `provenance`, or on request: where the row was read, by which a write recognises it",
    ),
)
DEFAULT_COLUMNS: Final = 6

# Rows in one batch: fewer cost more calls in Spark, more do not fit its caches.
ROWS_MAX: Final = 4_096
# Below so many records the calls that decode them at once cost more than they save.
_AT_ONCE_MIN: Final = 16
# What Arrow raises for a cell that is not of a column's type.
_UNTYPED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
# KeyValue
_KEY_FIELD, _VALUE_FIELD = 1, 2


def schema_of(
    found: Values, columns: Iterable[str], broken: BrokenValues = FAIL, *, provenance: bool = False
) -> spark.StructType:
    """Return the DataFrame's schema: all columns by default, or the named columns in that order.

    With `provenance`, the column of that name is there, too.

    Raises:
        ValueError: there is no such column.
    """
    ours = {name: spark.StructField(name, kind) for name, kind, _ in COLUMNS}
    of_value = {one.name: one for one in (*found.fields, *broken.fields(found))}
    there = of_value | ours
    wanted = list(columns) or [*of_value, *list(ours)[:DEFAULT_COLUMNS]]
    if provenance and PROVENANCE not in wanted:
        wanted.append(PROVENANCE)
    if found.is_record and values.VALUE in wanted and values.VALUE not in there:
        raise ValueError("column value: the topic's schema makes columns of its fields; or set valueFormat=binary")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ValueError(f"there is no column {missing[0]}; there are {', '.join(there)}")
    return spark.StructType([there[name] for name in wanted])


def check_schema(given: spark.StructType, found: Values, broken: BrokenValues = FAIL) -> None:
    """Check a schema that the user gave. Raises ValueError, which names the column that does not match."""
    there = {one.name: one.dataType for one in (*found.fields, *broken.fields(found))}
    there |= {name: kind for name, kind, _ in COLUMNS}
    text = (spark.StringType, spark.BinaryType)
    for one in given.fields:
        kind = there.get(one.name)
        if kind is None:
            raise ValueError(f"there is no column {one.name}; there are {', '.join(there)}")
        both_text = isinstance(kind, text) and isinstance(one.dataType, text)
        if one.dataType.simpleString() != kind.simpleString() and not both_text:
            raise ValueError(
                f"column {one.name} is {kind.simpleString()}, not {one.dataType.simpleString()}; read it so, and cast"
            )


def parent_of(topic: str) -> str:
    """Return the partitioned topic of a partition; the topic itself if it is none."""
    return str(TopicName.parse(topic).parent)


class RowBuilder:
    """Creates the Arrow batches of one topic, or of one partition.

    Attributes:
        dropped: how many messages were left out because their values are broken.
    """

    def __init__(
        self,
        schema: spark.StructType,
        found: Values,
        topic: str,
        schema_by_version: SchemaOf,
        broken: BrokenValues = FAIL,
        origin: Origin = Origin(),  # noqa: B008 -- an immutable tuple
    ) -> None:
        self.dropped = 0
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._values = found
        self._topic = topic
        self._partition = TopicName.parse(topic).partition
        self._broken = broken
        self._columns: dict[str, Callable[[Messages, pa.DataType], pa.Array]] = {
            KEY: self._keys,
            TOPIC: lambda found, kind: pa.repeat(pa.scalar(self._topic, kind), len(found)),
            MESSAGE_ID: lambda found, kind: _message_ids(found, self._partition).cast(kind),
            PUBLISH_TIME: lambda found, kind: _times(found.publish_ms, kind),
            EVENT_TIME: lambda found, kind: _times(found.event_ms, kind),
            PROPERTIES: _properties,
            PARTITION: lambda found, kind: pa.repeat(pa.scalar(self._partition, kind), len(found)),
            SEQUENCE_ID: lambda found, kind: pa.array(found.sequence_ids, kind),
            PRODUCER: lambda found, kind: texts(found.data, found.producer_starts, found.producer_stops, kind),
            PROVENANCE: lambda found, kind: provenance_column(self._topic, origin, found, kind),
        }
        self._raw = broken.column_in(schema, found)
        self._wanted = [one for one in self._schema if one.name not in {*self._columns, self._raw}]  # of the value
        if self._raw and not self._wanted:  # The value is not selected, and yet it is asked whether it can be read.
            self._wanted = list(to_arrow_schema(spark.StructType(list(found.fields)), timezone="UTC"))
        wanted = {one.name for one in self._wanted}
        self._decode = None if found.kind is None else found.decoder(topic, schema_by_version, wanted)
        self._records = json_records.records(found, self._wanted) or avro_records.records(
            found, self._wanted, schema_by_version
        )

    def batches(self, found: Messages) -> Iterator[pa.RecordBatch]:
        """The messages as batches of some thousand rows; nothing in them points to what was lent.

        Raises:
            UnreadableValue: a value that is not what the topic's schema says.
            UnreadableEntry: properties that do not read as such.
        """
        bad: set[int] = set()
        of_value = dict(zip((one.name for one in self._wanted), self._value_columns(found, bad), strict=True))
        if self._raw:
            of_value[self._raw] = self._raw_values(found, bad, self._schema.field(self._raw).type)
        try:
            arrays = [
                of_value[one.name] if one.name in of_value else self._columns[one.name](found, one.type)
                for one in self._schema
            ]
        except ProtocolError as error:
            first, last = (MessageId(int(found.ledger_ids[row]), int(found.entry_ids[row])) for row in (0, -1))
            raise UnreadableEntry(self._topic, f"{first} to {last}", str(error)) from error
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad and self._broken.drops:
            self.dropped += len(bad)
            whole = whole.take(pa.array([row for row in range(len(found)) if row not in bad], pa.int64()))
        for start in range(0, whole.num_rows, ROWS_MAX):
            yield whole.slice(start, ROWS_MAX)

    def _value_columns(self, found: Messages, bad: set[int]) -> list[pa.Array]:
        """Return the columns of the value; adds the rows to `bad` whose values are broken, if they may be."""
        wanted = self._wanted
        if not wanted:
            return []
        if self._decode is None:
            return [texts(found.data, found.value_starts, found.value_stops, wanted[0].type)]
        held = self._held(found)
        if pa.types.is_string(wanted[0].type) and self._values == values.of_strings():
            return [as_text(held)]
        if self._records is not None and len(found) >= _AT_ONCE_MIN and self._records.reads(found):
            at_once = self._records.decode(held)
            if at_once is not None:
                return at_once
        versions = bytes_of(found.data, found.schema_starts, found.schema_stops)
        raw = held.to_pylist()
        if self._broken.fails:
            rows = values.decoded(self._decode, raw, versions)
        else:
            rows = values.decoded_where_possible(self._decode, raw, versions, bad)
        columns = [self._cells(rows, one) for one in wanted]
        if self._broken.fails:
            return [self._typed(cells, one, raw) for cells, one in zip(columns, wanted, strict=True)]
        for cells, one in zip(columns, wanted, strict=True):
            bad |= _untyped(cells, one)
        for cells in columns:
            for row in bad:
                cells[row] = None
        return [pa.array(cells, one.type) for cells, one in zip(columns, wanted, strict=True)]

    def _held(self, found: Messages) -> pa.BinaryArray:
        """Return the values as they are decoded."""
        held = texts(found.data, found.value_starts, found.value_stops, pa.binary())
        if not self._values.is_separated:
            return held
        return key_values.joined(self._keys(found, pa.binary()).to_pylist(), held.to_pylist())

    def _cells(self, rows: list[Any], field: pa.Field) -> list[Any]:
        return [None if row is None else row.get(field.name) for row in rows] if self._values.is_record else list(rows)

    def _raw_values(self, found: Messages, bad: set[int], kind: pa.DataType) -> pa.Array:
        """Return the bytes of broken values, and null for others."""
        if not bad:
            return pa.nulls(len(found), kind)
        held = self._held(found).to_pylist()
        raw = pa.array([one if row in bad else None for row, one in enumerate(held)], pa.binary())
        return raw if pa.types.is_binary(kind) else as_text(raw).cast(kind)

    def _typed(self, cells: list[Any], field: pa.Field, raw: list[bytes | None]) -> pa.Array:
        """Return a column of decoded values. Raises UnreadableValue for the first that is not of the field's type."""
        try:
            return pa.array(cells, field.type)
        except _UNTYPED:
            for cell, value in zip(cells, raw, strict=True):
                try:
                    pa.array([cell], field.type)
                except _UNTYPED as error:
                    raise self._values.unreadable(self._topic, value or b"", f"{field.name}: {error}") from error
            raise

    def _keys(self, found: Messages, kind: pa.DataType) -> pa.Array:
        keys = texts(found.data, found.key_starts, found.key_stops, pa.binary())
        if found.key_is_base64.any():
            coded = zip(keys.to_pylist(), found.key_is_base64.tolist(), strict=True)
            keys = pa.array([_plain_key(key) if key and mark else key for key, mark in coded], pa.binary())
        return keys if pa.types.is_binary(kind) else as_text(keys).cast(kind)


def _untyped(cells: list[Any], field: pa.Field) -> set[int]:
    """Return the rows whose cells are not of the field's type."""
    try:
        pa.array(cells, field.type)
    except _UNTYPED:
        return {row for row, cell in enumerate(cells) if not _is_typed(cell, field)}
    return set()


def _is_typed(cell: object, field: pa.Field) -> bool:
    try:
        pa.array([cell], field.type)
    except _UNTYPED:
        return False
    return True


def _plain_key(key: bytes) -> bytes:
    """Decode a key that its producer marked as Base64; return it unchanged if it is not Base64."""
    try:
        return b64decode(key)
    except ValueError:
        return key


def _times(milliseconds: Ints, kind: pa.DataType) -> pa.Array:
    """Return times in microseconds; null for 0, which means that there is none."""
    none = milliseconds == 0
    if none.all():
        return pa.nulls(len(milliseconds), kind)
    return pa.array(milliseconds * 1000, pa.int64(), mask=none if none.any() else None).view(kind)


def _properties(found: Messages, kind: pa.MapType) -> pa.Array:
    properties = found.properties
    if not len(properties.rows):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(found) + 1, np.int32)), nothing, nothing).cast(kind)
    order = np.argsort(properties.rows, kind="stable")
    count = len(order)
    pairs = walk(found.data, properties.values[order], properties.stops[order], {_KEY_FIELD, _VALUE_FIELD})
    edges = np.searchsorted(properties.rows[order], np.arange(len(found) + 1)).astype(np.int32)
    keys, items = (
        texts(found.data, *spans_of(pairs.get(number), count), pa.string()) for number in (_KEY_FIELD, _VALUE_FIELD)
    )
    # A map cannot have null for a key, and a producer can have left one out.
    return pa.MapArray.from_arrays(pa.array(edges, pa.int32()), keys.fill_null(""), items).cast(kind)


# -- message ids -----------------------------------------------------------------------------------------------------


def _message_ids(found: Messages, partition: int) -> pa.Array:
    """Encode MessageIdData of every message: ledger, entry, partition and batch index if there are any."""
    count = len(found)
    in_batch = found.batch_indexes >= 0
    parts = [_id_field(b"\x08", found.ledger_ids), _id_field(b"\x10", found.entry_ids)]
    if partition >= 0:
        parts.append(_id_field(b"\x18", np.full(count, partition, np.int64)))
    if in_batch.any():
        for tag, numbers in ((b"\x20", found.batch_indexes), (b"\x30", found.batch_sizes)):
            digits, used = _id_field(tag, numbers)
            parts.append((digits, used & in_batch[:, None]))
    body = np.concatenate([digits for digits, _ in parts], axis=1)
    if all(used.all() for _, used in parts):
        lengths, bytes_ = np.full(count, body.shape[1]), body.reshape(-1)
    else:
        used = np.concatenate([np.broadcast_to(used, digits.shape) for digits, used in parts], axis=1)
        lengths, bytes_ = used.sum(axis=1), body[used]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges_of(lengths)), pa.py_buffer(bytes_)])


def _id_field(tag: bytes, numbers: Ints) -> tuple[Bytes, NDArray[np.bool_]]:
    """A tag and a varint in each row, and which of the row's bytes they take; the latter may be one row for all."""
    least, most = int(numbers.min()), int(numbers.max())
    if least == most:
        same = np.frombuffer(tag + encode_varint(max(0, most)), np.uint8)
        return np.broadcast_to(same, (len(numbers), len(same))), np.ones((1, len(same)), np.bool_)
    width = max(1, -(-most.bit_length() // 7))
    digits = np.empty((len(numbers), 1 + width), np.uint8)
    digits[:, 0] = tag[0]
    used = np.ones((len(numbers), 1 + width), np.bool_)
    for place in range(width):
        rest = numbers >> 7 * place
        digits[:, 1 + place] = rest & 127
        if place:
            used[:, 1 + place] = rest > 0
    # Every byte but the last says that another one follows.
    digits[:, 1:-1] |= used[:, 2:].view(np.uint8) << 7
    return digits, used
