# SPDX-License-Identifier: Apache-2.0
"""Parser for Java's properties files, such as `broker.conf`: `key=value` lines, comments, continuations, escapes.

Why so exact: a file must mean the same here as in Pulsar. Where: `sources` reads files with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# A key ends at the first `=`, `:` or blank that no backslash stands before; one separator and blanks around it follow.
_ENTRY: Final = re.compile(r"(?P<key>(?:[^\\=:\s]|\\.)+)(?:\s*[=:]\s*|\s+)(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """One key and its value; `line` is the number of its first line."""

    line: int
    name: str
    value: str


class NotAnEntry(ValueError):
    """A line that is neither an entry nor a comment."""

    def __init__(self, line: int, text: str) -> None:
        self.line, self.text = line, text
        super().__init__(f"line {line} is {text!r}; want key=value, or # for a comment")


def parse(text: str) -> Iterator[Entry]:
    """Yield the entries of a file in their order. Raises NotAnEntry."""
    for line, logical in _logical_lines(text):
        match = _ENTRY.fullmatch(logical)
        if match is None:
            raise NotAnEntry(line, logical.strip())
        yield Entry(line, _unescape(match["key"]), _unescape(match["value"]).strip())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and blank ones; a line that ends in a backslash continues in the next."""
    begun: tuple[int, str] | None = None
    for number, natural in enumerate(text.splitlines(), start=1):
        stripped = natural.lstrip()
        if begun is None and (not stripped or stripped[0] in "#!"):
            continue
        first, before = begun or (number, "")
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            begun = first, before + stripped[:-1]
        else:
            begun = None
            yield first, before + stripped
    if begun is not None and begun[1].strip():
        yield begun


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code, letter = match.groups()
        return chr(int(code, 16)) if code else _LETTERS.get(letter, letter)

    return _ESCAPE.sub(plain, text) if "\\" in text else text
