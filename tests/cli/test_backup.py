# SPDX-License-Identifier: Apache-2.0
"""`penstock backup` and `restore`, against real brokers that are publishing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import httpx
import pulsar
import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Load:
    """Publishes numbered messages to some topics until it is stopped, and knows which were acknowledged."""

    def __init__(self, url: str, topics: list[str]) -> None:
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.acknowledged = dict.fromkeys(topics, 0)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(topic,)) for topic in topics]

    def _publish(self, topic: str) -> None:
        producer = self._client.create_producer(topic, block_if_queue_full=True, batching_enabled=True)

        def done(result: pulsar.Result, _id: object) -> None:
            if result == pulsar.Result.Ok:
                self.acknowledged[topic] += 1

        number = 0
        while not self._stopping.wait(0.01):  # 5,000 messages per second and topic.
            for _ in range(50):
                producer.send_async(b"%08d" % number + bytes(92), done)
                number += 1
        producer.flush()

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for one in self._threads:
            one.join()
        self._client.close()

    def wait_for(self, messages: int) -> dict[str, int]:
        """Wait until each topic has so many acknowledged, and return how many."""
        while min(self.acknowledged.values()) < messages:
            self._stopping.wait(0.01)
        return dict(self.acknowledged)


def backed_up(broker: BrokerProcess, to: Path, *more: str) -> int:
    return main(["backup", str(broker.data_dir), str(to), "--admin-url", broker.admin_url, *more])


@pytest.fixture(scope="module")
def one_backup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    """A running broker with some messages, and a backup of it; neither is changed."""
    path = tmp_path_factory.mktemp("backed-up")
    with BrokerProcess(path / "data") as broker:
        with Load(broker.url, ["some"]) as load:
            load.wait_for(1_000)
        assert backed_up(broker, path / "backup") == Exit.OK
        yield broker, path / "backup"


@pytest.fixture
def backup(one_backup: tuple[BrokerProcess, Path], tmp_path: Path) -> Path:
    """A copy of the backup, to be damaged."""
    shutil.copytree(one_backup[1], tmp_path / "backup")
    return tmp_path / "backup"


@pytest.mark.parametrize("brokers", [1, 2])
def test_nothing_acknowledged_before_the_backup_is_lost(brokers: int, tmp_path: Path) -> None:
    count = ("--brokers", str(brokers)) if brokers > 1 else ()
    topics = [f"persistent://public/default/of-{number}" for number in range(4)]
    with BrokerProcess(tmp_path / "data", count) as broker, Load(broker.url, topics) as load:
        before = load.wait_for(5_000)
        assert backed_up(broker, tmp_path / "backup") == Exit.OK
        during = dict(load.acknowledged)
        load.wait_for(max(during.values()) + 1)  # It goes on.
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "restored")]) == Exit.OK
    with BrokerProcess(tmp_path / "restored", count) as broker:
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for topic in topics:
            reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
            found = []
            while reader.has_message_available():
                found.append(int(reader.read_next(timeout_millis=60_000).data()[:8]))
            assert found == list(range(len(found)))
            assert len(found) >= before[topic]
        client.close()


def test_no_cursor_points_behind_the_end_of_the_log(own_broker: BrokerProcess, tmp_path: Path) -> None:
    """It would skip what is published after the restore."""
    topic = "persistent://public/default/moment"
    client = pulsar.Client(own_broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s")
    stopping = threading.Event()

    def acknowledge() -> None:
        while not stopping.is_set():
            try:
                consumer.acknowledge_cumulative(consumer.receive(timeout_millis=100))
            except pulsar.Timeout:
                continue

    thread = threading.Thread(target=acknowledge)
    thread.start()
    try:
        with Load(own_broker.url, [topic]) as load:
            load.wait_for(2_000)
            assert backed_up(own_broker, tmp_path / "backup") == Exit.OK
    finally:
        stopping.set()
        thread.join()
        client.close()
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "restored")]) == Exit.OK
    with BrokerProcess(tmp_path / "restored") as broker:
        path = f"{broker.admin_url}/admin/v2/persistent/public/default/moment/internalStats"
        seen = httpx.get(path, timeout=60).json()
        mark_delete = int(seen["cursors"]["s"]["markDeletePosition"].split(":")[1])
        assert mark_delete <= int(seen["lastConfirmedEntry"].split(":")[1])
        assert mark_delete > 0


def test_an_earlier_backup_lends_what_has_not_changed(one_backup: tuple[BrokerProcess, Path], tmp_path: Path) -> None:
    broker, first = one_backup
    assert backed_up(broker, tmp_path / "second", "--previous", str(first)) == Exit.OK
    (segment,) = (first / "broker-0" / "log").iterdir()
    assert segment.samefile(tmp_path / "second" / "broker-0" / "log" / segment.name)


def test_an_earlier_backup_lends_nothing_that_has_changed(own_broker: BrokerProcess, tmp_path: Path) -> None:
    for name, previous in (("first", ()), ("second", ("--previous", str(tmp_path / "first")))):
        with Load(own_broker.url, ["some"]) as load:
            load.wait_for(10)
        assert backed_up(own_broker, tmp_path / name, *previous) == Exit.OK
    assert main(["restore", str(tmp_path / "second"), str(tmp_path / "restored")]) == Exit.OK
    (segment,) = (tmp_path / "first" / "broker-0" / "log").iterdir()
    assert not segment.samefile(tmp_path / "second" / "broker-0" / "log" / segment.name)


def test_a_backup_that_was_killed_is_none(one_backup: tuple[BrokerProcess, Path], tmp_path: Path) -> None:
    """Wherever it is killed: the manifest is written last."""
    broker, _ = one_backup
    killed = (
        "import os, signal, penstock.storage.backup as backup\n"
        "backup._write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from penstock.cli.main import main\n"
        "main()\n"
    )
    to = tmp_path / "backup"
    command = ["-c", killed, "backup", str(broker.data_dir), str(to), "--admin-url", broker.admin_url]
    assert subprocess.run([sys.executable, *command], check=False).returncode == -signal.SIGKILL
    assert (to / "meta.sqlite").exists()
    assert main(["restore", str(to), str(tmp_path / "restored")]) == Exit.FAILED
    assert not (tmp_path / "restored").exists()
    with pytest.raises(RuntimeError):
        BrokerProcess(to).start()  # No broker starts on it either.


@pytest.mark.parametrize("name", ["meta.sqlite", "broker-0/topics.sqlite", "broker-0/log/0000000000000001.seg"])
@pytest.mark.parametrize("fault", ["missing", "shorter", "changed"])
def test_a_damaged_backup_is_refused_by_the_name_of_the_file(
    backup: Path, tmp_path: Path, name: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = backup / name
    size = path.stat().st_size
    if fault == "missing":
        path.unlink()
    elif fault == "shorter":
        os.truncate(path, size - 1)
    else:
        with path.open("r+b") as file:
            file.seek(size // 2)
            (byte,) = file.read(1)
            file.seek(size // 2)
            file.write(bytes([byte ^ 1]))
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == Exit.FAILED
    assert str(path) in capsys.readouterr().err
    assert not any((tmp_path / "restored").glob("*"))


def test_a_changed_manifest_is_refused(backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = backup / "manifest.json"
    stored: dict[str, Any] = json.loads(manifest.read_text())
    stored["files"].pop("broker-0/topics.sqlite")
    manifest.write_text(json.dumps(stored))
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == Exit.FAILED
    assert "manifest.json is damaged" in capsys.readouterr().err


def test_directories_that_are_not_empty_are_refused(
    one_backup: tuple[BrokerProcess, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, backup = one_backup
    assert main(["restore", str(backup), str(broker.data_dir)]) == Exit.FAILED
    assert "is not empty" in capsys.readouterr().err
    assert backed_up(broker, backup) == Exit.FAILED
    assert "is not empty" in capsys.readouterr().err


def test_the_directory_of_another_broker_is_refused(
    one_backup: tuple[BrokerProcess, Path], broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, to = str(one_backup[0].data_dir), tmp_path / "backup"
    assert main(["backup", data, str(to), "--admin-url", broker.admin_url]) == Exit.FAILED
    assert "is not the data directory of the broker at this admin port" in capsys.readouterr().err
    assert main(["backup", str(tmp_path), str(to), "--admin-url", broker.admin_url]) == Exit.USAGE
