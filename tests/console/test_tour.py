# SPDX-License-Identifier: Apache-2.0
"""The tour of docs/guide/tour.md, done as it is written there, but for the ports: each chapter shows what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.testing.process import BrokerProcess
from tests.console.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.examples.browser import Page

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/tour.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
TIMEOUT_S = 120
# The exit status of `penstock why`, if something is slowed.
SLOWED = 6
# The programs of the guide are those of this Python.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_guide_has_the_blocks_that_are_tried() -> None:
    kinds = ["python", "python", "sh", "sh", "sh", "python", "sh", "python", "sh"]
    assert [kind for kind, _ in BLOCKS] == kinds


def run(program: str, directory: Path, *, status: int = 0) -> str:
    done = subprocess.run(
        ["bash", "-euc", program],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in {0, status}, done.stdout + done.stderr
    return done.stdout


def test_the_first_minute_is_a_test_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(BLOCKS[1][1])
    assert "1 passed" in run(f"{BLOCKS[2][1].strip()} -p no:cacheprovider -p no:xdist", tmp_path)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the tour's own."""
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def until(answers: Callable[[], str], wanted: str) -> None:
    """Ask until this is answered."""
    until_s = time.monotonic() + 60
    while wanted not in (found := answers()):
        assert time.monotonic() < until_s, found


def test_the_quota_and_the_slow_consumer_are_explained_and_shown(
    tmp_path: Path, broker: BrokerProcess, tab: Page
) -> None:
    def here(text: str) -> str:
        return text.replace("6650", str(broker.port)).replace("8080", str(broker.admin_port))

    where = f"export PENSTOCK_ADMIN_URL=http://127.0.0.1:{broker.admin_port}\n"
    run(where + here(BLOCKS[4][1]), tmp_path)
    window = Window(tab, broker.admin_url)
    eager = here(BLOCKS[5][1]).replace("+ 10", "+ 60")  # A busy machine may need longer to look.
    programs = [subprocess.Popen([sys.executable, "-c", eager], stderr=subprocess.DEVNULL)]
    try:
        until(lambda: run(where + BLOCKS[6][1], tmp_path, status=SLOWED), "small")
        window.show("/why", {"of": "shop"})
        window.until_shown("group-quota")
        window.show("/tenants")
        window.until_shown("small")
        programs.append(subprocess.Popen([sys.executable, "-c", here(BLOCKS[7][1])], stderr=subprocess.DEVNULL))
        until(lambda: run(where + BLOCKS[8][1], tmp_path, status=SLOWED), "as many messages as it has asked for")
        window.show("/topic", {"name": "persistent://shop/orders/menu"})
        window.until_shown("its client has as many messages as it has asked for")
    finally:
        for program in programs:
            program.kill()
            program.wait(60)
