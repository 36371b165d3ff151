# SPDX-License-Identifier: Apache-2.0
"""Admin operations on clusters: the broker's own, and others that an administrator has created.

Why their URLs are checked: topics are replicated to what is named here, so a text that leads nowhere is refused when it
is set, and not found in a log later. Why secrets are not shown: credentials for another cluster are for this broker
alone, and whoever may read a cluster's URLs would have them.
Where: `replication` reads clusters from the catalog. Operations raise `core.errors` with Pulsar's texts and statuses,
and return copies, like all of administration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.broker.policies.policy_values import CLUSTERS, MIGRATION
from penstock.core.errors import AlreadyExists, AuthorizationFailed, NotFound, PreconditionFailed
from penstock.core.names import check_entity
from penstock.wire.client.lookup import parse_service_url, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.core.service_urls import Addresses
    from penstock.storage.catalog import Catalog

# Members that are stored, and never shown. An update that leaves them out does not change them.
SECRETS: Final = (
    "authenticationParameters",
    "brokerClientTrustStorePassword",
    "brokerClientTlsTrustStorePassword",
    "brokerClientTlsKeyStorePassword",
    "brokerClientSslFactoryPluginParams",
)
# The member that says where this cluster is migrated to; it has routes of its own, which are all that shows it.
_KEPT: Final = (*SECRETS, MIGRATION)
_SCHEMES: Final = {
    "serviceUrl": ("http", 8080),
    "serviceUrlTls": ("https", 8443),
    "brokerServiceUrl": ("pulsar", 6650),
    "brokerServiceUrlTls": ("pulsar+ssl", 6651),
}


def check_name(name: str, refusal: str) -> None:
    """Raises PreconditionFailed, with a text that starts with `refusal`, for a name that cannot be given."""
    try:
        check_entity(name)
    except ValueError as error:
        raise PreconditionFailed(f"{refusal}: {error}") from error


def is_taken(stored: Mapping[str, Any] | None, limits: BrokerLimits) -> bool:
    """Whether a cluster, tenant or namespace exists, so that it cannot be created.

    With authorization, Pulsar has no tenant `public` and no own cluster until a superuser creates them, and set-up
    scripts begin with that. Here they exist from the start, but can be created as long as nothing was set for them.
    """
    return stored is not None and bool(stored or not limits.access.authorizing)


class Clusters:
    """The broker's own cluster, and the created ones."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        limits: Callable[[], BrokerLimits],
        addresses: Addresses,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Receive what this uses. Args: changed: called when a cluster was created, changed or deleted."""
        self._catalog = catalog
        self._changes = changes
        self._limits = limits
        self._addresses = addresses
        self._changed = changed

    @property
    def own(self) -> str:
        return self._limits().cluster_name

    def names(self) -> list[str]:
        return sorted({self.own, *self._catalog.documents(CLUSTERS)})

    def get(self, cluster: str) -> dict[str, Any]:
        """ClusterData of a cluster, without secrets. Raises NotFound."""
        self.check(cluster)
        stored = dict(self._catalog.documents(CLUSTERS).get(cluster) or {})
        for member in _KEPT:
            stored.pop(member, None)
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
        if is_taken(self._catalog.documents(CLUSTERS).get(cluster, ours), self._limits()):
            raise AlreadyExists("Cluster already exists")
        await self._put(cluster, _without_migration(data))

    async def update(self, cluster: str, data: Mapping[str, Any]) -> None:
        """Replace the data of a cluster; secrets that are left out stay. Raises NotFound, PreconditionFailed."""
        self.check(cluster)
        before = self._catalog.documents(CLUSTERS).get(cluster) or {}
        await self._put(cluster, {**{key: before[key] for key in _KEPT if key in before}, **_without_migration(data)})

    async def set_migration(self, cluster: str, migration: Mapping[str, Any]) -> None:
        """Store where a cluster is migrated to."""
        await self._put(cluster, {**(self._catalog.documents(CLUSTERS).get(cluster) or {}), MIGRATION: migration})

    async def delete(self, cluster: str) -> None:
        """Delete a cluster. Raises NotFound, or PreconditionFailed while it has namespaces."""
        self.check(cluster)
        namespaces = self._catalog.namespaces().values()
        used = any(cluster in (policies.get("replication_clusters") or ()) for policies in namespaces)
        if used or cluster == self.own:
            raise PreconditionFailed("Cluster not empty")
        await self._changes.stored(lambda done: self._catalog.put_document(CLUSTERS, cluster, None, done))
        self._changed()

    def check_replication(self, tenant: str, allowed: Collection[str], clusters: Collection[str]) -> None:
        """Check the clusters that are to have the topics of a namespace, or one topic.

        Args:
            tenant: of the topics.
            allowed: the namespace's own allowed clusters; none: those of its tenant alone.
            clusters: as they are to be set.

        Raises:
            PreconditionFailed: there are none, or this cluster is not one of them.
            AuthorizationFailed: one does not exist, or is not allowed.
        """
        if not clusters:
            raise PreconditionFailed("ClusterIds should not be null")
        unknown = set(clusters) - set(self.names())
        if unknown:
            raise AuthorizationFailed(f"Invalid cluster id: {min(unknown)}")
        stored = self._catalog.tenants().get(tenant, {})
        for whose, ones in (
            (f"tenant {tenant}", stored.get("allowedClusters") or (self.own,)),
            ("its namespace", allowed),
        ):
            refused = set(clusters) - set(ones)
            if ones and refused:
                raise AuthorizationFailed(f"Cluster [{min(refused)}] is not in the list of allowed clusters of {whose}")
        if self.own not in clusters:
            raise PreconditionFailed(
                f"The clusters do not include this one, {self.own!r}: its topics stay here until they are deleted, so "
                f"name it, too"
            )

    async def _put(self, cluster: str, data: Mapping[str, Any]) -> None:
        stored = {key: value for key, value in data.items() if value is not None}
        check_urls(stored)
        await self._changes.stored(lambda done: self._catalog.put_document(CLUSTERS, cluster, stored, done))
        self._changed()

    def check(self, cluster: str) -> None:
        """Raises NotFound."""
        if cluster not in self.names():
            raise NotFound("Cluster does not exist")


def _without_migration(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != MIGRATION}


def check_urls(data: Mapping[str, Any]) -> None:
    """Raises PreconditionFailed for a URL of a cluster that leads nowhere."""
    for member, (scheme, port) in _SCHEMES.items():
        if data.get(member):
            _check_url(member, data[member], scheme, port)


def _check_url(member: str, url: str, scheme: str, port: int) -> None:
    """Raises PreconditionFailed for a URL that leads nowhere."""
    wanted, mark, hosts = url.strip().partition("://")
    try:
        if not mark or wanted != scheme:
            raise ValueError(f"it does not begin with {scheme}://")
        # Where a host and a port end is the same for all of these.
        parse_service_url(f"pulsar://{hosts}")
    except ValueError as error:
        raise PreconditionFailed(
            f"Illegal {member} {shortened(url)}, example: {scheme}://pulsar.example.com:{port} ({error})"
        ) from None
