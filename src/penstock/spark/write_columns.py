# SPDX-License-Identifier: Apache-2.0
"""The columns of a DataFrame that is written: what each means, and what cannot be written, said before anything is.

    value                       binary, string, or a struct; null deletes the key in a compacted topic
    __topic                     string: where to, unless the option `topic` says
    __key                       string or binary
    __eventTime                 timestamp, or a whole number of milliseconds since the epoch
    __messageProperties         map from string to string
    __deliverAt                 timestamp, or milliseconds since the epoch: not delivered before
    __deliverAfter              interval, or milliseconds, from the moment of writing
    __partition                 int: the partition, instead of the one that the key decides
    __provenance                as it was read: by which rows that come again are recognised
    other columns               without a column `value`, together they are the value, as a struct

What a topic says about its messages and a producer cannot (`__messageId`, `__publishTime` …) is passed over, so that
what was read from one topic can be written to another as it is. Any other name that begins with two underscores is a
mistake, and refused: its column would be lost.
Where: `writer` makes `WriteColumns` on the driver, which finds the mistakes; tasks use it on each of Spark's batches.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock.spark import provenance, rows
from penstock.spark.entries import Messages, encoded_properties
from penstock.spark.schema_fit import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.spark.provenance import Numbering

VALUE: Final = "value"
TOPIC: Final = "__topic"
KEY: Final = "__key"
EVENT_TIME: Final = "__eventTime"
PROPERTIES: Final = "__messageProperties"
DELIVER_AT: Final = "__deliverAt"
DELIVER_AFTER: Final = "__deliverAfter"
PARTITION: Final = rows.PARTITION
PROVENANCE: Final = provenance.PROVENANCE
_OURS: Final = "__"

TEXT: Final = (spark.StringType, spark.BinaryType)
_TYPES: Final[Mapping[str, tuple[tuple[type[spark.DataType], ...], str]]] = {
    TOPIC: ((spark.StringType,), "string"),
    KEY: (TEXT, "string or binary"),
    EVENT_TIME: ((spark.TimestampType, spark.LongType), "timestamp, or bigint in milliseconds since the epoch"),
    PROPERTIES: ((spark.MapType,), "map<string,string>"),
    DELIVER_AT: ((spark.TimestampType, spark.LongType), "timestamp, or bigint in milliseconds since the epoch"),
    DELIVER_AFTER: ((spark.DayTimeIntervalType, spark.LongType), "interval day to second, or bigint in milliseconds"),
    PARTITION: ((spark.IntegerType, spark.LongType, spark.ShortType, spark.ByteType), "int"),
    PROVENANCE: ((spark.StructType,), f"{provenance.TYPE.simpleString()}, as it was read"),
}
_PASSED_OVER: Final = frozenset(name for name, _, _ in rows.COLUMNS) - _TYPES.keys()
# Kafka's columns of a write, and where people who come from there will find the same.
_OF_KAFKA: Final[Mapping[str, str]] = {
    "key": KEY,
    "headers": PROPERTIES,
    "topic": TOPIC,
    "partition": PARTITION,
    "timestamp": EVENT_TIME,
}


class UnwritableColumns(ValueError):
    """The DataFrame has columns that cannot become messages; the message names the column and what to do."""


class WriteColumns:
    """The columns of the parts of messages in a DataFrame; can be pickled.

    Attributes:
        value: the type of values.
        struct: the same if they are structs, else None.
        has_topic: whether rows have a topic.
        has_provenance: whether rows say where they were read.
    """

    def __init__(self, schema: spark.StructType) -> None:
        """Check a DataFrame's schema.

        Raises:
            UnwritableColumns: and why.
        """
        _check_names(schema.names)
        for name, (types, want) in _TYPES.items():
            if name in schema.names and not _fits(schema[name].dataType, types):
                raise UnwritableColumns(
                    f"column {name} is {schema[name].dataType.simpleString()} and must be {want}; cast it"
                )
        self.has_topic = TOPIC in schema.names
        self.has_provenance = PROVENANCE in schema.names
        self._names = list(schema.names)
        self._fields = [name for name in schema.names if not name.startswith(_OURS)]
        self.value = self._value_of(schema)
        self.struct = self.value if isinstance(self.value, spark.StructType) else None

    def _value_of(self, schema: spark.StructType) -> spark.DataType:
        if VALUE not in self._fields:
            if not self._fields:
                raise UnwritableColumns("there is nothing to write: name a column `value`, or give columns of a struct")
            return spark.StructType([schema[name] for name in self._fields])
        if self.is_pair:
            return spark.StructType([schema[name] for name in self._fields])
        if len(self._fields) > 1:
            raise self.beside_value()
        return schema[VALUE].dataType

    @property
    def is_pair(self) -> bool:
        """Whether the fields are `key` and `value`, as KeyValue schemas have them."""
        return sorted(self._fields) == ["key", VALUE]

    def beside_value(self) -> UnwritableColumns:
        """Return the error for fields that are there beside `value`."""
        others = [name for name in self._fields if name != VALUE]
        renamed = [f"{name} to {_OF_KAFKA[name]}" for name in others if name in _OF_KAFKA]
        hint = f"; if they are what Kafka's source calls so, rename {', '.join(renamed)}" if renamed else ""
        return UnwritableColumns(
            f"beside `value` there are the columns {', '.join(others)}: drop them, "
            f"or put all into one: struct('*').alias('value'){hint}"
        )

    def topics(self, batch: pa.RecordBatch) -> pa.StringArray:
        """Return the topic of each row, or null."""
        return self._column(batch, TOPIC).cast(pa.string())

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values as they are in the DataFrame."""
        if self._fields == [VALUE]:
            return self._column(batch, VALUE)
        return pa.StructArray.from_arrays([self._column(batch, name) for name in self._fields], self._fields)

    def unnumbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch without their provenance."""
        if not self.has_provenance:
            return batch
        return batch.set_column(self._names.index(PROVENANCE), PROVENANCE, pa.nulls(batch.num_rows, pa.int64()))

    def numbered(self, batch: pa.RecordBatch, numbering: Numbering) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Return the rows of a batch by their source, with numbers instead of their provenance; "" has no numbers."""
        if not batch.num_rows:
            return
        at = self._names.index(PROVENANCE)
        for one in numbering.of(batch.column(at)):
            part = batch.slice(one.start, one.stop - one.start)
            ids = pa.array(one.sequence_ids) if one.source else pa.nulls(part.num_rows, pa.int64())
            yield one.source, part.set_column(at, PROVENANCE, ids)

    def messages(
        self, batch: pa.RecordBatch, value: pa.BinaryArray, *, now_ms: int, own_key: pa.BinaryArray | None = None
    ) -> Messages:
        """Return the rows of a batch as messages.

        Args:
            batch: the rows.
            value: their encoded values.
            now_ms: from when delays count.
            own_key: the key that is a part of each value, in Base64, instead of the column `__key`.

        Raises:
            UnwritableColumns: a time that messages cannot have.
        """
        has = set(self._names)
        key, key_is_base64 = _keys(self._column(batch, KEY)) if KEY in has else (None, None)
        if own_key is not None:
            key, key_is_base64 = own_key, own_key.is_valid()
        return Messages(
            value,
            key=key,
            key_is_base64=key_is_base64,
            event_time_ms=_times(self._column(batch, EVENT_TIME), EVENT_TIME) if EVENT_TIME in has else None,
            properties=encoded_properties(self._column(batch, PROPERTIES)) if PROPERTIES in has else None,
            deliver_at_ms=self._deliver_at(batch, now_ms),
            partition=self._column(batch, PARTITION).cast(pa.int64()) if PARTITION in has else None,
            sequence_id=self._sequence_ids(batch) if PROVENANCE in has else None,
        )

    def _sequence_ids(self, batch: pa.RecordBatch) -> pa.Int64Array | None:
        """Return the numbers that `numbered` has given."""
        ids = self._column(batch, PROVENANCE)
        return None if ids.null_count or not len(ids) else ids

    def _deliver_at(self, batch: pa.RecordBatch, now_ms: int) -> pa.Int64Array | None:
        """Return when messages may be delivered; null for those that may be at once."""
        at = _times(self._column(batch, DELIVER_AT), DELIVER_AT) if DELIVER_AT in self._names else None
        if DELIVER_AFTER not in self._names:
            return at
        delays = self._column(batch, DELIVER_AFTER)
        if pa.types.is_duration(delays.type):
            delays = pc.divide(delays.cast(pa.int64()), 1000)
        shortest = pc.min(delays).as_py()
        if shortest is not None and shortest < 0:
            raise UnwritableColumns(f"column {DELIVER_AFTER} holds {shortest} ms; a delay must not be negative")
        after = pc.add(delays, now_ms)
        if at is None:
            return after
        if pc.any(pc.and_(at.is_valid(), after.is_valid())).as_py():
            raise UnwritableColumns(f"some rows have both {DELIVER_AT} and {DELIVER_AFTER}; leave one of them null")
        return pc.coalesce(at, after)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self._names.index(name))


