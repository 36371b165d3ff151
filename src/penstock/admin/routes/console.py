# SPDX-License-Identifier: Apache-2.0
"""Routes that the web console asks beside those of `pulsar-admin`: an overview, pages of topics, and who is asking.

Why routes of their own: statistics of Pulsar's REST API are of one topic, or of all of them in one body. A page of a
hundred thousand topics is sorted and searched here. All have the rights of other routes that show the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from penstock.admin import models_console as models
from penstock.admin.gateway import Ask
from penstock.admin.http_memory import CHARGE
from penstock.admin.looks import Looks
from penstock.admin.models import INT_MAX
from penstock.admin.routing import Namespace  # noqa: TC001 -- FastAPI reads annotations
from penstock.admin.topic_table import PAGED_MAX, Sort, Wanted, joined, nothing
from penstock.core.caller import CALLER

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.broker.administration.administration import Administration

OVERVIEW: Final = "/admin/v3/overview"
TOPICS: Final = "/admin/v3/topics"
TENANTS: Final = "/admin/v3/tenants"
SETTINGS: Final = "/admin/v3/settings"
WHO: Final = "/admin/v3/who"
# Tenants on a page.
PAGE_MAX: Final = 200
# Tenants that are named to one of their administrators.
TENANTS_MAX: Final = 1_000
# A word of a topic's name is shorter.
SEARCH_CHARS_MAX: Final = 256

Search = Annotated[str, Query(max_length=SEARCH_CHARS_MAX, description="Words, all of which a name must contain")]
Order = Annotated[Sort, Query(description="What comes first: the largest, or the first name")]
Offset = Annotated[int, Query(ge=0, le=PAGED_MAX, description="Rows of the order to leave out")]
TenantOffset = Annotated[int, Query(ge=0, le=INT_MAX, description="Tenants to leave out")]
TenantLimit = Annotated[int, Query(ge=0, le=PAGE_MAX, description="Tenants to return")]
Limit = Annotated[int, Query(ge=0, le=PAGED_MAX, description="Rows to return")]

Json: TypeAlias = "dict[str, Any]"


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3 that the console asks."""
    router = APIRouter(tags=["console"], default_response_class=JSONResponse)
    ask = Ask(gateway)
    looks = Looks(ask)
    _add_who(router, ask, needs)

    @router.get(OVERVIEW, dependencies=[needs.superuser], **_shows(models.Overview))
    async def overview(request: Request) -> JSONResponse:
        """Return traffic, health and memory of all brokers, and what waits there, by reason."""
        own = await looks.overview.get(request.scope[CHARGE].memory)
        others, missing = await ask(lambda broker: broker.service.answers(OVERVIEW))
        brokers = [own, *(one for other in others for one in other["brokers"])]
        brokers.sort(key=lambda one: one["broker"])
        return JSONResponse({"brokers": brokers, "unanswered": missing})

    async def page(request: Request, path: str, wanted: Wanted, offset: int) -> JSONResponse:
        """Return rows of all brokers: each of them sends its first ones, as far as this page."""
        wanted = wanted._replace(first=min(PAGED_MAX, offset + wanted.first))
        table = await looks.topics.get(request.scope[CHARGE].memory)
        own = await table.page(wanted)
        query = urlencode({"search": wanted.search, "sort": wanted.sort, "limit": wanted.first})
        others, missing = await ask(lambda broker: broker.service.answers(f"{path}?{query}"))
        found = joined([own, *others], wanted.sort, offset, max(0, wanted.first - offset))
        return JSONResponse({**found, "takenAtMs": table.taken_at_ms, "unanswered": missing})

    @router.get(TOPICS, dependencies=[needs.superuser], **_shows(models.TopicPage))
    async def topics(
        request: Request, search: Search = "", sort: Order = "in", offset: Offset = 0, limit: Limit = 50
    ) -> JSONResponse:
        """Return a page of all topics with their rates, backlogs and numbers of clients."""
        return await page(request, TOPICS, Wanted("", search, sort, limit), offset)

    @router.get(f"{TOPICS}/{{tenant}}", dependencies=[needs.tenant_admin], **_shows(models.TopicPage))
    async def topics_of_tenant(
        request: Request, tenant: str, search: Search = "", sort: Order = "in", offset: Offset = 0, limit: Limit = 50
    ) -> JSONResponse:
        """Return a page of the topics of a tenant."""
        await ask(lambda broker: broker.tenants.get(tenant))  # It must exist.
        path = f"{TOPICS}/{quote(tenant, safe='')}"
        return await page(request, path, Wanted(f"{tenant}/", search, sort, limit), offset)

    @router.get(f"{TOPICS}/{{tenant}}/{{namespace}}", dependencies=[needs.namespace_lookup], **_shows(models.TopicPage))
    async def topics_of_namespace(
        request: Request,
        name: Namespace,
        search: Search = "",
        sort: Order = "in",
        offset: Offset = 0,
        limit: Limit = 50,
    ) -> JSONResponse:
        """Return a page of the topics of a namespace."""
        await ask(lambda broker: broker.namespaces.get(name))
        path = f"{TOPICS}/{quote(name.tenant, safe='')}/{quote(name.namespace, safe='')}"
        return await page(request, path, Wanted(f"{name}/", search, sort, limit), offset)

    _add_tenants(router, ask, looks, needs)
    return router


