# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: each seeded fault is found by its name, and none in what real brokers have written."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import shutil
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import apsw
import pulsar
import pytest

from penstock.cli import doctor
from penstock.cli.doctor_settings import Disk, Machine
from penstock.cli.exits import Exit
from penstock.cli.findings import KINDS, Severity
from penstock.cli.main import main
from penstock.core.units import GIB, MIB
from penstock.settings.memory import MachineFacts
from penstock.testing.certificates import Certificate
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPICS = [f"persistent://public/default/of-{number}" for number in range(4)]


ROOMY = Disk(100 * GIB, 50 * GIB, read_only=False)


@dataclass
class FakeMachine(Machine):
    """A machine in order, or with the fault that a test gives it."""

    files: int = 1_024
    memory: MachineFacts = field(default_factory=lambda: MachineFacts(8 * GIB, None, "here"))
    space: Disk = ROOMY
    ahead_ms: int = 0
    unresolved: frozenset[str] = frozenset()

    def files_max(self) -> int:
        return self.files

    def facts(self) -> MachineFacts:
        return self.memory

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def disk(self, path: Path) -> Disk:
        return self.space

    def resolves(self, host: str) -> bool:
        return host not in self.unresolved


def publish(broker: BrokerProcess, messages: int = 50) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic in TOPICS:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(messages):
            producer.send_async(b"%08d" % number + bytes(992), lambda *_: None)
        producer.flush()
        consumer.acknowledge_cumulative(consumer.receive(timeout_millis=60_000))
    client.close()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with sealed segments in its index, of a broker that was stopped."""
    broker = BrokerProcess(tmp_path_factory.mktemp("stopped") / "data")
    for _ in range(2):
        with broker:
            publish(broker)
    return broker.data_dir


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two brokers that were stopped."""
    broker = BrokerProcess(tmp_path_factory.mktemp("two") / "data", ["--brokers", "2"])
    with broker:
        publish(broker)
    return broker.data_dir


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(stopped, tmp_path / "data")


@pytest.fixture
def two(of_two: Path, tmp_path: Path) -> Path:
    return shutil.copytree(of_two, tmp_path / "two")


def found(data_dir: Path | None, config: Path | None = None, machine: Machine | None = None) -> set[str]:
    return {one.id for one in doctor.local(machine or FakeMachine(), data_dir, config)}


# -- clean directories -------------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, tuple[int, int]]:
    return {str(one): (one.stat().st_mtime_ns, one.stat().st_size) for one in sorted(path.rglob("*"))}


