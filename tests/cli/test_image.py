# SPDX-License-Identifier: Apache-2.0
"""The commands of an image that is used in place of Apache Pulsar's: those that other programs call, as they call them.

Each program starts a command, and waits for lines of its output and for answers over HTTP. The image itself needs a
container engine; what is run here is what its steps install.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess

STEPS = Path("ops/image/install.sh").resolve()
WITHIN_S = 60.0
# Any free ports; in a container they are 6650 and 8080.
FREE_PORTS = {"PULSAR_PREFIX_brokerServicePort": "0", "PULSAR_PREFIX_webServicePort": "0"}
TESTCONTAINERS = (
    "{home}/bin/apply-config-from-env.py {home}/conf/standalone.conf"
    " && bin/pulsar standalone --no-functions-worker -nss"
)
QUARKUS = (
    "export PULSAR_PREFIX_advertisedListeners=internal:pulsar://localhost:6650,external:pulsar://localhost:32768\n"
    "bin/apply-config-from-env.py conf/standalone.conf && bin/pulsar standalone -nfw -nss"
)
COMPOSE = (
    "bin/pulsar initialize-cluster-metadata --cluster a --zookeeper zk:2181"
    " && bin/apply-config-from-env.py conf/broker.conf && exec bin/pulsar broker"
)
# What a caller runs, and for which lines it waits. {home} is /pulsar in the image.
CALLERS = {
    "testcontainers for Java": (TESTCONTAINERS, []),
    "testcontainers for Go": (TESTCONTAINERS, ["Successfully updated the policies on namespace public/default"]),
    "dev services of Quarkus": (QUARKUS, ["Created namespace public/default"]),
    "testcontainers for Rust and Node": ("bin/pulsar standalone", ["messaging service is ready"]),
    "compose files": (COMPOSE, ["messaging service is ready"]),
}


class Started(NamedTuple):
    """A command that runs, and what it has printed."""

    process: subprocess.Popen[str]
    lines: list[str]

    def url(self) -> str:
        return self._ready()[2]

    def admin_url(self) -> str:
        return self._ready()[3]

    def _ready(self) -> list[str]:
        words = next(line.split() for line in self.lines if line.startswith("penstock ready "))
        return [word.replace(os.uname().nodename, "127.0.0.1") for word in words]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "pulsar"
    done = subprocess.run(
        ["sh", str(STEPS), str(home)], env=environment({}), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("penstock ")
    return home


def environment(more: dict[str, str]) -> dict[str, str]:
    """As in the image, where `python3` is the interpreter that has penstock."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}


@contextmanager
def started(home: Path, command: str, wanted: list[str], more: dict[str, str]) -> Iterator[Started]:
    """Run a command in the image's directory until all of these lines came."""
    process = subprocess.Popen(
        ["/bin/bash", "-c", command.format(home=home)],
        cwd=home,
        env=environment(more),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield Started(process, read_until(process, ["penstock ready ", *wanted]))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(WITHIN_S)
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[str], wanted: list[str]) -> list[str]:
    lines: list[str] = []
    arrived: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: deque(map(arrived.put, process.stdout or ()), maxlen=0), daemon=True).start()
    deadline = time.monotonic() + WITHIN_S
    while not all(any(each in line for line in lines) for each in wanted):
        lines.append(arrived.get(timeout=deadline - time.monotonic()))
    return lines


@pytest.mark.parametrize("caller", CALLERS)
def test_what_starts_apache_pulsar_starts_penstock(home: Path, tmp_path: Path, caller: str) -> None:
    command, wanted = CALLERS[caller]
    with started(home, command, wanted, {**FREE_PORTS, "PULSAR_DATA_DIR": str(tmp_path)}) as running:
        # Compared as text by those who wait for it.
        assert httpx.get(f"{running.admin_url()}/admin/v2/clusters", timeout=WITHIN_S).text == '["standalone"]'
        assert httpx.get(f"{running.admin_url()}/admin/v2/brokers/health", timeout=WITHIN_S).text == "ok"
        # What Testcontainers waits for `withTransactions()`.
        coordinators = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
        found = httpx.get(f"{running.admin_url()}{coordinators}", timeout=WITHIN_S)
        assert found.json()["partitions"] == 1, found.text


def test_settings_of_the_environment_reach_the_broker(home: Path, tmp_path: Path) -> None:
    more = {**FREE_PORTS, "PULSAR_DATA_DIR": str(tmp_path), "PULSAR_PREFIX_clusterName": "mine"}
    with started(home, *CALLERS["testcontainers for Java"], more) as running:
        assert httpx.get(f"{running.admin_url()}/admin/v2/clusters", timeout=WITHIN_S).text == '["mine"]'


