# SPDX-License-Identifier: Apache-2.0
"""The admin port of a proxy: its own health and metrics; everything else is the cluster's.

Where: `proxy_app` gives `build` to the `AdminServer`, whose limits hold here too.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from penstock.admin.gateway import ANSWER_S, AcrossLoops
from penstock.admin.http_responses import PROMETHEUS_TEXT, InPieces
from penstock.admin.middleware import RequestMiddleware
from penstock.admin.passing_on import Streamed
from penstock.admin.proxy_guard import OWN_PATHS
from penstock.admin.proxy_stats_routes import proxy_stats_routes
from penstock.core.errors import NotFound, PenstockError
from penstock.core.names import NamespaceName, TopicName
from penstock.net.http_request import NoResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.http_memory import HttpMemory
    from penstock.admin.proxy_guard import ProxyGuard
    from penstock.proxy.admin_requests import AdminRequests
    from penstock.proxy.proxy_stats import ProxyStats
    from penstock.proxy.snapshot import ProxySnapshot, ProxySnapshots
    from penstock.proxy.why import Why

log = logging.getLogger(__name__)

# Headers between two neighbours, and those that this proxy writes itself.
_NOT_PASSED: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade", "expect"}
)  # fmt: skip
_METHODS: Final = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What the proxy tells of itself.

    Attributes:
        snapshots: for metrics.
        render: makes Prometheus' text of a snapshot, in pieces.
        status_file: while it exists, /status.html says OK.
        knows_cluster: whether requests of administrators can be sent on.
        why: explains why clients wait.
        stats: rates of connections and topics.
        guard: authenticates callers; None: the cluster does that.
    """

    snapshots: ProxySnapshots
    render: Callable[[ProxySnapshot], Iterable[str]]
    status_file: Path | None
    knows_cluster: bool
    why: Why
    stats: ProxyStats
    guard: ProxyGuard | None = None


class _PassedOn(Streamed):
    """A broker's response. If it ends too early, so does the caller's: its head has been passed on already."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except NoResponse as error:
            log.warning("a response of the cluster is cut off: %s", error)


def build(
    requests: AdminRequests, memory: HttpMemory, inside: Inside, *, loop: asyncio.AbstractEventLoop, requests_max: int
) -> ASGIApp:
    """Return the application; `loop` is the proxy's."""
    across = AcrossLoops(loop, "proxy")

    async def healthz(_request: Request) -> Response:
        async def stopping() -> bool:
            return inside.snapshots.is_stopping()

        if await across.answer(stopping(), ANSWER_S):
            return JSONResponse({"status": "failing", "reason": "the proxy is stopping"}, 503)
        return JSONResponse({"status": "ok"})

    async def status(_request: Request) -> Response:
        file = inside.status_file
        if file is None or not file.is_file() or inside.snapshots.is_stopping():
            raise NotFound("the proxy is not in service, or statusFilePath is not set")
        return PlainTextResponse("OK")

    async def metrics(_request: Request) -> Response:
        snapshot = await across.answer(inside.snapshots.take(), ANSWER_S)
        return InPieces(inside.render(snapshot), PROMETHEUS_TEXT)

    async def why(request: Request) -> Response:
        kind, rest = request.path_params["kind"], unquote(request.path_params["rest"])
        if kind == "tenants":
            asked = inside.why.of_tenant(rest)
        elif kind == "namespaces":
            asked = inside.why.of_namespace(NamespaceName.parse(rest))
        elif kind == "producers":
            asked = inside.why.of_client(rest)
        else:
            asked = inside.why.of_topic(TopicName.parse(f"{kind}://{rest}"))
        return JSONResponse(await across.answer(asked, ANSWER_S))

    async def pass_on(request: Request) -> Response:
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["raw_path"].decode("latin-1")
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED]
        if inside.guard is not None:
            headers = inside.guard.to_cluster(request, headers)
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(
                requests.sent(request.method, f"{path}?{query}" if query else path, headers, await request.body())
            )
        except BaseException:
            await stack.aclose()
            raise
        return _PassedOn(response, stack)

    async def not_found(request: Request, _error: Exception) -> Response:
        return JSONResponse({"reason": _nothing_at(request.url.path, inside)}, HTTPStatus.NOT_FOUND)

    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        return JSONResponse({"reason": str(error)}, error.http_status)

    async def broken_off(_request: Request, error: Exception) -> Response:
        return JSONResponse({"reason": f"the broker does not answer: {error}"}, HTTPStatus.BAD_GATEWAY)

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/status.html", status),
            Route("/metrics", metrics),
            Route(f"{OWN_PATHS}{{kind}}/{{rest:path}}", why),
            *proxy_stats_routes(inside.stats, across),
            *(
                Route(path, pass_on, methods=_METHODS)
                for path in ("/admin/{rest:path}", "/lookup/{rest:path}")
                if inside.knows_cluster
            ),
        ],
        exception_handlers={HTTPStatus.NOT_FOUND: not_found, PenstockError: failed, NoResponse: broken_off},
    )
    guarded = app if inside.guard is None else inside.guard.around(app)
    return RequestMiddleware(guarded, memory=memory, requests_max=requests_max)


def _nothing_at(path: str, inside: Inside) -> str:
    if path.startswith(("/admin/", "/lookup/")) and not inside.knows_cluster:
        return (
            f"{path} is a path of the cluster, whose admin port this proxy does not know: set --upstream-admin "
            "(brokerWebServiceURL)"
        )
    return f"a proxy has nothing at {path}"
