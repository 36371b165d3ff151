# SPDX-License-Identifier: Apache-2.0
"""The broker itself: who and how it is, its configuration, its load; and what a cluster has that one broker has not."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, PlainTextResponse

from penstock import __version__
from penstock.admin import load_reports
from penstock.admin.gateway import Ask
from penstock.admin.models import Model
from penstock.admin.models_stats import ListingMemories, MutedConnections
from penstock.admin.routing import NO_CONTENT, REASON, Namespace
from penstock.core.errors import NotFound, ServiceNotReady

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

PREFIX: Final = "/admin/v2/brokers"
# What an administrator's tool expects of a broker that is well, to the letter.
OK: Final = "ok"
_BUNDLE: Final = "/{tenant}/{namespace}/{bundle}"
# Where Pulsar's function workers answer.
_WORKERS: Final = ("/admin/v2/worker", "/admin/v2/worker-stats", "/admin/v2/functions", "/admin/v3/functions",
                   "/admin/v3/sources", "/admin/v3/source", "/admin/v3/sinks", "/admin/v3/sink")  # fmt: skip


class ResourceQuota(Model):
    """What a bundle is expected to carry, a second."""

    msgRateIn: float = 0.0  # noqa: N815 -- names of the JSON
    msgRateOut: float = 0.0  # noqa: N815
    bandwidthIn: float = 0.0  # noqa: N815
    bandwidthOut: float = 0.0  # noqa: N815
    memory: float = 0.0
    dynamic: bool = True


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/brokers, /broker-stats, /bookies, /resource-quotas, and /status.html."""
    router = APIRouter()
    ask = Ask(gateway)
    for part in (_brokers, _configuration, _status, _statistics, _quotas, _absent):
        router.include_router(part(ask, needs))
    return router


def _brokers(ask: Ask, needs: Needs) -> APIRouter:
    """Who the brokers are. `/{cluster}` would take the names of its neighbours, so it is found last."""
    router = APIRouter(prefix=PREFIX, tags=["brokers"])

    @router.get("", dependencies=[needs.superuser])
    async def list_brokers() -> list[str]:
        """Name the brokers of this cluster."""
        return await ask(lambda broker: broker.service.names())

    @router.get("/leaderBroker", dependencies=[needs.superuser])
    async def leader() -> dict[str, Any]:
        """Name the broker that leads."""
        return await ask(lambda broker: broker.service.leader())

    @router.get("/health", dependencies=[needs.superuser], response_class=PlainTextResponse)
    async def health(
        broker_id: Annotated[str | None, Query(alias="brokerId", description="One of this cluster's brokers")] = None,
    ) -> str:
        """Answer `ok` while the broker can do its work, with 503 and the reason otherwise."""
        await ask(lambda broker: broker.service.check(broker_id))
        return await _ok(ask)

    @router.get("/version", dependencies=[needs.anybody], response_class=PlainTextResponse)
    async def version() -> str:
        """Name the version of this broker."""
        return f"{__version__}-penstock"

    @router.get("/internal-configuration", dependencies=[needs.superuser])
    async def internal_configuration() -> dict[str, Any]:
        """Say where metadata is kept."""
        return await ask(lambda broker: broker.service.internal_configuration())

    @router.get("/backlog-quota-check", dependencies=[needs.superuser], **NO_CONTENT)
    async def backlog_quota_check() -> None:
        """Enforce quotas of backlogs now."""
        await ask(lambda broker: broker.service.check_backlog_quotas())

    @router.post("/shutdown", dependencies=[needs.superuser], **NO_CONTENT)
    async def shutdown() -> None:
        """Stop the broker in good order."""
        await ask(lambda broker: broker.service.shut_down())

    @router.get("/{cluster}/{broker}/ownedNamespaces", dependencies=[needs.superuser])
    async def owned_namespaces(cluster: str, broker_id: Annotated[str, Path(alias="broker")]) -> dict[str, Any]:
        """Name the bundles a broker serves."""
        return await ask(lambda broker: broker.service.owned_namespaces(cluster, broker_id))

    return router


async def _ok(ask: Ask) -> str:
    reason = await ask(lambda broker: broker.service.ill())
    if reason is not None:
        raise ServiceNotReady(reason)
    return OK


def _configuration(ask: Ask, needs: Needs) -> APIRouter:
    router = APIRouter(prefix=f"{PREFIX}/configuration", tags=["brokers"], dependencies=[needs.superuser])

    @router.get("")
    async def dynamic_keys() -> list[str]:
        """Name the settings that can be changed while the broker runs."""
        return await ask(lambda broker: broker.configuration.dynamic())

    @router.get("/values")
    async def overridden() -> dict[str, str]:
        """Show the settings that were changed so."""
        return await ask(lambda broker: broker.configuration.overridden())

    @router.get("/runtime")
    async def runtime() -> dict[str, str]:
        """Show all settings in force; keys and passwords as ***."""
        return await ask(lambda broker: broker.configuration.runtime())

    @router.post("/{key}/{value}", **NO_CONTENT)
    async def change(key: str, value: str) -> None:
        """Change a setting at once, and for all starts to come."""
        await ask(lambda broker: broker.configuration.put(key, value))

    @router.delete("/{key}", **NO_CONTENT)
    async def take_back(key: str) -> None:
        """Let the file, the environment and the command line decide again."""
        await ask(lambda broker: broker.configuration.remove(key))

    return router


