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

import heapq
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core.units import KIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.request_values import MutedReader

if TYPE_CHECKING:
    from collections.abc import Iterable


# ---------------------------------------------------------------------------------------------------------------------
# A line in which members wait for turns that cost different amounts: start-time fair queueing.
#
# Why not first come, first served: a member whose turns cost a thousand times as much would get a thousand times as
# much. Here each member has a start, and the lowest start is next. What a member used is added to its start, divided by
# its weight. So members with much to do get amounts in proportion to their weights, and one that comes back after a
# pause begins with the others. Where: topics and subscriptions that wait for a limit (`groups.limit`). Pure: costs are
# numbers.

K = TypeVar("K")

# By how much a member may be ahead of the line, if a single turn did not cost more: a member that was served without
# waiting for a while does not wait for as long afterwards.
LEAD: Final = 1.0
# Outdated entries are removed when there are more than this, and more than others.
_STALE_MAX: Final = 64


class FairLine(Generic[K]):
    """Waiting members, in the order of their starts; equal starts in the order of arrival."""

    __slots__ = ("_ahead", "_heap", "_numbers", "_starts", "_virtual")

    def __init__(self) -> None:
        self._starts: dict[K, float] = {}  # of members that wait
        self._ahead: dict[K, float] = {}  # the starts of members that were served and do not wait now
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._virtual = 0.0  # the start of the member that was served last

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, member: object) -> bool:
        return member in self._starts

    def join(self, member: K) -> None:
        """Let a member wait; one that waits already keeps its place."""
        if member not in self._starts:
            self._put(member, max(self._virtual, self._ahead.pop(member, 0.0)))

    def leave(self, member: K) -> None:
        """A member does not wait any more, whether it was served or not."""
        start = self._starts.pop(member, None)
        if start is not None and start > self._virtual:
            self._remember(member, start)

    def pop(self) -> K:
        """Remove and return the member that is next. Raises IndexError if nobody waits."""
        while True:
            start, _, member = heapq.heappop(self._heap)
            if self._starts.get(member) == start:
                break
        del self._starts[member]
        self._virtual = max(self._virtual, start)
        self._remember(member, start)
        return member

    def used(self, member: K, cost: float, weight: float = 1.0) -> None:
        """Count what a member used. One that was never served in turn is not counted: nobody waited for it."""
        step = cost / weight
        most = self._virtual + max(step, LEAD)
        if member in self._starts:
            self._put(member, min(self._starts[member] + step, most))
        elif member in self._ahead:
            self._ahead[member] = min(self._ahead[member] + step, most)

    def _put(self, member: K, start: float) -> None:
        self._starts[member] = start
        if len(self._heap) > 2 * len(self._starts) + _STALE_MAX:
            self._heap = [one for one in self._heap if self._starts.get(one[2]) == one[0]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (start, next(self._numbers), member))

    def _remember(self, member: K, start: float) -> None:
        self._ahead[member] = start
        if len(self._ahead) > 2 * len(self._starts) + _STALE_MAX:
            self._ahead = {one: at for one, at in self._ahead.items() if at > self._virtual or one is member}


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


@dataclass(eq=False, slots=True)
class Tenant:
    """Memory that one tenant's connections hold, bytes that they were served, and which of them wait."""

    name: str
    connections: int = 0
    used_bytes: int = 0
    promised_bytes: int = 0
    served_bytes: int | None = None  # on the clock of all tenants; None: it has not waited yet
    clock_bytes: int = 0  # the clock of its connections
    waiting: int = 0  # connections
    heaps: tuple[list[_Place], ...] = field(default_factory=lambda: tuple([] for _ in _LINES))
    in_line: list[int] = field(default_factory=lambda: [0 for _ in _LINES])
    places: list[_TenantPlace | None] = field(default_factory=lambda: [None for _ in _LINES])


@dataclass(eq=False, slots=True)
class Reader:
    """Memory that one connection holds, and its place in the queues."""

    owner: int
    tenant: Tenant
    granted_bytes: int = 0  # charged for a pending read
    granted_reserved: bool = False  # whether they are charged to the reserve
    held_bytes: int = 0  # charged for an unfinished frame
    held_reserved_bytes: int = 0  # the part of them that is charged to the reserve
    served_bytes: int | None = None  # on its tenant's clock; None: it has not waited yet
    # Progress of that frame since the mark; the mark is moved forward by the time in which we did not read.
    mark_ns: int = 0
    mark_held_bytes: int = 0  # `held_bytes` at the mark
    pace_bytes_per_s: int | None = None  # before the mark; None: the frame began at the mark
    stopped_ns: int | None = None  # since when the connection is not read, for any reason; None: it is read
    # The following fields are meaningful only while it waits.
    reason: HoldKind = HoldKind.REQUEST_MEMORY
    want_bytes: int = 0
    missing_bytes: int = 0
    whole_bytes: int = 0  # bytes of complete frames at the socket, as far as `look` has seen
    has_turn: bool = False  # woken, and expected to ask again at once
    turn_reserved: bool = False  # the turn is for complete frames at the socket
    called: bool = False  # it had such a turn and has asked
    promised_bytes: int = 0
    joined: bool = False  # it has waited for its next read
    frame_placed: bool = False  # the unfinished frame has a key and a number
    key: int = 0
    number: int = 0
    places: list[_Place | None] = field(default_factory=lambda: [None for _ in _LINES])

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


