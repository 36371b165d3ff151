# SPDX-License-Identifier: Apache-2.0
"""Pairs of a key and a value, written as a topic's KeyValue schema says: together, or the key as the message's key.

Where: `value_formats` makes one of the formats of both parts; `key_values` reads what this writes.
Source: Java's `KeyValue.encode`, and `TypedMessageBuilderImpl.value` for keys that are separated.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark import key_values
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from penstock.spark.client.cluster import TopicSchema
    from penstock.spark.value_formats import ValueFormat

KEY: Final = "key"
VALUE: Final = "value"


class PairFormat:
    """Encodes structs of `key` and `value`."""

    def __init__(self, present: TopicSchema, key: ValueFormat, value: ValueFormat) -> None:
        self.schema: Schema | None = Schema(name="", type=present.kind, schema_data=present.definition)  # type: ignore[arg-type]
        for name, text in present.properties.items():
            self.schema.properties.add(key=name, value=text)
        self._is_separated = key_values.is_separated(present)
        self._key, self._value = key, value

    def encoded(self, column: pa.StructArray) -> pa.BinaryArray:
        """Encode the payloads; a null pair stays null, and a null value, if keys are separated."""
        values = self._value.encoded(column.field(VALUE))
        if not self._is_separated:
            values = key_values.joined(self._key.encoded(column.field(KEY)).to_pylist(), values.to_pylist())
        return pc.if_else(column.is_valid(), values, None)

    def keys(self, column: pa.StructArray) -> pa.BinaryArray | None:
        """Return the keys of messages, in Base64, by which Java chooses partitions; None if payloads hold them."""
        if not self._is_separated:
            return None
        keys = self._key.encoded(column.field(KEY)).to_pylist()
        return pa.array([None if key is None else b64encode(key) for key in keys], pa.binary())
