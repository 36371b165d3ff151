# SPDX-License-Identifier: Apache-2.0
"""The way from the admin thread to the broker, which lives on another loop.

Why: the broker's state belongs to its loop. It is read there, in small portions; what becomes of it (text, JSON) is
made here, where nobody publishes.
Where: routes of `api` await these methods on the admin thread's loop. What a route may ask for is `Administration`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from penstock.core.errors import ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from penstock.broker.administration.administration import Administration
    from penstock.broker.health import Health
    from penstock.broker.stats.snapshot import BrokerSnapshot

T = TypeVar("T")

# A loop that does not answer for so long does not publish either.
ANSWER_S: Final = 5.0
# Creating a thousand partitions, or deleting a namespace with all its topics, takes the disk a while; admin clients
# wait for 60 s.
OPERATION_S: Final = 50.0


class Gateway(Protocol):
    """What the routes can ask. All raise ServiceNotReady when the broker does not answer."""

    async def ask(self, question: Callable[[Administration], Coroutine[Any, Any, T]]) -> T:
        """Run `question` on the broker's loop and return its answer; whatever it raises is raised here.

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
    """A broker on its own loop. Constructed anywhere; its methods are awaited on any other loop.

    Args:
        administration: returns what the broker can be asked; called on the thread of whoever asks, so that the first
            caller's thread imports it, not the broker's.
        loop: the broker's.
        render_metrics: makes Prometheus' text of a snapshot, on the thread of whoever asked.
        answer_s: after how many seconds a broker that has only to look counts as one that does not answer.
    """

    def __init__(
        self,
        administration: Callable[[], Administration],
        loop: asyncio.AbstractEventLoop,
        render_metrics: Callable[[BrokerSnapshot], Iterable[str]],
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._administration = administration
        self._loop = loop
        self._render_metrics = render_metrics
        self._answer_s = answer_s

    async def ask(self, question: Callable[[Administration], Coroutine[Any, Any, T]]) -> T:
        """See `Gateway.ask`."""
        return await self._ask(question, OPERATION_S)

    async def health(self) -> Health:
        """See `Gateway.health`."""

        async def health(broker: Administration) -> Health:
            return broker.health()

        return await self._ask(health, self._answer_s)

    async def metrics(self) -> Iterable[str]:
        """See `Gateway.metrics`."""
        snapshot = await self._ask(lambda broker: broker.snapshots.take(), self._answer_s)
        return self._render_metrics(snapshot)

    async def _ask(self, question: Callable[[Administration], Coroutine[Any, Any, T]], within_s: float) -> T:
        asked = question(self._administration())
        try:
            answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError as error:  # The loop is closed.
            asked.close()
            raise ServiceNotReady("the broker has stopped") from error
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), within_s)
        except TimeoutError as error:
            raise ServiceNotReady(f"the broker did not answer within {within_s:g} s") from error


class Ask:
    """A gateway as routes use it: `await ask(lambda broker: broker.topics.delete(name))`.

    The lambda runs on the broker's loop. What takes long to read or check is made before, on the admin thread.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @overload
    async def __call__(self, question: Callable[[Administration], Awaitable[T]]) -> T: ...

    @overload
    async def __call__(self, question: Callable[[Administration], T]) -> T: ...

    async def __call__(self, question: Callable[[Administration], Any]) -> object:
        """Return what `question` returns or, if that has to be awaited, what comes of it; raises what either raises."""

        async def answered(broker: Administration) -> object:
            answer = question(broker)
            return await answer if inspect.isawaitable(answer) else answer

        return await self._gateway.ask(answered)
