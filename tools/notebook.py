#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a notebook's cells in this process and compares or keeps what they print.

Why not Jupyter: to know that the cells of an example run in their order, and print what stands there, takes no kernel
and none of its thirty packages.
Where: a test runs `examples/spark.ipynb`; `tools/notebook.py examples/spark.ipynb` writes its outputs anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


def run(notebook: dict[str, Any]) -> Generator[tuple[dict[str, Any], list[dict[str, Any]]], None, None]:
    """Run all code cells as one program; yields each with its outputs. Raises what a cell raises.

    What the cells keep open in an ExitStack is closed at the end, also if that comes before the cell that closes it.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        for number, cell in enumerate(code, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                result = run_cell("".join(cell["source"]), namespace)
            outputs: list[dict[str, Any]] = []
            if printed.getvalue():
                outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
            if result is not None:
                data = {"text/plain": lines(repr(result))}
                about = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
                outputs.append({**about, "data": data})
            yield cell, outputs
    finally:
        for value in namespace.values():
            if isinstance(value, contextlib.ExitStack):
                value.close()


def run_cell(source: str, namespace: dict[str, Any]) -> object:
    """Run one cell; its last line's value, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


def lines(text: str) -> list[str]:
    """As notebooks keep text."""
    return text.splitlines(keepends=True)


def main(argv: list[str]) -> int:
    """Write the outputs of the notebooks named anew."""
    for path in map(Path, argv):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for number, (cell, outputs) in enumerate(run(notebook), 1):
            cell["outputs"], cell["execution_count"] = outputs, number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
