# SPDX-License-Identifier: Apache-2.0
"""Two proxies before two brokers: topics of both are reached through any of them, also after a broker was killed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.testing.process import ProxyProcess
from tests.processes.cluster import Cluster
from tests.proxy.official import Publisher, Receiver, client_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Each proxy is told of one broker only: lookups name the other.
ALLOWED = "brokerProxyAllowedIPAddresses=127.0.0.1\nbrokerProxyAllowedTargetPorts=*\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "data", 2) as cluster:
        yield cluster


@pytest.fixture
def proxies(cluster: Cluster, tmp_path: Path) -> Iterator[list[ProxyProcess]]:
    config = tmp_path / "proxy.conf"
    config.write_text(ALLOWED)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ProxyProcess(
                    cluster.url_of(number),
                    ["--upstream-admin", cluster.admin_urls[number], "--config", str(config)],
                    log_path=tmp_path / f"proxy-{number}.log",
                )
            )
            for number in range(2)
        ]


def topics_of_each(cluster: Cluster) -> dict[int, str]:
    """A topic of each broker."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < cluster.brokers:
        topic = f"persistent://public/default/t-{number}"
        status, answer = cluster.http(0, "PUT", f"/admin/v2/{topic.replace('://', '/')}")
        assert status == 204, answer
        found.setdefault(cluster.owner(topic), topic)
        number += 1
    return found


def test_nothing_is_lost_or_out_of_order_when_a_broker_is_killed_and_topics_are_unloaded(
    cluster: Cluster, proxies: list[ProxyProcess]
) -> None:
    topics = topics_of_each(cluster)
    clients = [client_of(proxy.url) for proxy in proxies]
    try:
        receivers = [Receiver(clients[1 - number % 2], topic) for number, topic in topics.items()]
        publishers = [Publisher(clients[number % 2], topic, pause_s=0.001) for number, topic in topics.items()]
        for publisher in publishers:
            publisher.wait_for_more(50)
        cluster.kill_broker(0)
        path = f"{proxies[1].admin_url}/admin/v2/{topics[1].replace('://', '/')}/unload"
        assert httpx.put(path, trust_env=False, timeout=60).status_code == 204
        for publisher in publishers:
            publisher.wait_for_more(50)
        for publisher, receiver in zip(publishers, receivers, strict=True):
            publisher.stop()
            receiver.check(publisher.sent)
    finally:
        for client in clients:
            client.close()
