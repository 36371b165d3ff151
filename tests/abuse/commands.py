# SPDX-License-Identifier: Apache-2.0
"""Every command of the protocol, made from its tables: valid ones, and ones with a field that is too much.

Why generated: a list written by hand has the commands that its author thought of. Here a command or a field that joins
the tables is tried from that day on, by itself.
Where: `cases` makes attacks of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.testing.client import entry
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.pulsar_pb2 import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

TOPIC: Final = "persistent://public/default/abused"
SUBSCRIPTION: Final = "abused"
NAMESPACE_OF_MANY: Final = "public/many"  # holds so many topics that a listing of it is work
FIELDS: Final = BaseCommand.DESCRIPTOR.fields_by_name
TYPES: Final = tuple(value.name for value in BaseCommand.Type.DESCRIPTOR.values)

# How far into a command's messages we look for fields: KeySharedMeta.hashRanges.start is the third.
DEPTH_MAX: Final = 3
# Elements of a repeated message that differ.
ELEMENTS: Final = 1_000

# What fields of these names hold in a command that means something. `{n}` is the number of the command: what one asks
# twice is often answered once.
_NAMED: Final = {
    "topic": TOPIC,
    "namespace": NAMESPACE_OF_MANY,
    "subscription": SUBSCRIPTION,
    "consumer_name": "consumer-{n}",
    "topics_pattern": "persistent://public/many/topic-{n}.*",
    "topic_pattern": "persistent://public/many/topic-{n}.*",
    "client_version": "abuse",
    "server_version": "abuse",
    "name": "abuse",
}

# Optional fields that a client sets, because more happens with them than without.
_SET: Final = {
    "CommandAck": ("request_id", "message_id"),
    "CommandNewTxn": ("txn_ttl_seconds",),
    "CommandSeek": ("message_id",),
    "CommandRedeliverUnacknowledgedMessages": ("message_ids",),
    "CommandGetTopicsOfNamespace": ("topics_pattern",),
}

# Numbers that mean something. Transactions are open for so many ms: then what they hold must be given back.
_NUMBERS: Final = {"txn_ttl_seconds": 1_000}

# Fields that differ from command to command of one pipeline.
_COUNTED: Final = frozenset({"request_id", "watcher_id", "session_id", "watch_id", "sequence_id", "entryId"})
_COUNTED_IN: Final = {
    "CommandProducer": frozenset({"producer_id"}),
    "CommandSubscribe": frozenset({"consumer_id"}),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a command, by its path from the command's body, and whether it may be repeated."""

    command: str
    path: tuple[str, ...]
    kind: str  # "text", "bytes", "number"
    repeated: bool  # itself, or a message on the way

    def __str__(self) -> str:
        return f"{self.command}.{'.'.join(self.path)}"


def body_of(command: str) -> FieldDescriptor | Any:  # noqa: ANN401 - of either implementation
    """The field of BaseCommand that holds this command's body."""
    return BaseCommand.DESCRIPTOR.fields_by_number[BaseCommand.Type.Value(command)]


def names_of(command: str) -> set[str]:
    """The names of the fields of a command's body."""
    message = body_of(command).message_type
    assert message is not None
    return {field.name for field in message.fields}


def fields_of(command: str) -> Iterator[Field]:
    """All fields of a command that a client could make long, many or large."""
    yield from _fields(command, body_of(command).message_type, (), repeated=False)


def _fields(command: str, message: Descriptor | None, path: tuple[str, ...], *, repeated: bool) -> Iterator[Field]:
    assert message is not None
    for field in message.fields:
        here, many = (*path, field.name), repeated or field.is_repeated
        if field.type == field.TYPE_MESSAGE:
            if len(here) < DEPTH_MAX:
                yield from _fields(command, field.message_type, here, repeated=many)
        elif field.type == field.TYPE_STRING:
            yield Field(command, here, "text", many)
        elif field.type == field.TYPE_BYTES:
            yield Field(command, here, "bytes", many)
        elif field.type not in {field.TYPE_BOOL, field.TYPE_ENUM}:
            yield Field(command, here, "number", many)


