# SPDX-License-Identifier: Apache-2.0
"""Pushes metrics to an OpenTelemetry collector, with OTLP over HTTP.

Why not the SDK's own instruments: they would count a second time what mechanisms count already. Here the list of
`instruments` is read from a frozen snapshot, as for Prometheus, and converted to the SDK's values, which its exporter
sends. Instruments with an OpenTelemetry name (`otel`) are pushed.

Where: app starts a `MetricsPush` if the environment asks for one; the variables are those of OpenTelemetry, and the
exporter reads most of them. It needs `penstock[otel]`, and imports it in its own thread.

A summary, too, becomes a histogram in seconds: a collector can add histograms of several brokers, but not quantiles.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from penstock import __version__
from penstock.core.durations import BOUNDS_NS, DurationsSnapshot
from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import DataT, Metric, MetricsData
    from opentelemetry.sdk.resources import Resource

    from penstock.governance.wait_times import WaitTimesSnapshot
    from penstock.stats.snapshot import ServerSnapshot
    from penstock.telemetry.instrument import Instrument

log = logging.getLogger(__name__)

S = TypeVar("S", bound="ServerSnapshot")

# OpenTelemetry's default.
INTERVAL_MS: Final = 60_000
# How long the end of the broker waits for the last push: a collector that is away must not hold it up.
LAST_PUSH_S: Final = 1.0

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOL: Final = "http/protobuf"
_UNITS: Final = {"bytes": "By", "seconds": "s", "milliseconds": "ms", "percent": "%", "boolean": "1", "": ""}
# Labels as Pulsar names them in OpenTelemetry.
_ATTRIBUTES: Final = {
    "cluster": "pulsar.cluster",
    "namespace": "pulsar.namespace",
    "topic": "pulsar.topic",
    "subscription": "pulsar.subscription.name",
}
_OF_TIMES: Final = ("summary", "histogram")
_MISSING: Final = (
    "metrics are not pushed to OpenTelemetry: %s; install penstock[otel], or set OTEL_METRICS_EXPORTER=none"
)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables ask for metrics: an endpoint or the exporter is set and not disabled.

    `OTEL_SDK_DISABLED=false` alone also asks for them, as in Pulsar; then the collector is at the default URL.
    """
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower()
    exporters = [
        name.strip() for name in environment.get("OTEL_METRICS_EXPORTER", "").lower().split(",") if name.strip()
    ]
    if disabled == "true" or (exporters and "otlp" not in exporters):
        return False
    return bool(exporters) or disabled == "false" or any(environment.get(name) for name in _ENDPOINTS)


class MetricsPush:
    """A thread that pushes the metrics periodically, and once more at the end."""

    def __init__(
        self,
        take: Callable[[], S],
        environment: Mapping[str, str],
        instance: str,
        instruments: Sequence[Instrument[S, Any]],
    ) -> None:
        """Create the thread; `start` starts it.

        Args:
            take: returns a snapshot, called in this thread; it may raise if the broker does not answer.
            environment: the process's, of which the exporter reads its own part.
            instance: identifies this broker or proxy in its cluster.
            instruments: the list of metrics.
        """
        self._data: Callable[[Resource], MetricsData] = lambda about: metrics_data(take(), about, instruments)
        self._instance = instance
        self._interval_s = _interval_ms(environment) / 1000
        _check_protocol(environment)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)

    def start(self) -> None:
        """Push from now on, for the first time after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Push once more and end, within a second. Not on the broker's loop, which the last push needs."""
        self._ended.set()
        self._thread.join(LAST_PUSH_S)

    def _run(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - see above
                OTLPMetricExporter,
            )
        except ImportError as error:
            log.warning(_MISSING, error)
            return
        exporter = OTLPMetricExporter()
        log.info("metrics are pushed by OTLP every %g s", self._interval_s)
        while not self._ended.wait(self._interval_s):
            self._push(exporter)
        self._push(exporter)
        exporter.shutdown()

    def _push(self, exporter: OTLPMetricExporter) -> None:
        # The exporter logs on its own what a collector refuses; anything else must not end the next push.
        try:
            exporter.export(self._data(resource(self._instance)))
        except Exception:
            log.exception("metrics could not be pushed; the next push is tried as usual")


