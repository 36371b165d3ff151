# SPDX-License-Identifier: Apache-2.0
"""The admin port's application, without a socket: one for all brokers and tests, as it takes long to build."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.api import build

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.gateway import Gateway
    from penstock.broker.administration.administration import Administration
    from penstock.broker.health import Health

GATEWAY: Final[ContextVar[Gateway]] = ContextVar("GATEWAY")


class OfTheRequest:
    """The gateway to the broker that the current request is for."""

    async def ask(self, question: Callable[[Administration], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - the answer
        return await GATEWAY.get().ask(question)

    async def health(self) -> Health:
        return await GATEWAY.get().health()

    async def metrics(self) -> Iterable[str]:
        return await GATEWAY.get().metrics()


@cache
def application() -> FastAPI:
    """The one application. Requests reach it by `before`."""
    return build(OfTheRequest())


def before(gateway: Gateway, state: dict[str, Any] | None = None) -> ASGIApp:
    """The application as the port of one broker; with `state`, as connections have it that the listener has marked."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        asked_before = GATEWAY.set(gateway)  # This request may be one broker's for another.
        try:
            await application()(scope if state is None else {**scope, "state": state}, receive, send)
        finally:
            GATEWAY.reset(asked_before)

    return served
