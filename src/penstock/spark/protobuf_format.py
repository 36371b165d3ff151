# SPDX-License-Identifier: Apache-2.0
"""Values that are structs, written as the message that a topic's `PROTOBUF_NATIVE` schema describes.

Where: `value_formats` asks for one per topic; `protobuf_records` reads what this writes.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError
from pyspark.sql import types as spark

from penstock.spark.protobuf_records import TIMESTAMP, US_PER_S, descriptor_of, entry_of, is_map, is_repeated
from penstock.spark.schema_fit import joined, nearest
from penstock.spark.structs import as_numbers
from penstock.spark.write_columns import UnwritableColumns
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from penstock.spark.client.cluster import TopicSchema

    Fill = Callable[[Any, Any], None]  # (message, row)

_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType)
# What each type takes without a loss; numbers without a sign are checked value by value.
_TAKES: Final[dict[int, tuple[type[spark.DataType], ...]]] = {
    FieldDescriptor.CPPTYPE_INT32: _INTEGERS,
    FieldDescriptor.CPPTYPE_INT64: (*_INTEGERS, spark.LongType),
    FieldDescriptor.CPPTYPE_UINT32: (*_INTEGERS, spark.LongType),
    FieldDescriptor.CPPTYPE_UINT64: (*_INTEGERS, spark.LongType, spark.DecimalType),
    FieldDescriptor.CPPTYPE_FLOAT: (spark.ByteType, spark.ShortType, spark.FloatType),
    FieldDescriptor.CPPTYPE_DOUBLE: (*_INTEGERS, spark.FloatType, spark.DoubleType),
    FieldDescriptor.CPPTYPE_BOOL: (spark.BooleanType,),
    FieldDescriptor.CPPTYPE_ENUM: (spark.StringType,),
    FieldDescriptor.CPPTYPE_STRING: (spark.StringType,),
}


class ProtobufFormat:
    """Encodes one topic's structs. A null is a field that is not set; where protobuf has no such thing, its default."""

    def __init__(self, topic: str, struct: spark.StructType, present: TopicSchema) -> None:
        """Raises UnwritableColumns if the schema lacks a column, or has another type for it."""
        descriptor = descriptor_of(present.definition)
        found = list(_complaints(struct, descriptor, ""))
        if found:
            raise UnwritableColumns(
                f"{joined(found)}, says the schema of {topic}. Cast, rename or leave out these columns, or change the "
                "topic's schema first"
            )
        self.schema: Schema | None = Schema(name="", type=present.kind, schema_data=present.definition)  # type: ignore[arg-type]
        self._make = message_factory.GetMessageClass(descriptor)
        self._fill = _filler(struct, descriptor)

    def encoded(self, column: pa.StructArray) -> pa.BinaryArray:
        """Encode the values; a null stays null. Raises UnwritableColumns for one that the schema does not allow."""
        rows = column.cast(as_numbers(column.type)).to_pylist(maps_as_pydicts="strict")
        try:
            return pa.array([None if row is None else self._one(row) for row in rows], pa.binary())
        except (ValueError, TypeError, EncodeError) as error:
            raise UnwritableColumns(f"a value cannot be written as protobuf: {error}") from error

    def _one(self, row: dict[str, Any]) -> bytes:
        message = self._make()
        self._fill(message, row)
        return message.SerializeToString()


# -- whether columns fit ----------------------------------------------------------------------------------------------


def _complaints(struct: spark.StructType, message: Descriptor, path: str) -> Iterator[str]:
    for column in struct.fields:
        where = f"{path}{column.name}"
        field = message.fields_by_name.get(column.name)
        if field is None:
            yield f"there is no field for {where}{nearest(column.name, list(message.fields_by_name))}"
        elif isinstance(column.dataType, spark.NullType):
            continue
        elif is_map(field):
            yield from _of_map(column.dataType, field, where)
        elif is_repeated(field):
            if isinstance(column.dataType, spark.ArrayType):
                yield from _of_one(column.dataType.elementType, field, f"{where}[]")
            else:
                yield f"column {where} is {column.dataType.simpleString()}, and the field is repeated"
        else:
            yield from _of_one(column.dataType, field, where)


def _of_map(kind: spark.DataType, field: FieldDescriptor, where: str) -> Iterator[str]:
    if not isinstance(kind, spark.MapType):
        yield f"column {where} is {kind.simpleString()}, and the field is a map"
        return
    key, value = entry_of(field)
    yield from _of_one(kind.keyType, key, f"{where}[]")
    yield from _of_one(kind.valueType, value, f"{where}[]")


