# SPDX-License-Identifier: Apache-2.0
"""Request memory (KIP-72): how many bytes each connection may read now, so that all of them fit in one bound.

Why: clients decide how much they send. Without a bound on bytes that were read and not yet answered, a burst of large
requests ends the process. `queued.max.request.bytes` bounds the bytes, `queued.max.requests` the number of requests.

Where: a session calls `try_charge` before every read of its socket and `recharge` after it. The run from that read
carries a `Lease`, which is given to `release` when its requests are answered.

Theory of operation
-------------------

*Bytes are charged as they arrive.* Before a read, the room that it may fill is charged; after it, what it has really
left: the part of an unfinished frame, and the requests that now wait for an answer. An announced length costs
nothing, so a client that announces much and sends little holds little.

*Ordinary reads never exceed the available bytes.* When no useful amount is left, readers are refused and wait, ordered
by the bytes they were served before (`fair_queue`). As bytes become free, `wake` gives turns to the first readers, only
as many as the free bytes can serve, and promises them these bytes (`ReadTurns`).

*A reserve serves complete frames.* Reads that may leave an unfinished frame may use three quarters of the size. A
refused reader looks at the bytes at its socket; if these are complete frames, `look` grants exactly them from the
reserve. Such requests are answered as fast as the disk is, so a slow client never holds the reserve, and a small frame
does not wait for two hundred large ones.

*One frame can always be finished.* When unfinished frames hold all of the ordinary part, waiting would never end. Then
the first waiting reader with an unfinished frame becomes the **finisher**: it alone may read beyond that part, and only
up to the end of its frame. It held at least one byte of it while everything fitted, so the used bytes are at most

    queued.max.request.bytes + socket.request.max.bytes - 1

at every moment. The next finisher is chosen when this one's frame is complete and the same bound leaves room for the
rest of the next frame. (KIP-72 reserves the announced size and lets any single allocation overdraw; the bound is the
same.)

*A slow, unfinished frame is evicted first.* If others wait and unfinished frames hold more than half of the ordinary
part, those that grow too slowly while they are read are evicted, largest first (`slow_owners`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS
from penstock.governance.fair_queue import ANY, HOLDING, WHOLE, Reader, ReadTurns, Tenant, mark, slow_owners
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import UNBOUNDED, ForeignLease, Leak, LeakDetector, Lease, SimpleMemoryPool
from penstock.governance.request_values import LENGTH_BYTES, USEFUL_BYTES, Depletion, RequestMemorySnapshot
from penstock.governance.wait_times import WaitTimes

if TYPE_CHECKING:
    from penstock.governance.request_values import RequestLimits

# Connections whose tenant is not known (yet) count as one tenant.
NOBODY: Final = ""


class RequestMemory(SimpleMemoryPool):
    """The pool that all connections of a broker read into, and the order in which they read.

    Owners are connection ids. For each read: `try_charge`, then `recharge`, then `release` of the lease when all is
    answered. A refused owner may `look`. While `waiting`, the caller of `recharge`, `release`, `pause` or `forget`
    calls `wake` next. Each owner that it returns calls `try_charge` again at once (and `look`, if refused) without
    waiting for its socket to become readable, or is paused or forgotten.
    """

    __slots__ = (
        "_depletion", "_evicted_total", "_finisher", "_held_bytes", "_lines", "_ordinary_end", "_readers", "_requests",
        "_reserve_held", "_reserve_used", "_served_since", "_starved_since_ns", "_tenants", "_turns", "_used_bytes_max",
        "_useful_bytes", "_waiting", "_waits", "ordinary_bytes", "refused_total", "requests_max", "reserve_bytes",
    )  # fmt: skip

    def __init__(self, limits: RequestLimits, *, hunter: LeakDetector | None = None) -> None:
        size_bytes = limits.request_bytes_max if limits.request_bytes_max > 0 else UNBOUNDED
        # Strict: in this pool only the finisher may overdraw.
        super().__init__(size_bytes, limits.frame_bytes_max, strict=True, hunter=hunter)
        self.requests_max = limits.requests_max if limits.requests_max > 0 else UNBOUNDED
        self.reserve_bytes = limits.reserve_bytes
        self.ordinary_bytes = size_bytes - self.reserve_bytes
        self._useful_bytes = min(USEFUL_BYTES, size_bytes)
        self._readers: dict[int, Reader] = {}
        self._held_bytes = 0
        self._requests = 0
        self._reserve_used = 0  # of the bytes used
        self._reserve_held = 0  # of the bytes held
        self._ordinary_end = self.ordinary_bytes  # ordinary reads stop at this use: the ordinary part + used reserve
        self._tenants = {NOBODY: Tenant(NOBODY)}
        self._turns = ReadTurns()
        self._waiting, self._lines = self._turns.waiting, self._turns.lines
        self._finisher: Reader | None = None
        self._depletion = Depletion()
        self._starved_since_ns: int | None = None
        self._served_since = 0  # bytes read since then, outside the reserve
        self._waits = WaitTimes()
        self._evicted_total = 0
        self._used_bytes_max = 0
        self.refused_total = 0  # reads that had to wait

    # -- as a row of the budget --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "requests"

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def limit_bytes(self) -> int:
        """The limit; 0: none."""
        return self.size if self.size < UNBOUNDED else 0

    # -- one read ----------------------------------------------------------------------------------------------------
    # Budget: 0.5 µs for both, as much again for a lease and its release (benchmarks/micro.py), paid
    # once per read, not per request, which is why some lines below are written out rather than called.

    def try_charge(self, owner: int, want_bytes: int, missing_bytes: int, now_ns: int) -> int:
        """Charge and return how many bytes `owner` may read now, 1 to `want_bytes`; 0: it must stop and wait.

        `missing_bytes` is what its unfinished frame still lacks, as far as known, and 0 at a frame boundary. After a
        charge, the owner calls `recharge` or is forgotten before it asks again.
        """
        reader = self._readers.get(owner)
        if reader is None:
            reader = self._new_reader(owner)
        if (
            self._waiting
            or self._used + want_bytes > self._ordinary_end
            or self._requests >= self.requests_max
            or reader.stopped_ns is not None
        ):
            return self._grant_with_care(reader, want_bytes, missing_bytes, now_ns)
        reader.granted_bytes = want_bytes
        self._used += want_bytes
        return want_bytes

    def look(self, owner: int, ask_bytes: int, whole_bytes: int, now_ns: int) -> int:
        """Grant `whole_bytes` from the reserve to an owner that was just refused; 0: it waits.

        `ask_bytes` is the number of bytes at its socket, as far as it has looked, or all of a longer frame that begins
        there. `whole_bytes` is the part of it that ends with a frame. The next read must be exactly that long. If
        refused again, it waits for both parts of the memory.
        """
        reader = self._readers[owner]
        assert owner in self._waiting, "looked without being refused"
        assert not reader.has_turn, "looked instead of taking its turn"
        called, reader.called = reader.called, False
        self._lines.ask_for(reader, ask_bytes)
        if not 0 < whole_bytes <= self.reserve_bytes or reader.reason is HoldKind.REQUEST_COUNT:
            return 0
        fits = whole_bytes <= self.reserve_bytes - self._reserve_used - self._turns.reserve_promised
        if fits and (called or not self._lines.stands(WHOLE)):
            reader.granted_reserved = True
            self._reserve_used += whole_bytes
            self._ordinary_end += whole_bytes
            return self._admit(reader, whole_bytes, now_ns)
        reader.whole_bytes = whole_bytes
        self._lines.enter(reader, WHOLE)
        return 0

    def recharge(
        self,
        owner: int,
        read_bytes: int,
        held_bytes: int,
        pending_bytes: int,
        pending_requests: int,
        now_ns: int,
        column_bytes: int = 0,
    ) -> Lease | None:
        """Replace the charge of a read by what the read left.

        That is `held_bytes` of an unfinished frame in all, and `pending_bytes` of requests to be answered. The rest
        (commands that were handled at once, unused room) is free again. `column_bytes` is what the pending requests
        take besides their bytes; it could not be granted before they were counted. Returns the lease of the pending
        requests, None if there are none.
        """
        reader = self._readers[owner]
        granted_bytes, held_before = reader.granted_bytes, reader.held_bytes
        held_gain = held_bytes - held_before
        assert held_gain + pending_bytes <= read_bytes <= granted_bytes, (
            "read more than granted, or kept more than read"
        )
        used_bytes = self._used
        if used_bytes > self._used_bytes_max:  # noqa: PLR1730 -- max() costs three times the comparison
            self._used_bytes_max = used_bytes
        self._used = used_bytes + held_gain + pending_bytes + column_bytes - granted_bytes
        reader.granted_bytes = 0
        reader.tenant.used_bytes += held_gain + pending_bytes + column_bytes
        if held_bytes or held_before:
            reader.held_bytes = held_bytes
            self._held_bytes += held_gain
            if held_gain != read_bytes or not held_before:  # A frame ended or began: measure it from now on.
                mark(reader, now_ns, anew=True)
                if reader is self._finisher:
                    self._finisher = None
            else:
                mark(reader, now_ns, anew=False)
        if reader.frame_placed and (held_gain != read_bytes or not held_bytes):
            reader.frame_placed = False
        reserved_bytes = 0
        if reader.granted_reserved or reader.held_reserved_bytes:
            columns = column_bytes if reader.granted_reserved else 0
            reserved_bytes = self._settle_reserved(reader, granted_bytes, held_before, pending_bytes) + columns
            self._reserve_used += columns
            self._ordinary_end += columns
        elif self._starved_since_ns is not None:
            self._served_since += read_bytes
            if self._served_since >= self.single_max_bytes:
                self._starved_since_ns, self._served_since = now_ns, 0
        if self._waiting:
            self._lines.served(reader, read_bytes)
        if not pending_bytes:
            return None
        self._requests += pending_requests
        lease = Lease(self, pending_bytes + column_bytes, owner, pending_requests)
        lease.tenant = reader.tenant
        lease.reserved_bytes = reserved_bytes
        if self._hunter is not None:
            self._hunter.watch(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Release a lease whose requests are answered, or whose connection is closed.

        Raises ForeignLease if it is not ours.
        """
        # The same as in the base class, written out: a call to it would cost as much again.
        if lease.pool is not self:
            raise ForeignLease(lease)
        lease.pool = None
        self._used -= lease.size_bytes
        self._requests -= lease.requests
        if lease.tenant is not None:
            lease.tenant.used_bytes -= lease.size_bytes
        if self._waiting or lease.reserved_bytes:
            self._returned(lease.reserved_bytes, lease.tenant)
        if self._hunter is not None:
            self._hunter.forget(lease)

    def recover_leaks(self) -> list[Leak]:
        """Take back leases that were dropped without release, and their requests; call `wake` after it."""
        leaks = super().recover_leaks()
        for leak in leaks:
            self._requests -= leak.requests
            if leak.tenant is not None:
                leak.tenant.used_bytes -= leak.size_bytes
            self._returned(leak.reserved_bytes, leak.tenant)
        return leaks

    def refused_by(self, owner: int) -> HoldKind:
        """Why a reader that waits was refused: the bytes are used up, or the number of requests."""
        reader = self._waiting.get(owner)
        return reader.reason if reader is not None else HoldKind.REQUEST_MEMORY

    # -- the queue ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether any reader is refused; otherwise `wake` need not be called."""
        return bool(self._waiting)

    def assign(self, owner: int, tenant: str) -> None:
        """Count what `owner` uses from now on for this tenant; its earlier leases count where they were.

        One tenant alone may use everything. When several tenants wait, turns go to the tenant that holds least and was
        served least. So a tenant borrows what no other wants, and returns it as its requests are answered.
        """
        reader = self._readers.get(owner) or self._new_reader(owner)
        waits = owner in self._waiting
        if waits:
            self._lines.leave(reader)
        self._part(reader)
        joined = self._tenants.get(tenant)
        if joined is None:
            joined = self._tenants[tenant] = Tenant(tenant)
        reader.tenant, reader.served_bytes, reader.frame_placed = joined, None, False
        joined.connections += 1
        joined.used_bytes += reader.held_bytes
        if reader.has_turn:
            joined.promised_bytes += reader.promised_bytes
        if waits:
            self._lines.join(reader)
            if not reader.has_turn:
                self._turns.line_up(reader)
        self._lines.changed(joined)

    def wake(self, now_ns: int) -> list[int]:
        """Give turns to waiting readers, as far as free bytes and requests allow, in the order of `fair_queue`."""
        if not self._waiting:
            return []
        lines, owners = self._lines, list[int]()
        requests_left = self.requests_max - self._requests - len(self._turns)
        while requests_left > len(owners) and (reader := lines.first(ANY)) is not None:
            room = self._room()
            if room < reader.useful_bytes(self._useful_bytes):
                break
            self._turns.give(reader, min(reader.want_bytes, room))
            owners.append(reader.owner)
        if owners:
            self._depletion.stop(now_ns)
        while requests_left > len(owners) and (reader := lines.first(WHOLE)) is not None:
            if reader.whole_bytes > self.reserve_bytes - self._reserve_used - self._turns.reserve_promised:
                break
            self._turns.give(reader, reader.whole_bytes, reserved=True)
            owners.append(reader.owner)
        if self._finisher is None:
            self._finisher = self._next_finisher()
        first = self._finisher
        if first is not None and first.owner in self._waiting and not first.has_turn and requests_left > len(owners):
            self._turns.give(first, 0)
            owners.append(first.owner)
        return owners

    def pause(self, owner: int, now_ns: int, *, excused: bool = True) -> None:
        """`owner` stops reading for a reason of its own: it gives up its place until it asks again.

        If `excused`, the time until then does not count as slowness. It counts for a client that does not receive its
        responses: what it holds (commands that were read and cannot be answered) becomes free only if it does.
        """
        reader = self._readers.get(owner)
        if reader is not None:
            self._leave(reader, now_ns)
            if reader.stopped_ns is None and excused:
                reader.stopped_ns = now_ns
            if not reader.held_bytes:
                reader.frame_placed = False
            if reader is self._finisher:
                self._finisher = None

    def forget(self, owner: int, now_ns: int) -> None:
        """Release all that a closed connection holds. Its leases are released on their own."""
        reader = self._readers.pop(owner, None)
        if reader is not None:
            self._leave(reader, now_ns)
            self._part(reader)
            self._used -= reader.held_bytes + reader.granted_bytes
            self._held_bytes -= reader.held_bytes
            reserved_bytes = reader.held_reserved_bytes + (reader.granted_bytes if reader.granted_reserved else 0)
            self._reserve_used -= reserved_bytes
            self._reserve_held -= reader.held_reserved_bytes
            self._ordinary_end -= reserved_bytes
            if reader is self._finisher:
                self._finisher = None

    def evict(self, now_ns: int) -> list[int]:
        """Return the owners to disconnect: slow holders of unfinished frames that others wait for, largest first.

        Pending requests are answered in time, so no owner is evicted unless unfinished frames hold more than half of
        the ordinary part, and only as many as needed to get below that. Call it a few times a second.
        """
        excess_bytes = self._held_bytes - self.ordinary_bytes // 2
        if excess_bytes <= 0 or self._starved_since_ns is None:
            return []
        starved_ns = now_ns - self._starved_since_ns
        owners = slow_owners(self._readers.values(), excess_bytes, starved_ns, now_ns)
        self._evicted_total += len(owners)
        return owners

    # -- what everybody may see --------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int) -> RequestMemorySnapshot:
        """Return one moment for metrics and the admin port."""
        reading_bytes = sum(reader.granted_bytes for reader in self._readers.values())
        return RequestMemorySnapshot(
            size_bytes=self.size,
            used_bytes=self._used,
            used_bytes_max=max(self._used, self._used_bytes_max),
            available_bytes=self.available,
            held_bytes=self._held_bytes,
            reading_bytes=reading_bytes,
            pending_bytes=self._used - self._held_bytes - reading_bytes,
            reserve_bytes=self.reserve_bytes,
            reserve_used_bytes=self._reserve_used,
            requests=self._requests,
            requests_max=self.requests_max,
            depleted_percent=self._depletion.percent(now_ns),
            depleted_ms=self._depletion.total_ns(now_ns) // NS_PER_MS,
            evicted_total=self._evicted_total,
            finisher=None if self._finisher is None else self._finisher.owner,
            muted=self._turns.snapshot(),
            waits=self._waits.snapshot(now_ns),
        )

    # -- tenants -----------------------------------------------------------------------------------------------------

    def _new_reader(self, owner: int) -> Reader:
        nobody = self._tenants[NOBODY]
        nobody.connections += 1
        reader = self._readers[owner] = Reader(owner, nobody)
        return reader

    def _part(self, reader: Reader) -> None:
        """Remove a reader that is in no queue from its tenant, and forget a tenant without readers."""
        tenant = reader.tenant
        tenant.connections -= 1
        tenant.used_bytes -= reader.held_bytes
        if reader.has_turn:
            tenant.promised_bytes -= reader.promised_bytes
        if tenant.connections or tenant.name == NOBODY:
            self._lines.changed(tenant)
        else:
            del self._tenants[tenant.name]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _grant_with_care(self, reader: Reader, want_bytes: int, missing_bytes: int, now_ns: int) -> int:
        """Grant when readers wait, a bound is near, or this reader was stopped before."""
        had_turn = reader.has_turn and not reader.turn_reserved
        reader.called = reader.has_turn and reader.turn_reserved
        self._turns.end(reader)
        self._lines.withdraw(reader, WHOLE)  # until it has looked again
        reader.want_bytes, reader.missing_bytes = want_bytes, missing_bytes
        if self._requests + len(self._turns) >= self.requests_max:
            return self._refuse(reader, HoldKind.REQUEST_COUNT, now_ns)
        if reader is self._finisher:
            return self._admit(reader, min(want_bytes, missing_bytes), now_ns)
        room = self._room()
        if room >= reader.useful_bytes(self._useful_bytes):
            if not had_turn and len(self._waiting) > len(self._turns):
                # Readers before it come first; the caller that freed this room is about to wake them.
                return self._refuse(reader, next(iter(self._waiting.values())).reason, now_ns)
            return self._admit(reader, min(want_bytes, room), now_ns)
        self._depletion.start(now_ns)
        if self._starved_since_ns is None:
            self._starved_since_ns, self._served_since = now_ns, 0
        self._refuse(reader, HoldKind.REQUEST_MEMORY, now_ns)
        if self._next_finisher() is not reader:
            return 0
        self._finisher = reader
        return self._admit(reader, min(want_bytes, missing_bytes), now_ns)

    def _admit(self, reader: Reader, nbytes: int, now_ns: int) -> int:
        if reader.owner in self._waiting and reader.stopped_ns is not None:
            self._waits.observe(now_ns - reader.stopped_ns, now_ns)
        self._leave(reader, now_ns)
        if reader.stopped_ns is not None:
            reader.mark_ns = min(now_ns, reader.mark_ns + now_ns - reader.stopped_ns)
            reader.stopped_ns = None
        reader.granted_bytes = nbytes
        self._used += nbytes
        return nbytes

    def _settle_reserved(self, reader: Reader, granted_bytes: int, held_before: int, pending_bytes: int) -> int:
        """Charge to the reserve only what remains of a read from it; return how much of that is pending.

        Frames from the reserve are complete, but a command among them may be held until its turn.
        """
        charged_bytes = reader.held_reserved_bytes + (granted_bytes if reader.granted_reserved else 0)
        ordinary_bytes = held_before - reader.held_reserved_bytes
        left_bytes = min(charged_bytes, max(0, reader.held_bytes + pending_bytes - ordinary_bytes))
        reserved_bytes = min(left_bytes, pending_bytes)
        self._reserve_held += left_bytes - reserved_bytes - reader.held_reserved_bytes
        reader.held_reserved_bytes = left_bytes - reserved_bytes
        reader.granted_reserved = False
        self._reserve_used += left_bytes - charged_bytes
        self._ordinary_end += left_bytes - charged_bytes
        return reserved_bytes

    def _returned(self, reserved_bytes: int, tenant: Tenant | None) -> None:
        """Account for bytes of a lease that are free again."""
        self._reserve_used -= reserved_bytes
        self._ordinary_end -= reserved_bytes
        if tenant is not None:
            self._lines.changed(tenant)

    def _refuse(self, reader: Reader, reason: HoldKind, now_ns: int) -> int:
        """Let a reader wait; one that waits already, with or without a turn, keeps its place."""
        reader.reason = reason
        self._turns.wait(reader)
        if reader.stopped_ns is None:
            reader.stopped_ns = now_ns
            self.refused_total += 1
        return 0

    def _leave(self, reader: Reader, now_ns: int) -> None:
        """End the wait of a reader, if it waits."""
        if self._turns.leave(reader) and not self._waiting:
            self._depletion.stop(now_ns)
            self._starved_since_ns = None

    def _room(self) -> int:
        """Return the bytes of the ordinary part that are neither used nor promised."""
        return self._ordinary_end - self._used - self._turns.ordinary_promised

    def _next_finisher(self) -> Reader | None:
        """Return the reader that becomes the finisher now, or None.

        There is none if there is a finisher already, or if the bound leaves no room for the rest of a frame. Usually it
        is the first reader with an unfinished frame. If there is no room, a release will make it, unless unfinished
        frames hold all of the ordinary part (earlier finishers paused after they had overdrawn). Then the reader whose
        frame lacks least may go first: the latest of those finishers does fit, so there is always progress.
        """
        if self._finisher is not None or self._turns.holding:
            return None
        first = self._lines.first(HOLDING)
        if first is None or self._fits(first):
            return first
        if self._used - self._reserve_used != self._held_bytes - self._reserve_held:
            return None
        holders = (one for one in self._waiting.values() if one.held_bytes)
        nearest = min(holders, key=self._missing_bytes)
        return nearest if self._fits(nearest) else None

    def _fits(self, reader: Reader) -> bool:
        """Return whether the rest of its frame stays within the bound.

        Ordinary reads at the same time do not matter: they end at their part, and from there any rest of any frame
        fits.
        """
        return self._used + self._missing_bytes(reader) < self._ordinary_end + self.single_max_bytes

    def _missing_bytes(self, reader: Reader) -> int:
        """Return how many bytes its frame lacks at most."""
        if reader.held_bytes < LENGTH_BYTES:
            return self.single_max_bytes - reader.held_bytes
        return reader.missing_bytes
