# SPDX-License-Identifier: Apache-2.0
"""Values as a topic's schema has them: an Avro schema becomes Spark's types, and bytes become Arrow columns of these.

    no schema, BYTES, PROTOBUF      value: binary
    STRING, numbers, times …        value: string, bigint, timestamp …
    JSON, AVRO (a record)           a column for each field
    PROTOBUF_NATIVE                 likewise
    KeyValue                        key and value, each as its schema says

Where: `source` asks on the driver which columns a topic has; tasks decode with the same object. JSON and Avro are
decoded value by value, in Python or by fastavro, where `json_records` and `avro_records` cannot do all at once; bytes
are not touched.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from base64 import b64decode
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import types as spark

from penstock.spark import key_values, protobuf_records
from penstock.spark.client.errors import UnreadableValue
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from penstock.spark.client.cluster import TopicSchema

    # The topic's schema of a version, asked of the broker.
    SchemaOf = Callable[[bytes], TopicSchema | None]

VALUE: Final = "value"

# What decoders raise. RecursionError: JSON within JSON within JSON.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, EOFError, ArithmeticError, RecursionError, struct.error)

# An Avro schema as `json` reads it; and one decoded value.
Avro: TypeAlias = Any
Convert: TypeAlias = "Callable[[Any], Any]"
Decode: TypeAlias = "Callable[[bytes, bytes], Any]"  # (value, version of its schema)

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1)


def _timestamp(data: bytes) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=_long(data))


def _long(data: bytes) -> int:
    number: int = struct.unpack(">q", data)[0]
    return number


# Kinds of schema whose value is one thing: its type, and how it is written.
_SIMPLE: Final[dict[int, tuple[spark.DataType, Callable[[bytes], Any]]]] = {
    Schema.String: (spark.StringType(), lambda data: data.decode("utf-8", "replace")),
    Schema.Bool: (spark.BooleanType(), lambda data: data != b"\0"),
    Schema.Int8: (spark.ByteType(), lambda data: struct.unpack(">b", data)[0]),
    Schema.Int16: (spark.ShortType(), lambda data: struct.unpack(">h", data)[0]),
    Schema.Int32: (spark.IntegerType(), lambda data: struct.unpack(">i", data)[0]),
    Schema.Int64: (spark.LongType(), _long),
    Schema.Float: (spark.FloatType(), lambda data: struct.unpack(">f", data)[0]),
    Schema.Double: (spark.DoubleType(), lambda data: struct.unpack(">d", data)[0]),
    Schema.Date: (spark.TimestampType(), _timestamp),
    Schema.Time: (spark.LongType(), _long),
    Schema.Timestamp: (spark.TimestampType(), _timestamp),
    Schema.Instant: (
        spark.TimestampType(),
        lambda data: (
            _EPOCH + dt.timedelta(seconds=_long(data[:8]), microseconds=int.from_bytes(data[8:], "big") // 1000)
        ),
    ),
    Schema.LocalDate: (spark.DateType(), lambda data: _EPOCH_DAY + dt.timedelta(days=_long(data))),
    Schema.LocalTime: (spark.LongType(), _long),
    Schema.LocalDateTime: (
        spark.TimestampNTZType(),
        lambda data: (
            dt.datetime(1970, 1, 1)  # noqa: DTZ001 -- it has no zone
            + dt.timedelta(days=_long(data[:8]), microseconds=_long(data[8:]) // 1000)
        ),
    ),
}


@dataclass(frozen=True)
class Values:
    """Type of a topic's values; can be pickled.

    Attributes:
        fields: the columns that they make.
        kind: the schema's type; None leaves the bytes alone.
    """

    fields: tuple[spark.StructField, ...] = (spark.StructField(VALUE, spark.BinaryType()),)
    kind: int | None = None
    definition: bytes = b""
    is_record: bool = field(default=False)
    parts: tuple[Values, Values] | None = None  # of a key and a value, each with a schema of its own
    is_separated: bool = False  # whether that key is the message's

    def decoder(self, topic: str, schema_of: SchemaOf, wanted: Container[str] | None = None) -> Decode:
        """Return a function that decodes a value to a dictionary of the fields, or to the single value.

        Args:
            topic: for error messages.
            schema_of: returns the schema that a value was written with, by its version.
            wanted: the fields that are read, all if None; other fields may be invalid.
        """
        kind = self.kind
        assert kind is not None, "bytes are not decoded"
        if kind == Schema.Json:
            decode = _json_decoder(json.loads(self.definition), wanted)
        elif kind == Schema.Avro:
            decode = _avro_decoder(json.loads(self.definition), schema_of)
        elif kind == Schema.ProtobufNative:
            of_message = protobuf_records.decoder(self.definition)

            def decode(value: bytes, version: bytes) -> object:  # noqa: ARG001 -- fields have numbers
                return of_message(value)
        elif self.parts is not None:
            decode = _pair_decoder(self.parts, topic, schema_of)
        else:
            read = _SIMPLE[kind][1]

            def decode(value: bytes, version: bytes) -> object:  # noqa: ARG001 -- the version says nothing here
                return read(value)

        def checked(value: bytes, version: bytes) -> object:
            try:
                found = decode(value, version)
            except _UNREADABLE as error:
                raise self.unreadable(topic, value, str(error)) from error
            if self.is_record and not isinstance(found, dict | None):
                raise self.unreadable(topic, value, f"a record is wanted, not {found!r}")
            return found

        return checked

    def unreadable(self, topic: str, value: bytes, why: str) -> UnreadableValue:
        """Return the error for a value that does not match the schema."""
        return UnreadableValue(topic, Schema.Type.Name(self.kind or 0), value, why)


def of_schema(schema: TopicSchema | None) -> Values:
    """Return the type of values with this schema.

    Raises:
        ValueError: a type that Spark has nothing for: one that contains itself.
    """
    if schema is None:
        return Values()
    if schema.kind in _SIMPLE:
        return Values((spark.StructField(VALUE, _SIMPLE[schema.kind][0]),), schema.kind)
    if not schema.definition:
        return Values()
    if schema.kind == Schema.ProtobufNative:
        columns = protobuf_records.fields_of(protobuf_records.descriptor_of(schema.definition))
        return Values(tuple(columns), schema.kind, schema.definition, is_record=True)
    if schema.kind == Schema.KeyValueSchema:
        return _of_pair(schema)
    if schema.kind not in {Schema.Json, Schema.Avro}:
        return Values()
    kind = spark_type(json.loads(schema.definition))
    if isinstance(kind, spark.StructType):
        return Values(tuple(kind.fields), schema.kind, schema.definition, is_record=True)
    return Values((spark.StructField(VALUE, kind),), schema.kind, schema.definition)


def _of_pair(schema: TopicSchema) -> Values:
    key, value = (of_schema(one) for one in key_values.schemas_of(schema))
    columns = tuple(
        spark.StructField(name, spark.StructType(list(part.fields)) if part.is_record else part.fields[0].dataType)
        for name, part in (("key", key), (VALUE, value))
    )
    separated = key_values.is_separated(schema)
    return Values(columns, schema.kind, is_record=True, parts=(key, value), is_separated=separated)


def of_strings() -> Values:
    """Return values that are decoded as text, whatever the topic's schema is."""
    return Values((spark.StructField(VALUE, spark.StringType()),), Schema.String)


