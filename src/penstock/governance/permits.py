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

*Places are shared by need* when the queue is full: see `PermitWaiters`.

Invariants: available + held = total. A request is settled exactly once: granted, or refused with an error. A call may
settle other requests than its own; `take_settled` returns them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from penstock.core.errors import TooManyRequests
from penstock.core.units import NS_PER_MS
from penstock.governance.memory_pool import UNBOUNDED
from penstock.governance.wait_times import WaitTimes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from penstock.governance.wait_times import WaitTimesSnapshot


# -- the values of a `PermitQueue`: limits, permits, requests for permits, their errors, and a view of one moment ------


@dataclass(frozen=True, slots=True)
class PermitNames:
    """The words for a queue of permits in error messages: the refusal, the unit, and the settings of its limits."""

    refusal: str = "Cannot acquire permits"
    unit: str = "permits"
    permits_key: str = "permits_max"
    queue_key: str = "queue_max"
    timeout_key: str = "timeout_ns"


class PermitError(TooManyRequests):
    """The permits were not granted. A permit that was to be updated stays as it is.

    There are five such errors: a client may retry after all but one of them, and an operator changes a different
    setting for each. Sessions answer with TooManyRequests, the admin port with 429 (PIP-442).
    """


class PermitAcquireTimeout(PermitError):
    """The permits were not available in time."""

    def __init__(self, names: PermitNames, wanted: int, waited_ms: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} did not come free within {waited_ms} ms; "
            f"retry with back-off, or raise {names.permits_key} or {names.timeout_key}"
        )


class GatheringTimeout(PermitAcquireTimeout):
    """There was memory, but the listing was not gathered before the deadline."""

    def __init__(self, waited_ms: int) -> None:
        TooManyRequests.__init__(
            self,
            f"Failed due to topic listings in progress: the list was not gathered within {waited_ms} ms, as others "
            f"were before it; retry with back-off, or ask for fewer patterns at once",
        )


class PermitAcquireQueueFull(PermitError):
    """The queue is full, and no other request should be dropped for this one."""

    def __init__(self, names: PermitNames, queue_max: int) -> None:
        super().__init__(
            f"{names.refusal}: all {queue_max} waiting places are taken; "
            f"retry with back-off, or raise {names.queue_key} or {names.permits_key}"
        )


class PermitAcquireCancelled(PermitError):
    """The caller is gone."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: the request was cancelled while it waited")


class PermitAcquireAlreadyClosed(PermitError):
    """No more permits are granted: the process is stopping."""

    def __init__(self, names: PermitNames) -> None:
        super().__init__(f"{names.refusal}: stopping; ask another broker")


class PermitsBeyondLimit(PermitError):
    """The request is larger than the limit: a retry cannot help unless the limit is raised."""

    def __init__(self, names: PermitNames, wanted: int, permits_max: int) -> None:
        super().__init__(
            f"{names.refusal}: {wanted} {names.unit} can never be had, as {names.permits_key} allows "
            f"{permits_max} in all; ask for less, or raise it"
        )


class Owner(NamedTuple):
    """The tenant and connection that permits are for. Shares of the queue go by tenant, then by connection."""

    tenant: str
    connection: Hashable


NOBODY: Final = Owner("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitLimits:
    """How many permits there are, how many requests may wait for them, and for how long. 0 or less means no bound."""

    permits_max: int
    queue_max: int
    timeout_ns: int

    def __post_init__(self) -> None:
        if self.timeout_ns < 0:
            raise ValueError(f"want a timeout of 0 or more, got {self.timeout_ns} ns")


@dataclass(eq=False, slots=True)
class Permit:
    """`size` permits that `owner` holds until they are released or replaced; then `size` is 0."""

    queue: PermitQueue
    owner: Owner
    size: int
    released: bool = False
    request: Request | None = None  # the update that waits to replace it


class Request:
    """A request for permits. `outcome` is None while it waits, then its permit or an error."""

    __slots__ = ("deadline_ns", "had", "lends", "outcome", "owner", "replaces", "since_ns", "wants")

    def __init__(
        self, owner: Owner, wants: int, since_ns: int, deadline_ns: int, replaces: Permit | None, *, lends: bool
    ) -> None:
        self.owner = owner
        self.wants = wants
        self.since_ns = since_ns
        self.deadline_ns = deadline_ns
        self.replaces = replaces
        self.lends = lends
        self.had = 0  # the size of the replaced permit when this request was granted
        self.outcome: Permit | PermitError | None = None

    @property
    def needs(self) -> int:
        """How many more permits are needed to grant it; negative for an update to fewer."""
        return self.wants - (self.replaces.size if self.replaces is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A waiting request, as the admin port shows it."""

    owner: Owner
    wants: int
    has: int  # the size of the permit to be updated
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitSnapshot:
    """One moment of a queue. Without a bound, nothing counts as acquired."""

    permits_max: int  # 0: no bound
    acquired: int
    waiting_updates: int
    waiting_acquires: int
    queue_max: int  # 0: no bound
    timeout_ns: int
    oldest_wait_ns: int  # of the requests that wait now
    waits: WaitTimesSnapshot
    timeouts_total: int
    queue_full_total: int
    cancelled_total: int
    beyond_limit_total: int

    @property
    def queue_size(self) -> int:
        """The number of waiting requests."""
        return self.waiting_updates + self.waiting_acquires


