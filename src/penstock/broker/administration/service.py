# SPDX-License-Identifier: Apache-2.0
"""Admin operations on brokers: identity, health, owned namespaces, shutdown."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.errors import NotAllowed, NotFound, ServiceNotReady
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.health import Health
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.periodic_checks import PeriodicChecks
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.broker.topics.topic import Topic
    from penstock.core.membership import Membership
    from penstock.core.service_urls import Addresses
    from penstock.storage.catalog import Catalog

    Json = dict[str, Any]


class LocalBrokerData(NamedTuple):
    """Service URLs of the broker, and what it serves."""

    web_url: str | None
    web_url_tls: str | None
    service_url: str | None
    service_url_tls: str | None
    persistent_topics: bool
    non_persistent_topics: bool
    bundles: list[str]


class Service:
    """This broker, and what it knows of the others. A broker's id is host and port of its admin API."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        resources: NamespaceResources,
        checks: PeriodicChecks[Topic],
        limits: Callable[[], BrokerLimits],
        health: Callable[[], Health],
        addresses: Addresses,
        membership: Membership,
        elsewhere: Elsewhere,
        shut_down: Callable[[], None] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._catalog = catalog
        self._resources = resources
        self._rounds = checks
        self._limits = limits
        self._health = health
        self._addresses = addresses
        self._membership = membership
        self._elsewhere = elsewhere
        self._shut_down = shut_down  # ends the process; None: not allowed
        self._loop = loop

    @property
    def id(self) -> str:
        """The id of this broker."""
        return _id(self._addresses)

    def names(self, cluster: str | None = None) -> list[str]:
        """Ids of the brokers of a cluster that serve. Raises NotFound for another cluster."""
        self._check_cluster(cluster)
        return [_id(self._ready()[number]) for number in sorted(self._ready())]

    def leader(self) -> Json:
        """The leader broker: the first one that serves. Nothing depends on it."""
        first = self._ready()[min(self._ready())]
        return {"brokerId": _id(first), "serviceUrl": first.web.plain or first.web.tls}

    def _ready(self) -> dict[int, Addresses]:
        members = self._membership.members.values()
        others = {one.number: one.addresses for one in members if one.allows.serves}
        return {**others, self._membership.own: self._addresses}

    def owned_namespaces(self, cluster: str, broker_id: str) -> Json:
        """The bundles that a broker serves: all, for each of them has topics of every broker.

        Raises NotFound for an unknown broker id.
        """
        self._check_cluster(cluster)
        self._number(broker_id)
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return dict.fromkeys(self.local_broker_data().bundles, status)

    async def check_healthy(self, broker_id: str | None) -> None:
        """Raises ServiceNotReady if a broker is not healthy, NotFound for an unknown id; None means this broker."""
        number = self._number(broker_id)
        if number != self._membership.own:
            await self._elsewhere.ask(number, "GET", "/admin/v2/brokers/health")
            return
        reason = self.unhealthy_reason()
        if reason is not None:
            raise ServiceNotReady(reason)

    def _number(self, broker_id: str | None) -> int:
        numbers = {_id(addresses): number for number, addresses in self._ready().items()}
        number = self._membership.own if broker_id is None else numbers.get(broker_id)
        if number is None:
            raise NotFound(f"broker {broker_id} does not exist, or is down; this one is {self.id}")
        return number

    def unhealthy_reason(self) -> str | None:
        """Why the broker is unhealthy; None if it is healthy."""
        health = self._health()
        return None if health.ok else health.reason

    def status_file(self) -> Path | None:
        """The file whose presence means that the broker is in service; None if not set, or if it is unhealthy."""
        return self._limits().status_file if self._health().ok else None

    def internal_configuration(self) -> Json:
        """Where metadata is stored: in the broker's data directory."""
        return {
            "metadataStoreUrl": "sqlite:meta.sqlite",
            "configurationMetadataStoreUrl": "sqlite:meta.sqlite",
            "ledgersRootPath": f"broker-{self._membership.own}/log",
            "bookkeeperMetadataServiceUri": None,
            "stateStorageServiceUrl": None,
        }

    async def check_backlog_quotas(self) -> None:
        await self._rounds.run("backlog quota check")
        await self._elsewhere.ask_all("GET", "/admin/v2/brokers/backlog-quota-check", self._elsewhere.running())

    def shut_down(self) -> None:
        """End the process like SIGTERM; pending responses are sent first.

        Raises:
            NotAllowed: the broker is embedded in another program.
        """
        if self._shut_down is None:
            raise NotAllowed("this broker runs inside another program, which alone can end it")
        self._loop.call_soon(self._shut_down)

    def local_broker_data(self) -> LocalBrokerData:
        """Broker data of a load report, without the load."""
        web, service, limits = self._addresses.web, self._addresses.service, self._limits()
        return LocalBrokerData(
            web.plain or None,
            web.tls,
            service.plain or None,
            service.tls,
            limits.persistent_topics,
            limits.non_persistent_topics,
            [bundle for namespace in self._catalog.namespaces() for bundle in self._bundles(namespace)],
        )

    def _bundles(self, namespace: str) -> list[str]:
        bounds = self._resources.bundle_boundaries(NamespaceName(*namespace.split("/")))
        return [f"{namespace}/{low}_{high}" for low, high in pairwise(bounds)]

    def _check_cluster(self, cluster: str | None) -> None:
        if cluster is not None and cluster != self._limits().cluster_name:
            raise NotFound(f"Cluster does not exist: cluster={cluster}")


def _id(addresses: Addresses) -> str:
    web, service = addresses.web, addresses.service
    return (web.plain or web.tls or service.plain or service.tls or "").partition("://")[2]