# -- types -----------------------------------------------------------------------------------------------------------

_AVRO_TYPES: Final[dict[str, spark.DataType]] = {
    "null": spark.StringType(),
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bytes": spark.BinaryType(),
    "string": spark.StringType(),
    "fixed": spark.BinaryType(),
    "enum": spark.StringType(),
}
_LOGICAL_TYPES: Final[dict[str, spark.DataType]] = {
    "date": spark.DateType(),
    "timestamp-millis": spark.TimestampType(),
    "timestamp-micros": spark.TimestampType(),
    "local-timestamp-millis": spark.TimestampNTZType(),
    "local-timestamp-micros": spark.TimestampNTZType(),
    "uuid": spark.StringType(),
}
_WIDER: Final = (("int", "long"), ("float", "double"))


def spark_type(avro: Avro, named: dict[str, Avro] | None = None, inside: tuple[str, ...] = ()) -> spark.DataType:
    """Spark's type for an Avro schema; unions of different things become text, as JSON.

    Raises:
        ValueError: a record that contains itself.
    """
    named = {} if named is None else named
    if isinstance(avro, list):
        return _union_type(avro, named, inside)
    if isinstance(avro, str):
        if avro in _AVRO_TYPES:
            return _AVRO_TYPES[avro]
        if avro in inside:
            raise ValueError(f"the schema's record {avro} contains itself; read with valueFormat=binary")
        return spark_type(named[avro], named, inside)
    kind, logical = avro["type"], avro.get("logicalType", "")
    if "name" in avro:
        named[avro["name"]] = named[f"{avro.get('namespace', '')}.{avro['name']}"] = avro
    if logical == "decimal":
        return spark.DecimalType(avro["precision"], avro.get("scale", 0))
    if logical in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[logical]
    if kind == "record":
        within = (*inside, avro["name"], f"{avro.get('namespace', '')}.{avro['name']}")
        return spark.StructType(
            [spark.StructField(one["name"], spark_type(one["type"], named, within)) for one in avro["fields"]]
        )
    if kind == "array":
        return spark.ArrayType(spark_type(avro["items"], named, inside))
    if kind == "map":
        return spark.MapType(spark.StringType(), spark_type(avro["values"], named, inside))
    return spark_type(kind, named, inside)


