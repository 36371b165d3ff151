# SPDX-License-Identifier: Apache-2.0
"""Admin operations on namespaces: create, delete, unload, split into bundles.

Their policies are changed in `policy_admin`, their permissions in `permissions`.
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.administration.clusters import check_name, is_taken
from penstock.broker.administration.service import bundle_index
from penstock.broker.elsewhere import of_namespace
from penstock.broker.policies.policy_values import OF_NAMESPACE, OF_TENANT, RESOURCE_GROUP
from penstock.broker.topics.deleting import DOMAINS
from penstock.broker.topics.namespaces import bundles
from penstock.broker.topics.partitions import in_turns
from penstock.core.errors import AlreadyExists, NamespaceNotFound, NotAllowed, NotFound, PreconditionFailed
from penstock.core.names import NamespaceName, TopicName
from penstock.core.system_topics import is_system_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.broker.administration.clusters import Clusters
    from penstock.broker.changes import Changes, Submit
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.topics.deleting import Deleting
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic_life import TopicLife
    from penstock.storage.catalog import Catalog


# -- admin operations on tenants: their admin roles and allowed clusters -----------------------------------------------


class Tenants:
    """Tenants, stored as Pulsar's TenantInfo: {"adminRoles": [...], "allowedClusters": [...]}."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        resources: NamespaceResources,
        clusters: Clusters,
        namespaces: Namespaces,
        limits: Callable[[], BrokerLimits],
        revoke: Callable[[str], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._resources = resources
        self._clusters = clusters
        self._namespaces = namespaces
        self._limits = limits
        self._revoke = revoke  # disconnects clients of a tenant that are no longer authorized

    def names(self) -> list[str]:
        return sorted(self._catalog.tenants())

    def get(self, tenant: str) -> dict[str, Any]:
        """TenantInfo of a tenant. Raises TenantNotFound."""
        self._resources.check_tenant(tenant)
        stored = self._catalog.tenants()[tenant]
        return {
            "adminRoles": list(stored.get("adminRoles") or ()),
            # Tenants that penstock creates itself are allowed in its own cluster.
            "allowedClusters": list(stored.get("allowedClusters") or (self._clusters.own,)),
        }

    async def create(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Create a tenant. Raises AlreadyExists, or PreconditionFailed for invalid values."""
        check_name(tenant, "Tenant name is not valid")
        stored = self._checked(info)

        def put() -> Submit:
            before = self._catalog.tenants().get(tenant)
            if is_taken(before, self._limits()):
                raise AlreadyExists("Tenant already exist")
            return partial(self._catalog.put_tenant, tenant, stored, expected=before)

        await self._changes.store_alone(put)

    async def update(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Replace a TenantInfo. Raises TenantNotFound, PreconditionFailed."""
        self._resources.check_tenant(tenant)
        stored = self._checked(info)

        def put() -> Submit:
            self._resources.check_tenant(tenant)
            # TenantInfo does not mention the resource group: it stays.
            before = self._catalog.tenants()[tenant]
            kept = {key: value for key, value in before.items() if key == OF_TENANT}
            return partial(self._catalog.put_tenant, tenant, {**stored, **kept}, expected=before)

        await self._changes.store_alone(put)
        await self._revoke(tenant)

    async def delete(self, tenant: str, *, force: bool = False) -> None:
        """Delete a tenant; with `force`, including its namespaces and topics.

        Raises:
            TenantNotFound: it does not exist.
            NotAllowed: `force` is set, and `forceDeleteTenantAllowed` is off.
            AlreadyExists: it has namespaces.
        """
        if force and not self._limits().force_delete_tenant:
            raise NotAllowed("Broker doesn't allow forced deletion of tenants")
        self._resources.check_tenant(tenant)
        if force:
            for namespace in self._namespaces.names(tenant):
                with contextlib.suppress(NamespaceNotFound):  # Another request is deleting it.
                    await self._namespaces.delete_with_topics(NamespaceName.parse(namespace))

        def delete() -> Submit:
            if self._namespaces.names(tenant):
                raise AlreadyExists("The tenant still has active namespaces")
            return partial(self._catalog.delete_tenant, tenant)

        await self._changes.store_alone(delete)

    def _checked(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Check a TenantInfo and fill in missing fields. Raises PreconditionFailed."""
        roles = list(info.get("adminRoles") or ())
        if any(role.strip() != role for role in roles):
            raise PreconditionFailed("AdminRoles contains whitespace in the beginning or end.")
        clusters = list(info.get("allowedClusters") or ())
        if not clusters or not all(cluster.strip() for cluster in clusters):
            raise PreconditionFailed("Clusters can not be empty")
        if not set(clusters) <= set(self._clusters.names()):
            raise PreconditionFailed("Clusters do not exist")
        return {"adminRoles": sorted(set(roles)), "allowedClusters": sorted(set(clusters))}


BUNDLES_MAX: Final = 2**32 - 1


class Namespaces:
    """Namespaces, stored as Pulsar's Policies."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        policies: PolicyService,
        topics: TopicDirectory,
        resources: NamespaceResources,
        partitions: Partitions,
        life: TopicLife,
        clusters: Clusters,
        limits: Callable[[], BrokerLimits],
        check_group: Callable[[str | None], None],
        placement: Placement,
        elsewhere: Elsewhere,
        deleting: Deleting,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._policies = policies
        self._topics = topics
        self._resources = resources
        self._partitions = partitions
        self._life = life
        self._clusters = clusters
        self._limits = limits
        self._placement = placement
        self._elsewhere = elsewhere
        self._deleting = deleting
        self._check_group = check_group  # raises PreconditionFailed if there is no such resource group

    def names(self, tenant: str) -> list[str]:
        """Full names of a tenant's namespaces. Raises TenantNotFound."""
        self._resources.check_tenant(tenant)
        return sorted(name for name in self._catalog.namespaces() if name.startswith(f"{tenant}/"))

    def check(self, namespace: NamespaceName) -> None:
        """Raises TenantNotFound or NamespaceNotFound."""
        self._resources.check_namespace(namespace)

    def get(self, namespace: NamespaceName) -> dict[str, Any]:
        """The namespace's Policies JSON, with all members of Pulsar's. Raises TenantNotFound, NamespaceNotFound."""
        self._resources.check_namespace(namespace)
        policies = self._policies.as_pulsar_json(str(namespace))
        policies["replication_clusters"] = policies["replication_clusters"] or [self._clusters.own]
        if "bundles" not in self._policies.namespace(str(namespace)):
            policies["bundles"] = bundles(self._limits().namespace_bundles)
        return policies

    async def create(self, namespace: NamespaceName, policies: Mapping[str, Any] | None = None) -> None:
        """Create a namespace with these policies.

        Raises:
            TenantNotFound: its tenant does not exist.
            AlreadyExists: it exists.
            PreconditionFailed: its name or the number of bundles is invalid, or a cluster does not exist.
        """
        check_name(namespace.namespace, "Namespace name is not valid")
        self._resources.check_tenant(namespace.tenant)
        text = str(namespace)
        stored = {key: value for key, value in (policies or {}).items() if value is not None}
        number = (stored.get("bundles") or {}).get("numBundles") or self._limits().namespace_bundles
        if not 0 < number <= BUNDLES_MAX:
            raise PreconditionFailed(
                f"Invalid number of bundles. Number of bundles has to be in the range of (0, 2^32), got {number}"
            )
        stored["bundles"] = stored.get("bundles") if _has_boundaries(stored) else bundles(number)
        stored["replication_clusters"] = list(stored.get("replication_clusters") or [self._clusters.own])
        if not set(stored["replication_clusters"]) <= set(self._clusters.names()):
            raise PreconditionFailed("Clusters do not exist")

        def put() -> Submit:
            self._resources.check_tenant(namespace.tenant)
            before, group = self._catalog.namespaces().get(text), stored.get(OF_NAMESPACE)
            if is_taken(before, self._limits()):
                raise AlreadyExists("Namespace already exists")
            self._check_group(group)
            needed = (RESOURCE_GROUP, group) if group is not None else None
            return partial(self._catalog.put_namespace, text, stored, expected=before, needed=needed)

        await self._changes.store_alone(put)
        self._policies.refresh_namespace(text)

    async def delete(self, namespace: NamespaceName, *, force: bool = False) -> None:
        """Delete a namespace; with `force`, including its topics.

        Raises:
            TenantNotFound, NamespaceNotFound: it does not exist.
            NotAllowed: `force` is set, and `forceDeleteNamespaceAllowed` is off.
            AlreadyExists: it has topics.
        """
        if force and not self._limits().force_delete_namespace:
            raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
        self._deleting.check_deletable(namespace)
        text = str(namespace)
        if not force:
            partitioned = [name for domain in DOMAINS for name in self._partitions.of_namespace(text, domain)]
            if any(not is_system_topic(name) for name in self._topic_names(text) + partitioned):
                raise AlreadyExists("Cannot delete non empty namespace")
        await self.delete_with_topics(namespace)

    async def delete_with_topics(self, namespace: NamespaceName) -> None:
        """As `Deleting.namespace`."""
        await self._deleting.namespace(namespace)

    async def unload(self, namespace: NamespaceName, bundle: str | None = None) -> None:
        """Unload all topics of a namespace or of one bundle; their clients reconnect."""
        names, brokers = self.divided(namespace, bundle)
        await in_turns(self._life.unload, [name for name in names if self._topics.get(str(name)) is not None])
        rest = f"{'' if bundle is None else f'/{bundle}'}/unload"
        await self._elsewhere.ask_all("PUT", of_namespace(namespace, rest), self._elsewhere.running(brokers))

    def topics(self, namespace: NamespaceName, bundle: str | None = None) -> list[str]:
        """Full names of the topics of a namespace or of one bundle."""
        self._resources.check_namespace(namespace)
        names = self._topic_names(str(namespace))
        if bundle is None:
            return names
        at = self._bundle_index(namespace, bundle)
        bounds = [int(bound, 16) for bound in self._resources.bundle_boundaries(namespace)]
        return [name for name in names if bundle_index(bounds, name) == at]

    def divided(self, namespace: NamespaceName, bundle: str | None = None) -> tuple[list[TopicName], set[int]]:
        """As `topics`, but of this broker only; and all brokers that serve topics of it."""
        names = list(map(TopicName.parse, self.topics(namespace, bundle)))
        brokers = {broker for name in names if (broker := self._placement.broker_of(name)) is not None}
        return list(filter(self._placement.is_ours, names)), brokers

    async def split_bundle(self, namespace: NamespaceName, bundle: str) -> None:
        """Split a bundle in the middle of its range. Raises NotFound."""
        self._resources.check_namespace(namespace)
        at = self._bundle_index(namespace, bundle)
        boundaries = self._resources.bundle_boundaries(namespace)
        middle = (int(boundaries[at], 16) + int(boundaries[at + 1], 16)) // 2
        cut = [*boundaries[: at + 1], f"0x{middle:08x}", *boundaries[at + 1 :]]
        await self._policies.update_namespace(
            str(namespace),
            lambda stored: stored.update(bundles={"boundaries": cut, "numBundles": len(cut) - 1}),
        )

    def _topic_names(self, namespace: str) -> list[str]:
        return [name for domain in DOMAINS for name in self._topics.names.of(domain, namespace)]

    def _bundle_index(self, namespace: NamespaceName, bundle: str) -> int:
        boundaries = self._resources.bundle_boundaries(namespace)
        names = [f"{low}_{high}" for low, high in pairwise(boundaries)]
        if bundle not in names:
            raise NotFound(f"Namespace {namespace} has no bundle {bundle}; it has {', '.join(names)}")
        return names.index(bundle)


def _has_boundaries(policies: Mapping[str, Any]) -> bool:
    return bool((policies.get("bundles") or {}).get("boundaries"))
