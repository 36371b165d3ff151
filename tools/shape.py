# SPDX-License-Identifier: Apache-2.0
"""How the house is built, in figures that may fall and never rise, and the places that stand out.

    python -m tools.shape            print the figures, and what stands out: places to look for two ideas
    python -m tools.shape --check    end with status 1 if a figure is above that in tools/shape.json (`make check`)
    python -m tools.shape --write    take today's figures into tools/shape.json where they have fallen

Generated code is left out. Imports for types alone count for circles, since who reads a module reads what they name.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
KEPT: Final = ROOT / "tools" / "shape.json"
FOLDERS: Final = ("src", "tests", "benchmarks", "examples", "tools")
FILE_LINES: Final = 400
FUNCTION_LINES: Final = 70
ARGUMENTS: Final = 8
# A first word that makes the reader look for what it stands for.
PRONOUNS: Final = re.compile(
    r"(?:who(?:ever)?|whom|whose|what(?:ever)?|nobody|somebody|it|they|those|these|this|that)\b", re.IGNORECASE
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Something that stands out: how much, and where."""

    size: int
    name: str


class File(NamedTuple):
    """A file of ours, read and parsed once."""

    path: Path
    lines: int
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # those with a name or a text: modules, classes, functions and imports

    @classmethod
    def of(cls, path: Path, text: str) -> File:
        tree = ast.parse(text)
        wanted = ast.Module | ast.ClassDef | Function | ast.ImportFrom
        return cls(
            path, len(text.splitlines()), tree, tuple(node for node in ast.walk(tree) if isinstance(node, wanted))
        )

    @property
    def head_lines(self) -> int:
        """Lines before the first statement that is neither docstring nor import."""
        for node in self.tree.body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            if not (is_text or is_for_types or isinstance(node, ast.Import | ast.ImportFrom)):
                decorators = getattr(node, "decorator_list", None) or [node]
                return int(decorators[0].lineno) - 1
        return self.lines

    def functions(self) -> Iterator[Function]:
        """Each function and method."""
        yield from (node for node in self.nodes if isinstance(node, Function))


def read(folder: str) -> list[File]:
    """The files of a folder."""
    paths = sorted(path for path in (ROOT / folder).rglob("*.py") if not path.stem.endswith("_pb2"))
    texts = [(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths]
    return [File.of(path, text) for path, text in texts]


def long_files(files: Iterable[File]) -> list[Place]:
    """Those of more than 400 lines."""
    return [Place(file.lines, str(file.path)) for file in files if file.lines > FILE_LINES]


def long_functions(files: Iterable[File]) -> list[Place]:
    """Those of more than 70 lines."""
    found = (
        (file, node, (node.end_lineno or node.lineno) - node.lineno + 1) for file in files for node in file.functions()
    )
    return [
        Place(size, f"{file.path}:{node.lineno} {node.name}") for file, node, size in found if size > FUNCTION_LINES
    ]


def many_arguments(files: Iterable[File]) -> list[Place]:
    """Functions with more than 8 arguments."""
    found = ((file, node, _arguments(node.args)) for file in files for node in file.functions())
    return [Place(size, f"{file.path}:{node.lineno} {node.name}") for file, node, size in found if size > ARGUMENTS]


def _arguments(of: ast.arguments) -> int:
    named = [one for one in (*of.posonlyargs, *of.args, *of.kwonlyargs) if one.arg not in {"self", "cls"}]
    return len(named)


def protocols(files: Iterable[File]) -> list[Place]:
    """Classes that derive from Protocol."""
    classes = ((file, node) for file in files for node in file.nodes if isinstance(node, ast.ClassDef))
    bases = ((file, node, {ast.unparse(base).split("[")[0] for base in node.bases}) for file, node in classes)
    return [Place(1, f"{file.path}:{node.lineno} {node.name}") for file, node, named in bases if "Protocol" in named]


def pronouns(files: Iterable[File]) -> list[Place]:
    """Docstrings that begin with a pronoun where a noun could stand."""
    documented = (ast.Module, ast.ClassDef, *Function.__args__)
    nodes = ((file, node) for file in files for node in file.nodes if isinstance(node, documented))
    texts = ((file, node, ast.get_docstring(node) or "") for file, node in nodes)
    return [Place(1, f"{file.path}:{getattr(node, 'lineno', 1)}") for file, node, text in texts if PRONOUNS.match(text)]


def imports(files: Iterable[File]) -> dict[str, set[str]]:
    """By each module of ours, those of ours that it imports, also for types."""
    modules = {_module(file.path): file for file in files}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, file in modules.items():
        for node in file.nodes:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                wanted = (f"{node.module}.{one.name}" for one in node.names)
                found[name] |= {one if one in modules else node.module for one in wanted} & modules.keys()
    return found


def _module(path: Path) -> str:
    return ".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__")


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


def outside_tests(files: Iterable[File]) -> float:
    """Percent of the lines of the files of tests that are in no test: what tests need before they can say something."""
    modules = [file for file in files if file.path.name.startswith("test_")]
    tests = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for file in modules
        for node in file.functions()
        if node.name.startswith("test_")
    )
    return _percent(1 - tests / sum(file.lines for file in modules))


def _percent(share: float) -> int:
    """Whole ones: a new file has a head, and a new test its fixtures."""
    return round(100 * share)


def figures(source: list[File], tests: list[File], others: list[File]) -> dict[str, float]:
    """Each figure that may not rise, by its name."""
    found = circles(imports(source))
    return {
        "circles of modules": len(found),
        "modules of the largest circle": max(map(len, found), default=0),
        "lines of heads, % of the source": _percent(
            sum(file.head_lines for file in source) / sum(file.lines for file in source)
        ),
        "functions over 70 lines": len(long_functions([*source, *tests, *others])),
        "functions of the source with over 8 arguments": len(many_arguments(source)),
        "protocols": len(protocols(source)),
        "docstrings of the source that begin with a pronoun": len(pronouns(source)),
        "lines outside tests, % of the files of tests": outside_tests(tests),
    }


def risen(now: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """A sentence for each figure that is above what was kept."""
    return [f"{name}: {now[name]:g}, and it was {kept[name]:g}" for name in kept if now[name] > kept[name]]


def main(arguments: list[str] | None = None) -> int:
    """Print, check or write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    source, tests, *rest = map(read, FOLDERS)
    others = [file for files in rest for file in files]
    now = figures(source, tests, others)
    kept: dict[str, float] = json.loads(KEPT.read_text(encoding="utf-8"))
    wrong = risen(now, kept)
    if options.write:
        lowest = {name: min(value, kept.get(name, value)) for name, value in now.items()}
        KEPT.write_text(json.dumps(lowest, indent=2) + "\n", encoding="utf-8")
    elif not options.check:
        everything = [*source, *tests, *others]
        for place in sorted(
            [*long_files(everything), *long_functions(everything), *many_arguments(source)], reverse=True
        ):
            print(f"{place.size:5}  {place.name}")
        for place in pronouns(source):
            print(f"       {place.name} begins with a pronoun")
        for circle in circles(imports(source)):
            print(f"{len(circle):5}  modules import one another: {', '.join(circle)}")
        for name, value in now.items():
            print(f"{value:8g}  {name}")
    if wrong:
        print("The house has become worse. `make shape` prints the places.", *wrong, sep="\n  ", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
