# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables for people, JSON and YAML for programs.

Where: every command that answers something. A table that does not fit the terminal is shown by $PAGER.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

Json: TypeAlias = Any

FORMATS: Final = ("table", "json", "yaml")
# Text that YAML reads as the same text without quotes.
_PLAIN: Final = re.compile(r"[A-Za-z/][\w./+@-]*(?::[\w./+@-]+)*")
_NOT_PLAIN: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_PAGER: Final = "less -FRX"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `-o`."""
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="table", help="how to print the answer (default: table)"
    )


def show(value: Json, how: str) -> None:
    """Print an answer; None is printed for programs only."""
    if how == "json":
        print(json.dumps(value, indent=2, ensure_ascii=False))
    elif how == "yaml":
        print("\n".join(_yaml(value, "")))
    elif value is not None and (lines := list(table(value))):
        _paged(lines)


def notice(text: str) -> None:
    """Say something beside the answer, to people."""
    print(f"penstock: {text}", file=sys.stderr)


def table(value: Json) -> Iterator[str]:
    """Yield an answer as text: a line for each element, a row for each object, or a line for each member."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        yield from _rows(value)
    elif isinstance(value, list):
        yield from map(_cell, value)
    elif isinstance(value, dict):
        members = list(_members(value, ""))
        width = max((len(name) for name, _ in members), default=0)
        yield from (f"{name:{width}}  {_cell(one)}".rstrip() for name, one in members)
    else:
        yield _cell(value)


def _rows(rows: list[dict[str, Json]]) -> Iterator[str]:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    cells = [heads, *([_cell(row.get(name)) for name in heads] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _members(value: dict[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    """Yield the members of an object and of the objects in it, by their paths."""
    for name, one in value.items():
        if isinstance(one, dict) and one:
            yield from _members(one, f"{prefix}{name}.")
        elif isinstance(one, list) and any(isinstance(element, dict) for element in one):
            yield from _members({str(index): element for index, element in enumerate(one)}, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", one


def _cell(value: Json) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "-"
    return json.dumps(value) if isinstance(value, dict) else printable(str(value))


def printable(text: str) -> str:
    """Return text of others without what a terminal would obey."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _yaml(value: Json, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _yaml_member(f"{indent}{_yaml_scalar(name)}:", one, indent + "  ")
    elif isinstance(value, list) and value:
        for one in value:
            first, *rest = _yaml(one, indent + "  ")
            yield f"{indent}- {first.removeprefix(indent + '  ')}"
            yield from rest
    else:
        yield indent + _yaml_scalar(value)


def _yaml_member(head: str, value: Json, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from _yaml(value, indent)
    else:
        yield f"{head} {_yaml_scalar(value)}"


def _yaml_scalar(value: Json) -> str:
    """JSON's scalars are YAML; plain words need no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN:
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # Without a point it would be text.
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in text)


def _paged(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    if not sys.stdout.isatty() or not _is_long(lines):
        sys.stdout.write(text)
        return
    import os
    import shlex
    import subprocess

    try:
        pager = shlex.split(os.environ.get("PAGER", _PAGER)) or ["cat"]
        subprocess.run(pager, input=text, text=True, check=False)  # noqa: S603 - the user's own
    except FileNotFoundError:
        sys.stdout.write(text)


def _is_long(lines: list[str]) -> bool:
    import shutil

    return len(lines) >= shutil.get_terminal_size().lines
