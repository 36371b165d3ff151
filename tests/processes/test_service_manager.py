# SPDX-License-Identifier: Apache-2.0
"""What systemd is told of a process, and the units that start it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.processes import service_manager
from penstock.processes.supervisor import CLOSE_S, KILL_AFTER_S, KILLED_S
from penstock.proxy_app import HUNG_S, OTHERS_S
from penstock.settings import load
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.needed import find_program

if TYPE_CHECKING:
    from collections.abc import Iterator

UNITS = Path("ops/systemd")
WATCHDOG_S = 0.4
# What a process has sent when it is frozen may be read afterwards.
AFTER_FREEZING_MAX = 5


class Manager:
    """A socket as systemd's."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(30.0)

    def told(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")

    def told_until_silent(self) -> list[list[str]]:
        """What comes until nothing comes for the socket's time."""
        found: list[list[str]] = []
        with suppress(TimeoutError):
            while True:
                found.append(self.told())
        return found

    def told_next(self, word: str) -> list[str]:
        """What comes with this word, whatever comes before it."""
        while True:
            lines = self.told()
            if word in lines:
                return lines


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    with manager.socket:
        yield manager


def environment(tmp_path: Path) -> dict[str, str]:
    # Without WATCHDOG_PID, which nobody knows before the process exists: it is optional.
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_broker_says_when_it_serves_that_it_works_and_when_it_stops(
    manager: Manager, tmp_path: Path, brokers: int
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerShutdownTimeoutMs=7000\n")
    broker = BrokerProcess(
        tmp_path / "data", ["--brokers", str(brokers), "--config", str(config)], environment=environment(tmp_path)
    ).start()
    try:
        assert manager.told() == ["READY=1", f"STATUS=serving {broker.url}, {broker.admin_url}"]
        manager.told_next(f"WATCHDOG_USEC={int(WATCHDOG_S * 1_000_000)}")
        manager.told_next("WATCHDOG=1")
        manager.told_next("WATCHDOG=1")
        broker.send_signal(signal.SIGTERM)
        _, _, extended = manager.told_next("STOPPING=1")
        assert int(extended.removeprefix("EXTEND_TIMEOUT_USEC=")) >= 7_000_000
    finally:
        assert broker.wait() == 0


def test_a_proxy_does_too(manager: Manager, tmp_path: Path) -> None:
    proxy = ProxyProcess(
        "pulsar://127.0.0.1:1",
        ["--upstream-admin", "http://127.0.0.1:1"],
        log_path=tmp_path / "proxy.log",
    )
    proxy.environment = environment(tmp_path)
    proxy.start()
    try:
        assert manager.told()[0] == "READY=1"
        manager.told_next("WATCHDOG=1")
        proxy.send_signal(signal.SIGTERM)
        manager.told_next("STOPPING=1")
    finally:
        assert proxy.wait() == 0


def test_a_frozen_broker_is_silent(manager: Manager, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=environment(tmp_path)).start()
    try:
        manager.told_next("WATCHDOG=1")
        broker.send_signal(signal.SIGSTOP)
        manager.socket.settimeout(4 * WATCHDOG_S)
        assert len(manager.told_until_silent()) <= AFTER_FREEZING_MAX
    finally:
        broker.send_signal(signal.SIGCONT)
        assert broker.stop() == 0


def test_an_abstract_socket_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"penstock-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with manager.socket:
        service_manager.tell_ready("pulsar://h:1", "-")
        assert manager.told() == ["READY=1", "STATUS=serving pulsar://h:1, -"]
    assert capsys.readouterr().out == "penstock ready pulsar://h:1 -\n"


def test_a_process_that_replaces_itself_may_read_its_log_for_as_long_as_at_a_start(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    service_manager.tell_starting_again()
    assert manager.told() == [f"WATCHDOG_USEC={service_manager.START_S * 1_000_000}", "WATCHDOG=1"]
    unit = (UNITS / "penstock.service").read_text()
    assert f"TimeoutStartSec={service_manager.START_S // 60}min" in unit


@pytest.mark.parametrize("where", ["", "/nobody/listens/here", "@nobody-listens-here", "vsock:2:1234"])
def test_a_manager_that_cannot_be_told_changes_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    service_manager.tell_ready("pulsar://h:1", "-")
    service_manager.tell_stopping(3.0)


def test_a_manager_that_does_not_read_holds_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with manager.socket:
        for _ in range(2_000):  # The kernel keeps some hundreds of datagrams.
            service_manager.tell_stopping(1.0)


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_who_is_watched(variables: dict[str, str], interval_s: float | None) -> None:
    assert service_manager.watchdog_s(variables) == interval_s


# -- the units --------------------------------------------------------------------------------------------------------


def systemd_analyze(*arguments: str) -> str:
    program = find_program("systemd-analyze", "systemd")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["penstock", "penstock-proxy"])
def test_systemd_accepts_the_unit_and_finds_it_safe(name: str, tmp_path: Path) -> None:
    text = (UNITS / f"{name}.service").read_text()
    installed = tmp_path / f"{name}.service"
    installed.write_text(text.replace("/opt/penstock/bin/penstock", "/bin/true"))
    assert systemd_analyze("verify", str(installed)) == ""
    # In tenths. What is left over: it has a network, and anybody may connect.
    systemd_analyze("security", "--offline=true", "--threshold=15", str(installed))


@pytest.mark.parametrize("name", ["penstock", "penstock-proxy"])
def test_the_unit_leaves_as_much_time_as_the_program_takes(name: str) -> None:
    text = (UNITS / f"{name}.service").read_text()
    seconds = int(re.findall(r"^TimeoutStopSec=(\d+)s$", text, re.MULTILINE)[0])
    defaults = load()
    if name == "penstock":
        needed_s = defaults.broker_shutdown_timeout_ms / 1000 + KILL_AFTER_S + KILLED_S + CLOSE_S
    else:
        needed_s = (defaults.unready_ms + defaults.drain_timeout_ms) / 1000 + OTHERS_S + HUNG_S
    assert needed_s < seconds
