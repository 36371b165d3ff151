# SPDX-License-Identifier: Apache-2.0
"""The columns of a DataFrame that is written: what each means, and what cannot be written, said before anything is.

    value                       binary, string, or a struct; null deletes the key in a compacted topic
    __topic                     string: where to, unless the option `topic` says
    __key                       string or binary
    __eventTime                 timestamp, or a whole number of milliseconds since the epoch
    __messageProperties         map from string to string
    other columns               without a column `value`, together they are the value, as a struct

What a topic says about its messages and a producer cannot (`__messageId`, `__publishTime` …) is passed over, so that
what was read from one topic can be written to another as it is.
Where: `writer` makes `WriteColumns` on the driver, which finds the mistakes; tasks use it on each of Spark's batches.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock.spark.entries import Messages, encoded_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE: Final = "value"
TOPIC: Final = "__topic"
KEY: Final = "__key"
EVENT_TIME: Final = "__eventTime"
PROPERTIES: Final = "__messageProperties"
_OURS: Final = "__"

_TEXT: Final = (spark.StringType, spark.BinaryType)
_TYPES: Final[Mapping[str, tuple[tuple[type[spark.DataType], ...], str]]] = {
    TOPIC: ((spark.StringType,), "string"),
    KEY: (_TEXT, "string or binary"),
    EVENT_TIME: ((spark.TimestampType, spark.LongType), "timestamp, or bigint in milliseconds since the epoch"),
    PROPERTIES: ((spark.MapType,), "map<string,string>"),
}


class UnwritableColumns(ValueError):
    """The DataFrame has columns that cannot become messages; the message names the column and what to do."""


class WriteColumns:
    """The columns of the parts of messages in a DataFrame; can be pickled.

    Attributes:
        struct: the type of values that are structs; None: values are bytes.
        has_topic: whether rows have a topic.
    """

    def __init__(self, schema: spark.StructType) -> None:
        """Check a DataFrame's schema.

        Raises:
            UnwritableColumns: and why.
        """
        for name, (types, want) in _TYPES.items():
            if name in schema.names and not _fits(schema[name].dataType, types):
                raise UnwritableColumns(
                    f"column {name} is {schema[name].dataType.simpleString()} and must be {want}; cast it"
                )
        self.has_topic = TOPIC in schema.names
        self._names = list(schema.names)
        self._fields = [name for name in schema.names if not name.startswith(_OURS)]
        self.struct = self._struct_of(schema)

    def _struct_of(self, schema: spark.StructType) -> spark.StructType | None:
        if VALUE not in self._fields:
            if not self._fields:
                raise UnwritableColumns("there is nothing to write: name a column `value`, or give columns of a struct")
            return spark.StructType([schema[name] for name in self._fields])
        others = [name for name in self._fields if name != VALUE]
        if others:
            raise UnwritableColumns(
                f"beside `value` there are the columns {', '.join(others)}: drop them, "
                "or put all into one: struct('*').alias('value')"
            )
        value = schema[VALUE].dataType
        if isinstance(value, spark.StructType):
            return value
        if not isinstance(value, _TEXT):
            raise UnwritableColumns(
                f"column value is {value.simpleString()} and must be binary, string or a struct; "
                "cast it to string, or put it into a struct"
            )
        return None

    def topics(self, batch: pa.RecordBatch) -> pa.StringArray:
        """Return the topic of each row, or null."""
        return self._column(batch, TOPIC).cast(pa.string())

    def structs(self, batch: pa.RecordBatch) -> pa.StructArray:
        """Return the values if they are structs."""
        if VALUE in self._fields:
            return self._column(batch, VALUE)
        return pa.StructArray.from_arrays([self._column(batch, name) for name in self._fields], self._fields)

    def messages(self, batch: pa.RecordBatch, encoded: pa.BinaryArray | None = None) -> Messages:
        """Return the rows of a batch as messages; `encoded` is their values if these are structs.

        Raises:
            UnwritableColumns: an event time that messages cannot have.
        """
        value = self._column(batch, VALUE).cast(pa.binary()) if encoded is None else encoded
        has = set(self._names)
        key, key_is_base64 = _keys(self._column(batch, KEY)) if KEY in has else (None, None)
        return Messages(
            value,
            key=key,
            key_is_base64=key_is_base64,
            event_time_ms=_event_times(self._column(batch, EVENT_TIME)) if EVENT_TIME in has else None,
            properties=encoded_properties(self._column(batch, PROPERTIES)) if PROPERTIES in has else None,
        )

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self._names.index(name))


def _fits(found: spark.DataType, types: tuple[type[spark.DataType], ...]) -> bool:
    if isinstance(found, spark.MapType):
        texts = isinstance(found.keyType, spark.StringType) and isinstance(found.valueType, spark.StringType)
        return spark.MapType in types and texts
    return isinstance(found, types)


def _event_times(column: pa.Array) -> pa.Int64Array:
    """Return event times in milliseconds; null where there is none."""
    times = column
    if pa.types.is_timestamp(column.type):
        times = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    earliest = pc.min(times).as_py()
    if earliest is not None and earliest < 0:
        raise UnwritableColumns(
            f"column {EVENT_TIME} holds {earliest} ms, a time before 1970, which a message cannot say; "
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
