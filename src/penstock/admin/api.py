# SPDX-License-Identifier: Apache-2.0
"""The routes of the admin port, and the format of its errors: `{"reason": "…"}`, as Pulsar's admin clients expect.

Why apart from `probes`: FastAPI and these routes take a second and 25 MiB, which a broker that is only probed and
scraped should not spend. Where: `probes` makes them for the first request that needs them. A group of routes is a
function that takes the gateway and returns a router.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from penstock import __version__
from penstock.admin import probes
from penstock.admin.access import Needs, check_before_body
from penstock.admin.gateway import FROM_PEER
from penstock.admin.json_rules import check_body
from penstock.admin.middleware import RequestMiddleware, allowed_methods
from penstock.admin.models import Degraded, Failing, Front, Healthy, Status
from penstock.admin.passing_on import PassingOn
from penstock.admin.probes import our_fault, penstock_error
from penstock.admin.routes import GROUPS
from penstock.admin.routing import documented
from penstock.core.errors import PartitionsElsewhere, PenstockError, ServedElsewhere, ServiceNotReady

if TYPE_CHECKING:
    from fastapi import Request

    from penstock.admin.gateway import Gateway
    from penstock.admin.http_memory import HttpMemory
    from penstock.net.peers import Peers


class _Api(FastAPI):
    """The application, whose OpenAPI document includes its errors."""

    def openapi(self) -> dict[str, Any]:
        """Return the document, which is created once."""
        if self.openapi_schema is None:
            self.openapi_schema = documented(super().openapi())
        return self.openapi_schema


def build(
    gateway: Gateway, memory: HttpMemory | None = None, *, requests_max: int = 64, peers: Peers | None = None
) -> FastAPI:
    """Return the application: all routes and the format of errors.

    Args:
        gateway: the way to the broker.
        memory: the memory that all requests share.
        requests_max: how many requests are handled at a time.
        peers: the other brokers of the cluster, if there are any.
    """
    # Without the bundled documentation pages: they load scripts from the internet. The schema is at /openapi.json,
    # a route of our own, so that it is guarded like the others.
    app = _Api(
        title="penstock",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_body)],
    )
    needs = Needs(gateway)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[needs.anybody])
    async def schema() -> JSONResponse:
        return JSONResponse(app.openapi())

    app.include_router(_observing(gateway, needs))
    for group in GROUPS:
        app.include_router(group(gateway, needs))
    app.add_middleware(RequestMiddleware, before_body=check_before_body, memory=memory, requests_max=requests_max)
    app.add_exception_handler(PenstockError, penstock_error)
    if peers is not None:
        app.add_exception_handler(ServiceNotReady, partial(_pass_on, PassingOn(peers, gateway)))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(Exception, our_fault)
    return app


def _observing(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes for monitoring."""
    router = APIRouter(tags=["monitoring"], dependencies=[needs.nobody])

    @router.get("/")
    async def front() -> Front:
        """Return the version, whether the broker is healthy, and where to go from here."""
        try:
            health = await gateway.health()
        except PenstockError:
            return Front(version=__version__, status="failing")
        return Front(version=__version__, status=_status(ok=health.ok, degraded=bool(health.problems)))

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return all metrics in Prometheus' text format."""
        return await probes.metrics(gateway)

    @router.get(
        "/healthz", response_model=Healthy | Degraded, responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": Failing}}
    )
    async def healthz() -> Response:
        """Return 200 while the broker can work, and the damaged parts of its log; otherwise 503 and the reason."""
        return await probes.healthz(gateway)

    return router


def _status(*, ok: bool, degraded: bool) -> Status:
    if not ok:
        return "failing"
    return "degraded" if degraded else "ok"


async def _pass_on(passing_on: PassingOn, request: Request, error: Exception) -> Response:
    """Pass a request on that other brokers must answer; answer with any other error that asks to try again."""
    try:
        if not FROM_PEER.get():
            if isinstance(error, ServedElsewhere):
                return await passing_on.whole(request, error.broker)
            if isinstance(error, PartitionsElsewhere):
                return await passing_on.to_partitions(request, error)
    except ServiceNotReady as failure:
        return await penstock_error(request, failure)
    return await penstock_error(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = {"Allow": allowed_methods(request.app, request.scope)}
        if request.method == "OPTIONS":
            return Response(headers=allow)
        return JSONResponse({"reason": f"{request.method} is not served here"}, error.status_code, allow)
    return JSONResponse({"reason": error.detail}, error.status_code, error.headers)


async def _bad_request(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return JSONResponse({"reason": "; ".join(faults)}, HTTPStatus.BAD_REQUEST)
