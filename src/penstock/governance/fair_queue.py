# SPDX-License-Identifier: Apache-2.0
"""The order in which connections get request memory: fair by bytes, between tenants and between connections.

Why: in a first-come-first-served queue, a message of 1 KiB waits behind two hundred reads of 512 KiB, and a client with
two hundred connections gets two hundred turns. With a fair queue, a client that asks for little waits for little.

Where: `RequestMemory` queues refused readers here and asks which is first. Pure, without a clock.

Theory of operation
-------------------

This is weighted fair queueing with equal weights, on two levels. Each tenant has a virtual clock. It advances by the
bytes served, divided by the number of the tenant's waiting connections: that is how far a connection would be that
always had its equal share. A connection that begins to wait starts at its own mark (the bytes it was served, on the
same scale); a new one starts at the clock. No start is further behind the clock than one read, so a client cannot save
up for the time in which it did not ask. A connection's key is its start plus the bytes it asks for, that is, the bytes
at its socket or all of a longer frame. The lowest key is first; of equal keys, the one that came first. An unfinished
frame keeps its key and its place until it is complete: frames that are served one after another need less memory than
frames that grow side by side. Keys do not change while connections wait, and the clock only advances, so every
connection becomes the first in the end.

Tenants are ordered in the same way on a clock of their own, but the bytes of memory that a tenant holds and was
promised are added to its key. So a tenant whose frames stay long in memory does not get more of it than one whose
frames come and go, and memory that a tenant borrowed while it was alone comes back as its requests are answered.

There are three queues: all readers, those with an unfinished frame, and those whose next frames are complete at the
socket. `join`, `leave` and `first` cost O(log n): each queue is a heap of tenants over heaps of readers. Stale heap
entries are dropped when they come to the top.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from penstock.core.units import KIB
from penstock.governance.holds import HoldKind

# How far behind its clock a connection may start: one read brings at most this much. With less, a connection that is
# behind by chance would lose its lead each time.
CREDIT_BYTES: Final = 512 * KIB

# The queues.
ANY: Final = 0
HOLDING: Final = 1
WHOLE: Final = 2
_LINES: Final = range(3)

# Stale heap entries are swept when they outnumber the others by this many.
_STALE_MIN: Final = 64

_Place = tuple[int, int, "Reader"]  # key, number, who
_TenantPlace = tuple[int, int, "Tenant"]


class Tenant:
    """What one tenant's connections hold of the memory, what they were served, and which of them wait."""

    __slots__ = (
        "clock_bytes", "connections", "heaps", "in_line", "name", "places", "promised_bytes", "served_bytes",
        "used_bytes", "waiting",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.used_bytes = 0
        self.promised_bytes = 0
        self.served_bytes: int | None = None  # on the clock of all tenants; None: it has not waited yet
        self.clock_bytes = 0  # the clock of its connections
        self.waiting = 0  # connections
        self.heaps: tuple[list[_Place], ...] = tuple([] for _ in _LINES)
        self.in_line = [0 for _ in _LINES]
        self.places: list[_TenantPlace | None] = [None for _ in _LINES]


class Reader:
    """What one connection holds of the memory, and its place in the queues."""

    __slots__ = (
        "called", "frame_placed", "granted_bytes", "granted_reserved", "has_turn", "held_bytes", "held_reserved_bytes",
        "joined", "key", "mark_held_bytes", "mark_ns", "missing_bytes", "number", "owner", "pace_bytes_per_s", "places",
        "promised_bytes", "reason", "served_bytes", "stopped_ns", "tenant", "turn_reserved", "want_bytes",
        "whole_bytes",
    )  # fmt: skip

    def __init__(self, owner: int, tenant: Tenant) -> None:
        self.owner = owner
        self.tenant = tenant
        self.granted_bytes = 0  # charged for a pending read
        self.granted_reserved = False  # whether they are charged to the reserve
        self.held_bytes = 0  # charged for an unfinished frame
        self.held_reserved_bytes = 0  # the part of them that is charged to the reserve
        self.served_bytes: int | None = None  # on its tenant's clock; None: it has not waited yet
        # Progress of that frame since the mark; the mark is moved forward by the time in which we did not read.
        self.mark_ns = 0
        self.mark_held_bytes = 0  # `held_bytes` at the mark
        self.pace_bytes_per_s: int | None = None  # before the mark; None: the frame began at the mark
        self.stopped_ns: int | None = None  # since when the connection is not read, for any reason; None: it is read
        # The following fields are meaningful only while it waits.
        self.reason = HoldKind.REQUEST_MEMORY
        self.want_bytes = 0
        self.missing_bytes = 0
        self.whole_bytes = 0  # bytes of complete frames at the socket, as far as `look` has seen
        self.has_turn = False  # woken, and expected to ask again at once
        self.turn_reserved = False  # the turn is for complete frames at the socket
        self.called = False  # it had such a turn and has asked
        self.promised_bytes = 0
        self.joined = False  # it has waited for its next read
        self.frame_placed = False  # the unfinished frame has a key and a number
        self.key = 0
        self.number = 0
        self.places: list[_Place | None] = [None for _ in _LINES]

    def useful_bytes(self, floor_bytes: int) -> int:
        """Return the size of the shortest useful read.

        It is the floor, or less if the reader wants less or if less completes its frame.
        """
        useful = min(self.want_bytes, floor_bytes)
        return min(useful, self.missing_bytes) if self.held_bytes else useful


class FairQueue:
    """All waiting readers.

    `join` and `leave` are for the wait of a connection, `enter` and `withdraw` for one queue.
    """

    __slots__ = ("_clock_bytes", "_heaps", "_number", "_tenants_in_line", "_tenants_waiting")

    def __init__(self) -> None:
        self._clock_bytes = 0
        self._number = 0
        self._tenants_waiting = 0
        self._heaps: tuple[list[_TenantPlace], ...] = tuple([] for _ in _LINES)
        self._tenants_in_line = [0 for _ in _LINES]

    def join(self, reader: Reader) -> None:
        """Begin to wait for a read, or for the rest of a frame. The reader is in no queue yet."""
        tenant = reader.tenant
        if not tenant.waiting:
            tenant.served_bytes = _start(tenant.served_bytes, self._clock_bytes)
            self._tenants_waiting += 1
        tenant.waiting += 1
        reader.served_bytes = _start(reader.served_bytes, tenant.clock_bytes)
        reader.joined = True
        if not reader.frame_placed:
            reader.key = reader.served_bytes + max(reader.want_bytes, reader.missing_bytes)
            self._number += 1
            reader.number = self._number
            reader.frame_placed = True

    def leave(self, reader: Reader) -> None:
        """End the wait."""
        for line in _LINES:
            self.withdraw(reader, line)
        reader.tenant.waiting -= 1
        if not reader.tenant.waiting:
            self._tenants_waiting -= 1

    def ask_for(self, reader: Reader, nbytes: int) -> None:
        """Set how many bytes a reader at a frame boundary asks for. Within a frame this is known already."""
        if reader.held_bytes:
            return
        key = (reader.served_bytes or 0) + nbytes
        if key != reader.key:
            reader.key = key
            for line in _LINES:
                if reader.places[line] is not None:
                    self.withdraw(reader, line)
                    self.enter(reader, line)

    def enter(self, reader: Reader, line: int) -> None:
        """Enter a queue. A reader that is in it already keeps its place."""
        if reader.places[line] is not None:
            return
        tenant = reader.tenant
        place = reader.places[line] = (reader.key, reader.number, reader)
        heap = tenant.heaps[line]
        heappush(heap, place)
        tenant.in_line[line] += 1
        if tenant.in_line[line] == 1:
            self._tenants_in_line[line] += 1
            self._place(tenant, line)
        elif len(heap) > 2 * tenant.in_line[line] + _STALE_MIN:
            heap[:] = [one for one in heap if one[2].places[line] is one]
            heapify(heap)

    def withdraw(self, reader: Reader, line: int) -> None:
        """Leave a queue, if the reader is in it."""
        if reader.places[line] is None:
            return
        reader.places[line] = None
        tenant = reader.tenant
        tenant.in_line[line] -= 1
        if not tenant.in_line[line]:
            tenant.places[line] = None
            tenant.heaps[line].clear()
            self._tenants_in_line[line] -= 1

    def stands(self, line: int) -> bool:
        """Return whether a reader is in this queue."""
        return self._tenants_in_line[line] > 0

    def first(self, line: int) -> Reader | None:
        """Return the first reader of a queue; None if it is empty."""
        heap = self._heaps[line]
        while heap:
            place = heap[0]
            tenant = place[2]
            if tenant.places[line] is not place:
                heappop(heap)
                continue
            readers = tenant.heaps[line]
            while readers[0][2].places[line] is not readers[0]:
                heappop(readers)
            return readers[0][2]
        return None

    def served(self, reader: Reader, nbytes: int) -> None:
        """Count bytes that a reader was served while others waited, whether it had waited itself or not."""
        tenant = reader.tenant
        if not reader.joined:  # Else its start was fixed when it began to wait.
            reader.served_bytes = _start(reader.served_bytes, tenant.clock_bytes)
            if not tenant.waiting:
                tenant.served_bytes = _start(tenant.served_bytes, self._clock_bytes)
        reader.joined = False
        reader.served_bytes = (reader.served_bytes or 0) + nbytes
        tenant.served_bytes = (tenant.served_bytes or 0) + nbytes
        tenant.clock_bytes += max(1, nbytes // (tenant.waiting + 1))
        self._clock_bytes += max(1, nbytes // (self._tenants_waiting + (not tenant.waiting)))
        self.changed(tenant)

    def changed(self, tenant: Tenant) -> None:
        """Update the place of a tenant whose held or promised bytes have changed."""
        if tenant.waiting:
            for line in _LINES:
                if tenant.in_line[line]:
                    self._place(tenant, line)

    def _place(self, tenant: Tenant, line: int) -> None:
        before = tenant.places[line]
        key = (tenant.served_bytes or 0) + tenant.used_bytes + tenant.promised_bytes
        if before is not None and before[0] == key:
            return
        self._number += 1
        place = tenant.places[line] = (key, self._number, tenant)
        heap = self._heaps[line]
        heappush(heap, place)
        if len(heap) > 2 * self._tenants_in_line[line] + _STALE_MIN:
            heap[:] = [one for one in heap if one[2].places[line] is one]
            heapify(heap)


def _start(served_bytes: int | None, clock_bytes: int) -> int:
    """Return the start of a reader, or tenant, that begins to wait."""
    return clock_bytes if served_bytes is None else max(served_bytes, clock_bytes - CREDIT_BYTES)
