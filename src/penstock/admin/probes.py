# SPDX-License-Identifier: Apache-2.0
"""Health and metrics, for probes and Prometheus, without the framework of the other routes.

Why apart: FastAPI and two hundred routes take a second of the processor and 30 MiB, and most brokers are only asked
these two. Where: the admin port's application is a `Probes`, which makes the rest (`api.build`) for the first request
to another path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.admin.http_memory import RETRY_AFTER_S
from penstock.admin.middleware import ALWAYS_ANSWERED, RequestMiddleware, normal_path
from penstock.core.errors import PenstockError
from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.gateway import Gateway
    from penstock.admin.http_memory import HttpMemory

log = logging.getLogger(__name__)

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
# About half a millisecond of work.
PIECE_CHARACTERS: Final = 16 * KIB


class Probes:
    """The application: probes at once, the other routes from the first request to one of them on."""

    def __init__(self, gateway: Gateway, memory: HttpMemory, rest: Callable[[], ASGIApp]) -> None:
        """Args: rest: makes the application of the other routes."""

        async def health(_request: Request) -> Response:
            return await healthz(gateway)

        async def measures(_request: Request) -> Response:
            return await metrics(gateway)

        routes = [Route("/healthz", health), Route("/metrics", measures)]
        app = Starlette(routes=routes, exception_handlers={PenstockError: penstock_error, Exception: our_fault})
        self._probes = RequestMiddleware(app, memory=memory)
        self._make_rest = rest
        self._rest: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _is_probe(scope):
            await self._probes(scope, receive, send)
            return
        if self._rest is None:
            self._rest = self._make_rest()
        await self._rest(scope, receive, send)


def _is_probe(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in {"GET", "HEAD"} and normal_path(scope) in ALWAYS_ANSWERED


async def healthz(gateway: Gateway) -> JSONResponse:
    """Return 200 while the broker can work, with what is damaged or expires soon; otherwise 503 and the reason."""
    try:
        health = await gateway.health()
    except PenstockError as error:
        return _failing(str(error))
    if not health.ok:
        return _failing(health.reason)
    notes = {"notes": list(health.notes)} if health.notes else {}
    if health.problems:
        return JSONResponse({"status": "degraded", "problems": list(health.problems), **notes})
    return JSONResponse({"status": "ok", **notes})


def _failing(reason: str) -> JSONResponse:
    return JSONResponse({"status": "failing", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)


async def metrics(gateway: Gateway) -> Response:
    """Return all metrics in Prometheus' text format."""
    return InPieces(await gateway.metrics(), PROMETHEUS_TEXT)


class InPieces(StreamingResponse):
    """A response that is rendered while it is sent, with turns of this loop for other requests in between.

    When it ends, also because the caller is gone, it drops `pieces`: the traceback of a response that is cancelled
    keeps it until the next garbage collection, and it would keep the snapshot that the pieces are made of.
    """

    def __init__(self, pieces: Iterable[str], media_type: str) -> None:
        self._pieces = (piece for piece in pieces)
        super().__init__(_in_turns(self._pieces), media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._pieces):
            await super().__call__(scope, receive, send)


async def _in_turns(pieces: Iterable[str]) -> AsyncIterator[str]:
    """Yield the pieces, joined to about `PIECE_CHARACTERS`. A plain iterable would use a thread pool."""
    joined: list[str] = []
    size = 0
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= PIECE_CHARACTERS:
            yield "".join(joined)
            joined, size = [], 0
            await asyncio.sleep(0)
    yield "".join(joined)


async def penstock_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer with the status and the text of the error."""
    assert isinstance(error, PenstockError)
    again = error.http_status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
    headers = {"retry-after": str(RETRY_AFTER_S)} if again else None
    return JSONResponse({"reason": str(error)}, error.http_status, headers)


async def our_fault(_request: Request, _error: Exception) -> JSONResponse:
    """Send a general message: the error itself goes to the log, not to the caller."""
    return JSONResponse({"reason": "internal error; see the broker's log"}, HTTPStatus.INTERNAL_SERVER_ERROR)
