# SPDX-License-Identifier: Apache-2.0
"""Parts of the proxy for `recorder`, apart from it: where nothing is recorded, the recorder is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.net.listener import Connections
    from penstock.net.listing_memory import TopicListMemoryLimiter
    from penstock.proxy.groups import ProxyGroups
    from penstock.proxy.traffic import Traffic
    from penstock.proxy.upstreams import Identity, Upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderParts:
    """Parts of the proxy that recording uses."""

    connections: Connections
    groups: ProxyGroups
    listings: TopicListMemoryLimiter
    traffic: Traffic
    upstreams: Upstreams
    identity: Identity  # of the proxy itself
    memory: Row  # of the counters of usage
    unanswered: Row  # of SENDs that wait for receipts
    clock: Clock
    loop: asyncio.AbstractEventLoop
