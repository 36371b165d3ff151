# SPDX-License-Identifier: Apache-2.0
"""Who waits for request memory is served by the bytes it was served before: tenants first, then their connections.

Why: in one queue, first come first served, a message of 1 KiB stands behind two hundred reads of 512 KiB, and a client
with two hundred connections gets two hundred turns. Served by bytes, whoever asks for little waits for little.
Where: `RequestMemory` lets refused readers wait here and asks who is first; pure, no clock.

Theory of operation
-------------------
Weighted fair queueing with equal weights, twice. Each tenant has a virtual clock, which goes on by the bytes served
divided by the number of its connections that wait: so far a connection would be that had always had its equal part.
A connection that begins to wait starts at its own mark (what it was served, on the same scale), a new one at the clock,
and none further behind the clock than one read: nobody saves up for the time when it did not ask. Its key is that start
plus what it asks for, that is, what lies at its socket, or all of a longer frame; the lowest key is first, and of equal
keys the one that came first. A frame that has begun keeps its key and its place until it is complete: frames that are
served one after another need less memory than frames that grow side by side. Keys do not change while their connections
wait and the clock only goes on, so everybody becomes the first in the end.

Tenants are ordered in the same way on a clock of their own, but the bytes of memory that a tenant has, and was
promised, are added to its key. A tenant whose frames stay long in memory thereby gets no more of it than one whose
frames come and go, and what it borrowed while it was alone comes back as it is answered.

There are three lines: all readers, those that hold an unfinished frame, and those whose next frames lie whole at the
socket. Joining, leaving and the question who is first cost O(log n): each line is a heap of tenants over heaps of
readers, from which entries that no longer count are dropped when they come to the top.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from penstock.core.units import KIB
from penstock.governance.muting import MuteReason

# How far behind its clock anybody starts: a read of a connection brings no more at once. With less, who is behind by
# chance would lose that each time.
CREDIT_BYTES: Final = 512 * KIB

# The lines.
ANY: Final = 0
HOLDING: Final = 1
WHOLE: Final = 2
_LINES: Final = range(3)

# Entries that no longer count are swept when there are so many more of them than of others.
_STALE_MIN: Final = 64

_Place = tuple[int, int, "Reader"]  # key, number, who
_TenantPlace = tuple[int, int, "Tenant"]


class Tenant:
    """What one tenant's connections have of the memory, what they were served, and which of them wait."""

    __slots__ = (
        "clock_bytes", "connections", "heaps", "in_line", "name", "places", "promised_bytes", "served_bytes",
        "used_bytes", "waiting",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.used_bytes = 0
        self.promised_bytes = 0
        self.served_bytes: int | None = None  # on the clock of the tenants; None: it has not waited yet
        self.clock_bytes = 0  # the clock of its connections
        self.waiting = 0  # connections
        self.heaps: tuple[list[_Place], ...] = tuple([] for _ in _LINES)
        self.in_line = [0 for _ in _LINES]
        self.places: list[_TenantPlace | None] = [None for _ in _LINES]


class Reader:
    """What one connection has of the memory, and its place among those who wait."""

    __slots__ = (
        "called", "frame_placed", "granted_bytes", "granted_reserved", "has_turn", "held_bytes", "held_reserved_bytes",
        "joined", "key", "mark_held_bytes", "mark_ns", "missing_bytes", "number", "owner", "pace_bytes_per_s", "places",
        "promised_bytes", "reason", "served_bytes", "stopped_ns", "tenant", "turn_reserved", "want_bytes",
        "whole_bytes",
    )  # fmt: skip

    def __init__(self, owner: int, tenant: Tenant) -> None:
        self.owner = owner
        self.tenant = tenant
        self.granted_bytes = 0  # charged for a read under way
        self.granted_reserved = False  # ... to the reserve
        self.held_bytes = 0  # charged for an unfinished frame
        self.held_reserved_bytes = 0  # ... of which to the reserve
        self.served_bytes: int | None = None  # on its tenant's clock; None: it has not waited yet
        # Progress of that frame: measured from the mark on; the mark is moved on by the time we did not read.
        self.mark_ns = 0
        self.mark_held_bytes = 0  # what it had then
        self.pace_bytes_per_s: int | None = None  # before the mark; None: the frame began there
        self.stopped_ns: int | None = None  # since when we do not read it, for whatever reason; None: we do
        # The rest has a meaning only while it waits.
        self.reason = MuteReason.REQUEST_MEMORY
        self.want_bytes = 0
        self.missing_bytes = 0
        self.whole_bytes = 0  # of whole frames at the socket, as far as we looked
        self.has_turn = False  # woken, and expected to ask again at once
        self.turn_reserved = False  # ... for what lies whole at the socket
        self.called = False  # it had such a turn, and has asked
        self.promised_bytes = 0
        self.joined = False  # it has waited for the read that comes next
        self.frame_placed = False  # its unfinished frame has its key and number
        self.key = 0
        self.number = 0
        self.places: list[_Place | None] = [None for _ in _LINES]

    def useful_bytes(self, floor_bytes: int) -> int:
        """The shortest read worth making: a floor, or less if it wants less or if less finishes its frame."""
        useful = min(self.want_bytes, floor_bytes)
        return min(useful, self.missing_bytes) if self.held_bytes else useful


class FairQueue:
    """All who wait, in their lines. `join` and `leave` for a connection's wait; `enter` and `withdraw` for one line."""

    __slots__ = ("_clock_bytes", "_heaps", "_number", "_tenants_in_line", "_tenants_waiting")

    def __init__(self) -> None:
        self._clock_bytes = 0
        self._number = 0
        self._tenants_waiting = 0
        self._heaps: tuple[list[_TenantPlace], ...] = tuple([] for _ in _LINES)
        self._tenants_in_line = [0 for _ in _LINES]

    def join(self, reader: Reader) -> None:
        """Begin to wait for what it wants, or for the rest of its frame; it stands in no line yet."""
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
        """Wait no more."""
        for line in _LINES:
            self.withdraw(reader, line)
        reader.tenant.waiting -= 1
        if not reader.tenant.waiting:
            self._tenants_waiting -= 1

    def ask_for(self, reader: Reader, nbytes: int) -> None:
        """One that waits at a frame boundary asks for so much. In the middle of a frame that is known already."""
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
        """Stand in a line. One that stands there already keeps its place."""
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
        """Stand in that line no more, if it does."""
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
        """Whether anybody stands in that line."""
        return self._tenants_in_line[line] > 0

    def first(self, line: int) -> Reader | None:
        """The first of a line; None when nobody stands there."""
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
        """Count what a reader was served while others waited, whether it had waited itself or not."""
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
        """What a tenant has, or was promised, has changed: so has its place."""
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
    """Where somebody starts who begins to wait."""
    return clock_bytes if served_bytes is None else max(served_bytes, clock_bytes - CREDIT_BYTES)
