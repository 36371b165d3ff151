# SPDX-License-Identifier: Apache-2.0
"""Memory is charged in one vocabulary: `try_charge`, `charge`, `release`, and `recharge` for an owner that changes.

The memory of listings is asked by `acquire` and `update`, as in PIP-442, and pools have KIP-72's `try_allocate`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.governance.budget import ROWS, Budget, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(__file__).resolve().parents[1] / "src" / "penstock"
# What is charged, by the last word of its name.
CHARGED: Final = re.compile(r"(^|_)(memory|row|budget|outbound|charge|account)$")
OTHER_WORDS: Final = frozenset(
    (
        "acquire", "allocate", "borrow", "deduct", "end_read", "free", "give", "give_back", "grant", "hold", "lend",
        "refund", "remove", "reserve", "settle", "spend", "start_read", "subtract", "take", "take_room", "try_acquire",
        "try_allocate", "try_take", "use",
    )
)  # fmt: skip
WORDS: Final = frozenset(("try_charge", "charge", "release", "recharge", "__init__", "close"))
# The mechanism of KIP-72, which counts for itself and for tenants.
KIP_72: Final = frozenset(("governance/request_memory.py", "governance/memory_pool.py", "governance/fair_queue.py"))


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def other_words(tree: ast.AST) -> Iterator[str]:
    """Calls of a row, or of what has one, by another verb."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = name_of(node.func.value)
            if node.func.attr in OTHER_WORDS and CHARGED.search(receiver):
                yield f"line {node.lineno}: {receiver}.{node.func.attr}"


def counted_elsewhere(tree: ast.AST) -> Iterator[str]:
    """Changes of what a row has in use outside the methods that have the words."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name not in WORDS:
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.AugAssign)
                    and isinstance(node.target, ast.Attribute)
                    and node.target.attr == "used_bytes"
                ):
                    yield f"line {node.lineno}: {function.name}"


def test_memory_is_charged_by_no_other_verb() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE).as_posix()
        if file not in KIP_72:
            tree = ast.parse(path.read_text())
            found[file] = [*other_words(tree), *counted_elsewhere(tree)]
    assert {file: words for file, words in found.items() if words} == {}


def test_every_row_of_the_table_has_the_words() -> None:
    budget = Budget({row.name: 100 for row in ROWS})
    for share in ROWS:
        row = budget.row(share.name)
        assert isinstance(row, Row)
        assert row.try_charge(60)
        assert not row.try_charge(60)
        row.charge(60)
        row.release(120)
        assert (row.used_bytes, row.refused_total) == (0, 1)
