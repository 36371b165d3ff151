# SPDX-License-Identifier: Apache-2.0
"""Tenants: who they are, who administers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from penstock.admin.gateway import Ask
from penstock.admin.models import TenantInfo
from penstock.admin.routing import NO_CONTENT, Force
from penstock.broker.administration import namespaces

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/tenants."""
    router = APIRouter(prefix="/admin/v2/tenants", tags=["tenants"])
    ask = Ask(gateway)

    @router.get("", dependencies=[needs.superuser])
    async def list_tenants() -> list[str]:
        """Name all tenants."""
        return await ask(namespaces.list_tenants)

    @router.get("/{tenant}", dependencies=[needs.tenant_admin])
    async def get_tenant(tenant: str) -> TenantInfo:
        """Say who administers a tenant, and where it may live."""
        return TenantInfo.model_validate(await ask(namespaces.get_tenant, tenant))

    @router.put("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def create_tenant(tenant: str, info: TenantInfo) -> None:
        """Create a tenant."""
        await ask(namespaces.create_tenant, tenant, info.model_dump(by_alias=True))

    @router.post("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def update_tenant(tenant: str, info: TenantInfo) -> None:
        """Replace who administers a tenant, and where it may live."""
        await ask(namespaces.update_tenant, tenant, info.model_dump(by_alias=True))

    @router.delete("/{tenant}", dependencies=[needs.superuser], **NO_CONTENT)
    async def delete_tenant(tenant: str, *, force: Force = False) -> None:
        """Delete a tenant without namespaces; with `force`, one with."""
        await ask(namespaces.delete_tenant, tenant, force=force)

    return router
