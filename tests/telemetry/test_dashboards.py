# SPDX-License-Identifier: Apache-2.0
"""The dashboards in `ops`: each query of each panel finds what Prometheus has scraped.

There are two brokers, and a proxy before them, with traffic.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import pulsar
import pytest

from benchmarks.process import ask
from benchmarks.quotas import GROUP, produce, set_up
from penstock.telemetry.instruments import INSTRUMENTS
from penstock.telemetry.proxy_instruments import PROXY_INSTRUMENTS
from penstock.testing.process import ProxyProcess
from tests.needed import find_program
from tests.processes.cluster import Cluster, free_ports, until
from tools.dashboard_panels import DASHBOARDS
from tools.dashboards import FOLDER, limited, rendered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The brokers and Prometheus are started once.
pytestmark = pytest.mark.xdist_group("dashboards")

WITHIN_S: Final = 60.0
# Grafana takes four scrape intervals at least.
RATE_INTERVAL: Final = "5s"
SETTINGS: Final = """\
adaptivePublisherThrottlingEnabled=true
adaptivePublisherThrottlingPerTopicMetricsEnabled=true
"""
SCRAPING: Final = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: penstock
    static_configs: [{{targets: {targets}}}]
"""
QUERIES: Final = [
    pytest.param(legend, query, id=f"{name}: {panel.title}: {legend}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard.panels
    for legend, query in panel.queries.items()
]


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/query"

    def series(self, query: str) -> list[dict[str, Any]]:
        """The series that a query of a panel finds, with a number, now; [] while it is not ready."""
        text = limited(query).replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
        assert "$" not in text.replace('"$1"', "")
        try:
            with urllib.request.urlopen(f"{self._url}?{urllib.parse.urlencode({'query': text})}") as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    raise AssertionError(error.read().decode()) from error
            return []
        except OSError:
            return []
        return [one for one in found if not math.isnan(float(one["value"][1]))]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, which scrapes two brokers that share a quota and have delayed messages and pattern consumers.

    A proxy before them has a client, too.
    """
    program = find_program("prometheus", "prometheus")
    where = tmp_path_factory.mktemp("dashboards")
    (where / "broker.conf").write_text(SETTINGS, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(where / "data", 2, ["--config", str(where / "broker.conf")]))
        topics = set_up(cluster.admin_port, 200)
        ask(
            cluster.admin_port,
            "PUT",
            f"resourcegroups/{GROUP}",
            {"publishRateInMsgs": 200, "publishRateInBytes": 10**6},
        )
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(where / "client.log"))
        client = pulsar.Client(cluster.url, logger=logger, io_threads=1)
        stack.callback(client.close)
        ended = threading.Event()
        threads = [threading.Thread(target=produce, args=(client, topic, ended), daemon=True) for topic in topics]
        threads.append(threading.Thread(target=delay, args=(client, ended), daemon=True))
        for thread in threads:
            stack.callback(thread.join, WITHIN_S)
            thread.start()
        stack.callback(ended.set)
        client.subscribe(re.compile("persistent://gold/a/.*"), "all")
        proxy = stack.enter_context(ProxyProcess(cluster.url, log_path=where / "proxy.log"))
        proxied = pulsar.Client(proxy.url, logger=logger, io_threads=1)
        stack.callback(proxied.close)
        proxied.subscribe(re.compile("persistent://gold/a/.*"), "through-the-proxy")
        yield stack.enter_context(scraping(program, where, [*cluster.admin_urls, proxy.admin_url]))


def delay(client: pulsar.Client, ended: threading.Event) -> None:
    """Send messages that are due soon, and some that are not, and receive them."""
    topic = "persistent://public/default/delayed"
    try:
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        while not ended.wait(0.2):
            now_ms = int(time.time() * 1_000)
            producer.send(b"", deliver_at=now_ms + 1_500)  # Those due within a second are not delayed.
            producer.send(b"", deliver_at=now_ms + 3_600_000)
            with contextlib.suppress(pulsar.Timeout):
                consumer.acknowledge(consumer.receive(timeout_millis=100))
    except pulsar.PulsarException:
        if not ended.is_set():  # At the end the client is closed, whatever it is doing.
            raise


@contextlib.contextmanager
def scraping(program: str, where: Path, admin_urls: list[str]) -> Iterator[Prometheus]:
    """Run Prometheus."""
    targets = [url.removeprefix("http://") for url in admin_urls]
    (where / "prometheus.yml").write_text(SCRAPING.format(targets=json.dumps(targets)), encoding="utf-8")
    port = free_ports(1)
    with (where / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={where / 'prometheus.yml'}",
                f"--storage.tsdb.path={where / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("legend", "query"), QUERIES)
def test_a_query_finds_series_with_the_labels_of_its_legend(prometheus: Prometheus, legend: str, query: str) -> None:
    until(lambda: prometheus.series(query), WITHIN_S)
    for one in prometheus.series(query):
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= set(one["metric"])


@pytest.mark.timeout(180)
def test_the_queries_would_be_seen_to_find_nothing(prometheus: Prometheus) -> None:
    until(lambda: len(prometheus.series("penstock_healthy{}")) == 2, WITHIN_S)  # Each target has its own second.
    assert prometheus.series("penstock_healthi{}") == []
    assert prometheus.series('penstock_memory_used_bytes{owner="nobody"}') == []
    assert prometheus.series("0 * penstock_healthy{} / 0") == []


@pytest.mark.parametrize(("legend", "query"), QUERIES)
def test_a_query_names_metrics_that_exist_and_limits_each_to_the_chosen_brokers(legend: str, query: str) -> None:
    assert "{{" in legend
    names = {instrument.name for instrument in INSTRUMENTS} | {instrument.name for instrument in PROXY_INSTRUMENTS}
    used = re.findall(r"(\w+)\{", query)
    assert used
    assert {name.removesuffix("_bucket") for name in used} <= names
    assert limited(query).count('instance=~"$instance"') == len(used)
    assert not [name for name in names if re.search(rf"\b{name}\b(?!\{{)", query)]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_files_are_up_to_date_and_can_be_imported_anywhere(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text == rendered(name, DASHBOARDS[name]), "run python -m tools.dashboards"
    dashboard = json.loads(text)
    sources = list(_values_of(dashboard, "datasource"))
    assert sources
    assert all(source["uid"] == "${datasource}" for source in sources)
    assert "id" not in dashboard
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard["panels"])
    assert len({panel["title"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_there_is_no_other_file() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(DASHBOARDS)


def _values_of(node: Any, key: str) -> Iterator[Any]:  # noqa: ANN401 -- JSON
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for value in node.values():
            yield from _values_of(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _values_of(value, key)
