# SPDX-License-Identifier: Apache-2.0
"""Threads that take turns: one runs at a time; which one and when is decided by a seed.

Why: the journal, the metadata thread, log readers and the compactor run concurrently with the event loop. With real
threads each run of a test is different. Here each thread runs until it blocks (on a condition, a lock, a queue, another
thread, or a slow disk), and only then the loop or another thread continues.
Where: `VirtualLoop` owns one `Threads`. While it is installed, names that modules of penstock have imported from
`threading`, `queue` and `concurrent.futures` refer to the classes of this module; penstock itself has no code for
tests.

A thread of this module is an operating system thread that waits for its turn, so stack traces, thread names and SQLite
work as usual. Blocking on the loop's own thread (a `join` while a log is closed) lets other threads run, and time pass,
until it can continue; it raises `Deadlock` if that is impossible.
"""

from __future__ import annotations

import contextvars
import heapq
import queue
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Container


class Deadlock(Exception):
    """A thread waits for something impossible: nothing is ready, and no timer is set."""


class _Abandoned(BaseException):
    """Raised in a thread whose process lost its power, to end it."""


class VirtualTime:
    """Nanoseconds that pass only on command."""

    def __init__(self) -> None:
        self.now_ns = 0


class Threads:
    """All threads of one virtual loop. Called only by the thread that has the turn."""

    def __init__(self, time: VirtualTime, chance: random.Random | None = None, delay_ns_max: int = 0) -> None:
        """With `chance`, threads ready together run in random order, after up to `delay_ns_max` each."""
        self.time = time
        self._chance = chance
        self._delay_ns_max = delay_ns_max
        self._loop_turn = _turn()
        self._numbers = count()
        self._due: list[tuple[int, float, int, _Thread, int]] = []
        self._alive: set[_Thread] = set()
        self.current: _Thread | None = None

    # -- for the loop -------------------------------------------------------------------------------------------------

    def next_ns(self) -> int | None:
        """When the next thread can run; None if all wait for another thread."""
        while self._due and self._due[0][3].turns != self._due[0][4]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def run_next(self) -> None:
        """Run the next thread until it blocks; time advances to its moment."""
        assert self.current is None
        assert self.next_ns() is not None
        when_ns, _, _, thread, _ = heapq.heappop(self._due)
        self.time.now_ns = max(self.time.now_ns, when_ns)
        self._switch(thread)

    def abandon(self) -> None:
        """End all threads where they are, as at a power loss."""
        while self._alive:
            thread = next(iter(self._alive))
            thread.abandoned = True
            self._switch(thread)

    # -- for the classes below ----------------------------------------------------------------------------------------

    def wait(self, waiters: list[_Thread], ready: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Let others run until `ready` or this timeout; returns whether it is ready."""
        thread = self.current
        if thread is None:
            return self._wait_on_loop(ready, timeout_s)
        deadline_ns = None if timeout_s is None else self.time.now_ns + int(timeout_s * 1e9)
        while not ready():
            if deadline_ns is not None:
                if self.time.now_ns >= deadline_ns:
                    return False
                self._push(thread, deadline_ns)
            waiters.append(thread)
            try:
                self._park(thread)
            finally:  # Also when it is abandoned: an ended thread must not be woken.
                if thread in waiters:
                    waiters.remove(thread)
        return True

    def wake(self, waiters: list[_Thread]) -> None:
        """Let these waiters check their conditions again."""
        for thread in waiters:
            delay_ns = self._chance.randint(0, self._delay_ns_max) if self._chance is not None else 0
            self._push(thread, self.time.now_ns + delay_ns)
        waiters.clear()

    def sleep(self, ns: int) -> None:
        """Let time pass for this thread; on the loop's thread, for all."""
        thread = self.current
        if thread is None:
            self.time.now_ns += ns
        else:
            self._push(thread, self.time.now_ns + ns)
            self._park(thread)

    def begin(self, thread: _Thread) -> None:
        self._alive.add(thread)
        self.wake([thread])

    def end(self, thread: _Thread) -> None:
        """Remove an ended thread; the loop has the next turn."""
        self._alive.discard(thread)
        self.wake(thread.joiners)
        self._loop_turn.release()

    def _wait_on_loop(self, ready: Callable[[], object], timeout_s: float | None) -> bool:
        deadline_ns = None if timeout_s is None else self.time.now_ns + int(timeout_s * 1e9)
        while not ready():
            next_ns = self.next_ns()
            if deadline_ns is not None and (next_ns is None or next_ns > deadline_ns):
                self.time.now_ns = max(self.time.now_ns, deadline_ns)
                return bool(ready())
            if next_ns is None:
                raise Deadlock("the loop's thread waits, and no other thread can go on")
            self.run_next()
        return True

    def _push(self, thread: _Thread, when_ns: int) -> None:
        order = self._chance.random() if self._chance is not None else 0.0
        heapq.heappush(self._due, (when_ns, order, next(self._numbers), thread, thread.turns))

    def _switch(self, thread: _Thread) -> None:
        before, self.current = self.current, thread
        thread.turns += 1
        thread.turn.release()
        self._loop_turn.acquire()
        self.current = before

    def _park(self, thread: _Thread) -> None:
        if not thread.abandoned:
            self._loop_turn.release()
            thread.turn.acquire()
        if thread.abandoned:
            raise _Abandoned

    # -- replacements for the standard library's classes --------------------------------------------------------------

    def install(self) -> Callable[[], None]:
        """Replace the thread classes in penstock's modules; returns a function that undoes it."""
        bound: dict[Any, Any] = {
            threading.Thread: self.thread,
            threading.Lock: self.lock,
            threading.Condition: self.condition,
            threading.Event: self.event,
            queue.SimpleQueue: self.queue,
            Future: self.future,
            ThreadPoolExecutor: self.executor,
        }
        bound[threading] = SimpleNamespace(
            **{name: value for name, value in vars(threading).items() if not name.startswith("__")}
            | {"Thread": self.thread, "Lock": self.lock, "Condition": self.condition, "Event": self.event}
        )
        replaced = _names_bound_to(bound)
        for names, name, value in replaced:
            names[name] = bound[value]

        def undo() -> None:
            for names, name, value in replaced:
                names[name] = value

        return undo

    def thread(self, *, target: Callable[..., object], name: str = "", daemon: bool | None = None) -> _Thread:
        del daemon
        return _Thread(self, target, name)

    def lock(self) -> _Lock:
        return _Lock(self)

    def condition(self) -> _Condition:
        return _Condition(self)

    def event(self) -> _Event:
        return _Event(self)

    def queue(self) -> _Queue:
        return _Queue(self)

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        vars(future)["_condition"] = self.condition()  # all it blocks on
        return future

    def executor(self, max_workers: int = 4, thread_name_prefix: str = "") -> VirtualExecutor:
        return VirtualExecutor(self, max_workers, thread_name_prefix)


_real_lock: Final = threading.Lock
_looked_through: dict[str, list[tuple[dict[str, Any], str, Any]]] = {}


def _names_bound_to(wanted: Container[Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """The places in penstock's modules where these objects are imported: globals, name, object."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("penstock.") and module_name not in _looked_through:
            _looked_through[module_name] = [
                (vars(module), name, value)
                for name, value in list(vars(module).items())
                if (isinstance(value, type) or value is threading or value is threading.Lock) and value in wanted
                if not module_name.startswith("penstock.testing.")
            ]
    return [found for names in _looked_through.values() for found in names]


def _turn() -> threading.Lock:
    """Return a taken lock, which one thread waits for and another releases; a semaphore takes twice as long."""
    lock = _real_lock()
    lock.acquire()
    return lock


class _Thread:
    """A thread that runs only in its turn."""

    def __init__(self, threads: Threads, target: Callable[..., object], name: str) -> None:
        self._threads = threads
        self._target = target
        self.turn = _turn()
        self.turns = 0
        self.abandoned = False
        self.joiners: list[_Thread] = []
        self._real = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = False

    @property
    def ident(self) -> int | None:
        return self._real.ident

    def start(self) -> None:
        self._context = contextvars.copy_context()
        self._real.start()
        self._threads.begin(self)

    def join(self) -> None:
        self._threads.wait(self.joiners, lambda: self._ended)
        self._real.join()

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.abandoned:
                self._context.run(self._target)
        except _Abandoned:
            pass
        finally:
            self._ended = True
            self._threads.end(self)


class _Lock:
    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._locked = False
        self._waiters: list[_Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as threading's
        if self._locked:
            free = lambda: not self._locked  # noqa: E731
            if not blocking or not self._threads.wait(self._waiters, free, None if timeout < 0 else timeout):
                return False
        self._locked = True
        return True

    def release(self) -> None:
        self._locked = False
        self._threads.wake(self._waiters)

    def locked(self) -> bool:
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition(_Lock):
    def __init__(self, threads: Threads) -> None:
        super().__init__(threads)
        self._tickets: deque[list[bool]] = deque()
        self._sleepers: list[_Thread] = []

    def wait(self, timeout: float | None = None) -> bool:
        ticket = [False]
        self._tickets.append(ticket)
        self.release()
        try:
            return self._threads.wait(self._sleepers, lambda: ticket[0], timeout)
        finally:
            if ticket in self._tickets and not ticket[0]:
                self._tickets.remove(ticket)
            self.acquire()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        deadline_ns = None if timeout is None else self._threads.time.now_ns + int(timeout * 1e9)
        while not (result := predicate()):
            left_s = None if deadline_ns is None else (deadline_ns - self._threads.time.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                return result
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._tickets))):
            self._tickets.popleft()[0] = True
        self._threads.wake(self._sleepers)

    def notify_all(self) -> None:
        self.notify(len(self._tickets))


class _Event:
    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._set = False
        self._waiters: list[_Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._threads.wake(self._waiters)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._threads.wait(self._waiters, self.is_set, timeout)


class _Queue:
    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()
        self._waiters: list[_Thread] = []

    def put(self, item: Any) -> None:  # noqa: ANN401 - as queue's
        self._items.append(item)
        self._threads.wake(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401, FBT001, FBT002
        if not self._items and (not block or not self._threads.wait(self._waiters, lambda: self._items, timeout)):
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


_END: Final = None


class VirtualExecutor(ThreadPoolExecutor):
    """A pool of `_Thread`."""

    def __init__(self, threads: Threads, max_workers: int, thread_name_prefix: str) -> None:
        self._turns = threads
        self._workers_max = max_workers
        self._name = thread_name_prefix
        self._jobs: _Queue = threads.queue()
        self._workers: list[_Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._turns.future()
        self._jobs.put((future, contextvars.copy_context(), fn, args, kwargs))
        if self._jobs.qsize() > self._idle and len(self._workers) < self._workers_max:
            worker = self._turns.thread(target=self._work, name=f"{self._name}-{len(self._workers)}")
            self._workers.append(worker)
            worker.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        self._closed = True
        while cancel_futures and not self._jobs.empty():
            job = self._jobs.get()
            if job is not _END:
                job[0].cancel()
        for _ in self._workers:
            self._jobs.put(_END)
        for worker in self._workers if wait else ():
            worker.join()

    def _work(self) -> None:
        while True:
            self._idle += 1
            try:
                job = self._jobs.get()
            finally:
                self._idle -= 1
            if job is _END:
                return
            future, context, fn, args, kwargs = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = context.run(fn, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - passed to the caller
                future.set_exception(error)
            else:
                future.set_result(result)