def _union_type(branches: list[Avro], named: dict[str, Avro], inside: tuple[str, ...]) -> spark.DataType:
    others = [branch for branch in branches if branch != "null"]
    if len(others) == 1:
        return spark_type(others[0], named, inside)
    for narrow, wide in _WIDER:
        if set(map(str, others)) == {narrow, wide}:
            return _AVRO_TYPES[wide]
    return spark.StringType()


def microseconds_in(avro: Avro) -> int:
    """Return the factor to microseconds, Spark's unit: 1000 for times that are written in milliseconds, else 1."""
    branches = avro if isinstance(avro, list) else [avro]
    logical = {str(one.get("logicalType")) for one in branches if isinstance(one, dict)}
    return 1000 if logical & {"timestamp-millis", "local-timestamp-millis"} else 1


# -- values ----------------------------------------------------------------------------------------------------------


def _json_decoder(avro: Avro, wanted: Container[str] | None) -> Decode:
    kind = spark_type(avro)
    convert = (
        _json_struct(kind, avro, {}, wanted) if isinstance(kind, spark.StructType) else _json_converter(kind, avro, {})
    )

    def decode(value: bytes, version: bytes) -> object:  # noqa: ARG001 -- JSON names its fields
        found = json.loads(value)
        return found if convert is None else convert(found)

    return decode


def _json_converter(kind: spark.DataType, avro: Avro, named: dict[str, Avro]) -> Convert | None:
    """Return a function that restores types that JSON lacks; None where there are none."""
    if isinstance(avro, list):
        others = [branch for branch in avro if branch != "null"]
        avro = others[0] if len(others) == 1 else None
    if isinstance(avro, str) and avro in named:
        avro = named[avro]
    details = avro if isinstance(avro, dict) else {}
    if "name" in details:
        named[details["name"]] = details
    if isinstance(kind, spark.StructType):
        return _json_struct(kind, details, named)
    if isinstance(kind, spark.ArrayType):
        return _in_lists(_json_converter(kind.elementType, details.get("items"), named))
    if isinstance(kind, spark.MapType):
        return _in_maps(_json_converter(kind.valueType, details.get("values"), named))
    if isinstance(kind, spark.BinaryType):
        return _maybe(b64decode)
    if isinstance(kind, spark.DecimalType):
        return _maybe(lambda found: Decimal(str(found)))
    if isinstance(kind, spark.TimestampType | spark.TimestampNTZType):
        micros = microseconds_in(details)
        return _maybe(lambda found: int(found) * micros)
    if isinstance(kind, spark.DoubleType | spark.FloatType):
        return _maybe(lambda found: float(found) if type(found) is int else found)  # Arrow wants it to be exact.
    if isinstance(kind, spark.StringType):
        return _maybe(lambda found: found if isinstance(found, str) else json.dumps(found))
    return None


def _json_struct(
    kind: spark.StructType, avro: dict[str, Avro], named: dict[str, Avro], wanted: Container[str] | None = None
) -> Convert | None:
    types = {one["name"]: one["type"] for one in avro.get("fields", ())}
    converters = {
        one.name: convert
        for one in kind.fields
        if (convert := _json_converter(one.dataType, types.get(one.name), named)) is not None
        and (wanted is None or one.name in wanted)
    }

    def convert_struct(found: dict[str, Any]) -> dict[str, Any]:
        for name, convert in converters.items():
            if name in found:
                found[name] = convert(found[name])
        return found

    return _maybe(convert_struct) if converters else None


def _in_lists(convert: Convert | None) -> Convert | None:
    return None if convert is None else _maybe(lambda found: [convert(one) for one in found])


def _in_maps(convert: Convert | None) -> Convert | None:
    return None if convert is None else _maybe(lambda found: {key: convert(one) for key, one in found.items()})


