# SPDX-License-Identifier: Apache-2.0
"""Values of messages as people read them: decoded by the schema that their producer has named.

Why in the broker: values are masked and searched there, and what is encoded can be neither. Fields of Avro are masked
like those of JSON, because they are JSON when masks are applied.
Why by hand: a value of ten bytes may announce a billion elements, and a schema may be a megabyte of names. Each value
and each page has a budget of characters, which every element spends; a library for Avro has none.
Where: `message_pages`, on a thread.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.schemas.checks.model import SchemaType
from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.schemas.schema_registry import StoredSchema
    from penstock.wire.messages import Message

Json: TypeAlias = "dict[str, Any]"
Read: TypeAlias = "Callable[[_Reader], Any]"

# Characters of one decoded value, and of all that one request decodes.
VALUE_CHARACTERS_MAX: Final = MIB
PAGE_CHARACTERS_MAX: Final = 8 * MIB
# Versions of a schema that one request decodes by.
VERSIONS_MAX: Final = 16
DEPTH_MAX: Final = 64
# Characters that an element takes beside its text: a separator, and a number as text.
_ELEMENT: Final = 4
_NUMBER: Final = 12
_VARINT_BYTES_MAX: Final = 10

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Undecodable(Exception):
    """A value is not what its schema says, or takes too much to show; the message says why."""


class Decoder:
    """Decodes the values of one page of messages.

    Attributes:
        spent: characters so far.
    """

    def __init__(self, schemas: Mapping[bytes, StoredSchema]) -> None:
        """Args: schemas: of the topic, by their versions as messages name them."""
        self.spent = 0
        self._schemas = schemas
        self._avro: dict[bytes, Read] = {}

    def decoded(self, message: Message) -> tuple[Message, Json]:
        """Return the message with its value as text, if that can be done, and what is said of its schema."""
        stored = self._schemas.get(message.schema_version)
        if stored is None or message.value is None or message.is_encrypted or message.is_chunk:
            return message, {}
        about = {"schemaType": stored.schema.type.value, "schemaVersion": stored.version}
        try:
            text = self._text(stored, message.value)
        except Undecodable as error:
            return message, {**about, "undecoded": str(error)}
        return (message if text is None else replace(message, value=text.encode("utf-8", "replace"))), about

    def _text(self, stored: StoredSchema, value: bytes) -> str | None:
        """Return a value as text; None: it is shown as it is. Raises Undecodable."""
        kind = stored.schema.type
        if kind is SchemaType.AVRO:
            return json.dumps(self._avro_value(stored, value), ensure_ascii=False, separators=(",", ":"))
        read = _PRIMITIVES.get(kind)
        if read is None:
            return None
        try:
            return json.dumps(read(value))
        except (struct.error, OverflowError):
            raise Undecodable(f"{len(value)} bytes are no {kind.value}") from None

    def _avro_value(self, stored: StoredSchema, value: bytes) -> Any:  # noqa: ANN401 -- JSON
        version = stored.version_bytes
        try:
            if version not in self._avro:
                self._avro[version] = _Avro().compiled(json.loads(stored.schema.data), "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Undecodable("the schema is none of Avro") from None
        reader = _Reader(value)
        try:
            found = self._avro[version](reader)
        finally:
            self.spent += VALUE_CHARACTERS_MAX - max(0, reader.left)
        if reader.at != len(value):
            raise Undecodable(f"{len(value) - reader.at} bytes are left behind what the schema describes")
        return found


# -- primitive types, as Pulsar's clients encode them ------------------------------------------------------------------


def _whole(form: str) -> Callable[[bytes], Any]:
    return lambda value: struct.unpack(form, value)[0]


def _moment(value: bytes) -> str:
    return (_EPOCH + timedelta(milliseconds=struct.unpack(">q", value)[0])).isoformat()


def _instant(value: bytes) -> str:
    seconds, nanoseconds = struct.unpack(">qi", value)
    return f"{(_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}.{nanoseconds:09d}Z"


def _day(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def _time_of_day(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).time().isoformat()}.{rest:09d}"


def _day_and_time(value: bytes) -> str:
    days, nanoseconds = struct.unpack(">qq", value)
    return f"{_day(days)}T{_time_of_day(nanoseconds)}"


_PRIMITIVES: Final[Mapping[SchemaType, Callable[[bytes], Any]]] = {
    SchemaType.BOOLEAN: _whole(">?"),
    SchemaType.INT8: _whole(">b"),
    SchemaType.INT16: _whole(">h"),
    SchemaType.INT32: _whole(">i"),
    SchemaType.INT64: _whole(">q"),
    SchemaType.FLOAT: _whole(">f"),
    SchemaType.DOUBLE: _whole(">d"),
    SchemaType.DATE: _moment,
    SchemaType.TIME: _moment,
    SchemaType.TIMESTAMP: _moment,
    SchemaType.INSTANT: _instant,
    SchemaType.LOCAL_DATE: lambda value: _day(struct.unpack(">q", value)[0]),
    SchemaType.LOCAL_TIME: lambda value: _time_of_day(struct.unpack(">q", value)[0]),
    SchemaType.LOCAL_DATE_TIME: _day_and_time,
}


# -- Avro --------------------------------------------------------------------------------------------------------------


class _Reader:
    """A value that is read from the front, and what it may still take."""

    __slots__ = ("at", "depth", "left", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.at = self.depth = 0
        self.left = VALUE_CHARACTERS_MAX

    def spend(self, characters: int) -> None:
        """Raises Undecodable."""
        self.left -= characters + _ELEMENT
        if self.left < 0:
            raise Undecodable(f"it takes more than {VALUE_CHARACTERS_MAX} characters")

    def take(self, count: int) -> bytes:
        """Return the next bytes. Raises Undecodable."""
        if not 0 <= count <= len(self.value) - self.at:
            raise Undecodable("it ends before what the schema describes")
        self.spend(count)
        start, self.at = self.at, self.at + count
        return self.value[start : self.at]

    def long(self) -> int:
        """Return a number. Raises Undecodable."""
        found = 0
        for index, byte in enumerate(self.value[self.at : self.at + _VARINT_BYTES_MAX]):
            found |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self.at += index + 1
                return (found >> 1) ^ -(found & 1)
        raise Undecodable("it ends before what the schema describes")

    def deeper(self) -> None:
        """Raises Undecodable."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Undecodable(f"it is nested more than {DEPTH_MAX} deep")


