# SPDX-License-Identifier: Apache-2.0
"""Admin operations on the broker itself: identity, health, owned namespaces, shutdown."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.errors import NotAllowed, NotFound
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from penstock.broker.health import Health
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.rounds import Rounds
    from penstock.broker.service_urls import Addresses
    from penstock.broker.topics.places import Places
    from penstock.broker.topics.topic import Topic
    from penstock.storage.catalog import Catalog

    Json = dict[str, Any]


class Place(NamedTuple):
    """Service URLs of the broker, and what it serves."""

    web_url: str | None
    web_url_tls: str | None
    service_url: str | None
    service_url_tls: str | None
    persistent_topics: bool
    non_persistent_topics: bool
    bundles: list[str]


class Service:
    """The broker as the only member of its cluster."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        places: Places,
        rounds: Rounds[Topic],
        limits: Callable[[], BrokerLimits],
        health: Callable[[], Health],
        addresses: Addresses,
        shut_down: Callable[[], None] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._catalog = catalog
        self._places = places
        self._rounds = rounds
        self._limits = limits
        self._health = health
        self._addresses = addresses
        self._shut_down = shut_down  # ends the process; None: not allowed
        self._loop = loop

    @property
    def id(self) -> str:
        """The broker's id: host and port of its admin API."""
        web, service = self._addresses.web, self._addresses.service
        return (web.plain or web.tls or service.plain or service.tls or "").partition("://")[2]

    def names(self, cluster: str | None = None) -> list[str]:
        """Ids of the brokers of a cluster: this one. Raises NotFound for another cluster."""
        self._check_cluster(cluster)
        return [self.id]

    def leader(self) -> Json:
        """The leader broker: always this one."""
        web = self._addresses.web
        return {"brokerId": self.id, "serviceUrl": web.plain or web.tls}

    def owned_namespaces(self, cluster: str, broker_id: str) -> Json:
        """The bundles that a broker serves: all. Raises NotFound for another broker id."""
        self._check_cluster(cluster)
        self.check(broker_id)
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return dict.fromkeys(self.place().bundles, status)

    def check(self, broker_id: str | None) -> None:
        """Raises NotFound for another broker id; None means this broker."""
        if broker_id is not None and broker_id != self.id:
            raise NotFound(f"broker {broker_id} does not exist; this one is {self.id}")

    def ill(self) -> str | None:
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
            "ledgersRootPath": "broker-0/log",
            "bookkeeperMetadataServiceUri": None,
            "stateStorageServiceUrl": None,
        }

    async def check_backlog_quotas(self) -> None:
        await self._rounds.run("backlog quota check")

    def shut_down(self) -> None:
        """End the process like SIGTERM; pending responses are sent first.

        Raises:
            NotAllowed: the broker is embedded in another program.
        """
        if self._shut_down is None:
            raise NotAllowed("this broker runs inside another program, which alone can end it")
        self._loop.call_soon(self._shut_down)

    def place(self) -> Place:
        """Broker data of a load report, without the load."""
        web, service, limits = self._addresses.web, self._addresses.service, self._limits()
        return Place(
            web.plain or None,
            web.tls,
            service.plain or None,
            service.tls,
            limits.persistent_topics,
            limits.non_persistent_topics,
            [bundle for namespace in self._catalog.namespaces() for bundle in self._bundles(namespace)],
        )

    def _bundles(self, namespace: str) -> list[str]:
        bounds = self._places.boundaries(NamespaceName(*namespace.split("/")))
        return [f"{namespace}/{low}_{high}" for low, high in pairwise(bounds)]

    def _check_cluster(self, cluster: str | None) -> None:
        if cluster is not None and cluster != self._limits().cluster_name:
            raise NotFound(f"Cluster does not exist: cluster={cluster}")
