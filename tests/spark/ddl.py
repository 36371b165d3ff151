# SPDX-License-Identifier: Apache-2.0
"""Spark's types from their text, without a virtual machine, which `StructType.fromDDL` needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as spark

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIMPLE: Final[dict[str, spark.DataType]] = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "void": spark.NullType(),
}


def struct_of(text: str) -> spark.StructType:
    """Return the type of columns like `id int, tags map<string, int>, item struct<sku: string>`."""
    return _struct(_parts(text))


def _struct(parts: Iterator[str]) -> spark.StructType:
    fields = (re.split(r"[:\s]\s*", part, maxsplit=1) for part in parts)
    return spark.StructType([spark.StructField(name, _type(kind)) for name, kind in fields])


def _type(text: str) -> spark.DataType:
    outer, _, inner = text.partition("<")
    if outer == "struct":
        return _struct(_parts(inner[:-1]))
    if outer == "array":
        return spark.ArrayType(_type(inner[:-1]))
    if outer == "map":
        key, value = map(_type, _parts(inner[:-1]))
        return spark.MapType(key, value)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return spark.DecimalType(int(decimal[1]), int(decimal[2]))
    return _SIMPLE[text]


def _parts(text: str) -> Iterator[str]:
    """Split at commas that are in no brackets."""
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()
