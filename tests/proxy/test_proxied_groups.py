# SPDX-License-Identifier: Apache-2.0
"""Resource groups at the proxy, with the official client: who waits, and who does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.processes.cluster import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DISPATCHED = "persistent://public/dispatched/t"
LIMITED = "persistent://public/limited/t"
FREE = "persistent://public/default/t"
RATE = 200
GROUPS = f"""
[slow]
publishRateInMsgs = {RATE}
namespaces = ["public/limited"]

[slow-out]
dispatchRateInMsgs = {RATE}
namespaces = ["public/dispatched"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def proxy(broker: BrokerProcess, tmp_path: Path) -> Iterator[ProxyProcess]:
    file = tmp_path / "groups.toml"
    file.write_text(GROUPS)
    config = tmp_path / "proxy.conf"
    config.write_text(f"resourceGroupsFile={file}\n")
    arguments = ["--upstream-admin", broker.admin_url, "--config", str(config)]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "proxy.log") as process:
        yield process


@pytest.fixture(autouse=True)
def _namespace(broker: BrokerProcess) -> None:
    import httpx

    for namespace in ("limited", "dispatched"):
        httpx.put(f"{broker.admin_url}/admin/v2/namespaces/public/{namespace}", timeout=60)


def test_a_group_in_debt_waits_and_others_of_the_same_connection_do_not(proxy: ProxyProcess) -> None:
    client = pulsar.Client(proxy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        slow = client.create_producer(LIMITED, batching_enabled=False, block_if_queue_full=True)
        free = client.create_producer(FREE, batching_enabled=False, block_if_queue_full=True)
        failed: list[object] = []
        done = [0.0, 0.0]

        def took(which: int) -> object:
            def callback(result: pulsar.Result, _id: object) -> None:
                if result != pulsar.Result.Ok:
                    failed.append(result)
                done[which] = time.monotonic()

            return callback

        start = time.monotonic()
        for number in range(2 * RATE):
            slow.send_async(b"%d" % number, took(0))
            free.send_async(b"%d" % number, took(1))
        slow.flush()
        free.flush()
        assert not failed
        slow_s, free_s = done[0] - start, done[1] - start
        assert slow_s >= 1.8, "a burst of 50 ms, and then the rate"
        assert free_s < slow_s / 2
    finally:
        client.close()


def test_what_was_held_arrives_in_order_and_a_close_waits_for_it(proxy: ProxyProcess) -> None:
    topic = LIMITED + "-ordered"
    client = pulsar.Client(proxy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for number in range(RATE):
            producer.send_async(b"%d" % number, lambda _r, _i: None)
        producer.flush()
        producer.close()
        assert [int(consumer.receive(60_000).data()) for _ in range(RATE)] == list(range(RATE))
    finally:
        client.close()


def test_a_close_behind_held_sends_is_answered_after_them(proxy: ProxyProcess, broker: BrokerProcess) -> None:
    topic = LIMITED + "-closed"
    with RawClient(proxy.port, connect=False) as client:
        client.write(
            frame(
                Type.CONNECT, client_version="raw", protocol_version=20, proxy_to_broker_url=f"127.0.0.1:{broker.port}"
            )
        )
        assert client.read().kind == Type.CONNECTED
        client.write(frame(Type.PRODUCER, topic=topic, producer_id=7, request_id=1))
        assert client.read().kind == Type.PRODUCER_SUCCESS
        sends = b"".join(send(7, number, entry(b"x", sequence_id=number)) for number in range(RATE // 2))
        client.write(sends + frame(Type.CLOSE_PRODUCER, producer_id=7, request_id=2) + frame(Type.PING))
        kinds = [client.read().kind for _ in range(RATE // 2 + 2)]
        assert kinds[-1] == Type.SUCCESS
        assert kinds.count(Type.SEND_RECEIPT) == RATE // 2
        assert kinds.index(Type.PONG) < RATE // 4, "a ping does not wait"


@pytest.fixture
def connect() -> Iterator[Callable[[str], pulsar.Client]]:
    """Connects clients, and closes them."""
    clients: list[pulsar.Client] = []

    def connect(url: str) -> pulsar.Client:
        clients.append(pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def publish(broker: BrokerProcess, topic: str, count: int, *, batch: bool = False) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=batch, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
    producer.flush()
    client.close()


Earliest = pulsar.InitialPosition.Earliest


def test_consumers_of_a_group_in_debt_wait_and_others_of_the_same_connection_do_not(
    proxy: ProxyProcess, broker: BrokerProcess, connect: Callable[[str], pulsar.Client]
) -> None:
    publish(broker, DISPATCHED, 2 * RATE)
    publish(broker, FREE + "-dispatched", 2 * RATE)
    client = connect(proxy.url)
    start = time.monotonic()
    slow = client.subscribe(DISPATCHED, "s", initial_position=Earliest)
    free = client.subscribe(FREE + "-dispatched", "s", initial_position=Earliest)
    assert [int(free.receive(60_000).data()) for _ in range(2 * RATE)] == list(range(2 * RATE))
    free_s = time.monotonic() - start
    assert [int(slow.receive(60_000).data()) for _ in range(2 * RATE)] == list(range(2 * RATE))
    slow_s = time.monotonic() - start
    assert slow_s >= 1.8, "a burst of 50 ms, and then the rate"
    assert free_s < slow_s


def test_every_kind_of_consumer_gets_all_messages_of_a_limited_topic(
    proxy: ProxyProcess, broker: BrokerProcess, connect: Callable[[str], pulsar.Client]
) -> None:
    import httpx

    count = RATE // 4
    topic, parted = DISPATCHED + "-kinds", DISPATCHED + "-parts"
    httpx.put(f"{broker.admin_url}/admin/v2/{parted.replace('://', '/')}/partitions", json=3, timeout=60)
    publish(broker, topic, count, batch=True)
    publish(broker, parted, count)
    client = connect(proxy.url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [int(reader.read_next(30_000).data()) for _ in range(count)] == list(range(count))
    one_by_one = client.subscribe(parted + "-partition-0", "s", initial_position=Earliest, receiver_queue_size=0)
    assert one_by_one.receive().data()  # This kind has no timeout.
    parts = client.subscribe(parted, "all", pulsar.ConsumerType.Shared, initial_position=Earliest)
    assert sorted(int(parts.receive(60_000).data()) for _ in range(count)) == list(range(count))

    shared = client.subscribe(topic, "shared", pulsar.ConsumerType.Shared, initial_position=Earliest)
    first = shared.receive(60_000)  # Alone: all may be one batch, which one of two consumers gets.
    other = client.subscribe(topic, "shared", pulsar.ConsumerType.Shared, initial_position=Earliest)
    shared.redeliver_unacknowledged_messages()
    shared.close()
    seen = {int(first.data())}
    while len(seen) < count:
        message = other.receive(60_000)
        other.acknowledge(message)
        seen.add(int(message.data()))

    consumer = client.subscribe(topic, "sought", initial_position=Earliest)
    for _ in range(2):
        assert [int(consumer.receive(60_000).data()) for _ in range(count)] == list(range(count))
        consumer.seek(pulsar.MessageId.earliest)
    consumer.unsubscribe()
    again = client.subscribe(topic, "sought", initial_position=Earliest)
    assert int(again.receive(60_000).data()) == 0


def test_two_proxies_share_a_dispatch_rate(
    broker: BrokerProcess, tmp_path: Path, connect: Callable[[str], pulsar.Client]
) -> None:
    import httpx

    httpx.put(f"{broker.admin_url}/admin/v2/tenants/pulsar", json={"allowedClusters": ["standalone"]}, timeout=60)
    httpx.put(f"{broker.admin_url}/admin/v2/namespaces/pulsar/system", timeout=60)
    (tmp_path / "groups.toml").write_text(GROUPS)
    (tmp_path / "proxy.conf").write_text(
        f"resourceGroupsFile={tmp_path / 'groups.toml'}\nresourceUsagePublishIntervalInSecs=1\nresourceUsageKey=k\n"
    )
    topics = [f"{DISPATCHED}-shared-{number}" for number in range(2)]
    for topic in topics:
        publish(broker, topic, 40 * RATE, batch=True)
    arguments = ["--config", str(tmp_path / "proxy.conf")]
    with (
        ProxyProcess(broker.url, arguments, log_path=tmp_path / "1.log") as one,
        ProxyProcess(broker.url, arguments, log_path=tmp_path / "2.log") as other,
    ):
        for process, topic in zip((one, other), topics, strict=True):
            connect(process.url).subscribe(topic, "s", initial_position=Earliest, receiver_queue_size=40 * RATE)

        def shares() -> list[float]:
            return [
                float(line.split()[-1])
                for process in (one, other)
                for line in httpx.get(f"{process.admin_url}/metrics", timeout=60).text.splitlines()
                if line.startswith("penstock_resource_group_share_messages{")
                if "slow-out" in line and "dispatch" in line.lower()
            ]

        # A proxy that has heard nobody yet has the whole quota. That a share holds: tests/groups/test_proxy_sharing.py.
        until(lambda: len(found := shares()) == 2 and sum(found) <= 1.1 * RATE)


def test_a_proxy_takes_the_groups_of_its_cluster_over(
    broker: BrokerProcess, tmp_path: Path, connect: Callable[[str], pulsar.Client]
) -> None:
    import httpx

    with httpx.Client(base_url=f"{broker.admin_url}/admin/v2", timeout=60) as admin:
        admin.put("/resourcegroups/of-cluster", json={"publishRateInMsgs": 10_000, "dispatchRateInMsgs": 10_000})
        admin.put("/namespaces/public/mirrored")
        admin.post("/namespaces/public/mirrored/resourcegroup/of-cluster")
    (tmp_path / "proxy.conf").write_text("resourceGroupsSource=upstream\n")
    arguments = ["--config", str(tmp_path / "proxy.conf"), "--upstream-admin", broker.admin_url]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "proxy.log") as process:
        client = connect(process.url)
        consumer = client.subscribe("persistent://public/mirrored/t", "s")
        producer = client.create_producer("persistent://public/mirrored/t")
        counted: set[str] = set()
        while counted != {"publish", "dispatch"}:  # The namespace is asked for while the first messages pass.
            producer.send(b"x")
            consumer.receive(60_000)
            for line in httpx.get(f"{process.admin_url}/metrics", timeout=60).text.splitlines():
                if line.startswith("pulsar_resource_group_messages_used{") and float(line.split()[-1]) > 0:
                    assert 'ResourceGroup="of-cluster"' in line
                    counted.add("publish" if 'MonitoringClass="Publish"' in line else "dispatch")


def test_settings_of_groups_that_contradict_each_other_are_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "proxy.conf").write_text("resourceGroupsSource=upstream\n")
    process = ProxyProcess(broker.url, ["--config", str(tmp_path / "proxy.conf")], log_path=tmp_path / "proxy.log")
    with pytest.raises(RuntimeError, match="want brokerWebServiceURL"):
        process.start()
