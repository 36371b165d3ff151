# SPDX-License-Identifier: Apache-2.0
"""The import contracts can fail: a rule nobody has seen broken may not be checking anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.shape import imports, read

ROOT = Path(__file__).resolve().parent.parent
IMPORTERS_MAX = 5
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("governance/muting.py", "import time", "The core cannot reach the world"),
        ("wire/events.py", "from os import path", "The core cannot reach the world"),
        ("core/names.py", "from penstock.wire import events", "Imports point down"),
        ("wire/events.py", "from penstock.storage import records", "Imports point down"),
        ("broker/topics/topic.py", "from penstock.testing import process", "Imports point down"),
        ("broker/topics/topic.py", "from penstock.broker.broker import Broker", "Inside the broker, too"),
        ("broker/subscriptions/state.py", "from penstock.broker.topics import topic", "Inside the broker, too"),
        ("spark/routing.py", "from penstock.broker import limits", "Executors of Spark carry no broker"),
    ],
)
def test_a_stray_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src/penstock" / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    broken = [row for row in done.stdout.splitlines() if row.endswith("BROKEN")]
    assert [row.startswith(contract) for row in broken] == [True]


def test_hardly_anybody_knows_the_broker() -> None:
    graph = imports(read("src"))
    assert sum("penstock.broker.broker" in imported for imported in graph.values()) <= IMPORTERS_MAX
