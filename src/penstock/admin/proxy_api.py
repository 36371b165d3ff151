# SPDX-License-Identifier: Apache-2.0
"""The admin port of a proxy: its own health and metrics; everything else is the cluster's.

Where: `proxy_app` gives `build` to the `AdminServer`, whose limits hold here too.
"""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.admin import overview
from penstock.admin.credentials import METHOD_HEADER, ORIGINAL_HEADER, credentials_of
from penstock.admin.front import WithConsole
from penstock.admin.gateway import ANSWER_S, AcrossLoops
from penstock.admin.middleware import RequestMiddleware
from penstock.admin.passing_on import Streamed
from penstock.admin.probes import PROMETHEUS_TEXT, InPieces
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed, NotFound, PenstockError, PreconditionFailed
from penstock.core.names import NamespaceName, TopicName
from penstock.net.http_request import NoResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
    from pathlib import Path
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.http_memory import HttpMemory
    from penstock.proxy.client_identity import Authentication
    from penstock.proxy.cluster_admin import AdminRequests
    from penstock.proxy.proxy_stats import Page, ProxyStats
    from penstock.proxy.snapshot import ProxySnapshot, ProxySnapshots
    from penstock.proxy.why import Why

    Read = Callable[[int], Coroutine[Any, Any, Page]]

# ---------------------------------------------------------------------------------------------------------------------
# Authentication of requests to a proxy's admin port, and what the cluster is told about their callers.
#
# Why around the whole application: a route that is added later is guarded, too; only the paths of `open_paths` are not.
# As in Pulsar's proxy, a request to the cluster carries the proxy's credentials, and the caller's role in X-Original-
# Principal; what the caller itself writes there is dropped. Where: `proxy_api` wraps its application in it if the proxy
# authenticates its clients.


# The key of the caller's role in the scope of a request.
_ROLE: Final = "penstock.role"
# Headers by which callers say who they are.
_OF_CALLERS: Final = frozenset({"authorization", METHOD_HEADER, ORIGINAL_HEADER})
_ALWAYS_OPEN: Final = frozenset({"/healthz", "/status.html"})
_METRICS: Final = "/metrics"
# Paths of the cluster, whose brokers decide what a role may do there.
_OF_CLUSTER: Final = ("/admin/", "/lookup/")
# Among them are paths of the proxy itself, which `penstock why` and the console ask.
OWN_PATHS: Final = "/admin/v3/why"


