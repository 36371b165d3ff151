# SPDX-License-Identifier: Apache-2.0
"""Routes of the broker: its health, configuration and load.

They also give empty answers for parts of a Pulsar cluster that do not exist here.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, PlainTextResponse

from penstock import __version__
from penstock.admin import load_reports
from penstock.admin.gateway import Ask
from penstock.admin.models import Flag, Model, Number
from penstock.admin.models_stats import ListingMemories, MutedConnections
from penstock.admin.probes import InPieces
from penstock.admin.routing import NO_CONTENT, REASON, Namespace
from penstock.core.errors import NotFound, ServiceNotReady
from penstock.storage.formats import NEWEST

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway

PREFIX: Final = "/admin/v2/brokers"
# A backup asks again all the time; one that was killed holds space for so long at most.
KEEP_S_MAX: Final = 600
# The exact response that administration tools expect of a healthy broker.
OK: Final = "ok"
_BUNDLE: Final = "/{tenant}/{namespace}/{bundle}"
# The paths of Pulsar's function workers.
_WORKERS: Final = ("/admin/v2/worker", "/admin/v2/worker-stats", "/admin/v2/functions", "/admin/v3/functions",
                   "/admin/v3/sources", "/admin/v3/source", "/admin/v3/sinks", "/admin/v3/sink")  # fmt: skip


class KeptLog(Model):
    """The segments that a broker keeps for a backup."""

    broker: int
    inode: int  # of the directory of the log, so that a backup finds that it copies another one
    hold: int  # a number that changes when a hold has run out and another began
    segments: dict[str, int]  # name of the file: durable bytes


class StoredFormats(Model):
    """The versions of what this broker stores; later ones have larger numbers."""

    directory: int  # the data directory as a whole
    sharedCatalog: int  # noqa: N815 -- names of the JSON
    topicCatalog: int  # noqa: N815
    logIndex: int  # noqa: N815
    log: int


class ResourceQuota(Model):
    """The expected load of a bundle, per second."""

    msgRateIn: Number = 0.0  # noqa: N815 -- names of the JSON
    msgRateOut: Number = 0.0  # noqa: N815
    bandwidthIn: Number = 0.0  # noqa: N815
    bandwidthOut: Number = 0.0  # noqa: N815
    memory: Number = 0.0
    dynamic: Flag = True


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v2/brokers, /broker-stats, /bookies, /resource-quotas, and /status.html."""
    router = APIRouter()
    ask = Ask(gateway)
    for part in (_brokers, _formats, _configuration, _status, _statistics, _quotas, _absent):
        router.include_router(part(ask, needs))
    return router


def _brokers(ask: Ask, needs: Needs) -> APIRouter:
    """Routes of brokers. `/{cluster}` would also match its neighbours' paths, so it comes last."""
    router = APIRouter(prefix=PREFIX, tags=["brokers"])

    @router.get("", dependencies=[needs.superuser])
    async def list_brokers() -> list[str]:
        """List the brokers of this cluster."""
        return await ask(lambda broker: broker.service.names())

    @router.get("/leaderBroker", dependencies=[needs.superuser])
    async def leader() -> dict[str, Any]:
        """Return the leader broker."""
        return await ask(lambda broker: broker.service.leader())

    @router.get("/health", dependencies=[needs.superuser], response_class=PlainTextResponse)
    async def health(
        broker_id: Annotated[str | None, Query(alias="brokerId", description="One of this cluster's brokers")] = None,
    ) -> str:
        """Return `ok` if the broker is healthy, otherwise 503 and the reason."""
        await ask(lambda broker: broker.service.check_healthy(broker_id))
        return OK

    @router.get("/version", dependencies=[needs.anybody], response_class=PlainTextResponse)
    async def version() -> str:
        """Return the version of this broker."""
        return f"{__version__}-penstock"

    @router.get("/internal-configuration", dependencies=[needs.superuser])
    async def internal_configuration() -> dict[str, Any]:
        """Return where metadata is stored."""
        return await ask(lambda broker: broker.service.internal_configuration())

    @router.get("/backlog-quota-check", dependencies=[needs.superuser], **NO_CONTENT)
    async def backlog_quota_check() -> None:
        """Check backlog quotas now."""
        await ask(lambda broker: broker.service.check_backlog_quotas())

    @router.post("/backup", dependencies=[needs.superuser])
    async def backup(
        seconds: Annotated[int, Query(ge=0, le=KEEP_S_MAX, description="How long to keep segments, at least")] = 0,
    ) -> list[KeptLog]:
        """Keep the segments of all brokers' logs for a backup, and return how many bytes of each are durable."""
        kept = await ask(lambda broker: broker.backup.keep(seconds))
        return [KeptLog(**one) for one in kept]

    @router.post("/shutdown", dependencies=[needs.superuser], **NO_CONTENT)
    async def shutdown() -> None:
        """Stop the broker gracefully."""
        await ask(lambda broker: broker.service.shut_down())

    @router.get("/{cluster}/{broker}/ownedNamespaces", dependencies=[needs.superuser])
    async def owned_namespaces(cluster: str, broker_id: Annotated[str, Path(alias="broker")]) -> dict[str, Any]:
        """List the bundles that a broker serves."""
        return await ask(lambda broker: broker.service.owned_namespaces(cluster, broker_id))

    return router


