# SPDX-License-Identifier: Apache-2.0
"""A queue in which tenants take turns, and within a tenant its connections; items of one connection keep their order.

Why: in a plain queue, a client that sends a thousand requests makes all others wait for a thousand answers. Where:
`net.loop` queues topic listings here until they may be gathered. All operations are O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.governance.permits import Owner, WaitingCounts

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")


class TenantRoundRobin(Generic[T]):
    """Waiting items, each with an owner."""

    __slots__ = ("_connections", "_length", "_tenants", "_turns")

    def __init__(self) -> None:
        # The first key in each dictionary has the next turn.
        self._turns: OrderedDict[str, OrderedDict[Hashable, OrderedDict[T, None]]] = OrderedDict()
        self._tenants: WaitingCounts[str] = WaitingCounts()
        self._connections: dict[str, WaitingCounts[Hashable]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def join(self, owner: Owner, item: T) -> None:
        """Append an item to those of its connection."""
        tenant = self._turns.setdefault(owner.tenant, OrderedDict())
        tenant.setdefault(owner.connection, OrderedDict())[item] = None
        self._tenants.add(owner.tenant)
        self._connections.setdefault(owner.tenant, WaitingCounts()).add(owner.connection)
        self._length += 1

    def leave(self, owner: Owner, item: T) -> None:
        """Remove an item, which must be in the queue."""
        tenant = self._turns[owner.tenant]
        connection = tenant[owner.connection]
        del connection[item]
        if not connection:
            del tenant[owner.connection]
        if not tenant:
            del self._turns[owner.tenant]
        self._tenants.remove(owner.tenant)
        connections = self._connections[owner.tenant]
        connections.remove(owner.connection)
        if not connections:
            del self._connections[owner.tenant]
        self._length -= 1

    def next(self) -> tuple[Owner, T]:
        """Remove and return the next item. Its connection and its tenant go to the end of the order."""
        tenant = next(iter(self._turns))
        connection = next(iter(self._turns[tenant]))
        item = next(iter(self._turns[tenant][connection]))
        self._turns.move_to_end(tenant)
        self._turns[tenant].move_to_end(connection)
        owner = Owner(tenant, connection)
        self.leave(owner, item)
        return owner, item

    def gives_way(self) -> tuple[Owner, T]:
        """Return the item to remove from a full queue: the latest one of the tenant and connection with most items."""
        tenant = self._tenants.largest()
        connection = self._connections[tenant].largest()
        return Owner(tenant, connection), next(reversed(self._turns[tenant][connection]))
