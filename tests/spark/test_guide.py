# SPDX-License-Identifier: Apache-2.0
"""The guide and the notebook do what they say, as they are written but for the broker's port."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import build_parser
from penstock.spark import session
from tools.notebook import run
from tools.pages import check_page, commands

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


def test_the_guide_prints_what_it_shows(shared: SparkSession, own_broker: BrokerProcess, tmp_path: Path) -> None:
    serve = commands(GUIDE)[1].split()
    assert build_parser().parse_args(serve[1:]).data_dir == Path("data")

    def here(program: str) -> str:
        program = program.replace("localhost:6650", f"127.0.0.1:{own_broker.port}")
        return program.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')

    try:
        assert check_page(GUIDE, here) == 3
    finally:
        shared.sql("drop table if exists orders")


@pytest.mark.usefixtures("shared")
def test_the_notebook_prints_what_it_shows() -> None:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with closing(run(notebook)) as cells:
        for number, (cell, outputs) in enumerate(cells, 1):
            assert outputs == cell["outputs"], "run tools/notebook.py examples/spark.ipynb"
            assert cell["execution_count"] == number
