# SPDX-License-Identifier: Apache-2.0
"""The admin port of a proxy when the cluster's is absent, down, slow of speech or generous."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.proxy.in_process import dead_port, running_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real

UPSTREAM = "pulsar://127.0.0.1:1"  # Nobody asks it.
TOPICS = "/admin/v2/persistent/public/default"


@asynccontextmanager
async def web(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An admin port that answers every request with this; its URL, and the bodies that it was sent."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


def http(url: str) -> httpx.AsyncClient:
    # The first request loads what answers it.
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=120, limits=httpx.Limits(max_connections=1))


async def test_without_upstream_admin_a_path_of_the_cluster_says_what_to_set() -> None:
    async with running_proxy(UPSTREAM) as proxy, http(proxy.serving.admin_url) as client:
        for path in (TOPICS, "/lookup/v2/topic/persistent/public/default/t"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "--upstream-admin" in answer.json()["reason"]
        assert (await client.get("/nothing")).json()["reason"] == "a proxy has nothing at /nothing"


async def test_a_cluster_that_is_down_is_said_with_the_reason() -> None:
    with dead_port() as dead:
        url = f"http://127.0.0.1:{dead.getsockname()[1]}"
        async with (
            running_proxy(UPSTREAM, brokerWebServiceURL=url) as proxy,
            http(proxy.serving.admin_url) as client,
        ):
            answer = await client.get(TOPICS)
            assert answer.status_code == 503
            assert "no broker of the cluster answers" in answer.json()["reason"]


async def test_headers_of_the_cluster_arrive_as_they_came() -> None:
    """Pulsar's Java client looks for X-Pulsar-PROPERTY- letter by letter."""
    async with (
        web(b"HTTP/1.1 200 OK\r\nX-Pulsar-PROPERTY-Color: Red\r\nContent-Length: 2\r\nDATE: x\r\n\r\nok") as (url, _),
        running_proxy(UPSTREAM, brokerWebServiceURL=url) as proxy,
        http(proxy.serving.admin_url) as client,
    ):
        answer = await client.get(TOPICS)
        names = [name for name, _ in answer.headers.raw]
        assert (answer.text, b"X-Pulsar-PROPERTY-Color" in names) == ("ok", True)
        assert [name.lower() for name in names].count(b"date") == 1, "the proxy writes its own"


async def test_what_is_no_http_is_a_bad_answer_of_the_cluster() -> None:
    async with (
        web(b"SSH-2.0-nothing\r\n\r\n") as (url, _),
        running_proxy(UPSTREAM, brokerWebServiceURL=url) as proxy,
        http(proxy.serving.admin_url) as client,
    ):
        answer = await client.get(TOPICS)
        assert answer.status_code in {502, 503}
        assert "reason" in answer.json()


async def test_requests_of_one_caller_share_its_connection_also_without_a_length() -> None:
    topics = json.dumps([f"persistent://public/default/topic-{number:06}" for number in range(20_000)]).encode()
    async with web(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + topics) as (url, bodies):
        async with (
            running_proxy(UPSTREAM, brokerWebServiceURL=url) as proxy,
            http(proxy.serving.admin_url) as client,
        ):
            seen = set()
            for number in range(3):
                answer = await client.post(TOPICS, content=b"%d" % number)
                seen.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                assert answer.content == topics
            assert len(seen) == 1
        assert bodies == [b"0", b"1", b"2"]


async def test_a_body_that_is_too_large_is_refused_and_a_schema_passes() -> None:
    async with (
        web(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, bodies),
        running_proxy(UPSTREAM, brokerWebServiceURL=url) as proxy,
        http(proxy.serving.admin_url) as client,
    ):
        large = json.dumps({"schema": "x" * 1_000_000}).encode()
        assert (await client.put("/admin/v2/namespaces/public/n", content=large)).status_code == 413
        assert (await client.post("/admin/v2/schemas/public/default/t/schema", content=large)).status_code == 204
        assert bodies == [large]


# -- what a broker answers is input

MISLEADING = {
    "to a stranger": "HTTP/1.1 307 x\r\nlocation: THIEF/admin/v2/x\r\n\r\n",
    "to a stranger, for good": "HTTP/1.1 301 x\r\nlocation: THIEF/admin/v2/x\r\n\r\n",
    "to a stranger, and elsewhere": "HTTP/1.1 307 x\r\nlocation: http://a/\r\nlocation: THIEF/\r\n\r\n",
    "to no port": "HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:port/\r\n\r\n",
    "to half an address": "HTTP/1.1 307 x\r\nlocation: http://[::1/\r\n\r\n",
    "to a name that is none": "HTTP/1.1 307 x\r\nlocation: http://a..b/\r\n\r\n",
    "to nowhere": "HTTP/1.1 307 x\r\nlocation:\r\n\r\n",
    "to itself": "HTTP/1.1 307 x\r\nlocation: ITSELF/admin/v2/x\r\n\r\n",
}
BROKEN = {
    "ends too early": "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
    "goes on too long": "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok, and more",
    "has no size": "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nok",
    "has two sizes": "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 9\r\n\r\nok",
    "has a body where none is": "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok",
    "splits a header": "HTTP/1.1 200 OK\r\nx: a\n\nset-cookie: b\r\n\r\nok",
    "has an unknown status": "HTTP/1.1 999 x\r\n\r\nok",
    "goes on": "HTTP/1.1 100 Continue\r\n\r\n",
    "switches": "HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
}


@asynccontextmanager
async def asked_of(answer: str, **settings: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[bytes]]]:
    """A caller of a proxy whose cluster answers like this; and the requests that a stranger was sent."""
    stolen: list[bytes] = []

    async def steal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stolen.append(await reader.read(1_000))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.replace("THIEF", urls[0]).replace("ITSELF", urls[1]).encode("latin-1"))
        await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (steal, serve)]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    async with (
        servers[0],
        servers[1],
        running_proxy(UPSTREAM, brokerWebServiceURL=urls[1], **settings) as proxy,
        http(proxy.serving.admin_url) as client,
    ):
        yield client, stolen


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("answer", MISLEADING.values(), ids=MISLEADING)
async def test_a_redirect_to_no_broker_of_the_cluster_is_a_bad_gateway_and_costs_no_credentials(
    answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asked_of(answer) as (client, stolen):
        got = await client.get(TOPICS, headers={"authorization": "Bearer secret"})
    assert (got.status_code, stolen, "location" in got.headers) == (502, [], False)
    assert "misleads the proxy" in got.json()["reason"]
    assert [record.levelname for record in caplog.records if "misleads the proxy" in record.getMessage()] == ["WARNING"]
    assert tracebacks(caplog) == []


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_a_broken_response_is_an_error_of_the_gateway_without_a_traceback(
    answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asked_of(answer) as (client, _):
        try:
            got = await client.get(TOPICS)
        except httpx.RemoteProtocolError:
            pass  # It was cut off: the head had been passed on.
        else:
            assert got.status_code in {502, 503} or got.content in {b"ok", b""}
            assert "set-cookie" not in got.headers
    assert tracebacks(caplog) == []
