# SPDX-License-Identifier: Apache-2.0
"""Probes and Prometheus are answered without the other routes, which take a second to make."""

from __future__ import annotations

import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httpx

from penstock.admin.http_memory import HttpMemory
from penstock.admin.probes import Probes
from penstock.broker.health import Health
from penstock.core.errors import ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.gateway import Gateway

OK = Health(ok=True, reason="")


class Broker:
    """A gateway to a broker that is well, or not; and the application of its other routes."""

    def __init__(self, health: Health | None = OK, error: Exception | None = None) -> None:
        self._health = health
        self._error = error
        self.made = 0

    async def health(self) -> Health | None:
        if self._error is not None:
            raise self._error
        return self._health

    async def metrics(self) -> Iterable[str]:
        if self._error is not None:
            raise self._error
        return ["penstock_healthy 1\n"]

    def rest(self) -> ASGIApp:
        self.made += 1

        async def teapot(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": HTTPStatus.IM_A_TEAPOT, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return teapot

    async def answers(self, *requests: str) -> list[httpx.Response]:
        app = Probes(cast("Gateway", self), HttpMemory(None), self.rest)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            return [await client.request(*request.split()) for request in requests]


async def test_probes_do_not_make_the_other_routes() -> None:
    broker = Broker()
    answers = await broker.answers("GET /healthz", "GET /metrics", "GET /metrics/?x=y", "HEAD /healthz")
    assert [one.status_code for one in answers] == [HTTPStatus.OK] * 4
    assert answers[0].json() == {"status": "ok"}
    assert answers[1].text == answers[2].text == "penstock_healthy 1\n"
    assert answers[1].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert broker.made == 0


async def test_the_other_routes_are_made_once_for_the_first_request_to_one_of_them() -> None:
    broker = Broker()
    answers = await broker.answers("GET /tenants", "GET /", "POST /metrics", "DELETE /healthz", "GET /healthz/x")
    assert [one.status_code for one in answers] == [HTTPStatus.IM_A_TEAPOT] * 5
    assert broker.made == 1


async def test_a_broker_that_does_not_answer_is_failing_and_has_no_metrics_now() -> None:
    health, metrics = await Broker(error=ServiceNotReady("the broker does not answer")).answers(
        "GET /healthz", "GET /metrics"
    )
    assert health.status_code == metrics.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert health.json() == {"status": "failing", "reason": "the broker does not answer"}
    assert metrics.json() == {"reason": "the broker does not answer"}
    assert metrics.headers["retry-after"]


async def test_health_says_what_is_wrong() -> None:
    sick, degraded = (
        Health(ok=False, reason="disk full"),
        Health(ok=True, reason="", problems=("segment 3 is damaged",)),
    )
    (answer,) = await Broker(sick).answers("GET /healthz")
    assert (answer.status_code, answer.json()) == (503, {"status": "failing", "reason": "disk full"})
    (answer,) = await Broker(degraded).answers("GET /healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "problems": ["segment 3 is damaged"]})


async def test_a_bug_is_an_error_in_json() -> None:
    (answer,) = await Broker(error=ZeroDivisionError()).answers("GET /metrics")
    assert answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
    assert answer.json() == {"reason": "internal error; see the broker's log"}


def test_neither_a_brokers_probes_nor_a_proxys_port_need_the_framework_of_the_routes() -> None:
    code = (
        "import sys, penstock.admin.http_server, penstock.admin.probes, penstock.admin.proxy_api; "
        "print([name for name in ('fastapi', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
