# SPDX-License-Identifier: Apache-2.0
"""A semaphore for asyncio: futures and one timer over `governance.permits`.

Why: the queue decides, and knows neither tasks nor time. Here a task that is cancelled while it waits frees its place
at once, and one timer, set for the earliest deadline, replaces periodic sweeps (PIP-442 as shipped has neither). Where:
`listing_memory` has two of them. All methods are called on the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core.units import NS_PER_S
from penstock.governance.permits import NOBODY, Permit, PermitQueue

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.core.clock import Clock
    from penstock.governance.permits import (
        Owner,
        PermitLimits,
        PermitNames,
        PermitSnapshot,
        Request,
        WaitingRequest,
    )


class AsyncSemaphore:
    """Permits to await. Acquired permits must be released, also if an update of them was refused."""

    def __init__(
        self,
        limits: PermitLimits,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        names: PermitNames | None = None,
    ) -> None:
        self._queue = PermitQueue(limits, names)
        self._clock = clock
        self._loop = loop
        self._waiting: dict[Request, asyncio.Future[Permit]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None  # the deadline it is set for

    # -- permits -----------------------------------------------------------------------------------------------------

    async def acquire(self, permits: int, *, owner: Owner = NOBODY, deadline_ns: int | None = None) -> Permit:
        """Wait until there are enough permits and earlier requests are served, then return a permit.

        Args:
            permits: how many, 0 or more.
            owner: has the place in the queue, if the request has to wait.
            deadline_ns: on the semaphore's clock; the timeout applies if it is earlier.

        Raises:
            ValueError: a negative number.
            PermitsBeyondLimit: more than the limit.
            PermitAcquireQueueFull, PermitAcquireTimeout, PermitAcquireCancelled, PermitAcquireAlreadyClosed: as named.
        """
        now_ns = self._clock.monotonic_ns()
        return await self._outcome(self._queue.acquire(permits, now_ns, owner=owner, deadline_ns=deadline_ns))

    async def update(
        self, permit: Permit, permits: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> Permit:
        """Return a permit of another size in place of this one, which then has size 0.

        Raises as `acquire` does, and ValueError for a permit of another semaphore or one being updated. After an error,
        the old permit must still be released.
        """
        now_ns = self._clock.monotonic_ns()
        return await self._outcome(self._queue.update(permit, permits, now_ns, deadline_ns=deadline_ns, lends=lends))

    def release(self, permit: Permit) -> None:
        """Release a permit; a second call changes nothing. Raises ValueError for a permit of another semaphore."""
        self._queue.release(permit, self._clock.monotonic_ns())
        self._tell()

    def lower(self, permit: Permit, permits: int) -> None:
        """Release all but `permits`, at once; see `PermitQueue.lower`."""
        self._queue.lower(permit, permits, self._clock.monotonic_ns())
        self._tell()

    def move(self, source: Permit, permits: int, into: Permit | None) -> Permit:
        """Move permits from one holder to another; see `PermitQueue.move`."""
        return self._queue.move(source, permits, into)

    def cancel(self, connection: Hashable) -> None:
        """Cancel all waiting requests of a closed connection; they raise PermitAcquireCancelled."""
        self._queue.cancel_connection(connection, self._clock.monotonic_ns())
        self._tell()

    def close(self) -> None:
        """Grant nothing more; waiting callers get an error. Permits can still be released."""
        self._queue.close()
        self._tell()

    def set_limits(self, limits: PermitLimits) -> None:
        """Change the limits; see `PermitQueue.set_limits`."""
        self._queue.set_limits(limits, self._clock.monotonic_ns())
        self._tell()

    # -- what everybody may see --------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        return self._queue.available

    @property
    def acquired(self) -> int:
        """Permits held; 0 when there is no limit."""
        return self._queue.acquired

    @property
    def permits_max(self) -> int:
        """How many permits there are; 0: no limit."""
        return max(0, self._queue.limits.permits_max)

    @property
    def queue_size(self) -> int:
        """The number of waiting requests."""
        return self._queue.queue_size

    @property
    def names(self) -> PermitNames:
        """The words of its error messages."""
        return self._queue.names

    def owns(self, permit: Permit) -> bool:
        """Return whether the permit belongs to this semaphore."""
        return getattr(permit, "queue", None) is self._queue

    def waiting(self, count: int) -> list[WaitingRequest]:
        """Return the first `count` waiting requests in their order."""
        return self._queue.waiting(self._clock.monotonic_ns(), count)

    def snapshot(self) -> PermitSnapshot:
        return self._queue.snapshot(self._clock.monotonic_ns())

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def _outcome(self, request: Request) -> Permit:
        future: asyncio.Future[Permit] | None = None
        if request.outcome is None:
            future = self._waiting[request] = self._loop.create_future()
        self._tell()
        if future is None:
            return _permit(request)
        try:
            return await future
        except asyncio.CancelledError:
            # Also if it was settled meanwhile: the caller will never see that permit, or error.
            self._waiting.pop(request, None)
            self._queue.cancel(request, self._clock.monotonic_ns())
            self._tell()
            raise

    def _tell(self) -> None:
        """Wake the callers of settled requests, and set the timer for the next deadline."""
        for request in self._queue.take_settled():
            future = self._waiting.pop(request, None)
            if future is None or future.done():
                continue
            if isinstance(request.outcome, Permit):
                future.set_result(request.outcome)
            else:
                assert request.outcome is not None
                future.set_exception(request.outcome)
        deadline_ns = self._queue.next_deadline_ns()
        if deadline_ns != self._timer_ns:
            self._set_timer(deadline_ns)

    def _set_timer(self, deadline_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns = None, deadline_ns
        if deadline_ns is not None:
            delay_s = max(0, deadline_ns - self._clock.monotonic_ns()) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._expire, deadline_ns)

    def _expire(self, deadline_ns: int) -> None:
        # The timer counts, not the clock: if the clock is a little behind, the timer must not be set again and again.
        self._timer = self._timer_ns = None
        self._queue.expire(max(deadline_ns, self._clock.monotonic_ns()))
        self._tell()


def _permit(request: Request) -> Permit:
    if isinstance(request.outcome, Permit):
        return request.outcome
    assert request.outcome is not None, "waits, yet nobody listens"
    raise request.outcome
