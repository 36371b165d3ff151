# SPDX-License-Identifier: Apache-2.0
"""Administrators' requests are sent on to the cluster, wherever it redirects them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import DEADLINE_S
from penstock.core.errors import ConfigurationError, ServiceNotReady
from penstock.net.http_request import NoResponse
from penstock.net.tls import TlsOptions, server_context
from penstock.proxy.cluster_admin import REDIRECTS_MAX, AdminRequests, BadRedirect, WebAddress, parse_web_urls
from penstock.proxy.targets import AllowedTargets, Targets
from penstock.testing.certificates import Certificate
from penstock.wire.client.lookup import Address

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.testing.loop import VirtualLoop


def listening() -> socket.socket:
    """A socket of the loop that takes connections, as the kernel does also for a stopped process."""
    listener = cast("VirtualLoop", asyncio.get_running_loop()).network.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@asynccontextmanager
async def web(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[WebAddress, list[bytes]]]:
    """A server that gives these answers, one per connection, the last one again and again; and what it was sent."""
    left, seen = list(answers), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(head + await reader.readexactly(length))
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=listening(), ssl=tls)
    async with server:
        yield WebAddress("127.0.0.1", server.sockets[0].getsockname()[1], tls=tls is not None), seen


def admin_requests(*addresses: WebAddress, targets: Targets | None = None) -> AdminRequests:
    return AdminRequests(addresses, None, targets or Targets(AllowedTargets(), [], tls=False))


async def sent(requests: AdminRequests, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    async with requests.sent(method, target, [("x-one", "1")], body) as response:
        return response.status, b"".join([piece async for piece in response.body])


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_a_request_reaches_the_cluster_as_it_was_sent() -> None:
    async with web(OK) as (address, seen):
        assert await sent(admin_requests(address), "PUT", "/admin/v2/x?a=%2F", b"{}") == (200, b"ok")
        assert seen[0].startswith(b"PUT /admin/v2/x?a=%2F HTTP/1.0\r\n")
        assert b"x-one: 1\r\n" in seen[0]
        assert seen[0].endswith(b"\r\n\r\n{}")


async def test_a_redirect_is_followed_with_method_and_body() -> None:
    async with web(OK) as (owner, seen):
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {owner}/admin/v2/there?b=1\r\ncontent-length: 0\r\n\r\n".encode()
        async with web(moved) as (first, _):
            assert await sent(admin_requests(first, owner), "POST", "/admin/v2/x", b"[1]") == (200, b"ok")
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
    server = await asyncio.start_server(serve, sock=listening())
    address = WebAddress("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
    async with server:
        with pytest.raises(BadRedirect, match=f"was redirected {REDIRECTS_MAX} times"):
            await sent(admin_requests(address), "GET", "/admin/v2/x")
    assert len(asked) == REDIRECTS_MAX


async def test_the_next_broker_is_asked_if_one_does_not_answer() -> None:
    async with web(OK) as (address, _):
        dead = WebAddress("127.0.0.1", 1, tls=False)
        assert await sent(admin_requests(dead, address), "GET", "/admin/v2/x") == (200, b"ok")


@asynccontextmanager
async def frozen() -> AsyncIterator[WebAddress]:
    """A server that says nothing."""
    with listening() as server:
        yield WebAddress("127.0.0.1", server.getsockname()[1], tls=False)


async def test_of_two_brokers_one_that_is_frozen_costs_one_request_a_part_of_its_time() -> None:
    async with frozen() as stopped, web(OK) as (address, seen):
        requests = admin_requests(stopped, address)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        DEADLINE_S.set(began_s + 2.0)
        assert await sent(requests, "GET", "/admin/v2/x") == (200, b"ok")
        assert 1.8 <= loop.time() - began_s < 2.0
        told = re.search(rb"x-penstock-within-ms: (\d+)\r\n", seen[0])
        assert told is not None
        assert 0 < int(told[1]) < 200
        DEADLINE_S.set(loop.time() + 2.0)
        began_s = loop.time()
        assert await sent(requests, "GET", "/admin/v2/x") == (200, b"ok")
        assert loop.time() - began_s < 1.0


async def test_if_no_broker_answers_the_caller_is_told_before_it_gives_up() -> None:
    async with frozen() as first, frozen() as second:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 1.0
        DEADLINE_S.set(until_s)
        with pytest.raises(ServiceNotReady, match=f"{second} did not answer within 0\\.1 s"):
            await sent(admin_requests(first, second), "GET", "/admin/v2/x")
        assert loop.time() < until_s


async def test_a_caller_does_not_say_how_long_the_proxy_waits() -> None:
    async with web(OK) as (address, seen):
        async with admin_requests(address).sent("GET", "/x", [("X-Penstock-Within-Ms", "1")], b"") as response:
            assert response.status == 200
        assert re.findall(rb"(?i)x-penstock-within-ms: (\d+)", seen[0]) == [b"40500"]


async def test_without_an_admin_url_the_setting_is_named() -> None:
    with pytest.raises(ServiceNotReady, match="brokerWebServiceURL"):
        await sent(admin_requests(), "GET", "/admin/v2/x")


# -- where a redirect may lead


def redirect(location: str, status: int = 307) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("known", ["by a lookup", "by its host", "by its address", "by --upstream-admin"])
async def test_a_redirect_to_a_broker_that_is_known_is_followed(known: str) -> None:
    async with web(OK) as (owner, seen), web(redirect(f"{owner}/admin/v2/x")) as (first, _):
        allowed = {
            "by its host": AllowedTargets(hosts=("127.*",), ports=(owner.port,)),
            "by its address": AllowedTargets(networks=("127.0.0.0/8",), ports=(owner.port,)),
        }
        targets = Targets(allowed.get(known, AllowedTargets()), [], tls=False)
        addresses = [first]
        if known == "by --upstream-admin":
            addresses.append(owner)
        elif known == "by a lookup":
            targets.remember(Address(owner.host, 6650, tls=False))
            addresses.append(WebAddress("somewhere", owner.port, tls=False))  # whose port is one of administrators
        assert await sent(admin_requests(*addresses, targets=targets), "GET", "/admin/v2/x") == (200, b"ok")
        assert len(seen) == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
async def test_a_redirect_to_any_other_place_gets_no_request_and_is_not_shown_to_the_caller(status: int) -> None:
    async with web(OK) as (thief, stolen), web(redirect(f"{thief}/admin/v2/x", status)) as (first, _):
        targets = Targets(AllowedTargets(hosts=("*.example.com",)), [Address(thief.host, 6650, tls=False)], tls=False)
        with pytest.raises(BadRedirect, match=r"broker http://127\.0\.0\.1:\d+ misleads the proxy: it redirects"):
            await sent(admin_requests(first, targets=targets), "GET", "/admin/v2/x")
        assert stolen == []


HOSTILE = (
    "", "/admin/v2/x", "//127.0.0.1:{port}/x", "x", "http:", "http://", "http:///x", "http://:80/x",
    "http://127.0.0.1:x/", "http://127.0.0.1:/x:", "http://127.0.0.1:99999/", "http://127.0.0.1:-1/",
    "http://127.0.0.1:0/", f"http://127.0.0.1:{'9' * 5_000}/", "http://[::1/x", "http://[::1]x/", "http://[::1%lo]/",
    "http://[]/x", "http://]/", "http://::1/", "http://127.0.0.1:{port}@evil.example.com/",
    "http://evil@127.0.0.1:{port}/", "http://127.0.0.1\t:{port}/", "http://127.0.0.1:{port}\\@evil/",
    "http://evil\u00e9/", "http://a..b/", f"http://{'h' * 60_000}/", "ftp://127.0.0.1:{port}/", "javascript:x",
    "https://127.0.0.1:{port}/admin/v2/x", "HTTP://127.0.0.1:{port}/admin/v2/x", "pulsar://127.0.0.1:{port}",
    "http://127.0.0.1:{port}/a b", "http://127.0.0.1:{port}/\u00e9", "http://127.0.0.1:{port},evil:80/",
    "http://127.0.0.1.:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/", "http://localhost:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
)  # fmt: skip


@pytest.mark.parametrize("location", HOSTILE)
async def test_what_is_no_url_of_a_known_broker_is_a_bad_answer_with_the_reason(location: str) -> None:
    """The cluster is named, so only a URL that says the same in another way could lead there."""
    async with web(OK) as (owner, seen):
        said = location.replace("{port}", str(owner.port))
        async with web(redirect(said)) as (first, _):
            with pytest.raises(BadRedirect) as caught:
                await sent(admin_requests(first, owner), "GET", "/admin/v2/x")
        assert len(str(caught.value)) < 1_000
        assert seen == []


@given(st.text(st.characters(exclude_characters="\r\n", max_codepoint=0xFF), max_size=60))
async def test_any_text_as_a_location_is_a_bad_answer_or_leads_to_a_known_broker(location: str) -> None:
    asked = WebAddress("first", 8080, tls=True)
    requests = admin_requests(asked)
    for text in (location, f"https://{location}", f"https://first:8080{location}"):
        with contextlib.suppress(ValueError):
            assert requests.redirected(asked, 307, text)[0] == asked


async def test_a_redirect_from_https_never_leads_to_http(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    context = server_context(TlsOptions(certificate=certificate.certificate, key=certificate.key))
    async with web(OK) as (plain, stolen), web(redirect(f"{plain}/x"), tls=context) as (first, _):
        targets = Targets(AllowedTargets(hosts=("*",), ports=()), [], tls=False)
        requests = AdminRequests((first,), certificate.client(), targets)
        with pytest.raises(BadRedirect, match="without TLS"):
            await sent(requests, "GET", "/x")
        assert stolen == []


async def test_the_log_has_one_line_for_a_broker_that_redirects_all_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with web(redirect("http://evil/")) as (first, _):
        requests = admin_requests(first)
        for _ in range(3):
            with pytest.raises(BadRedirect):
                await sent(requests, "GET", "/x")
    assert [record.getMessage().count("http://evil:80") for record in caplog.records] == [1]


# -- what is no answer

NO_ANSWERS = (
    b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", b"HTTP/1.1 abc\r\n\r\n",
    b"HTTP/1.1 99 x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 600 x\r\n\r\n", b"HTTP/1.1 2000 x\r\n\r\n",
    b"HTTP/1.1 -200 x\r\n\r\n", b"HTTP/1.1 2_0 x\r\n\r\n", b"HTTP/2 200 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nok", b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
    b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5_000 + b"\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: b\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: a\rb\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", b"HTTP/1.1 200 OK\r\nx y: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: a\r\n folded\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_an_answer_that_is_none_or_ends_too_early_is_no_answer(answer: bytes) -> None:
    async with web(answer) as (address, _):
        with pytest.raises((ServiceNotReady, NoResponse)):
            await sent(admin_requests(address), "GET", "/admin/v2/x")


def test_urls_of_the_admin_port() -> None:
    assert parse_web_urls("http://a:8080, b") == (WebAddress("a", 8080, tls=False), WebAddress("b", 80, tls=False))
    assert parse_web_urls("https://[::1]:8443") == (WebAddress("::1", 8443, tls=True),)
    for wrong in ("a:8080", "ftp://a", "http://", "http://a:x"):
        with pytest.raises(ConfigurationError, match="want http://host:8080"):
            parse_web_urls(wrong)
