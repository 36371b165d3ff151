# SPDX-License-Identifier: Apache-2.0
"""`penstock proxy` before `penstock serve`, with the official client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pulsar
import pytest

from penstock.testing.client import RawClient, Type, frame
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "persistent://public/default/proxied"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def proxy(broker: BrokerProcess, tmp_path: Path) -> Iterator[ProxyProcess]:
    arguments = ["--upstream-admin", broker.admin_url]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "proxy.log") as process:
        yield process


def client_of(process: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(
        process.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
    )


def test_messages_pass_through_in_order_with_keys_properties_and_batches(proxy: ProxyProcess) -> None:
    client = client_of(proxy)
    try:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(TOPIC, batching_enabled=True, block_if_queue_full=True)
        for number in range(2_000):
            producer.send_async(
                b"%d" % number, lambda _r, _m: None, partition_key=f"k{number % 7}", properties={"n": "1"}
            )
        producer.flush()
        seen = []
        for _ in range(2_000):
            message = consumer.receive(60_000)
            seen.append(int(message.data()))
            assert message.properties() == {"n": "1"}
            consumer.acknowledge(message)
        assert seen == list(range(2_000))
    finally:
        client.close()


@pytest.mark.parametrize("relayed", [False, True])
def test_a_limit_below_that_of_brokers_is_told_on_all_connections(
    broker: BrokerProcess, tmp_path: Path, *, relayed: bool
) -> None:
    # Official clients keep one limit for all of their connections: the one that was told last.
    config = tmp_path / "proxy.conf"
    config.write_text(
        "maxMessageSize=1048576\nbrokerProxyAllowedIPAddresses=127.0.0.1\nbrokerProxyAllowedTargetPorts=*\n"
    )
    with (
        ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "proxy.log") as proxy,
        RawClient(proxy.port, connect=False) as client,
    ):
        named = {"proxy_to_broker_url": broker.url} if relayed else {}
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, **named))
        assert client.next(Type.CONNECTED).command.connected.max_message_size == 1_048_576


def test_large_messages_pass_in_both_directions(proxy: ProxyProcess) -> None:
    client = client_of(proxy)
    try:
        consumer = client.subscribe(TOPIC + "-large", "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(TOPIC + "-large")
        payloads = [bytes([number]) * (4 * 1024 * 1024 + number) for number in range(5)]
        for payload in payloads:
            producer.send(payload)
        for payload in payloads:
            assert consumer.receive(60_000).data() == payload
    finally:
        client.close()


def test_administrators_reach_the_cluster_through_the_proxy(proxy: ProxyProcess, broker: BrokerProcess) -> None:
    with httpx.Client(base_url=proxy.admin_url, timeout=60) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.put("/admin/v2/namespaces/public/made-here").status_code == 204
        assert "public/made-here" in http.get("/admin/v2/namespaces/public").json()
        assert http.get("/admin/v2/persistent/public/none/topic/stats").status_code == 404
        looked_up = http.get("/lookup/v2/topic/persistent/public/default/any").json()
        assert looked_up["brokerUrl"] == broker.url


def test_a_broker_that_no_lookup_has_named_is_refused(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, connect=False) as client:
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, proxy_to_broker_url="127.0.0.1:22"))
        answer = client.read()
        assert answer.kind == Type.ERROR
        assert "does not connect to 127.0.0.1:22" in answer.body.message


def test_a_broker_that_does_not_answer_is_service_not_ready(tmp_path: Path) -> None:
    with (
        ProxyProcess("pulsar://127.0.0.1:1", log_path=tmp_path / "proxy.log") as proxy,
        RawClient(proxy.port, connect=False) as client,
    ):
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20))
        answer = client.read()
        assert answer.kind == Type.ERROR
        assert "127.0.0.1:1 cannot be reached" in answer.body.message


def test_the_client_goes_on_after_its_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ProxyProcess(broker.url, log_path=tmp_path / "p.log") as proxy:
        client = client_of(proxy)
        try:
            consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
            producer = client.create_producer(TOPIC)
            producer.send(b"before")
            port, admin_port = broker.port, broker.admin_port
            broker.kill()
            broker.start(port=port, admin_port=admin_port)
            producer.send(b"after")
            seen = {consumer.receive(60_000).data() for _ in range(2)}
            assert seen == {b"before", b"after"}
        finally:
            client.close()
