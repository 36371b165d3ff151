# SPDX-License-Identifier: Apache-2.0
"""Avro schema resolution: whether data of one schema can be read with another, and if not, why.

The rules are those of Avro's Java library, which Pulsar uses:

- a field that only the reader has needs a default; one that only the writer has is skipped;
- numbers widen (int → long → float → double), bytes and strings are interchangeable;
- every branch of a writer's union must be readable; a reader's union needs one matching branch;
- names of enums and fixed types must be equal, those of records need not;
- a symbol that the reader's enum lacks is not an error here, only when it is read.

Aliases are names that the reader gives to the writer's fields and types. Records may contain themselves: a pair that is
being compared counts as compatible, so that every comparison ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.schemas.checks.avro import AvroField, AvroType

# The wider types that can read a type.
_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
# Limit of comparisons: a record of a thousand fields takes a thousand; unions of many records multiply.
STEPS_MAX: Final = 100_000


def why_unreadable(writer: AvroType, reader: AvroType) -> str | None:
    """Why the reader cannot read the writer's data, naming the field; None if it can."""
    try:
        return _Comparison().types(writer, reader, "")
    except _TooLarge:
        return f"the schemas are too large to compare: it would take more than {STEPS_MAX} steps"
    except RecursionError:  # long chains of records, however flat each is
        return "the schemas refer to one another too deeply to be compared"


class _TooLarge(Exception):
    """The comparison takes too many steps."""


class _Comparison:
    """One comparison, with its results so far by pair of records."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], str | None] = {}
        self._steps = 0

    def types(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        """Compare two types at a path of fields."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _TooLarge
        if writer.kind == "union":
            return self._written_union(writer, reader, at)
        if writer.kind == reader.kind:
            return self._same_kind(writer, reader, at)
        if reader.kind == "union":
            return self._read_union(writer, reader, at)
        if reader.kind in _PROMOTIONS.get(writer.kind, ()):
            return None
        return _found(writer, reader, at)

    def _same_kind(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        if writer.kind == "record":
            return self._record(writer, reader, at)
        if writer.items is not None and reader.items is not None:
            return self.types(writer.items, reader.items, f"{at}[]")
        if writer.kind in ("enum", "fixed") and not _same_name(writer, reader):
            return _found(writer, reader, at)
        if writer.size != reader.size:
            return f"{_found(writer, reader, at)}, with {writer.size} bytes instead of {reader.size}"
        return None

    def _record(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        pair = (id(writer), id(reader))
        if pair not in self._records:
            self._records[pair] = None  # Assume that a recursive record is compatible.
            self._records[pair] = self._fields(writer, reader, at)
        return self._records[pair]

    def _fields(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            path = f"{at}.{field.name}" if at else field.name
            source = _source(field, written)
            if source is None:
                if not field.has_default:
                    missing = f"missing required field {field.name}"
                    return f"field '{path}': Found {writer}, expecting {reader}, {missing} (it has no default value)"
                continue
            why = self.types(source.type, field.type, path)
            if why is not None:
                return why
        return None

    def _written_union(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        for branch in writer.branches:
            why = self.types(branch, reader, at)
            if why is not None:
                return why
        return None

    def _read_union(self, writer: AvroType, reader: AvroType, at: str) -> str | None:
        branch = self._matching_branch(writer, reader)
        if branch is None:
            choice = ", ".join(map(str, reader.branches))
            return f"{_place(at)}Found {writer}, expecting one of [{choice}]"
        return self.types(writer, branch, at)

    def _matching_branch(self, writer: AvroType, reader: AvroType) -> AvroType | None:
        """The matching branch: of the same name or kind, else a compatible record, else a wider type."""
        alike = [branch for branch in reader.branches if branch.kind == writer.kind]
        if not writer.name:
            if alike:
                return alike[0]
        else:
            for branch in alike:
                if branch.name == writer.name or writer.name in branch.aliases:
                    return branch
            fitting = [b for b in alike if b.kind == "record" and self._record(writer, b, "") is None]
            if fitting:
                return next((b for b in fitting if b.short_name == writer.short_name), fitting[0])
        wider = _PROMOTIONS.get(writer.kind, ())
        return next((branch for branch in reader.branches if branch.kind in wider), None)


def _source(field: AvroField, written: dict[str, AvroField]) -> AvroField | None:
    """The writer's field for a reader's field, by name or alias."""
    for name in (field.name, *sorted(field.aliases)):
        if name in written:
            return written[name]
    return None


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _found(writer: AvroType, reader: AvroType, at: str) -> str:
    return f"{_place(at)}Found {writer}, expecting {reader}"


def _place(at: str) -> str:
    return f"field '{at}': " if at else ""
