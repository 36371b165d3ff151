# SPDX-License-Identifier: Apache-2.0
"""Avro schemas, parsed from JSON.

Why our own parser: results must be those of Pulsar, which uses Avro's Java library. That is more lenient than the
specification and than the Python libraries (names may contain `$`, defaults are not checked, records need not have the
same name). A parser that refuses what a Java client may register would be of no use.
Where: `resolution` compares parsed schemas; `validity` only checks that they parse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.errors import PenstockError

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "enum", "fixed"})
# Deeper definitions are refused, so that recursion cannot reach the interpreter's limit.
DEPTH_MAX: Final = 100

# Members that do not distinguish two definitions: documentation and aliases.
_NOT_COMPARED: Final = frozenset({"doc", "aliases"})


class AvroError(PenstockError):
    """The text is not an Avro schema."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    has_default: bool
    aliases: frozenset[str]


@dataclass(slots=True, eq=False)
class AvroType:
    """A type; which attributes are used depends on `kind`. Compared by identity."""

    kind: str
    name: str = ""  # of a record, enum or fixed: full name with namespace
    aliases: frozenset[str] = frozenset()  # full names
    fields: list[AvroField] = field(default_factory=list)
    items: AvroType | None = None  # of an array or a map
    branches: list[AvroType] = field(default_factory=list)  # of a union
    symbols: tuple[str, ...] = ()
    size: int = 0

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return self.name or self.kind


def parse(text: str) -> AvroType:
    """Parse a schema. Raises AvroError."""
    return _Parser().type(_json(text), "", 0)


def canonical(text: str) -> str:
    """A text that is equal for equivalent definitions: layout, documentation and aliases are ignored.

    Raises:
        AvroError: it is not a schema.
    """
    return json.dumps(_without_prose(_json(text), 0), sort_keys=True, separators=(",", ":"))


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"not JSON: {error}") from None


def _without_prose(value: Any, depth: int) -> Any:  # noqa: ANN401 - JSON
    _check_depth(depth // 2)  # JSON nests a list and an object for each level of Avro types.
    if isinstance(value, dict):
        kept = {key: _without_prose(inner, depth + 1) for key, inner in value.items() if key not in _NOT_COMPARED}
        # `{"type": "string"}` is equivalent to `"string"`.
        return kept["type"] if kept.keys() == {"type"} else kept
    if isinstance(value, list):
        return [_without_prose(inner, depth + 1) for inner in value]
    return value


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise AvroError(f"nested deeper than {DEPTH_MAX}")


class _Parser:
    """One parse. A name can be used after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type(self, value: Any, namespace: str, depth: int) -> AvroType:  # noqa: ANN401 - JSON
        """The type described by a JSON value, inside a namespace."""
        _check_depth(depth)
        if isinstance(value, str):
            return self._by_name(value, namespace)
        if isinstance(value, list):
            return self._union(value, namespace, depth)
        if isinstance(value, dict):
            return self._object(value, namespace, depth)
        raise AvroError(f"{value!r} is no type")

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        known = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if known is None:
            raise AvroError(f'"{name}" is not a defined name')
        return known

    def _union(self, value: list[Any], namespace: str, depth: int) -> AvroType:
        branches = [self.type(branch, namespace, depth + 1) for branch in value]
        seen = set()
        for branch in branches:
            if branch.kind == "union":
                raise AvroError("Nested union")
            if str(branch) in seen:
                raise AvroError(f"Duplicate in union: {branch}")
            seen.add(str(branch))
        return AvroType("union", branches=branches)

    def _object(self, value: dict[str, Any], namespace: str, depth: int) -> AvroType:
        kind = value.get("type")
        if isinstance(kind, dict | list):  # a type wrapped in another object
            return self.type(kind, namespace, depth + 1)
        if not isinstance(kind, str):
            raise AvroError("No type")
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in value:
                raise AvroError(f"{kind} without {key}")
            return AvroType(kind, items=self.type(value[key], namespace, depth + 1))
        if kind == "error":
            kind = "record"
        if kind in NAMED:
            return self._define(kind, value, namespace, depth)
        return self._by_name(kind, namespace)

    def _define(self, kind: str, value: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name = value.get("name")
        if not isinstance(name, str):
            raise AvroError(f"No name in {kind}")
        own = value.get("namespace")
        full = _full_name(name, own if isinstance(own, str) else namespace)
        for part in full.split("."):
            _check_name(part)
        if full in self._named:
            raise AvroError(f"Can't redefine: {full}")
        inside = full.rpartition(".")[0]
        defined = AvroType(kind, name=full, aliases=frozenset(_full_name(a, inside) for a in _texts(value, "aliases")))
        self._named[full] = defined
        if kind == "record":
            self._add_fields(defined, value, inside, depth)
        elif kind == "enum":
            defined.symbols = _symbols(value)
        else:
            defined.size = _size(value)
        return defined

    def _add_fields(self, record: AvroType, value: dict[str, Any], namespace: str, depth: int) -> None:
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise AvroError(f"Record has no fields: {record.name}")
        for described in fields:
            record.fields.append(self._field(described, namespace, depth))
        names = [one.name for one in record.fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AvroError(f"Duplicate field {twice} in record {record.name}")

    def _field(self, value: Any, namespace: str, depth: int) -> AvroField:  # noqa: ANN401 - JSON
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise AvroError(f"No field name: {value!r}")
        name = value["name"]
        _check_name(name)
        if "type" not in value:
            raise AvroError(f"No field type: {name}")
        kind = self.type(value["type"], namespace, depth + 1)
        return AvroField(name, kind, "default" in value, frozenset(_texts(value, "aliases")))


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name.removeprefix(".")


def _check_name(name: str) -> None:
    if not name:
        raise AvroError("Empty name")
    if not (name[0].isalpha() or name[0] in "_$"):
        raise AvroError(f"Illegal initial character: {name}")
    if not all(letter.isalnum() or letter in "_$" for letter in name):
        raise AvroError(f"Illegal character in: {name}")


def _texts(value: dict[str, Any], key: str) -> list[str]:
    texts = value.get(key) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise AvroError(f"{key} is no list of texts: {texts!r}")
    return texts


def _symbols(value: dict[str, Any]) -> tuple[str, ...]:
    if "symbols" not in value:
        raise AvroError("Enum has no symbols")
    symbols = tuple(_texts(value, "symbols"))
    for symbol in symbols:
        _check_name(symbol)
    if len(set(symbols)) < len(symbols):
        raise AvroError(f"Duplicate enum symbol in {list(symbols)}")
    return symbols


def _size(value: dict[str, Any]) -> int:
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise AvroError(f"Invalid or no size: {size!r}")
    return size
