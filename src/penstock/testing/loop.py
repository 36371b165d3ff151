# SPDX-License-Identifier: Apache-2.0
"""VirtualLoop: an event loop whose time passes only when there is nothing else to do, with a network in memory.

Why: a test that waits for real time is slow, and fails on a busy machine. On this loop two minutes pass in no time, the
same way every time, and waiting for something impossible is reported at once.
Where: tests make it (`tests/net/harness.py` runs a whole broker on it); `run_virtual` runs one coroutine.

How time passes: it stands still while callbacks, sockets or threads are ready. When nothing is, it jumps to the next
timer or the next moment at which a thread continues. Sockets are those of `penstock.testing.sockets`, threads those of
`penstock.testing.threads`. With a seed, sockets and threads that are ready together run in random order.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from contextlib import contextmanager
from math import ceil
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.net.loop_turns import LoopTurns
from penstock.testing.sockets import Network
from penstock.testing.threads import Deadlock, Threads, VirtualTime

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

__all__ = ["WALL_MS", "Deadlock", "VirtualClock", "VirtualLoop", "run_virtual"]

T = TypeVar("T")

WALL_MS: Final = 1_700_000_000_000
# How long a real thread may take for a step while time stands still. It may itself wait for virtual time.
REAL_WAIT_S: Final = 0.05

_context_of: Final = attrgetter("_context")


class VirtualClock:
    """The loop's time as a penstock clock. Implements `penstock.core.clock.Clock`."""

    def __init__(self, time: VirtualTime, *, wall_ms: int = WALL_MS) -> None:
        self._time = time
        self._began_ns = time.now_ns
        self._wall_ms = wall_ms

    def monotonic_ns(self) -> int:
        return self._time.now_ns - self._began_ns

    def wall_ms(self) -> int:
        return self._wall_ms + self.monotonic_ns() // NS_PER_MS

    def advance(self, *, ns: int = 0, ms: int = 0) -> None:
        """Let this much time pass; the loop's timers run when they are due."""
        passed_ns = ns + ms * NS_PER_MS
        if passed_ns < 0:
            raise ValueError(f"time does not pass backwards, got {passed_ns} ns; to set the wall clock use step_wall")
        self._time.now_ns += passed_ns

    def step_wall(self, *, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator does; no time passes."""
        self._wall_ms += ms


class _Selector(selectors.BaseSelector):
    """Returns the ready sockets, and lets time pass if there are none."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if descriptor not in self._loop.network.sockets:
            raise ValueError(f"descriptor {descriptor} is not of this loop's network: a real socket needs a real loop")
        key = self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._keys[fileobj]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._loop.look(list(self._keys.values()), timeout)
        self._loop.turns.began_ns = self._loop.virtual_time.now_ns
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, seed: int | None = None, *, thread_delay_ns_max: int = 0) -> None:
        """Make it. With a seed, the order of simultaneous events is random but repeatable."""
        self.chance = Random(seed) if seed is not None else None
        self.virtual_time = VirtualTime()
        self.network = Network(self.chance)
        self.threads = Threads(self.virtual_time, self.chance, thread_delay_ns_max)
        self.files: Any = None  # for users of this loop
        self.turns = LoopTurns()
        self._waiting: list[tuple[asyncio.Future[None], Callable[[], object], int]] = []
        self._quiet: list[asyncio.Future[None]] = []
        self._real_work = 0
        self._woken = threading.Event()  # a real one: this is before threads are virtual
        super().__init__(_Selector(self))
        self._default_executor = self.threads.executor(thread_name_prefix="default")
        self._uninstall = self.threads.install()

    # -- what tests wait for ------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], timeout_s: float) -> None:
        """Run the loop until the condition holds.

        Raises:
            Deadlock: it does not hold after this time, or nothing can happen any more that would change it.
        """
        if condition():
            return
        future = self.create_future()
        waiting = (future, condition, self.virtual_time.now_ns + int(timeout_s * NS_PER_S))
        self._waiting.append(waiting)
        try:
            await future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def quiet(self) -> None:
        """Let everything happen that can happen now. No time passes."""
        future = self.create_future()
        self._quiet.append(future)
        await future

    @contextmanager
    def real_work(self) -> Iterator[None]:
        """While a thread that is not virtual works for this loop: no time passes unless it is slow to answer."""
        self._real_work += 1
        try:
            yield
        finally:
            self._real_work -= 1

    # -- how time passes ----------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.virtual_time.now_ns / NS_PER_S

    def look(self, keys: list[selectors.SelectorKey], timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """The ready ones of these sockets; if none is, run a thread, or let time pass up to `timeout`."""
        told = self._tell_waiting()
        ready = [(key, events) for key in keys if (events := self.network.events(key.fd, key.events))]
        if self.chance is not None:
            self.chance.shuffle(ready)
        if told or ready or timeout == 0:
            self._run_threads()
            return ready
        if self._run_threads():
            return []
        if self._quiet:
            quiet, self._quiet = self._quiet, []
            for future in quiet:
                if not future.done():
                    future.set_result(None)
            return []
        if self._real_work and self._woken.wait(REAL_WAIT_S):
            self._woken.clear()
            return []
        self._let_time_pass(timeout)
        return []

    def _run_threads(self) -> bool:
        """Run a thread that is due now."""
        next_ns = self.threads.next_ns()
        if next_ns is None or next_ns > self.virtual_time.now_ns:
            return False
        self.threads.run_next()
        return True

    def _let_time_pass(self, timeout: float | None) -> None:
        now_ns = self.virtual_time.now_ns
        moments = [deadline_ns for _, _, deadline_ns in self._waiting]
        thread_ns = self.threads.next_ns()
        timer_ns = None if timeout is None else now_ns + max(ceil(timeout * NS_PER_S), 1)
        nothing_comes = thread_ns is None and timer_ns is None
        if nothing_comes and not moments:
            raise Deadlock(f"nothing can happen any more; still waiting: {asyncio.all_tasks(self)}")
        if nothing_comes:
            self._give_up(lambda _: True, "nothing can happen any more")
            return
        next_ns = min(ns for ns in (thread_ns, timer_ns, *moments) if ns is not None)
        self.virtual_time.now_ns = max(now_ns, next_ns)
        self._give_up(lambda deadline_ns: deadline_ns <= next_ns, "time is over")

    def _tell_waiting(self) -> bool:
        """Wake the `until` calls whose condition holds."""
        told = False
        for waiting in list(self._waiting):
            future, condition, _ = waiting
            if future.done():
                self._waiting.remove(waiting)
                continue
            try:
                if not condition():
                    continue
                future.set_result(None)
            except Exception as error:  # noqa: BLE001 - it is the condition's, and for who waits
                future.set_exception(error)
            self._waiting.remove(waiting)
            told = True
        return told

    def _give_up(self, concerns: Callable[[int], bool], why: str) -> None:
        for waiting in list(self._waiting):
            future, _, deadline_ns = waiting
            if concerns(deadline_ns):
                self._waiting.remove(waiting)
                if not future.done():
                    future.set_exception(Deadlock(f"it did not come to that: {why}"))

    def forget(self, concerns: Callable[[contextvars.Context], object]) -> None:
        """Drop the callbacks and timers of some contexts."""
        handles: list[asyncio.Handle] = [*vars(self)["_ready"], *vars(self)["_scheduled"]]
        for handle in handles:
            if concerns(_context_of(handle)):
                handle.cancel()

    # -- asyncio's own ------------------------------------------------------------------------------------------------

    def _make_self_pipe(self) -> None:
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        """Does nothing: threads of this loop run only when it lets them, so it needs no pipe."""

    def _write_to_self(self) -> None:
        self._woken.set()

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,  # noqa: ANN401 - as asyncio's
        server_hostname: str | None = None,
        local_addr: tuple[str, int] | None = None,
        sock: Any = None,  # noqa: ANN401
        **_: Any,  # noqa: ANN401
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect to a listener of this loop's network, or use a connected socket of it."""
        if sock is None:
            assert port is not None
            sock = self.network.connect(port, *(local_addr or ())[:1])
        name = server_hostname if server_hostname is not None else host
        connect: Callable[..., Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]]
        connect = vars(asyncio.BaseEventLoop)["_create_connection_transport"]
        return await connect(self, sock, protocol_factory, ssl, name if ssl else None)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio's
        del timeout
        self._executor_shutdown_called = True

    def close(self) -> None:
        """End all threads, and close the loop."""
        if not self.is_closed():
            self.threads.abandon()
            self._uninstall()
            super().close()


def run_virtual(main: Coroutine[Any, Any, T], *, seed: int | None = None) -> T:
    """Run a coroutine on a new virtual loop. Raises Deadlock if it waits for something impossible."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(main)
