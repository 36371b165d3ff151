# SPDX-License-Identifier: Apache-2.0
"""The demo as people run it: `python examples/flights.py`, with a real broker, real clients and real flights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "flights.py"
TIMEOUT_S = 170
# Spark's virtual machine and its first query take as long as everything else together.
SPARK_TIMEOUT_S = 480


def start(*arguments: str, directory: Path) -> subprocess.Popen[str]:
    """Start the demo in a process group of its own, as a shell does, with its files where they can be looked at."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(directory), "COLUMNS": "120"},
    )


def test_a_quick_demo_passes_all_its_checks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start("--quick", "--core", directory=tmp_path) as demo:
        output, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, output
    assert "checks passed" in output
    assert "✗" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(find_spec("pyspark") is None, reason="Spark is not installed: pip install 'penstock[spark]'")
@pytest.mark.timeout(SPARK_TIMEOUT_S + 10)
def test_spark_adds_up_what_the_demo_published_and_draws_a_page(tmp_path: Path) -> None:
    temporary, page = tmp_path / "temporary", tmp_path / "flights.html"
    temporary.mkdir()
    with start("--quick", "--flights", "2000", "--page", str(page), directory=temporary) as demo:
        output, _ = demo.communicate(timeout=SPARK_TIMEOUT_S)
    assert demo.returncode == 0, output
    assert "✗" not in output
    assert "Spark's table holds every flight that was published, once, as it was sent: 2,000 of 2,000" in output
    assert "2,000 flights were to leave" in page.read_text(encoding="utf-8")
    assert "the tables of usage, made of the broker's records, have every flight: 2,000 of 2,000" in output
    assert "<h2>Top talkers" in page.with_name("usage.html").read_text(encoding="utf-8")
    assert list(temporary.iterdir()) == []


def test_ctrl_c_ends_every_process_of_the_demo(tmp_path: Path) -> None:
    with start("--quick", "--core", directory=tmp_path) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if line.startswith("replaying"))
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)
