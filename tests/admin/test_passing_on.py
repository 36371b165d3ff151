# SPDX-License-Identifier: Apache-2.0
"""Requests about topics of other brokers: the one that was asked answers when it knows what they have changed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from fastapi import APIRouter

from penstock.admin import api
from penstock.core.caller import CALLER, Caller
from penstock.core.errors import PartitionsElsewhere, ServedElsewhere
from penstock.net.http_request import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.net.peers import Peers


class Brokers:
    """The broker that is asked, as its gateway, and another one, which serves the topic. Both note what they do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.service = self

    async def catch_up(self) -> None:
        self.done.append("catch up")

    async def ask(self, question: Any) -> Any:  # noqa: ANN401
        return await question(self)

    @asynccontextmanager
    async def send(self, broker: int, method: str, target: str, *_: object, by: object) -> AsyncIterator[Response]:
        del by
        self.done.append(f"broker {broker}: {method} {target}")

        async def body() -> AsyncIterator[bytes]:
            yield b"{}"

        yield Response(HTTPStatus.OK, [("content-type", "application/json")], body())


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    def routes(_gateway: Gateway, _needs: Needs) -> APIRouter:
        router = APIRouter()

        @router.api_route("/admin/v2/persistent/public/default/{topic}", methods=["GET", "DELETE"])
        async def anything(topic: str) -> None:
            if topic == "whole":
                raise ServedElsewhere(topic, 1)
            raise PartitionsElsewhere(topic, {"parts-partition-1": 1}, done=1)

        return router

    monkeypatch.setattr(api, "GROUPS", (routes,))
    return Brokers()


@pytest.mark.parametrize(("topic", "asked"), [("whole", "whole"), ("parts", "parts-partition-1")])
async def test_after_a_change_the_broker_that_was_asked_catches_up(brokers: Brokers, topic: str, asked: str) -> None:
    app = api.build(cast("Gateway", brokers), peers=cast("Peers", brokers))
    CALLER.set(Caller("admin", "token"))
    path = "/admin/v2/persistent/public/default/"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
        for method in ("GET", "DELETE"):
            answer = await client.request(method, f"{path}{topic}")
            assert answer.is_success, answer.text
    assert brokers.done == [f"broker 1: GET {path}{asked}", f"broker 1: DELETE {path}{asked}", "catch up"]
