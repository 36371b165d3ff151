# SPDX-License-Identifier: Apache-2.0
"""Passing requests on to the broker that serves the topic.

Pulsar redirects such requests (307). Here the broker that was asked passes them on itself, over a socket that only the
brokers of this machine have: every client can then use any admin port, and credentials stay where they were checked.
What is passed on is who asks (`core.caller`), and the broker that serves the topic authorizes it. A broker that is
being started again takes the request when it is ready.

Where: routes ask the broker as if it were the only one. When it says that others serve the topic, or some of its
partitions, `api` answers with these.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

from starlette.responses import JSONResponse, Response

from penstock.core.caller import CALLER

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from penstock.admin.gateway import Gateway
    from penstock.core.errors import PartitionsElsewhere
    from penstock.net.http_request import Response as PeerResponse
    from penstock.net.peers import Peers

# The key of a request's body in its scope, once it was read.
BODY: Final = "penstock.body"
# Partitions that are asked for at a time.
AT_ONCE: Final = 16
# Where the topic's name is in a path: /admin/v2/persistent/TENANT/NAMESPACE/TOPIC.
_TOPIC_AT: Final = 6
_PASSED_HEADERS: Final = ("accept", "content-type")
_OWN_HEADERS: Final = frozenset({"connection", "date", "server", "transfer-encoding", "keep-alive"})
# Statuses of partitions that do not matter if the operation was done on others: it has no such subscription, or has it
# already, or has nothing to do.
_OF_SOME: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})


class PassingOn:
    """Passes requests on to other brokers."""

    def __init__(self, peers: Peers, gateway: Gateway) -> None:
        """Args: gateway: the way to the broker that was asked."""
        self._peers = peers
        self._gateway = gateway

    async def whole(self, request: Request, broker: int) -> Response:
        """Return the broker's response to this request. Raises ServiceNotReady."""
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(self._sent(request, broker, _path(request)))
            await self._catch_up(request)
        except BaseException:
            await stack.aclose()
            raise
        return Streamed(response, stack)

    async def to_partitions(self, request: Request, rest: PartitionsElsewhere) -> Response:
        """Send this request for each of the partitions, and return one response for all. Raises ServiceNotReady."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def send(local: str, broker: int) -> tuple[int, bytes]:
            segments = _path(request).split("/")
            segments[_TOPIC_AT] = quote_plus(local)
            async with turn, self._sent(request, broker, "/".join(segments)) as response:
                return response.status, b"".join([piece async for piece in response.body])

        answers = await asyncio.gather(*(send(*one) for one in rest.partitions.items()))
        await self._catch_up(request)
        done = rest.done + sum(status < HTTPStatus.BAD_REQUEST for status, _ in answers)
        for status, body in answers:
            if status >= HTTPStatus.BAD_REQUEST and not (done and status in _OF_SOME):
                return JSONResponse(json.loads(body), status)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _catch_up(self, request: Request) -> None:
        """Let the broker that was asked know what others have changed, before it answers that they did."""
        if request.method not in {"GET", "HEAD"}:
            await self._gateway.ask(lambda broker: broker.service.catch_up())

    def _sent(self, request: Request, broker: int, path: str) -> AbstractAsyncContextManager[PeerResponse]:
        headers = [(name, request.headers[name]) for name in _PASSED_HEADERS if name in request.headers]
        query = request.scope["query_string"].decode("latin-1")
        body: bytes = request.scope.get(BODY, b"")
        target = f"{path}?{query}" if query else path
        return self._peers.send(broker, request.method, target, headers, body, by=CALLER.get())


class Streamed(Response):
    """Another broker's response, written as it arrives."""

    def __init__(self, response: PeerResponse, stack: AsyncExitStack) -> None:
        self._response = response
        self._stack = stack
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as others call it
        async with self._stack:
            headers = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in self._response.headers
                if name.lower() not in _OWN_HEADERS
            ]
            await send({"type": "http.response.start", "status": self._response.status, "headers": headers})
            async for piece in self._response.body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _path(request: Request) -> str:
    raw: bytes = request.scope["raw_path"]
    return raw.decode("ascii", "replace").rstrip("/")