def _fits(found: spark.DataType, types: tuple[type[spark.DataType], ...]) -> bool:
    if isinstance(found, spark.StructType):
        return spark.StructType in types and found.simpleString() == provenance.TYPE.simpleString()
    if isinstance(found, spark.MapType):
        texts = isinstance(found.keyType, spark.StringType) and isinstance(found.valueType, spark.StringType)
        return spark.MapType in types and texts
    return isinstance(found, types)


def _check_names(names: list[str]) -> None:
    """Refuse names that begin like ours and are none. Raises UnwritableColumns."""
    for name in names:
        if name.startswith(_OURS) and name not in _TYPES and name not in _PASSED_OVER:
            hint = nearest(name, [*_TYPES, *_PASSED_OVER]) or f"; there are {', '.join(_TYPES)}"
            raise UnwritableColumns(
                f"there is no column {name} of a message{hint}; if it is a field of the value, put all fields into a "
                "struct: struct('*').alias('value')"
            )


def _times(column: pa.Array, name: str) -> pa.Int64Array:
    """Return times in milliseconds; null where there is none."""
    times = column
    if pa.types.is_timestamp(column.type):
        times = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    earliest = pc.min(times).as_py()
    if earliest is not None and earliest < 0:
        raise UnwritableColumns(
            f"column {name} holds {earliest} ms, a time before 1970, which a message cannot say; "
            f"put it into {PROPERTIES} or the value"
        )
    return times


def _keys(column: pa.Array) -> tuple[pa.BinaryArray, pa.BooleanArray | None]:
    """Keys as they are sent: text as it is; what is no text in Base64, and marked so, as other clients do."""
    column = column.cast(pa.binary())
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        coded = column.dictionary_encode()
        sent = [_as_sent(key) for key in coded.dictionary.to_pylist()]
        texts, marks = pa.array([text for text, _ in sent], pa.binary()), pa.array([mark for _, mark in sent])
        return texts.take(coded.indices), pc.fill_null(marks.take(coded.indices), False)
    return column, None


def _as_sent(key: bytes) -> tuple[bytes, bool]:
    try:
        key.decode()
    except UnicodeDecodeError:
        return b64encode(key), True
    return key, False
