# SPDX-License-Identifier: Apache-2.0
"""Encodes records in Avro's binary format.

Why not a library: records are flat and of six types, and the broker needs no Avro otherwise. Tests read with fastavro.
Where: `records` makes an encoder of each record's fields.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Encode = Callable[[Any], bytes]

_DOUBLE: Final = struct.Struct("<d")
_NULL: Final = b"\x00"  # branch 0 of a union
_VALUE: Final = b"\x02"  # branch 1


def encode_long(value: int) -> bytes:
    """Encode a signed number of 64 bits: zigzag, then 7 bits per byte, the lowest first."""
    left = (value << 1) ^ (value >> 63)
    if left < 0x80:
        return left.to_bytes(1, "big")
    encoded = bytearray()
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def encode_string(value: str) -> bytes:
    encoded = value.encode()
    return encode_long(len(encoded)) + encoded


def _encode_strings(values: Sequence[str]) -> bytes:
    """Encode an array of strings."""
    if not values:
        return _NULL
    return encode_long(len(values)) + b"".join(map(encode_string, values)) + _NULL


def _encode_boolean(value: object) -> bytes:
    return b"\x01" if value else b"\x00"


def _optional(encode: Encode) -> Encode:
    return lambda value: _NULL if value is None else _VALUE + encode(value)


# By the name of a field's type in `records`.
ENCODERS: Final[Mapping[str, Encode]] = {
    "long": encode_long,
    "string": encode_string,
    "boolean": _encode_boolean,
    "strings": _encode_strings,
    "long?": _optional(encode_long),
    "double?": _optional(_DOUBLE.pack),
}

# The same types in a schema.
TYPES: Final[Mapping[str, Any]] = {
    "long": "long",
    "string": "string",
    "boolean": "boolean",
    "strings": {"type": "array", "items": "string"},
    "long?": ["null", "long"],
    "double?": ["null", "double"],
}

# Defaults by which a reader with this schema reads records that lack the field.
DEFAULTS: Final[Mapping[str, Any]] = {
    "long": 0,
    "string": "",
    "boolean": False,
    "strings": [],
    "long?": None,
    "double?": None,
}