# ---------------------------------------------------------------------------------------------------------------------
# The requests that wait for permits: their order, owners and deadlines, and which one a full queue drops.
#
# Why: any of ten thousand waiting requests may leave at any moment, and that must not cost a walk over the queue.
# Where: the inner part of `PermitQueue`, which decides which requests are granted and refused.
#
# Updates of held permits are in one queue, new requests in another; updates go first. Each queue is first come, first
# served. Places are shared by need: one client may fill the queue while no other wants a place. When it is full, it
# drops a new request of the tenant with most new requests, and of that tenant's connection with most: its latest one.
# Among equals that is the request that came last. Updates are never dropped for new requests.

K = TypeVar("K")


class WaitingCounts(Generic[K]):
    """A count for each key, and the key with the highest count; among equals, the key that reached the count last.

    With the highest count known at any moment, a full queue can drop an item of the client that fills it for one that
    has fewer (PIP-442, "Fair Queueing"). All operations are O(1).
    """

    __slots__ = ("_counts", "_highest", "_keys_at")

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}
        self._keys_at: dict[int, OrderedDict[K, None]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: K) -> int:
        return self._counts.get(key, 0)

    def add(self, key: K) -> None:
        """Increase the count of this key by one."""
        count = self._counts.get(key, 0)
        self._move(key, count, count + 1)
        self._highest = max(self._highest, count + 1)

    def remove(self, key: K) -> None:
        """Decrease the count of this key, which must not be 0, by one."""
        count = self._counts[key]
        self._move(key, count, count - 1)
        if self._highest not in self._keys_at:
            self._highest -= 1  # This key has that count now, or no key is left.

    def largest(self) -> K:
        """Return the key with the highest count; there must be a key."""
        return next(reversed(self._keys_at[self._highest]))

    def _move(self, key: K, before: int, after: int) -> None:
        if before:
            keys = self._keys_at[before]
            del keys[key]
            if not keys:
                del self._keys_at[before]
        if after:
            self._counts[key] = after
            self._keys_at.setdefault(after, OrderedDict())[key] = None
        else:
            del self._counts[key]


# Deadlines of requests that have left are removed when they are more than half of all, and more than this many.
_STALE_DEADLINES_MAX: Final = 64


class PermitWaiters:
    """The two queues. A request is in one of them exactly while its outcome is None."""

    __slots__ = ("_connections", "_deadlines", "_joined", "_of_connection", "_tenants", "acquires", "updates")

    def __init__(self) -> None:
        self.updates: OrderedDict[Request, None] = OrderedDict()
        self.acquires: OrderedDict[Request, None] = OrderedDict()
        self._of_connection: dict[Hashable, OrderedDict[Request, None]] = {}
        self._tenants: WaitingCounts[str] = WaitingCounts()  # of new requests
        self._connections: dict[str, WaitingCounts[Hashable]] = {}
        self._deadlines: list[tuple[int, int, Request]] = []
        self._joined = 0

    def __len__(self) -> int:
        return len(self.updates) + len(self.acquires)

    def __contains__(self, request: object) -> bool:
        return request in self.updates or request in self.acquires

    def __iter__(self) -> Iterator[Request]:
        yield from self.updates
        yield from self.acquires

    def first(self) -> Request | None:
        """Return the next request; None when no request waits."""
        return next(iter(self.updates or self.acquires), None)

    def of_connection(self, connection: Hashable) -> list[Request]:
        """Return all waiting requests of one connection."""
        return list(self._of_connection.get(connection, ()))

    def join(self, request: Request) -> None:
        """Append a request to its queue."""
        owner = request.owner
        self._of_connection.setdefault(owner.connection, OrderedDict())[request] = None
        if request.replaces is not None:
            self.updates[request] = None
        else:
            self.acquires[request] = None
            self._tenants.add(owner.tenant)
            self._connections.setdefault(owner.tenant, WaitingCounts()).add(owner.connection)
        self._joined += 1
        heappush(self._deadlines, (request.deadline_ns, self._joined, request))
        if len(self._deadlines) > 2 * len(self) + _STALE_DEADLINES_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapify(self._deadlines)

    def leave(self, request: Request) -> None:
        """Remove a waiting request."""
        owner = request.owner
        others = self._of_connection[owner.connection]
        del others[request]
        if not others:
            del self._of_connection[owner.connection]
        if request.replaces is not None:
            del self.updates[request]
        else:
            del self.acquires[request]
            self._tenants.remove(owner.tenant)
            connections = self._connections[owner.tenant]
            connections.remove(owner.connection)
            if not connections:
                del self._connections[owner.tenant]

    def gives_way_to(self, newcomer: Request) -> Request:
        """Return the request that a full queue drops after `newcomer` has joined: this one or another.

        Among equals, the newcomer has most, because it was the last to reach that count.
        """
        if not self.acquires:
            return newcomer
        tenant = self._tenants.largest()
        theirs = self._of_connection[self._connections[tenant].largest()]
        return next(one for one in reversed(theirs) if one.replaces is None and one.owner.tenant == tenant)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline; None when no request waits."""
        while self._deadlines and self._deadlines[0][2].outcome is not None:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def next_expired(self, now_ns: int) -> Request | None:
        """Return the request with the earliest deadline that has passed, or None."""
        deadline_ns = self.next_deadline_ns()
        return heappop(self._deadlines)[2] if deadline_ns is not None and deadline_ns <= now_ns else None


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
