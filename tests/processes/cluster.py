# SPDX-License-Identifier: Apache-2.0
"""Several brokers as processes, for tests that kill some of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A start of a broker takes a second, and on a machine that has twenty other things to do, ten of them.
WITHIN_S = 60.0
PORTS = (12_000, 32_000)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has, and that the system gives nobody for port 0."""
    while True:
        first = random.randrange(*PORTS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + number)))
            return first


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Send a request to a broker's admin port and return its answer. Raises HTTPError."""
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return json.loads(text) if text else None


class Cluster(BrokerProcess):
    """`penstock serve --brokers N`, at ports in a row."""

    def __init__(
        self,
        data_dir: Path,
        brokers: int,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data_dir, ["--brokers", str(brokers), *arguments], environment=environment)
        self.brokers = brokers

    def start(self, *, port: int = 0, admin_port: int = 0) -> Cluster:
        first = port or free_ports(2 * self.brokers)
        super().start(port=first, admin_port=admin_port or first + self.brokers)
        return self

    def url_of(self, number: int) -> str:
        return f"pulsar://127.0.0.1:{self.port + number}"

    @property
    def urls(self) -> list[str]:
        """The service URLs of all brokers, by number."""
        return [self.url_of(number) for number in range(self.brokers)]

    @property
    def admin_urls(self) -> list[str]:
        """The URLs of the admin ports of all brokers, by number."""
        return [f"http://127.0.0.1:{self.admin_port + number}" for number in range(self.brokers)]

    def client(self, number: int = 0) -> pulsar.Client:
        """A client that is given the address of one broker."""
        return pulsar.Client(
            self.url_of(number), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=30
        )

    def http(
        self, number: int, method: str, path: str, value: object = None, *, token: str | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of a request at the admin port of one broker."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port + number}{path}",
            method=method,
            data=None if value is None else json.dumps(value).encode(),
            headers={
                "content-type": "application/json",
                **({} if token is None else {"authorization": f"Bearer {token}"}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json(error.read())

    def owner(self, topic: str, asked: int = 0, *, token: str | None = None) -> int:
        """The number of the broker that serves a topic."""
        status, found = self.http(asked, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}", token=token)
        assert status == 200, found
        return int(found["brokerUrl"].rpartition(":")[2]) - self.port

    def pids(self) -> dict[int, int]:
        """The broker processes that are running, by number."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        found = {}
        for child in map(int, children):
            try:
                arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            except OSError:
                continue
            numbers = [one.removeprefix("broker-") for one in arguments if one.startswith("broker-")]
            if numbers:
                found[int(numbers[0])] = child
        return found

    def kill_broker(self, number: int) -> None:
        os.kill(self.pids()[number], signal.SIGKILL)


def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait for other processes."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "that did not happen in time"
        time.sleep(0.02)


def metric(cluster: Cluster, number: int, name: str) -> float | None:
    """The first sample of a metric of one broker; None if it has none, or does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.admin_port + number}/metrics", timeout=60) as answer:
            found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _json(text: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()
