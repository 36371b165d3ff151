# SPDX-License-Identifier: Apache-2.0
"""Shares the quotas of resource groups with the other proxies of the cluster, over a topic of that cluster (PIP-82).

The topic is the proxies' own: on the brokers' topic, brokers report what passes through them, and the same messages
would count twice. Every proxy is its client, with the proxy's own credentials.
Where: `ProxyGroups` asks for the share of each group in use. Nothing runs while no group is defined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.live_exchange import SharedQuotas
from penstock.net.usage_topic import Reporting
from penstock.wire.client.lookup import Lookup, Redirect

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.core.membership import MemberNames, Registry
    from penstock.core.names import NamespaceName, TopicName
    from penstock.groups.live_exchange import SharingOptions
    from penstock.net.client import AsyncClient
    from penstock.proxy.groups import ProxyGroups
    from penstock.proxy.upstreams import Identity, Upstreams


class ProxySharing(SharedQuotas):
    """One proxy's part in the exchange."""

    _groups: ProxyGroups

    def __init__(
        self,
        groups: ProxyGroups,
        names: MemberNames,
        *,
        options: SharingOptions,
        upstreams: Upstreams,
        identity: Identity,
        key: bytes,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        registry: Registry | None = None,
    ) -> None:
        """Args: identity: the proxy's own; key: signs reports, the same for all proxies; registry: if they register."""
        super().__init__(groups, names, registry, Reporting(self._dial, key), lambda: options, clock, loop)
        self._topic = str(options.topic)
        self._upstreams = upstreams
        self._identity = identity

    def _wanted(self) -> bool:
        """See `SharedQuotas`. A proxy without clients takes part, too: the others must know that it uses nothing."""
        definitions = self._groups.definitions
        return bool(definitions.of_namespaces or definitions.of_tenants)

    def owner(self, _topic: TopicName) -> int:
        """See `SharedQuotas`. Which broker serves the topic is looked up whenever the connection is made."""
        return 0

    async def create_namespace(self, name: NamespaceName) -> None:
        """See `SharedQuotas`: the cluster's administrators create it."""

    async def _dial(self, _broker: int) -> AsyncClient:
        """Connect to the broker that serves the topic. Raises OSError, PenstockError."""
        lookup = Lookup(self._topic)
        address = await self._upstreams.cluster(self._identity)
        while True:
            async with self._upstreams.client(address, self._identity) as client:
                found = lookup.answered(await client.request(lookup.question(address), f"looking up {self._topic}"))
            address = found.address
            if not isinstance(found, Redirect):
                return await self._upstreams.connect(address, self._identity)
