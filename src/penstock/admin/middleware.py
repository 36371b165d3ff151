# SPDX-License-Identifier: Apache-2.0
"""Processing of every request before and after its route: paths, methods, sizes.

Why around the application: routing decodes a path before it splits it, so `a%2Fb` in a subscription's name would become
two segments. Here the path is split as it was sent, and each parameter is decoded by itself. Pulsar's Java admin client
encodes topics as in a form (a space is a plus), and subscriptions twice: as in a form, and then as a path. Other
clients encode them once. Both are decoded, as Pulsar does.

Where: `api.build` wraps the application in it; uvicorn calls it.

- A slash at the end of a path is ignored.
- HEAD is GET without the body; OPTIONS returns the methods of a path.
- A body is not read before `before_body` has accepted the request.
- A body larger than `body_bytes_max` of its path is refused, before it is read if its length was announced; so is one
of
  more than `VALUES_MAX` values, before it is parsed. A body without a content type is JSON.
- A browser's request from a page of another origin is refused if it may change something: see `from_another_site`.
- A change is logged when it is answered: see `audit`.
- A request charges its body and its response to the memory of the admin port, and the number of requests at a time is
  limited. `ALWAYS_ANSWERED` paths are exempt: monitoring must work while other callers flood the port.
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

from penstock.admin import audit
from penstock.admin.gateway import FROM_PEER
from penstock.admin.http_memory import BODY_FACTOR, CHARGE, RETRY_AFTER_S, VALUE_BYTES, HttpMemory
from penstock.admin.passing_on import BODY
from penstock.core.caller import CALLER, NOBODY
from penstock.core.clock import DEADLINE_S, granted_s
from penstock.core.clock import HEADER as WITHIN_HEADER
from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.admin.http_memory import RequestCharge

# Administrators send settings and lists of names: the boundaries of 4,096 bundles take 53 KiB.
BODY_BYTES_MAX: Final = 256 * KIB
# The definition of a schema may be 1 MiB, as a text in JSON that escapes every other character.
SCHEMA_BODY_BYTES_MAX: Final = 2 * MIB + 64 * KIB
_SCHEMAS: Final = "/admin/v2/schemas/"
# A message of 5 MiB in base64, with its properties.
MESSAGE_BODY_BYTES_MAX: Final = 7 * MIB
_MESSAGES: Final = "/admin/v3/messages/"
# The most values (numbers, texts, lists and objects) in one body. An error for each takes 6 µs and 1,500 bytes.
VALUES_MAX: Final = 8_192
# The key of a connection from another broker, in its state.
PEER: Final = "peer"
# Responses are sent in pieces of this size: the next when the socket has taken most of the previous ones.
PIECE_BYTES: Final = 64 * KIB
ALWAYS_ANSWERED: Final = frozenset({"/healthz", "/metrics"})
# How much of a refused body is read and discarded.
DROPPED_BYTES_MAX: Final = 16 * MIB
DROPPED_S: Final = 2.0
# For how many callers at once. Reading the bodies of sixty flooding callers would delay probes.
DROPPING_MAX: Final = 4

_CLOSE: Final = {"connection": "close"}
_AGAIN: Final = {"retry-after": str(RETRY_AFTER_S)}

# A text in JSON, and the separators of values outside of texts.
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SEPARATORS: Final = (b",", b"[", b"{")
_CONTENT_TYPE: Final = b"content-type"
_CONTENT_LENGTH: Final = b"content-length"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Final = ("GET", "PUT", "POST", "DELETE")


class Segment(Convertor[str]):
    """One segment of a path, decoded after the path was cut."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class Local(Segment):
    """A topic's local name."""

    def convert(self, value: str) -> str:
        return unquote_plus(value)

    def to_string(self, value: str) -> str:
        return quote_plus(value)


class Twice(Segment):
    """A subscription's name, encoded twice or once."""

    def convert(self, value: str) -> str:
        return unquote_plus(unquote(value))

    def to_string(self, value: str) -> str:
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
    """Accept every request."""


def body_bytes_max(path: str) -> int:
    """Return the largest size of a body that is sent to this path, in bytes."""
    if path.startswith(_MESSAGES):
        return MESSAGE_BODY_BYTES_MAX
    return SCHEMA_BODY_BYTES_MAX if path.startswith(_SCHEMAS) else BODY_BYTES_MAX


