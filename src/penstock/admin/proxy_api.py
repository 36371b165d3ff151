# SPDX-License-Identifier: Apache-2.0
"""The admin port of a proxy: its own health and metrics; everything else is the cluster's.

Where: `proxy_app` gives `build` to the `AdminServer`, whose limits hold here too.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.admin.middleware import RequestMiddleware
from penstock.admin.passing_on import Streamed
from penstock.core.errors import PenstockError
from penstock.net.http_request import NoResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from penstock.admin.http_memory import HttpMemory
    from penstock.proxy.admin_requests import AdminRequests

# Headers between two neighbours, and those that this proxy writes itself.
_NOT_PASSED: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade", "expect"}
)  # fmt: skip
_METHODS: Final = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]


def build(requests: AdminRequests, memory: HttpMemory, *, requests_max: int) -> ASGIApp:
    """Return the application."""

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def pass_on(request: Request) -> Response:
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["raw_path"].decode("latin-1")
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED]
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(
                requests.sent(request.method, f"{path}?{query}" if query else path, headers, await request.body())
            )
        except BaseException:
            await stack.aclose()
            raise
        return Streamed(response, stack)

    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        return JSONResponse({"reason": str(error)}, error.http_status)

    async def broken_off(_request: Request, error: Exception) -> Response:
        return JSONResponse({"reason": f"the broker does not answer: {error}"}, HTTPStatus.BAD_GATEWAY)

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            *(Route(path, pass_on, methods=_METHODS) for path in ("/admin/{rest:path}", "/lookup/{rest:path}")),
        ],
        exception_handlers={PenstockError: failed, NoResponse: broken_off},
    )
    return RequestMiddleware(app, memory=memory, requests_max=requests_max)
