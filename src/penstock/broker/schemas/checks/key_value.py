# SPDX-License-Identifier: Apache-2.0
"""Key-value schemas: two schemas in one, in three encodings.

On the wire the definition is `length:4 key length:4 value`, and properties have the rest: `key.schema.type`,
`key.schema.properties` (JSON) and the same for the value, and `kv.encoding.type` (INLINE or SEPARATED: whether the key
is in the payload or in the message's metadata). In REST the definition is JSON text, `{"key": …, "value": …}`.
Where: `validity` and `compatibility` split; the admin API translates.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.schemas.checks.model import AVRO_FORM, Schema, SchemaType, type_named
from penstock.core.errors import InvalidSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

ENCODING: Final = "kv.encoding.type"
INLINE: Final = "INLINE"


def split(schema: Schema) -> tuple[Schema, Schema]:
    """The key's schema and the value's. Raises InvalidSchema."""
    key, rest = _cut(schema.data)
    value, rest = _cut(rest)
    if rest:
        raise _invalid(f"{len(rest)} bytes follow the value's schema")
    return _part("key", key, schema.properties), _part("value", value, schema.properties)


def encoding(schema: Schema) -> str:
    """Where the key is: INLINE or SEPARATED."""
    return schema.properties.get(ENCODING, INLINE)


def join(key: bytes, value: bytes) -> bytes:
    """The definition on the wire."""
    return struct.pack(">I", len(key)) + key + struct.pack(">I", len(value)) + value


def to_json_text(schema: Schema) -> str:
    """The definition in REST; empty for primitive types. Raises InvalidSchema."""
    key, value = split(schema)
    return json.dumps({"key": _json_of(key), "value": _json_of(value)}, separators=(",", ":"), ensure_ascii=False)


def from_json_text(text: str) -> bytes:
    """The definition on the wire, from the one in REST. Raises InvalidSchema."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not {"key", "value"} <= value.keys():
        raise _invalid('want {"key": …, "value": …}')
    return join(_definition(value["key"]), _definition(value["value"]))


def _cut(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < 4:
        raise _invalid("it ends early")
    (size,) = struct.unpack_from(">I", data)
    if size == 0xFFFFFFFF:  # Clients send -1 for no definition.
        size = 0
    if len(data) < 4 + size:
        raise _invalid("it ends early")
    return data[4 : 4 + size], data[4 + size :]


def _part(side: str, data: bytes, properties: Mapping[str, str]) -> Schema:
    kind = type_named(properties.get(f"{side}.schema.type") or "BYTES")
    try:
        inner = json.loads(properties.get(f"{side}.schema.properties") or "{}")
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{side}.schema.properties is not JSON: {error}") from None
    if not isinstance(inner, dict):
        raise _invalid(f"{side}.schema.properties is no map")
    return Schema(kind, data, {str(name): str(value) for name, value in inner.items()})


def _json_of(part: Schema) -> Any:  # noqa: ANN401 - JSON
    if part.type not in AVRO_FORM and part.type is not SchemaType.PROTOBUF_NATIVE:
        return ""
    try:
        return json.loads(part.text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"not JSON: {error}") from None


def _definition(value: Any) -> bytes:  # noqa: ANN401 - JSON
    return b"" if value in ("", None) else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _invalid(why: str) -> InvalidSchema:
    return InvalidSchema(f"Invalid schema definition data for KEY_VALUE schema: {why}")
