# SPDX-License-Identifier: Apache-2.0
"""Proxies that are stopped while official clients publish and consume through them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from penstock.testing.client import RawClient, Type, frame
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.proxy.official import Publisher, Receiver, client_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "persistent://public/default/rolling"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def test_nothing_is_lost_while_two_proxies_are_restarted_one_after_the_other(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with (
        ProxyProcess(broker.url, log_path=tmp_path / "one.log") as one,
        ProxyProcess(broker.url, log_path=tmp_path / "two.log") as two,
    ):
        # The client connects to any of the two, as behind a load balancer.
        client = client_of(f"pulsar://127.0.0.1:{one.port},127.0.0.1:{two.port}")
        receiver, publisher = Receiver(client, TOPIC), Publisher(client, TOPIC)
        for proxy in (one, two):
            publisher.wait_for_more(300)
            port, admin_port = proxy.port, proxy.admin_port
            assert proxy.stop() == 0
            proxy.start(port=port, admin_port=admin_port)
        publisher.wait_for_more(300)
        publisher.stop()
        receiver.check(publisher.sent)
        client.close()
    for log in ("one.log", "two.log"):
        assert "were not drained" not in (tmp_path / log).read_text()


def test_what_a_group_in_debt_holds_at_the_stop_is_stored_once_through_the_next_proxy(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    groups = tmp_path / "groups.toml"
    groups.write_text('[slow]\npublishRateInMsgs = 50\nnamespaces = ["public/default"]\n')
    config = tmp_path / "proxy.conf"
    config.write_text(f"resourceGroupsFile={groups}\nresourceUsagePublishToTopic=false\nproxyDrainTimeoutMs=2000\n")
    with ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "log") as proxy:
        client, direct = client_of(proxy.url), client_of(broker.url)
        topic = f"{TOPIC}-held"
        receiver, publisher = Receiver(direct, topic), Publisher(client, topic)
        publisher.wait_for_more(60)
        port, admin_port = proxy.port, proxy.admin_port
        assert proxy.stop() == 0
        groups.write_text("")
        proxy.start(port=port, admin_port=admin_port)
        publisher.wait_for_more(300)
        publisher.stop()
        receiver.check(publisher.sent)
        client.close()
        direct.close()
    log = (tmp_path / "log").read_text()
    assert "SENDs that waited for a resource group were not sent" in log
    if "were not drained" not in log:  # On a slow machine, receipts may come too late; then some are stored twice.
        assert receiver.again == 0


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
