# SPDX-License-Identifier: Apache-2.0
"""A schema, the schema types and the compatibility strategies.

Why one class: the wire numbers the types, REST spells them in capitals, but the definition is the same. `Schema` is
stored and compared; its bytes are returned unchanged.
Where: everything else in this package; the registry stores it; wire and admin API translate it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.core.errors import IncompatibleSchema, InvalidSchema
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

# A hundred times a usual definition; all versions of all topics are kept in memory.
SCHEMA_BYTES_MAX: Final = 1 * MIB


class SchemaType(StrEnum):
    """Types of schemas, as REST spells them. `NUMBERS` has their numbers on the wire."""

    NONE = "NONE"
    STRING = "STRING"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
    AVRO = "AVRO"
    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    KEY_VALUE = "KEY_VALUE"
    INSTANT = "INSTANT"
    LOCAL_DATE = "LOCAL_DATE"
    LOCAL_TIME = "LOCAL_TIME"
    LOCAL_DATE_TIME = "LOCAL_DATE_TIME"
    PROTOBUF_NATIVE = "PROTOBUF_NATIVE"
    AUTO_CONSUME = "AUTO_CONSUME"
    EXTERNAL = "EXTERNAL"


# In the order of the protocol: STRING is 1, EXTERNAL is 22.
NUMBERS: Final[Mapping[SchemaType, int]] = {kind: number for number, kind in enumerate(SchemaType)}
TYPES: Final[Mapping[int, SchemaType]] = {number: kind for kind, number in NUMBERS.items()}

# Definitions of these types are Avro schemas in JSON, whatever the encoding of messages.
AVRO_FORM: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
# These types have no definition.
PRIMITIVE: Final = frozenset(
    {
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)


class Strategy(StrEnum):
    """Compatibility strategies: which schemas may follow the existing ones."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier schemas are checked, not only the latest."""
        return self in _TRANSITIVE

    @property
    def new_reads_old(self) -> bool:
        """Whether consumers with the new schema must be able to read existing data."""
        return self in _NEW_READS_OLD

    @property
    def old_reads_new(self) -> bool:
        """Whether consumers with the old schema must be able to read new data."""
        return self in _OLD_READS_NEW


_TRANSITIVE: Final = frozenset({Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE})
_NEW_READS_OLD: Final = frozenset(
    {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE}
)
_OLD_READS_NEW: Final = frozenset(
    {Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE}
)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema: type, definition as sent by the client, and properties."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The definition as text. Raises InvalidSchema."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise InvalidSchema(f"Invalid schema definition data for {self.type} schema: not UTF-8: {error}") from error


def type_named(name: str) -> SchemaType:
    """The type with this name in REST or in key-value properties. Raises InvalidSchema."""
    if name == "BYTES":  # sent by clients for bytes without a schema
        return SchemaType.NONE
    try:
        return SchemaType(name)
    except ValueError:
        raise InvalidSchema(f"Unknown schema type: {name}") from None


def type_mismatch(existing: SchemaType, new: SchemaType) -> IncompatibleSchema:
    """The error for a change of the schema type, with Pulsar's text."""
    return IncompatibleSchema(f"Incompatible schema: exists schema type {existing}, new schema type {new}")
