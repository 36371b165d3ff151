# SPDX-License-Identifier: Apache-2.0
"""Requests of administrators, and lookups by HTTP, sent on to the cluster behind a proxy.

A broker that does not serve the topic redirects (307): the proxy follows, as administrators may not reach brokers.
Where: the routes of the proxy's admin port, on their thread's loop.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.core.errors import ConfigurationError, ServiceNotReady
from penstock.net.http_request import HEAD_BYTES_MAX, NoResponse, Response, send

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from penstock.net.http_request import Streams

REDIRECTS_MAX: Final = 10
_REDIRECTS: Final = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT, HTTPStatus.FOUND})
_PORTS: Final = {"http": 80, "https": 443}


class WebAddress(NamedTuple):
    """Where a broker serves administrators."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def parse_web_urls(text: str) -> tuple[WebAddress, ...]:
    """Read `http://host:8080` or `https://a:8443,b:8443`. Raises ConfigurationError."""
    scheme, mark, hosts = text.partition("://")
    found = []
    for each in hosts.split(","):
        try:
            address = _address(f"{scheme}://{each.strip()}")
        except ValueError:
            address = None
        if not mark or address is None:
            raise ConfigurationError(f"--upstream-admin {text!r}: want http://host:8080 or https://host:8443")
        found.append(address)
    return tuple(found)


def _address(url: str) -> WebAddress | None:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    return WebAddress(parts.hostname, parts.port or _PORTS[parts.scheme], tls=parts.scheme == "https")


class AdminRequests:
    """Sends requests to the first broker of the cluster that answers."""

    def __init__(self, addresses: tuple[WebAddress, ...], tls: ssl.SSLContext | None) -> None:
        """Args: addresses: of the cluster; none: nothing is sent on. tls: for those with TLS."""
        self._addresses = addresses
        self.tls = tls  # of later requests

    @asynccontextmanager
    async def sent(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> AsyncIterator[Response]:
        """Send a request and yield the response.

        Raises:
            ServiceNotReady: no broker answers, or none is known.
        """
        if not self._addresses:
            raise ServiceNotReady("this proxy does not know the admin port of its cluster: see brokerWebServiceURL")
        headers = list(headers)
        failure = NoResponse()
        for address in self._addresses:
            async with AsyncExitStack() as stack:
                try:
                    response = await self._followed(stack, address, method, target, headers, body)
                except NoResponse as error:
                    failure = error
                    continue
                yield response
                return
        raise ServiceNotReady(f"no broker of the cluster answers: {failure}") from failure

    async def _followed(
        self,
        stack: AsyncExitStack,
        address: WebAddress,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> Response:
        """Send, and follow redirects. Raises NoResponse."""
        for _ in range(REDIRECTS_MAX):
            one = AsyncExitStack()
            response = await one.enter_async_context(
                send(self._connect(address), method, target, headers, body, host=f"{address.host}:{address.port}")
            )
            location = dict(response.headers).get("location", "")
            following = _address(location) if response.status in _REDIRECTS else None
            if following is None:
                await stack.enter_async_context(one)
                return response
            await one.aclose()
            parts = urlsplit(location)
            address, target = following, parts.path + (f"?{parts.query}" if parts.query else "")
        raise NoResponse(f"it redirected the request more than {REDIRECTS_MAX} times")

    def _connect(self, address: WebAddress) -> Callable[[], Awaitable[Streams]]:
        return lambda: asyncio.open_connection(
            address.host, address.port, ssl=self.tls if address.tls else None, limit=HEAD_BYTES_MAX
        )
