# SPDX-License-Identifier: Apache-2.0
"""Patterns of topic names: compiled by RE2 within bounds of memory and time.

Why RE2: matching takes time proportional to the name, so a client's pattern cannot block the loop. Why bounds: by
default RE2 lets each pattern grow to 8 MiB while it is used. Where it is not installed, `plain_patterns` compiles those
that Python matches in such time.
Where: `listing.Filter` has one. Everything here is pure.

Theory of operation:
    One name: the program that a watcher keeps has so little room that RE2 caches no states. So its size is known from
        the program and the text, and it is charged (`size_bytes`). A name costs a few microseconds.
    Many names: while a list is gathered, a second program matches hundreds of names in one call. The names are joined
        by newlines, and the pattern finds each run of matching lines, however long, in one call. It caches states,
        which are freed when the list is gathered; few lists are gathered at a time.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.broker.topics import plain_patterns
from penstock.core.errors import InvalidTopicName
from penstock.core.names import parent_text
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    # Not None if the pattern matches all of a name.
    _FullMatch: TypeAlias = Callable[[str], object]

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
SCHEME_MARK: Final = "://"

# Memory bounds of a pattern's program; the smallest that suffices is used. The largest holds 2,700 instructions, ten
# times those of an ordinary pattern; a name of 4 KiB then takes at most about 30 ms.
PROGRAM_BYTES: Final = (16 * KIB, 32 * KIB, 64 * KIB)
# The same for the program that matches many names, cached states included.
GATHERING_BYTES: Final = 256 * KIB
# Memory of a compiled pattern: measured with 150 to 1,000 of each of eight kinds; within a quarter for most.
PATTERN_BYTES: Final = 3 * KIB
INSTRUCTION_BYTES: Final = 16
CHARACTER_BYTES: Final = 16

_LITERAL_PARTITION: Final = re.compile(r"-partition-[0-9]+\Z")
_PARTITION_MARK: Final = "-partition-"
# As in `core.names`, for lines. Whether a number of ten digits is a partition's index depends on the number.
_PARTITION_SUFFIXES: Final = re.compile(r"-partition-(?:0|[1-9][0-9]{0,8})\n", re.ASCII)
_DOUBTFUL_PARTITION: Final = re.compile(r"-partition-[0-9]{10}\n", re.ASCII)
# Constructs whose meaning changes when names are joined by newlines: the ends of the text, any byte, a quotation that
# may end with the pattern, and flags other than case-insensitivity.
_ALONE_ONLY: Final = re.compile(r"\\[AzCQ]|\(\?(?!:|i\)|P?<)")


class PatternNotServed(Exception):
    """The pattern is not supported here, or it exceeds the bounds: the client has to match it."""

    def __init__(self, pattern: str) -> None:
        why = (
            "RE2 does not know it, or needs too much memory for it" if has_re2() else "without RE2, only plain ones are"
        )
        super().__init__(f"The pattern {pattern!r} is not served: {why}.")


class Pattern:
    """A compiled pattern for full topic names.

    The pattern must match all of `tenant/namespace/topic`. The domain and the partition suffix are ignored in the
    pattern and in the name.
    """

    __slots__ = ("_full_match", "_text", "size_bytes")

    def __init__(self, pattern: str) -> None:
        """Compile the pattern.

        Raises:
            InvalidTopicName: it is not a regular expression.
            PatternNotServed: it is not supported, or it needs more than the largest of PROGRAM_BYTES.
        """
        self._text = _LITERAL_PARTITION.sub("", _without_domain(pattern))
        self._full_match, instructions = _smallest(pattern, self._text) if has_re2() else _plain(pattern, self._text)
        self.size_bytes = PATTERN_BYTES + INSTRUCTION_BYTES * instructions + CHARACTER_BYTES * len(self._text.encode())

    def matches(self, name: str) -> bool:
        return self._full_match(parent_text(name).partition(SCHEME_MARK)[2]) is not None

    def for_many(self) -> ManyNames:
        """A matcher for many names, to be used for a short time."""
        return ManyNames(self, self._text)


class ManyNames:
    """Matches many names in one call, if the pattern allows it."""

    __slots__ = ("_compiled", "_pattern")

    def __init__(self, pattern: Pattern, text: str) -> None:
        self._pattern = pattern
        self._compiled = _for_lines(text) if has_re2() and not _ALONE_ONLY.search(text) else None

    def of(self, names: Sequence[str]) -> list[str]:
        lines = _lines(names) if self._compiled is not None else None
        if lines is None or self._compiled is None:
            return list(filter(self._pattern.matches, names))
        found: list[str] = []
        row = looked_at = 0
        for match in self._compiled.finditer(lines):
            start, end = match.span()
            row += lines.count(b"\n", looked_at, start)
            count = lines.count(b"\n", start, end)
            found += names[row : row + count]
            row, looked_at = row + count, end
        return found


def _lines(names: Sequence[str]) -> bytes | None:
    """The names as lines for the pattern; None if each name must be matched by itself."""
    text = "\n".join(("", *names, ""))
    if text.count("\n") != len(names) + 1:
        return None
    if _PARTITION_MARK in text:
        if _DOUBTFUL_PARTITION.search(text):
            return None
        text = _PARTITION_SUFFIXES.sub("\n", text)
    for domain in (NON_PERSISTENT, PERSISTENT):
        text = text.replace(f"\n{domain}{SCHEME_MARK}", "\n")
    return text[1:].encode()


@cache
def has_re2() -> bool:
    """Whether RE2 is installed: some systems have no wheel of it."""
    return find_spec("re2") is not None


def _smallest(pattern: str, text: str) -> tuple[_FullMatch, int]:
    """The function that matches whole names, and the number of its instructions."""
    import re2  # noqa: PLC0415 - most brokers get no patterns

    for program_bytes in PROGRAM_BYTES:
        try:
            compiled = _compiled(text, program_bytes)
        except re2.error as error:
            failure = str(error)
            if "too large" not in failure:
                break
        else:
            return compiled.fullmatch, compiled.programsize
    else:
        raise PatternNotServed(pattern)
    _check_syntax(pattern, text, failure)
    raise PatternNotServed(pattern)


def _plain(pattern: str, text: str) -> tuple[_FullMatch, int]:
    try:
        compiled = plain_patterns.compiled(text)
    except plain_patterns.NotPlain:
        _check_syntax(pattern, text)
        raise PatternNotServed(pattern) from None
    return compiled.fullmatch, len(compiled.pattern)


def _check_syntax(pattern: str, text: str, failure: str = "") -> None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidTopicName(pattern, f"no regular expression: {failure or error}") from None
    finally:
        re.purge()  # The module would cache the last 512 patterns.


def _for_lines(text: str) -> Any:  # noqa: ANN401
    """A program that matches a run of lines that all match the pattern; None if it exceeds the bounds.

    `never_nl` keeps every part of the pattern from matching a newline. Newlines are matched by `any byte`, to which
    that option does not apply.
    """
    import re2  # noqa: PLC0415

    try:
        return _compiled(rf"(?m)(?:^(?:{text})$\C)+".encode(), GATHERING_BYTES, never_nl=True)
    except re2.error:
        return None


def _compiled(text: str | bytes, program_bytes: int, *, never_nl: bool = False) -> Any:  # noqa: ANN401
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = program_bytes
    options.never_nl = never_nl
    try:
        return re2.compile(text, options)
    finally:
        re2.purge()  # The module would cache the last 128 patterns.


def _without_domain(pattern: str) -> str:
    before, mark, after = pattern.partition(SCHEME_MARK)
    if not mark:
        return pattern
    for domain in (NON_PERSISTENT, PERSISTENT):
        if before.endswith(domain):
            return before[: -len(domain)] + after
    raise InvalidTopicName(pattern, f"unknown domain {before!r} in the pattern, want persistent or non-persistent")
