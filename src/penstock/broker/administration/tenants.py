# SPDX-License-Identifier: Apache-2.0
"""Admin operations on tenants: their admin roles and allowed clusters."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.administration.entities import check_name, is_taken
from penstock.broker.policies.group_quotas import OF_TENANT
from penstock.core.errors import AlreadyExists, NamespaceNotFound, NotAllowed, PreconditionFailed
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.broker.administration.clusters import Clusters
    from penstock.broker.administration.namespaces import Namespaces
    from penstock.broker.changes import Changes, Submit
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.topics.namespace_resources import NamespaceResources
    from penstock.storage.catalog import Catalog


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
