# SPDX-License-Identifier: Apache-2.0
"""Checks that a definition is valid for its type, before it is stored.

Where: the registry calls this before it compares or stores.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from penstock.broker.schemas.checks import avro, key_value
from penstock.broker.schemas.checks.model import AVRO_FORM, PRIMITIVE, SCHEMA_BYTES_MAX, Schema, SchemaType
from penstock.core.errors import InvalidSchema

# The Python client sends JSON instead of no definition for strings.
_STRING_DATA: Final = (b"", b"null")


def check_valid(schema: Schema) -> None:
    """Raises InvalidSchema unless the definition is valid for its type."""
    size = len(schema.data)
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"{schema.type} schema of {size} bytes: penstock keeps schemas of {SCHEMA_BYTES_MAX} bytes")
    if schema.type in AVRO_FORM:
        _check_avro_form(schema)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message(schema)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_value.split(schema):
            check_valid(part)
    elif schema.type is SchemaType.STRING:
        if schema.data not in _STRING_DATA:
            shown = schema.data[:100].decode(errors="replace")
            raise InvalidSchema(f"Invalid schema definition data for string schema : '{shown}'")
    elif schema.type in PRIMITIVE and schema.data:
        raise InvalidSchema(
            "Invalid schema definition data for primitive schemas :"
            f"length of schema data should be zero, but {size} bytes is found"
        )
    elif schema.type is SchemaType.AUTO_CONSUME:
        raise InvalidSchema(f"Schema {schema.type} is a client-side schema type")


def root_message(schema: Schema) -> str:
    """The full name of the message of a PROTOBUF_NATIVE schema. Raises InvalidSchema."""
    value = _json(schema)
    root, file_name = value.get("rootMessageTypeName"), value.get("rootFileDescriptorName")
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(value["fileDescriptorSet"], validate=True))
    except (KeyError, TypeError, binascii.Error, DecodeError, ValueError) as error:
        raise InvalidSchema(f"deserialize ProtobufNative Schema failed: {error}") from None
    for file in files.file:
        if file.name == file_name and isinstance(root, str) and _declares(file, root):
            return root
    raise InvalidSchema(
        f"protobuf root message descriptor is null: {file_name!r} has no message {root!r}; "
        "please recheck rootMessageTypeName or rootFileDescriptorName conf."
    )


def is_json_schema(schema: Schema) -> bool:
    """Whether this is a JSON Schema, which clients before 2.1 sent instead of an Avro schema."""
    try:
        return isinstance(_json(schema).get("type"), str)
    except InvalidSchema:
        return False


def _check_avro_form(schema: Schema) -> None:
    try:
        parsed = avro.parse(schema.text)
    except avro.AvroError as error:
        if schema.type is SchemaType.JSON and is_json_schema(schema):
            return
        raise InvalidSchema(f"Invalid schema definition data for {schema.type} schema: {error}") from None
    if schema.type is SchemaType.AVRO and parsed.kind == "union":
        raise InvalidSchema("Avro schema typed [UNION] is not supported")


def _json(schema: Schema) -> dict[str, Any]:
    try:
        value = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"Invalid schema definition data for {schema.type} schema: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidSchema(f"Invalid schema definition data for {schema.type} schema: not an object")
    return value


def _declares(file: Any, full_name: str) -> bool:  # noqa: ANN401 - FileDescriptorProto
    package = f"{file.package}." if file.package else ""
    if not full_name.startswith(package):
        return False
    messages = file.message_type
    for part in full_name.removeprefix(package).split("."):
        found = next((message for message in messages if message.name == part), None)
        if found is None:
            return False
        messages = found.nested_type
    return True
