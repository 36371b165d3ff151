# SPDX-License-Identifier: Apache-2.0
"""Topic listings for the admin API, and the memory that listings use.

Why lists are lent: the response is written on another thread, which may be slow. Until it is written, the list stays
charged as for a client of the binary protocol (PIP-442): heap memory while it is held, direct memory for the response.
Why memory is shown: a waiting or refused listing should be explained by numbers and names (PIP-442 has metrics only,
without names).
Where: routes borrow lists through `admin.listings`, which cancels the loan when the request ends; the reference on
topic listings explains each member of `memory`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.topics.listing import Wanted
from penstock.core.units import NS_PER_MS
from penstock.net.topic_list_limiter import LimitType, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.broker.stats import shapes
    from penstock.broker.topics.listing import Mode
    from penstock.broker.topics.listing_blocks import Listing
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.shared_listings import SharedListings
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName
    from penstock.net.listener import Connections
    from penstock.net.topic_list_limiter import TopicListLimits, TopicListMemoryLimiter

    Json = dict[str, Any]

# Maximum number of waiting requests shown.
SHOWN_MAX: Final = 100


class ListingAdmin:
    """Topic listings, and their memory."""

    def __init__(
        self,
        *,
        shared: SharedListings,
        limiter: TopicListMemoryLimiter,
        limits: Callable[[], TopicListLimits],
        connections: Connections,
        clock: Clock,
        resources: NamespaceResources,
    ) -> None:
        self._shared = shared
        self._limiter = limiter
        self._limits = limits
        self._connections = connections
        self._clock = clock
        self._resources = resources

    async def lend(
        self, namespace: NamespaceName, mode: Mode, lend: Callable[[Listing], None], *, system: bool = False
    ) -> None:
        """Call `lend` with the topics of a namespace, partitions one by one; keep the list until cancelled.

        Raises:
            TenantNotFound, NamespaceNotFound: there is no such namespace.
            PermitError, TooManyRequests: there was no memory in time.
        """
        self._resources.check_namespace(namespace)
        limits = self._limits()
        deadline_ns = self._clock.monotonic_ns() + max(limits.heap_timeout_ns, limits.direct_timeout_ns)
        owner = Owner(namespace.tenant, object())  # each request is an owner of its own
        wanted = Wanted(str(namespace), mode, system=system)
        async with (
            self._shared.of(wanted).asked(owner, deadline_ns) as listing,
            self._limiter.with_acquired_permits(
                listing.written_bytes, LimitType.DIRECT_MEMORY, owner=owner, deadline_ns=deadline_ns
            ),
        ):
            lend(listing)
            await asyncio.Future()

    def memory(self) -> shapes.ListingMemories:
        """Current use of both memories by listings, and the waiting requests."""
        return {"heap": self._memory(LimitType.HEAP_MEMORY), "direct": self._memory(LimitType.DIRECT_MEMORY)}

    def _memory(self, kind: LimitType) -> shapes.ListingMemory:
        both = self._shared.snapshot()
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
            "waiting": self._waiting(kind) if seen.queue_size else [],
        }

    def _waiting(self, kind: LimitType) -> list[shapes.WaitingListing]:
        peers: dict[Hashable, str] = {connection.id: connection.peer for connection in self._connections.all()}
        return [
            {
                "tenant": one.owner.tenant,
                "address": peers.get(one.owner.connection),
                "wantsBytes": one.wants,
                "hasBytes": one.has,
                "waitedMillis": one.waited_ns // NS_PER_MS,
            }
            for one in self._limiter.limiter(kind).waiting(SHOWN_MAX)
        ]