def _status(ask: Ask, needs: Needs) -> APIRouter:
    """What probes ask, of which /status.html asks for no token; and, found last, the brokers of a cluster by name."""
    router = APIRouter(tags=["brokers"])

    @router.get(f"{PREFIX}/ready", dependencies=[needs.anybody], response_class=PlainTextResponse)
    async def ready() -> PlainTextResponse:
        """Answer `ok` while the broker serves, with 500 otherwise."""
        try:
            return PlainTextResponse(await _ok(ask))
        except ServiceNotReady as error:
            return PlainTextResponse(str(error), HTTPStatus.INTERNAL_SERVER_ERROR)

    @router.get(
        "/status.html",
        dependencies=[needs.nobody],
        response_class=PlainTextResponse,
        responses={404: {"content": REASON, "description": "It is not there, or the broker is not well"}},
    )
    async def status() -> str:
        """Answer OK while the file that statusFilePath names is there, and the broker is well."""
        file = await ask(lambda broker: broker.service.status_file())
        if file is None or not file.is_file():
            raise NotFound("the broker is not in service, or statusFilePath is not set")
        return "OK"

    @router.get(f"{PREFIX}/{{cluster}}", dependencies=[needs.superuser])
    async def list_brokers_of(cluster: str) -> list[str]:
        """Name the brokers of a cluster."""
        return await ask(lambda broker: broker.service.names(cluster))

    return router


def _statistics(ask: Ask, needs: Needs) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/broker-stats", tags=["broker-stats"], dependencies=[needs.superuser])
    reporter = load_reports.Reporter()

    @router.get("/load-report")
    async def load_report() -> dict[str, Any]:
        """Say how much the broker carries; rates are those since the report before."""
        place = await ask(lambda broker: broker.service.place())
        return reporter.report(await ask(lambda broker: broker.snapshots.take()), place)

    @router.get("/metrics")
    async def metrics() -> list[dict[str, Any]]:
        """Show totals of each namespace; /metrics has more."""
        return load_reports.metrics(await ask(lambda broker: broker.snapshots.take()))

    @router.get("/topics")
    async def topics() -> dict[str, Any]:
        """Show every topic in use."""
        return load_reports.topics(await ask(lambda broker: broker.snapshots.take()))

    @router.get("/mbeans")
    async def process() -> list[dict[str, Any]]:
        """Show what the process uses."""
        return load_reports.process(await ask(lambda broker: broker.snapshots.take()))

    @router.get("/allocator-stats/{allocator}")
    async def allocator_stats(allocator: str) -> dict[str, Any]:
        """Show what a part of the memory budget uses: `default` (on its way to clients) or `ml-cache`."""
        return load_reports.allocator(await ask(lambda broker: broker.snapshots.take()), allocator)

    @router.get("/muted-connections", responses={200: {"model": MutedConnections}}, response_model=None)
    async def muted_connections() -> JSONResponse:
        """Show connections that are not read: why, for how long, what they want and what they hold."""
        return JSONResponse(load_reports.muted(await ask(lambda broker: broker.snapshots.take())))

    @router.get("/topic-listings", responses={200: {"model": ListingMemories}}, response_model=None)
    async def topic_listings() -> JSONResponse:
        """Show what topic listings take of their memory, and the first hundred that wait for it."""
        return JSONResponse(await ask(lambda broker: broker.listings.memory()))

    return router


def _quotas(ask: Ask, needs: Needs) -> APIRouter:
    """Kept and shown; with one broker there is nobody to balance load with."""
    router = APIRouter(prefix="/admin/v2/resource-quotas", tags=["resource-quotas"], dependencies=[needs.superuser])

    @router.get("")
    async def default_quota() -> dict[str, Any]:
        """Show what a bundle is expected to carry."""
        return await ask(lambda broker: broker.quotas.expected())

    @router.post("", **NO_CONTENT)
    async def set_default_quota(quota: ResourceQuota) -> None:
        """Set what a bundle is expected to carry."""
        given = quota.given()
        await ask(lambda broker: broker.quotas.put(given))

    @router.get(_BUNDLE)
    async def quota(name: Namespace, bundle: str) -> dict[str, Any]:
        """Show what one bundle is expected to carry."""
        return await ask(lambda broker: broker.quotas.expected(name, bundle))

    @router.post(_BUNDLE, **NO_CONTENT)
    async def set_quota(name: Namespace, bundle: str, quota: ResourceQuota) -> None:
        """Set what one bundle is expected to carry."""
        given = quota.given()
        await ask(lambda broker: broker.quotas.put(given, name, bundle))

    @router.delete(_BUNDLE, **NO_CONTENT)
    async def delete_quota(name: Namespace, bundle: str) -> None:
        """Let one bundle be like all others again."""
        await ask(lambda broker: broker.quotas.put(None, name, bundle))

    return router


def _absent(_ask: Ask, needs: Needs) -> APIRouter:
    """Bookies there are none, and functions neither."""
    router = APIRouter(tags=["brokers"])

    @router.get("/admin/v2/bookies/all", dependencies=[needs.superuser])
    async def bookies() -> dict[str, list[Any]]:
        """Name the bookies: none, the broker stores by itself."""
        return {"bookies": []}

    @router.get("/admin/v2/bookies/racks-info", dependencies=[needs.superuser])
    async def racks() -> dict[str, Any]:
        """Name the racks of bookies: none."""
        return {}

    async def no_functions() -> JSONResponse:
        """Refuse: there is no function worker."""
        reason = "Function worker service is not done initializing: penstock runs no functions"
        return JSONResponse({"reason": reason}, HTTPStatus.CONFLICT)

    for prefix in _WORKERS:
        for path in (prefix, f"{prefix}/{{rest:path}}"):
            router.add_api_route(
                path,
                no_functions,
                methods=["GET", "PUT", "POST", "DELETE"],
                dependencies=[needs.anybody],
                include_in_schema=False,
            )
    return router
