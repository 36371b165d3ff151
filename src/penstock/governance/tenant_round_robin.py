# SPDX-License-Identifier: Apache-2.0
"""A line in which tenants take turns, and within a tenant its connections; each connection's own come in order.

Why: first come, first served, a client that asks a thousand times at once makes everybody wait for a thousand answers.
Where: `net.loop_share` keeps those in it who wait to gather a list. All steps are O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.governance.permit_types import Owner
from penstock.governance.waiting_counts import WaitingCounts

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")


class TenantRoundRobin(Generic[T]):
    """Items that wait, each on behalf of an owner."""

    __slots__ = ("_connections", "_length", "_tenants", "_turns")

    def __init__(self) -> None:
        # Whoever is first in each of these has the next turn.
        self._turns: OrderedDict[str, OrderedDict[Hashable, OrderedDict[T, None]]] = OrderedDict()
        self._tenants: WaitingCounts[str] = WaitingCounts()
        self._connections: dict[str, WaitingCounts[Hashable]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def join(self, owner: Owner, item: T) -> None:
        """Put an item behind those of the same connection."""
        tenant = self._turns.setdefault(owner.tenant, OrderedDict())
        tenant.setdefault(owner.connection, OrderedDict())[item] = None
        self._tenants.add(owner.tenant)
        self._connections.setdefault(owner.tenant, WaitingCounts()).add(owner.connection)
        self._length += 1

    def leave(self, owner: Owner, item: T) -> None:
        """Take an item out that is in the line."""
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
        """Take out whose turn it is; its connection, and its tenant, have their next turn after all others."""
        tenant = next(iter(self._turns))
        connection = next(iter(self._turns[tenant]))
        item = next(iter(self._turns[tenant][connection]))
        self._turns.move_to_end(tenant)
        self._turns[tenant].move_to_end(connection)
        owner = Owner(tenant, connection)
        self.leave(owner, item)
        return owner, item

    def gives_way(self) -> tuple[Owner, T]:
        """Who leaves a line that has one too many: the latest of whoever has most."""
        tenant = self._tenants.largest()
        connection = self._connections[tenant].largest()
        return Owner(tenant, connection), next(reversed(self._turns[tenant][connection]))
