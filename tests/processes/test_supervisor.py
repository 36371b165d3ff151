# SPDX-License-Identifier: Apache-2.0
"""Several brokers under a supervisor: how they start, crash, restart and stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.testing.certificates import Certificate
from penstock.testing.process import BrokerDidNotStart, BrokerProcess
from tests.processes.cluster import Cluster, free_ports, is_running, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = "persistent://public/default/t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "data", 2) as processes:
        yield processes


def log_of(cluster: Cluster) -> str:
    return cluster.log_path.read_text()


def test_one_line_says_that_all_are_ready_and_a_stop_ends_all_with_status_zero(cluster: Cluster) -> None:
    assert cluster.pids().keys() == {0, 1}
    assert cluster.http(1, "GET", "/healthz") == (200, {"status": "ok"})
    pids = cluster.pids().values()
    assert cluster.stop() == 0
    assert not any(map(is_running, pids))
    assert "INFO broker-1 penstock.app: stopped" in log_of(cluster)


def test_a_killed_broker_comes_back_with_what_it_had_acknowledged(cluster: Cluster) -> None:
    client = cluster.client(0)
    topics = [f"{T}-{number}" for number in range(4)]
    producers = [client.create_producer(topic) for topic in topics]
    for producer in producers:
        producer.send(b"before")
    assert sorted(map(cluster.owner, topics)) == [0, 0, 1, 1]
    before = cluster.pids()
    cluster.kill_broker(1)
    for producer in producers:
        producer.send(b"after")  # By the same clients, which connect again by themselves.
    for topic in topics:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert [consumer.receive(60_000).data() for _ in range(2)] == [b"before", b"after"]
    assert cluster.pids()[0] == before[0]
    assert cluster.pids()[1] != before[1]
    assert "broker 1 ended with signal 9; it is started again" in log_of(cluster)
    client.close()


def test_clients_of_the_other_brokers_keep_their_connections_while_one_is_started_again(cluster: Cluster) -> None:
    client = cluster.client(0)
    topics = {_created_on(cluster, topic): topic for topic in (f"{T}-0", f"{T}-1")}
    producers = {number: client.create_producer(topic) for number, topic in topics.items()}
    connected = connected_since(cluster, topics[0])
    for crash in range(2):
        cluster.kill_broker(1)
        until(partial(has_crashed, cluster, crash + 1))
        # It looks the topic up at broker 0 as often as it has to, over the connection that the other producer uses.
        sent: list[pulsar.Result] = []
        producers[1].send_async(b"x", lambda result, _: sent.append(result))  # noqa: B023 -- waited for below
        while not sent:
            producers[0].send(b"meanwhile")
        assert sent == [pulsar.Result.Ok]
    assert connected_since(cluster, topics[0]) == connected
    client.close()


def connected_since(cluster: Cluster, topic: str) -> str:
    """When the topic's only producer connected."""
    status, stats = cluster.http(0, "GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert status == 200
    (publisher,) = stats["publishers"]
    return f"{publisher['connectedSince']} {publisher['address']}"


def test_nothing_is_left_when_the_supervisor_is_killed(cluster: Cluster) -> None:
    pids = cluster.pids().values()
    cluster.kill()
    until(lambda: not any(map(is_running, pids)))
    with Cluster(cluster.data_dir, 2) as again:
        assert again.http(0, "GET", "/healthz")[0] == 200


def test_a_broker_that_crashes_five_times_is_crash_looping_and_is_started_again(cluster: Cluster) -> None:
    topic = next(name for name in (f"{T}-{number}" for number in range(9)) if _created_on(cluster, name) == 1)
    for crash in range(5):
        until(lambda: 1 in cluster.pids())
        cluster.kill_broker(1)
        until(partial(has_crashed, cluster, crash + 1))
    until(lambda: "broker 1 crashes again and again" in str(cluster.http(0, "GET", "/healthz")[1]))
    status, health = cluster.http(0, "GET", "/healthz")
    assert (status, health["status"]) == (200, "degraded")
    status, answer = cluster.http(0, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
    assert (status, "broker 1" in answer["reason"]) == (503, True)
    assert _created_on(cluster, f"{T}-new") == 0
    # After a pause of five seconds it serves what it has. It has a minute to prove that it does not crash again.
    until(lambda: "broker 1 crashed again and again, and serves now" in str(cluster.http(0, "GET", "/healthz")[1]))
    assert _created_on(cluster, f"{T}-newer") == 0
    assert cluster.owner(topic) == 1
    assert cluster.http(0, "GET", f"/admin/v2/{topic.replace('://', '/')}/stats")[0] == 200


def has_crashed(cluster: Cluster, times: int) -> bool:
    return log_of(cluster).count("broker 1 ended") >= times


def _created_on(cluster: Cluster, topic: str) -> int:
    status, _ = cluster.http(0, "PUT", f"/admin/v2/{topic.replace('://', '/')}")
    assert status == 204
    return cluster.owner(topic)


def test_a_broker_that_an_administrator_stops_stays_down_and_the_last_one_ends_all(cluster: Cluster) -> None:
    assert cluster.http(1, "POST", "/admin/v2/brokers/shutdown")[0] == 204
    until(lambda: cluster.http(0, "GET", "/admin/v2/brokers") == (200, [f"127.0.0.1:{cluster.admin_port}"]))
    until(lambda: "broker 1 was stopped" in log_of(cluster))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", cluster.port + 1))
    # The other one that is started again has nothing of what had been open for this one.
    before = cluster.pids()[0]
    cluster.kill_broker(0)
    until(lambda: cluster.pids().get(0, before) != before)
    until(lambda: "broker 1 was stopped" in str(cluster.http(0, "GET", "/healthz")[1]))
    assert cluster.http(0, "POST", "/admin/v2/brokers/shutdown")[0] == 204
    assert cluster.wait() == 0


def test_a_broker_that_cannot_start_ends_all_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("")
    arguments = ["--tls-cert", str(tmp_path / "none.pem"), "--tls-key", str(tmp_path / "none.key"), "--tls-port", "0"]
    with pytest.raises(BrokerDidNotStart, match=r"ended with 2:\n(.|\n)*none\.pem"):
        Cluster(tmp_path / "data", 2, arguments).start()


def test_a_second_start_on_the_same_directory_is_refused(cluster: Cluster) -> None:
    with pytest.raises(BrokerDidNotStart, match=f"is in use by process {cluster.pids()[0]}"):
        BrokerProcess(cluster.data_dir).start()
    with pytest.raises(BrokerDidNotStart, match=f"is in use by process {cluster.pid}"):
        Cluster(cluster.data_dir, 2).start()


def test_a_directory_of_one_broker_opens_with_several_and_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as one:
        client = pulsar.Client(one.url)
        client.create_producer(T).send(b"old")
        client.close()
    with Cluster(tmp_path / "data", 2) as two:
        assert two.owner(T, asked=1) == 0
        client = two.client(1)
        reader = client.create_reader(T, pulsar.MessageId.earliest)
        assert reader.read_next(30_000).data() == b"old"
        assert _created_on(two, f"{T}-new") == 1
        client.create_producer(f"{T}-new").send(b"new")
        client.close()
    with BrokerProcess(tmp_path / "data") as one:
        client = pulsar.Client(one.url)
        for topic, text in ((T, b"old"), (f"{T}-new", b"new")):
            assert client.create_reader(topic, pulsar.MessageId.earliest).read_next(30_000).data() == text
        client.close()


def test_signals_that_a_terminal_sends_to_all_stop_or_reload_all(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", 2) as cluster:
        for pid in cluster.pids().values():
            os.kill(pid, signal.SIGINT)
        cluster.send_signal(signal.SIGHUP)
        assert cluster.http(1, "GET", "/healthz")[0] == 200
        cluster.send_signal(signal.SIGINT)
        assert cluster.wait() == 0


def test_tls_ports_and_listeners_of_each_broker_are_its_own(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    tls_port = free_ports(4)
    arguments = ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)]
    arguments += ["--tls-port", str(tls_port), "--admin-tls-port", str(tls_port + 2)]
    arguments += ["--advertised-address", "127.0.0.1", "--config", str(tmp_path / "conf")]
    (tmp_path / "conf").write_text("advertisedListeners=out:pulsar://broker.example.com:7000\n")
    with Cluster(tmp_path / "data", 2, arguments) as cluster:
        found = {}
        for number in range(4):
            assert cluster.http(0, "PUT", f"/admin/v2/persistent/public/default/t-{number}")[0] == 204
            path = f"/lookup/v2/topic/persistent/public/default/t-{number}"
            owner = cluster.owner(f"{T}-{number}")
            found[owner] = cluster.http(1 - owner, "GET", path)[1]
            listener = cluster.http(1 - owner, "GET", f"{path}?listenerName=out")[1]
            assert listener["brokerUrl"] == f"pulsar://broker.example.com:{7000 + owner}"
        for owner in range(2):
            assert found[owner]["brokerUrlTls"] == f"pulsar+ssl://127.0.0.1:{tls_port + owner}"
            assert found[owner]["httpUrlTls"] == f"https://127.0.0.1:{tls_port + 2 + owner}"
        client = pulsar.Client(
            f"pulsar+ssl://127.0.0.1:{tls_port}",
            tls_trust_certs_file_path=str(certificate.certificate),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        for number in range(4):
            client.create_producer(f"{T}-{number}").send(b"over TLS")
        client.close()


def test_two_clusters_that_want_one_port_are_told_which(tmp_path: Path) -> None:
    first = free_ports(4)
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        pytest.raises(
            BrokerDidNotStart,
            match=rf"^penstock serve ended with 2:\n.*: 2 brokers, .*\npenstock: port {first + 1} cannot be opened",
        ),
    ):
        Cluster(tmp_path / "data", 2).start(port=first, admin_port=first + 2)


@pytest.mark.real
def test_a_frozen_broker_is_noticed_and_replaced_and_the_others_go_on(cluster: Cluster) -> None:
    pids = cluster.pids()
    assert cluster.http(0, "GET", "/healthz")[1] == {"status": "ok"}
    began = time.monotonic()
    os.kill(pids[1], signal.SIGSTOP)
    until(lambda: "broker 1 is suspect" in str(cluster.http(0, "GET", "/healthz")[1]))
    noticed_s = time.monotonic() - began
    assert {_created_on(cluster, f"{T}-{number}") for number in range(4)} == {0}
    until(lambda: cluster.pids().get(1, pids[1]) != pids[1])
    killed_s = time.monotonic() - began  # On an idle machine, it serves again a second later.
    assert cluster.http(1, "GET", "/healthz")[1] == {"status": "ok"}
    assert cluster.pids()[0] == pids[0]
    assert cluster.pids()[1] != pids[1]
    assert noticed_s <= 5
    assert killed_s <= 12


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Cluster]:
    """Two brokers, of which the second does nothing any more."""
    (tmp_path / "conf").write_text("brokerShutdownTimeoutMs=1000\n")
    with Cluster(tmp_path / "data", 2, ["--config", str(tmp_path / "conf")]) as cluster:
        os.kill(cluster.pids()[1], signal.SIGSTOP)
        yield cluster


@pytest.mark.real
def test_a_stop_kills_a_frozen_broker_when_its_time_is_over(frozen: Cluster) -> None:
    pids = frozen.pids().values()
    assert frozen.stop() == 1
    assert not any(map(is_running, pids))
    assert "killing broker 1: not ended within 6 s" in log_of(frozen)


@pytest.mark.real
def test_a_second_signal_ends_all_at_once(frozen: Cluster) -> None:
    pids = frozen.pids()
    frozen.send_signal(signal.SIGTERM)
    until(lambda: not is_running(pids[0]))  # The other one ends by itself.
    assert is_running(pids[1])
    frozen.send_signal(signal.SIGTERM)
    assert frozen.wait() == 1
    # The other one may have ended so recently that the supervisor has not heard of it.
    assert re.search(r"killing (broker 0, )?broker 1: a second signal came", log_of(frozen))
