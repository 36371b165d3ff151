# SPDX-License-Identifier: Apache-2.0
"""Resource groups at the proxy, with the official client: who waits, and who does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMITED = "persistent://public/limited/t"
FREE = "persistent://public/default/t"
RATE = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def proxy(broker: BrokerProcess, tmp_path: Path) -> Iterator[ProxyProcess]:
    file = tmp_path / "groups.toml"
    file.write_text(f'[slow]\npublishRateInMsgs = {RATE}\nnamespaces = ["public/limited"]\n')
    config = tmp_path / "proxy.conf"
    config.write_text(f"resourceGroupsFile={file}\n")
    arguments = ["--upstream-admin", broker.admin_url, "--config", str(config)]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "proxy.log") as process:
        yield process


@pytest.fixture(autouse=True)
def _namespace(broker: BrokerProcess) -> None:
    import httpx

    httpx.put(f"{broker.admin_url}/admin/v2/namespaces/public/limited")


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
        assert [int(consumer.receive(10_000).data()) for _ in range(RATE)] == list(range(RATE))
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
