# SPDX-License-Identifier: Apache-2.0
"""The requests that wait for permits: their order, owners and deadlines, and which one a full queue drops.

Why: any of ten thousand waiting requests may leave at any moment, and that must not cost a walk over the queue. Where:
the inner part of `PermitQueue`, which decides which requests are granted and refused.

Updates of held permits are in one queue, new requests in another; updates go first. Each queue is first come, first
served. Places are shared by need: one client may fill the queue while no other wants a place. When it is full, it drops
a new request of the tenant with most new requests, and of that tenant's connection with most: its latest one. Among
equals that is the request that came last. Updates are never dropped for new requests.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from penstock.governance.waiting_counts import WaitingCounts

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from penstock.governance.permit_types import Request

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
