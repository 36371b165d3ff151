# SPDX-License-Identifier: Apache-2.0
"""The twelve metrics of PIP-442 for a `TopicListMemoryLimiter`, with their OpenTelemetry names.

Where: `instruments` creates the broker's (`pulsar_broker_…`); a proxy's differ only in prefix and scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.telemetry.instrument import Instrument

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.governance.permit_types import PermitSnapshot
    from penstock.net.topic_list_limiter import TopicListSnapshot
    from penstock.telemetry.instrument import Scope

    Of = Callable[[TopicListSnapshot], PermitSnapshot]
    Listings = Scope[Any, TopicListSnapshot]
    Listing = Instrument[Any, TopicListSnapshot]


def topic_list_instruments(prefix: str, scope: Listings) -> tuple[Listing, ...]:
    """Return the metrics, named `{prefix}topic_list_…`."""
    heap = _memory(f"{prefix}topic_list_heap", "topic.list.heap", scope, lambda s: s.heap, "heap")
    direct = _memory(f"{prefix}topic_list_direct", "topic.list.direct", scope, lambda s: s.direct, "direct")
    return tuple(instrument for pair in zip(heap, direct, strict=True) for instrument in pair)


def _memory(
    name: str,
    otel: str,
    scope: Listings,
    of: Of,
    kind: str,
) -> list[Listing]:
    """Return the metrics of one of the two memories."""
    return [
        Instrument(
            f"{name}_memory_used_bytes",
            "gauge",
            "bytes",
            scope,
            lambda s: of(s).acquired,
            f"Current {kind} memory used by topic listings; 0 when it has no limit",
            f"{otel}.memory.used",
        ),
        Instrument(
            f"{name}_memory_limit_bytes",
            "gauge",
            "bytes",
            scope,
            lambda s: of(s).permits_max,
            f"Configured {kind} memory limit; 0 for none",
            f"{otel}.memory.limit",
        ),
        Instrument(
            f"{name}_queue_size",
            "gauge",
            "",
            scope,
            lambda s: of(s).queue_size,
            f"Current {kind} memory limiter queue size: requests that wait for it, or for their turn to use it",
            f"{otel}.queue.size",
        ),
        Instrument(
            f"{name}_queue_max_size",
            "gauge",
            "",
            scope,
            lambda s: of(s).queue_max,
            f"Maximum {kind} memory limiter queue size; 0 for no maximum",
            f"{otel}.queue.max.size",
        ),
        Instrument(
            f"{name}_wait_time_ms",
            "summary",
            "milliseconds",
            scope,
            lambda s: of(s).waits,
            f"Wait time for {kind} memory permits, had or not; quantiles of the last four to five minutes",
            f"{otel}.wait.time",
        ),
        Instrument(
            f"{name}_timeout_total",
            "counter",
            "",
            scope,
            lambda s: of(s).timeouts_total,
            f"Total {kind} memory permit timeouts",
            f"{otel}.timeout.total",
        ),
    ]