def valid(command: str, number: int) -> BaseCommand:
    """A command that a well-behaved client could have sent as its `number`-th."""
    made = BaseCommand(type=command)
    body = getattr(made, body_of(command).name)
    body.SetInParent()
    _fill(body, number)
    return made


def _fill(message: Message, number: int) -> None:
    descriptor = message.DESCRIPTOR
    wanted = _SET.get(descriptor.name, ())
    counted = _COUNTED | _COUNTED_IN.get(descriptor.name, frozenset())
    for field in descriptor.fields:
        if not (field.is_required or field.name in wanted):
            continue
        if field.type == field.TYPE_MESSAGE:
            inner = getattr(message, field.name)
            inner = inner.add() if field.is_repeated else inner
            inner.SetInParent()
            _fill(inner, number)
        elif not field.is_repeated:
            setattr(message, field.name, _plain(field, number, counted=field.name in counted))


def _plain(field: Any, number: int, *, counted: bool) -> Any:  # noqa: ANN401 - a descriptor, what its field holds
    if field.type == field.TYPE_STRING:
        return _NAMED.get(field.name, "x").replace("{n}", str(number))
    if field.type == field.TYPE_BYTES:
        return b"x"
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values[0].number
    if field.type == field.TYPE_BOOL:
        return False
    return number if counted else _NUMBERS.get(field.name, 0)


def oversized(field: Field, nbytes: int, number: int) -> BaseCommand:
    """A command of about `nbytes`, nearly all of them in this one field; a number is as large as numbers get."""
    made = valid(field.command, number)
    message = getattr(made, body_of(field.command).name)
    for position, name in enumerate(field.path):
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        last = position == len(field.path) - 1
        if descriptor.is_repeated and (last or field.kind == "number"):
            _repeat(message, descriptor, field.path[position:], nbytes)
            return made
        if last:
            setattr(message, name, _much(field.kind, descriptor, nbytes))
            return made
        message = getattr(message, name)
        if descriptor.is_repeated:
            message = message.add()
        message.SetInParent()
        _fill(message, number)
    raise AssertionError(f"{field} has no fields")


def _repeat(message: Message, descriptor: FieldDescriptor, path: tuple[str, ...], nbytes: int) -> None:
    """Elements that differ, as many as make up `nbytes`."""
    repeated = getattr(message, descriptor.name)
    if descriptor.type != descriptor.TYPE_MESSAGE:
        if descriptor.type in {descriptor.TYPE_STRING, descriptor.TYPE_BYTES}:
            values = [f"{n:07}" for n in range(nbytes // 9)]
            repeated.extend(values if descriptor.type == descriptor.TYPE_STRING else [v.encode() for v in values])
        else:
            repeated.extend(range(nbytes // 4))
        return
    piece = type(message)()
    for number in range(ELEMENTS):
        element = getattr(piece, descriptor.name).add()
        _fill(element, number)
        inner = element.DESCRIPTOR.fields_by_name[path[1]]
        if inner.is_repeated:
            _repeat(element, inner, path[1:], nbytes)
            break
        if inner.type not in {inner.TYPE_MESSAGE, inner.TYPE_STRING, inner.TYPE_BYTES}:
            setattr(element, path[1], number)
    # The same elements again and again, written as a client may write them: one after another.
    data = piece.SerializePartialToString()
    message.MergeFromString(data * (nbytes // len(data) or 1))


def _much(kind: str, descriptor: FieldDescriptor, nbytes: int) -> Any:  # noqa: ANN401 - what the field holds
    if kind == "text":
        return "x" * nbytes
    if kind == "bytes":
        return b"x" * nbytes
    bits = 64 if "64" in _CPP_NAMES[descriptor.cpp_type] else 32
    unsigned = _CPP_NAMES[descriptor.cpp_type].startswith("u")
    return 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1


_CPP_NAMES: Final = {1: "int32", 2: "int64", 3: "uint32", 4: "uint64", 5: "double", 6: "float"}


def framed(command: BaseCommand) -> bytes:
    """The frame of a command; a SEND's ends with an entry."""
    if command.HasField("send"):
        return entries.send(command.send, entry(b"x" * 16, sequence_id=command.send.sequence_id))
    return codec.encode(command.type, codec.body_in(command))
