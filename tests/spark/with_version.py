# SPDX-License-Identifier: Apache-2.0
"""Runs tests/spark with another version of Spark than the one of the environment: `make sparks VERSION=4.2.1`.

Why a directory in front of the path instead of an environment: everything but Spark stays the same, and the download is
all that it takes. It is removed at the end.
Where: by hand, before a release and after a change of what Spark's interface is used for. Other arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(version: str, *arguments: str) -> int:
    """Return pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="spark-") as directory:
        wanted = f"pyspark=={version}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", directory, wanted], check=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([directory, str(ROOT / "src"), str(ROOT)]),
            "SPARK_HOME": f"{directory}/pyspark",
        }
        tests = [sys.executable, "-m", "pytest", "-q", *(arguments or ("tests/spark",))]
        return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
