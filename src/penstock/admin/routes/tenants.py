# SPDX-License-Identifier: Apache-2.0
"""Routes of tenants and their administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from penstock.admin.gateway import Ask
from penstock.admin.models import TenantInfo
from penstock.admin.routing import NO_CONTENT, Force

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/tenants."""
    router = APIRouter(prefix="/admin/v2/tenants", tags=["tenants"])
    ask = Ask(gateway)

    @router.get("", dependencies=[needs.superuser])
    async def list_tenants() -> list[str]:
        """List all tenants."""
        return await ask(lambda broker: broker.tenants.names())

    @router.get("/{tenant}", dependencies=[needs.tenant_admin])
    async def get_tenant(tenant: str) -> TenantInfo:
        """Return the admin roles and allowed clusters of a tenant."""
        return TenantInfo.model_validate(await ask(lambda broker: broker.tenants.get(tenant)))

    @router.put("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def create_tenant(tenant: str, info: TenantInfo) -> None:
        """Create a tenant."""
        given = info.model_dump(by_alias=True)
        await ask(lambda broker: broker.tenants.create(tenant, given))

    @router.post("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def update_tenant(tenant: str, info: TenantInfo) -> None:
        """Replace the admin roles and allowed clusters of a tenant."""
        given = info.model_dump(by_alias=True)
        await ask(lambda broker: broker.tenants.update(tenant, given))

    @router.delete("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def delete_tenant(tenant: str, *, force: Force = False) -> None:
        """Delete a tenant without namespaces; with `force`, also its namespaces."""
        await ask(lambda broker: broker.tenants.delete(tenant, force=force))

    return router
