# SPDX-License-Identifier: Apache-2.0
"""Limits of the fields of a command, checked on its bytes before it is decoded.

Why: decoded commands take many times their bytes, and some of their content is kept while the client is connected, or
forever. A command that no ordinary client would send is refused for the price of a walk over its tags, with an error
that names the field, its size and its limit.

Where: `FrameReader` calls `Bounds.check` before protobuf decodes a command. ACK, FLOW and SEND in their usual form
(`acks`, `runs`) hold only numbers and are not checked here.

Theory of operation
-------------------

Every field of every message has a row in `tables/fields.tsv`, which names a class; a class is a row of `CLASSES`. A
walk adds up the number of each field and its bytes. Protobuf merges a message that is sent in several pieces, so pieces
are added up, too. A message that is too short to exceed any limit is not walked: most commands cost one comparison. A
walk ends after `FIELDS_MAX` fields, so its time is limited as well. Lists that may be long (message ids, hash ranges)
are skipped in a loop of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from penstock.core.errors import WireCode
from penstock.core.units import KIB, MIB
from penstock.wire import codec
from penstock.wire.bounds_table import CLASS_OF
from penstock.wire.errors import ProtocolError
from penstock.wire.pulsar_pb2 import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from penstock.wire.events import RefusedCommand


# ---------------------------------------------------------------------------------------------------------------------
# Answers to commands that exceed a bound of `wire.bounds` and were not decoded.
#
# Why in one place: for every command, the client gets an error that names field, size and bound, as an answer to its
# request. A command without request id has no answer: its connection is closed, and the error is logged. Where: the
# session asks for the answer to each `RefusedCommand`.

Type = codec.BaseCommand.Type
# Clients do not retry after this code.
CODE: Final = WireCode.NOT_ALLOWED_ERROR
# The request id of an error answer to CONNECT, which has no id.
_NO_REQUEST: Final = 2**64 - 1

# Commands with an error frame of their own; all others with a request id are answered with ERROR.
_FAILED: Final[dict[int, Callable[[int, int, str], bytes]]] = {
    Type.LOOKUP: codec.lookup_failed,
    Type.PARTITIONED_METADATA: codec.partitioned_metadata_failed,
    Type.CONSUMER_STATS: codec.consumer_stats_failed,
    Type.GET_SCHEMA: codec.get_schema_failed,
    Type.GET_OR_CREATE_SCHEMA: codec.get_or_create_schema_failed,
}


def answer(refused: RefusedCommand) -> bytes | None:
    """The error frame that the client expects; None if the command has no answer."""
    kind, body, text = refused.type, refused.body, refused.text
    if kind == Type.CONNECT:
        return codec.error(_NO_REQUEST, CODE, text)
    if "request_id" not in body.DESCRIPTOR.fields_by_name or not body.HasField("request_id"):
        return None
    return _answer(kind, body, text)


def _answer(kind: int, body: Message, text: str) -> bytes:
    request_id: int = body.request_id  # type: ignore[attr-defined]  # of whichever command it is
    if kind == Type.ACK:
        return codec.ack_response(body.consumer_id, request_id, error=CODE, message=text)  # type: ignore[attr-defined]
    return _FAILED.get(kind, codec.error)(request_id, CODE, text)


__all__ = [
    "BOUNDS",
    "CLASSES",
    "FIELDS_MAX",
    "IDS_MAX",
    "SCHEMA_BYTES_MAX",
    "BoundClass",
    "Bounds",
    "OutOfBounds",
    "count_fields",
]

SCHEMA_BYTES_MAX: Final = MIB
# More than the default of maxUnackedMessagesPerConsumer: one command may request the redelivery of all of them.
IDS_MAX: Final = 65_536
# The most fields of one command that are walked, 0.3 µs each. Three lists of 1,000 pairs are 3,000.
FIELDS_MAX: Final = 10_000
# The most numbers of one list that are counted at once; more than any limit allows.
_NUMBERS_MAX: Final = 1 << 20
# Messages of the protocol are nested at most three levels deep.
_DEPTH_MAX: Final = 8
_UNBOUNDED: Final = 1 << 62
# A field whose size takes one byte is too short to exceed a limit inside: the smallest limit is that of a hash.
SHORT_BYTES: Final = 127

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
# The bytes that do not end a varint; without them, the length of a packed list is its number of elements.
_CONTINUED: Final = bytes(range(128, 256))


class BoundClass(NamedTuple):
    """The limits of one kind of field, for all its occurrences in one message together."""

    bytes_max: int | None  # None: limited by the frame or by its own fields
    count_max: int | None  # None: limited by the frame
    what: str
    setting: str = ""  # the setting that changes the limit


# The most occurrences of a non-repeated field: protobuf uses the last, and no known client sends two.
_ONCE: Final = 1_000

CLASSES: Final = {
    "number": BoundClass(None, _ONCE, "numbers and flags; their values are checked where they are used"),
    "word": BoundClass(KIB, _ONCE, "versions, methods, principals, addresses"),
    "name": BoundClass(4 * KIB, _ONCE, "names of topics, namespaces, subscriptions, producers, consumers, listeners"),
    "names": BoundClass(64 * KIB, 1_000, "lists of names"),
    "pattern": BoundClass(4 * KIB, _ONCE, "patterns of topic names; see also subscriptionPatternMaxLength"),
    "hash": BoundClass(256, _ONCE, "hashes of topic lists"),
    "credentials": BoundClass(64 * KIB, _ONCE, "tokens, tickets, certificates"),
    "pairs": BoundClass(64 * KIB, 1_000, "metadata and properties"),
    "schema": BoundClass(SCHEMA_BYTES_MAX, _ONCE, "the definition of a schema", "maxSchemaSize"),
    "ranges": BoundClass(None, 16_384, "hash ranges of a Key_Shared consumer"),
    "ids": BoundClass(
        None, IDS_MAX, "message ids; clients send a thousand at a time, or all unacknowledged messages of a consumer"
    ),
    "ack-set": BoundClass(None, 16_384, "64-bit words of the ack set of a batch"),
    "parts": BoundClass(None, _ONCE, "messages, limited by their own fields"),
    "held": BoundClass(None, None, "parts of an element of a list, limited by that list"),
    "answer": BoundClass(KIB, _ONCE, "responses, which only brokers send"),
    "entry": BoundClass(None, None, "metadata of entries: not part of a command, limited by maxMessageSize"),
    "unknown": BoundClass(4 * KIB, _ONCE, "unknown fields of newer clients, all of a message together"),
}


# Classes of messages whose fields are walked; not responses, nor elements that are limited by their list.
_LOOKED_INTO: Final = frozenset({"parts", "ids", "names"})
_TYPE_NAMES: Final = {value.number: value.name for value in BaseCommand.Type.DESCRIPTOR.values}
# The ids of a refused command are searched in this many of its fields. All clients write them among the first.
_IDS_SOUGHT_MAX: Final = 2_000
_WORD_MASK: Final = (1 << 64) - 1


class OutOfBounds(Exception):
    """A field of a command exceeds its limit.

    Attributes:
        kind: the command's type.
        text: the message for the client and the log: command, field, size, limit, setting.
        body: a body of the command with only its ids.
    """

    def __init__(self, kind: int, text: str, body: Message) -> None:
        self.kind = kind
        self.text = text
        self.body = body
        super().__init__(text)


class _Field:
    """One field of one message. Occurrences count together even if they are encoded differently."""

    __slots__ = ("bytes_max", "count_max", "inner", "name", "number", "packable", "repeated", "setting")

    def __init__(self, number: int, name: str, bound: BoundClass) -> None:
        self.number = number
        self.name = name
        self.bytes_max = _UNBOUNDED if bound.bytes_max is None else bound.bytes_max
        self.count_max = _UNBOUNDED if bound.count_max is None else bound.count_max
        self.setting = bound.setting
        self.repeated = False
        self.packable = False  # a list of numbers, which may be packed
        self.inner: _Message | None = None  # walked if it is long

    def safe_bytes(self) -> int:
        """Return how long a message may be before this field can exceed a limit."""
        smallest = self.bytes_max
        if self.count_max < _UNBOUNDED:
            smallest = min(smallest, self.count_max * (1 if self.packable else 2))
        return smallest if self.inner is None else min(smallest, self.inner.safe_bytes)


class _Message:
    """One message of the protocol: its fields by tag, and how long it may be without a walk."""

    __slots__ = ("fields", "safe_bytes", "unknown")

    def __init__(self) -> None:
        self.fields: dict[int, _Field] = {}
        self.unknown = _Field(0, "(unknown fields)", CLASSES["unknown"])
        self.safe_bytes = _UNBOUNDED


class _Seen:
    """The counts and bytes of a message's fields so far, in all its pieces."""

    __slots__ = ("counts", "inner", "sizes")

    def __init__(self) -> None:
        self.counts: defaultdict[_Field, int] = defaultdict(int)
        self.sizes: defaultdict[_Field, int] = defaultdict(int)
        self.inner: defaultdict[_Field, _Seen] = defaultdict(_Seen)

    def add(self, field: _Field, count: int, size: int) -> None:
        """Add occurrences of a field. Raises _Excess."""
        count = self.counts[field] = self.counts[field] + count
        size = self.sizes[field] = self.sizes[field] + size
        if size > field.bytes_max:
            hint = f" ({field.setting})" if field.setting else ""
            raise _Excess(field, f"has {size:,} bytes, and {field.bytes_max:,} are allowed{hint}")
        if count > field.count_max:
            raise _Excess(field, f"has {count:,} elements or more, and {field.count_max:,} are allowed")


