# SPDX-License-Identifier: Apache-2.0
"""Clusters: this one, and whatever others an administrator names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from penstock.admin.gateway import Ask
from penstock.admin.models import ClusterData
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
        """Name all clusters."""
        return await ask(lambda broker: broker.clusters.names())

    @router.get("/{cluster}", dependencies=[needs.superuser], response_model_exclude_none=True)
    async def get_cluster(cluster: str) -> ClusterData:
        """Say where a cluster is reached."""
        return ClusterData.model_validate(await ask(lambda broker: broker.clusters.get(cluster)))

    @router.put("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def create_cluster(cluster: str, data: ClusterData) -> None:
        """Add a cluster."""
        given = data.given()
        await ask(lambda broker: broker.clusters.create(cluster, given))

    @router.post("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def update_cluster(cluster: str, data: ClusterData) -> None:
        """Replace what is known of a cluster."""
        given = data.given()
        await ask(lambda broker: broker.clusters.update(cluster, given))

    @router.delete("/{cluster}", dependencies=[needs.superuser], **NO_CONTENT)
    async def delete_cluster(cluster: str) -> None:
        """Forget a cluster."""
        await ask(lambda broker: broker.clusters.delete(cluster))

    @router.get("/{cluster}/peers", dependencies=[needs.superuser])
    async def peers(cluster: str) -> list[str]:
        """Name the cluster's peers."""
        data: dict[str, Any] = await ask(lambda broker: broker.clusters.get(cluster))
        return list(data.get("peerClusterNames") or ())

    @router.get("/{cluster}/failureDomains", dependencies=[needs.superuser])
    async def failure_domains(cluster: str) -> dict[str, Any]:
        """Name the cluster's failure domains: one broker has none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return {}

    @router.get("/{cluster}/namespaceIsolationPolicies", dependencies=[needs.superuser])
    async def isolation_policies(cluster: str) -> dict[str, Any]:
        """Name the policies that keep namespaces to some brokers: one broker has none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return {}

    @router.get("/{cluster}/namespaceIsolationPolicies/brokers", dependencies=[needs.superuser])
    async def isolated_brokers(cluster: str) -> list[dict[str, Any]]:
        """Name the brokers that such policies are about: none."""
        await ask(lambda broker: broker.clusters.get(cluster))
        return []

    return router
