# SPDX-License-Identifier: Apache-2.0
"""A bounded queue for permits: how many each request gets, which requests wait, and which is next (PIP-442).

Why: a topic listing takes memory in proportion to a namespace, whose size is unknown before it is listed. So a request
acquires permits for an estimate, updates them to the real size, and releases them. A request that does not fit waits
for a bounded time in a bounded queue.

Where: `net.semaphore` adds futures and a timer. Time is an argument, `now_ns`.

Theory of operation
-------------------

*Two queues.* Updates of held permits go before new requests, and each queue is first come, first served: a small
request does not overtake a large one. No new request is granted while an update waits, so holders of permits are always
served in the end. (Pulsar has one queue, in which an update can wait behind a request that waits for the very permits
that the updater holds.)

*Waiting updates lend.* Holders could still block one another, each with a part and waiting for the rest. So the first
update in the queue borrows permits that later updates hold and cannot use while they wait, the last one's first. A
lender needs its full amount again at its turn. An update whose permits stand for memory in use, not for an estimate,
sets `lends=False`.

*Places are shared by need* when the queue is full: see `permit_waiters`.

Invariants: available + held = total. A request is settled exactly once: granted, or refused with an error. A call may
settle other requests than its own; `take_settled` returns them.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS
from penstock.governance.memory_pool import UNBOUNDED
from penstock.governance.permit_errors import (
    PermitAcquireAlreadyClosed,
    PermitAcquireCancelled,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitError,
    PermitNames,
    PermitsBeyondLimit,
)
from penstock.governance.permit_types import (
    NOBODY,
    Owner,
    Permit,
    PermitLimits,
    PermitSnapshot,
    Request,
    WaitingRequest,
)
from penstock.governance.permit_waiters import PermitWaiters
from penstock.governance.wait_times import WaitTimes

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["NOBODY", "Owner", "Permit", "PermitLimits", "PermitQueue", "PermitSnapshot", "Request"]

# The most timeouts of one call to `expire`: ten thousand at once would block the loop for a tenth of a second.
EXPIRED_MAX: Final = 100


class PermitQueue:
    """Permits and the requests that wait for them. Not thread-safe."""

    def __init__(self, limits: PermitLimits, names: PermitNames | None = None) -> None:
        self.limits = limits
        self.names = names or PermitNames()
        self.closed = False
        self._held = 0
        self._lines = PermitWaiters()
        self._lenders: OrderedDict[Request, None] = OrderedDict()  # waiting updates that have permits to lend
        self._lendable = 0
        self._settled: list[Request] = []
        self._waits = WaitTimes()
        self._timeouts = self._queue_full = self._cancelled = self._beyond_limit = 0

    # -- what is asked -----------------------------------------------------------------------------------------------

    def acquire(self, permits: int, now_ns: int, *, owner: Owner = NOBODY, deadline_ns: int | None = None) -> Request:
        """Request permits; 0 is allowed, and waits its turn like any other number.

        The request waits until the queue's timeout or `deadline_ns`, whichever is earlier. Raises ValueError for a
        negative number; everything else is in the outcome of the request.
        """
        return self._ask(Request(owner, permits, now_ns, self._deadline_ns(now_ns, deadline_ns), None, lends=False))

    def update(
        self, permit: Permit, permits: int, now_ns: int, *, deadline_ns: int | None = None, lends: bool = True
    ) -> Request:
        """Request to replace a permit by one of another size; 0 releases it. The same size or less is granted at once.

        If granted, the old permit has size 0. If refused, the old permit is unchanged, except for permits that it lent
        meanwhile, and must still be released. A permit that was released before, or meanwhile, counts as 0.

        Raises:
            ValueError: a negative number, a permit of another queue, or a permit that waits to be updated already.
        """
        self._check_idle(permit)
        deadline_ns = self._deadline_ns(now_ns, deadline_ns)
        return self._ask(Request(permit.owner, permits, now_ns, deadline_ns, permit, lends=lends))

    def release(self, permit: Permit, now_ns: int) -> None:
        """Release permits; a second call changes nothing. Raises ValueError for a permit of another queue."""
        self._check_ours(permit)
        permit.released = True
        if permit.size:
            self._take_from(permit, permit.size)
            self._serve(now_ns)

    def lower(self, permit: Permit, permits: int, now_ns: int) -> None:
        """Release all but `permits`; the permit stays the same object. Raises ValueError as `update` does."""
        self._check_idle(permit)
        if permits < permit.size:
            self._take_from(permit, permit.size - permits)
            self._serve(now_ns)

    def move(self, source: Permit, permits: int, into: Permit | None) -> Permit:
        """Move permits from one holder to another: for memory that outlives the request that acquired it.

        Returns `into`, or a new permit without an owner. Raises ValueError as `update` does.
        """
        self._check_idle(source)
        if into is None:
            into = Permit(self, NOBODY, 0)
        self._check_idle(into)
        assert permits <= source.size, "more than it has"
        source.size -= permits
        into.size += permits
        return into

    def cancel(self, request: Request, now_ns: int) -> None:
        """Cancel a request whose caller is gone. A grant that the caller has not taken is undone."""
        if request.outcome is None:
            self._cancel(request)
        elif isinstance(request.outcome, Permit):
            self._undo(request, request.outcome)
        self._serve(now_ns)

    def cancel_connection(self, connection: Hashable, now_ns: int) -> None:
        """Cancel all waiting requests of a closed connection."""
        for request in self._lines.of_connection(connection):
            self._cancel(request)
        self._serve(now_ns)

    def expire(self, now_ns: int) -> None:
        """Refuse requests whose deadline has passed, and serve those behind them.

        Requests expire one after the other: one that an earlier timeout lets through is granted, however late this is
        called. After a hundred timeouts the rest is left to the next call, and `next_deadline_ns` asks for it at once.
        """
        for _ in range(EXPIRED_MAX):
            request = self._lines.next_expired(now_ns)
            if request is None:
                return
            self._time_out(request, now_ns)
            self._serve(now_ns)

    def set_limits(self, limits: PermitLimits, now_ns: int) -> None:
        """Change the limits. Held permits stay; waiting requests that can never be granted now are refused.

        A shorter queue or another timeout applies to requests that come from now on.
        """
        self.limits = limits
        for request in [one for one in self._lines if self._never_fits(one)]:
            self._refuse_beyond_limit(request)
        self._serve(now_ns)

    def close(self) -> None:
        """Refuse all waiting and all later requests. Held permits can still be released."""
        self.closed = True
        for request in list(self._lines):
            self._refuse(request, PermitAcquireAlreadyClosed(self.names))

    def take_settled(self) -> list[Request]:
        """Return requests that waited and were settled since the last call, in that order."""
        settled, self._settled = self._settled, []
        return settled

    # -- what everybody may see --------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Permits left; negative after the limit was lowered below the held permits; `UNBOUNDED` without a limit."""
        return self.limits.permits_max - self._held if self._bounded else UNBOUNDED

    @property
    def acquired(self) -> int:
        """Permits held; 0 without a limit, so that "used / limit" is not a number rather than too large."""
        return self._held if self._bounded else 0

    @property
    def queue_size(self) -> int:
        return len(self._lines)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` must be called next; None while no request waits."""
        return self._lines.next_deadline_ns()

    def waiting(self, now_ns: int, count: int) -> list[WaitingRequest]:
        """Return the first `count` waiting requests in their order."""
        return [
            WaitingRequest(
                owner=one.owner, wants=one.wants, has=one.wants - one.needs, waited_ns=max(0, now_ns - one.since_ns)
            )
            for one in islice(self._lines, count)
        ]

    def snapshot(self, now_ns: int) -> PermitSnapshot:
        """Return one moment for metrics and the admin port."""
        lines = self._lines
        heads = [next(iter(line)).since_ns for line in (lines.updates, lines.acquires) if line]
        return PermitSnapshot(
            permits_max=max(0, self.limits.permits_max),
            acquired=self.acquired,
            waiting_updates=len(lines.updates),
            waiting_acquires=len(lines.acquires),
            queue_max=max(0, self.limits.queue_max),
            timeout_ns=self.limits.timeout_ns,
            oldest_wait_ns=max(0, now_ns - min(heads)) if heads else 0,
            waits=self._waits.snapshot(now_ns),
            timeouts_total=self._timeouts,
            queue_full_total=self._queue_full,
            cancelled_total=self._cancelled,
            beyond_limit_total=self._beyond_limit,
        )

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> Request:
        now_ns = request.since_ns
        if request.wants < 0:
            raise ValueError(f"Invalid negative permits value: {request.wants}")
        if self.closed:
            self._refuse(request, PermitAcquireAlreadyClosed(self.names))
        elif self._never_fits(request):
            self._refuse_beyond_limit(request)
        elif self._goes_first(request):
            self._grant(request, now_ns)
            self._serve(now_ns)  # An update to less has made room.
        elif request.deadline_ns <= now_ns:
            self._time_out(request, now_ns)
        else:
            self._join(request)
            self._serve(now_ns)
            if request.outcome is None and 0 < self.limits.queue_max < len(self._lines):
                self._refuse_queue_full(self._lines.gives_way_to(request))
                self._serve(now_ns)
        return request

    def _deadline_ns(self, now_ns: int, asked_ns: int | None) -> int:
        ours_ns = now_ns + self.limits.timeout_ns
        return ours_ns if asked_ns is None else min(ours_ns, asked_ns)

    def _goes_first(self, request: Request) -> bool:
        """Return whether no waiting request is before it and there are enough permits."""
        if request.replaces is None:
            return not self._lines and self._fits(request)
        return request.needs <= 0 or (not self._lines.updates and self._fits(request))

    def _join(self, request: Request) -> None:
        self._lines.join(request)
        permit = request.replaces
        if permit is not None:
            permit.request = request
            if request.lends and permit.size:
                self._lenders[request] = None
                self._lendable += permit.size

    # -- settling ----------------------------------------------------------------------------------------------------

    @property
    def _bounded(self) -> bool:
        return self.limits.permits_max > 0

    def _never_fits(self, request: Request) -> bool:
        return self._bounded and request.wants > self.limits.permits_max and request.needs > 0

    def _fits(self, request: Request) -> bool:
        return request.needs <= 0 or request.needs <= self.available

    def _serve(self, now_ns: int) -> None:
        """Grant requests from the front of the queues while there are enough permits."""
        while (request := self._lines.first()) is not None and (self._fits(request) or self._borrow_for(request)):
            self._grant(request, now_ns)

    def _borrow_for(self, request: Request) -> bool:
        """Borrow what the first update lacks from others; return False, and borrow nothing, if they hold too little."""
        if request.replaces is None:
            return False
        missing = request.needs - self.available
        if missing > self._lendable - (request.replaces.size if request in self._lenders else 0):
            return False
        while missing > 0:
            permit = next(reversed(self._lenders)).replaces
            assert permit is not None, "only updates lend"
            lent = min(missing, permit.size)
            self._take_from(permit, lent)
            missing -= lent
        return True

    def _grant(self, request: Request, now_ns: int) -> None:
        replaced = request.replaces
        self._leave(request)
        if replaced is not None:
            request.had = replaced.size
            self._take_from(replaced, replaced.size)
        self._held += request.wants
        request.outcome = Permit(self, request.owner, request.wants)
        self._waits.observe(max(0, now_ns - request.since_ns), now_ns)

    def _refuse(self, request: Request, why: PermitError) -> None:
        self._leave(request)
        request.outcome = why

    def _refuse_beyond_limit(self, request: Request) -> None:
        self._beyond_limit += 1
        self._refuse(request, PermitsBeyondLimit(self.names, request.wants, self.limits.permits_max))

    def _refuse_queue_full(self, request: Request) -> None:
        self._queue_full += 1
        self._refuse(request, PermitAcquireQueueFull(self.names, self.limits.queue_max))

    def _time_out(self, request: Request, now_ns: int) -> None:
        waited_ns = max(0, now_ns - request.since_ns)
        self._timeouts += 1
        self._waits.observe(waited_ns, now_ns)
        self._refuse(request, PermitAcquireTimeout(self.names, request.wants, waited_ns // NS_PER_MS))

    def _cancel(self, request: Request) -> None:
        self._cancelled += 1
        self._refuse(request, PermitAcquireCancelled(self.names))

    def _undo(self, request: Request, granted: Permit) -> None:
        """Undo a grant that the caller has not seen.

        An update's old permit gets its size back, unless it was released.
        """
        replaced = request.replaces
        back = min(request.had, granted.size) if replaced is not None and not replaced.released else 0
        self._take_from(granted, granted.size)
        granted.released = True
        if replaced is not None and back:
            replaced.size = back
            self._held += back

    def _leave(self, request: Request) -> None:
        """Remove a request from the queues, if it waits: from now on it is settled."""
        if request.outcome is not None or request not in self._lines:
            return
        self._lines.leave(request)
        self._settled.append(request)
        permit = request.replaces
        if permit is not None:
            permit.request = None
            if request in self._lenders:
                del self._lenders[request]
                self._lendable -= permit.size

    def _take_from(self, permit: Permit, count: int) -> None:
        permit.size -= count
        self._held -= count
        lender = permit.request
        if lender is not None and lender in self._lenders:
            self._lendable -= count
            if not permit.size:
                del self._lenders[lender]

    def _check_idle(self, permit: Permit) -> None:
        self._check_ours(permit)
        if permit.request is not None:
            raise ValueError(f"this permit of {permit.size} {self.names.unit} waits to be updated already")

    def _check_ours(self, permit: Permit) -> None:
        if getattr(permit, "queue", None) is not self:
            raise ValueError(f"Invalid permit type: {permit!r} is no permit of this queue")
