# SPDX-License-Identifier: Apache-2.0
"""Writes the protobuf classes, their type stub and the classes of bounds from the fact tables.

Why: the tables in `src/penstock/wire/tables` are what we know of Pulsar's binary protocol, one fact a line. The Python
modules are derived from them, so a new field is one new line in a table.
Where: run by hand after a table has changed (`python tools/generate_proto.py`); all its results are committed, and
`tests/wire/test_generate_proto.py` fails when they are stale.
"""

from __future__ import annotations

import csv
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pb2 import FileDescriptorProto as Definition

if TYPE_CHECKING:
    from collections.abc import Iterator

WIRE: Final = Path(__file__).resolve().parent.parent / "src" / "penstock" / "wire"
FIELDS: Final = WIRE / "tables" / "fields.tsv"
ENUMS: Final = WIRE / "tables" / "enums.tsv"
CLASSES_FILE: Final = WIRE / "pulsar_pb2.py"
STUB: Final = WIRE / "pulsar_pb2.pyi"
BOUNDS: Final = WIRE / "bounds_table.py"

# In Python an enum's values are attributes of the message around it: one is a keyword there, one hides a message.
VALUE_NAMES: Final = {"None": "NoSchema", "KeyValue": "KeyValueSchema"}
INTEGERS: Final = ("int32", "int64", "uint32", "uint64", "sint32", "sint64")
PYTHON_TYPES: Final = {**dict.fromkeys(INTEGERS, "int"), "bool": "bool", "string": "str", "bytes": "bytes"}
PYTHON_TYPES["double"] = "float"

BOUNDS_HEADER: Final = '''\
# SPDX-License-Identifier: Apache-2.0
"""Which class of bound each field of the protocol has.

Why generated: `wire` reads no files. Where: written by tools/generate_proto.py from tables/fields.tsv: change that and
run it again. `penstock.wire.bounds` says what the classes are.
"""

from __future__ import annotations

from typing import Final

from penstock.wire.pulsar_pb2 import DESCRIPTOR

# By message: the class of each of its fields, in the order of the definition.
_CLASSES: Final = {
'''
BOUNDS_FOOTER: Final = """\
}

CLASS_OF: Final[dict[str, dict[str, str]]] = {
    name: dict(
        zip((field.name for field in DESCRIPTOR.message_types_by_name[name].fields), classes.split(), strict=True)
    )
    for name, classes in _CLASSES.items()
}
"""

STUB_HEADER: Final = """\
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
from collections.abc import Iterable, Mapping
from typing import ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor
"""
# protoc's own Python refuses to run on a protobuf older than itself, or newer by two major versions.
CLASSES: Final = '''\
# SPDX-License-Identifier: Apache-2.0
"""The messages and enums of Pulsar's binary protocol, as classes; pulsar_pb2.pyi beside it lists them.

Why not as protoc writes it: that ties users to one or two major versions of protobuf. This asks the library for
classes by its public interface, which all versions have.
Where: written by tools/generate_proto.py. Change the tables and run it again.
"""

from __future__ import annotations

from google.protobuf.descriptor_pool import Default
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR = Default().AddSerializedFile(
{descriptor})
for _message in DESCRIPTOR.message_types_by_name.values():
    globals()[_message.name] = GetMessageClass(_message)
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals()[_enum.name] = EnumTypeWrapper(_enum)
'''
DESCRIPTOR_LINE_BYTES: Final = 60
LINE_CHARACTERS_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, and the class of its bound."""

    number: int
    name: str
    type: str
    label: str
    default: str
    bound: str


def read_fields(table: Path = FIELDS) -> dict[str, list[Field]]:
    """Fields by message name; both in the table's order."""
    messages: dict[str, list[Field]] = {}
    for row in _rows(table):
        field = Field(int(row["number"]), row["name"], row["type"], row["label"], row["default"], row["bound"])
        messages.setdefault(row["message"], []).append(field)
    return messages


def read_enums(table: Path = ENUMS) -> dict[str, list[tuple[str, int]]]:
    """(name, value) pairs by enum name; `Message.Enum` belongs inside `Message`."""
    enums: dict[str, list[tuple[str, int]]] = {}
    for row in _rows(table):
        name = VALUE_NAMES.get(row["name"], row["name"])
        enums.setdefault(row["enum"], []).append((name, int(row["value"])))
    return enums


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


# -- the definition ---------------------------------------------------------------------------------------------------


