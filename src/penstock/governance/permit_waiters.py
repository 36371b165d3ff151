# SPDX-License-Identifier: Apache-2.0
"""Those who wait for permits: in which order, on whose behalf, until when, and who gives way when the queue is full.

Why: any of ten thousand who wait may leave at any moment, and none of them may cost the others a walk over the queue.
Where: the inner part of `PermitQueue`, which decides who is granted and refused.

Updates of permits that are held stand in a line before new requests; each line is first come, first served.

Places are shared by need. Anybody may fill the queue while nobody else wants a place; once it is full, whoever has most
gives way: of the tenant with most new requests, the connection with most, its latest one; among equals, the newcomer.
Updates never give way to new requests.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from penstock.governance.waiting_counts import WaitingCounts

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from penstock.governance.permit_types import Request

# Deadlines of requests that have left are cleared away once they are more than half of all, and more than these.
_STALE_DEADLINES_MAX: Final = 64


class PermitWaiters:
    """The two lines. A request is in one of them while its outcome is None, and not longer."""

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
        """Who is next."""
        return next(iter(self.updates or self.acquires), None)

    def of_connection(self, connection: Hashable) -> list[Request]:
        """All that wait on behalf of one connection."""
        return list(self._of_connection.get(connection, ()))

    def join(self, request: Request) -> None:
        """Put a request at the end of its line."""
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
        """Take a waiting request out of its line."""
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
        """Who must leave a queue that has one too many, the newcomer who has just joined: it or another.

        Among equals the newcomer has most, being the last who came to that many.
        """
        if not self.acquires:
            return newcomer
        tenant = self._tenants.largest()
        theirs = self._of_connection[self._connections[tenant].largest()]
        return next(one for one in reversed(theirs) if one.replaces is None and one.owner.tenant == tenant)

    def next_deadline_ns(self) -> int | None:
        """When the next of those who wait expires; None when nobody waits."""
        while self._deadlines and self._deadlines[0][2].outcome is not None:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def next_expired(self, now_ns: int) -> Request | None:
        """One whose deadline has come, the earliest first."""
        deadline_ns = self.next_deadline_ns()
        return heappop(self._deadlines)[2] if deadline_ns is not None and deadline_ns <= now_ns else None
