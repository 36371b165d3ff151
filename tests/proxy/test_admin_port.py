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
