# SPDX-License-Identifier: Apache-2.0
"""Topic listings for callers of the admin port: lists on loan, and what listings take of their memory.

Why lent: the answer is written on another thread, which may be slow. The list stays charged as it is for a client of
the binary protocol (PIP-442): heap while it is held, direct for what is being written, both until the caller has it.
Why the memory is shown: a listing that waits, or was refused, should be explained by a number and a name, not by a
guess (PIP-442 ships metrics alone, which name nobody).
Where: routes borrow lists through `admin.listings`, which ends the loan by cancelling it, however the request ends; the
reference on topic listings explains each member of `memory`.
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
    from penstock.broker.topics.places import Places
    from penstock.broker.topics.shared_listings import SharedListings
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName
    from penstock.net.listener import Connections
    from penstock.net.topic_list_limiter import TopicListLimits, TopicListMemoryLimiter

    Json = dict[str, Any]

# Who comes after these waits for them; more would only make a long answer.
SHOWN_MAX: Final = 100


class ListingAdmin:
    """Lists of topics, and their memory."""

    def __init__(
        self,
        *,
        shared: SharedListings,
        limiter: TopicListMemoryLimiter,
        limits: Callable[[], TopicListLimits],
        connections: Connections,
        clock: Clock,
        places: Places,
    ) -> None:
        self._shared = shared
        self._limiter = limiter
        self._limits = limits
        self._connections = connections
        self._clock = clock
        self._places = places

    async def lend(
        self, namespace: NamespaceName, mode: Mode, lend: Callable[[Listing], None], *, system: bool = False
    ) -> None:
        """Call `lend` with the topics of a namespace, partitions one by one; keep them in memory until cancelled.

        Raises:
            TenantNotFound, NamespaceNotFound: there is no such namespace.
            PermitError, TooManyRequests: there was no memory for it in time.
        """
        self._places.check_namespace(namespace)
        limits = self._limits()
        deadline_ns = self._clock.monotonic_ns() + max(limits.heap_timeout_ns, limits.direct_timeout_ns)
        owner = Owner(namespace.tenant, object())  # every request is a caller of its own
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
        """What listings take of both memories at this moment, and who waits for more."""
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
