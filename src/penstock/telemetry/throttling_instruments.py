# SPDX-License-Identifier: Apache-2.0
"""The metrics of adaptive publish throttling: six of a broker or proxy, and six of each topic on request.

Where: `instruments` adds them to its list. While the feature is disabled, nothing of them is exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.telemetry.instrument import Instrument, Scope

if TYPE_CHECKING:
    from typing import Any

    from penstock.groups.adaptive_throttling import ThrottlingSnapshot, TopicThrottling
    from penstock.stats.server_snapshot import ServerSnapshot

THROTTLING: Final[Scope[ServerSnapshot, ThrottlingSnapshot]] = Scope(
    ("cluster",),
    lambda snapshot: [((snapshot.cluster,), snapshot.throttling)] if snapshot.throttling is not None else [],
    optional=True,
)

OWNERS: Final[Scope[ServerSnapshot, int]] = Scope(
    ("owner",),
    lambda snapshot: (
        [((owner,), nbytes) for owner, nbytes in snapshot.throttling.memory.owners.items()]
        if snapshot.throttling is not None and snapshot.throttling.memory is not None
        else []
    ),
    optional=True,
)

THROTTLED_TOPIC: Final[Scope[ServerSnapshot, TopicThrottling]] = Scope(
    ("topic",),
    lambda snapshot: [((one.topic,), one) for one in (snapshot.throttling.topics if snapshot.throttling else ())],
    optional=True,
)

_BROKER: Final = "pulsar_broker_adaptive_throttle_"
_OTEL: Final = "pulsar.broker.adaptive.throttle."
_TOPIC: Final = "pulsar_broker_topic_adaptive_throttle_"
_OTEL_TOPIC: Final = "pulsar.broker.topic.adaptive.throttle."

# fmt: off
THROTTLING_INSTRUMENTS: Final[tuple[Instrument[ServerSnapshot, Any], ...]] = (
    Instrument(f"{_BROKER}memory_pressure", "gauge", "", THROTTLING, lambda s: s.memory_pressure,
               "Memory pressure, from 0 (below the low watermark) to 1 (at the high one)",
               otel=f"{_OTEL}memory.pressure"),
    Instrument(f"{_BROKER}active_topic_count", "gauge", "", THROTTLING, lambda s: s.active_topics,
               "Topics that are throttled adaptively; 0 while observe-only is on",
               otel=f"{_OTEL}active.topic.count"),
    Instrument(f"{_BROKER}activation_count", "counter", "", THROTTLING, lambda s: s.activations,
               "How often a topic began to be throttled",
               otel=f"{_OTEL}activation.count"),
    Instrument(f"{_BROKER}controller_last_evaluation_timestamp", "gauge", "milliseconds", THROTTLING,
               lambda s: s.last_evaluation_ms,
               "When the last evaluation without a failure ended, in ms since 1970; 0 for never",
               otel=f"{_OTEL}controller.last.evaluation.timestamp"),
    Instrument(f"{_BROKER}controller_evaluation_duration", "gauge", "milliseconds", THROTTLING,
               lambda s: s.evaluation_ns / NS_PER_MS,
               "How long the last evaluation used the event loop, in all its turns",
               otel=f"{_OTEL}controller.evaluation.duration"),
    Instrument(f"{_BROKER}controller_evaluation_failure_count", "counter", "", THROTTLING, lambda s: s.failures,
               "Evaluations that failed; the log says why",
               otel=f"{_OTEL}controller.evaluation.failure.count"),
    # Beyond the six
    Instrument("penstock_adaptive_throttle_interval_seconds", "gauge", "seconds", THROTTLING,
               lambda s: s.interval_ns / NS_PER_S,
               "Time between two evaluations, as it is set now: adaptivePublisherThrottlingIntervalMs"),
    Instrument("penstock_adaptive_throttle_queueing_pressure", "gauge", "", THROTTLING, lambda s: s.queueing_pressure,
               "Pressure of the disk, from 0 (an append takes a quarter of a second) to 1 (a second)"),
    Instrument("penstock_adaptive_throttle_observed_topics", "gauge", "", THROTTLING, lambda s: s.observed_topics,
               "Topics that would be throttled if observe-only were off"),
    Instrument("penstock_adaptive_throttle_active_payers", "gauge", "", THROTTLING, lambda s: s.active_payers,
               "Resource groups and tenants whose topics are throttled together; 0 while observe-only is on"),
    Instrument("penstock_adaptive_throttle_topics_left_out", "gauge", "", THROTTLING, lambda s: s.topics_left_out,
               "Topics without metrics of their own, although these are asked for: 5,000 have them"),
    Instrument("penstock_adaptive_throttle_memory_used_bytes", "gauge", "bytes", THROTTLING,
               lambda s: s.memory.used if s.memory is not None else 0,
               "Memory in use, as the throttle sees it: resident memory without what the allocator keeps"),
    Instrument("penstock_adaptive_throttle_memory_limit_bytes", "gauge", "bytes", THROTTLING,
               lambda s: s.memory.limit if s.memory is not None else 0,
               "The limit that memory is compared with: memoryLimitMB"),
    Instrument("penstock_adaptive_throttle_memory_owner_bytes", "gauge", "bytes", OWNERS, lambda nbytes: nbytes,
               "Memory in use that rows of the memory budget account for, by owner"),
    # Each topic, on request
    Instrument(f"{_TOPIC}active", "gauge", "boolean", THROTTLED_TOPIC, lambda t: int(t.active),
               "1 while the topic is throttled",
               otel=f"{_OTEL_TOPIC}active"),
    Instrument(f"{_TOPIC}natural_publish_rate", "gauge", "", THROTTLED_TOPIC, lambda t: t.natural_messages,
               "Messages per second that producers publish without throttling",
               otel=f"{_OTEL_TOPIC}natural.publish.rate"),
    Instrument(f"{_TOPIC}effective_publish_rate", "gauge", "", THROTTLED_TOPIC, lambda t: t.effective_messages,
               "Messages per second that they may publish now",
               otel=f"{_OTEL_TOPIC}effective.publish.rate"),
    Instrument(f"{_TOPIC}memory_pressure", "gauge", "", THROTTLED_TOPIC, lambda t: t.memory_pressure,
               "Memory pressure when the topic was last evaluated",
               otel=f"{_OTEL_TOPIC}memory.pressure"),
    Instrument(f"{_TOPIC}backlog_pressure", "gauge", "", THROTTLED_TOPIC, lambda t: t.backlog_pressure,
               "Backlog pressure of the topic, from 0 to 1",
               otel=f"{_OTEL_TOPIC}backlog.pressure"),
    Instrument(f"{_TOPIC}rate_reduction_ratio", "gauge", "", THROTTLED_TOPIC, lambda t: t.reduction,
               "The part of the natural rate that is taken away, from 0 to 1",
               otel=f"{_OTEL_TOPIC}rate.reduction.ratio"),
)
# fmt: on
