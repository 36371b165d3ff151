# SPDX-License-Identifier: Apache-2.0
"""What is the same for every request, before a route sees it and after: paths, methods, sizes.

Why around the application: routing decodes a path before it cuts it into segments, so `a%2Fb` in a subscription's name
would become two of them. Here the path is cut as it was sent, and each parameter is decoded by itself. Pulsar's Java
admin client writes topics as in a form (a space is a plus), and subscriptions twice over: as in a form, and then again
as a path. Other clients write them once. Both are read, as Pulsar reads them.
Where: `api.build` wraps the application in it; uvicorn calls it.

- A slash at the end of a path means nothing.
- HEAD is GET without the body; OPTIONS names the methods of a path.
- Nothing of a body is read before `before_body` has agreed: it raises for whoever may not ask.
- A body beyond `body_bytes_max` of its path is refused, before it is read if its length was announced; so is one of
  more than `VALUES_MAX` values, before it is parsed. A body of which nothing is said is JSON.
- A request charges its body and its answer to the memory of the admin port, and so many are at work at once. Those of
  `ALWAYS_ANSWERED` are exempt: whoever watches the broker must be answered when others flood it.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from penstock.admin.http_memory import BODY_FACTOR, CHARGE, RETRY_AFTER_S, VALUE_BYTES, HttpMemory
from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.admin.http_memory import Charge

# What an administrator sends is settings and lists of names: the boundaries of 4,096 bundles take 53 KiB.
BODY_BYTES_MAX: Final = 256 * KIB
# The definition of a schema may be 1 MiB, as a text in JSON that escapes every other character.
SCHEMA_BODY_BYTES_MAX: Final = 2 * MIB + 64 * KIB
_SCHEMAS: Final = "/admin/v2/schemas/"
# Numbers, texts, lists and objects in one body. To say what is wrong with each takes 6 µs and 1,500 bytes.
VALUES_MAX: Final = 8_192
# Answers are written in such pieces: the next is sent when the socket has taken most of those before.
PIECE_BYTES: Final = 64 * KIB
ALWAYS_ANSWERED: Final = frozenset({"/healthz", "/metrics"})
# What is read, and dropped, of a body that was refused.
DROPPED_BYTES_MAX: Final = 16 * MIB
DROPPED_S: Final = 2.0
# So many callers at once are given that chance. To read what sixty others flood us with would keep probes waiting.
DROPPING_MAX: Final = 4

_CLOSE: Final = {"connection": "close"}
_AGAIN: Final = {"retry-after": str(RETRY_AFTER_S)}

# A text in JSON, and what separates values outside of texts.
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SEPARATORS: Final = (b",", b"[", b"{")
_CONTENT_TYPE: Final = b"content-type"
_CONTENT_LENGTH: Final = b"content-length"
_METHODS: Final = ("GET", "PUT", "POST", "DELETE")


class Segment(Convertor[str]):
    """One segment of a path, decoded after the path was cut."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """From the path."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """To a path."""
        return quote(value, safe="")


class Local(Segment):
    """A topic's own name."""

    def convert(self, value: str) -> str:
        """From the path."""
        return unquote_plus(value)

    def to_string(self, value: str) -> str:
        """To a path."""
        return quote_plus(value)


class Twice(Segment):
    """A subscription's name, encoded twice or once."""

    def convert(self, value: str) -> str:
        """From the path."""
        return unquote_plus(unquote(value))

    def to_string(self, value: str) -> str:
        """To a path."""
        return quote(quote_plus(value), safe="")


class Domain(Segment):
    """The first part of a topic's full name."""

    regex = "persistent|non-persistent"


# Every path parameter without a type of its own is a segment.
register_url_convertor("str", Segment())
register_url_convertor("local", Local())
register_url_convertor("twice", Twice())
register_url_convertor("domain", Domain())


async def _anybody(_scope: Scope) -> None:
    """Everybody may send a body."""


def body_bytes_max(path: str) -> int:
    """How large a body may be that is sent to this path."""
    return SCHEMA_BODY_BYTES_MAX if path.startswith(_SCHEMAS) else BODY_BYTES_MAX


