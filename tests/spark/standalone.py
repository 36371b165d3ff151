# SPDX-License-Identifier: Apache-2.0
"""A standalone cluster of Spark on this machine: a master and two workers, whose executors can be killed.

Where: `driver_kills.py --cluster`, and the test of the page about clusters.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyspark

from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    import random
    from types import TracebackType

HOST: Final = "127.0.0.1"
WORKERS: Final = 2
START_TIMEOUT_S: Final = 120
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """Use it in a `with`; `url` is the master's."""

    def __init__(self, directory: Path, *, memory: str = "1g") -> None:
        self.url = ""
        self._directory = directory
        self._memory = memory
        self._processes: list[subprocess.Popen[str]] = []

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill one of the executors that run; returns whether there was any."""
        executors = sorted(pid for process in self._processes[1:] for pid in _executors_of(process.pid))
        if not executors:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(executors), signal.SIGKILL)
        return True

    def __enter__(self) -> Self:
        try:
            master = ("org.apache.spark.deploy.master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
            self.url = self._start("master", _MASTER, *master)[1]
            for number in range(WORKERS):
                options = ["--cores", "1", "--memory", self._memory, "--host", HOST, "--webui-port", "0"]
                options += ["--work-dir", str(self._directory / f"worker-{number}"), self.url]
                self._start(f"worker-{number}", _REGISTERED, "org.apache.spark.deploy.worker.Worker", *options)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, executors with their workers."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        self._processes.clear()

    def _start(self, name: str, sign: re.Pattern[str], *command: str) -> re.Match[str]:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "JAVA_HOME": str(ensure_java()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *command],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        timer = threading.Timer(START_TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if (found := sign.search(line)) is not None:
                    threading.Thread(target=_drain, args=(process,), daemon=True).start()
                    return found
        finally:
            timer.cancel()
        raise RuntimeError(f"the {name} of Spark's cluster did not start")


def _drain(process: subprocess.Popen[str]) -> None:
    """Read what a process says, or it would stand still."""
    assert process.stderr is not None
    with contextlib.suppress(ValueError):
        for _ in process.stderr:
            pass


def _executors_of(worker: int) -> list[int]:
    """Return the process ids of a worker's executors."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == worker and _EXECUTOR in (status.parent / "cmdline").read_bytes():
                found.append(int(status.parent.name))
    return found