class RequestMiddleware:
    """The application as uvicorn calls it."""

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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": normal_path(scope), "headers": _headers(scope["headers"])}
        if scope["method"] == "HEAD":
            scope["method"] = "GET"  # The server does not send the body.
        # An administrator's request that waits for another broker must not keep that broker's own out.
        from_peer = PEER in scope.get("state", ())
        FROM_PEER.set(from_peer)
        CALLER.set(NOBODY)  # A request that was sent behind another one begins in its context.
        DEADLINE_S.set(asyncio.get_running_loop().time() + granted_s(_within(scope)))
        exempt = from_peer or scope["path"] in ALWAYS_ANSWERED
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
                if not from_peer:
                    audit.note(scope, exchange.status)

    def _refusal(self, scope: Scope, *, exempt: bool) -> Response | None:
        if from_another_site(scope):
            reason = {"reason": f"a page of another site has sent this {scope['method']}; send it from a program"}
            return JSONResponse(reason, HTTPStatus.FORBIDDEN, _CLOSE)
        limit, announced = body_bytes_max(scope["path"]), _announced(scope["headers"])
        if announced > limit:
            reason = {"reason": _too_large(announced, limit)}
            return JSONResponse(reason, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
        if not exempt and self._at_work >= self._requests_max:
            reason = {"reason": f"{self._at_work} requests are at work; try again, or raise maxConcurrentHttpRequests"}
            return JSONResponse(reason, HTTPStatus.SERVICE_UNAVAILABLE, _CLOSE | _AGAIN)
        if not _is_text(scope["path"]):
            # Decoded, different bytes would be one replacement character: roles and topics would be one.
            return JSONResponse({"reason": "the path is not UTF-8, encoded as in URLs"}, HTTPStatus.BAD_REQUEST, _CLOSE)
        return None


class _Exchange:
    """One request and its response, limited and charged."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        charge: RequestCharge,
        before_body: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._charge = charge
        self._before_body = before_body
        self.status = 0  # of the response; 0: it has not begun
        self._whole = not _has_body(scope["headers"])  # the body is read completely
        self._given = False

    async def receive(self) -> Message:
        """Return the whole body in one message, then later messages. Raises HTTPException."""
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
        body = self._scope[BODY] = b"".join(pieces)
        values = 1 + sum(map(_TEXT.sub(b"", body).count, _SEPARATORS)) if body else 0
        if values > VALUES_MAX:
            reason = f"the body has {values} values, and may have {VALUES_MAX}"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        await _take(self._charge, VALUE_BYTES * values)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a large body in pieces, each when there is room for it, and charge it until then.

        Earlier charges are kept until the body begins: released before, they would let the next request in, which holds
        as large a body.
        """
        body = message.get("body", b"")
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if message["type"] == "http.response.body":
            self._charge.recharge(len(body))
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
        """Read the rest of a refused body for a moment.

        If the connection closed before that, the response would be lost.
        """
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


async def _take(charge: RequestCharge, nbytes: int) -> None:
    # FastAPI would turn another exception during a read into an error of parsing.
    try:
        await charge.charge_when_free(nbytes)
    except ServiceNotReady as error:
        raise HTTPException(error.http_status, str(error), headers=_CLOSE | _AGAIN) from error


def from_another_site(scope: Scope) -> bool:
    """Return whether a browser sends this for a page of another origin, and it may change something.

    Why: a browser adds its user's client certificate to any page's requests; and without authentication, whoever looks
    at a page on the internet would let it skip messages at a broker of their own machine. Programs send neither of
    these headers. Browsers send Sec-Fetch-Site only to HTTPS and to the local host; else Origin must name this host.
    """
    if scope["method"] in _SAFE:
        return False
    headers = dict(scope["headers"])
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in {b"same-origin", b"none"}
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


def _is_text(path: str) -> bool:
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a body is being sent; not if the sender waits for 100-continue."""
    names = {name for name, value in headers if name != _CONTENT_LENGTH or value != b"0"}
    return bool(names & {_CONTENT_LENGTH, b"transfer-encoding"}) and b"expect" not in names


def _within(scope: Scope) -> str | None:
    """How long another broker or a proxy waits, as it says."""
    wanted = WITHIN_HEADER.encode()
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)


def _announced(headers: Iterable[tuple[bytes, bytes]]) -> int:
    length = next((value for name, value in headers if name == _CONTENT_LENGTH), b"0")
    return int(length) if length.isdigit() else 0


def _too_large(size: int, limit: int) -> str:
    return f"the body has {size} bytes or more, and may have {limit}"


def normal_path(scope: Scope) -> str:
    """Return the path as it was sent, without a slash at its end."""
    raw = scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw else quote(scope["path"])
    return path.rstrip("/") or "/"


def _headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = list(headers)
    if not any(name == _CONTENT_TYPE for name, _ in headers):
        headers.append((_CONTENT_TYPE, b"application/json"))
    return headers


def allowed_methods(app: Starlette, scope: Scope) -> str:
    """Return the methods of the application at the path of this request, for an Allow header; '' if there are none."""
    served = [method for method in _METHODS if _serves(app, {**scope, "method": method})]
    if "GET" in served:
        served.insert(1, "HEAD")
    return ", ".join([*served, "OPTIONS"]) if served else ""


def _serves(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(dict(scope))[0].name == "FULL" for route in app.router.routes)
