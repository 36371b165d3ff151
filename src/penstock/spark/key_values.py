# SPDX-License-Identifier: Apache-2.0
"""Schemas of the kind KeyValue: two schemas in one, for a key and a value that are written together or apart.

    the definition, and a value that is INLINE      size, 4 bytes | of the key | size, 4 bytes | of the value
    a message that is SEPARATED                     the key is the message's key, the value its payload

Why joined: a message that is separated is put together first, so that there is one way to decode both.
Where: `values` takes the two schemas apart; `rows` joins what is separated.
Source: Pulsar's `KeyValueSchemaInfo` and `KeyValue`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.spark.client.cluster import TopicSchema
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZE: Final = struct.Struct(">i")
_NONE: Final = _SIZE.pack(-1)
_ENCODING: Final = "kv.encoding.type"
_SEPARATED: Final = "SEPARATED"
# Names of kinds as properties have them, without underscores.
_KINDS: Final = {name.upper(): number for name, number in Schema.Type.items()} | {"BOOLEAN": Schema.Bool, "BYTES": 0}


def schemas_of(schema: TopicSchema) -> tuple[TopicSchema, TopicSchema]:
    """Return the schemas of keys and of values. Raises ValueError if the definition is not of two."""
    definitions = split(schema.definition)
    key, value = (
        TopicSchema(_kind(schema.properties.get(f"{part}.schema.type", "")), definition or b"", b"", {})
        for part, definition in zip(("key", "value"), definitions, strict=True)
    )
    return key, value


def is_separated(schema: TopicSchema) -> bool:
    """Return whether keys are keys of messages."""
    return schema.properties.get(_ENCODING, "").upper() == _SEPARATED


def split(joined: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value. Raises ValueError if these are no two parts."""
    parts: list[bytes | None] = []
    at = 0
    for _ in range(2):
        if len(joined) < at + _SIZE.size:
            raise ValueError("it ends where the size of a key or a value should be")
        (size,) = _SIZE.unpack_from(joined, at)
        at += _SIZE.size
        if at + max(0, size) > len(joined):
            raise ValueError(f"a key or a value of {size} bytes does not fit")
        parts.append(None if size < 0 else joined[at : at + size])
        at += max(0, size)
    return parts[0], parts[1]


def joined(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return separate keys and values as if they were written together."""
    return pa.array([_part(key) + _part(value) for key, value in zip(keys, values, strict=True)], pa.binary())


def _part(said: bytes | None) -> bytes:
    return _NONE if said is None else _SIZE.pack(len(said)) + said


def _kind(name: str) -> int:
    return _KINDS.get(name.upper().replace("_", ""), 0)
