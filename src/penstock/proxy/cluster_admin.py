# SPDX-License-Identifier: Apache-2.0
"""Requests of administrators, and lookups by HTTP, sent on to the cluster behind a proxy.

A broker that does not serve the topic redirects (307): the proxy follows, as administrators may not reach brokers.

Why not anywhere: the request carries credentials, of the proxy or of the caller, and what a broker answers is input.
A redirect leads only to a configured address, to a broker that lookups have named, or to one that the operator allows
(`targets`), and never from HTTPS to HTTP. A redirect that is not followed is not shown to the caller, whose own client
would follow it.

A broker may be frozen: its port takes connections, and nothing answers. Each broker has a part of the time that is left
for the request (`core.clock`), and is told how much. One that did not answer is asked last from then on.
Where: the routes of the proxy's admin port, on their thread's loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.clock import DEADLINE_S, announced, inner_s
from penstock.core.clock import HEADER as WITHIN_HEADER
from penstock.core.errors import ConfigurationError, PenstockError, ServiceNotReady
from penstock.core.units import MIB
from penstock.net.http_request import HEAD_BYTES_MAX, NoResponse, Response, send
from penstock.proxy.targets import ALLOWED_BY
from penstock.wire.client.lookup import host_with_port, parse_host_and_port, shortened

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from penstock.net.http_request import Streams
    from penstock.proxy.targets import Targets
    from penstock.proxy.upstreams import Identity


# ---------------------------------------------------------------------------------------------------------------------
# What a proxy asks the admin port of its cluster by itself: one JSON document at a time, with the proxy's credentials.

ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = MIB


class Missing:
    """The answer if nothing is at the address that was asked for (404)."""


MISSING: Final = Missing()


class NoAnswer(Exception):
    """The cluster did not answer as expected; the message says why."""


class AdminPolls:
    """Asks the cluster.

    Attributes:
        failures: questions without an answer.
    """

    def __init__(self, requests: AdminRequests, identity: Identity) -> None:
        self.failures = 0
        self._requests = requests
        self._identity = identity

    async def get(self, target: str) -> Any:  # noqa: ANN401 - any JSON
        """Return a document, MISSING if nothing is there, None if it is empty. Raises NoAnswer."""
        own = self._identity.own
        headers = [("accept", "application/json"), *(own.http_headers() if own is not None else ())]
        until_s = asyncio.get_running_loop().time() + ANSWER_S
        outer = DEADLINE_S.set(until_s)
        try:
            async with asyncio.timeout_at(until_s), self._requests.sent("GET", target, headers, b"") as response:
                body = b""
                async for piece in response.body:
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        raise NoAnswer(f"{target}: the answer has more than {ANSWER_BYTES_MAX} bytes")
                return _document(target, response.status, body)
        except NoAnswer:
            self.failures += 1
            raise
        except (NoResponse, PenstockError, OSError, TimeoutError) as error:
            self.failures += 1
            raise NoAnswer(f"{target}: {str(error) or f'no answer within {ANSWER_S:g} s'}") from error
        finally:
            DEADLINE_S.reset(outer)


def _document(target: str, status: int, body: bytes) -> Any:  # noqa: ANN401 - any JSON
    if status == HTTPStatus.NOT_FOUND:
        return MISSING
    if status == HTTPStatus.NO_CONTENT:
        return None
    if status != HTTPStatus.OK:
        raise NoAnswer(f"{target}: status {status}")
    text = body.strip()
    if not text.startswith((b"{", b"[", b'"')):
        return text.decode("utf-8", "replace") or None  # Names come without quotes.
    try:
        return json.loads(text)
    except ValueError as error:
        raise NoAnswer(f"{target}: not JSON: {error}") from error


log = logging.getLogger(__name__)

REDIRECTS_MAX: Final = 10
_FOLLOWED: Final = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT, HTTPStatus.FOUND})
_PORTS: Final = {"http": 80, "https": 443}


class BadRedirect(PenstockError):
    """A broker redirected a request where the proxy does not send it."""

    http_status = 502


class WebAddress(NamedTuple):
    """Where a broker serves administrators."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{host_with_port(self.host, self.port)}"


def parse_web_urls(text: str) -> tuple[WebAddress, ...]:
    """Read `http://host:8080` or `https://a:8443,b:8443`. Raises ConfigurationError."""
    scheme, mark, hosts = text.partition("://")
    try:
        return tuple(_parsed(f"{scheme}{mark}{each.strip()}")[0] for each in hosts.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"--upstream-admin {text!r}: want http://host:8080 or https://host:8443; {error}"
        ) from error