def _add_tenants(router: APIRouter, ask: Ask, looks: Looks, needs: Needs) -> None:
    @router.get(TENANTS, dependencies=[needs.superuser], **_shows(models.TenantPage))
    async def tenants(
        request: Request, search: Search = "", offset: TenantOffset = 0, limit: TenantLimit = 50
    ) -> JSONResponse:
        """Return a page of tenants by name, with the sums of their topics."""
        words = search.lower().split()

        def listed(broker: Administration) -> tuple[int, list[Json]]:
            names = [one for one in broker.tenants.names() if all(word in one.lower() for word in words)]
            return len(names), [_tenant(broker, one) for one in sorted(names)[offset : offset + limit]]

        total, rows = await ask(listed)
        table = await looks.topics.get(request.scope[CHARGE].memory)
        own = await table.by_tenant()
        query = urlencode({"search": search, "offset": offset, "limit": limit})
        others, missing = await ask(lambda broker: broker.service.answers(f"{TENANTS}?{query}"))
        sums = [own, *({row["tenant"]: row for row in other["tenants"]} for other in others)]
        for row in rows:
            found = [one[row["tenant"]] for one in sums if row["tenant"] in one]
            row.update({name: sum(one[name] for one in found) for name in nothing()})
        return JSONResponse({"total": total, "tenants": rows, "takenAtMs": table.taken_at_ms, "unanswered": missing})

    @router.get(SETTINGS, dependencies=[needs.superuser], **_shows(list[models.SettingRow]))
    async def settings() -> JSONResponse:
        """Return all settings of this broker with their values, and where each comes from; secrets are shown as ***."""
        return JSONResponse(await ask(lambda broker: broker.configuration.described()))


def _tenant(broker: Administration, name: str) -> Json:
    roles = broker.tenants.get(name).get("adminRoles") or []
    return {"tenant": name, "adminRoles": roles, "resourceGroup": broker.resource_groups.of_tenant(name)}


def _add_who(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(WHO, dependencies=[needs.anybody], **_shows(models.Who))
    async def who(request: Request) -> JSONResponse:
        """Return the role of the caller, and the tenants that it administers."""
        administers = await needs.check_superuser.administers(request)
        caller = CALLER.get()

        def found(broker: Administration) -> tuple[bool, list[str]]:
            superuser = administers("")  # Who administers a tenant that cannot exist administers all.
            return superuser, [] if superuser else [one for one in broker.tenants.names() if administers(one)]

        superuser, tenants = await ask(found)
        role = caller.original_role or caller.role
        return JSONResponse(
            {
                "role": role or None,
                "superuser": superuser,
                "tenants": tenants[:TENANTS_MAX],
                "more": len(tenants) > TENANTS_MAX,
            }
        )


def _shows(model: object) -> dict[str, Any]:
    return {"responses": {200: {"model": model}}, "response_model": None}