class RequestMiddleware:
    """The application as uvicorn sees it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        before_body: Callable[[Scope], Awaitable[None]] = _anybody,
        memory: HttpMemory | None = None,
        requests_max: int = 64,
    ) -> None:
        self._app = app
        self._before_body = before_body
        self._memory = memory or HttpMemory()
        self._requests_max = requests_max
        self._at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": _path(scope), "headers": _headers(scope["headers"])}
        if scope["method"] == "HEAD":
            scope["method"] = "GET"  # The server sends no body, whatever it is given.
        exempt = scope["path"] in ALWAYS_ANSWERED
        with self._memory.charge() as charge:
            scope[CHARGE] = charge
            exchange = _Exchange(scope, receive, send, charge, self._before_body)
            refusal = self._refusal(scope, exempt=exempt)
            if refusal is not None:
                await refusal(scope, exchange.receive, exchange.send)
                return
            self._at_work += not exempt
            try:
                await self._app(scope, exchange.receive, exchange.send)
            finally:
                self._at_work -= not exempt

    def _refusal(self, scope: Scope, *, exempt: bool) -> Response | None:
        limit, announced = body_bytes_max(scope["path"]), _announced(scope["headers"])
        if announced > limit:
            reason = {"reason": _too_large(announced, limit)}
            return JSONResponse(reason, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
        if not exempt and self._at_work >= self._requests_max:
            reason = {"reason": f"{self._at_work} requests are at work; try again, or raise maxConcurrentHttpRequests"}
            return JSONResponse(reason, HTTPStatus.SERVICE_UNAVAILABLE, _CLOSE | _AGAIN)
        return None


class _Exchange:
    """One request and its answer, as the application sees them: bounded and charged."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        charge: Charge,
        before_body: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._charge = charge
        self._before_body = before_body
        self._whole = not _has_body(scope["headers"])  # nothing of the body is left to be read
        self._given = False

    async def receive(self) -> Message:
        """The whole body in one message; then what else there is. Raises HTTPException."""
        if self._given:
            return await self._receive()
        await self._before_body(self._scope)
        message = await self._read(body_bytes_max(self._scope["path"]))
        self._given = True
        return message

    async def _read(self, limit: int) -> Message:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._whole = True
                return message
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(size, limit), headers=_CLOSE)
            await _take(self._charge, BODY_FACTOR * len(piece))
            pieces.append(piece)
            if not message.get("more_body", False):
                break
        self._whole = True
        body = b"".join(pieces)
        values = 1 + sum(map(_TEXT.sub(b"", body).count, _SEPARATORS)) if body else 0
        if values > VALUES_MAX:
            reason = f"the body has {values} values, and may have {VALUES_MAX}"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        await _take(self._charge, VALUE_BYTES * values)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a large body a piece at a time, each when there is room for it, and charge it until then.

        What was charged before goes back when the answer begins: the request was carried out.
        """
        body = message.get("body", b"")
        self._charge.hold(len(body))
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ends and not self._whole:
            await self._send({**message, "more_body": True})
            await self._drop_body()
            await self._send({"type": "http.response.body"})
            return
        if len(body) <= PIECE_BYTES:
            await self._send(message)
            return
        for start in range(0, len(body), PIECE_BYTES):
            piece = bytes(body[start : start + PIECE_BYTES])
            await self._send({**message, "body": piece, "more_body": not ends or start + PIECE_BYTES < len(body)})

    async def _drop_body(self) -> None:
        """Let a caller send the rest of its body for a moment: if the connection closes before, the answer is lost."""
        if self._charge.memory.dropping >= DROPPING_MAX:
            return
        self._charge.memory.dropping += 1
        left = DROPPED_BYTES_MAX
        try:
            async with asyncio.timeout(DROPPED_S):
                while left > 0:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    left -= len(message.get("body", b""))
        except TimeoutError:
            pass
        finally:
            self._charge.memory.dropping -= 1


async def _take(charge: Charge, nbytes: int) -> None:
    # FastAPI takes what else a read raises for a body that does not parse.
    try:
        await charge.take(nbytes)
    except ServiceNotReady as error:
        raise HTTPException(error.http_status, str(error), headers=_CLOSE | _AGAIN) from error


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body is on its way; not if its sender waits to be asked for it."""
    names = {name for name, value in headers if name != _CONTENT_LENGTH or value != b"0"}
    return bool(names & {_CONTENT_LENGTH, b"transfer-encoding"}) and b"expect" not in names


def _announced(headers: Iterable[tuple[bytes, bytes]]) -> int:
    length = next((value for name, value in headers if name == _CONTENT_LENGTH), b"0")
    return int(length) if length.isdigit() else 0


def _too_large(size: int, limit: int) -> str:
    return f"the body has {size} bytes or more, and may have {limit}"


def _path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw else quote(scope["path"])
    return path.rstrip("/") or "/"


def _headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = list(headers)
    if not any(name == _CONTENT_TYPE for name, _ in headers):
        headers.append((_CONTENT_TYPE, b"application/json"))
    return headers


def allowed_methods(app: Starlette, scope: Scope) -> str:
    """The methods that the application serves at the path of this request, as an Allow header says them; or ''."""
    served = [method for method in _METHODS if _serves(app, {**scope, "method": method})]
    if "GET" in served:
        served.insert(1, "HEAD")
    return ", ".join([*served, "OPTIONS"]) if served else ""


def _serves(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(dict(scope))[0].name == "FULL" for route in app.router.routes)
