# SPDX-License-Identifier: Apache-2.0
"""Where a play happens: one broker, three, or a proxy before one; in virtual time, with a network in memory.

The player gets connections and a tenant administrator's operations from here, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.composition.administration import administration
from penstock.core.names import NamespaceName
from penstock.proxy.groups import Definitions
from penstock.testing.client import Type
from tests.broker.cluster import several
from tests.evade.wire import Gone, Refused, Wire
from tests.net.harness import running
from tests.proxied.harness import KEEP_ALIVE_NS, Proxied, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.broker.administration.administration import Administration
    from penstock.governance.resource_group import GroupRates
    from tests.net.harness import Harness

DATA: Final = Path("/evade")
# The tenant that plays, its two namespaces, and the group in which both are.
TENANT: Final = "shop"
NAMESPACES: Final = (f"{TENANT}/orders", f"{TENANT}/bills")
GROUP: Final = "shoppers"
_BROKER: Final = re.compile(r"broker-(\d+)")


@dataclass(frozen=True)
class Place:
    """Where it is played."""

    brokers: int = 1
    proxy: bool = False

    def __str__(self) -> str:
        if self.proxy:
            return "proxy"
        return "one broker" if self.brokers == 1 else f"{self.brokers} brokers"

    @property
    def flags(self) -> str:
        """The arguments of `make evade` that choose it."""
        return f"{f' BROKERS={self.brokers}' if self.brokers > 1 else ''}{' PROXY=1' if self.proxy else ''}"


@dataclass
class World:
    """Running brokers, and perhaps a proxy before the first."""

    place: Place
    harnesses: list[Harness]
    proxy: Proxied | None = None
    limited_at_proxy: bool = False
    wires: list[Wire] = field(default_factory=list)
    _owners: dict[str, int] = field(default_factory=dict)

    @property
    def admin(self) -> Administration:
        """The operations of the first broker."""
        return self.admin_of(0)

    def admin_of(self, broker: int) -> Administration:
        """The operations of a broker."""
        return administration(self.harnesses[broker].broker)

    async def wire_for(self, topic: str, address: str = "127.0.0.1", *, beside_proxy: bool = False) -> Wire:
        """A new connection to the broker that serves a topic, through a proxy if there is one. Raises Gone, Refused."""
        wire = await self._open(await self.owner(topic), address, beside_proxy=beside_proxy)
        self.wires.append(wire)
        return wire

    async def _open(self, broker: int, address: str = "127.0.0.1", *, beside_proxy: bool = False) -> Wire:
        if self.proxy is not None and not beside_proxy:
            return await Wire.open(self.proxy.port, address, self.proxy.target)
        return await Wire.open(self.harnesses[broker].port, address)

    async def owner(self, topic: str) -> int:
        """The number of the broker that serves a topic. Raises Gone, Refused."""
        if len(self.harnesses) == 1:
            return 0
        if topic not in self._owners:
            wire = await self._open(0)
            answer = await wire.request(Type.LOOKUP, topic=topic)
            wire.abort()
            found = _BROKER.search(answer.lookupTopicResponse.brokerServiceUrl)
            if found is None:
                raise Refused(answer.lookupTopicResponse.message)
            self._owners[topic] = int(found[1])
        return self._owners[topic]

    async def payer(self, topic: str) -> str:
        """A topic as one who pays: deleted and created again, it may be another broker's, which knows no debt of it."""
        return topic if len(self.harnesses) == 1 else f"{topic} at {await self.owner(topic)}"

    def has_subscription(self, topic: str, subscription: str) -> bool:
        """Whether a topic that is loaded has this subscription."""
        loaded = (harness.broker.topics.get(topic) for harness in self.harnesses)
        return any(one is not None and subscription in one.subscriptions for one in loaded)

    def moved(self, topic: str) -> None:
        """Look a topic up anew: it may be served elsewhere."""
        self._owners.pop(topic, None)

    def limit_at_proxy(self, quota: GroupRates) -> None:
        """Give the group this quota at the proxy."""
        assert self.proxy is not None
        self.limited_at_proxy = True
        members = dict.fromkeys(NAMESPACES, GROUP)
        self.proxy.services.groups.define(Definitions({GROUP: quota}, members))

    def close_wires(self) -> None:
        """Everybody goes."""
        for wire in self.wires:
            wire.abort()


@contextlib.asynccontextmanager
async def world(place: Place, **limits: Any) -> AsyncIterator[World]:  # noqa: ANN401 - of a broker, as `running` takes them
    """Run brokers with a tenant and its namespaces."""
    async with contextlib.AsyncExitStack() as stack:
        if place.brokers > 1:
            harnesses = await stack.enter_async_context(
                several(DATA, place.brokers, keep_alive_ns=KEEP_ALIVE_NS, **limits)
            )
        else:
            harnesses = [await stack.enter_async_context(running(DATA, keep_alive_ns=KEEP_ALIVE_NS, **limits))]
        made = World(place, harnesses)
        if place.proxy:
            made.proxy = await stack.enter_async_context(proxied(harnesses[0], authenticates=False))
        await made.admin.tenants.create(TENANT, {"allowedClusters": ["test"]})
        for namespace in NAMESPACES:
            await made.admin.namespaces.create(NamespaceName.parse(namespace))
        try:
            yield made
        finally:
            made.close_wires()
            await asyncio.sleep(0)


__all__ = ["DATA", "GROUP", "NAMESPACES", "TENANT", "Gone", "Place", "Refused", "World", "world"]
