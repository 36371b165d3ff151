# SPDX-License-Identifier: Apache-2.0
"""`/proxy-stats`, as Apache Pulsar's proxy has it, for its superusers if it authorizes.

Where: `proxy_api` adds these routes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.admin.gateway import ANSWER_S
from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    from starlette.requests import Request

    from penstock.admin.gateway import AcrossLoops
    from penstock.proxy.proxy_stats import Page, ProxyStats

    Read = Callable[[int], Coroutine[Any, Any, Page]]


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
