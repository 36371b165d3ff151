# SPDX-License-Identifier: Apache-2.0
"""The five minutes of docs/guide/security.md, done as they are written there, but for the ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/security.md"
READY = re.compile(r"^penstock ready pulsar\+ssl://127\.0\.0\.1:(\d+) https://127\.0\.0\.1:(\d+)$")
TIMEOUT_S = 120
# The Python of the guide is the one with penstock in it.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(program: str, directory: Path, *, python: bool = False) -> str:
    command = [sys.executable, "-c", program] if python else ["bash", "-euc", program]
    done = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(directory: Path) -> Iterator[tuple[str, str]]:
    """The broker, with its two ports."""
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", "data", "--config", "broker.conf"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline())
            assert ready is not None
            yield ready[1], ready[2]
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)


def test_the_five_minutes_of_the_guide_end_with_a_message_received(tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "properties", "sh", "python"]
    files, conf, grant, client = (text for _, text in blocks)
    run(files, tmp_path)
    conf = conf.replace("PortTls=6651", "PortTls=0").replace("PortTls=8443", "PortTls=0")
    (tmp_path / "broker.conf").write_text(conf)
    with serving(tmp_path) as (port, admin_port):
        run(grant.replace("8443", admin_port), tmp_path)
        assert "hello" in run(client.replace("6651", port), tmp_path, python=True).splitlines()
        forbidden = client.replace("6651", port).replace('"orders"', '"pulsar/system/t"')
        with_no_grant = subprocess.run(
            [sys.executable, "-c", forbidden],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert "AuthorizationError" in with_no_grant.stderr