def define(messages: dict[str, list[Field]], enums: dict[str, list[tuple[str, int]]]) -> Definition:
    """The whole definition, in protobuf's own form: messages with the enums that live in them, and the other enums."""
    definition = Definition(name="penstock/wire/pulsar.proto", package="penstock.wire")
    # A message without fields (PING, PONG) has no line in the field table, only a mention as a field's type.
    mentioned = {field.type for fields in messages.values() for field in fields if field.type.startswith("Command")}
    empty = {name for name in mentioned if "." not in name} - messages.keys()
    for name in sorted(messages.keys() | empty):
        fields = [_field(field, enums) for field in messages.get(name, [])]
        nested = [_enum(inner, values) for inner, values in sorted(enums.items()) if inner.startswith(f"{name}.")]
        definition.message_type.append(DescriptorProto(name=name, field=fields, enum_type=nested))
    definition.enum_type.extend(_enum(name, values) for name, values in sorted(enums.items()) if "." not in name)
    return definition


def _field(field: Field, enums: dict[str, list[tuple[str, int]]]) -> FieldDescriptorProto:
    described = FieldDescriptorProto(name=field.name, number=field.number)
    described.label = FieldDescriptorProto.Label.Value(
        f"LABEL_{'REPEATED' if field.label == 'packed' else field.label.upper()}"
    )
    if field.label == "packed":
        described.options.packed = True
    if field.type in PYTHON_TYPES:
        described.type = FieldDescriptorProto.Type.Value(f"TYPE_{field.type.upper()}")
    else:
        described.type = FieldDescriptorProto.TYPE_ENUM if field.type in enums else FieldDescriptorProto.TYPE_MESSAGE
        described.type_name = f".penstock.wire.{field.type}"
    if field.default:
        described.default_value = field.default
    return described


def _enum(name: str, values: list[tuple[str, int]]) -> EnumDescriptorProto:
    described = EnumDescriptorProto(name=name.rpartition(".")[2])
    for value, number in values:
        described.value.add(name=value, number=number)
    return described


# -- the modules ------------------------------------------------------------------------------------------------------


def render_classes(definition: Definition) -> str:
    """The module that makes classes of the definition."""
    data = definition.SerializeToString(deterministic=True)
    parts = (data[at : at + DESCRIPTOR_LINE_BYTES] for at in range(0, len(data), DESCRIPTOR_LINE_BYTES))
    return CLASSES.format(descriptor="".join(f"    {part!r}\n" for part in parts))


def render_stub(definition: Definition) -> str:
    """The types of these classes."""
    blocks = ["".join(_enum_stub(enum, enum.name)) for enum in definition.enum_type]
    return "\n".join([STUB_HEADER, *blocks, *("".join(_message_stub(message)) for message in definition.message_type)])


def _message_stub(message: DescriptorProto) -> Iterator[str]:
    yield f"class {message.name}(Message):\n"
    for enum in message.enum_type:
        name = f"{message.name}.{enum.name}"
        yield from (f"    {line}" for line in _enum_stub(enum, name))
        yield from (f"    {value.name}: {name}\n" for value in enum.value)
    arguments = ["self"]
    for field in message.field:
        held, given = _python_types(field)
        yield f"    {field.name}: {held}\n"
        arguments.append(f"{field.name}: {given} | None = ...")
    yield f"    def __init__({', '.join(arguments)}) -> None: ...\n"


def _enum_stub(enum: EnumDescriptorProto, name: str) -> Iterator[str]:
    yield f"class {enum.name}(int, metaclass=EnumTypeWrapper):\n"
    yield from (f"    {value.name}: ClassVar[{name}]\n" for value in enum.value)


def _python_types(field: FieldDescriptorProto) -> tuple[str, str]:
    """What a field holds, and what may be given for it."""
    container = "RepeatedScalarFieldContainer"
    name = field.type_name.removeprefix(".penstock.wire.")
    if field.type == field.TYPE_MESSAGE:
        given, container = f"{name} | Mapping", "RepeatedCompositeFieldContainer"
    elif field.type == field.TYPE_ENUM:
        given = f"{name} | str"
    else:
        given = name = PYTHON_TYPES[FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()]
    if field.label == field.LABEL_REPEATED:
        return f"{container}[{name}]", f"Iterable[{given}]"
    return name, given


def render_bounds(messages: dict[str, list[Field]]) -> str:
    """The module that holds the classes of bounds, by message and field."""
    lines = []
    for message, fields in messages.items():
        words = " ".join(field.bound for field in fields)
        line = f'    "{message}": "{words}",\n'
        if len(line) > LINE_CHARACTERS_MAX:
            # The formatter joins what fits one line.
            room = LINE_CHARACTERS_MAX - len('        " "')
            width = room if len(words) <= room else LINE_CHARACTERS_MAX - 20
            parts = "".join(f'        "{part} "\n' for part in textwrap.wrap(words, width))
            line = f'    "{message}": (\n{parts}    ),\n'
        lines.append(line)
    return BOUNDS_HEADER + "".join(lines) + BOUNDS_FOOTER


def main() -> None:
    """Regenerate everything."""
    messages = read_fields()
    definition = define(messages, read_enums())
    CLASSES_FILE.write_text(render_classes(definition), encoding="utf-8")
    STUB.write_text(render_stub(definition), encoding="utf-8")
    BOUNDS.write_text(render_bounds(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