def resource(instance: str) -> Resource:
    """Return the resource, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES set it."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - as above

    ours = Resource({"service.name": "penstock", "service.version": __version__, "service.instance.id": instance})
    return ours.merge(OTELResourceDetector().detect())


def metrics_data(snapshot: S, resource: Resource, instruments: Iterable[Instrument[S, Any]]) -> MetricsData:
    """Return the data to export now: all instruments with an OpenTelemetry name."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics  # noqa: PLC0415 - as above
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    metrics = [
        _metric(instrument, snapshot)
        for instrument in instruments
        if instrument.otel and not (instrument.scope.optional and not list(instrument.scope.rows(snapshot)))
    ]
    scope = ScopeMetrics(InstrumentationScope("penstock", __version__), metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _metric(instrument: Instrument[S, Any], snapshot: S) -> Metric:
    from opentelemetry.sdk.metrics.export import Metric  # noqa: PLC0415

    scope = instrument.scope
    attributes = [_ATTRIBUTES.get(label, label) for label in scope.labels]
    rows = [(dict(zip(attributes, values, strict=True)), instrument.read(row)) for values, row in scope.rows(snapshot)]
    unit = "s" if instrument.kind in _OF_TIMES else _UNITS[instrument.unit]
    return Metric(instrument.otel, instrument.help, unit, _data(instrument.kind, rows, snapshot))


def _data(kind: str, rows: list[tuple[dict[str, str], Any]], snapshot: ServerSnapshot) -> DataT:
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415

    started_ns, now_ns = snapshot.started_at_ms * NS_PER_MS, snapshot.taken_at_ms * NS_PER_MS
    cumulative = export.AggregationTemporality.CUMULATIVE
    if kind in _OF_TIMES:
        return export.Histogram([_histogram(labels, waits, started_ns, now_ns) for labels, waits in rows], cumulative)
    points = [export.NumberDataPoint(labels, started_ns, now_ns, number) for labels, number in rows]
    return export.Sum(points, cumulative, is_monotonic=True) if kind == "counter" else export.Gauge(points)


def _histogram(
    labels: dict[str, str], waits: WaitTimesSnapshot | DurationsSnapshot, started_ns: int, now_ns: int
) -> Any:  # noqa: ANN401
    from opentelemetry.sdk.metrics.export import HistogramDataPoint  # noqa: PLC0415

    if isinstance(waits, DurationsSnapshot):
        times, shortest, longest = waits, None, None
    else:
        times, shortest, longest = waits.times, waits.shortest_ns / NS_PER_S, waits.longest_ns / NS_PER_S
    return HistogramDataPoint(
        labels,
        started_ns,
        now_ns,
        count=times.count,
        sum=times.sum_ns / NS_PER_S,
        bucket_counts=times.counts,
        explicit_bounds=[bound_ns / NS_PER_S for bound_ns in BOUNDS_NS],
        min=cast("float", shortest),  # may be left out in the protocol
        max=cast("float", longest),
    )


def _check_protocol(environment: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(name, "").strip()
        if protocol:
            if protocol != _PROTOCOL:
                log.warning("%s=%s is not spoken here; metrics are pushed by %s", name, protocol, _PROTOCOL)
            return


def _interval_ms(environment: Mapping[str, str]) -> int:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not text:
        return INTERVAL_MS
    if text.isdecimal() and int(text) > 0:
        return int(text)
    log.warning("OTEL_METRIC_EXPORT_INTERVAL=%s is no number of milliseconds above 0; %d is used", text, INTERVAL_MS)
    return INTERVAL_MS
