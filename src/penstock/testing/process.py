# SPDX-License-Identifier: Apache-2.0
"""`penstock serve` and `penstock proxy` as child processes, for tests, demos and benchmarks.

Where: compatibility tests, the crash loop, the demo. It starts on free ports, waits for the ready line, and is ended
with its `with` block.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

READY: Final = re.compile(
    r"^penstock ready pulsar://(?P<host>\S+):(?P<port>\d+) (?:-|http://\S+:(?P<admin_port>\d+))\s*$"
)
# Longer than a stop may take: `brokerShutdownTimeoutMs`, and what a supervisor gives late brokers and the metadata.
STOP_TIMEOUT_S: Final = 90.0


class BrokerDidNotStart(RuntimeError):
    """`penstock serve` ended before it was ready; the message contains its output."""


class BrokerProcess:
    """One broker process with a data directory. `start` may be called again after `stop` or `kill`."""

    def __init__(
        self,
        data_dir: Path,
        arguments: Sequence[str] = (),
        *,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep what to start it with; `environment` is added to that of this process."""
        self.data_dir = data_dir
        self.arguments = list(arguments)
        self.log_path = log_path or data_dir.with_suffix(".log")
        self.environment = environment
        self.program = ["-m", "penstock"]
        self.port = 0
        self.admin_port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def start(self, *, port: int = 0, admin_port: int = 0) -> Self:
        """Start and wait for the ready line."""
        command = [sys.executable, *self.program, *self._subcommand()]
        command += ["--port", str(port), "--admin-port", str(admin_port), *self.arguments]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=None if self.environment is None else {**os.environ, **self.environment},
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            # If the wait is interrupted, also by Ctrl-C, end the broker.
            self._process.kill()
            self._process.wait()
            self._close()
            raise
        return self

    def _subcommand(self) -> list[str]:
        return ["serve", "--data-dir", str(self.data_dir)]

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            match = READY.match(line)
            if match is not None:
                self.port, self.admin_port = int(match["port"]), int(match["admin_port"] or 0)
                return
        status = process.wait(STOP_TIMEOUT_S)
        raise BrokerDidNotStart(
            f"penstock {self._subcommand()[0]} ended with {status}:\n{self.log_path.read_text()[-4000:]}"
        )

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._end(signal.SIGKILL)

    def send_signal(self, how: signal.Signals) -> None:
        """Send a signal without waiting."""
        assert self._process is not None
        self._process.send_signal(how)

    def wait(self) -> int:
        """Wait until it ends; returns the exit status."""
        assert self._process is not None
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._close()

    def _end(self, how: signal.Signals) -> int:
        self.send_signal(how)
        return self.wait()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()


class ProxyProcess(BrokerProcess):
    """`penstock proxy` as a child process."""

    def __init__(self, upstream: str, arguments: Sequence[str] = (), *, log_path: Path) -> None:
        super().__init__(log_path.parent, arguments, log_path=log_path)
        self.upstream = upstream

    def _subcommand(self) -> list[str]:
        return ["proxy", "--upstream", self.upstream]
