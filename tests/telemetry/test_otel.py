# SPDX-License-Identifier: Apache-2.0
"""Metrics as an OpenTelemetry collector gets them: over a real socket, decoded with the protocol's own classes."""

from __future__ import annotations

import gzip
import logging
import queue
import socket
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from penstock.core.durations import BOUNDS_NS
from penstock.governance.permits import PermitLimits, PermitQueue
from penstock.telemetry.instruments import INSTRUMENTS
from penstock.telemetry.otel import INTERVAL_MS, LAST_PUSH_S, MetricsPush, is_wanted
from penstock.testing.process import ProxyProcess
from penstock.testing.serving import serving
from tests.telemetry.snapshots import IDLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

    from penstock.broker.stats.snapshot import BrokerSnapshot

TIMEOUT_S = 50.0

TWINS = [
    f"topic.list.{memory}.{name}"
    for memory in ("heap", "direct")
    for name in ("memory.used", "memory.limit", "queue.size", "queue.max.size", "wait.time", "timeout.total")
]


class Collector(ThreadingHTTPServer):
    """Takes what is pushed by OTLP over HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.pushes: queue.Queue[tuple[ExportMetricsServiceRequest, Any]] = queue.Queue()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next(self) -> tuple[dict[str, Metric], dict[str, str], Any]:
        """The next push: metrics by name, the resource's attributes, and the request's headers."""
        request, headers = self.pushes.get(timeout=TIMEOUT_S)
        (of_resource,) = request.resource_metrics
        (of_scope,) = of_resource.scope_metrics
        assert of_scope.scope.name == "penstock"
        attributes = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
        return {metric.name: metric for metric in of_scope.metrics}, attributes, headers


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        self.server.pushes.put((ExportMetricsServiceRequest.FromString(body), self.headers))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_variables_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def test_a_broker_pushes_the_twins_of_the_twelve_metrics_to_the_collector_the_environment_names(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=listings")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with serving({"clusterName": "eu", "maxTopicListInFlightHeapMemSizeMB": "7"}) as broker:
        metrics, attributes, headers = collector.next()
    assert set(TWINS) <= metrics.keys()
    limit = metrics["topic.list.heap.memory.limit"]
    (point,) = limit.gauge.data_points
    assert (limit.unit, point.as_int) == ("By", 7 * 2**20)
    assert [(pair.key, pair.value.string_value) for pair in point.attributes] == [("pulsar.cluster", "eu")]
    assert attributes["service.name"] == "penstock"
    assert attributes["service.instance.id"] == broker.url
    assert attributes["deployment.environment"] == "test"
    assert headers["x-team"] == "listings"


def test_what_happened_before_the_end_is_pushed_at_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.url}/v1/metrics")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with serving():
        assert collector.pushes.empty()
    _, attributes, _ = collector.next()
    assert attributes["service.name"] == "mine"


def test_waits_are_a_cumulative_histogram_in_seconds_and_timeouts_a_sum_that_only_rises(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    permits = PermitQueue(PermitLimits(permits_max=1, queue_max=9, timeout_ns=2_000_000_000))
    permits.acquire(1, 0)
    permits.acquire(1, 500_000_000)
    permits.expire(2_500_000_000)
    snapshot = replace(IDLE, listings=replace(IDLE.listings, direct=permits.snapshot(2_500_000_000)))
    push = MetricsPush(lambda: snapshot, {}, "broker-1", INSTRUMENTS)
    push.start()
    push.stop()
    metrics, _, _ = collector.next()
    waits = metrics["topic.list.direct.wait.time"]
    (point,) = waits.histogram.data_points
    assert (waits.unit, point.count, point.sum, point.min, point.max) == ("s", 2, 2.0, 0.0, 2.0)
    assert list(point.explicit_bounds) == [bound / 1e9 for bound in BOUNDS_NS]
    assert [number for number in point.bucket_counts if number] == [1, 1]
    assert waits.histogram.aggregation_temporality == 2  # cumulative
    assert point.start_time_unix_nano == IDLE.started_at_ms * 1_000_000
    timeouts = metrics["topic.list.direct.timeout.total"].sum
    assert (timeouts.is_monotonic, timeouts.data_points[0].as_int) == (True, 1)


def test_every_twin_has_a_name_of_its_own_and_the_unit_of_its_metric() -> None:
    twins = [instrument.otel for instrument in INSTRUMENTS if instrument.otel]
    assert len(twins) == len(set(twins))
    assert set(TWINS) <= set(twins)
    throttling = {twin.replace(".", "_") for twin in twins if "adaptive.throttle" in twin}
    assert len(throttling) == 12
    assert throttling <= {instrument.name for instrument in INSTRUMENTS}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, True),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus, otlp"}, True),
        ({"OTEL_SDK_DISABLED": "false"}, True),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
    ],
)
def test_metrics_are_pushed_where_the_environment_asks_for_it_and_only_there(
    environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(environment) is wanted


def test_an_interval_that_is_none_is_told_and_the_default_counts(caplog: pytest.LogCaptureFixture) -> None:
    push = MetricsPush(lambda: IDLE, {"OTEL_METRIC_EXPORT_INTERVAL": "often"}, "broker-1", INSTRUMENTS)
    assert "OTEL_METRIC_EXPORT_INTERVAL=often" in caplog.text
    assert push._interval_s == INTERVAL_MS / 1000  # noqa: SLF001 - a minute is too long to wait for it


def test_a_protocol_that_is_not_spoken_is_told(caplog: pytest.LogCaptureFixture) -> None:
    MetricsPush(lambda: IDLE, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "broker-1", INSTRUMENTS)
    assert caplog.text == ""
    MetricsPush(lambda: IDLE, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "broker-1", INSTRUMENTS)
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not spoken here" in caplog.text


def test_a_proxy_pushes_its_own_under_its_name(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    (tmp_path / "proxy.conf").write_text("proxyName=front\nclusterName=cluster-a\n")
    arguments = ["--config", str(tmp_path / "proxy.conf")]
    with ProxyProcess("pulsar://127.0.0.1:1", arguments, log_path=tmp_path / "proxy.log"):
        pushed, attributes, _ = collector.next()
    assert set(TWINS) <= pushed.keys()
    assert attributes["service.instance.id"] == "front"
    (point,) = pushed["topic.list.heap.memory.limit"].gauge.data_points
    assert [(pair.key, pair.value.string_value) for pair in point.attributes] == [("pulsar.cluster", "cluster-a")]


def test_without_the_extra_the_broker_runs_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING), serving() as broker:
        assert broker.url
    assert "install penstock[otel]" in caplog.text


def test_a_collector_that_is_away_holds_up_the_end_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody_accepts.getsockname()[1]}")
        took_s = []
        for _ in range(3):
            push = MetricsPush(lambda: IDLE, {}, "broker-1", INSTRUMENTS)
            push.start()
            started_s = time.monotonic()
            push.stop()
            took_s.append(time.monotonic() - started_s)
        # The machine may have had other things to do, once or twice; a push waits ten seconds for its answer.
        assert min(took_s) < LAST_PUSH_S + 0.5


def test_a_broker_that_does_not_answer_is_told_and_the_next_push_comes(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    answers = iter([TimeoutError("busy")])

    def take() -> BrokerSnapshot:
        failure = next(answers, None)
        if failure is not None:
            raise failure
        return IDLE

    push = MetricsPush(take, {"OTEL_METRIC_EXPORT_INTERVAL": "10"}, "broker-1", INSTRUMENTS)
    push.start()
    assert set(TWINS) <= collector.next()[0].keys()
    push.stop()
    assert "metrics could not be pushed" in caplog.text