def _null(reader: _Reader) -> None:
    reader.spend(0)


def _boolean(reader: _Reader) -> bool:
    return reader.take(1) != b"\0"


def _number(reader: _Reader) -> int:
    reader.spend(_NUMBER)
    return reader.long()


def _float(reader: _Reader) -> float:
    number: float = struct.unpack("<f", reader.take(4))[0]
    return number


def _double(reader: _Reader) -> float:
    number: float = struct.unpack("<d", reader.take(8))[0]
    return number


def _bytes(reader: _Reader) -> str:
    """Bytes as JSON of Avro has them: a character for each."""
    return reader.take(reader.long()).decode("latin-1")


def _string(reader: _Reader) -> str:
    return reader.take(reader.long()).decode("utf-8", "replace")


_SIMPLE: Final[Mapping[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _number,
    "long": _number,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


class _Avro:
    """Functions that read what a schema describes. All raise Undecodable; a bad schema raises what it happens to."""

    def __init__(self) -> None:
        self._named: dict[str, Read] = {}

    def compiled(self, schema: Any, namespace: str) -> Read:  # noqa: ANN401 -- JSON
        if isinstance(schema, list):
            return _union([self.compiled(one, namespace) for one in schema])
        if isinstance(schema, str):
            return _SIMPLE.get(schema) or self._reference(schema, namespace)
        kind = schema["type"]
        if kind in {"record", "error"}:
            return self._record(schema, namespace)
        if kind == "enum":
            return self._define(schema, namespace, _enum([str(one) for one in schema["symbols"]]))
        if kind == "fixed":
            size = int(schema["size"])
            return self._define(schema, namespace, lambda reader: reader.take(size).decode("latin-1"))
        if kind == "array":
            read = self.compiled(schema["items"], namespace)
            return lambda reader: list(_blocks(reader, read))
        if kind == "map":
            of = self.compiled(schema["values"], namespace)
            return lambda reader: dict(_blocks(reader, lambda inner: (_string(inner), of(inner))))
        return self.compiled(kind, namespace)

    def _reference(self, name: str, namespace: str) -> Read:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named and name not in self._named:
            raise KeyError(name)
        found = full if full in self._named else name

        def read(reader: _Reader) -> Any:  # noqa: ANN401 -- JSON
            return self._named[found](reader)  # A record is complete by now.

        return read

    def _define(self, schema: Json, namespace: str, read: Read) -> Read:
        self._named[_full_name(schema, namespace)] = read
        return read

    def _record(self, schema: Json, namespace: str) -> Read:
        full = _full_name(schema, namespace)
        fields: list[tuple[str, Read]] = []

        def read(reader: _Reader) -> Json:
            reader.deeper()
            found = {}
            for name, of in fields:
                reader.spend(len(name))
                found[name] = of(reader)
            reader.depth -= 1
            return found

        self._named[full] = read  # A field may refer to it.
        inner = full.rpartition(".")[0]
        fields.extend((str(one["name"]), self.compiled(one["type"], inner)) for one in schema["fields"])
        return read


def _full_name(schema: Json, namespace: str) -> str:
    name, own = str(schema["name"]), str(schema.get("namespace") or namespace)
    return name if "." in name or not own else f"{own}.{name}"


def _union(branches: list[Read]) -> Read:
    def read(reader: _Reader) -> Any:  # noqa: ANN401 -- JSON
        index = reader.long()
        if not 0 <= index < len(branches):
            raise Undecodable(f"it names branch {index} of a union of {len(branches)}")
        return branches[index](reader)

    return read


def _enum(symbols: list[str]) -> Read:
    def read(reader: _Reader) -> str:
        index = reader.long()
        if not 0 <= index < len(symbols):
            raise Undecodable(f"it names symbol {index} of an enum of {len(symbols)}")
        reader.spend(len(symbols[index]))
        return symbols[index]

    return read


def _blocks(reader: _Reader, read: Callable[[_Reader], Any]) -> Any:  # noqa: ANN401 -- an iterator of what is read
    """Yield the elements of an array or a map."""
    reader.deeper()
    while count := reader.long():
        if count < 0:
            count = -count
            reader.long()  # The size of the block, for those who skip it.
        for _ in range(count):
            reader.spend(0)
            yield read(reader)
    reader.depth -= 1
