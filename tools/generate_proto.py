# SPDX-License-Identifier: Apache-2.0
"""Writes the protocol definition from the fact tables, then the protobuf classes from the definition.

Why: the tables in `src/penstock/wire/tables` are what we know of Pulsar's binary protocol, one fact a line. The
`.proto` and the Python classes are derived from them, so a new field is one new line in a table.
Where: run by hand after a table has changed (`python tools/generate_proto.py`); all its results are committed, and
`tests/wire/test_generate_proto.py` fails when they are stale. Needs `grpcio-tools` for the protobuf compiler.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE_ROOT: Final = Path(__file__).resolve().parent.parent / "src"
WIRE: Final = SOURCE_ROOT / "penstock" / "wire"
PROTO: Final = WIRE / "pulsar.proto"
CLASSES_FILE: Final = WIRE / "pulsar_pb2.py"
STUB: Final = WIRE / "pulsar_pb2.pyi"
BOUNDS: Final = WIRE / "bounds_table.py"

INDENT: Final = "  "
HEADER: Final = """\
// SPDX-License-Identifier: Apache-2.0
//
// Pulsar's binary protocol. Written by tools/generate_proto.py from tables/fields.tsv and tables/enums.tsv:
// change those and run it again. Only numbers and types are seen on the wire; names follow Pulsar's documentation.
syntax = "proto2";

package penstock.wire;
"""

# In Python an enum's values are attributes of the message around it: one is a keyword there, one hides a message.
VALUE_NAMES: Final = {"None": "NoSchema", "KeyValue": "KeyValueSchema"}

BOUNDS_HEADER: Final = '''\
# SPDX-License-Identifier: Apache-2.0
"""Which class of bound each field of the protocol has.

Why generated: `wire` reads no files. Where: written by tools/generate_proto.py from tables/bounds.tsv: change that and
run it again. `penstock.wire.bounds` says what the classes are.
"""

from __future__ import annotations

from typing import Final

# fmt: off
CLASS_OF: Final[dict[str, dict[str, str]]] = {
'''

# protoc's stubs are not strict enough for mypy, but right.
STUB_HEADER: Final = "# SPDX-License-Identifier: Apache-2.0\n# mypy: ignore-errors\n"
# protoc's own Python refuses to run on a protobuf older than itself, or newer by two major versions.
CLASSES: Final = '''\
# SPDX-License-Identifier: Apache-2.0
"""The messages and enums of pulsar.proto, as classes; pulsar_pb2.pyi beside it lists them.

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


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, as protobuf wants to hear it."""

    number: int
    name: str
    type: str
    label: str
    default: str

    def line(self) -> str:
        """The field's declaration, without indentation."""
        return f"{self.label} {self.type} {self.name} = {self.number}{self._options()};"

    def _options(self) -> str:
        if not self.default:
            return ""
        return f" [default = {self.default}]"


def read_fields(table: Path) -> dict[str, list[Field]]:
    """Fields by message name; both in the table's order."""
    messages: dict[str, list[Field]] = {}
    for row in _rows(table):
        field = Field(int(row["number"]), row["name"], row["type"], row["label"], row["default"])
        messages.setdefault(row["message"], []).append(field)
    return messages


def read_enums(table: Path) -> dict[str, list[tuple[str, int]]]:
    """(name, value) pairs by enum name; `Message.Enum` belongs inside `Message`."""
    enums: dict[str, list[tuple[str, int]]] = {}
    for row in _rows(table):
        name = VALUE_NAMES.get(row["name"], row["name"])
        enums.setdefault(row["enum"], []).append((name, int(row["value"])))
    return enums


def render(messages: dict[str, list[Field]], enums: dict[str, list[tuple[str, int]]]) -> str:
    """The whole definition: top-level enums, then messages with the enums that live in them."""
    blocks = [_enum(name, values, depth=0) for name, values in sorted(enums.items()) if "." not in name]
    # A message without fields (PING, PONG) has no line in the field table, only a mention as a field's type.
    mentioned = {field.type for fields in messages.values() for field in fields if field.type.startswith("Command")}
    empty = {name for name in mentioned if "." not in name} - messages.keys()
    for name in sorted(messages.keys() | empty):
        nested = {inner[len(name) + 1 :]: values for inner, values in enums.items() if inner.startswith(f"{name}.")}
        blocks.append(_message(name, messages.get(name, []), nested))
    return "\n".join([HEADER, *blocks])


def render_bounds(table: Path) -> str:
    """The module that holds the classes of bounds, by message and field."""
    messages: dict[str, dict[str, str]] = {}
    for row in _rows(table):
        messages.setdefault(row["message"], {})[row["name"]] = row["class"]
    lines = []
    for message, classes in messages.items():
        lines += [f'    "{message}": {{\n']
        lines += [f'        "{name}": "{bound}",\n' for name, bound in classes.items()]
        lines += ["    },\n"]
    return BOUNDS_HEADER + "".join(lines) + "}\n"


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def _message(name: str, fields: list[Field], enums: dict[str, list[tuple[str, int]]]) -> str:
    body = "".join(_enum(inner, values, depth=1) for inner, values in sorted(enums.items()))
    body += "".join(f"{INDENT}{field.line()}\n" for field in fields)
    return f"message {name} {{\n{body}}}\n"


def _enum(name: str, values: list[tuple[str, int]], *, depth: int) -> str:
    margin = INDENT * depth
    body = "".join(f"{margin}{INDENT}{value} = {number};\n" for value, number in values)
    return f"{margin}enum {name} {{\n{body}{margin}}}\n"


def compile_definition() -> bytes:
    """Run protoc: write the type stub beside the definition, and return the definition's descriptor, serialized."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc  # Here, because rendering, which a test does, needs no compiler.

    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch) / "descriptor"
        outputs = [f"--pyi_out={SOURCE_ROOT}", f"--descriptor_set_out={compiled}"]
        if protoc.main(["protoc", f"-I{SOURCE_ROOT}", *outputs, str(PROTO)]) != 0:
            sys.exit("protoc refused the definition; its complaint is above")
        (file,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
    for field in (field for message in file.message_type for field in message.field):
        field.ClearField("json_name")  # a fifth of the bytes, and nothing is ever written as JSON
    STUB.write_text(STUB_HEADER + STUB.read_text(encoding="utf-8"), encoding="utf-8")
    return file.SerializeToString(deterministic=True)


def render_classes(descriptor: bytes) -> str:
    """The module that makes classes of a serialized descriptor."""
    parts = (descriptor[at : at + DESCRIPTOR_LINE_BYTES] for at in range(0, len(descriptor), DESCRIPTOR_LINE_BYTES))
    return CLASSES.format(descriptor="".join(f"    {part!r}\n" for part in parts))


def main() -> None:
    """Regenerate everything."""
    tables = WIRE / "tables"
    PROTO.write_text(render(read_fields(tables / "fields.tsv"), read_enums(tables / "enums.tsv")), encoding="utf-8")
    BOUNDS.write_text(render_bounds(tables / "bounds.tsv"), encoding="utf-8")
    CLASSES_FILE.write_text(render_classes(compile_definition()), encoding="utf-8")


if __name__ == "__main__":
    main()
