# SPDX-License-Identifier: Apache-2.0
"""Routes of namespaces, and operations on all topics of one. Their policies are in `policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse

from penstock.admin.gateway import Ask
from penstock.admin.models import AuthAction, Bundles, NamespaceMigration
from penstock.admin.models_policies import Policies
from penstock.admin.responses import TOO_MANY_LISTINGS, ListingResponse
from penstock.admin.routing import NAMESPACE, NO_CONTENT, Force, Namespace
from penstock.broker.policies.policy_values import OF_NAMESPACE
from penstock.broker.topics.listing import Mode
from penstock.broker.topics.migration import HOLD_S_MAX

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

HoldSeconds = Annotated[int, Query(ge=1, le=HOLD_S_MAX, description="How long clients wait at most")]
ListMode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
IncludeSystem = Annotated[bool, Query(alias="includeSystemTopic", description="Include system topics")]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/namespaces."""
    router = APIRouter(tags=["namespaces"])
    ask = Ask(gateway)
    _add_life(router, ask, needs)
    _add_migration(router, ask, needs)
    _add_listing(router, ask, needs)
    _add_bundles(router, ask, needs)
    _add_permissions(router, ask, needs)
    _add_backlog(router, ask, needs)
    return router


def _add_life(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get("/admin/v2/namespaces/{tenant}", dependencies=[needs.tenant_admin])
    async def list_namespaces(tenant: str) -> list[str]:
        """List the namespaces of a tenant."""
        return await ask(lambda broker: broker.namespaces.names(tenant))

    @router.get(NAMESPACE, dependencies=[needs.namespace_admin], response_model=Policies, response_class=JSONResponse)
    async def get_policies(name: Namespace) -> JSONResponse:
        """Return all policies of a namespace."""
        policies = await ask(lambda broker: broker.namespaces.get(name))
        return JSONResponse({key: value for key, value in policies.items() if value is not None})

    @router.put(NAMESPACE, dependencies=[needs.tenant_admin], **NO_CONTENT)
    async def create_namespace(
        request: Request, name: Namespace, policies: Annotated[Policies | None, Body()] = None
    ) -> None:
        """Create a namespace, optionally with policies. Only a superuser may name a resource group."""
        given = policies.given() if policies is not None else None
        if given and given.get(OF_NAMESPACE):
            await needs.check_superuser(request)
        await ask(lambda broker: broker.namespaces.create(name, given))

    @router.delete(NAMESPACE, dependencies=[needs.tenant_admin], **NO_CONTENT)
    async def delete_namespace(name: Namespace, *, force: Force = False) -> None:
        """Delete an empty namespace; with `force`, also its topics."""
        await ask(lambda broker: broker.namespaces.delete(name, force=force))


def _add_migration(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.superuser]}

    @router.get(f"{NAMESPACE}/migration", **common)
    async def get_migration(name: Namespace) -> NamespaceMigration:
        """Return whether the clients of a namespace move to another cluster."""
        return NamespaceMigration.model_validate(await ask(lambda broker: broker.migrations.namespace(name)))

    @router.post(f"{NAMESPACE}/migration", **common, **NO_CONTENT)
    async def update_migration(name: Namespace, *, migrated: bool = False, hold: str | None = None) -> None:
        """Let the clients of a namespace move to the cluster that `clusters/{cluster}/migrate` names, or stay."""
        await ask(lambda broker: broker.migrations.set_namespace(name, migrated=migrated, hold=hold))

    @router.post(f"{NAMESPACE}/migration/{{hold}}", **common, **NO_CONTENT)
    async def hold_clients(name: Namespace, hold: str, seconds: HoldSeconds = 10) -> None:
        """Disconnect the clients of a namespace, and let them wait for so long, or until it is moved or let go."""
        await ask(lambda broker: broker.migrations.hold(name, hold, seconds))

    @router.delete(f"{NAMESPACE}/migration/{{hold}}", **common, **NO_CONTENT)
    async def let_clients_go(name: Namespace, hold: str) -> None:
        """End a hold: clients go on here."""
        await ask(lambda broker: broker.migrations.let_go(name, hold))


