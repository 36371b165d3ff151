# SPDX-License-Identifier: Apache-2.0
"""The admin port over real HTTP on loopback, in front of a gateway that answers what a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx
import pytest

from penstock import __version__
from penstock.admin import http_server
from penstock.admin.server import AdminServer, HttpLimits
from penstock.broker.access import OPEN
from penstock.broker.health import Health
from penstock.core.errors import ServiceNotReady
from penstock.net.listener import listen_for_callers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from penstock.broker.administration.administration import Administration

T = TypeVar("T")

FINE = Health(ok=True, reason="ok")


class CannedGateway:
    """Answers what it was told to; an exception is raised."""

    def __init__(self, *, health: Health | Exception = FINE, metrics: str | Exception = "one 1\n") -> None:
        self.health_answer = health
        self.metrics_answer = metrics

    async def ask(self, question: Callable[[Administration], Coroutine[Any, Any, T]]) -> T:
        """Asked for is only whether somebody has to show who they are: nobody has."""
        return await question(cast("Administration", SimpleNamespace(access=OPEN)))

    async def health(self) -> Health:
        if isinstance(self.health_answer, Exception):
            raise self.health_answer
        return self.health_answer

    async def metrics(self) -> Iterable[str]:
        if isinstance(self.metrics_answer, Exception):
            raise self.metrics_answer
        return [self.metrics_answer]


class PatientGateway(CannedGateway):
    """Has been asked for metrics when `asked` is done, and answers when `answer` is."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Future[None] = Future()
        self.answer: Future[str] = Future()

    async def metrics(self) -> Iterable[str]:
        self.asked.set_result(None)
        return [await asyncio.wrap_future(self.answer)]


@asynccontextmanager
async def serving(gateway: CannedGateway) -> AsyncIterator[tuple[AdminServer, httpx.AsyncClient]]:
    server = AdminServer(plain=listen_for_callers("127.0.0.1", 0), loop=asyncio.get_running_loop())
    server.start(gateway)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as client:
        try:
            yield server, client
        finally:
            await server.stop()


def admin_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-admin"]


async def test_metrics_are_answered_as_prometheus_text() -> None:
    async with serving(CannedGateway(metrics='one{name="naïve"} 1\n')) as (_, client):
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.content.decode() == 'one{name="naïve"} 1\n'


async def test_the_root_says_which_program_answers_in_which_state_and_its_links_lead_somewhere() -> None:
    gateway = CannedGateway()
    async with serving(gateway) as (_, client):
        fine = (await client.get("/")).json()
        links = [(await client.get(link)).status_code for link in fine["links"].values() if "/v2/" not in link]
        gateway.health_answer = Health(ok=True, reason="ok", problems=("an entry is damaged",))
        damaged = (await client.get("/")).json()
        gateway.health_answer = Health(ok=False, reason="full")
        sick = await client.get("/")
        gateway.health_answer = ServiceNotReady("no answer")
        silent = await client.get("/")
    assert (fine["name"], fine["version"], fine["status"]) == ("penstock", __version__, "ok")
    assert links == [200, 200, 200]
    assert damaged["status"] == "degraded"
    assert [(one.status_code, one.json()["status"]) for one in (sick, silent)] == [(200, "failing")] * 2


async def test_health_is_ok_or_failing_with_the_reason() -> None:
    gateway = CannedGateway()
    async with serving(gateway) as (_, client):
        fine = await client.get("/healthz")
        gateway.health_answer = Health(ok=False, reason="the entry log is read-only: no space left on device")
        sick = await client.get("/healthz")
        gateway.health_answer = ServiceNotReady("the broker did not answer within 5 s")
        silent = await client.get("/healthz")
    assert (fine.status_code, fine.json()) == (200, {"status": "ok"})
    assert (sick.status_code, silent.status_code) == (503, 503)
    assert sick.json() == {"status": "failing", "reason": "the entry log is read-only: no space left on device"}
    assert silent.json() == {"status": "failing", "reason": "the broker did not answer within 5 s"}


