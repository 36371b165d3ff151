# SPDX-License-Identifier: Apache-2.0
"""What pulsar-perf logs is read as it is meant."""

from __future__ import annotations

import pytest

from benchmarks.official_clients import figures_of

END = "[x] INFO PerformanceProducer - Aggregated throughput stats --- 1234 records sent --- 99.1 msg/s --- 1.0 Mbit/s\n"


def published(rate: float, median_ms: float, p99_ms: float) -> str:
    return (
        f"[x] INFO ProducerStatsRecorderImpl - [t] [p] --- Publish throughput: {rate} msg/s --- 28.7 Mbit/s --- "
        f"Latency: med: {median_ms} ms - 95pct: 464.000 ms - 99pct: {p99_ms} ms - 99.9pct: 483.000 ms - "
        "max: 492.000 ms --- BatchSize: med: 42.000 - 95pct: 293.000 - 99pct: 1000.000 - max: 1000.000\n"
    )


def test_the_first_seconds_and_the_last_do_not_count() -> None:
    slow, last = published(10.0, 900.0, 950.0), published(20.0, 1.0, 2.0)
    log = slow * 3 + published(100.5, 2.0, 8.0) + published(300.5, 4.0, 9.0) + published(200.5, 3.0, 10.0) + last + END

    assert figures_of(log) == ({"messages/s": 200.5, "p50 ms": 3.0, "p99 ms": 9.0}, 1234)


def test_a_short_run_counts_whole() -> None:
    assert figures_of(published(10.0, 1.0, 2.0) + END)[0]["messages/s"] == 10


def test_what_consumers_log_has_no_latency() -> None:
    line = "[x] INFO ConsumerStatsRecorderImpl - [t] [s] [c] Prefetched messages: 22 --- Consume throughput received: "
    assert figures_of(f"{line}57.63 msgs/s --- 0.45 Mbit/s --- Ack sent rate: 0.00 ack/s\n{END}") == (
        {"messages/s": 57.63},
        1234,
    )


def test_a_run_without_a_rate_fails() -> None:
    with pytest.raises(RuntimeError, match="no rate"):
        figures_of("java.lang.OutOfMemoryError")
