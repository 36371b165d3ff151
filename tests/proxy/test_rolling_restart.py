# SPDX-License-Identifier: Apache-2.0
"""Proxies that are stopped while official clients publish and consume through them."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.testing.client import RawClient, Type, frame
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "persistent://public/default/rolling"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


class Publisher:
    """Publishes numbers without pause, and remembers which have a receipt."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.sent = 0
        self.failed: list[pulsar.Result] = []
        self.receipts = 0
        self._producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=200)
        self._more = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._producer.send_async(b"%d" % self.sent, self._answered)
            self.sent += 1
        self._producer.flush()

    def _answered(self, result: pulsar.Result, _id: object) -> None:
        with self._more:
            if result != pulsar.Result.Ok:
                self.failed.append(result)
            self.receipts += 1
            self._more.notify_all()

    def wait_for_more(self, count: int = 300) -> None:
        with self._more:
            want = self.receipts + count
            assert self._more.wait_for(lambda: self.receipts >= want, 60)

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_nothing_is_lost_while_two_proxies_are_restarted_one_after_the_other(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with (
        ProxyProcess(broker.url, log_path=tmp_path / "one.log") as one,
        ProxyProcess(broker.url, log_path=tmp_path / "two.log") as two,
    ):
        # The client connects to any of the two, as behind a load balancer.
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{one.port},127.0.0.1:{two.port}",
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=30,
        )
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        publisher = Publisher(client, TOPIC)
        for proxy in (one, two):
            publisher.wait_for_more()
            port, admin_port = proxy.port, proxy.admin_port
            assert proxy.stop() == 0
            proxy.start(port=port, admin_port=admin_port)
        publisher.wait_for_more()
        publisher.stop()
        assert not publisher.failed
        seen: list[int] = []
        while not seen or seen[-1] < publisher.sent - 1:
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            seen.append(int(message.data()))
        # What was delivered and not acknowledged when a proxy stopped is delivered again.
        assert list(dict.fromkeys(seen)) == list(range(publisher.sent))
        client.close()
    for log in ("one.log", "two.log"):
        assert "were not drained" not in (tmp_path / log).read_text()


def test_a_second_signal_ends_the_proxy_at_once(broker: BrokerProcess, tmp_path: Path) -> None:
    config = tmp_path / "proxy.conf"
    config.write_text("proxyUnreadyTimeMs=600000\n")
    with ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "log") as proxy:
        proxy.send_signal(signal.SIGTERM)
        with RawClient(proxy.port) as client:  # It still accepts clients.
            client.write(frame(Type.PING))
            assert client.next(Type.PONG)
        proxy.send_signal(signal.SIGTERM)
        assert proxy.wait() == 1
        assert "second signal" in (tmp_path / "log").read_text()