async def test_errors_have_one_shape() -> None:
    gateway = CannedGateway(metrics=ServiceNotReady("the broker has stopped"))
    async with serving(gateway) as (_, client):
        unknown = await client.get("/nowhere")
        wrong_method = await client.post("/metrics")
        refused = await client.get("/metrics")
    assert (unknown.status_code, unknown.json()) == (404, {"reason": "Not Found"})
    assert (wrong_method.status_code, wrong_method.json()) == (405, {"reason": "POST is not served here"})
    assert (refused.status_code, refused.json()) == (503, {"reason": "the broker has stopped"})


async def test_an_error_of_our_own_is_told_to_the_log_and_not_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(CannedGateway(metrics=ZeroDivisionError("secret"))) as (_, client):
        answer = await client.get("/metrics")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "ZeroDivisionError: secret" in caplog.text


async def test_the_schema_names_every_route() -> None:
    async with serving(CannedGateway()) as (_, client):
        schema = (await client.get("/openapi.json")).json()
    assert schema["paths"].keys() > {"/metrics", "/healthz", "/admin/v2/tenants"}
    assert schema["paths"]["/healthz"]["get"]["responses"].keys() == {"200", "503"}


async def test_until_the_first_caller_there_is_no_thread_and_after_the_stop_neither() -> None:
    async with serving(CannedGateway()) as (_, client):
        assert admin_threads() == []
        await client.get("/healthz")
        assert admin_threads() == ["penstock-admin"]
    assert admin_threads() == []


async def test_a_server_nobody_called_stops_at_once_and_frees_its_port() -> None:
    async with serving(CannedGateway()) as (server, _):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


async def test_callers_that_come_before_the_start_are_answered_after_it() -> None:
    server = AdminServer(plain=listen_for_callers("127.0.0.1", 0), loop=asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    server.start(CannedGateway())
    answer = await reader.read()
    writer.close()
    await server.stop()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_stop_in_the_middle_of_the_imports_ends_the_thread() -> None:
    async with serving(CannedGateway()) as (server, _):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while not admin_threads():  # noqa: ASYNC110 -- a thread that only begins announces nothing
            await asyncio.sleep(0)
        await server.stop()
        writer.close()
    assert admin_threads() == []


async def test_a_request_head_beyond_the_limit_is_refused() -> None:
    async with serving(CannedGateway()) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * (HttpLimits().head_bytes_max + 1))
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert answer.endswith(b'{"reason": "the head is larger than 16384 bytes"}')


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_not_a_request_is_told_so_in_the_shape_of_all_errors(sent: bytes) -> None:
    async with serving(CannedGateway()) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert json.loads(body)["reason"].startswith("not a request: ")


async def test_a_body_in_chunks_that_are_none_is_refused() -> None:
    async with serving(CannedGateway()) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_an_answer_does_not_wait_for_the_callers_acknowledgement() -> None:
    async with serving(CannedGateway()) as (server, client):
        await client.get("/healthz")
        (connection,) = server._server.server_state.connections  # type: ignore[union-attr]  # noqa: SLF001 - its socket
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"],
    ids=["nothing", "half a request", "one and a half"],
)
async def test_a_caller_that_does_not_finish_its_request_is_dropped(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.05)
    async with serving(CannedGateway()) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
    assert answer.count(b"200 OK") == sent.count(b"\r\n\r\n")


async def test_a_caller_that_does_not_take_its_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.05)
    dropped: Future[None] = Future()

    class WatchedProtocol(http_server.PunctualProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            dropped.set_result(None)

    monkeypatch.setattr(http_server, "PunctualProtocol", WatchedProtocol)
    # More than the buffers of both sockets hold, so that the rest of it waits in the server.
    async with serving(CannedGateway(metrics="x" * 30_000_000)) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wrap_future(dropped)


async def test_a_stop_lets_the_answer_under_way_through() -> None:
    gateway = PatientGateway()
    async with serving(gateway) as (server, client), asyncio.TaskGroup() as tasks:
        request = tasks.create_task(client.get("/metrics"))
        await asyncio.wrap_future(gateway.asked)
        tasks.create_task(server.stop())
        await asyncio.sleep(0)  # stop() has told the thread, and waits
        gateway.answer.set_result("late 1\n")
        assert (await request).text == "late 1\n"
    assert admin_threads() == []


def test_the_http_stack_is_not_imported_before_somebody_calls() -> None:
    program = "import sys, penstock.admin.server, penstock.admin.gateway; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    assert not {"fastapi", "pydantic", "starlette", "uvicorn"} & set(modules)
