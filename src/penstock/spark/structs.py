# SPDX-License-Identifier: Apache-2.0
"""Values that are structs, written as JSON or Avro as the topic's schema wants them.

Why the topic's own schema: readers of the topic count on it. A DataFrame that fits is written with it to the
letter; one that has more than it is refused by the name of the column. Only a topic without a schema gets one made from
the DataFrame's types, which its broker then keeps.
Where: a task asks for one `StructFormat` per topic; `values` reads what this writes.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from penstock.spark.schema_fit import complaints, joined
from penstock.spark.write_columns import UnwritableColumns
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.spark.client.cluster import TopicSchema

JSON: Final = "json"
AVRO: Final = "avro"
KINDS: Final = {JSON: Schema.Json, AVRO: Schema.Avro}
_NAMES: Final[dict[int, str]] = {kind: name for name, kind in KINDS.items()}

# An Avro schema as `json` reads it.
Avro: TypeAlias = Any

_SIMPLE: Final[dict[type[spark.DataType], Avro]] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "int",
    spark.ShortType: "int",
    spark.IntegerType: "int",
    spark.LongType: "long",
    spark.FloatType: "float",
    spark.DoubleType: "double",
    spark.StringType: "string",
    spark.BinaryType: "bytes",
    spark.DateType: {"type": "int", "logicalType": "date"},
    spark.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    spark.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


class StructFormat:
    """Encodes one topic's structs."""

    def __init__(self, topic: str, struct: spark.StructType, present: TopicSchema | None, wanted: str) -> None:
        """Settle on the schema.

        Args:
            topic: for the text of errors.
            struct: the DataFrame's.
            present: the topic's schema, if it has one.
            wanted: `json`, `avro`, or empty for what the topic has, JSON if nothing.

        Raises:
            UnwritableColumns: the topic's schema is of another kind, lacks a column, or has another type for it.
        """
        if present is None:
            self.name = wanted or JSON
            self._definition = avro_record(struct, "Row")
            self.schema = Schema(name="Row", type=KINDS[self.name], schema_data=json.dumps(self._definition).encode())
        else:
            self.name = _NAMES.get(present.kind, "")
            if not self.name or wanted not in ("", self.name):
                kind = Schema.Type.Name(present.kind).upper()
                raise UnwritableColumns(
                    f"{topic} has a schema of type {kind}, and a struct can be written as {wanted or 'JSON or AVRO'}; "
                    "write one column `value` of the schema's type, or to another topic"
                )
            self._definition = json.loads(present.definition)
            self.schema = Schema(name="", type=KINDS[self.name], schema_data=present.definition)
            found = complaints(struct, self._definition, f"the schema of {topic}")
            if found:
                raise UnwritableColumns(
                    f"{joined(found)}. Cast, rename or leave out these columns, or change the topic's schema first"
                )
        self._encode = _avro_encoder(self._definition) if self.name == AVRO else _encode_json

    def encoded(self, column: pa.StructArray) -> pa.BinaryArray:
        """Encode the values; a null stays null.

        Raises:
            UnwritableColumns: a value that the schema does not allow.
        """
        _insist_on_values(column, self._definition, "")
        rounded = column.cast(_in_units(column.type, self._definition), safe=False)
        rows = rounded.cast(as_numbers(rounded.type)).to_pylist(maps_as_pydicts="strict")
        encode = self._encode
        try:
            return pa.array([None if row is None else encode(row) for row in rows], pa.binary())
        except (ValueError, TypeError) as error:
            raise UnwritableColumns(f"a value cannot be written as {self.name}: {error}") from error


# -- schemas ---------------------------------------------------------------------------------------------------------


def avro_record(struct: spark.StructType, name: str) -> Avro:
    """The Avro schema of a struct; records inside are named by their path, for names must differ."""
    fields = [_avro_field(field, name) for field in struct.fields]
    return {"type": "record", "name": name, "fields": fields}


