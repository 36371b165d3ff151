# SPDX-License-Identifier: Apache-2.0
"""What topic listings take of their memory at this moment, and who waits for it.

Why: a listing that waits, or was refused, should be explained by a number and a name, not by a guess (PIP-442 ships
metrics alone, which name nobody).
Where: a route of the admin port asks, on the broker's loop; the reference on topic listings explains each member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.units import NS_PER_MS
from penstock.net.topic_list_limiter import LimitType

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.broker.broker import Broker

    Json = dict[str, Any]

# Who comes after these waits for them; more would only make a long answer.
SHOWN_MAX: Final = 100


def listing_memory(broker: Broker) -> Json:
    """Both memories."""
    return {kind.value: _memory(broker, kind) for kind in LimitType}


def _memory(broker: Broker, kind: LimitType) -> Json:
    both = broker.shared_listings.snapshot()
    seen = both.heap if kind is LimitType.HEAP_MEMORY else both.direct
    return {
        "limitBytes": seen.permits_max,
        "usedBytes": seen.acquired,
        "queueSize": seen.queue_size,
        "queueMaxSize": seen.queue_max,
        "timeoutMillis": seen.timeout_ns // NS_PER_MS,
        "longestWaitMillis": seen.oldest_wait_ns // NS_PER_MS,
        "timeouts": seen.timeouts_total,
        "refusedQueueFull": seen.queue_full_total,
        "refusedBeyondLimit": seen.beyond_limit_total,
        "cancelled": seen.cancelled_total,
        "waiting": _waiting(broker, kind) if seen.queue_size else [],
    }


def _waiting(broker: Broker, kind: LimitType) -> list[Json]:
    peers: dict[Hashable, str] = {connection.id: connection.peer for connection in broker.connections.all()}
    return [
        {
            "tenant": one.owner.tenant,
            "address": peers.get(one.owner.connection),
            "wantsBytes": one.wants,
            "hasBytes": one.has,
            "waitedMillis": one.waited_ns // NS_PER_MS,
        }
        for one in broker.listings.limiter(kind).waiting(SHOWN_MAX)
    ]
