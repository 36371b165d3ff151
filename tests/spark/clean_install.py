# SPDX-License-Identifier: Apache-2.0
"""Installs penstock for Spark as the guide says, in an environment that has nothing else, and does what the guide does.

Why: in the environment of developers everything is there. What is missing in the list of requirements, or stands
outside of the package, is seen only here.
Where: `.ci/run`. Needs a network, some minutes and a gigabyte.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.pages import commands  # noqa: E402 -- found by the line above

# Runs in the new environment, with nothing of the repository on its path but `tools`, loaded by file.
PROGRAM = """
import importlib.util, json, pathlib, sys

def load(name):
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(sys.argv[1]) / "tools" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

import penstock
assert "site-packages" in penstock.__file__, penstock.__file__
guide = pathlib.Path(sys.argv[1]) / "docs/guide/spark.md"
shown = load("pages").check_page(guide, lambda text: text.replace("localhost:6650", sys.argv[2]))
print(f"guide: {shown} outputs as shown")
notebook = json.loads((pathlib.Path(sys.argv[1]) / "examples/spark.ipynb").read_text(encoding="utf-8"))
cells = 0
for cell, outputs in load("notebook").run(notebook):
    assert outputs == cell["outputs"], (outputs, cell["outputs"])
    cells += 1
print(f"notebook: {cells} cells as shown")
from pyspark.sql import SparkSession
SparkSession.getActiveSession().stop()
"""


def main() -> int:
    """Return 0 if everything that is shown is printed."""
    install, serve = (shlex.split(line) for line in commands(ROOT / "docs/guide/spark.md"))
    with tempfile.TemporaryDirectory(prefix="clean-install-") as scratch:
        clone, environment = Path(scratch) / "clone", Path(scratch) / "venv"
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], check=True)
        subprocess.run([str(ROOT / "tools/make_venv"), str(environment)], check=True)
        inside = {**os.environ, "PATH": f"{environment}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(environment)}
        for name in ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON"):
            inside.pop(name, None)
        subprocess.run([*install, "--quiet", "--disable-pip-version-check"], cwd=clone, env=inside, check=True)
        # On any port that is free, instead of 6650 and 8080.
        with (Path(scratch) / "broker.log").open("w") as log:
            running = subprocess.Popen(
                [*serve, "--port", "0", "--admin-port", "0"],
                cwd=scratch, env=inside, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        try:
            assert running.stdout is not None
            ready = re.search(r"pulsar://(\S+)", running.stdout.readline())
            assert ready is not None, "the broker did not start"
            program = [str(environment / "bin/python"), "-c", PROGRAM, str(clone), ready[1]]
            done = subprocess.run(program, cwd=scratch, env=inside, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
            return done.returncode
        finally:
            running.terminate()
            running.wait()


if __name__ == "__main__":
    sys.exit(main())