def _maybe(convert: Convert) -> Convert:
    return lambda found: None if found is None else convert(found)


def _avro_decoder(wanted: Avro, schema_of: SchemaOf) -> Decode:
    import fastavro  # noqa: PLC0415 -- only for topics with an Avro schema
    from fastavro.read import SchemaResolutionError  # noqa: PLC0415 -- likewise

    reading = fastavro.parse_schema(_as_written(wanted))
    convert = _avro_converter(spark_type(wanted))
    writing: dict[bytes, Avro] = {}

    def decode(value: bytes, version: bytes) -> object:
        written = writing.get(version)
        if written is None:
            said = schema_of(version) if version else None
            written = writing[version] = (
                reading
                if said is None
                else fastavro.parse_schema(_as_written(_named_as(json.loads(said.definition), wanted)))
            )
        try:
            found = fastavro.schemaless_reader(io.BytesIO(value), written, reading)
        except SchemaResolutionError as error:
            raise ValueError(f"written with another schema: {error}") from error
        return found if convert is None else convert(found)

    return decode


def _pair_decoder(parts: tuple[Values, Values], topic: str, schema_of: SchemaOf) -> Decode:
    def schema_of_part(index: int) -> SchemaOf:
        def found(version: bytes) -> TopicSchema | None:
            whole = schema_of(version)
            return None if whole is None else key_values.schemas_of(whole)[index]

        return found

    decoders = [
        None if part.kind is None else part.decoder(topic, schema_of_part(index)) for index, part in enumerate(parts)
    ]

    def decode(value: bytes, version: bytes) -> object:
        return {
            name: said if said is None or read is None else read(said, version)
            for name, said, read in zip(("key", VALUE), key_values.split(value), decoders, strict=True)
        }

    return decode


def _named_as(written: Avro, wanted: Avro) -> Avro:
    """A schema whose record is called as the one that is wanted: brokers and other clients let it change its name."""
    if not (isinstance(written, dict) and isinstance(wanted, dict)) or "name" not in written or "name" not in wanted:
        return written
    space, dot, _ = written["name"].rpartition(".")
    return {**written, "name": space + dot + wanted["name"].rpartition(".")[2]}


# Read as they are written, for want of a type in Spark: numbers and text.
WITHOUT_TYPE: Final = {("int", "time-millis"), ("long", "time-micros"), ("string", "uuid")}


def _as_written(avro: Avro) -> Avro:
    """A schema without the logical types that Spark has no type for."""
    if isinstance(avro, list):
        return [_as_written(one) for one in avro]
    if not isinstance(avro, dict):
        return avro
    # What is a default is data, and no type.
    said = {key: found if key == "default" else _as_written(found) for key, found in avro.items()}
    if (str(said.get("type")), said.get("logicalType")) in WITHOUT_TYPE:
        del said["logicalType"]
    return said


def _avro_converter(kind: spark.DataType) -> Convert | None:
    """Return a function that makes text of unions of different types; None without such."""
    if isinstance(kind, spark.StructType):
        converters = {one.name: convert for one in kind.fields if (convert := _avro_converter(one.dataType))}

        def convert_struct(found: dict[str, Any]) -> dict[str, Any]:
            return {**found, **{name: convert(found[name]) for name, convert in converters.items()}}

        return _maybe(convert_struct) if converters else None
    if isinstance(kind, spark.ArrayType):
        return _in_lists(_avro_converter(kind.elementType))
    if isinstance(kind, spark.MapType):
        return _in_maps(_avro_converter(kind.valueType))
    if isinstance(kind, spark.StringType):
        return _maybe(lambda found: found if isinstance(found, str) else json.dumps(found, default=str))
    return None


def decoded(decode: Decode, values: Sequence[bytes | None], versions: Sequence[bytes]) -> list[Any]:
    """Return a column of decoded values; nulls stay nulls."""
    return [None if value is None else decode(value, version) for value, version in zip(values, versions, strict=True)]


def decoded_where_possible(
    decode: Decode, values: Sequence[bytes | None], versions: Sequence[bytes], bad: set[int]
) -> list[Any]:
    """Return the same, with null for values that cannot be decoded; adds their rows to `bad`."""
    rows: list[Any] = []
    for row, (value, version) in enumerate(zip(values, versions, strict=True)):
        try:
            rows.append(None if value is None else decode(value, version))
        except UnreadableValue:
            bad.add(row)
            rows.append(None)
    return rows
