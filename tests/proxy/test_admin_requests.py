# SPDX-License-Identifier: Apache-2.0
"""Administrators' requests are sent on to the cluster, wherever it redirects them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import ConfigurationError, ServiceNotReady
from penstock.net.http_request import NoResponse
from penstock.proxy.admin_requests import REDIRECTS_MAX, AdminRequests, WebAddress, parse_web_urls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real


@asynccontextmanager
async def web(*answers: bytes) -> AsyncIterator[tuple[WebAddress, list[bytes]]]:
    """A server that gives these answers, one per connection, the last one again and again; and what it was sent."""
    left, seen = list(answers), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(head + await reader.readexactly(length))
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield WebAddress("127.0.0.1", server.sockets[0].getsockname()[1], tls=False), seen


async def sent(requests: AdminRequests, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    async with requests.sent(method, target, [("x-one", "1")], body) as response:
        return response.status, b"".join([piece async for piece in response.body])


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_a_request_reaches_the_cluster_as_it_was_sent() -> None:
    async with web(OK) as (address, seen):
        assert await sent(AdminRequests((address,), None), "PUT", "/admin/v2/x?a=%2F", b"{}") == (200, b"ok")
        assert seen[0].startswith(b"PUT /admin/v2/x?a=%2F HTTP/1.0\r\n")
        assert b"x-one: 1\r\n" in seen[0]
        assert seen[0].endswith(b"\r\n\r\n{}")


async def test_a_redirect_is_followed_with_method_and_body() -> None:
    async with web(OK) as (owner, seen):
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {owner}/admin/v2/there?b=1\r\ncontent-length: 0\r\n\r\n".encode()
        async with web(moved) as (first, _):
            assert await sent(AdminRequests((first,), None), "POST", "/admin/v2/x", b"[1]") == (200, b"ok")
        assert seen[0].startswith(b"POST /admin/v2/there?b=1 HTTP/1.0\r\n")
        assert seen[0].endswith(b"[1]")


async def test_brokers_that_redirect_for_ever_are_given_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Moved\r\nlocation: {address}/admin/v2/x\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        asked.append(1)

    asked: list[int] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = WebAddress("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
    async with server:
        with pytest.raises(ServiceNotReady, match=f"more than {REDIRECTS_MAX} times"):
            await sent(AdminRequests((address,), None), "GET", "/admin/v2/x")
    assert len(asked) == REDIRECTS_MAX


async def test_the_next_broker_is_asked_if_one_does_not_answer() -> None:
    async with web(OK) as (address, _):
        dead = WebAddress("127.0.0.1", 1, tls=False)
        assert await sent(AdminRequests((dead, address), None), "GET", "/admin/v2/x") == (200, b"ok")


async def test_without_an_admin_url_the_setting_is_named() -> None:
    with pytest.raises(ServiceNotReady, match="brokerWebServiceURL"):
        await sent(AdminRequests((), None), "GET", "/admin/v2/x")


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok"])
async def test_an_answer_that_is_none_or_ends_too_early_is_no_answer(answer: bytes) -> None:
    async with web(answer) as (address, _):
        with pytest.raises((ServiceNotReady, NoResponse)):
            await sent(AdminRequests((address,), None), "GET", "/admin/v2/x")


def test_urls_of_the_admin_port() -> None:
    assert parse_web_urls("http://a:8080, b") == (WebAddress("a", 8080, tls=False), WebAddress("b", 80, tls=False))
    assert parse_web_urls("https://[::1]:8443") == (WebAddress("::1", 8443, tls=True),)
    for wrong in ("a:8080", "ftp://a", "http://", "http://a:x"):
        with pytest.raises(ConfigurationError, match="want http://host:8080"):
            parse_web_urls(wrong)
