# SPDX-License-Identifier: Apache-2.0
"""A small share of `make crash` in every test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_nothing_acknowledged_is_lost_in_a_few_kills() -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--rounds", "3", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 lost" in done.stdout


def test_usage_is_recorded_exactly_through_a_few_kills() -> None:
    command = [sys.executable, str(Path(__file__).with_name("usage.py")), "--rounds", "3", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert "exactly" in done.stdout


@pytest.mark.timeout(300)
def test_a_proxy_forgets_its_clients_and_they_find_back_after_a_kill() -> None:
    command = [sys.executable, str(Path(__file__).with_name("proxy_churn.py")), "--connections", "60", "--seconds", "3"]
    command += ["--kills", "1", "--life", "0.5", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 of 30 clients are back" in done.stdout
