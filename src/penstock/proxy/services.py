# SPDX-License-Identifier: Apache-2.0
"""What all sessions of a proxy share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.governance.command_memory import CommandMemory
    from penstock.governance.memory_pool import Lease
    from penstock.groups.held_memory import HeldMemory
    from penstock.groups.held_permits import PermitSteps
    from penstock.net.keep_alive import KeepAliveLimits
    from penstock.proxy.client_identity import Authentication
    from penstock.proxy.groups import ProxyGroups
    from penstock.proxy.listings import Listings
    from penstock.proxy.published_topics import PublishedTopics
    from penstock.proxy.session import Session
    from penstock.proxy.targets import Targets
    from penstock.proxy.traffic import Traffic
    from penstock.proxy.upstreams import Upstreams
    from penstock.proxy.usage import UsageCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services shared by all sessions of a proxy."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    limits: Callable[[], KeepAliveLimits]
    upstreams: Upstreams
    targets: Targets
    listings: Listings
    groups: ProxyGroups
    held: HeldMemory  # of SENDs that wait for a resource group
    permit_steps: PermitSteps
    published: PublishedTopics | None = None  # None: adaptive throttling is off
    release: Callable[[Lease], None]  # of request memory
    commands_memory: CommandMemory
    sessions_memory: Row
    traffic: Traffic
    usage: UsageCounts | None  # None: usage is not recorded
    frame_bytes_max: int  # of clients
    authentication: Authentication | None = None  # None: brokers check what clients show
    closed: Callable[[Session, str], None]  # called when a client has disconnected, with the reason