class ProxyGuard:
    """Lets authenticated requests through."""

    def __init__(
        self, authentication: Authentication, *, metrics_open: bool, superusers: frozenset[str] | None
    ) -> None:
        """Args: superusers: who may read what the proxy tells of itself, but for metrics; None: every role."""
        self._authentication = authentication
        self._open = _ALWAYS_OPEN | {_METRICS} if metrics_open else _ALWAYS_OPEN
        self._superusers = superusers

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind this guard."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] not in self._open:
                try:
                    scope[_ROLE] = await self._role(Request(scope))
                except PenstockError as error:
                    await JSONResponse({"reason": str(error)}, error.http_status, _asked(error))(scope, receive, send)
                    return
            await app(scope, receive, send)

        return guarded

    def to_cluster(self, request: Request, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers of a request that is sent on."""
        kept = [(name, value) for name, value in headers if name not in _OF_CALLERS]
        return [*kept, *self._authentication.own.http_headers(), (ORIGINAL_HEADER, request.scope[_ROLE])]

    async def _role(self, request: Request) -> str:
        """Return the caller's role. Raises AuthenticationFailed, AuthorizationFailed."""
        authentication = self._authentication
        try:
            role = (await authentication.client(credentials_of(request))).role
        except AuthenticationFailed as error:
            client = f"{request.client.host}:{request.client.port}" if request.client is not None else "unknown"
            log.warning("request of %s is refused: %s", client, error)
            raise AuthenticationFailed(
                f"Authentication required: send valid credentials for {' or '.join(sorted(authentication.methods))}; "
                f"the proxy's log says what was wrong"
            ) from error
        path = request.scope["path"]
        own = path == OWN_PATHS or path.startswith(f"{OWN_PATHS}/")
        theirs = path == _METRICS or (path.startswith(_OF_CLUSTER) and not own)
        if not theirs and self._superusers is not None and role not in self._superusers:
            raise AuthorizationFailed(f"role {role!r} is not among superUserRoles of this proxy")
        return role


def _asked(error: PenstockError) -> dict[str, str] | None:
    return {"www-authenticate": "Bearer"} if error.http_status == HTTPStatus.UNAUTHORIZED else None


# -- `/proxy-stats`, as Apache Pulsar's proxy has it, for its superusers if it authorizes ------------------------------


def proxy_stats_routes(stats: ProxyStats, across: AcrossLoops) -> list[Route]:
    """Return the routes; `across` reaches the proxy's loop."""

    async def first(read: Read) -> Page:
        return await across.answer(read(-1), ANSWER_S)

    async def pages(page: Page, read: Read) -> AsyncIterator[Page]:
        yield page
        while page.after is not None:
            page = await across.answer(read(page.after), ANSWER_S)
            yield page

    # The first page is read before the response begins, so that its errors are answered.
    async def connections(_request: Request) -> Response:
        read = stats.connections
        return StreamingResponse(_json_list(pages(await first(read), read)), media_type="application/json")

    async def topics(_request: Request) -> Response:
        read = stats.topics
        return StreamingResponse(_json_object(pages(await first(read), read)), media_type="application/json")

    async def level(_request: Request) -> Response:
        return JSONResponse(await across.answer(stats.get_level(), ANSWER_S))

    async def set_level(request: Request) -> Response:
        text = request.path_params["level"]
        if not (text.isascii() and text.isdigit()):
            raise PreconditionFailed(f"Proxy log level can be only in range [0-2], not {text[:20]!r}")
        await across.answer(stats.set_level(int(text[:4])), ANSWER_S)
        return Response(status_code=204)

    return [
        Route("/proxy-stats/connections", connections),
        Route("/proxy-stats/topics", topics),
        Route("/proxy-stats/logging", level),
        Route("/proxy-stats/logging/{level}", set_level, methods=["POST"]),
    ]


async def _json_list(pages: AsyncIterator[Page]) -> AsyncIterator[str]:
    mark = "["
    async for page in pages:
        if page.rows:
            yield mark + ",".join(map(json.dumps, page.rows.values()))
            mark = ","
    yield "]" if mark == "," else "[]"


async def _json_object(pages: AsyncIterator[Page]) -> AsyncIterator[str]:
    mark = "{"
    async for page in pages:
        if page.rows:
            yield mark + ",".join(f"{json.dumps(name)}:{json.dumps(row)}" for name, row in page.rows.items())
            mark = ","
    yield "}" if mark == "," else "{}"


log = logging.getLogger(__name__)

# Headers between two neighbours, those that this proxy writes itself, and those of a browser about the page that it
# shows: this proxy has looked at them, and a broker would take its own address for another site.
_NOT_PASSED: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade", "expect", "cookie", "origin", "referer", "sec-fetch-dest", "sec-fetch-mode",
     "sec-fetch-site", "sec-fetch-user"}
)  # fmt: skip
_METHODS: Final = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """State of the proxy, for its admin port.

    Attributes:
        snapshots: for metrics.
        render: makes Prometheus' text of a snapshot, in pieces.
        status_file: while it exists, /status.html says OK.
        knows_cluster: whether requests of administrators can be sent on.
        why: explains why clients wait.
        stats: rates of connections and topics.
        guard: authenticates callers; None: the cluster does that.
        consoles: of other clusters, by name.
    """

    snapshots: ProxySnapshots
    render: Callable[[ProxySnapshot], Iterable[str]]
    status_file: Path | None
    knows_cluster: bool
    why: Why
    stats: ProxyStats
    guard: ProxyGuard | None = None
    consoles: Sequence[tuple[str, str]] = ()


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

    async def shown_overview(_request: Request) -> Response:
        return JSONResponse(overview.of_proxy(await across.answer(inside.snapshots.take(), ANSWER_S)))

    async def why_everything(_request: Request) -> Response:
        return JSONResponse(await across.answer(inside.why.of_everything(), ANSWER_S))

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
            Route(OWN_PATHS, why_everything),
            Route(f"{OWN_PATHS}/{{kind}}/{{rest:path}}", why),
            Route("/proxy-stats/overview", shown_overview),
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
    # The files of the console are for everybody: what they ask for then is not.
    return WithConsole(
        RequestMiddleware(guarded, memory=memory, requests_max=requests_max), "proxy", memory, inside.consoles
    )


def _nothing_at(path: str, inside: Inside) -> str:
    if path.startswith(("/admin/", "/lookup/")) and not inside.knows_cluster:
        return (
            f"{path} is a path of the cluster, whose admin port this proxy does not know: set --upstream-admin "
            "(brokerWebServiceURL)"
        )
    return f"a proxy has nothing at {path}"
