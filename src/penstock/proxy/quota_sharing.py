# SPDX-License-Identifier: Apache-2.0
"""Shares the quotas of resource groups with the other proxies of the cluster, over a topic of that cluster (PIP-82).

The topic is the proxies' own: on the brokers' topic, brokers report what passes through them, and the same messages
would count twice. Every proxy is its client, with the proxy's own credentials.
Where: `ProxyGroups` asks for the share of each group in use. Nothing runs while no group is defined.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.groups.live_exchange import LiveExchange
from penstock.net.usage_topic import Reporting
from penstock.wire.client.lookup import Lookup, Redirect
from penstock.wire.usage_reports import group_id

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.core.membership import MemberNames, Registration, Registry
    from penstock.core.names import NamespaceName, TopicName
    from penstock.core.usage_report import FourNumbers
    from penstock.groups.group import Group
    from penstock.groups.live_exchange import SharingOptions
    from penstock.net.client import AsyncClient
    from penstock.proxy.groups import ProxyGroups
    from penstock.proxy.upstreams import Identity, Upstreams


class ProxySharing:
    """One proxy's part in the exchange. All methods are called on the event loop.

    Attributes: as `SharingHost`.
    """

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
        self._registry = registry
        self.sent = 0
        self.received = 0
        self.refused: Counter[str] = Counter()
        self.failures = 0
        self.names = names
        self.clock = clock
        self.loop = loop
        self.reporting = Reporting(self._dial, key)
        self._groups = groups
        self._options = options
        self._upstreams = upstreams
        self._identity = identity
        self._running: LiveExchange | None = None
        self._incarnation = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        names.listen(self.review)

    # -- for `ProxyGroups` --------------------------------------------------------------------------------------------

    def share(self, group: Group) -> None:
        """See `Sharing`."""
        if self._running is not None:
            self._running.share(group)
        else:
            group.set_share(group.quota, self.clock.monotonic_ns())

    def forget(self, group: Group) -> None:
        """See `Sharing`."""
        if self._running is not None:
            self._running.forget(group.name)

    def review(self) -> None:
        """See `Sharing`. A proxy without clients takes part, too: the others must know that it uses nothing."""
        definitions = self._groups.definitions
        wanted = bool(
            self._options.enabled and not self._stopping and (definitions.of_namespaces or definitions.of_tenants)
        )
        if wanted and self._running is None:
            # For the others, a later exchange of this process is another process.
            self._incarnation = max(self._incarnation + 1, self.clock.wall_ms())
            self._running = LiveExchange(self, self._options, self._incarnation)
            for group in self._groups.in_use.values():
                self._running.share(group)
            self._running.update()
        elif wanted and self._running is not None:
            self._running.update()
        elif self._running is not None:
            running, self._running = self._running, None
            task = self.loop.create_task(running.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            for group in self._groups.in_use.values():
                self.share(group)

    async def stop(self) -> None:
        """Tell the others that this proxy leaves, and end."""
        self._stopping = True
        running, self._running = self._running, None
        if running is not None:
            await running.leave()
        for task in list(self._ending):
            await task

    @property
    def connected(self) -> bool:
        """Whether reports can be sent."""
        return self._running is not None and self._running.topic.is_open

    # -- for metrics and explanations ---------------------------------------------------------------------------------

    def others(self, group: str) -> Mapping[str, FourNumbers]:
        """What each of the other proxies wants of a group, as it reported; thousandths per second."""
        return self._running.exchange.others(group_id(group)) if self._running is not None else {}

    @property
    def problem(self) -> str | None:
        """Proxies have no registry."""
        return None

    @property
    def members(self) -> int:
        """How many proxies share quotas now; 0 while there is nothing to share."""
        return len(self.names.names) if self._running is not None else 0

    @property
    def registration(self) -> Registration | None:
        """The state of the own registration; None: proxies do not register."""
        return self._registry.registration if self._registry is not None else None

    # -- for `LiveExchange` -------------------------------------------------------------------------------------------

    def owner(self, _topic: TopicName) -> int:
        """See `SharingHost`. Which broker serves the topic is looked up whenever the connection is made."""
        return 0

    async def create_namespace(self, name: NamespaceName) -> None:
        """See `SharingHost`: the cluster's administrators create it."""

    async def _dial(self, _broker: int) -> AsyncClient:
        """Connect to the broker that serves the topic. Raises OSError, PenstockError."""
        lookup = Lookup(str(self._options.topic))
        address = await self._upstreams.cluster(self._identity)
        while True:
            async with self._upstreams.client(address, self._identity) as client:
                found = lookup.answered(
                    await client.request(lookup.question(address), f"looking up {self._options.topic}")
                )
            address = found.address
            if not isinstance(found, Redirect):
                return await self._upstreams.connect(address, self._identity)
