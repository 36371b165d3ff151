# SPDX-License-Identifier: Apache-2.0
"""Values that are one thing each, encoded for topics with a primitive schema, such as `INT64` or `TIMESTAMP`.

Where: `value_formats` looks up a topic's kind here when a DataFrame has a column `value`; `values` reads what this
writes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

_US_PER_DAY: Final = 86_400 * 1_000_000
_US_PER_S: Final = 1_000_000
_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


class Primitive(NamedTuple):
    """One kind of schema: the types of columns that fit, and how a column without nulls is encoded."""

    takes: tuple[type[spark.DataType], ...]
    encode: Callable[[pa.Array], pa.Array]

    def encoded(self, column: pa.Array) -> pa.BinaryArray:
        """Encode values; nulls stay nulls."""
        if not column.null_count:
            return self.encode(column)
        places = pc.indices_nonzero(column.is_valid())
        there = self.encode(column.drop_null())
        rows = np.full(len(column), -1, np.int64)
        rows[places.to_numpy()] = np.arange(len(there))
        return there.take(pa.array(rows, mask=rows < 0))

    @property
    def wanted(self) -> str:
        """The widest type that fits."""
        return self.takes[-1]().simpleString()


def _fixed(numbers: NDArray[Any], form: str) -> pa.BinaryArray:
    """Encode each number as so many bytes, the highest first."""
    made = np.ascontiguousarray(numbers.astype(form))
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(made.dtype.itemsize), len(made), [None, pa.py_buffer(made.tobytes())]
    ).cast(pa.binary())


def _number(form: str) -> Callable[[pa.Array], pa.BinaryArray]:
    return lambda column: _fixed(column.to_numpy(zero_copy_only=False), form)


def _microseconds(column: pa.Array) -> NDArray[np.int64]:
    kind = pa.timestamp("us", column.type.tz)
    return np.asarray(column.cast(kind).cast(pa.int64()).to_numpy(), np.int64)


def _milliseconds(column: pa.Array) -> pa.BinaryArray:
    return _fixed(_microseconds(column) // 1000, ">i8")


def _seconds_and_nanos(column: pa.Array) -> pa.BinaryArray:
    us = _microseconds(column)
    return _pairs(us // _US_PER_S, us % _US_PER_S * 1000, ">qi")


def _days_and_nanos(column: pa.Array) -> pa.BinaryArray:
    us = _microseconds(column)
    return _pairs(us // _US_PER_DAY, us % _US_PER_DAY * 1000, ">qq")


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64], form: str) -> pa.BinaryArray:
    pack = struct.Struct(form).pack
    return pa.array([pack(*pair) for pair in zip(first.tolist(), second.tolist(), strict=True)], pa.binary())


PRIMITIVES: Final[Mapping[int, Primitive]] = {
    Schema.String: Primitive((spark.StringType,), lambda column: column.cast(pa.binary())),
    Schema.Bool: Primitive((spark.BooleanType,), lambda column: _number(">i1")(column.cast(pa.int8()))),
    Schema.Int8: Primitive(_INTEGERS[:1], _number(">i1")),
    Schema.Int16: Primitive(_INTEGERS[:2], _number(">i2")),
    Schema.Int32: Primitive(_INTEGERS[:3], _number(">i4")),
    Schema.Int64: Primitive(_INTEGERS, _number(">i8")),
    Schema.Float: Primitive((spark.FloatType,), _number(">f4")),
    Schema.Double: Primitive((spark.FloatType, spark.DoubleType), _number(">f8")),
    Schema.Date: Primitive((spark.TimestampType,), _milliseconds),
    Schema.Time: Primitive((spark.LongType,), _number(">i8")),
    Schema.Timestamp: Primitive((spark.TimestampType,), _milliseconds),
    Schema.Instant: Primitive((spark.TimestampType,), _seconds_and_nanos),
    Schema.LocalDate: Primitive(
        (spark.DateType,), lambda column: _number(">i8")(column.cast(pa.int32()).cast(pa.int64()))
    ),
    Schema.LocalTime: Primitive((spark.LongType,), _number(">i8")),
    Schema.LocalDateTime: Primitive((spark.TimestampNTZType,), _days_and_nanos),
}
