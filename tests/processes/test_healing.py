# SPDX-License-Identifier: Apache-2.0
"""Brokers whose disk fails for a moment: they start again by themselves, and official clients just go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import pulsar
import pytest

from penstock.core.units import MIB
from penstock.testing.process import BrokerProcess
from tests.jepsen.faulty_disk import CANNOT, FaultyDisk
from tests.processes.cluster import Cluster, free_ports, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))]

T = "persistent://public/default/t"
# What is promised on a machine that is not busy is five seconds.
WITHIN_S = 30.0
# Longer than a broker that is silent and idle is left alone.
LONG_S = 10.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk(tmp_path) as disk:
        yield disk


@pytest.fixture
def broker(tmp_path: Path, disk: FaultyDisk) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", environment=disk.environment)
    first = free_ports(2)
    with process.start(port=first, admin_port=first + 1):
        yield process


def client_of(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)


def reason_of(broker: BrokerProcess) -> str | None:
    """Why the broker is not healthy; None if it is."""
    try:
        with urllib.request.urlopen(f"{broker.admin_url}/healthz", timeout=60):
            return None
    except urllib.error.HTTPError as error:
        with error:
            reason: str = json.loads(error.read())["reason"]
            return reason
    except OSError as error:
        return str(error)


def received(consumer: pulsar.Consumer, wanted: set[bytes]) -> list[bytes]:
    """Every message until all of these came."""
    came: list[bytes] = []
    while not wanted <= set(came):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        came.append(message.data())
    return came


@pytest.mark.parametrize("fault", [{"syncs": 1}, {"writes": 1}], ids=["sync", "write"])
def test_publishers_of_a_broker_alone_go_on_by_themselves_after_one_write_or_sync_has_failed(
    broker: BrokerProcess, disk: FaultyDisk, fault: dict[str, int]
) -> None:
    client = client_of(broker.url)
    producer = client.create_producer(T)
    consumer = client.subscribe(T, "s", initial_position=pulsar.InitialPosition.Earliest)
    sent = [b"%d" % number for number in range(20)]
    for data in sent[:10]:
        producer.send(data)
    disk.fail(broker.data_dir, syncs=fault.get("syncs", 0), writes=fault.get("writes", 0))
    began = time.monotonic()
    for data in sent[10:]:
        producer.send(data)
    assert time.monotonic() - began < WITHIN_S
    assert disk.injected == 1
    # What had failed may have been written, and is there twice, as after a crash: nobody had acknowledged it.
    assert list(dict.fromkeys(received(consumer, set(sent)))) == sent
    said = broker.log_path.read_text()
    assert "starting again after a final failure" in said
    assert "are ignored" not in said  # What the new start is told is no setting.
    client.close()


class Knocking:
    """Connects to ports again and again, and counts how often it is refused."""

    def __init__(self, *ports: int) -> None:
        self.refused = 0
        self._ports = ports
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._knock)

    def _knock(self) -> None:
        while not self._over.wait(0.01):
            for port in self._ports:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    self.refused += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def test_clients_are_not_refused_while_a_broker_alone_starts_again_at_ports_of_the_systems_choice(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with BrokerProcess(tmp_path / "data", environment=disk.environment) as broker:
        client = client_of(broker.url)
        producer = client.create_producer(T)
        producer.send(b"x")
        with Knocking(broker.port, broker.admin_port) as knocking:
            disk.fail(broker.data_dir, syncs=1)
            producer.send(b"y")
        assert knocking.refused == 0
        assert disk.injected == 1
        client.close()


def test_consumers_go_on_by_themselves_after_their_acknowledgements_could_not_be_stored(
    broker: BrokerProcess, disk: FaultyDisk
) -> None:
    client = client_of(broker.url)
    producer = client.create_producer(T)
    consumer = client.subscribe(T, "s")
    sent = [b"%d" % number for number in range(20)]
    for data in sent[:10]:
        producer.send(data)
    disk.fail(broker.data_dir / "broker-0" / "topics.sqlite", syncs=1)
    first = received(consumer, set(sent[:10]))
    until(lambda: "starting again after a final failure" in broker.log_path.read_text())
    for data in sent[10:]:
        producer.send(data)
    assert [*first, *received(consumer, set(sent[10:]))][-10:] == sent[10:]
    client.close()


def test_publishers_on_a_full_disk_are_asked_to_try_again_and_go_on_when_there_is_room_without_a_new_start(
    broker: BrokerProcess, disk: FaultyDisk
) -> None:
    client = client_of(broker.url)
    producer = client.create_producer(T, block_if_queue_full=True, max_pending_messages=4, send_timeout_millis=0)
    consumer = client.subscribe(T, "s", initial_position=pulsar.InitialPosition.Earliest)
    disk.fail(broker.data_dir / "broker-0" / "log", full=True)
    results: list[pulsar.Result] = []
    sent = 0
    while reason_of(broker) is None:
        if sent - len(results) < 4:
            producer.send_async(b"%d" % sent + bytes(MIB), lambda result, _: results.append(result))
            sent += 1
    assert reason_of(broker) == "the disk has no room for the next segment: No space left on device"
    consumer.acknowledge(consumer.receive(60_000))  # Consumers go on.
    with ThreadPoolExecutor() as threads:
        another = threads.submit(client.create_producer, f"{T}-2")  # It is asked to try again, and does.
        assert reason_of(broker) is not None
        assert not another.done()
        disk.heal()
        another.result().send(b"x")
    producer.flush()
    until(lambda: len(results) == sent)
    assert set(results) == {pulsar.Result.Ok}
    assert reason_of(broker) is None
    assert "starting again" not in broker.log_path.read_text()
    client.close()


def test_a_broker_whose_disk_has_no_room_is_not_ready_and_becomes_ready_when_there_is_room(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=disk.environment)
    first = free_ports(2)
    disk.fail(broker.data_dir / "broker-0" / "log", full=True)
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(broker.start, port=first, admin_port=first + 1)
        broker.admin_port = first + 1
        until(lambda: reason_of(broker) == "the disk has no room for the next segment: No space left on device")
        assert not starting.done()
        disk.heal()
        starting.result()
    with broker:
        client = client_of(broker.url)
        client.create_producer(T).send(b"x")
        client.close()


def test_all_brokers_start_again_when_the_metadata_that_they_share_could_not_be_stored_and_the_disk_works(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with Cluster(tmp_path / "data", 2, environment=disk.environment) as cluster:
        client = cluster.client(0)
        producer = client.create_producer(T)
        producer.send(b"before")
        path = "/admin/v2/persistent/public/default/other"
        disk.fail(cluster.data_dir / "meta.sqlite", syncs=1)
        status, answer = cluster.http(0, "PUT", path)
        assert (status, disk.injected) == (500, 1), answer

        def is_created() -> bool:
            with suppress(OSError):  # Connections end.
                return cluster.http(0, "PUT", path)[0] in {204, 409}  # What had failed may have been written.
            return False

        with Knocking(cluster.port, cluster.port + 1, cluster.admin_port, cluster.admin_port + 1) as knocking:
            until(is_created, 2 * WITHIN_S)
            producer.send(b"after")
        assert knocking.refused == 0
        assert cluster.log_path.read_text().count("starting again after a final failure") == 1
        client.close()


def test_a_broker_of_several_ends_with_a_status_of_its_own_and_the_others_do_not_notice(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with Cluster(tmp_path / "data", 2, environment=disk.environment) as cluster:
        client = cluster.client(0)
        producers = {}
        for number in range(4):
            producer = client.create_producer(f"{T}-{number}")
            producer.send(b"before")
            producers[cluster.owner(f"{T}-{number}")] = producer
        before = cluster.pids()
        disk.fail(cluster.data_dir / "broker-1", syncs=1)
        producers[1].send(b"after")
        assert disk.injected == 1
        producers[0].send(b"after")
        assert cluster.pids()[0] == before[0]
        assert cluster.pids()[1] != before[1]
        assert "broker 1 ended with status 75; it is started again" in cluster.log_path.read_text()
        client.close()


# -- a stop in the middle of healing


def begin_to_heal(process: BrokerProcess, disk: FaultyDisk, directory: Path, producer: pulsar.Producer) -> None:
    """Let a disk fail, so slow that the broker that starts again afterwards needs two seconds to end."""
    disk.fail(directory, syncs=1, slow_sync_us=1_500_000)
    producer.send_async(b"after", lambda *_: None)
    until(lambda: "starting again after a final failure" in process.log_path.read_text())


def starts(process: BrokerProcess) -> int:
    return process.log_path.read_text().count(" on Python ")


def test_a_broker_alone_that_is_told_to_stop_while_it_ends_to_start_again_ends(
    broker: BrokerProcess, disk: FaultyDisk
) -> None:
    client = client_of(broker.url)
    producer = client.create_producer(T)
    producer.send(b"before")
    begin_to_heal(broker, disk, broker.data_dir, producer)
    broker.stop()
    assert starts(broker) == 1
    client.close()


def test_brokers_that_are_told_to_stop_while_one_ends_to_start_again_end(tmp_path: Path, disk: FaultyDisk) -> None:
    with Cluster(tmp_path / "data", 2, environment=disk.environment) as cluster:
        client = cluster.client(0)
        producers = served(cluster, client)
        producers[1].send(b"before")
        begin_to_heal(cluster, disk, cluster.data_dir / "broker-1", producers[1])
        cluster.stop()
        assert starts(cluster) == 1
        client.close()


# -- several brokers: what happens to one of them, or to their supervisor


def served(cluster: Cluster, client: pulsar.Client, **options: Any) -> dict[int, pulsar.Producer]:  # noqa: ANN401
    """A producer for a topic of each broker, by number."""
    producers: dict[int, pulsar.Producer] = {}
    while len(producers) < cluster.brokers:
        topic = f"{T}-{len(producers)}"
        producers[cluster.owner(topic)] = client.create_producer(topic, **options)
    return producers


def health_of(cluster: Cluster, number: int) -> str:
    return str(cluster.http(number, "GET", "/healthz")[1])


def publish_for(producer: pulsar.Producer, seconds: float) -> float:
    """Publish one message after the other; returns the longest time that one took."""
    end, longest_s = time.monotonic() + seconds, 0.0
    while (began := time.monotonic()) < end:
        producer.send(b"x")
        longest_s = max(longest_s, time.monotonic() - began)
    return longest_s


def test_a_broker_whose_disk_hangs_is_suspect_and_is_not_killed_and_goes_on_when_the_disk_does(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with Cluster(tmp_path / "data", 2, environment=disk.environment) as cluster:
        client = cluster.client(0)
        producers, before = served(cluster, client, send_timeout_millis=0), cluster.pids()
        results: list[pulsar.Result] = []
        disk.fail(cluster.data_dir / "broker-1", hang=True)
        producers[1].send_async(b"x", lambda result, _: results.append(result))
        until(lambda: "broker 1 is suspect" in health_of(cluster, 0))
        assert cluster.http(0, "PUT", "/admin/v2/persistent/public/default/new")[0] == 204
        assert cluster.owner("persistent://public/default/new") == 0
        assert publish_for(producers[0], LONG_S) < WITHIN_S
        assert (cluster.pids(), results) == (before, [])
        disk.heal()
        until(lambda: results, WITHIN_S)
        assert results == [pulsar.Result.Ok]
        until(lambda: health_of(cluster, 0) == str({"status": "ok"}))
        assert cluster.pids() == before
        client.close()


def test_of_two_brokers_one_whose_disk_is_full_takes_no_messages_and_no_topics_until_there_is_room(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with Cluster(tmp_path / "data", 2, environment=disk.environment) as cluster:
        client = cluster.client(0)
        producers = served(cluster, client, block_if_queue_full=True, max_pending_messages=4, send_timeout_millis=0)
        before = cluster.pids()
        results: list[pulsar.Result] = []
        disk.fail(cluster.data_dir / "broker-1" / "log", full=True)
        sent = 0
        while "broker 1 takes no messages, because its disk is full" not in health_of(cluster, 0):
            if sent - len(results) < 4:
                producers[1].send_async(bytes(MIB), lambda result, _: results.append(result))
                sent += 1
        assert cluster.http(0, "PUT", "/admin/v2/persistent/public/default/new")[0] == 204
        assert cluster.owner("persistent://public/default/new") == 0
        producers[0].send(b"x")
        disk.heal()
        producers[1].flush()
        until(lambda: len(results) == sent)
        assert set(results) == {pulsar.Result.Ok}
        until(lambda: health_of(cluster, 0) == str({"status": "ok"}))
        assert cluster.pids() == before
        client.close()


def test_brokers_serve_while_their_supervisor_is_frozen_and_none_is_killed_when_it_wakes(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", 2) as cluster, ThreadPoolExecutor() as threads:
        client = cluster.client(0)
        producers, before = served(cluster, client), cluster.pids()
        os.kill(cluster.pid, signal.SIGSTOP)
        try:
            creating = threads.submit(cluster.http, 0, "PUT", "/admin/v2/persistent/public/default/new")
            while "the supervisor has not answered for 9 s" not in health_of(cluster, 0):
                for producer in producers.values():
                    producer.send(b"x")
            assert not creating.done()
        finally:
            os.kill(cluster.pid, signal.SIGCONT)
        assert creating.result(WITHIN_S)[0] == 204
        until(lambda: health_of(cluster, 0) == str({"status": "ok"}))
        for producer in producers.values():
            producer.send(b"x")
        assert cluster.pids() == before
        assert "suspect" not in cluster.log_path.read_text()
        client.close()
