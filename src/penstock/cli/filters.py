# SPDX-License-Identifier: Apache-2.0
"""Which messages are meant: by key, by property, by what is in a JSON value.

Where: options of `consume`, `tail`, `export`, `replay` and `redrive`. All that are given must hold.

A path in JSON is `$.order.lines[0].price`, with one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (a pattern with * and ?)
and a value. Without them it must be there. Numbers are compared as numbers, everything else as text.
"""

from __future__ import annotations

import json
import operator
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.cli.exits import wrong

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from penstock.wire.messages import Message

    Test: TypeAlias = Callable[[Message], bool]

_CONDITION: Final = re.compile(r"\$(?P<path>(?:\.[\w-]+|\[\d+\])*)\s*(?:(?P<sign>=|!=|<=|>=|<|>|~)\s*(?P<value>.*))?")
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]")
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NOTHING: Final = object()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose messages."""
    group = parser.add_argument_group("which messages")
    group.add_argument("--key", action="append", metavar="PATTERN", help="with such a key; * and ? stand for others")
    group.add_argument(
        "--property", action="append", metavar="NAME=PATTERN", help="with such a property; NAME alone: with any value"
    )
    group.add_argument(
        "--where", action="append", metavar="PATH", help="whose JSON value has it: '$.order.total>100', '$.customer'"
    )


def chosen(arguments: argparse.Namespace) -> Test:
    """Return the test of these options. Raises CommandFailed."""
    from penstock.wire.messages import has_key, has_property  # Help must not wait for protobuf.

    tests = [
        *([has_key(*arguments.key)] if arguments.key else []),
        *map(has_property, arguments.property or ()),
        *map(condition, arguments.where or ()),
    ]
    return lambda message: all(test(message) for test in tests)


class Condition(NamedTuple):
    """A condition on a JSON value."""

    path: tuple[str | int, ...]
    sign: str
    value: str

    def holds(self, message: Message) -> bool:
        """Whether a message meets the condition."""
        found = _at(message.value, self.path)
        if found is _NOTHING:
            return False
        if not self.sign:
            return True
        if self.sign == "~":
            return fnmatchcase(_text(found), self.value)
        if isinstance(found, int | float) and not isinstance(found, bool):
            try:
                return _COMPARED[self.sign](found, float(self.value))
            except ValueError:
                return self.sign == "!="
        return _COMPARED[self.sign](_text(found), self.value)


def condition(text: str) -> Test:
    """Return the test of one `--where`. Raises CommandFailed."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise wrong(f"--where {text!r} cannot be read; write '$.name', '$.list[0].name=VALUE' or '$.number>5'")
    steps = tuple(name or int(index) for name, index in _STEP.findall(found["path"]))
    return Condition(steps, found["sign"] or "", (found["value"] or "").strip().strip("\"'")).holds


def _at(value: bytes | None, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - JSON
    try:
        found = json.loads(value or b"")
        for step in path:
            found = found[step]
    except (ValueError, LookupError, TypeError):
        return _NOTHING
    return found


def _text(found: Any) -> str:  # noqa: ANN401 - JSON
    return found if isinstance(found, str) else json.dumps(found)
