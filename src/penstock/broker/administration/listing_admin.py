# SPDX-License-Identifier: Apache-2.0
"""A list of topics for a caller of the admin port, and its memory for as long as the answer is under way.

Why lent: the answer is written on another thread, which may be slow. The list stays charged as it is for a client of
the binary protocol (PIP-442): heap while it is held, direct for what is being written, both until the caller has it.
Where: routes ask for it through `admin.listings`, which ends the loan by cancelling it, however the request ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.topics.listing import Wanted
from penstock.net.topic_list_limiter import LimitType, Owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.broker import Broker
    from penstock.broker.topics.listing import Mode
    from penstock.broker.topics.listing_blocks import Listing
    from penstock.core.names import NamespaceName


async def lend_listing(
    broker: Broker, namespace: NamespaceName, mode: Mode, lend: Callable[[Listing], None], *, system: bool = False
) -> None:
    """Call `lend` with the topics of a namespace, partitions one by one; keep them in memory until cancelled.

    Raises:
        TenantNotFound, NamespaceNotFound: there is no such namespace.
        PermitError, TooManyRequests: there was no memory for it in time.
    """
    broker.places.check_namespace(namespace)
    limits = broker.limits.listings
    deadline_ns = broker.clock.monotonic_ns() + max(limits.heap_timeout_ns, limits.direct_timeout_ns)
    owner = Owner(namespace.tenant, object())  # every request is a caller of its own
    wanted = Wanted(str(namespace), mode, system=system)
    async with (
        broker.shared_listings.of(wanted).asked(owner, deadline_ns) as listing,
        broker.listings.with_acquired_permits(
            listing.written_bytes, LimitType.DIRECT_MEMORY, owner=owner, deadline_ns=deadline_ns
        ),
    ):
        lend(listing)
        await asyncio.Future()
