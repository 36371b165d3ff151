# SPDX-License-Identifier: Apache-2.0
"""Apache Pulsar as a child process that a test may stop, kill and start again on the same data.

Why: what survives a kill is a promise like any other, and Pulsar's own behaviour says which one clients rely on.
Where: with PEER=pulsar it stands for `penstock.testing.process.BrokerProcess` in the fixture `own_broker`; the process
itself is the one that benchmarks are measured against.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, Self

from benchmarks.process import free_port, stop
from benchmarks.pulsar_peer import SETTINGS, find_java, resolve, spawn, wait_until_ready

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from types import TracebackType

# What a Java machine ends with when SIGTERM has run its shutdown hooks.
ENDED_AS_TOLD: Final = 128 + signal.SIGTERM


class PulsarProcess:
    """One standalone Pulsar on a data directory, with the methods of a `BrokerProcess` that the cases use."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self.admin_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where the admin port answers."""
        return f"http://127.0.0.1:{self.admin_port}"

    def start(self, *, port: int = 0, admin_port: int = 0) -> Self:
        """Start and wait until it serves."""
        self.port, self.admin_port = port or free_port(), admin_port or free_port()
        self.data_dir.mkdir(exist_ok=True)
        ports = {"brokerServicePort": str(self.port), "webServicePort": str(self.admin_port)}
        self._process = spawn(find_java(), resolve(), self.data_dir, {**SETTINGS, **ports})
        try:
            wait_until_ready(self._process, self.admin_port, self.data_dir, "")
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """Ask it to end (SIGTERM) and wait; 0 when it ended as it was told, as penstock says."""
        process = self._taken()
        stop(process)
        return 0 if process.returncode == ENDED_AS_TOLD else process.returncode

    def kill(self) -> None:
        """End it without a chance to say anything (SIGKILL)."""
        process = self._taken()
        process.kill()
        process.wait()

    def _taken(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None, "the broker was not started"
        return process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
