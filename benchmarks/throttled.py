# SPDX-License-Identifier: Apache-2.0
"""A broker with settings of adaptive throttling, a client, and what its metrics say: for `throttling` and its parts."""

from __future__ import annotations

import re
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar

from benchmarks.process import ask
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB: Final = 1 << 20
PREFIX: Final = "adaptivePublisherThrottling"
_METRIC: Final = re.compile(r"^(?P<name>\w+?)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)


class Metrics:
    """What the broker's /metrics say."""

    def __init__(self, admin_port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=30) as answer:
            self._rows = [match.groups() for match in _METRIC.finditer(answer.read().decode())]

    def value(self, name: str, having: str = "") -> float:
        """The sum of the samples whose labels contain a text."""
        return sum(float(value) for row, labels, value in self._rows if row == name and having in (labels or ""))


@contextmanager
def broker(settings: dict[str, object]) -> Iterator[BrokerProcess]:
    """A broker with these settings, and a data directory of its own."""
    with tempfile.TemporaryDirectory(prefix="throttling-") as directory:
        file = Path(directory) / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        with BrokerProcess(Path(directory) / "data", ["--config", str(file)]) as process:
            yield process


@contextmanager
def connected(process: BrokerProcess) -> Iterator[pulsar.Client]:
    """A client whose complaints at the end are nobody's concern."""
    log = str(process.data_dir.with_name("client.log"))
    client = pulsar.Client(process.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, log))
    try:
        yield client
    finally:
        client.close()


def set_key(process: BrokerProcess, key: str, value: object) -> None:
    ask(process.admin_port, "POST", f"brokers/configuration/{PREFIX}{key}/{value}")
