# SPDX-License-Identifier: Apache-2.0
"""The guide and the notebook do what they say, as they are written but for the broker's port."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import build_parser
from penstock.spark import session
from tools.notebook import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide/spark.md"
NOTEBOOK = ROOT / "examples/spark.ipynb"


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Programs that ask for a session of their own get the one that all tests share, as it is."""
    monkeypatch.setattr(session, "local_session", lambda *_args, **_options: spark)
    return spark


@pytest.mark.usefixtures("shared")
def test_the_guide_prints_what_it_shows(own_broker: BrokerProcess, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    shell = [text for kind, text in blocks if kind == "sh"]
    program = "".join(text for kind, text in blocks if kind == "python")
    shown = [text for kind, text in blocks if not kind]
    serve = shell[0].splitlines()[1].split()
    assert build_parser().parse_args(serve[1:]).data_dir == Path("data")
    program = program.replace("localhost:6650", f"127.0.0.1:{own_broker.port}")
    program = program.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(GUIDE), "exec"), {})
    assert len(shown) == 2
    assert [text for text in shown if text not in printed.getvalue()] == [], printed.getvalue()


@pytest.mark.usefixtures("shared")
def test_the_notebook_prints_what_it_shows() -> None:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(run(notebook), 1):
        assert outputs == cell["outputs"], "run tools/notebook.py examples/spark.ipynb"
        assert cell["execution_count"] == number
