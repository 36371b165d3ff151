# SPDX-License-Identifier: Apache-2.0
"""Schemas as clients send them, for tests."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from penstock.broker.schemas.checks import key_value
from penstock.broker.schemas.checks.model import Schema, SchemaType

if TYPE_CHECKING:
    from collections.abc import Mapping

STRING = Schema(SchemaType.STRING)
INT32 = Schema(SchemaType.INT32)
BYTES = Schema(SchemaType.NONE)


def record(*fields: tuple[str, Any], optional: Mapping[str, Any] | None = None, name: str = "R") -> str:
    """A record in Avro's form; fields are (name, type), optional ones are null by default."""
    described = [{"name": field, "type": kind} for field, kind in fields]
    described += [{"name": field, "type": ["null", kind], "default": None} for field, kind in (optional or {}).items()]
    return json.dumps({"type": "record", "name": name, "fields": described})


def avro(*fields: tuple[str, Any], optional: Mapping[str, Any] | None = None, name: str = "R") -> Schema:
    """An AVRO schema of a record."""
    return Schema(SchemaType.AVRO, record(*fields, optional=optional, name=name).encode())


def in_json(*fields: tuple[str, Any], optional: Mapping[str, Any] | None = None, name: str = "R") -> Schema:
    """A JSON schema of a record."""
    return Schema(SchemaType.JSON, record(*fields, optional=optional, name=name).encode())


def legacy_json(identifier: str, **properties: object) -> Schema:
    """A JSON schema as clients before 2.1 sent it."""
    definition = {"type": "object", "id": identifier, "properties": properties}
    return Schema(SchemaType.JSON, json.dumps(definition).encode())


def pair(key: Schema, value: Schema, *, encoding: str | None = "INLINE", name: str = "KeyValue") -> Schema:
    """A KEY_VALUE schema, with the properties that the Java client attaches."""
    properties = {} if encoding is None else {"kv.encoding.type": encoding}
    for side, part in (("key", key), ("value", value)):
        properties[f"{side}.schema.name"] = name
        properties[f"{side}.schema.type"] = str(part.type)
        properties[f"{side}.schema.properties"] = json.dumps(dict(part.properties))
    return Schema(SchemaType.KEY_VALUE, key_value.join(key.data, value.data), properties)


def protobuf_native(message: str, *fields: str, package: str = "shop", file_name: str = "shop.proto") -> Schema:
    """A PROTOBUF_NATIVE schema of a message with text fields, as the Java and Python clients write it."""
    descriptor = DescriptorProto(name=message)
    for number, field in enumerate(fields, 1):
        descriptor.field.add(
            name=field, number=number, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
    file = FileDescriptorProto(name=file_name, package=package, message_type=[descriptor], syntax="proto3")
    definition = {
        "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode(),
        "rootMessageTypeName": f"{package}.{message}",
        "rootFileDescriptorName": file_name,
    }
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode())
