# SPDX-License-Identifier: Apache-2.0
"""Routes of resource groups, in two spellings: that of `pulsar-admin`, and that of PIP-82.

PIP-82 says `resourcegroup`, PUT to attach, and has its own names of the four rates; Pulsar came out with
`resourcegroups`, POST to attach and `publishRateInMsgs`. Bodies with either names are understood everywhere; a response
has the names of its path. Only superusers change anything here: a group limits a tenant's admins, too.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter
from fastapi.responses import Response  # noqa: TC002 -- FastAPI reads annotations

from penstock.admin.gateway import Ask
from penstock.admin.models import ObservedQuota, ResourceGroup, ResourceGroupOfSeed
from penstock.admin.routes.policies import TEXT, text_or_nothing
from penstock.admin.routing import NAMESPACE, NO_CONTENT, Namespace

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

GROUPS: Final = "/admin/v2/resourcegroups"
GROUPS_OF_SEED: Final = "/admin/v2/resourcegroup"
TENANT: Final = "/admin/v2/tenants/{tenant}"


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/resourcegroups, and those that attach namespaces and tenants."""
    router = APIRouter(tags=["resource groups"])
    ask = Ask(gateway)
    _add_groups(router, ask, needs)
    _add_namespaces(router, ask, needs)
    _add_tenants(router, ask, needs)
    return router


def _add_groups(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.superuser]}

    @router.get(GROUPS, **common)
    @router.get(GROUPS_OF_SEED, **common)
    @router.get(f"{GROUPS_OF_SEED}/", include_in_schema=False, **common)
    async def list_groups() -> list[str]:
        """List all resource groups."""
        return sorted(await ask(lambda broker: broker.resource_groups.names()))

    @router.get(f"{GROUPS}/{{group}}", **common)
    async def get_group(group: str) -> ResourceGroup:
        """Return the rates of a resource group, per second; -1: no limit."""
        return ResourceGroup.model_validate(await ask(lambda broker: broker.resource_groups.get(group)))

    @router.get(f"{GROUPS_OF_SEED}/{{group}}", **common)
    async def get_group_of_seed(group: str) -> ResourceGroupOfSeed:
        """Return the rates of a resource group, with the names of PIP-82."""
        return ResourceGroupOfSeed.model_validate(await ask(lambda broker: broker.resource_groups.get(group)))

    @router.put(f"{GROUPS}/{{group}}", **common, **NO_CONTENT)
    @router.put(f"{GROUPS_OF_SEED}/{{group}}", **common, **NO_CONTENT)
    async def put_group(group: str, rates: ResourceGroup) -> None:
        """Create a resource group, or change the rates that the body has; -1: no limit."""
        given = rates.model_dump(by_alias=True)
        await ask(lambda broker: broker.resource_groups.put(group, given))

    @router.put(f"{GROUPS}/{{group}}/observed", **common, **NO_CONTENT)
    async def observe_quota(group: str, rates: ResourceGroup) -> None:
        """Count on this broker what a quota would do, beside the one in force; nobody is slowed by it."""
        given = rates.model_dump(by_alias=True)
        await ask(lambda broker: broker.resource_groups.observe(group, given))

    @router.get(f"{GROUPS}/{{group}}/observed", **common)
    async def get_observed_quota(group: str) -> ObservedQuota:
        """Return what the observed quota would have done on this broker."""
        return ObservedQuota.model_validate(await ask(lambda broker: broker.resource_groups.observed(group)))

    @router.delete(f"{GROUPS}/{{group}}/observed", **common, **NO_CONTENT)
    async def end_observed_quota(group: str) -> None:
        """End to observe a quota on this broker."""
        await ask(lambda broker: broker.resource_groups.observe_no_more(group))

    @router.delete(f"{GROUPS}/{{group}}", **common, **NO_CONTENT)
    @router.delete(f"{GROUPS_OF_SEED}/{{group}}", **common, **{**NO_CONTENT, "status_code": HTTPStatus.OK})
    async def delete_group(group: str) -> None:
        """Delete a resource group that no namespace and no tenant is attached to."""
        await ask(lambda broker: broker.resource_groups.delete(group))


def _add_namespaces(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(f"{NAMESPACE}/resourcegroup", dependencies=[needs.namespace_admin], **TEXT)
    async def group_of_namespace(name: Namespace) -> Response:
        """Return the resource group of a namespace."""
        return text_or_nothing(await ask(lambda broker: broker.resource_groups.of_namespace(name)))

    @router.post(f"{NAMESPACE}/resourcegroup/{{group}}", dependencies=[needs.superuser], **NO_CONTENT)
    @router.put(f"{NAMESPACE}/resourcegroup/{{group}}", dependencies=[needs.superuser], **NO_CONTENT)
    async def attach_namespace(name: Namespace, group: str) -> None:
        """Attach a namespace to a resource group."""
        await ask(lambda broker: broker.resource_groups.attach_namespace(name, group))

    @router.delete(f"{NAMESPACE}/resourcegroup", dependencies=[needs.superuser], **NO_CONTENT)
    async def detach_namespace(name: Namespace) -> None:
        """Detach a namespace from its resource group."""
        await ask(lambda broker: broker.resource_groups.attach_namespace(name, None))


def _add_tenants(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(f"{TENANT}/resourcegroup", dependencies=[needs.tenant_admin], **TEXT)
    async def group_of_tenant(tenant: str) -> Response:
        """Return the resource group of a tenant."""
        return text_or_nothing(await ask(lambda broker: broker.resource_groups.of_tenant(tenant)))

    @router.post(f"{TENANT}/resourcegroup/{{group}}", dependencies=[needs.superuser], **NO_CONTENT)
    @router.put(f"{TENANT}/resourcegroup/{{group}}", dependencies=[needs.superuser], **NO_CONTENT)
    async def attach_tenant(tenant: str, group: str) -> None:
        """Attach a tenant to a resource group, with all its namespaces."""
        await ask(lambda broker: broker.resource_groups.attach_tenant(tenant, group))

    @router.delete(f"{TENANT}/resourcegroup", dependencies=[needs.superuser], **NO_CONTENT)
    async def detach_tenant(tenant: str) -> None:
        """Detach a tenant from its resource group."""
        await ask(lambda broker: broker.resource_groups.attach_tenant(tenant, None))