def test_messages_survive_another_start(home: Path, tmp_path: Path) -> None:
    more = {**FREE_PORTS, "PULSAR_DATA_DIR": str(tmp_path)}
    with started(home, "exec bin/pulsar standalone", [], more) as running:
        client = pulsar.Client(running.url())
        client.create_producer("kept").send(b"hello")
        client.close()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WITHIN_S) == 0
        # Only its child, which passes lines on, may be left; it ends with the broker.
    with started(home, "exec bin/pulsar standalone", [], more) as running:
        client = pulsar.Client(running.url())
        reader = client.create_reader("kept", pulsar.MessageId.earliest)
        assert reader.read_next(20_000).data() == b"hello"
        client.close()


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("bookie", 1, "there is no bookie in penstock"),
        ("frobnicate", 2, "unknown command 'frobnicate'"),
        ("standalone --frobnicate", 2, "unrecognized arguments: --frobnicate"),
        ("initialize-cluster-metadata --cluster a", 0, "nothing to do"),
        ("help", 0, "bin/pulsar standalone"),
    ],
)
def test_other_commands_say_what_is_so(home: Path, command: str, status: int, said: str) -> None:
    done = subprocess.run(
        [str(home / "bin/pulsar"), *command.split()], env=environment({}), capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def admin(home: Path, admin_url: str, command: str) -> subprocess.CompletedProcess[str]:
    words = [str(home / "bin/pulsar-admin"), "--admin-url", f"{admin_url}/", *command.split()]
    return subprocess.run(words, env=environment({}), capture_output=True, text=True, check=False)


def test_what_scripts_ask_of_pulsar_admin_is_done(home: Path, broker: BrokerProcess) -> None:
    def done(command: str) -> str:
        found = admin(home, broker.admin_url, command)
        assert found.returncode == 0, found.stderr
        return found.stdout

    assert done("brokers healthcheck -tv V2") == "ok\n"
    done("tenants create mine -r owner -c standalone")
    assert "mine" in done("tenants list").split()
    done("namespaces create mine/ns -c standalone")
    done("namespaces set-retention mine/ns --time 3h --size 1G")
    assert json.loads(done("namespaces get-retention mine/ns")) == {
        "retentionTimeInMinutes": 180,
        "retentionSizeInMB": 1024,
    }
    done("namespaces set-retention mine/ns -t -1 -s -1")
    assert json.loads(done("namespaces get-retention mine/ns"))["retentionSizeInMB"] == -1
    done("namespaces grant-permission mine/ns --role ann --actions produce,consume")
    done("topics create-partitioned-topic mine/ns/t -p 3")
    done("topics create-subscription mine/ns/t --subscription s")
    assert done("topics subscriptions mine/ns/t") == "s\n"
    assert json.loads(done("topics get-partitioned-topic-metadata mine/ns/t"))["partitions"] == 3
    done("topics delete-partitioned-topic mine/ns/t --force")
    done("namespaces delete mine/ns")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("functions list", "this image has no 'functions list'; use `penstock --help`, or Apache Pulsar's own"),
        ("namespaces set-retention a/b -t 3y -s 1", "'3y' is no number with one of s, m, h, d, w"),
        ("topics create-partitioned-topic a/b/t", "the following arguments are required: -p/--partitions"),
        ("namespaces create a/b --bundles 4", "unrecognized arguments: --bundles 4"),
    ],
)
def test_other_commands_of_pulsar_admin_are_refused_by_name(home: Path, command: str, said: str) -> None:
    found = admin(home, "http://127.0.0.1:1", command)
    assert found.returncode == 2
    assert said in found.stderr


def test_the_environment_is_written_into_files(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# The port.\n#brokerServicePort=6650\n#clusterName=standalone\nclusterName=old\nother=1\n")
    done = subprocess.run(
        [str(home / "bin/apply-config-from-env.py"), str(file)],
        env={
            "PATH": environment({})["PATH"],
            "PULSAR_PREFIX_tokenSecretKey": "data:;base64,c2VjcmV0",
            "clusterName": "new",
            "brokerServicePort": "7000",
            "elsewhere": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert file.read_text() == (
        "# The port.\nbrokerServicePort=7000\n#clusterName=standalone\nclusterName=new\nother=1\n"
        "tokenSecretKey=data:;base64,c2VjcmV0\n"
    )
    assert done.stdout == f"{file}: brokerServicePort, clusterName, tokenSecretKey set from the environment\n"
