# SPDX-License-Identifier: Apache-2.0
"""A schema as clients and administrators send it, and the names of its types and of the compatibility strategies.

Why one class: the wire counts types by number, REST spells them in capitals, and both say the same things about the
same bytes. What is stored and compared is `Schema`; its bytes go back out as they came in.
Where: everything else in this package; the registry stores it; the wire and the admin port translate it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.core.errors import IncompatibleSchema, InvalidSchema
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

# A hundred times what people write; all versions of all topics are held in memory.
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


# In the protocol's order: STRING is 1, EXTERNAL is 22.
NUMBERS: Final[Mapping[SchemaType, int]] = {kind: number for number, kind in enumerate(SchemaType)}
TYPES: Final[Mapping[int, SchemaType]] = {number: kind for kind, number in NUMBERS.items()}

# These are written as an Avro schema in JSON, whatever the messages look like.
AVRO_FORM: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
# These have a type and nothing else to say.
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
    """Which schemas may follow those that a topic has."""

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
        """Whether every earlier schema counts, not only the latest."""
        return self in _TRANSITIVE

    @property
    def new_reads_old(self) -> bool:
        """Whether consumers with the new schema must be able to read what was written before."""
        return self in _NEW_READS_OLD

    @property
    def old_reads_new(self) -> bool:
        """Whether consumers with the old schema must be able to read what is written from now on."""
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
    """A schema: its type, its definition as the client wrote it, and what the client attached."""

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
    """The type of this name, as REST and the properties of key-value schemas spell it. Raises InvalidSchema."""
    if name == "BYTES":  # The same, said by clients: bytes without a schema.
        return SchemaType.NONE
    try:
        return SchemaType(name)
    except ValueError:
        raise InvalidSchema(f"Unknown schema type: {name}") from None


def type_mismatch(existing: SchemaType, new: SchemaType) -> IncompatibleSchema:
    """What is said when a topic's schema has another type, in Pulsar's words."""
    return IncompatibleSchema(f"Incompatible schema: exists schema type {existing}, new schema type {new}")