def _add_listing(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(
        f"{NAMESPACE}/topics",
        dependencies=[needs.topic_lookup],
        response_model=list[str],
        response_class=JSONResponse,
        responses=TOO_MANY_LISTINGS,
    )
    async def list_topics(
        name: Namespace, mode: ListMode = "PERSISTENT", *, system: IncludeSystem = False
    ) -> ListingResponse:
        """List the topics of a namespace; each partition is a topic."""
        return ListingResponse(ask, name, Mode[mode], system=system)


def _add_bundles(router: APIRouter, ask: Ask, needs: Needs) -> None:
    # Bundles concern the whole cluster, so a tenant's admin may not change them.
    common: dict[str, Any] = {"dependencies": [needs.superuser], **NO_CONTENT}

    @router.get(f"{NAMESPACE}/bundles", dependencies=[needs.namespace_lookup])
    async def bundles(name: Namespace) -> Bundles:
        """List the bundles of a namespace."""
        return Bundles.model_validate((await ask(lambda broker: broker.namespaces.get(name)))["bundles"])

    @router.put(f"{NAMESPACE}/unload", **common)
    async def unload(name: Namespace) -> None:
        """Unload all topics of a namespace; clients reconnect."""
        await ask(lambda broker: broker.namespaces.unload(name))

    @router.put(f"{NAMESPACE}/{{bundle}}/unload", **common)
    async def unload_bundle(name: Namespace, bundle: str) -> None:
        """Unload the topics of one bundle; clients reconnect."""
        await ask(lambda broker: broker.namespaces.unload(name, bundle))

    @router.put(f"{NAMESPACE}/{{bundle}}/split", **common)
    async def split_bundle(name: Namespace, bundle: str) -> None:
        """Split a bundle in two."""
        await ask(lambda broker: broker.namespaces.split_bundle(name, bundle))


def _add_permissions(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.tenant_admin]}

    @router.get(f"{NAMESPACE}/permissions", **common)
    async def get_permissions(name: Namespace) -> dict[str, list[str]]:
        """Return the permissions of each role in a namespace."""
        return await ask(lambda broker: broker.permissions.get_namespace(name))

    @router.post(f"{NAMESPACE}/permissions/{{role}}", **common, **NO_CONTENT)
    async def grant(name: Namespace, role: str, actions: list[AuthAction]) -> None:
        """Set the permissions of a role in a namespace."""
        await ask(lambda broker: broker.permissions.grant_namespace(name, role, list(actions)))

    @router.delete(f"{NAMESPACE}/permissions/{{role}}", **common, **NO_CONTENT)
    async def revoke(name: Namespace, role: str) -> None:
        """Revoke all permissions of a role in a namespace."""
        await ask(lambda broker: broker.permissions.revoke_namespace(name, role))

    @router.get(f"{NAMESPACE}/permissions/subscription", **common)
    async def get_subscription_permissions(name: Namespace) -> dict[str, list[str]]:
        """Return the roles that may use each subscription."""
        return await ask(lambda broker: broker.permissions.get_subscription(name))

    @router.post(f"{NAMESPACE}/permissions/subscription/{{subscription:twice}}", **common, **NO_CONTENT)
    async def grant_subscription(name: Namespace, subscription: str, roles: list[str]) -> None:
        """Allow only these roles to use a subscription."""
        await ask(lambda broker: broker.permissions.grant_subscription(name, subscription, roles))

    @router.delete(f"{NAMESPACE}/permissions/{{subscription:twice}}/{{role}}", **common, **NO_CONTENT)
    async def revoke_subscription(name: Namespace, subscription: str, role: str) -> None:
        """Remove a role from those of a subscription."""
        await ask(lambda broker: broker.permissions.revoke_subscription(name, subscription, role))


def _add_backlog(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.consume], **NO_CONTENT}

    @router.post(f"{NAMESPACE}/clearBacklog", **common)
    async def clear_backlog(name: Namespace) -> None:
        """Clear the backlog of every subscription of every topic."""
        await ask(lambda broker: broker.subscriptions.clear_backlogs(name))

    @router.post(f"{NAMESPACE}/clearBacklog/{{subscription:twice}}", **common)
    async def clear_backlog_of_subscription(name: Namespace, subscription: str) -> None:
        """Clear the backlog of this subscription on every topic."""
        await ask(lambda broker: broker.subscriptions.clear_backlogs(name, subscription))

    @router.post(f"{NAMESPACE}/{{bundle}}/clearBacklog", **common)
    async def clear_backlog_of_bundle(name: Namespace, bundle: str) -> None:
        """Clear the backlog of every subscription of the topics of one bundle."""
        await ask(lambda broker: broker.subscriptions.clear_backlogs(name, None, bundle))

    @router.post(f"{NAMESPACE}/unsubscribe/{{subscription:twice}}", **common)
    async def unsubscribe(name: Namespace, subscription: str) -> None:
        """Delete this subscription from every topic."""
        await ask(lambda broker: broker.subscriptions.delete_everywhere(name, subscription))