def released(data: Path) -> None:
    """Wait for brokers to notice that their supervisor was killed."""
    for path in data.glob("**/lock"):
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("messages", [0, 50])
@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_found_in_what_a_broker_has_left(brokers: int, messages: int, killed: bool, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", ["--brokers", str(brokers)] if brokers > 1 else [])
    with broker:
        if messages:
            publish(broker, messages)
        if killed:
            broker.kill()
            released(broker.data_dir)
    before = contents(broker.data_dir)
    assert found(broker.data_dir) == set()
    assert contents(broker.data_dir) == before


def test_nothing_is_found_after_restarts_and_nothing_is_written(stopped: Path, of_two: Path) -> None:
    for path in (stopped, of_two):
        before = contents(path)
        assert found(path) == set()
        assert contents(path) == before


def test_a_running_broker_is_left_alone_and_said_to_run(broker: BrokerProcess) -> None:
    assert found(broker.data_dir) == {"directory-in-use"}


# -- faults of directories ---------------------------------------------------------------------------------------------


def segment(data: Path, broker: int = 0) -> Path:
    """The oldest segment with messages."""
    return min((data / f"broker-{broker}" / "log").glob("*.seg"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def flip_a_message(data: Path) -> None:
    path = segment(data)
    flip(path, path.read_bytes().index(b"00000007") + 100)


def flip_the_catalog(data: Path) -> None:
    path = data / "meta.sqlite"
    at = path.read_bytes().index(b"persistent://public/default/of-2")
    flip(path, at + 30)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def newer_schema(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()


def older_log(data: Path) -> None:
    """A log that was copied before the catalog."""
    for part in ("log", "index"):
        shutil.rmtree(data / "broker-0" / part)
        (data / "broker-0" / part).mkdir()


def never_given_out(data: Path) -> None:
    """The catalog of a broker without topics beside the log of another one."""
    with BrokerProcess(data.with_name("other")) as other:
        other.stop()
    for name in ("meta.sqlite", "broker-0/topics.sqlite"):
        shutil.copy(data.with_name("other") / name, data / name)


def stored_setting(data: Path) -> None:
    from penstock.storage.catalog import Catalog
    from penstock.storage.directory import DataDirectory

    catalog = Catalog.open(DataDirectory(data), lambda call: call())
    catalog.set_configuration("maxProducersPerTopic", "many", lambda _error: None)
    catalog.close()


def open_to_all(data: Path) -> None:
    for path in (data, data / "meta.sqlite"):
        path.chmod(0o755)


def copy_a_broker(data: Path) -> None:
    shutil.rmtree(data / "broker-1")
    shutil.copytree(data / "broker-0", data / "broker-1")


def swap(data: Path) -> None:
    for one, other in (("broker-0", "broker-9"), ("broker-1", "broker-0"), ("broker-9", "broker-1")):
        (data / one).rename(data / other)


FAULTS_OF_ONE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a flipped byte in a sealed segment": ("log-damaged", flip_a_message),
    "a truncated segment": ("segment-short", lambda data: os.truncate(segment(data), 8_192)),
    "a missing segment": ("segment-missing", lambda data: segment(data).unlink()),
    "a missing index": ("index-missing", lambda data: shutil.rmtree(data / "broker-0" / "index")),
    "a damaged index": ("index-damaged", lambda data: overwrite(data / "broker-0" / "index" / "index.sqlite")),
    "a leftover temporary": ("temporary-left", lambda data: (data / "broker-0" / "topics.sqlite.draft").touch()),
    "a foreign file": ("file-foreign", lambda data: segment(data).with_suffix(".seg.old").touch()),
    "a damaged row of the catalog": ("catalog-damaged", flip_the_catalog),
    "a damaged file of cursors": ("catalog-damaged", lambda data: overwrite(data / "broker-0" / "topics.sqlite")),
    "a missing catalog": ("catalog-missing", lambda data: (data / "meta.sqlite").unlink()),
    "missing cursors": ("catalog-missing", lambda data: (data / "broker-0" / "topics.sqlite").unlink()),
    "a newer format": ("format-newer", lambda data: (data / "FORMAT").write_text("penstock 3\n")),
    "a damaged format": ("format-damaged", lambda data: (data / "FORMAT").write_text("\0\0\0\0\n")),
    "a newer catalog": ("catalog-newer", lambda data: newer_schema(data / "meta.sqlite")),
    "a log that is older than the catalog": ("cursor-behind-log", older_log),
    "a catalog of another directory": ("ledger-unknown", never_given_out),
    "a stored setting that cannot be used": ("stored-setting", stored_setting),
    "messages that all can read": ("directory-open", open_to_all),
}

FAULTS_OF_TWO: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a broker whose directory is gone": ("broker-missing", lambda data: shutil.rmtree(data / "broker-1")),
    "a copied broker": ("segment-twice", copy_a_broker),
    "swapped brokers": ("ledger-elsewhere", swap),
}


@pytest.mark.parametrize("fault", FAULTS_OF_ONE)
def test_a_fault_of_a_directory_is_found(fault: str, data: Path) -> None:
    kind, damage = FAULTS_OF_ONE[fault]
    damage(data)
    assert kind in found(data)


@pytest.mark.parametrize("fault", FAULTS_OF_TWO)
def test_a_fault_of_a_directory_of_two_brokers_is_found(fault: str, two: Path) -> None:
    kind, damage = FAULTS_OF_TWO[fault]
    damage(two)
    assert kind in found(two)


def test_a_lock_that_is_held_is_said_with_its_holder(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (data / "broker-0" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(b"4711")
        lock.truncate()
        lock.flush()
        assert main(["doctor", str(data)]) == Exit.OK
    assert "process 4711 uses" in capsys.readouterr().out


# -- faults of machines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "machine"),
    [
        ("disk-full", FakeMachine(space=Disk(100 * GIB, 10 * MIB, read_only=False))),
        ("disk-nearly-full", FakeMachine(space=Disk(100 * GIB, 3 * GIB, read_only=False))),
        ("disk-read-only", FakeMachine(space=Disk(100 * GIB, 50 * GIB, read_only=True))),
        ("clock-behind", FakeMachine(ahead_ms=-5 * 3_600_000)),
        ("files-limit", FakeMachine(files=64)),
    ],
)
def test_a_fault_of_a_machine_is_found(kind: str, machine: FakeMachine, stopped: Path) -> None:
    assert found(stopped, machine=machine) == {kind}


# -- faults of settings ------------------------------------------------------------------------------------------------


def written(tmp_path: Path, *settings: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{one}\n" for one in ("webServicePort=0", "brokerServicePort=0", *settings)))
    return path


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("setting-unknown", ["clusterNam=eu"]),
        ("setting-unknown", ["authenticationEnabeld=true"]),
        ("setting-invalid", ["maxProducersPerTopic=many"]),
        ("settings-fight", ["authenticationEnabled=true"]),
        ("settings-fight", ["tlsEnabled=true"]),
        ("settings-doubtful", ["bindAddress=0.0.0.0"]),
        ("settings-ignored", ["zookeeperServers=zk"]),
        ("memory-above-machine", ["memoryLimitMB=100000"]),
        ("address-unresolved", ["advertisedAddress=nowhere"]),
        ("retention-above-disk", ["defaultRetentionSizeInMB=1000000"]),
        ("secret-unreadable", ["tokenSecretKey=file:///not/there"]),
    ],
)
def test_a_fault_of_settings_is_found(kind: str, settings: list[str], stopped: Path, tmp_path: Path) -> None:
    machine = FakeMachine(unresolved=frozenset({"nowhere"}))
    assert found(stopped, written(tmp_path, *settings), machine) == {kind}


def test_a_file_of_settings_that_is_missing_is_found(tmp_path: Path) -> None:
    assert found(None, tmp_path / "not-there.conf") == {"settings-unreadable"}


def test_memory_is_limited_by_the_control_group(tmp_path: Path) -> None:
    machine = FakeMachine(memory=MachineFacts(8 * GIB, 512 * MIB, "here"))
    assert found(None, written(tmp_path, "memoryLimitMB=1024"), machine) == {"memory-above-machine"}


def test_nothing_is_found_in_sound_settings(stopped: Path, tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    made.key.chmod(0o600)
    tls = (f"tlsCertificateFilePath={made.certificate}", f"tlsKeyFilePath={made.key}", "brokerServicePortTls=0")
    assert found(stopped, written(tmp_path, *tls, "clusterName=eu")) == set()


@pytest.mark.parametrize(("days_left", "kind"), [(-1, "certificate-expired"), (3, "certificate-expires"), (300, None)])
def test_certificates_are_judged_by_their_end(days_left: int, kind: str | None, tmp_path: Path) -> None:
    made = Certificate.make(tmp_path, dt.datetime.now(dt.UTC) + dt.timedelta(days=days_left))
    made.key.chmod(0o600)
    config = written(tmp_path, f"tlsCertificateFilePath={made.certificate}", f"tlsKeyFilePath={made.key}")
    assert found(None, config) == ({kind} if kind else set())


def test_a_key_of_another_certificate_is_found(tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    other = replace(made.signed("other"), certificate=made.certificate)
    other.key.chmod(0o600)
    config = written(tmp_path, f"tlsCertificateFilePath={other.certificate}", f"tlsKeyFilePath={other.key}")
    assert found(None, config) == {"certificate-unusable"}


def test_a_secret_that_all_can_read_is_found(tmp_path: Path) -> None:
    secret = tmp_path / "secret.key"
    secret.write_bytes(bytes(64))
    secret.chmod(0o644)
    assert found(None, written(tmp_path, f"tokenSecretKey=file://{secret}")) == {"secret-open"}


def test_a_port_that_is_taken_is_found(stopped: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = written(tmp_path, f"brokerServicePort={taken.getsockname()[1]}")
        assert found(stopped, config) == {"port-taken"}


# -- the command -------------------------------------------------------------------------------------------------------


def test_every_finding_says_what_why_and_what_to_do(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment(data).unlink()
    assert main(["doctor", str(data), "-o", "json"]) == Exit.BAD_NEWS
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert {"segment-missing"} <= {row["id"] for row in rows}
    assert all(row["severity"] in set(Severity) and row["what"] and row["why"] and row["do"] for row in rows)
    assert main(["doctor", str(data)]) == Exit.BAD_NEWS
    assert "FAULT segment-missing: " in capsys.readouterr().out


def test_a_directory_of_others_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == Exit.USAGE
    assert "is not a data directory" in capsys.readouterr().err


def test_a_running_broker_is_asked(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", broker.admin_url, "-o", "json"]) in {Exit.OK, Exit.BAD_NEWS}
    assert {row["id"] for row in json.loads(capsys.readouterr().out)} <= {"disk-nearly-full"}  # This machine's own.
    assert main(["doctor", "http://127.0.0.1:1"]) == Exit.NO_ANSWER


def test_a_clock_that_differs_from_the_brokers_is_found(broker: BrokerProcess) -> None:
    from penstock.cli.contexts import Target

    of_broker = Target(admin_url=broker.admin_url)
    assert "clock-differs" in {one.id for one in doctor.remote(of_broker, FakeMachine(ahead_ms=3_600_000))}


def test_a_broker_that_lost_a_segment_says_so(own_broker: BrokerProcess) -> None:
    from penstock.cli.contexts import Target

    publish(own_broker)
    own_broker.kill()
    own_broker.start()  # It seals what it finds.
    own_broker.stop()
    segment(own_broker.data_dir).unlink()
    own_broker.start()
    of_broker = Target(admin_url=own_broker.admin_url)
    assert "cluster-degraded" in {one.id for one in doctor.remote(of_broker, FakeMachine())}


def test_every_kind_of_finding_is_yielded_somewhere() -> None:
    from pathlib import Path

    import penstock.cli

    text = "".join(one.read_text() for one in Path(penstock.cli.__file__).parent.glob("doctor*.py"))
    assert [kind for kind in KINDS if f'"{kind}"' not in text] == []