class ReadTurns:
    """Waiting readers, the turns that are given to them, and the bytes promised with these turns.

    A reader that has a turn asks again a little later. No other reader gets its bytes until then, so none overtakes
    another, and none is woken in vain.

    Attributes:
        waiting: in the order in which they began to wait, readers with a turn included.
        lines: waiting readers without a turn.
        holding: turns of readers with an unfinished frame.
        ordinary_promised, reserve_promised: bytes promised with turns, of each part of the memory.
    """

    __slots__ = ("_count", "holding", "lines", "ordinary_promised", "reserve_promised", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Reader] = {}
        self.lines = FairQueue()
        self.holding = 0
        self.ordinary_promised = 0
        self.reserve_promised = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of turns that were given and not used yet."""
        return self._count

    def wait(self, reader: Reader) -> None:
        """Let a reader wait; one that waits already keeps its place."""
        if reader.owner not in self.waiting:
            self.waiting[reader.owner] = reader
            self.lines.join(reader)
        self.line_up(reader)

    def line_up(self, reader: Reader) -> None:
        """Enter a reader that waits into the lines."""
        self.lines.enter(reader, ANY)
        if reader.held_bytes:
            self.lines.enter(reader, HOLDING)

    def leave(self, reader: Reader) -> bool:
        """End the wait of a reader and its turn; returns whether it waited."""
        self.end(reader)
        if self.waiting.pop(reader.owner, None) is None:
            return False
        self.lines.leave(reader)
        return True

    def give(self, reader: Reader, promised_bytes: int, *, reserved: bool = False) -> None:
        """Give a turn to a waiting reader, and promise it these bytes, of the reserve or the ordinary part."""
        for line in (ANY, HOLDING, WHOLE):
            self.lines.withdraw(reader, line)
        reader.has_turn, reader.turn_reserved = True, reserved
        reader.promised_bytes = promised_bytes
        self._count += 1
        self.holding += reader.held_bytes > 0
        self._promise(reader, promised_bytes)

    def end(self, reader: Reader) -> None:
        """End the turn of a reader, if it has one."""
        if reader.has_turn:
            self._count -= 1
            self.holding -= reader.held_bytes > 0
            self._promise(reader, -reader.promised_bytes)
            reader.has_turn = False

    def _promise(self, reader: Reader, nbytes: int) -> None:
        if reader.turn_reserved:
            self.reserve_promised += nbytes
        else:
            self.ordinary_promised += nbytes
        reader.tenant.promised_bytes += nbytes
        self.lines.changed(reader.tenant)

    def snapshot(self) -> tuple[MutedReader, ...]:
        """Return the waiting readers, for metrics and the admin port."""
        return tuple(
            MutedReader(one.owner, one.stopped_ns, one.reason, one.want_bytes, one.held_bytes, one.missing_bytes)
            for one in self.waiting.values()
            if one.stopped_ns is not None
        )


# While no reader has waited for memory for more than a second, an unfinished frame makes progress if it grows by this
# much per second. Half a megabit per second is slower than any link that batches are published over, and a second is
# long enough for a lost packet to be sent again.
PROGRESS_BYTES: Final = 64 * KIB
PROGRESS_NS: Final = NS_PER_S


def mark(reader: Reader, now_ns: int, *, anew: bool) -> None:
    """Note the progress of an unfinished frame, after a second or more; `anew`: another frame has begun."""
    if anew:
        reader.mark_ns, reader.mark_held_bytes, reader.pace_bytes_per_s = now_ns, reader.held_bytes, None
    elif now_ns - reader.mark_ns >= PROGRESS_NS:
        reader.pace_bytes_per_s = _pace(reader, now_ns)
        reader.mark_ns, reader.mark_held_bytes = now_ns, reader.held_bytes


def slow_owners(readers: Iterable[Reader], excess_bytes: int, starved_ns: int, now_ns: int) -> list[int]:
    """Return owners of frames that grow too slowly, largest first, until their frames hold `excess_bytes`.

    The required speed depends on the waiting readers: 64 KiB per second for each second in which memory for less than
    one frame became free (`starved_ns`). Time in which a connection is muted does not count against it, unless its
    client does not receive its responses. Commands that wait for that count like an unfinished frame.
    """
    pace_min = PROGRESS_BYTES * max(PROGRESS_NS, starved_ns) // PROGRESS_NS
    slow = [reader for reader in readers if reader.held_bytes and _recent_pace(reader, now_ns) < pace_min]
    slow.sort(key=lambda reader: reader.held_bytes, reverse=True)
    owners: list[int] = []
    for reader in slow:
        if excess_bytes <= 0:
            break
        excess_bytes -= reader.held_bytes
        owners.append(reader.owner)
    return owners


def _recent_pace(reader: Reader, now_ns: int) -> int | float:
    """Return by how many bytes per second its unfinished frame grew while it was read, over the last second or two."""
    until_ns = now_ns if reader.stopped_ns is None else reader.stopped_ns
    if until_ns - reader.mark_ns > PROGRESS_NS:
        return _pace(reader, until_ns)
    return float("inf") if reader.pace_bytes_per_s is None else reader.pace_bytes_per_s


def _pace(reader: Reader, until_ns: int) -> int:
    return (reader.held_bytes - reader.mark_held_bytes) * NS_PER_S // (until_ns - reader.mark_ns)
