# SPDX-License-Identifier: Apache-2.0
"""Print the files over 400 lines and the functions over 70: places to look for two ideas, nothing more.

Where: `make shape`. Nothing fails over what it prints. Generated code is left out.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES: Final = 400
FUNCTION_LINES: Final = 70
FOLDERS: Final = ("src", "tests", "benchmarks", "examples", "tools")


def outliers(file: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield lines and name of the file itself, if it is long, and of each long function in it."""
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield lines, str(file)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield length, f"{file}:{node.lineno} {node.name}"


def main() -> int:
    """Print what stands out, longest first."""
    files = sorted(file for folder in FOLDERS for file in Path(folder).rglob("*.py") if not file.stem.endswith("_pb2"))
    found = [outlier for file in files for outlier in outliers(file, file.read_text(encoding="utf-8"))]
    for lines, name in sorted(found, reverse=True):
        print(f"{lines:5}  {name}")
    print(f"{len(found)} of {len(files)} files or their functions stand out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
