# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/guide/first-steps.md as one program of a shell, and compares what they print with the page.

    python -m tests.first_steps        in an empty home, from the first command on: it installs penstock from this clone

Why as one program: a newcomer has one shell, too, with its variables and its jobs. Ports are free ones instead of 6650
and 8080. Where: `.ci/run`, which needs a network for the installation; `tests/examples/test_first_steps.py` runs the
rest with the penstock that is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.processes.cluster import free_ports
from tools.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs/guide/first-steps.md"
# Long: on a busy machine everything is slow, and pip fetches what penstock needs.
TIMEOUT_S: Final = 600.0
_END: Final = "=== end of block"


def check(where: Path, environment: Mapping[str, str], *, first: int = 0) -> None:
    """Run the page's blocks of commands in a directory.

    Args:
        where: the directory.
        environment: all variables; those that say where the broker is are added.
        first: number of the first block that is run.

    Raises:
        AssertionError: a command failed, or something else was printed than the page shows.
    """
    ports = {"6650": str(free_ports(1)), "8080": str(free_ports(1))}

    def changed(text: str) -> str:
        return re.sub("6650|8080", lambda found: ports[found[0]], text)

    shown = [["", ""]]
    for block in blocks(PAGE):
        if block.kind == "sh":
            shown.append([changed(block.text), ""])
        elif not block.kind:
            shown[-1][1] = changed(block.text)
    parts = shown[1 + first :]
    program = "".join(f"{commands}echo '{_END}'\n" for commands, _ in parts)
    inside = {
        **environment,
        "PENSTOCK_URL": f"pulsar://127.0.0.1:{ports['6650']}",
        "PENSTOCK_ADMIN_URL": f"http://127.0.0.1:{ports['8080']}",
        "PENSTOCK_BROKER_SERVICE_PORT": ports["6650"],
        "PENSTOCK_WEB_SERVICE_PORT": ports["8080"],
    }
    printed, errors, status = _run(program, where, inside)
    assert status == 0, f"status {status}\n{printed}\n{errors}"
    for (commands, wanted), got in zip(parts, printed.split(f"{_END}\n"), strict=False):
        if wanted:
            pattern = re.escape(wanted.strip()).replace("…", ".*")
            assert re.fullmatch(pattern, got.strip(), re.DOTALL), f"{commands}\nprinted:\n{got}\nshown:\n{wanted}"


def _run(program: str, where: Path, environment: Mapping[str, str]) -> tuple[str, str, int]:
    """Run a program of bash in a session of its own, and end all that it leaves.

    Returns:
        What it printed, its errors, and its status.
    """
    with (where / "printed").open("w+") as printed, (where / "errors").open("w+") as errors:
        shell = subprocess.Popen(
            ["bash", "-euc", program],
            cwd=where,
            env=environment,
            stdout=printed,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = shell.wait(TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # Usually the page has ended everything.
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        printed.seek(0)
        errors.seek(0)
        return printed.read(), errors.read(), status


def main() -> int:
    """Run the whole page; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="first-steps-") as scratch:
        clone, home = Path(scratch) / "clone", Path(scratch) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], check=True)
        # What says where packages come from stays, and nothing else of this machine's user.
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
        path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
        check(clone, {**kept, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8"})
    print(f"{PAGE.relative_to(ROOT)}: all commands ran, and printed what is shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