def _of_one(kind: spark.DataType, field: FieldDescriptor, where: str) -> Iterator[str]:
    message = field.message_type
    if message is None:
        takes = (spark.BinaryType,) if field.type == FieldDescriptor.TYPE_BYTES else _TAKES[field.cpp_type]
        fits = isinstance(kind, takes) and not (isinstance(kind, spark.DecimalType) and kind.scale)
        wanted = takes[-1].__name__.removesuffix("Type").lower()
    elif message.full_name == TIMESTAMP:
        fits, wanted = isinstance(kind, spark.TimestampType), "timestamp"
    elif isinstance(kind, spark.StructType):
        yield from _complaints(kind, message, f"{where}.")
        return
    else:
        fits, wanted = False, f"the message {message.full_name}"
    if not fits:
        yield f"column {where} is {kind.simpleString()}, and the field takes {wanted}"


# -- values -----------------------------------------------------------------------------------------------------------


def _filler(struct: spark.StructType, message: Descriptor) -> Fill:
    """Return what sets the fields of a message from a row."""
    setters = {column.name: _setter(column.dataType, message.fields_by_name[column.name]) for column in struct.fields}
    choices = [names for one in message.oneofs if len(names := {field.name for field in one.fields} & set(setters)) > 1]

    def fill(into: Message, row: dict[str, Any]) -> None:
        for names in choices:
            if len(given := sorted(name for name in names if row[name] is not None)) > 1:
                raise ValueError(f"{' and '.join(given)} exclude each other: leave one of them null")
        for name, put in setters.items():
            if row[name] is not None:
                put(into, row[name])

    return fill


def _setter(kind: spark.DataType, field: FieldDescriptor) -> Fill:
    name = field.name
    if is_map(field):
        value_field = entry_of(field)[1]
        value_kind = kind.valueType if isinstance(kind, spark.MapType) else kind
        return _map_setter(name, value_kind, value_field)
    if is_repeated(field):
        element = kind.elementType if isinstance(kind, spark.ArrayType) else kind
        if field.message_type is not None:
            fill = _message_filler(element, field)

            def put_all(into: Any, cells: list[Any]) -> None:  # noqa: ANN401 -- a message
                for cell in cells:
                    fill(getattr(into, name).add(), _there(cell, name))

            return put_all
        convert = _converter(field)
        return lambda into, cells: getattr(into, name).extend([convert(_there(cell, name)) for cell in cells])
    if field.message_type is not None:
        fill_one = _message_filler(kind, field)

        def put(into: Any, cell: Any) -> None:  # noqa: ANN401 -- likewise
            getattr(into, name).SetInParent()  # Also one without any field is there.
            fill_one(getattr(into, name), cell)

        return put
    to_one = _converter(field)
    return lambda into, cell: setattr(into, name, to_one(cell))


def _map_setter(name: str, kind: spark.DataType, field: FieldDescriptor) -> Fill:
    if field.message_type is not None:
        fill = _message_filler(kind, field)

        def put(into: Any, cells: dict[Any, Any]) -> None:  # noqa: ANN401 -- likewise
            for key, cell in cells.items():
                fill(getattr(into, name)[key], _there(cell, name))

        return put
    convert = _converter(field)
    return lambda into, cells: getattr(into, name).update(
        {key: convert(_there(cell, name)) for key, cell in cells.items()}
    )


def _message_filler(kind: spark.DataType, field: FieldDescriptor) -> Fill:
    assert field.message_type is not None
    if field.message_type.full_name == TIMESTAMP:
        return _fill_timestamp
    return _filler(kind if isinstance(kind, spark.StructType) else spark.StructType(), field.message_type)


def _fill_timestamp(into: Any, micros: int) -> None:  # noqa: ANN401 -- likewise
    into.seconds = micros // US_PER_S
    into.nanos = micros % US_PER_S * 1000


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}

        def number_of(text: str) -> int:
            if text in numbers:
                return numbers[text]
            try:
                return int(text)  # As a number without a name is read.
            except ValueError:
                raise ValueError(f"{field.name} is {text!r}; the schema has {', '.join(numbers)}") from None

        return number_of
    return lambda cell: int(cell) if isinstance(cell, Decimal) else cell


def _there(cell: object, name: str) -> Any:  # noqa: ANN401 -- what came
    if cell is None:
        raise ValueError(f"{name} holds a null, for which protobuf has nothing")
    return cell
