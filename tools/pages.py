# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a page of the documentation, and compares what they print with what the page shows.

Why block by block: what a page shows stands behind the block that prints it, and all of what this prints stands there.
Where: `tests/spark/test_guide.py`, and `tests/spark/clean_install.py` in an environment of its own.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Block(NamedTuple):
    """One fenced block; `kind` is its language, empty for output."""

    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page that begin at the margin."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(kind, text) for kind, text in found]


def commands(page: Path) -> list[str]:
    """Return the lines of the first block of shell commands."""
    return next(block.text for block in blocks(page) if block.kind == "sh").splitlines()


def check_page(page: Path, changed: Callable[[str], str] = str) -> int:
    """Run the Python of a page as one program, each block by itself.

    Args:
        page: a file in Markdown.
        changed: returns the program to run for one that is shown: other ports, other directories.

    Returns:
        How many outputs the page shows.

    Raises:
        AssertionError: something else was printed. And what the program raises.
    """
    names: dict[str, Any] = {}
    shown, printed = 0, ""
    for block in blocks(page):
        if block.kind == "python":
            into = io.StringIO()
            with contextlib.redirect_stdout(into):
                exec(compile(changed(block.text), str(page), "exec"), names)
            printed = into.getvalue()
        elif not block.kind:
            shown += 1
            assert printed.strip("\n") == block.text.strip("\n"), f"printed:\n{printed}\nshown:\n{block.text}"
    return shown
