# SPDX-License-Identifier: Apache-2.0
"""Whether the columns of a DataFrame fit the schema of a topic: decided from their types, before anything is sent.

Why so strict: later readers of the topic trust its schema. One value of another type makes every typed read of the
topic fail. So a column fits if each of its values does: a `bigint` does not fit an `int`, and an `int` fits a `bigint`.
Where: `value_formats` asks when it has the schema of a topic, on the driver and in each task.

Nulls are not looked at: Spark marks nearly every column as nullable. They are found when values are encoded.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import types as spark

from penstock.spark.values import spark_type

if TYPE_CHECKING:
    from collections.abc import Iterator

# An Avro schema as `json` reads it.
Avro: TypeAlias = Any

_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType)
# What each of Avro's types takes without a loss.
_TAKES: Final[dict[str, tuple[type[spark.DataType], ...]]] = {
    "null": (spark.NullType,),
    "boolean": (spark.BooleanType,),
    "int": _INTEGERS,
    "long": (*_INTEGERS, spark.LongType),
    "float": (spark.ByteType, spark.ShortType, spark.FloatType),
    "double": (*_INTEGERS, spark.FloatType, spark.DoubleType),
    "bytes": (spark.BinaryType,),
    "fixed": (spark.BinaryType,),
    "string": (spark.StringType,),
    "enum": (spark.StringType,),
    "date": (spark.DateType,),
    "timestamp-millis": (spark.TimestampType,),
    "timestamp-micros": (spark.TimestampType,),
    "local-timestamp-millis": (spark.TimestampNTZType,),
    "local-timestamp-micros": (spark.TimestampNTZType,),
}
# Columns that are named in one error; others are counted.
COMPLAINTS_MAX: Final = 5
_SCHEMA: Final = "\0"


def complaints(struct: spark.StructType, avro: Avro, whose: str = "the schema") -> list[str]:
    """Return what does not fit: the name of each column, its type and the type that the schema has.

    Args:
        struct: the columns.
        avro: the schema.
        whose: the name of the schema in sentences.
    """
    return [said.replace(_SCHEMA, whose) for said in _of_type(struct, avro, {}, "")]


def joined(found: list[str]) -> str:
    """Return complaints as one sentence."""
    more = f"; and {len(found) - COMPLAINTS_MAX} more" if len(found) > COMPLAINTS_MAX else ""
    return "; ".join(found[:COMPLAINTS_MAX]) + more


def nearest(name: str, names: list[str]) -> str:
    """Return a hint for a name that does not exist; empty if no other is similar."""
    plain = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), plain, 1)
    return f" (did you mean {plain[near[0]]}?)" if near else ""


def _of_type(given: spark.DataType, avro: Avro, named: dict[str, Avro], path: str) -> Iterator[str]:
    avro = _named(avro, named)
    if isinstance(given, spark.NullType):
        return  # `select null as x`: nulls are found when values are encoded.
    if isinstance(avro, list):
        yield from _of_union(given, avro, named, path)
        return
    kind, logical = (avro["type"], avro.get("logicalType")) if isinstance(avro, dict) else (avro, None)
    if kind == "record" and isinstance(given, spark.StructType):
        yield from _of_record(given, avro, named, path)
    elif kind == "array" and isinstance(given, spark.ArrayType):
        yield from _of_type(given.elementType, avro["items"], named, f"{path}[]")
    elif kind == "map" and isinstance(given, spark.MapType) and isinstance(given.keyType, spark.StringType):
        yield from _of_type(given.valueType, avro["values"], named, f"{path}[]")
    elif logical == "decimal":
        if not _is_narrower(given, avro):
            yield _mismatch(path, given, avro, named)
    elif not isinstance(given, _TAKES.get(logical or "", _TAKES.get(str(kind), ()))):
        yield _mismatch(path, given, avro, named)


def _of_union(given: spark.DataType, branches: list[Avro], named: dict[str, Avro], path: str) -> Iterator[str]:
    others = [branch for branch in branches if branch != "null"]
    if len(others) == 1:
        yield from _of_type(given, others[0], named, path)
        return
    if all(list(_of_type(given, branch, dict(named), path)) for branch in others):
        yield _mismatch(path, given, branches, named)


def _of_record(given: spark.StructType, record: dict[str, Avro], named: dict[str, Avro], path: str) -> Iterator[str]:
    fields = {field["name"]: field for field in record.get("fields", ())}
    for column in given.fields:
        where = f"{path}.{column.name}" if path else column.name
        field = fields.get(column.name)
        if field is None:
            yield f"{_SCHEMA} has no field for {where}{nearest(column.name, list(fields))}"
        else:
            yield from _of_type(column.dataType, field["type"], named, where)
    for name, field in fields.items():
        if name not in given.names and "default" not in field and not _takes_null(field["type"]):
            yield f"the field {f'{path}.{name}' if path else name} is required, and there is no such column"


def _is_narrower(given: spark.DataType, avro: dict[str, Avro]) -> bool:
    scale = avro.get("scale", 0)
    return (
        isinstance(given, spark.DecimalType)
        and given.scale <= scale
        and given.precision - given.scale <= avro["precision"] - scale
    )


def _takes_null(avro: Avro) -> bool:
    return avro == "null" or (isinstance(avro, list) and "null" in avro)


def _named(avro: Avro, named: dict[str, Avro]) -> Avro:
    """Return the type that a name stands for; note the names of types that are defined here."""
    if isinstance(avro, str):
        return named.get(avro, avro)
    if isinstance(avro, dict):
        if isinstance(avro["type"], dict | list):
            return _named(avro["type"], named)
        if "name" in avro:
            named[avro["name"]] = named[f"{avro.get('namespace', '')}.{avro['name']}"] = avro
    return avro


def _mismatch(path: str, given: spark.DataType, avro: Avro, named: dict[str, Avro]) -> str:
    return f"column {path or 'value'} is {given.simpleString()}, and the schema has {_wanted(avro, named)}"


def _wanted(avro: Avro, named: dict[str, Avro]) -> str:
    """Return a type in Spark's words, if it has any."""
    if isinstance(avro, list):
        return " or ".join(_wanted(branch, named) for branch in avro if branch != "null")
    try:
        return spark_type(avro, dict(named)).simpleString()
    except (ValueError, LookupError):
        return str(avro["name"] if isinstance(avro, dict) else avro)
