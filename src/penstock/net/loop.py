# SPDX-License-Identifier: Apache-2.0
"""Runs long work on the event loop in slices of half a millisecond, and limits how much of it runs at a time.

Why: listing twenty thousand topics by a pattern takes some ten milliseconds, and a client may request a thousand of
them. Run at once, or all side by side, they would delay all publishes and their own first response.

Where: shared listings gather, refresh and encode through it.

Theory of operation
-------------------

    Slices.   Work is a generator that yields every few hundred microseconds, and is sent how long its last step took.
              It runs in slices of SLICE_NS, one job after another; a job that takes longer than PART_NS goes behind the
              others each time. While the loop is idle, one slice follows another. Otherwise each round of the loop has
              one slice as long as there is credit. Credit grows with time, and each slice consumes its duration, so
              other work gets OTHERS times as much. An ordinary listing needs no more than the available credit.
    Idle.     Whether the loop is idle is measured: how long one round of the loop takes without a slice.
    Slots.    At most SLOTS listings are gathered at a time, so that few are unfinished and the first is done soon. The
              others take turns by tenant and connection (`TenantRoundRobin`), until their deadline. At most as many
              wait as may wait for heap memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from penstock.governance.permits import GatheringTimeout, PermitAcquireQueueFull
from penstock.governance.tenant_round_robin import TenantRoundRobin
from penstock.net.deadlines import Deadlines
from penstock.net.listing_memory import LimitType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from penstock.core.clock import Clock
    from penstock.net.listing_memory import Owner, TopicListMemoryLimiter


# ---------------------------------------------------------------------------------------------------------------------
# An event that wakes its waiting callers gradually.
#
# Why not one future for all: two thousand tasks that wake in one turn of the loop block it for a tenth of a second.
# Where: shared listings, whose first caller acquires memory and gathers for all others that came meanwhile.

# Each woken caller takes about 0.05 ms.
WOKEN_PER_TURN: Final = 20


class GradualEvent:
    """Waiting callers. All methods are called on the loop."""

    __slots__ = ("_clock", "_deadlines", "_loop", "_released", "_waiting", "_waking")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._released: deque[asyncio.Future[bool]] = deque()
        self._waking = False
        self._deadlines = Deadlines(clock, loop, self._due)

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, deadline_ns: int | None) -> bool:
        """Return True once `release` has been called, or False if the deadline comes first."""
        if deadline_ns is not None and deadline_ns <= self._clock.monotonic_ns():
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[future] = None
        if deadline_ns is not None:
            self._deadlines.add(deadline_ns, future)
        try:
            return await future
        finally:
            self._waiting.pop(future, None)
            if deadline_ns is not None:
                self._deadlines.ended()

    def release(self) -> None:
        """Wake all current callers, some in this turn and the others in the next ones, in the order they came."""
        self._released += self._waiting
        self._waiting.clear()
        if not self._waking:
            self._pump()

    def _pump(self) -> None:
        for _ in range(min(WOKEN_PER_TURN, len(self._released))):
            future = self._released.popleft()
            if not future.done():
                future.set_result(True)
        self._waking = bool(self._released)
        if self._waking:
            self._loop.call_soon(self._pump)

    def _due(self, future: asyncio.Future[bool]) -> None:
        if future in self._waiting:
            future.set_result(False)


T = TypeVar("T")

SLICE_NS: Final = 500 * NS_PER_US
# After this time the next job continues, even if this one is not done.
PART_NS: Final = 40 * NS_PER_MS
# Limits of a slice in case the clock stands still.
STEPS_PER_SLICE: Final = 4
JOBS_PER_SLICE: Final = 20
# Other work gets this many times the duration of a slice: our share is then a quarter.
OTHERS: Final = 3
# The most credit, enough for a listing of ten thousand topics.
CREDIT_NS: Final = 20 * NS_PER_MS
# The most that a slice is charged: a longer one was interrupted by other processes.
CHARGED_NS: Final = 2 * SLICE_NS
# An idle round of the loop takes 20 to 50 microseconds.
QUIET_NS: Final = 150 * NS_PER_US
SLOTS: Final = 4


class _Job:
    """One piece of work and its future."""

    __slots__ = ("deadline_ns", "done", "since_ns", "steps", "took_ns", "used_ns")

    def __init__(
        self, steps: Generator[None, int, Any], since_ns: int, deadline_ns: int | None, done: asyncio.Future[Any]
    ) -> None:
        self.steps = steps
        self.since_ns = since_ns
        self.deadline_ns = deadline_ns
        self.done = done
        self.used_ns = 0  # since it came to the front
        self.took_ns: int | None = None  # the duration of the last step; None before the first

    def step(self) -> None:
        """Run one step; the last one sets the result of `done`."""
        try:
            if self.took_ns is None:
                next(self.steps)
            else:
                self.steps.send(self.took_ns)
        except StopIteration as end:
            self.done.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.done.set_exception(error)


class LoopShare:
    """All methods are called on the loop."""

    def __init__(
        self, limiter: TopicListMemoryLimiter, clock: Clock, loop: asyncio.AbstractEventLoop, *, slots: int = SLOTS
    ) -> None:
        """Args: slots: how many listings are gathered at a time."""
        self._slots = slots
        self._limiter = limiter
        self._clock = clock
        self._loop = loop
        self._jobs: deque[_Job] = deque()
        self._scheduled = False
        self._credit_ns = CREDIT_NS
        self._credit_at_ns = clock.monotonic_ns()
        self._inside = 0
        self.timeouts_total = self.queue_full_total = 0
        self._line: TenantRoundRobin[asyncio.Future[None]] = TenantRoundRobin()
        self._owners: dict[asyncio.Future[Any], tuple[Owner, int]] = {}  # owner and start of each waiting future
        self._deadlines = Deadlines(clock, loop, self._too_late)

    @property
    def inside(self) -> int:
        """The number of listings that are gathered, or wait for memory to be."""
        return self._inside

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a slot."""
        return len(self._line)

    # -- slots --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def slot(self, owner: Owner, deadline_ns: int | None) -> AsyncIterator[None]:
        """Hold one of the slots to gather. Raises PermitAcquireQueueFull, GatheringTimeout."""
        if self._inside < self._slots:
            self._inside += 1
        else:
            await self._wait_for_slot(owner, deadline_ns)
        try:
            yield
        finally:
            self._free_slot()

    async def _wait_for_slot(self, owner: Owner, deadline_ns: int | None) -> None:
        limits = self._limiter.limits
        now_ns = self._clock.monotonic_ns()
        last_ns = now_ns + limits.heap_timeout_ns
        future: asyncio.Future[None] = self._loop.create_future()
        self._line.join(owner, future)
        self._owners[future] = (owner, now_ns)
        if 0 < limits.heap_queue_max < len(self._line):
            other, latest = self._line.gives_way()
            self._leave_line(other, latest)
            names = self._limiter.limiter(LimitType.HEAP_MEMORY).names
            self.queue_full_total += 1
            latest.set_exception(PermitAcquireQueueFull(names, limits.heap_queue_max))
        self._deadlines.add(last_ns if deadline_ns is None else min(last_ns, deadline_ns), future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._owners:
                self._leave_line(owner, future)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._free_slot()  # It had been given to this caller meanwhile.
            raise
        finally:
            self._deadlines.ended()

    def _free_slot(self) -> None:
        while len(self._line):
            _, future = self._line.next()
            del self._owners[future]
            if not future.done():
                future.set_result(None)
                return
        self._inside -= 1

    def _leave_line(self, owner: Owner, future: asyncio.Future[None]) -> None:
        self._line.leave(owner, future)
        del self._owners[future]

    def _too_late(self, future: asyncio.Future[Any]) -> None:
        owner, since_ns = self._owners[future]
        self._leave_line(owner, future)
        self.timeouts_total += 1
        future.set_exception(GatheringTimeout((self._clock.monotonic_ns() - since_ns) // NS_PER_MS))

    # -- slices -------------------------------------------------------------------------------------------------------

    async def run(self, steps: Generator[None, int, T], deadline_ns: int | None = None) -> T:
        """Run all steps and return their result.

        Raises GatheringTimeout when the deadline comes first, and the errors of the steps.
        """
        now_ns = self._clock.monotonic_ns()
        job = _Job(steps, now_ns, deadline_ns, self._loop.create_future())
        if not self._jobs and self._credit_at(now_ns) > 0:
            self._charge(now_ns, self._advance(job, now_ns, now_ns))  # Short work is done at once.
        try:
            if not job.done.done():
                self._jobs.append(job)
                self._go_on()
            return await job.done  # type: ignore[no-any-return]
        finally:
            steps.close()  # A cancelled job is skipped later.

    def _advance(self, job: _Job, began_ns: int, now_ns: int) -> int:
        """Run some steps of one job within the slice that began at `began_ns`; return when they ended."""
        for _ in range(STEPS_PER_SLICE):
            job.step()
            before_ns, now_ns = now_ns, self._clock.monotonic_ns()
            job.took_ns = now_ns - before_ns
            if job.done.done() or now_ns - began_ns >= SLICE_NS:
                break
        return now_ns

    def _slice(self) -> None:
        self._scheduled = False
        began_ns = now_ns = self._clock.monotonic_ns()
        for _ in range(min(JOBS_PER_SLICE, len(self._jobs))):
            job = self._jobs.popleft()
            if job.done.done():
                continue
            if job.deadline_ns is not None and job.deadline_ns <= now_ns:
                self.timeouts_total += 1
                job.done.set_exception(GatheringTimeout((now_ns - job.since_ns) // NS_PER_MS))
                continue
            before_ns, now_ns = now_ns, self._advance(job, began_ns, now_ns)
            if not job.done.done():
                self._put_back(job, now_ns - before_ns)
            if now_ns - began_ns >= SLICE_NS:
                break
        self._charge(began_ns, now_ns)
        self._go_on()

    def _put_back(self, job: _Job, used_ns: int) -> None:
        """Put a job back in front until it has had its part, then behind the others."""
        job.used_ns += used_ns
        if job.used_ns < PART_NS:
            self._jobs.appendleft(job)
        else:
            job.used_ns = 0
            self._jobs.append(job)

    def _go_on(self) -> None:
        """Measure one round of the loop, and schedule the next slice accordingly."""
        if self._jobs and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._before_round)

    def _before_round(self) -> None:
        self._loop.call_soon(self._after_round, self._clock.monotonic_ns())

    def _after_round(self, began_ns: int) -> None:
        now_ns = self._clock.monotonic_ns()
        credit_ns = self._credit_at(now_ns)
        if now_ns - began_ns <= QUIET_NS or credit_ns > 0:
            self._slice()
        else:
            self._loop.call_later((SLICE_NS - credit_ns) * OTHERS / NS_PER_S, self._slice)

    def _credit_at(self, now_ns: int) -> int:
        return min(CREDIT_NS, self._credit_ns + (now_ns - self._credit_at_ns) // OTHERS)

    def _charge(self, began_ns: int, ended_ns: int) -> None:
        self._credit_ns = self._credit_at(began_ns) - min(CHARGED_NS, ended_ns - began_ns)
        self._credit_at_ns = ended_ns
