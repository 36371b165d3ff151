# SPDX-License-Identifier: Apache-2.0
"""The way from the admin thread to the broker, which lives on another loop.

Why: the broker's state belongs to its loop. It is read there, in small portions; what becomes of it (text, JSON) is
made here, where nobody publishes.
Where: routes of `api` await these methods on the admin thread's loop.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast, overload

from penstock.core.errors import ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from penstock.broker.broker import Broker, Health
    from penstock.broker.stats.snapshot import BrokerSnapshot

T = TypeVar("T")
P = ParamSpec("P")

# A loop that does not answer for so long does not publish either.
ANSWER_S: Final = 5.0
# Creating a thousand partitions, or deleting a namespace with all its topics, takes the disk a while; admin clients
# wait for 60 s.
OPERATION_S: Final = 50.0


class Gateway(Protocol):
    """What the routes can ask. All raise ServiceNotReady when the broker does not answer."""

    async def ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """Run what `question` makes of the broker, on the broker's loop; whatever it raises is raised here.

        The answer must be plain values: what lives on that loop is not to be touched on this one.
        """
        ...

    async def health(self) -> Health:
        """Whether the broker can do its work."""
        ...

    async def metrics(self) -> Iterable[str]:
        """All metrics in Prometheus' text format, in pieces that are made as they are asked for."""
        ...


class BrokerGateway:
    """A broker on its own loop. Constructed anywhere; its methods are awaited on any other loop."""

    def __init__(
        self, broker: Broker, render_metrics: Callable[[BrokerSnapshot], Iterable[str]], *, answer_s: float = ANSWER_S
    ) -> None:
        self._broker = broker
        self._render_metrics = render_metrics
        self._answer_s = answer_s

    async def ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """See `Gateway.ask`."""
        return await self._ask(question(self._broker), OPERATION_S)

    async def health(self) -> Health:
        """See `Gateway.health`."""
        return await self._ask(self._read_health())

    async def metrics(self) -> Iterable[str]:
        """See `Gateway.metrics`."""
        from penstock.broker.stats.snapshot import take_snapshot  # noqa: PLC0415 - a broker that nobody asks does without

        return self._render_metrics(await self._ask(take_snapshot(self._broker)))

    async def _read_health(self) -> Health:
        return self._broker.health

    async def _ask(self, question: Coroutine[Any, Any, T], within_s: float | None = None) -> T:
        """Run a coroutine on the broker's loop."""
        within_s = within_s or self._answer_s
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._broker.loop)
        except RuntimeError as error:  # The loop is closed.
            question.close()
            raise ServiceNotReady("the broker has stopped") from error
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), within_s)
        except TimeoutError as error:
            raise ServiceNotReady(f"the broker did not answer within {within_s:g} s") from error


class Ask:
    """A gateway as routes use it: `await ask(function, *arguments)` calls `function(broker, *arguments)` over there."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @overload
    async def __call__(
        self, function: Callable[Concatenate[Broker, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def __call__(self, function: Callable[Concatenate[Broker, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def __call__(
        self, function: Callable[Concatenate[Broker, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> object:
        """Run a function of the broker, plain or asynchronous, on the broker's loop; whatever it raises is raised."""

        async def question(broker: Broker) -> object:
            answer = function(broker, *args, **kwargs)
            return await cast("Awaitable[object]", answer) if inspect.isawaitable(answer) else answer

        return await self._gateway.ask(question)