def _formats(_: Ask, needs: Needs) -> APIRouter:
    router = APIRouter(prefix="/admin/v3/brokers", tags=["brokers"])

    @router.get("/formats", dependencies=[needs.anybody])
    async def formats() -> StoredFormats:
        """Return the versions of the formats that the broker stores its data in."""
        return StoredFormats(
            directory=NEWEST.directory,
            sharedCatalog=NEWEST.shared_catalog,
            topicCatalog=NEWEST.topic_catalog,
            logIndex=NEWEST.log_index,
            log=NEWEST.log,
        )

    return router


async def _ok(ask: Ask) -> str:
    reason = await ask(lambda broker: broker.service.unhealthy_reason())
    if reason is not None:
        raise ServiceNotReady(reason)
    return OK


def _configuration(ask: Ask, needs: Needs) -> APIRouter:
    router = APIRouter(prefix=f"{PREFIX}/configuration", tags=["brokers"], dependencies=[needs.superuser])

    @router.get("")
    async def dynamic_keys() -> list[str]:
        """List the settings that can be changed at run time."""
        return await ask(lambda broker: broker.configuration.dynamic())

    @router.get("/values")
    async def overridden() -> dict[str, str]:
        """Return the settings that were changed at run time."""
        return await ask(lambda broker: broker.configuration.overridden())

    @router.get("/runtime")
    async def runtime() -> dict[str, str]:
        """Return all current settings; keys and passwords are shown as ***."""
        return await ask(lambda broker: broker.configuration.runtime())

    @router.post("/{key}/{value}", **NO_CONTENT)
    async def change(key: str, value: str) -> None:
        """Change a setting now and for all later starts."""
        await ask(lambda broker: broker.configuration.put(key, value))

    @router.delete("/{key}", **NO_CONTENT)
    async def remove_change(key: str) -> None:
        """Remove a change, so that the file, the environment and the command line apply again."""
        await ask(lambda broker: broker.configuration.remove(key))

    return router


def _status(ask: Ask, needs: Needs) -> APIRouter:
    """Routes for probes, of which /status.html needs no token; and, last, the brokers of a cluster by name."""
    router = APIRouter(tags=["brokers"])

    @router.get(f"{PREFIX}/ready", dependencies=[needs.anybody], response_class=PlainTextResponse)
    async def ready() -> PlainTextResponse:
        """Return `ok` if the broker serves topics, otherwise 500."""
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
        """Return OK if the file named by statusFilePath exists and the broker is healthy."""
        file = await ask(lambda broker: broker.service.status_file())
        if file is None or not file.is_file():
            raise NotFound("the broker is not in service, or statusFilePath is not set")
        return "OK"

    @router.get(f"{PREFIX}/{{cluster}}", dependencies=[needs.superuser])
    async def list_brokers_of(cluster: str) -> list[str]:
        """List the brokers of a cluster."""
        return await ask(lambda broker: broker.service.names(cluster))

    return router