def _is_repeated(field: FieldDescriptor) -> bool:
    # `is_repeated` came in protobuf 6, and `label` went in 7. In all of them a repeated field's default is a list.
    return isinstance(field.default_value, list)


class Bounds:
    """The limits of all commands, ready to be checked."""

    def __init__(self, *, schema_bytes_max: int = SCHEMA_BYTES_MAX) -> None:
        self._classes = {**CLASSES, "schema": CLASSES["schema"]._replace(bytes_max=schema_bytes_max)}
        self._messages: dict[str, _Message] = {}
        self._command = self._compile(BaseCommand.DESCRIPTOR)  # type: ignore[arg-type]  # one of two, says the stub
        self._find_safe_bytes()
        self._bodies = {field.number: field.inner for field in self._command.fields.values() if field.inner is not None}

    def check(self, command: bytes) -> None:
        """Check that no field of an encoded BaseCommand exceeds its limit.

        Raises:
            OutOfBounds: a field does.
            ProtocolError: it is not readable. A command that is too short to be walked may be unreadable as well.
        """
        if len(command) > self._command.safe_bytes and not self._is_safe(command):
            try:
                _Walk().through(command, 0, len(command), self._command, _Seen())
            except _Excess as excess:
                raise _refusal(command, excess) from None
            except IndexError:
                raise ProtocolError(f"unreadable command of {len(command)} bytes: it ends too early") from None

    def _is_safe(self, command: bytes) -> bool:
        """Return whether this is a type and one body, as usual, and the body is too short to exceed a limit."""
        try:
            kind = command[1]
            tag, at = _varint(command, 2)
            body_bytes, at = _varint(command, at)
        except (IndexError, ProtocolError):
            return False
        body = self._bodies.get(kind)
        return (
            body is not None
            and command[0] == 0x08
            and tag == kind << 3 | _BYTES
            and at + body_bytes == len(command)
            and body_bytes <= body.safe_bytes
        )

    def _compile(self, descriptor: Descriptor) -> _Message:
        message = self._messages.get(descriptor.name)
        if message is not None:
            return message
        message = self._messages[descriptor.name] = _Message()
        for described in descriptor.fields:
            name = CLASS_OF[descriptor.name][described.name]
            field = _Field(described.number, described.name, self._classes[name])
            field.repeated = _is_repeated(described)
            wire_type = _BYTES
            if described.type == FieldDescriptor.TYPE_MESSAGE:
                if name in _LOOKED_INTO:
                    assert described.message_type is not None
                    field.inner = self._compile(described.message_type)
            elif described.type not in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
                wire_type = _FIXED64 if described.type == FieldDescriptor.TYPE_DOUBLE else _VARINT
                if _is_repeated(described):
                    field.packable = True
                    message.fields[described.number << 3 | _BYTES] = field
            message.fields[described.number << 3 | wire_type] = field
        return message

    def _find_safe_bytes(self) -> None:
        """Compute safe lengths until they do not change any more, because messages are nested."""
        changed = True
        while changed:
            changed = False
            for message in self._messages.values():
                safe_bytes = min(field.safe_bytes() for field in (*message.fields.values(), message.unknown))
                changed |= safe_bytes != message.safe_bytes
                message.safe_bytes = safe_bytes


