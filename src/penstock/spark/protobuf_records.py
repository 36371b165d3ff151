# SPDX-License-Identifier: Apache-2.0
"""Values of topics with the schema `PROTOBUF_NATIVE`: its descriptor becomes columns, and messages become rows.

Where: `values` asks here for such a schema. `PROTOBUF`, the older kind, has no descriptor, and its values stay bytes.
Source: Pulsar's `ProtobufNativeSchemaData`: JSON with the descriptors of the root message's file and its imports.
"""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import types as spark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

TIMESTAMP: Final = "google.protobuf.Timestamp"
US_PER_S: Final = 1_000_000
_SIMPLE: Final[dict[int, spark.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: spark.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: spark.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: spark.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: spark.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: spark.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: spark.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: spark.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: spark.StringType(),
    FieldDescriptor.CPPTYPE_STRING: spark.StringType(),
}


def descriptor_of(definition: bytes) -> Descriptor:
    """Return the message that a schema describes. Raises ValueError if it describes none."""
    try:
        said = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(said["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        waiting = {file.name: file for file in files.file}
        while waiting:
            # A file is added after those that it imports.
            ready = [file for file in waiting.values() if not any(name in waiting for name in file.dependency)]
            if not ready:
                raise ValueError(f"files import each other: {', '.join(waiting)}")
            for file in ready:
                pool.Add(waiting.pop(file.name))
        return pool.FindMessageTypeByName(said["rootMessageTypeName"])
    except (KeyError, TypeError, DecodeError) as error:
        raise ValueError(f"the topic's PROTOBUF_NATIVE schema does not read as one: {error}") from error


def fields_of(message: Descriptor, inside: tuple[str, ...] = ()) -> list[spark.StructField]:
    """Return the columns of a message. Raises ValueError for one that contains itself."""
    if message.full_name in inside:
        raise ValueError(f"the schema's message {message.full_name} contains itself; read with valueFormat=binary")
    inside = (*inside, message.full_name)
    return [spark.StructField(field.name, _column_type(field, inside)) for field in message.fields]


def decoder(definition: bytes) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes values. It raises ValueError."""
    make = message_factory.GetMessageClass(descriptor_of(definition))

    def decode(value: bytes) -> dict[str, Any]:
        found = make()
        try:
            found.ParseFromString(value)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return _row(found)

    return decode


# -- types -----------------------------------------------------------------------------------------------------------


def _column_type(field: FieldDescriptor, inside: tuple[str, ...]) -> spark.DataType:
    if is_map(field):
        key, value = entry_of(field)
        return spark.MapType(_type(key, inside), _type(value, inside))
    kind = _type(field, inside)
    return spark.ArrayType(kind) if is_repeated(field) else kind


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> spark.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return spark.TimestampType()
        return spark.StructType(fields_of(field.message_type, inside))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return spark.BinaryType()
    return _SIMPLE[field.cpp_type]


def is_repeated(field: FieldDescriptor) -> bool:
    # Versions of the library before 6 have `label` alone, later ones warn of it.
    said = getattr(field, "is_repeated", None)
    return bool(said if said is not None else field.label == FieldDescriptor.LABEL_REPEATED)  # type: ignore[attr-defined]


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Return the fields of a map's keys and values."""
    assert field.message_type is not None
    fields = field.message_type.fields_by_name
    return fields["key"], fields["value"]


def is_map(field: FieldDescriptor) -> bool:
    return is_repeated(field) and field.message_type is not None and field.message_type.GetOptions().map_entry


# -- values ----------------------------------------------------------------------------------------------------------


def _row(message: Message) -> dict[str, Any]:
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    return {field.name: _cell(message, field) for field in fields}


def _cell(message: Message, field: FieldDescriptor) -> object:
    if is_map(field):
        # By its keys: a map of messages makes an empty one for a key that is only asked for.
        held, kind = getattr(message, field.name), entry_of(field)[1]
        return [(key, _one(held[key], kind)) for key in held]
    if is_repeated(field):
        return [_one(one, field) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(getattr(message, field.name), field)


def _one(value: Any, field: FieldDescriptor) -> object:  # noqa: ANN401 -- any that protobuf has
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return value.seconds * US_PER_S + value.nanos // 1000
        return _row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return Decimal(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value
