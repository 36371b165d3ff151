# SPDX-License-Identifier: Apache-2.0
"""`penstock dev`, `penstock ready`, and what every start says and leaves: its line, its pid file, its directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.broker.stats.snapshot import SubscriptionSnapshot, TopicSnapshot
from penstock.cli.dev import changes
from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from pathlib import Path

SUBSCRIPTION = SubscriptionSnapshot(
    name="s", type="Shared", durable=True, consumers=1, backlog=3, unacked=0, blocked=False, messages_out=0,
    bytes_out=0, dropped=0, delayed=0, in_replay=0, expired=0, message_rate_out=0, byte_rate_out=0, redelivery_rate=0,
    ack_rate=0, expiry_rate=0, drop_rate=0, last_expired_ms=0, last_flow_ms=0, last_consumed_ms=0, last_acked_ms=0,
)  # fmt: skip
TOPIC = TopicSnapshot(
    name="t", namespace="a/b", producers=1, messages_in=3, bytes_in=0, entries_in=3, messages_out=0, bytes_out=0,
    message_rate_in=0, byte_rate_in=0, publish_limited=0, subscriptions=(SUBSCRIPTION,),
)  # fmt: skip


def test_what_has_changed_is_said_in_a_line_for_each_topic() -> None:
    assert list(changes({}, {"t": TOPIC})) == ["t  new, 1 producer, +3 in, subscription s (1 consumer, backlog 3)"]
    assert list(changes({"t": TOPIC}, {"t": TOPIC})) == []
    later = replace(TOPIC, messages_in=5, messages_out=2, producers=0, subscriptions=())
    assert list(changes({"t": TOPIC}, {"t": later})) == ["t  0 producers, +2 in, +2 out, subscription s gone"]
    assert list(changes({"t": TOPIC}, {})) == ["t  gone"]


def test_a_broker_to_try_things_with_says_what_happens_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "penstock", "dev"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:2] == ["penstock", "ready"]
            assert main(["produce", "hello", "-m", "world", "--url", ready[2]]) == Exit.OK
            told = next(line for line in process.stdout if line.startswith("persistent://public/default/hello"))
            assert "new" in told
            assert [one.name[:13] for one in tmp_path.iterdir()] == ["penstock-dev-"]
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()
        assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_serve_without_a_directory_takes_one_beside_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"penstock ready")
        process.terminate()
        assert process.wait(60) == 0
    assert (tmp_path / "penstock-data" / "FORMAT").is_file()


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_start_says_once_what_it_is_and_names_its_process_in_a_file(tmp_path: Path, brokers: int) -> None:
    file = tmp_path / "pid"
    file.write_text("999999999\n")  # of one that was killed
    arguments = ["--pid-file", str(file), "--brokers", str(brokers)]
    with BrokerProcess(tmp_path / "data", arguments) as broker:
        assert int(file.read_text()) == broker.pid
        os.kill(int(file.read_text()), signal.SIGHUP)
        assert main(["ready", broker.url, "--timeout", "30"]) == Exit.OK
        text = broker.log_path.read_text()
    said = re.findall(rf"penstock {re.escape(penstock.__version__)} on Python 3\.\d+\.\d+, process \d+: .*", text)
    assert len(said) == 1
    assert re.search(r"data in /.*/data, memory [\d,]+ MiB.*, open files [\d,]+, authentication off", said[0])
    assert not file.exists()


def test_a_proxy_does_the_same(tmp_path: Path, broker: BrokerProcess) -> None:
    file = tmp_path / "pid"
    arguments = ["--pid-file", str(file), "--upstream-admin", broker.admin_url]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "log") as proxy:
        assert int(file.read_text()) == proxy.pid
        assert "a proxy before pulsar://" in proxy.log_path.read_text()
        assert main(["ready", proxy.url]) == Exit.OK
        assert main(["ready", proxy.admin_url]) == Exit.OK
    assert not file.exists()


def test_a_pid_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data-dir", str(tmp_path / "d"), "--pid-file", str(tmp_path / "none/pid")]) == Exit.USAGE
    assert "none/pid cannot be written: No such file" in capsys.readouterr().err


def test_ready_says_what_worked(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ready", broker.url]) == Exit.OK
    assert "has passed a message on" in capsys.readouterr().out
    assert main(["ready", broker.admin_url]) == Exit.OK
    assert "/healthz says so" in capsys.readouterr().out
    assert main(["ready", broker.url, "--namespace", "public/none"]) != Exit.OK


def test_ready_waits_for_a_broker_that_is_starting(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        port, url = broker.port, broker.url
        broker.stop()
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(main(["ready", url, "--timeout", "60"])))
        thread.start()
        broker.start(port=port)
        thread.join()
    assert waiting == [Exit.OK]


def test_ready_gives_up_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ready", "pulsar://127.0.0.1:1", "--timeout", "0.2"]) == Exit.NO_ANSWER
    assert "not ready after 0.2 s" in capsys.readouterr().err
    assert main(["ready", "http://127.0.0.1:1", "--timeout", "0.2"]) == Exit.NO_ANSWER


def test_a_lookup_is_enough_where_no_message_may_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "conf"
    config.write_text("enableNonPersistentTopics=false\n")
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        assert main(["ready", broker.url, "--timeout", "5"]) == Exit.OK
    assert "answers lookups; no round trip, because" in capsys.readouterr().out
