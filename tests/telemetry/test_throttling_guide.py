# SPDX-License-Identifier: Apache-2.0
"""The guide to adaptive throttling: each command is run on a broker that throttles, and prints what is shown."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pulsar
import pytest

from benchmarks.process import ask
from penstock.groups.adaptive_throttling import CYCLE_FAILED
from penstock.testing.process import BrokerProcess
from tools.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = Path(__file__).parents[2] / "docs/guide/adaptive-throttling.md"
TOPIC: Final = "persistent://shop/orders/payments"
QUOTA: Final = 10_000_000
WITHIN_S: Final = 60.0
DYNAMIC: Final = "brokers/configuration/adaptivePublisherThrottling"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a topic whose backlog nears its quota, while its producer goes on."""
    config = tmp_path / "broker.conf"
    config.write_text("adaptivePublisherThrottlingEnabled=true\nmemoryLimitMB=1024\n", encoding="utf-8")
    quota = {"limitSize": QUOTA, "limitTime": -1, "policy": "producer_request_hold"}
    log = tmp_path / "broker.log"
    with BrokerProcess(tmp_path / "data", ["--config", str(config)], log_path=log) as process:
        ask(process.admin_port, "PUT", "tenants/shop", {"allowedClusters": ["standalone"]})
        ask(process.admin_port, "PUT", "namespaces/shop/orders")
        ask(process.admin_port, "POST", "namespaces/shop/orders/backlogQuota", quota)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
        client = pulsar.Client(process.url, logger=logger, io_threads=1)
        client.subscribe(TOPIC, "audit")
        producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        for _ in range(85):
            producer.send(bytes(QUOTA // 100))
        ended = threading.Event()
        thread = threading.Thread(target=go_on, args=(producer, ended), daemon=True)
        thread.start()
        yield process
        ended.set()
        thread.join(WITHIN_S)
        client.close()


def go_on(producer: pulsar.Producer, ended: threading.Event) -> None:
    """Publish a little, as often as the broker allows it."""
    while not ended.wait(0.01):
        producer.send_async(b"", lambda _result, _id: None)
        if ended.wait(0.01):
            return
        producer.send(b"")


@pytest.mark.timeout(300)
def test_each_command_of_the_guide_prints_what_the_guide_shows(broker: BrokerProcess) -> None:
    assert CYCLE_FAILED.removeprefix("[AdaptiveThrottle] ") in PAGE.read_text(encoding="utf-8")
    for command, shown in examples():
        if "memory memoryPressure" in command:
            # What a small broker uses is between these.
            for key, value in (("Low", 0.01), ("High", 0.5)):
                ask(broker.admin_port, "POST", f"{DYNAMIC}Memory{key}WatermarkPct/{value}")
        until_it_prints(broker, command, shown)


def until_it_prints(broker: BrokerProcess, command: str, shown: str) -> None:
    """Repeat a command, which takes effect within some evaluations."""
    wanted, deadline = pattern(shown), time.monotonic() + WITHIN_S
    while not wanted.fullmatch(printed := run(broker, command).strip()):
        assert time.monotonic() < deadline, f"{command}\nprinted:\n{printed}\nshown:\n{shown}"
        time.sleep(0.2)


def examples() -> list[tuple[str, str]]:
    """Commands and output of each example of the page."""
    parts = blocks(PAGE)
    pairs = [(one.text, after.text.strip()) for one, after in itertools.pairwise(parts) if one.kind == "sh"]
    assert [block.kind for block in parts] == ["sh", ""] * len(pairs)
    return pairs


def pattern(shown: str) -> re.Pattern[str]:
    """What must be printed: `…` is anything within a line, and on a line of its own any lines."""
    lines = ["(?s:.*)" if line == "…" else re.escape(line).replace("…", ".*") for line in shown.splitlines()]
    return re.compile("\n".join(lines))


def run(broker: BrokerProcess, command: str) -> str:
    """What commands of the page print, at the ports of this broker."""
    admin = broker.admin_url
    begin = f'penstock() {{ "{sys.executable}" -m penstock "$@" --admin-url {admin}; }}\n'
    text = begin + command.replace("http://127.0.0.1:8080", admin)
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(
        ["bash", "-c", text], cwd=broker.log_path.parent, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout
