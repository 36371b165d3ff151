# SPDX-License-Identifier: Apache-2.0
"""What a proxy tells of itself at its admin port."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS
from penstock.testing.client import RawClient, Type, frame
from penstock.testing.process import BrokerProcess, ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "persistent://public/default/metered"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def proxy(broker: BrokerProcess, tmp_path: Path) -> Iterator[ProxyProcess]:
    file = tmp_path / "groups.toml"
    file.write_text('[gold]\npublishRateInMsgs = 100000\nnamespaces = ["public/default"]\n')
    config = tmp_path / "proxy.conf"
    config.write_text(f"resourceGroupsFile={file}\nstatusFilePath={tmp_path}/serving\nclusterName=front\n")
    arguments = ["--upstream-admin", broker.admin_url, "--config", str(config)]
    with ProxyProcess(broker.url, arguments, log_path=tmp_path / "proxy.log") as process:
        yield process


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(proxy: ProxyProcess) -> Samples:
    text = httpx.get(f"{proxy.admin_url}/metrics", timeout=60).raise_for_status().text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    found = tuple(sorted(labels.items()))
    # The parser adds the suffix to the names of counters that lack it.
    return samples[name, found] if (name, found) in samples else samples[f"{name}_total", found]


def test_what_passed_through_the_proxy_is_in_its_metrics(proxy: ProxyProcess) -> None:
    client = pulsar.Client(proxy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"x" * 10_000, event_timestamp=number + 1)
        for _ in range(10):
            consumer.acknowledge(consumer.receive(60_000))
        seen = scrape(proxy)
        assert value(seen, "penstock_proxy_passed_bytes_total", direction="to-broker") > 100_000
        assert value(seen, "penstock_proxy_passed_bytes_total", direction="to-client") > 100_000
        assert value(seen, "pulsar_proxy_binary_bytes", cluster="front") > 200_000
        assert value(seen, "pulsar_proxy_binary_ops", cluster="front") >= 20
        assert value(seen, "pulsar_proxy_active_connections", cluster="front") == 2
        assert value(seen, "pulsar_proxy_new_connections", cluster="front") == 2
        assert value(seen, "penstock_proxy_broker_connections") == 1
        assert value(seen, "penstock_proxy_broker_connections_total", outcome="made") == 1
        assert value(seen, "pulsar_proxy_lookup_requests", cluster="front") == 2
        assert value(seen, "pulsar_proxy_rejected_lookup_requests", cluster="front") == 0
        assert value(seen, "MemoryPoolAvailable") > 0
        assert value(seen, "pulsar_resource_group_messages_used", ResourceGroup="gold", MonitoringClass="Publish") == 10
        assert value(seen, "penstock_memory_budget_bytes", owner="commands") > 0
        assert value(seen, "pulsar_proxy_topic_list_heap_memory_limit_bytes", cluster="front") > 0
    finally:
        client.close()


def test_every_metric_of_the_list_is_exported(proxy: ProxyProcess) -> None:
    text = httpx.get(f"{proxy.admin_url}/metrics", timeout=60).text
    missing = [
        one.name for one in PROXY_INSTRUMENTS if not one.scope.optional and f"# TYPE {one.name} {one.kind}" not in text
    ]
    assert not missing


def test_a_broker_that_cannot_be_reached_is_counted(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        ProxyProcess("pulsar://127.0.0.1:1", log_path=tmp_path / "proxy.log") as proxy,
        RawClient(proxy.port, connect=False) as client,
    ):
        client.write(frame(Type.CONNECT, client_version="raw", protocol_version=20, proxy_to_broker_url="127.0.0.1:1"))
        assert client.read().kind == Type.ERROR
        assert value(scrape(proxy), "penstock_proxy_broker_connections_total", outcome="failed") == 1
        assert value(scrape(proxy), "penstock_proxy_broker_connections") == 0


def test_load_balancers_see_the_status_file_and_not_the_cluster(proxy: ProxyProcess, tmp_path: Path) -> None:
    with httpx.Client(base_url=proxy.admin_url, timeout=60) as http:
        assert http.get("/status.html").status_code == 404
        (tmp_path / "serving").touch()
        assert (http.get("/status.html").status_code, http.get("/status.html").text) == (200, "OK")
        assert http.get("/healthz").json() == {"status": "ok"}


def test_unknown_paths_say_what_is_missing(proxy: ProxyProcess, tmp_path: Path) -> None:
    assert httpx.get(f"{proxy.admin_url}/nothing", timeout=60).json() == {"reason": "a proxy has nothing at /nothing"}
    with ProxyProcess("pulsar://127.0.0.1:1", log_path=tmp_path / "p.log") as alone:
        answer = httpx.get(f"{alone.admin_url}/admin/v2/clusters", timeout=60)
        assert answer.status_code == 404
        assert "set --upstream-admin" in answer.json()["reason"]


def test_connections_are_logged_as_the_broker_logs_them(proxy: ProxyProcess, tmp_path: Path) -> None:
    with RawClient(proxy.port) as client:
        client.write(frame(Type.PING))
        assert client.read().kind == Type.PONG
    proxy.stop()
    lines = (tmp_path / "proxy.log").read_text()
    assert "connection 127.0.0.1:" in lines
    assert " closed: " in lines


def test_a_proxy_loads_nothing_of_the_broker() -> None:
    program = (
        "import sys, penstock.settings.limits, penstock.settings.limits\n"  # which know the broker's limits, too
        "before = set(sys.modules)\n"
        "import penstock.proxy_app, penstock.admin.proxy_api, penstock.telemetry.prometheus\n"
        "import penstock.telemetry.proxy_instruments\n"
        "print([name for name in set(sys.modules) - before if name.startswith('penstock.broker')])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_a_full_backlog_of_the_cluster_throttles_its_topic_at_the_proxy(broker: BrokerProcess, tmp_path: Path) -> None:
    log, config = tmp_path / "proxy.log", tmp_path / "proxy.conf"
    config.write_text("adaptivePublisherThrottlingEnabled=true\nadaptivePublisherThrottlingIntervalMs=200\n")
    with httpx.Client(base_url=f"{broker.admin_url}/admin/v2/namespaces/public/backlogged", timeout=60) as admin:
        admin.put("").raise_for_status()
        quota = {"limitSize": 1_000_000, "policy": "consumer_backlog_eviction"}
        admin.post("/backlogQuota", json=quota).raise_for_status()
    arguments = ["--upstream-admin", broker.admin_url, "--config", str(config)]
    with ProxyProcess(broker.url, arguments, log_path=log) as proxy:
        client = pulsar.Client(proxy.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            topic = "persistent://public/backlogged/t"
            client.subscribe(topic, "stuck").close()
            producer = client.create_producer(topic)
            for _ in range(85):
                producer.send(b"x" * 10_000)
            while value(scrape(proxy), "pulsar_broker_adaptive_throttle_active_topic_count", cluster="standalone") < 1:
                producer.send(b"x" * 100)
        finally:
            client.close()
    line = next(line for line in log.read_text().splitlines() if "ACTIVATED" in line)
    assert f"[AdaptiveThrottle] ACTIVATED topic={topic} memoryPressure=0 backlogPressure=" in line