def _parsed(url: str) -> tuple[WebAddress, str]:
    """Return where a URL leads, and its path with the query. Raises ValueError."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _PORTS:
        raise ValueError(f"{shortened(url)} begins with neither http:// nor https://")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{shortened(url)} has characters that a URL cannot have")
    rest = rest.partition("#")[0]
    start = min((at for mark in "/?" if (at := rest.find(mark)) >= 0), default=len(rest))
    host, port = parse_host_and_port(rest[:start], _PORTS[scheme])
    target = rest[start:]
    return WebAddress(host, port, tls=scheme == "https"), target if target.startswith("/") else f"/{target}"


class AdminRequests:
    """Sends requests to the first broker of the cluster that answers."""

    def __init__(self, addresses: tuple[WebAddress, ...], tls: ssl.SSLContext | None, targets: Targets) -> None:
        """Receive the cluster's addresses (none: nothing is sent on), and what other brokers may be redirected to.

        `tls` is for addresses with TLS.
        """
        self._addresses = addresses  # those that did not answer are last
        self._ports = frozenset(address.port for address in addresses)
        self._targets = targets
        self._misled = ""  # what the log was told last: a broker may redirect all requests
        self.tls = tls  # of later requests

    @asynccontextmanager
    async def sent(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> AsyncIterator[Response]:
        """Send a request and yield the response.

        Raises:
            ServiceNotReady: no broker answers, or none is known.
            BadRedirect: a broker redirects the request where it must not go.
        """
        if not self._addresses:
            raise ServiceNotReady("this proxy does not know the admin port of its cluster: see brokerWebServiceURL")
        headers = [(name, value) for name, value in headers if name.lower() != WITHIN_HEADER]
        failure = NoResponse()
        for address in self._addresses:
            async with AsyncExitStack() as stack:
                try:
                    response = await self._answered(stack, address, method, target, headers, body)
                except NoResponse as error:
                    failure = error
                    self._ask_last(address)
                    continue
                yield response
                return
        raise ServiceNotReady(f"no broker of the cluster answers: {failure}") from failure

    def _ask_last(self, address: WebAddress) -> None:
        self._addresses = (*(one for one in self._addresses if one != address), address)

    async def _answered(
        self,
        stack: AsyncExitStack,
        address: WebAddress,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> Response:
        """As `_followed`, within a part of the time that is left. Raises NoResponse, BadRedirect."""
        within_s = inner_s(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(within_s):
                return await self._followed(
                    stack, address, method, target, [*headers, (WITHIN_HEADER, announced(within_s))], body
                )
        except TimeoutError as error:
            raise NoResponse(f"{address} did not answer within {within_s:.1f} s, or redirected meanwhile") from error

    async def _followed(
        self,
        stack: AsyncExitStack,
        address: WebAddress,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> Response:
        """Send, and follow redirects. Raises NoResponse, BadRedirect."""
        for _ in range(REDIRECTS_MAX):
            one = AsyncExitStack()
            host = host_with_port(address.host, address.port)
            response = await one.enter_async_context(
                send(self._connect(address), method, target, headers, body, host=host)
            )
            location = _location(response)
            if location is None:
                await stack.enter_async_context(one)
                return response
            await one.aclose()
            try:
                address, target = self.redirected(address, response.status, location)
            except ValueError as error:
                raise self._bad(address, str(error)) from None
        raise self._bad(address, f"the request was redirected {REDIRECTS_MAX} times")

    def redirected(self, asked: WebAddress, status: int, location: str) -> tuple[WebAddress, str]:
        """Return where a request is sent next, and its target. Raises ValueError, which says why it must not be."""
        if status not in _FOLLOWED:
            raise ValueError(f"it redirects with status {status}, which a proxy does not follow")
        following, target = _parsed(location)
        if following.tls != asked.tls:
            raise ValueError(f"it redirects to {following}, {'without' if asked.tls else 'with'} TLS")
        known = following in self._addresses
        if not known and not self._targets.serves_admins(following.host, following.port, self._ports):
            raise ValueError(
                f"it redirects to {following}, which is not an address of brokerWebServiceURL; no lookup has named it, "
                f"and it is not allowed by {ALLOWED_BY}"
            )
        return following, target

    def _bad(self, address: WebAddress, why: str) -> BadRedirect:
        said = f"broker {address} misleads the proxy: {why}"
        if said != self._misled:
            self._misled = said
            log.warning("a request of an administrator is not sent on: %s", said)
        return BadRedirect(said)

    def _connect(self, address: WebAddress) -> Callable[[], Awaitable[Streams]]:
        tls = self.tls if address.tls else None
        assert (tls is not None) == address.tls, "an address with TLS is never reached without"
        return lambda: asyncio.open_connection(address.host, address.port, ssl=tls, limit=HEAD_BYTES_MAX)


def _location(response: Response) -> str | None:
    """Return where a response redirects to; None: it does not."""
    if not HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        return None
    return next(iter(response.values("location")), None)
