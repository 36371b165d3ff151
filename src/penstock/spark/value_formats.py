# SPDX-License-Identifier: Apache-2.0
"""How the values of a DataFrame become the bytes that a topic's schema asks for; or why they cannot.

    the topic has      a column `value`                            other columns
    no schema          binary or string, as it is                  JSON or Avro, with a schema made from the columns
    a primitive one    of that type                                refused
    JSON, AVRO, or     a struct of the schema's columns            the schema's columns
    PROTOBUF_NATIVE
    KeyValue           a struct of `key` and `value`               columns `key` and `value`
    another            refused, but for `valueFormat=binary`       refused

Why nothing is sent that does not fit: a message that cannot be read stays in the topic, and all who read it fail.
Where: `writer` asks on the driver, before the first task, and in each task once for each topic.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.spark import key_values
from penstock.spark.key_value_format import KEY, VALUE, PairFormat
from penstock.spark.options import BINARY
from penstock.spark.primitives import PRIMITIVES
from penstock.spark.protobuf_format import ProtobufFormat
from penstock.spark.structs import StructFormat
from penstock.spark.values import spark_type
from penstock.spark.write_columns import TEXT, UnwritableColumns
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from penstock.spark.client.cluster import TopicSchema
    from penstock.spark.primitives import Primitive

# Kinds of schema that say nothing about the bytes.
_UNTYPED: Final = frozenset({Schema.NoSchema})
_RECORDS: Final = frozenset({Schema.Json, Schema.Avro})
_ENCODED_ALREADY: Final = "for values that are encoded already, set valueFormat=binary"


class ValueFormat(Protocol):
    """Encodes the values for one topic; `schema` is what producers send along, if anything."""

    @property
    def schema(self) -> Schema | None: ...

    def encoded(self, column: pa.Array) -> pa.BinaryArray:
        """Encode values; nulls stay nulls. Raises UnwritableColumns."""


class Unchanged:
    """Bytes and text are sent as they are."""

    schema: Schema | None = None

    def encoded(self, column: pa.Array) -> pa.BinaryArray:
        return column.cast(pa.binary())


class PrimitiveFormat:
    """Values of one primitive type."""

    def __init__(self, present: TopicSchema, primitive: Primitive) -> None:
        self.schema: Schema | None = Schema(name="", type=present.kind, schema_data=present.definition)  # type: ignore[arg-type]
        self._primitive = primitive

    def encoded(self, column: pa.Array) -> pa.BinaryArray:
        return self._primitive.encoded(column)


def format_of(
    topic: str, given: spark.DataType, present: TopicSchema | None, wanted: str, column: str = VALUE
) -> ValueFormat:
    """Return the format of a topic's values.

    Args:
        topic: for the text of errors.
        given: the type of values in the DataFrame.
        present: the schema of the topic, if it has one.
        wanted: the option `valueFormat`.
        column: for the text of errors.

    Raises:
        UnwritableColumns: these values do not fit the schema; names columns, wanted types and given types.
    """
    if wanted != BINARY and present is not None and present.kind == Schema.KeyValueSchema:
        return _pair_of(topic, given, present, wanted)
    if wanted != BINARY and isinstance(given, spark.StructType):
        if not wanted and present is not None and present.kind == Schema.ProtobufNative:
            return ProtobufFormat(topic, given, present)
        return StructFormat(topic, given, present, wanted)
    if wanted == BINARY or present is None or present.kind in _UNTYPED:
        if not isinstance(given, TEXT):
            raise UnwritableColumns(
                f"column {column} is {given.simpleString()} and must be binary, string or a struct; "
                + ("leave out valueFormat=binary" if wanted else "cast it to string, or put it into a struct")
            )
        return Unchanged()
    primitive = PRIMITIVES.get(present.kind)
    kind = Schema.Type.Name(present.kind).upper()
    found = f"column {column} is {given.simpleString()}, and {topic} has a schema of type {kind}"
    if primitive is None:
        advice = ";"
        if present.kind in _RECORDS:
            advice = f" with the columns {_columns_of(present)}; write these columns, or"
        raise UnwritableColumns(f"{found}{advice} {_ENCODED_ALREADY}")
    if not isinstance(given, primitive.takes):
        raise UnwritableColumns(f"{found}: cast it to {primitive.wanted}; {_ENCODED_ALREADY}")
    return PrimitiveFormat(present, primitive)


def _pair_of(topic: str, given: spark.DataType, present: TopicSchema, wanted: str) -> PairFormat:
    """Return the format of a topic with a KeyValue schema. Raises UnwritableColumns."""
    if not isinstance(given, spark.StructType) or sorted(given.names) != [KEY, VALUE] or wanted:
        shape = given.simpleString()
        raise UnwritableColumns(
            f"{topic} has a KeyValue schema: write columns {KEY} and {VALUE} and no others, or a struct of them, not "
            f"{shape}; leave out valueFormat, or set it to binary for values that are encoded already"
        )
    parts = zip((KEY, VALUE), key_values.schemas_of(present), strict=True)
    return PairFormat(present, *(format_of(topic, given[name].dataType, part, "", name) for name, part in parts))


def _columns_of(present: TopicSchema) -> str:
    """Return the columns of a record schema as people write them: `id bigint, name string`."""
    kind = spark_type(json.loads(present.definition))
    if not isinstance(kind, spark.StructType):
        return f"value {kind.simpleString()}"
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind.fields)