def _avro_field(field: spark.StructField, path: str) -> Avro:
    kind = _avro_type(field.dataType, f"{path}_{field.name}")
    if field.nullable:
        return {"name": field.name, "type": ["null", kind], "default": None}
    return {"name": field.name, "type": kind}


def _avro_type(kind: spark.DataType, path: str) -> Avro:
    if isinstance(kind, spark.StructType):
        return avro_record(kind, path)
    if isinstance(kind, spark.ArrayType):
        return {"type": "array", "items": _avro_element(kind.elementType, kind.containsNull, path)}
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return {"type": "map", "values": _avro_element(kind.valueType, kind.valueContainsNull, path)}
    if isinstance(kind, spark.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    for of, simple in _SIMPLE.items():
        if isinstance(kind, of):
            return simple
    raise UnwritableColumns(f"{path} is {kind.simpleString()}, for which Avro has no type; cast it to string")


def _avro_element(kind: spark.DataType, nullable: bool, path: str) -> Avro:  # noqa: FBT001 -- as Spark says it
    element = _avro_type(kind, path)
    return ["null", element] if nullable else element


def _resolved(avro: Avro) -> Avro:
    """Return the type without null."""
    if isinstance(avro, list):
        others = [one for one in avro if one != "null"]
        return others[0] if len(others) == 1 else None
    return avro


# -- values ----------------------------------------------------------------------------------------------------------


def _in_units(kind: pa.DataType, avro: Avro) -> pa.DataType:
    """Return the same type, with times in the units of the schema."""
    said = _resolved(avro)
    inside = said if isinstance(said, dict) else {}
    if pa.types.is_struct(kind):
        places = {field["name"]: field["type"] for field in inside.get("fields", ())}
        return pa.struct([field.with_type(_in_units(field.type, places.get(field.name))) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_units(kind.item_type, inside.get("values")))
    if pa.types.is_list(kind):
        return pa.list_(_in_units(kind.value_type, inside.get("items")))
    if pa.types.is_timestamp(kind) and str(inside.get("logicalType")).endswith("-millis"):
        return pa.timestamp("ms", kind.tz)
    return kind


def as_numbers(kind: pa.DataType) -> pa.DataType:
    """Return the same type, with times and dates as numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(as_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, as_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(as_numbers(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind


def _insist_on_values(column: pa.StructArray, record: Avro, path: str) -> None:
    """Refuse nulls where the schema has none, and texts that are none of its symbols. Raises UnwritableColumns."""
    kinds = {field["name"]: field["type"] for field in record.get("fields", ())}
    there = column.is_valid()
    for index, field in enumerate(column.type):
        kind, cells, where = kinds[field.name], column.field(index), f"{path}{field.name}"
        if not _takes_null(kind) and cells.null_count and pc.any(pc.and_(there, cells.is_null())).as_py():
            raise UnwritableColumns(f"column {where} is null in some rows, and the topic's schema has no null for it")
        inside = _resolved(kind)
        if not isinstance(inside, dict):
            continue
        if inside.get("type") == "record" and pa.types.is_struct(field.type):
            _insist_on_values(cells, inside, f"{where}.")
        elif inside.get("type") == "enum":
            unknown = set(pc.unique(cells).to_pylist()) - {None, *inside["symbols"]}
            if unknown:
                raise UnwritableColumns(
                    f"column {where} holds {min(unknown)!r}, and the schema has {', '.join(inside['symbols'])}"
                )


def _takes_null(avro: Avro) -> bool:
    return avro == "null" or (isinstance(avro, list) and "null" in avro)


def _encode_json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_of).encode()


def _json_of(value: object) -> str:
    """Return the JSON value, in the format of Jackson and so of Java's client."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    assert isinstance(value, Decimal), value
    return str(value)


def _avro_encoder(definition: Avro) -> Callable[[dict[str, Any]], bytes]:
    import fastavro  # noqa: PLC0415 -- only for topics with an Avro schema

    parsed = fastavro.parse_schema(definition)

    def encode(row: dict[str, Any]) -> bytes:
        into = io.BytesIO()
        fastavro.schemaless_writer(into, parsed, row)
        return into.getvalue()

    return encode
