# SPDX-License-Identifier: Apache-2.0
"""Print the files over 400 lines, the functions over 70, and circles of imports: places to look for two ideas.

Where: `make shape`; nothing fails over what it prints. Generated code is left out. Imports for types alone count, for
whoever reads a module reads what they name.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"
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


def imports(package: str) -> dict[str, set[str]]:
    """By each module of a package of ours, those of its modules that it imports, also for types."""
    files = {_module(file): file for file in (SOURCE / package.replace(".", "/")).rglob("*.py")}
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                wanted = (f"{node.module}.{one.name}" for one in node.names)
                found[name] |= {one if one in files else node.module for one in wanted} & files.keys()
    return found


def _module(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Modules that import one another, whichever way round, the largest circle first."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in graph}
    return sorted((sorted(one) for one in found if len(one) > 1), key=len, reverse=True)


def _reached(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    reached: set[str] = set()
    left = [start]
    while left:
        new = set(graph[left.pop()]) - reached
        reached |= new
        left += new
    return reached


def main() -> int:
    """Print what stands out, longest first."""
    files = sorted(file for folder in FOLDERS for file in Path(folder).rglob("*.py") if not file.stem.endswith("_pb2"))
    found = [outlier for file in files for outlier in outliers(file, file.read_text(encoding="utf-8"))]
    for lines, name in sorted(found, reverse=True):
        print(f"{lines:5}  {name}")
    print(f"{len(found)} of {len(files)} files or their functions stand out")
    for circle in circles(imports("penstock.broker")):
        print(f"{len(circle):5}  modules of the broker import one another: {', '.join(circle)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
