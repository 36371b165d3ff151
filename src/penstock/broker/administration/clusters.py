# SPDX-License-Identifier: Apache-2.0
"""Admin operations on clusters: the broker's own, and others that an administrator has created.

They raise `core.errors` with Pulsar's texts and statuses, and return copies, like all of administration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.broker.administration.entities import check_name, is_taken
from penstock.core.errors import AlreadyExists, NotFound, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.core.service_urls import Addresses
    from penstock.storage.catalog import Catalog

KIND: Final = "cluster"  # the kind of a cluster's document


class Clusters:
    """The broker's own cluster, and the created ones."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        limits: Callable[[], BrokerLimits],
        addresses: Addresses,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._limits = limits
        self._addresses = addresses

    @property
    def own(self) -> str:
        return self._limits().cluster_name

    def names(self) -> list[str]:
        return sorted({self.own, *self._catalog.documents(KIND)})

    def get(self, cluster: str) -> dict[str, Any]:
        """ClusterData of a cluster. Raises NotFound."""
        self._check(cluster)
        stored = dict(self._catalog.documents(KIND).get(cluster) or {})
        if cluster == self.own:
            web, service = self._addresses.web, self._addresses.service
            stored.setdefault("serviceUrl", web.plain or None)
            stored.setdefault("serviceUrlTls", web.tls)
            stored.setdefault("brokerServiceUrl", service.plain or None)
            stored.setdefault("brokerServiceUrlTls", service.tls)
        return stored

    async def create(self, cluster: str, data: Mapping[str, Any]) -> None:
        """Create a cluster. Raises AlreadyExists, PreconditionFailed."""
        check_name(cluster, "Cluster name is not valid")
        ours: dict[str, Any] | None = {} if cluster == self.own else None
        if is_taken(self._catalog.documents(KIND).get(cluster, ours), self._limits()):
            raise AlreadyExists("Cluster already exists")
        await self._put(cluster, data)

    async def update(self, cluster: str, data: Mapping[str, Any]) -> None:
        """Replace the data of a cluster. Raises NotFound."""
        self._check(cluster)
        await self._put(cluster, data)

    async def delete(self, cluster: str) -> None:
        """Delete a cluster. Raises NotFound, or PreconditionFailed while it has namespaces."""
        self._check(cluster)
        namespaces = self._catalog.namespaces().values()
        used = any(cluster in (policies.get("replication_clusters") or ()) for policies in namespaces)
        if used or cluster == self.own:
            raise PreconditionFailed("Cluster not empty")
        await self._changes.stored(lambda done: self._catalog.put_document(KIND, cluster, None, done))

    async def _put(self, cluster: str, data: Mapping[str, Any]) -> None:
        stored = {key: value for key, value in data.items() if value is not None}
        await self._changes.stored(lambda done: self._catalog.put_document(KIND, cluster, stored, done))

    def _check(self, cluster: str) -> None:
        if cluster not in self.names():
            raise NotFound("Cluster does not exist")
