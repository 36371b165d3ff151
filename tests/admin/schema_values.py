# SPDX-License-Identifier: Apache-2.0
"""Values with their schemas, for the tests of decoding: usual ones, and those that few bytes announce."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
from hypothesis import strategies as st

from penstock.admin.decoding import Decoder
from penstock.broker.schemas.checks.model import Schema, SchemaType
from penstock.broker.schemas.schema_registry import StoredSchema
from penstock.wire.messages import Message

VERSION = (3).to_bytes(8, "big")
ORDER: Any = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": ["null", "boolean"]},
        {"name": "price", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["GIFT", "SALE"]}},
        {"name": "token", "type": {"type": "fixed", "name": "Token", "size": 3}},
        {"name": "raw", "type": "bytes"},
        {"name": "labels", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "item", "type": "string"}]},
            },
        },
        {"name": "next", "type": ["null", "Order"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def decoder(kind: SchemaType, definition: object = None) -> Decoder:
    data = json.dumps(definition).encode() if definition is not None else b""
    return Decoder({VERSION: StoredSchema(3, Schema(kind, data), 0)})


def decoded(by: Decoder, value: bytes) -> tuple[str | None, str | None]:
    """The value as JSON, or why there is none."""
    message, about = by.decoded(Message(value=value, schema_version=VERSION))
    assert message.value is not None
    assert about["schemaVersion"] == 3
    return (None, about["undecoded"]) if "undecoded" in about else (message.value.decode(), None)


def avro(definition: Any, value: object) -> bytes:  # noqa: ANN401 -- JSON
    out = io.BytesIO()
    # Timestamps stay numbers.
    fastavro.schemaless_writer(out, fastavro.parse_schema(_plain(definition)), value)
    return out.getvalue()


def _plain(definition: Any) -> Any:  # noqa: ANN401 -- JSON
    if isinstance(definition, dict):
        return {name: _plain(one) for name, one in definition.items() if name != "logicalType"}
    return [_plain(one) for one in definition] if isinstance(definition, list) else definition


def many(count: int) -> bytes:
    """The head of a block with so many elements, in Avro."""
    number, out = count << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "paid": st.none() | st.booleans(),
        "price": st.floats(allow_nan=False),
        "weight": st.floats(width=32, allow_nan=False),
        "kind": st.sampled_from(["GIFT", "SALE"]),
        "token": st.binary(min_size=3, max_size=3),
        "raw": st.binary(max_size=20),
        "labels": st.dictionaries(st.text(max_size=5), st.integers(-(2**31), 2**31 - 1), max_size=3),
        "lines": st.lists(st.fixed_dictionaries({"item": st.text(max_size=5)}), max_size=3),
        "next": st.none(),
        "at": st.integers(0, 2**40),
    }
)
# Values of primitive types, and as people read them.
PRIMITIVE: list[tuple[SchemaType, bytes, str]] = [
    (SchemaType.BOOLEAN, b"\x01", "true"),
    (SchemaType.INT8, b"\xff", "-1"),
    (SchemaType.INT16, struct.pack(">h", -2), "-2"),
    (SchemaType.INT32, struct.pack(">i", 70_000), "70000"),
    (SchemaType.INT64, struct.pack(">q", 2**60), str(2**60)),
    (SchemaType.FLOAT, struct.pack(">f", 0.5), "0.5"),
    (SchemaType.DOUBLE, struct.pack(">d", -1.25), "-1.25"),
    (SchemaType.TIMESTAMP, struct.pack(">q", 1_500), '"1970-01-01T00:00:01.500000+00:00"'),
    (SchemaType.INSTANT, struct.pack(">qi", 1, 5), '"1970-01-01T00:00:01.000000005Z"'),
    (SchemaType.LOCAL_DATE, struct.pack(">q", -1), '"1969-12-31"'),
    (SchemaType.LOCAL_TIME, struct.pack(">q", 3_600_000_000_001), '"01:00:00.000000001"'),
    (SchemaType.LOCAL_DATE_TIME, struct.pack(">qq", 1, 7), '"1970-01-02T00:00:00.000000007"'),
    (SchemaType.STRING, "ä".encode(), "ä"),
    (SchemaType.JSON, b'{"a": 1}', '{"a": 1}'),
]
# Schemas of Avro, and values of few bytes that announce much more.
ANNOUNCED: list[tuple[Any, bytes]] = [
    ({"type": "array", "items": "null"}, many(2**40)),
    ({"type": "array", "items": {"type": "record", "name": "R", "fields": []}}, many(2**40)),
    (
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x" * 100_000]}},
        many(2**20) + bytes(2**20),
    ),
    (
        {
            "type": "array",
            "items": {"type": "record", "name": "R", "fields": [{"name": "n" * 100_000, "type": "null"}]},
        },
        many(2**20),
    ),
]