BOUNDS: Final = Bounds()


class _Excess(Exception):
    def __init__(self, field: _Field, text: str) -> None:
        self.text = text
        self.path = [field]
        super().__init__(text)


class _Walk:
    """One walk over the tags of a command."""

    __slots__ = ("_fields_left",)

    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def through(self, data: bytes, at: int, end: int, message: _Message, seen: _Seen, depth: int = 0) -> None:
        """Check the fields in `data[at:end]`, a message or a piece of one.

        Raises:
            _Excess: a field exceeds its limit.
            ProtocolError, IndexError: it is not readable.
        """
        if depth > _DEPTH_MAX:
            raise ProtocolError(f"messages in a command are nested deeper than {_DEPTH_MAX} levels")
        while at < end:
            tag_at = at
            tag, at = _varint(data, at)
            field = message.fields.get(tag, message.unknown)
            content, stop = _extent(data, at, tag & 7)
            if stop > end:
                raise IndexError
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _Excess(field, f"comes behind {FIELDS_MAX:,} other fields, and a command may hold so many")
            count = _numbers_in(data[content:stop]) if field.packable and tag & 7 == _BYTES else 1
            if field.inner is not None and not field.repeated:
                self._into(data, content, stop, field, seen.inner[field], depth)  # Its pieces add up.
            elif field.inner is not None and stop - content > field.inner.safe_bytes:
                self._into(data, content, stop, field, _Seen(), depth)
            elif field.repeated and at == tag_at + 1:
                follow = _numbers_like if field.packable else _short_like
                more, stop = follow(data, tag_at, stop, end, field.count_max - seen.counts[field])
                count += more
            seen.add(field, count, stop - content)
            at = stop

    def _into(self, data: bytes, at: int, end: int, field: _Field, seen: _Seen, depth: int) -> None:
        assert field.inner is not None
        try:
            self.through(data, at, end, field.inner, seen, depth + 1)
        except _Excess as excess:
            excess.path.append(field)
            raise


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and where it ends.

    Raises IndexError, or ProtocolError if it has more than ten bytes.
    """
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = shift = 0
    while byte > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise ProtocolError("a number in a command has more than ten bytes")
        at += 1
        byte = data[at]
    return value | byte << shift, at + 1


def _extent(data: bytes, at: int, wire_type: int) -> tuple[int, int]:
    """Return where the value of a field begins and ends. Raises as `_varint`, and ProtocolError for a group."""
    if wire_type == _BYTES:
        size, at = _varint(data, at)
        return at, at + size
    if wire_type == _VARINT:
        return at, _varint(data, at)[1]
    if wire_type in _FIXED_BYTES:
        return at, at + _FIXED_BYTES[wire_type]
    raise ProtocolError(f"a field of wire type {wire_type} in a command: the protocol has no such fields")


def _short_like(data: bytes, tag_at: int, stop: int, end: int, count_max: int) -> tuple[int, int]:
    """Return how many short elements of the same list follow from `stop` on, and where they end.

    At most `count_max` are counted. Lists of message ids and of ranges are long, and such short elements exceed no
    limit. Budget: 0.15 µs for each.
    """
    tag, last = data[tag_at], end - 2
    count = 0
    while stop <= last and data[stop] == tag and (size := data[stop + 1]) <= SHORT_BYTES and count < count_max:
        stop += 2 + size
        count += 1
    if stop > end:
        raise IndexError
    return count, stop


def _numbers_like(data: bytes, tag_at: int, stop: int, end: int, count_max: int) -> tuple[int, int]:
    """Return the same for a list of numbers with a tag before each, as Java writes ack sets.

    The possessive `+` keeps the search from storing each number, at 130 bytes a number, for backtracking.
    """
    if data[tag_at] & 7 != _VARINT or count_max < 1:
        return 0, stop
    number = rb"%s[\x80-\xff]{0,9}[\x00-\x7f]" % re.escape(data[tag_at : tag_at + 1])
    pattern = rb"(?:%s){1,%d}+" % (number, min(count_max, _NUMBERS_MAX))
    found = re.compile(pattern, re.DOTALL).match(data, stop, end)
    return (0, stop) if found is None else (_numbers_in(found[0]) // 2, found.end())  # A tag is a number, too.


def _numbers_in(packed: bytes) -> int:
    """Return the number of varints."""
    return len(packed.translate(None, _CONTINUED))


# -- words -----------------------------------------------------------------------------------------------------------


def _refusal(command: bytes, excess: _Excess) -> OutOfBounds:
    """Return the error for a field that exceeds its limit, with the ids of its command."""
    *inner, body_field = excess.path
    if body_field.number not in _TYPE_NAMES:  # Between the bodies.
        raise ProtocolError(f"field {body_field.name} of a command {excess.text}")
    name = ".".join(field.name for field in reversed(inner)) or "its body"
    text = f"{_TYPE_NAMES[body_field.number]} is refused: {name} {excess.text}"
    return OutOfBounds(body_field.number, text, _ids_of(command, body_field))


def _ids_of(command: bytes, body_field: _Field) -> Message:
    """Return a body with only its ids (`request_id`, `consumer_id` and so on), wherever they are."""
    body: Message = getattr(BaseCommand(), body_field.name)
    ids = {field.number << 3: field.name for field in body.DESCRIPTOR.fields if field.name.endswith("_id")}
    for tag, content, stop in _fields(command, 0, len(command), _IDS_SOUGHT_MAX):
        if tag == body_field.number << 3 | _BYTES:
            for inner_tag, at, _ in _fields(command, content, stop, _IDS_SOUGHT_MAX):
                if inner_tag in ids:
                    setattr(body, ids[inner_tag], _varint(command, at)[0] & _WORD_MASK)
    return body


def count_fields(data: bytes, count_max: int) -> int:
    """Return how many top-level fields an encoded message has, up to `count_max` + 1 or to an unreadable one."""
    return sum(1 for _ in _fields(data, 0, len(data), count_max + 1))


def _fields(data: bytes, at: int, end: int, count_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield tag, begin and end of the first fields, up to an unreadable one."""
    for _ in range(count_max):
        if at >= end:
            return
        try:
            tag, at = _varint(data, at)
            content, at = _extent(data, at, tag & 7)
        except (IndexError, ProtocolError):
            return
        if at > end:
            return
        yield tag, content, at
