# SPDX-License-Identifier: Apache-2.0
"""The way from the admin thread to the broker, which lives on another loop.

Why: the broker's state belongs to its loop. It is read there, in small portions; what becomes of it (text, JSON) is
made here, where nobody publishes.
Where: routes of `api` await these methods on the admin thread's loop. What a route may ask for is `Administration`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from penstock.core.clock import DEADLINE_S, inner_s
from penstock.core.errors import ServiceNotReady

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from penstock.broker.administration.administration import Administration
    from penstock.broker.health import Health
    from penstock.broker.stats.snapshot import BrokerSnapshot

T = TypeVar("T")

# Whether the current request is from another broker of this cluster. Such a request concerns topics of this broker
# alone. It says nothing of what may be done: see `access`.
FROM_PEER: Final[ContextVar[bool]] = ContextVar("FROM_PEER", default=False)

# A loop that does not answer for so long does not publish either.
ANSWER_S: Final = 5.0


class Gateway(Protocol):
    """Questions of routes to the broker. All raise ServiceNotReady when the broker does not answer."""

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
        for_peers: as `administration`, for requests of other brokers; None: there are none.
        render_metrics: makes Prometheus' text of a snapshot, on the thread of whoever asked.
        answer_s: after how many seconds a broker that has only to look counts as one that does not answer.
    """

    def __init__(
        self,
        administration: Callable[[], Administration],
        loop: asyncio.AbstractEventLoop,
        render_metrics: Callable[[BrokerSnapshot], Iterable[str]],
        *,
        for_peers: Callable[[], Administration] | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._administration = administration
        self._for_peers = for_peers or administration
        self._across = AcrossLoops(loop, "broker")
        self._render_metrics = render_metrics
        self._answer_s = answer_s

    async def ask(self, question: Callable[[Administration], Coroutine[Any, Any, T]]) -> T:
        """See `Gateway.ask`."""
        return await self._ask(question)

    async def health(self) -> Health:
        """See `Gateway.health`."""

        async def health(broker: Administration) -> Health:
            return broker.health()

        return await self._ask(health, self._answer_s)

    async def metrics(self) -> Iterable[str]:
        """See `Gateway.metrics`."""
        snapshot = await self._ask(lambda broker: broker.snapshots.take(), self._answer_s)
        return self._render_metrics(snapshot)

    async def _ask(
        self, question: Callable[[Administration], Coroutine[Any, Any, T]], within_s: float | None = None
    ) -> T:
        administration = self._for_peers() if FROM_PEER.get() else self._administration()
        return await self._across.answer(question(administration), within_s)


class AcrossLoops:
    """Runs coroutines on the loop of a broker or proxy, for callers on other loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """Args: name: what lives on that loop, for error messages."""
        self._loop = loop
        self._name = name
        self._answers: _Answers | None = None

    async def answer(self, asked: Coroutine[Any, Any, T], within_s: float | None = None) -> T:
        """Run `asked` there and return what it returns. Raises what it raises, and ServiceNotReady.

        It has the time that is left for the current request, or less with `within_s`; and what it asks others has less.
        """
        loop = asyncio.get_running_loop()
        left_s = inner_s(loop.time())
        within_s = left_s if within_s is None else min(within_s, left_s)
        answers = self._answers_to(loop)
        answer: asyncio.Future[T] = answers.loop.create_future()
        working: list[asyncio.Task[T]] = []

        def start() -> None:
            working.append(self._loop.create_task(asked))
            working[0].add_done_callback(lambda task: answers.post(partial(_pass_on, task, answer)))

        def give_up() -> None:
            working[0].cancel()

        outer = DEADLINE_S.set(loop.time() + within_s)
        try:
            self._loop.call_soon_threadsafe(start)  # In a copy of this context.
        except RuntimeError as error:  # The loop is closed.
            asked.close()
            raise ServiceNotReady(f"the {self._name} has stopped") from error
        finally:
            DEADLINE_S.reset(outer)
        try:
            return await asyncio.wait_for(answer, within_s)
        except TimeoutError as error:
            raise ServiceNotReady(f"the {self._name} did not answer within {within_s:g} s") from error
        finally:
            if answer.cancelled():  # by the timeout, or because the caller is gone
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    self._loop.call_soon_threadsafe(give_up)

    def _answers_to(self, loop: asyncio.AbstractEventLoop) -> _Answers:
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        return self._answers


class _Answers:
    """The way back to the loop that asked: answers of one turn of the broker arrive together.

    Why not a future of `concurrent.futures` for each: each would wake this loop by a write, during which the
    interpreter may run another thread; sixty answers would delay the broker's turn sixty times. And such a future is
    part of a cycle, which keeps its result until the next garbage collection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, deliver: Callable[[], None]) -> None:
        """Call `deliver` on the loop that asked. Called on the broker's."""
        self._posted.append(deliver)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # Before it looks: what is posted from now on wakes this loop again.
        while self._posted:
            self._posted.popleft()()


def _pass_on(task: asyncio.Task[T], answer: asyncio.Future[T]) -> None:
    error = None if task.cancelled() else task.exception()
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


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
