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
- A body beyond `BODY_BYTES_MAX` is refused, before it is read if its length was announced. A body of which nothing is
  said is JSON.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The largest thing an administrator sends is a schema.
BODY_BYTES_MAX: Final = 8 * MIB

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


class Frame:
    """The application as uvicorn sees it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        before_body: Callable[[Scope], Awaitable[None]] = _anybody,
    ) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._before_body = before_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": _path(scope), "headers": _headers(scope["headers"])}
        if scope["method"] == "HEAD":
            scope["method"] = "GET"  # The server sends no body, whatever it is given.
        if self._announced(scope["headers"]) > self._body_bytes_max:
            await self._too_large()(scope, receive, send)
            return
        await self._app(scope, self._bounded(scope, receive), send)

    def _announced(self, headers: Iterable[tuple[bytes, bytes]]) -> int:
        length = next((value for name, value in headers if name == _CONTENT_LENGTH), b"0")
        return int(length) if length.isdigit() else 0

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        left, agreed = self._body_bytes_max, False

        async def bounded() -> Message:
            nonlocal left, agreed
            if not agreed:
                await self._before_body(scope)
                agreed = True
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._why())
            return message

        return bounded

    def _too_large(self) -> Response:
        return JSONResponse({"reason": self._why()}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"connection": "close"})

    def _why(self) -> str:
        return f"the body is larger than {self._body_bytes_max} bytes"


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
