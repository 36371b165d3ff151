# SPDX-License-Identifier: Apache-2.0
"""The demo as people run it: `python examples/flights.py`, with a real broker, real clients and real flights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "flights.py"
TIMEOUT_S = 50


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
    with start("--quick", directory=tmp_path) as demo:
        output, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, output
    assert "checks passed" in output
    assert "✗" not in output
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_every_process_of_the_demo(tmp_path: Path) -> None:
    with start("--quick", directory=tmp_path) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if line.startswith("replaying"))
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)
