# SPDX-License-Identifier: Apache-2.0
"""Patterns of topic names where RE2 is not installed: those that Python's `re` matches in time linear in the name.

Why: RE2's binding has no wheels for some systems (musl, the newest Python), and a client's pattern must not block the
loop. A pattern that is not plain is left to the client.
Where: `patterns` compiles by it if RE2 cannot be imported.

Theory of operation:
    Alternatives, in parentheses or not, and optional parts are written out. Each of the results consists of pieces of
    fixed width with wildcards between them. A wildcard `.*` reaches as far as the next one might, so the earliest place
    of a piece is as good as any other: an atomic group takes it, and nothing is tried twice. A repeated class, as in
    `[a-z]+`, has no such freedom, and may be the only wildcard. No piece matches a newline, because wildcards do not.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bounds of one pattern: results that are written out, characters of fixed width in each, of the expression in all, and
# depth of parentheses.
RESULTS_MAX: Final = 16
WIDTH_MAX: Final = 256
LENGTH_MAX: Final = 4_096
DEPTH_MAX: Final = 4

_ATOM: Final = re.compile(
    r"""(?P<any>\.)
    | (?P<class>\[\^?(?:\\[dw.\-/]|[\w.\-/:=+@%~!])+\]|\\[dw])
    | (?P<literal>\\[!-/:-@\[-^`{-~]|[^\\^$*+?{}\[\]()|\n])
    """,
    re.VERBOSE | re.ASCII,
)
_REPEATED: Final = re.compile(r"(?P<wild>[*+])\??|\{(?P<count>[0-9]{1,3})\}|(?P<optional>\?)\??")
_OPEN: Final = re.compile(r"\((?:\?:)?(?!\?)")


class NotPlain(Exception):
    """The pattern is no plain one."""


class _Piece(NamedTuple):
    """Some characters of a pattern.

    Attributes:
        text: the expression for them.
        width: how many there are; of a wildcard at least.
        wild: whether there may be more.
        free: whether these may be any.
    """

    text: str
    width: int
    wild: bool = False
    free: bool = False


def compiled(pattern: str) -> re.Pattern[str]:
    """A program for `fullmatch` that takes time linear in the name.

    Raises:
        NotPlain: no such program can be made.
    """
    flags, text = (re.IGNORECASE, pattern[4:]) if pattern.startswith("(?i)") else (re.NOFLAG, pattern)
    text = text.removeprefix("^")
    results, end = _alternatives(text, 0, 0)
    expression = "|".join(map(_linear, results))
    if end != len(text) or len(expression) > LENGTH_MAX:
        raise NotPlain(pattern)
    try:
        return re.compile(expression, flags | re.ASCII)
    finally:
        re.purge()  # The module would cache the last 512 patterns.


def _alternatives(text: str, at: int, depth: int) -> tuple[list[list[_Piece]], int]:
    """Write out `text` from this place to the end of the parentheses; return the results, and where the end is."""
    if depth > DEPTH_MAX:
        raise NotPlain(text)
    found: list[list[_Piece]] = []
    while True:
        results, at = _sequence(text, at, depth)
        found += results
        if len(found) > RESULTS_MAX:
            raise NotPlain(text)
        if at == len(text) or text[at] != "|":
            return found, at
        at += 1


def _sequence(text: str, at: int, depth: int) -> tuple[list[list[_Piece]], int]:
    results: list[list[_Piece]] = [[]]
    while at < len(text) and text[at] not in "|)":
        if text[at] == "$" and (at + 1 == len(text) or (depth == 0 and text[at + 1] == "|")):
            at += 1  # The whole name is matched anyway.
            continue
        choices, at = _part(text, at, depth)
        if len(results) * len(choices) > RESULTS_MAX:
            raise NotPlain(text)
        results = [before + choice for before, choice in product(results, choices)]
    return results, at


def _part(text: str, at: int, depth: int) -> tuple[list[list[_Piece]], int]:
    """One part with what is said of its repetition: its alternatives, and where the next part begins."""
    opened = _OPEN.match(text, at)
    if opened is not None:
        inner, at = _alternatives(text, opened.end(), depth + 1)
        if not text.startswith(")", at):
            raise NotPlain(text)
        return _repeated(text, at + 1, inner)
    atom = _ATOM.match(text, at)
    if atom is None:
        raise NotPlain(text)
    said = atom.group()
    if said.startswith("[^"):
        said = said[:-1] + r"\n]"
    return _repeated(text, atom.end(), [[_Piece(said, 1, free=atom.lastgroup == "any")]])


def _repeated(text: str, at: int, part: list[list[_Piece]]) -> tuple[list[list[_Piece]], int]:
    said = _REPEATED.match(text, at)
    if said is None:
        if text.startswith(("{", "*", "+", "?"), at):
            raise NotPlain(text)
        return part, at
    if said["optional"]:
        return [*part, []], said.end()
    if len(part) != 1 or len(part[0]) != 1:
        raise NotPlain(text)
    piece = part[0][0]
    if piece.wild or piece.width != 1:
        raise NotPlain(text)
    if said["wild"]:
        return [[piece._replace(width=int(said["wild"] == "+"), wild=True)]], said.end()
    count = int(said["count"])
    return [[_Piece(f"{piece.text}{{{count}}}", count)]], said.end()


def _linear(result: list[_Piece]) -> str:
    """The expression for this result that never tries a place again."""
    wild = [piece for piece in result if piece.wild]
    if sum(piece.width for piece in result) > WIDTH_MAX:
        raise NotPlain(result)
    if len(wild) < 2:
        return "".join(piece.text + ("*" if piece.width == 0 else "+") * piece.wild for piece in result)
    if not all(piece.free for piece in wild):
        raise NotPlain(result)
    first, *middle, last = _between(result)
    return "".join((first, *(f"(?>.*?{text})" for text in middle), ".*", last))


def _between(result: list[_Piece]) -> Iterator[str]:
    """Yield the text of fixed width between wildcards; the one character at least of `.+` belongs to what follows."""
    text = ""
    for piece in result:
        if piece.wild:
            yield text
            text = "." * piece.width
        else:
            text += piece.text
    yield text