def _statistics(ask: Ask, needs: Needs) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/broker-stats", tags=["broker-stats"], dependencies=[needs.superuser])
    reporter = load_reports.Reporter()

    @router.get("/load-report")
    async def load_report() -> dict[str, Any]:
        """Return the load of the broker; rates are since the previous report."""
        data = await ask(lambda broker: broker.service.local_broker_data())
        return reporter.report(await ask(lambda broker: broker.snapshots.take()), data)

    @router.get("/metrics")
    async def metrics() -> list[dict[str, Any]]:
        """Return the totals of each namespace; /metrics has more."""
        return load_reports.metrics(await ask(lambda broker: broker.snapshots.take()))

    @router.get("/topics", responses={200: {"model": dict[str, Any]}}, response_model=None)
    async def topics() -> InPieces:
        """Return every loaded topic."""
        snapshot = await ask(lambda broker: broker.snapshots.take())
        return InPieces(load_reports.topics(snapshot), "application/json")

    @router.get("/mbeans")
    async def process() -> list[dict[str, Any]]:
        """Return the resources that the process uses."""
        return load_reports.process(await ask(lambda broker: broker.snapshots.take()))

    @router.get("/allocator-stats/{allocator}")
    async def allocator_stats(allocator: str) -> dict[str, Any]:
        """Return the use of a part of the memory budget: `default` (unsent bytes to clients) or `ml-cache`."""
        return load_reports.allocator(await ask(lambda broker: broker.snapshots.take()), allocator)

    @router.get("/muted-connections", responses={200: {"model": MutedConnections}}, response_model=None)
    async def muted_connections() -> JSONResponse:
        """Return muted connections: the reason, since when, how much they want to read and what they hold."""
        return JSONResponse(load_reports.muted(await ask(lambda broker: broker.snapshots.take())))

    @router.get("/topic-listings", responses={200: {"model": ListingMemories}}, response_model=None)
    async def topic_listings() -> JSONResponse:
        """Return the memory that topic listings use, and the first hundred requests that wait for it."""
        return JSONResponse(await ask(lambda broker: broker.listings.memory()))

    return router


def _quotas(ask: Ask, needs: Needs) -> APIRouter:
    """Stored and returned, without effect: one broker has no load balancing."""
    router = APIRouter(prefix="/admin/v2/resource-quotas", tags=["resource-quotas"], dependencies=[needs.superuser])

    @router.get("")
    async def default_quota() -> dict[str, Any]:
        """Return the expected load of a bundle."""
        return await ask(lambda broker: broker.quotas.expected())

    @router.post("", **NO_CONTENT)
    async def set_default_quota(quota: ResourceQuota) -> None:
        """Set the expected load of a bundle."""
        given = quota.given()
        await ask(lambda broker: broker.quotas.put(given))

    @router.get(_BUNDLE)
    async def quota(name: Namespace, bundle: str) -> dict[str, Any]:
        """Return the expected load of one bundle."""
        return await ask(lambda broker: broker.quotas.expected(name, bundle))

    @router.post(_BUNDLE, **NO_CONTENT)
    async def set_quota(name: Namespace, bundle: str, quota: ResourceQuota) -> None:
        """Set the expected load of one bundle."""
        given = quota.given()
        await ask(lambda broker: broker.quotas.put(given, name, bundle))

    @router.delete(_BUNDLE, **NO_CONTENT)
    async def delete_quota(name: Namespace, bundle: str) -> None:
        """Reset the expected load of one bundle to the default."""
        await ask(lambda broker: broker.quotas.put(None, name, bundle))

    return router


def _absent(_ask: Ask, needs: Needs) -> APIRouter:
    """Routes of bookies and functions, which do not exist."""
    router = APIRouter(tags=["brokers"])

    @router.get("/admin/v2/bookies/all", dependencies=[needs.superuser])
    async def bookies() -> dict[str, list[Any]]:
        """List the bookies: none, the broker stores messages itself."""
        return {"bookies": []}

    @router.get("/admin/v2/bookies/racks-info", dependencies=[needs.superuser])
    async def racks() -> dict[str, Any]:
        """List the racks of bookies: none."""
        return {}

    async def no_functions() -> JSONResponse:
        """Refuse the request: there is no function worker."""
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
