# SPDX-License-Identifier: Apache-2.0
"""Routes of clusters: this one, and others that an administrator has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from penstock.admin.gateway import Ask
from penstock.admin.models import ClusterData, ClusterMigration, ClusterUrl
from penstock.admin.routing import NO_CONTENT

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/clusters."""
    router = APIRouter(prefix="/admin/v2/clusters", tags=["clusters"])
    ask = Ask(gateway)

    @router.get("", dependencies=[needs.anybody])
    async def list_clusters() -> list[str]:
        """List all clusters."""
        return await ask(lambda broker: broker.clusters.names())

    @router.get("/{cluster}", dependencies=[needs.superuser], response_model_exclude_none=True)
    async def get_cluster(cluster: str) -> ClusterData:
        """Return the URLs of a cluster."""
        return ClusterData.model_validate(await ask(lambda broker: broker.clusters.get(cluster)))

    @router.put("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def create_cluster(cluster: str, data: ClusterData) -> None:
        """Add a cluster."""
        given = data.given()
        await ask(lambda broker: broker.clusters.create(cluster, given))

    @router.post("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def update_cluster(cluster: str, data: ClusterData) -> None:
        """Replace the URLs of a cluster."""
        given = data.given()
        await ask(lambda broker: broker.clusters.update(cluster, given))

    @router.delete("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def delete_cluster(cluster: str) -> None:
        """Delete a cluster."""
        await ask(lambda broker: broker.clusters.delete(cluster))

    @router.get("/{cluster}/peers", dependencies=[needs.superuser])
    async def peers(cluster: str) -> list[str]:
        """List the cluster's peer clusters."""
        data: dict[str, Any] = await ask(lambda broker: broker.clusters.get(cluster))
        return list(data.get("peerClusterNames") or ())

    @router.get("/{cluster}/migrate", dependencies=[needs.superuser])
    async def get_migration(cluster: str) -> ClusterMigration:
        """Return whether a cluster is migrated, and where to."""
        return ClusterMigration.model_validate(await ask(lambda broker: broker.migrations.cluster(cluster)))

    @router.post("/{cluster}/migrate", dependencies=[needs.superuser], **NO_CONTENT)
    async def update_migration(cluster: str, urls: ClusterUrl, *, migrated: bool = False) -> None:
        """Say where clients of a cluster move to; with `migrated`, all of them do."""
        given = urls.given()
        await ask(lambda broker: broker.migrations.set_cluster(cluster, given, migrated=migrated))

    @router.get("/{cluster}/failureDomains", dependencies=[needs.superuser])
    async def failure_domains(cluster: str) -> dict[str, Any]:
        """List the cluster's failure domains: one broker has none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return {}

    @router.get("/{cluster}/namespaceIsolationPolicies", dependencies=[needs.superuser])
    async def isolation_policies(cluster: str) -> dict[str, Any]:
        """List the namespace isolation policies: one broker has none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return {}

    @router.get("/{cluster}/namespaceIsolationPolicies/brokers", dependencies=[needs.superuser])
    async def isolated_brokers(cluster: str) -> list[dict[str, Any]]:
        """List the brokers with isolation policies: none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return []

    return router
