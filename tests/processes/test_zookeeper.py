# SPDX-License-Identifier: Apache-2.0
"""Broker processes that share one quota, and are registered in a real ZooKeeper."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from kazoo.client import KazooClient

from benchmarks.quotas import produce, set_up
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.processes.cluster import Cluster, metric, until
from tests.processes.test_quota_sharing import QUOTA, are_equal_parts, shares
from tests.zookeeper_server import TIMEOUT_MS, running_zookeeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.xdist_group("zookeeper")


SERVE = (sys.executable, "-m", "penstock", "serve", "--port", "0", "--admin-port", "0")


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    directory = tmp_path / "zookeeper"
    directory.mkdir()
    with running_zookeeper(directory) as server:
        yield server


def registered(cluster: Cluster) -> list[float | None]:
    return [metric(cluster, number, "penstock_membership_registered") for number in range(cluster.brokers)]


def health(cluster: Cluster, number: int) -> Any:  # noqa: ANN401
    return cluster.http(number, "GET", "/healthz")[1]


def is_said_of_both(cluster: Cluster, what: str) -> bool:
    """Whether a log says something of broker 0 and of broker 1, however often."""
    log = cluster.log_path.read_text()
    return all(what.format(number) in log for number in (0, 1))


def joined(log: str) -> set[str]:
    """Those that have ever become members, by a log."""
    lines = [line.partition("members of quotas since now: ")[2] for line in log.splitlines()]
    return {name for line in lines if line for name in line.split(", ")}


def test_registered_brokers_share_a_quota_through_outages_of_zookeeper_and_of_a_broker(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(f"membershipUrl={zookeeper.url}\nmembershipSessionTimeoutMillis={TIMEOUT_MS}\n")
    with Cluster(tmp_path / "data", 2, ["--config", str(settings)]) as cluster:
        until(lambda: registered(cluster) == [1, 1])
        client = KazooClient(f"127.0.0.1:{zookeeper.port}")
        client.start()
        record = json.loads(client.get("/test/brokers/broker-1")[0])
        assert record["pulsarServiceUrl"] == cluster.url_of(1)
        assert record["pid"] == cluster.pids()[1]
        client.stop()
        client.close()

        topics = set_up(cluster.admin_port, QUOTA)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
        producer = pulsar.Client(cluster.url, logger=logger)
        ended = threading.Event()
        threads = [threading.Thread(target=produce, args=(producer, topic, ended), daemon=True) for topic in topics]
        for thread in threads:
            thread.start()
        until(lambda: are_equal_parts(shares(cluster)))
        assert metric(cluster, 0, "penstock_quota_members") == 2

        zookeeper.stop()
        until(lambda: registered(cluster) == [0, 0])
        assert "broker-0 is not registered" in str(health(cluster, 0))
        end = time.monotonic() + 2 * TIMEOUT_MS / 1_000
        while time.monotonic() < end:
            # Whoever is no member has 1 % at most, so this would never come. It may take a moment: how much of the
            # quota is asked for, and where, is up to the machine, which may starve a client.
            until(lambda: sum(one or 0 for one in shares(cluster)) > 0.8 * QUOTA)
            assert [metric(cluster, number, "penstock_quota_members") for number in (0, 1)] == [2, 2]
        zookeeper.start()
        until(lambda: registered(cluster) == [1, 1])
        assert "not registered" not in str(health(cluster, 0))

        cluster.kill_broker(1)  # Its session lives on for a while; the process that follows replaces its node.
        until(lambda: len(cluster.pids()) == 2 and registered(cluster) == [1, 1])
        until(lambda: are_equal_parts(shares(cluster)))
        ended.set()
        producer.close()
    assert "the name is taken" not in cluster.log_path.read_text()


def test_a_second_cluster_at_the_same_path_is_kept_out_and_says_by_whom(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(f"membershipUrl={zookeeper.url}\nmembershipSessionTimeoutMillis={TIMEOUT_MS}\n")
    arguments = ["--config", str(settings)]
    with Cluster(tmp_path / "first", 2, arguments) as first:
        until(lambda: is_said_of_both(first, "registered as broker-{}"))
        with Cluster(tmp_path / "second", 2, arguments) as second:
            until(lambda: is_said_of_both(second, "the name is taken by broker-{} "))
            text = second.log_path.read_text()
            assert f"the name is taken by broker-1 (process {first.pids()[1]} on " in text
            assert f"data directory {tmp_path / 'first'} on " in text
        assert "the name is taken" not in first.log_path.read_text()


def test_proxies_are_registered_by_their_addresses_and_a_killed_one_is_back_at_once(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    settings = tmp_path / "proxy.conf"
    settings.write_text(f"membershipUrl={zookeeper.url}\nmembershipSessionTimeoutMillis=5000\n")
    arguments = ["--config", str(settings)]
    with (
        BrokerProcess(tmp_path / "data") as broker,
        ProxyProcess(broker.url, arguments, log_path=tmp_path / "one.log") as one,
        ProxyProcess(broker.url, arguments, log_path=tmp_path / "two.log") as two,
    ):
        both = {f"127.0.0.1:{proxy.port}" for proxy in (one, two)}
        until(lambda: joined(one.log_path.read_text()) == joined(two.log_path.read_text()) == both)
        one.kill()
        one.start(port=one.port)
        until(lambda: one.log_path.read_text().count(f"registered as 127.0.0.1:{one.port} at ") >= 2)
        assert "the name is taken" not in one.log_path.read_text()


def test_brokers_without_kazoo_say_how_to_install_it(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['kazoo'] = None\n")
    ended = subprocess.run(
        [*SERVE, "--data-dir", tmp_path / "data", "--brokers", "2"],
        env={"PYTHONPATH": f"{hidden}:{':'.join(sys.path)}", "PENSTOCK_MEMBERSHIP_URL": "zk:127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert (
        "membershipUrl needs the package kazoo, which is not installed: pip install 'penstock[zookeeper]'"
        in ended.stderr
    )


def test_a_url_that_is_none_of_zookeeper_is_refused_with_the_form_that_is_wanted(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*SERVE, "--data-dir", tmp_path / "data"],
        env={"PYTHONPATH": ":".join(sys.path), "PENSTOCK_MEMBERSHIP_URL": "etcd:http://127.0.0.1:2379"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "want zk:HOST:PORT,HOST:PORT/PATH" in ended.stderr


def test_a_single_broker_says_that_it_registers_nowhere(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("membershipUrl=zk:127.0.0.1:1\n")
    with BrokerProcess(tmp_path / "data", ["--config", str(settings)]) as broker:
        pass
    (warning,) = [line for line in broker.log_path.read_text().splitlines() if "WARNING" in line]
    assert "membershipUrl=zk:127.0.0.1:1/penstock has no effect: a single broker shares its quotas" in warning
