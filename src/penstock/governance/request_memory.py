# SPDX-License-Identifier: Apache-2.0
"""Request memory (KIP-72): how many bytes each connection may read now, so that all of them fit in one bound.

Why: clients decide how much they send; without a bound on what has been read and not yet answered, a burst of large
requests ends the process. The bound here is on bytes, `queued.max.request.bytes`, with `queued.max.requests` beside it;
each of them alone stops reading.
Where: a session calls `grant` before every read of its socket and `settle` after it; the run that the read brought
carries a `Lease`, which goes back by `release` when its requests are answered.

Theory of operation
-------------------
*Bytes are charged as they arrive.* A grant charges the room one read may fill; settling charges what it really left
behind: the part of an unfinished frame that is held, and the requests that now wait for an answer. A length announced
costs nothing, so a client that announces much and sends little holds little.

*Ordinary reads never exceed what is available.* When nothing useful is left, readers are refused and wait in one queue,
first come first served. As bytes come free, `wake` gives out turns from its front, only as many as the free bytes can
serve; the bytes of a turn are promised and nobody else gets them. So no reader overtakes another and none is woken in
vain.

*One frame can always be finished.* When all memory is held by unfinished frames, waiting would be for ever. The first
waiting reader that holds such a frame then becomes the **finisher**: it alone may read beyond the size, and only up to
the end of its frame. It held at least one byte of it while everything fitted, therefore what is used stays within

    queued.max.request.bytes + socket.request.max.bytes - 1

at every moment. The next finisher is named when this one's frame is complete and the same bound leaves room for the
next frame's rest. (KIP-72 reserves the announced size and lets any single allocation overdraw; the bound is the same.)

*A slow, half-sent frame goes first.* If others wait and unfinished frames hold more than their share of the size, those
that made no progress while their connections were allowed to read are evicted, largest first. Time spent muted does not
count against a connection.

The file is longer than most because granting, waking and evicting keep the same few sums true, and are read together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB, NS_PER_MS, NS_PER_S
from penstock.governance.dry_spells import DrySpells
from penstock.governance.memory_pool import (
    UNBOUNDED,
    ForeignLease,
    Leak,
    LeakHunter,
    Lease,
    SimpleMemoryPool,
    Tenant,
)
from penstock.governance.muting import MuteReason
from penstock.governance.snapshot import MutedReader, RequestMemorySnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

# A read shorter than this costs more than it brings; whoever would get less waits (unless it wants or lacks less).
USEFUL_BYTES: Final = 4 * KIB

# An unfinished frame makes progress if it grows by this much within this time, that is, at half a megabit a second:
# slower than any link one publishes batches over, and long enough for a lost packet to be sent again.
PROGRESS_BYTES: Final = 64 * KIB
PROGRESS_NS: Final = NS_PER_S

# Pulsar's commands start with their length in four bytes; until they are here nobody knows how long the frame is.
LENGTH_BYTES: Final = 4

# Connections whose tenant is not known (yet) share like one tenant.
NOBODY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The three keys of KIP-72. A bound of zero or less is switched off."""

    request_bytes_max: int  # queued.max.request.bytes
    requests_max: int  # queued.max.requests: requests admitted and not yet answered
    frame_bytes_max: int  # socket.request.max.bytes: one whole frame, its four length bytes included

    def __post_init__(self) -> None:
        if self.frame_bytes_max <= LENGTH_BYTES:
            raise ValueError(f"socket.request.max.bytes must be above {LENGTH_BYTES}, got {self.frame_bytes_max}")
        if 0 < self.request_bytes_max < self.frame_bytes_max:
            raise ValueError(
                f"queued.max.request.bytes={self.request_bytes_max} cannot hold one request of "
                f"socket.request.max.bytes={self.frame_bytes_max}: raise the former, or set it to -1 for no bound"
            )


class _Reader:
    """What one connection has of the memory, and its place in the queue."""

    __slots__ = (
        "granted_bytes", "has_turn", "held_bytes", "mark_held_bytes", "mark_ns", "missing_bytes", "owner",
        "promised_bytes", "reason", "stopped_ns", "tenant", "want_bytes",
    )  # fmt: skip

    def __init__(self, owner: int, tenant: Tenant) -> None:
        self.owner = owner
        self.tenant = tenant
        self.granted_bytes = 0  # charged for a read under way
        self.held_bytes = 0  # charged for an unfinished frame
        self.mark_ns = 0  # last progress of that frame, moved on by the time we did not read
        self.mark_held_bytes = 0  # what it had then
        self.stopped_ns: int | None = None  # since when we do not read it, for whatever reason; None: we do
        # The rest has a meaning only in the queue.
        self.reason = MuteReason.REQUEST_MEMORY
        self.want_bytes = 0
        self.missing_bytes = 0
        self.has_turn = False  # woken, and expected to ask again at once
        self.promised_bytes = 0

    def useful_bytes(self, floor_bytes: int) -> int:
        """The shortest read worth making: a floor, or less if it wants less or if less finishes its frame."""
        useful = min(self.want_bytes, floor_bytes)
        return min(useful, self.missing_bytes) if self.held_bytes else useful

    def is_slow(self, now_ns: int) -> bool:
        """Whether its unfinished frame made no progress for as long as a reader is given."""
        readable_until_ns = now_ns if self.stopped_ns is None else self.stopped_ns
        return readable_until_ns - self.mark_ns > PROGRESS_NS


class RequestMemory(SimpleMemoryPool):
    """The pool all connections of a broker read into, and the order in which they do.

    Owners are connection ids. Per read: `grant`, then `settle`, then `release` of the lease when all is answered.
    While `waiting`, whoever called `settle`, `release`, `pause` or `forget` calls `wake` next, and each owner it names
    asks `grant` again at once, without waiting for its socket to become readable, or is paused or forgotten.
    """

    __slots__ = (
        "_dry_spells",
        "_evicted_total",
        "_finisher",
        "_held_bytes",
        "_holders_waiting",
        "_promised_bytes",
        "_readers",
        "_requests",
        "_tenants",
        "_turns",
        "_used_bytes_max",
        "_useful_bytes",
        "_waiting",
        "requests_max",
    )  # fmt: skip

    def __init__(self, limits: RequestLimits, *, hunter: LeakHunter | None = None) -> None:
        size_bytes = limits.request_bytes_max if limits.request_bytes_max > 0 else UNBOUNDED
        # Strict: in this pool the right to overdraw belongs to the finisher alone.
        super().__init__(size_bytes, limits.frame_bytes_max, strict=True, hunter=hunter)
        self.requests_max = limits.requests_max if limits.requests_max > 0 else UNBOUNDED
        self._useful_bytes = min(USEFUL_BYTES, size_bytes)
        self._readers: dict[int, _Reader] = {}
        self._held_bytes = 0
        self._requests = 0
        self._tenants = {NOBODY: Tenant()}
        self._waiting: dict[int, _Reader] = {}  # in queue order, those with a turn included
        self._holders_waiting = 0  # how many of them hold an unfinished frame
        self._turns = 0
        self._promised_bytes = 0
        self._finisher: _Reader | None = None
        self._dry_spells = DrySpells()
        self._evicted_total = 0
        self._used_bytes_max = 0

    # -- one read ----------------------------------------------------------------------------------------------------
    # Budget: 0.5 µs for grant and settle, as much again for a lease and its release (benchmarks/pool.py). They are paid
    # per read, not per request, which is why some lines below are written out rather than called.

    def grant(self, owner: int, want_bytes: int, missing_bytes: int, now_ns: int) -> int:
        """Charge and return how many bytes `owner` may read now, 1 to `want_bytes`; 0: it must stop and wait.

        `missing_bytes` is what its unfinished frame still lacks as far as known, 0 at a frame boundary. After a grant
        the owner settles, or is forgotten, before it asks again.
        """
        reader = self._readers.get(owner)
        if reader is None:
            reader = self._new_reader(owner)
        if (
            self._waiting
            or self._used + want_bytes > self.size
            or self._requests >= self.requests_max
            or reader.stopped_ns is not None
        ):
            return self._grant_with_care(reader, want_bytes, missing_bytes, now_ns)
        reader.granted_bytes = want_bytes
        self._used += want_bytes
        return want_bytes

    def settle(
        self, owner: int, read_bytes: int, held_bytes: int, pending_bytes: int, pending_requests: int, now_ns: int
    ) -> Lease | None:
        """Replace the charge of a read by what it left: `held_bytes` unfinished in all, `pending_bytes` to be answered.

        What was neither (commands carried out at once, room the read did not fill) is free again. Returns the lease of
        the pending requests, None if there are none.
        """
        reader = self._readers[owner]
        granted_bytes, held_before = reader.granted_bytes, reader.held_bytes
        held_gain = held_bytes - held_before
        assert held_gain + pending_bytes <= read_bytes <= granted_bytes, (
            "kept more than came, or read more than granted"
        )
        used_bytes = self._used
        if used_bytes > self._used_bytes_max:  # noqa: PLR1730 -- max() costs three times the comparison
            self._used_bytes_max = used_bytes
        self._used = used_bytes + held_gain + pending_bytes - granted_bytes
        reader.granted_bytes = 0
        reader.tenant.used_bytes += held_gain + pending_bytes
        if held_bytes or held_before:
            reader.held_bytes = held_bytes
            self._held_bytes += held_gain
            if held_gain != read_bytes or not held_before:  # A frame ended or began: its clock starts anew.
                reader.mark_ns, reader.mark_held_bytes = now_ns, held_bytes
                if reader is self._finisher:
                    self._finisher = None
            elif held_bytes - reader.mark_held_bytes >= PROGRESS_BYTES:
                reader.mark_ns, reader.mark_held_bytes = now_ns, held_bytes
        if not pending_bytes:
            return None
        self._requests += pending_requests
        lease = Lease(self, pending_bytes, owner, pending_requests)
        lease.tenant = reader.tenant
        if self._hunter is not None:
            self._hunter.watch(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """The requests of a lease are answered, or their connection is gone. ForeignLease if it is not ours."""
        # The same as in the base class, written out: a call to it would cost as much again.
        if lease.pool is not self:
            raise ForeignLease(lease)
        lease.pool = None
        self._used -= lease.size_bytes
        self._requests -= lease.requests
        if lease.tenant is not None:
            lease.tenant.used_bytes -= lease.size_bytes
        if self._hunter is not None:
            self._hunter.forget(lease)

    def recover_leaks(self) -> list[Leak]:
        """Take back leases dropped without release, their requests included; call `wake` after it."""
        leaks = super().recover_leaks()
        self._requests -= sum(leak.requests for leak in leaks)
        return leaks

    # -- the queue ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether anybody is refused; nothing needs to be woken otherwise."""
        return bool(self._waiting)

    def assign(self, owner: int, tenant: str) -> None:
        """Count what `owner` uses from now on as this tenant's; its leases so far stay where they are.

        Tenants share by need (max-min): one alone may have everything, and as soon as several wait, turns go to
        whoever has least. So a tenant borrows what nobody wants, and gives it back as its requests are answered.
        """
        reader = self._readers.get(owner) or self._new_reader(owner)
        self._part(reader)
        joined = reader.tenant = self._tenants.setdefault(tenant, Tenant())
        joined.connections += 1
        joined.used_bytes += reader.held_bytes
        if owner in self._waiting:
            joined.waiting[owner] = reader
            joined.promised_bytes += reader.promised_bytes if reader.has_turn else 0

    def wake(self, now_ns: int) -> list[int]:
        """Give turns to those who wait, as far as the free bytes and requests reach.

        Those of one tenant from the front of the queue; of several tenants, whoever has least goes first.
        """
        if not self._waiting:
            return []
        owners: list[int] = []
        requests_left = self.requests_max - self._requests - self._turns
        for reader in self._in_turn():
            room = self._room()
            if requests_left <= 0 or room < reader.useful_bytes(self._useful_bytes):
                break
            self._give_turn(reader, min(reader.want_bytes, room))
            requests_left -= 1
            owners.append(reader.owner)
        if owners:
            self._dry_spells.stop(now_ns)
        if self._finisher is None:
            self._finisher = self._next_finisher()
        finisher = self._finisher
        if requests_left > 0 and finisher is not None and finisher.owner in self._waiting and not finisher.has_turn:
            self._give_turn(finisher, 0)
            owners.append(finisher.owner)
        return owners

    def pause(self, owner: int, now_ns: int) -> None:
        """`owner` stops reading for a reason of its own: it gives up its place until it asks again.

        The time until then does not count as slowness.
        """
        reader = self._readers.get(owner)
        if reader is not None:
            self._leave(reader, now_ns)
            if reader.stopped_ns is None:
                reader.stopped_ns = now_ns
            if reader is self._finisher:
                self._finisher = None

    def forget(self, owner: int, now_ns: int) -> None:
        """`owner` is gone, in whatever state: all it held is free. Its leases come back on their own."""
        reader = self._readers.pop(owner, None)
        if reader is not None:
            self._leave(reader, now_ns)
            self._part(reader)
            self._used -= reader.held_bytes + reader.granted_bytes
            self._held_bytes -= reader.held_bytes
            if reader is self._finisher:
                self._finisher = None

    def evict(self, now_ns: int) -> list[int]:
        """Name the owners to disconnect: slow holders of unfinished frames that others wait for, largest first.

        Pending requests come back by themselves, so nobody is evicted unless unfinished frames hold more than half of
        the size; and no more owners than it takes to get below that. To be called a few times a second.
        """
        excess_bytes = self._held_bytes - self.size // 2
        if excess_bytes <= 0 or not self._waiting:
            return []
        slow = [reader for reader in self._readers.values() if reader.held_bytes and reader.is_slow(now_ns)]
        slow.sort(key=lambda reader: reader.held_bytes, reverse=True)
        owners: list[int] = []
        for reader in slow:
            if excess_bytes <= 0:
                break
            excess_bytes -= reader.held_bytes
            owners.append(reader.owner)
        self._evicted_total += len(owners)
        return owners

    # -- what everybody may see --------------------------------------------------------------------------------------

    def snapshot(self, now_ns: int) -> RequestMemorySnapshot:
        """One moment, for metrics, admin and people."""
        reading_bytes = sum(reader.granted_bytes for reader in self._readers.values())
        return RequestMemorySnapshot(
            size_bytes=self.size,
            used_bytes=self._used,
            used_bytes_max=max(self._used, self._used_bytes_max),
            available_bytes=self.available,
            held_bytes=self._held_bytes,
            reading_bytes=reading_bytes,
            pending_bytes=self._used - self._held_bytes - reading_bytes,
            requests=self._requests,
            requests_max=self.requests_max,
            depleted_percent=self._dry_spells.percent(now_ns),
            depleted_ms=self._dry_spells.total_ns(now_ns) // NS_PER_MS,
            evicted_total=self._evicted_total,
            finisher=None if self._finisher is None else self._finisher.owner,
            muted=tuple(_muted(reader) for reader in self._waiting.values()),
        )

    # -- tenants -----------------------------------------------------------------------------------------------------

    def _new_reader(self, owner: int) -> _Reader:
        nobody = self._tenants[NOBODY]
        nobody.connections += 1
        reader = self._readers[owner] = _Reader(owner, nobody)
        return reader

    def _part(self, reader: _Reader) -> None:
        """Take a reader from its tenant, and forget a tenant without any."""
        tenant = reader.tenant
        tenant.connections -= 1
        tenant.used_bytes -= reader.held_bytes
        if tenant.waiting.pop(reader.owner, None) is not None and reader.has_turn:
            tenant.promised_bytes -= reader.promised_bytes
        if not tenant.connections:
            self._tenants = {name: one for name, one in self._tenants.items() if one.connections or name == NOBODY}

    def _in_turn(self) -> Iterator[_Reader]:
        """Those who wait without a turn, in the order in which they should have theirs."""
        if len(self._tenants) == 1:
            yield from (reader for reader in self._waiting.values() if not reader.has_turn)
            return
        lines = {
            tenant: (reader for reader in tenant.waiting.values() if not reader.has_turn)
            for tenant in self._tenants.values()
            if tenant.waiting
        }
        while lines:
            tenant = min(lines, key=lambda one: one.used_bytes + one.promised_bytes)
            reader = next(lines[tenant], None)
            if reader is None:
                del lines[tenant]
            else:
                yield reader

    # -- inside ------------------------------------------------------------------------------------------------------

    def _grant_with_care(self, reader: _Reader, want_bytes: int, missing_bytes: int, now_ns: int) -> int:
        """Grant when somebody waits, a bound is near, or this reader was stopped before."""
        had_turn = reader.has_turn
        self._end_turn(reader)
        reader.want_bytes, reader.missing_bytes = want_bytes, missing_bytes
        if self._requests + self._turns >= self.requests_max:
            return self._refuse(reader, MuteReason.REQUEST_COUNT, now_ns)
        if reader is self._finisher:
            return self._admit(reader, min(want_bytes, missing_bytes), now_ns)
        room = self._room()
        if room >= reader.useful_bytes(self._useful_bytes):
            if not had_turn and len(self._waiting) > self._turns:
                # Those before it come first; whoever made this room is about to wake them.
                return self._refuse(reader, next(iter(self._waiting.values())).reason, now_ns)
            return self._admit(reader, min(want_bytes, room), now_ns)
        self._dry_spells.start(now_ns)
        self._refuse(reader, MuteReason.REQUEST_MEMORY, now_ns)
        if self._next_finisher() is not reader:
            return 0
        self._finisher = reader
        return self._admit(reader, min(want_bytes, missing_bytes), now_ns)

    def _admit(self, reader: _Reader, nbytes: int, now_ns: int) -> int:
        self._leave(reader, now_ns)
        if reader.stopped_ns is not None:
            reader.mark_ns += now_ns - reader.stopped_ns
            reader.stopped_ns = None
        reader.granted_bytes = nbytes
        self._used += nbytes
        return nbytes

    def _refuse(self, reader: _Reader, reason: MuteReason, now_ns: int) -> int:
        """Put it at the end of the queue; one that waits already, with or without a turn, keeps its place."""
        reader.reason = reason
        if reader.owner not in self._waiting:
            self._waiting[reader.owner] = reader.tenant.waiting[reader.owner] = reader
            self._holders_waiting += reader.held_bytes > 0
        if reader.stopped_ns is None:
            reader.stopped_ns = now_ns
        return 0

    def _leave(self, reader: _Reader, now_ns: int) -> None:
        """Out of the queue, if it is in it."""
        self._end_turn(reader)
        if self._waiting.pop(reader.owner, None) is not None:
            del reader.tenant.waiting[reader.owner]
            self._holders_waiting -= reader.held_bytes > 0
            if not self._waiting:
                self._dry_spells.stop(now_ns)

    def _give_turn(self, reader: _Reader, promised_bytes: int) -> None:
        reader.has_turn = True
        reader.promised_bytes = promised_bytes
        self._turns += 1
        self._promised_bytes += promised_bytes
        reader.tenant.promised_bytes += promised_bytes

    def _end_turn(self, reader: _Reader) -> None:
        if reader.has_turn:
            reader.has_turn = False
            self._turns -= 1
            self._promised_bytes -= reader.promised_bytes
            reader.tenant.promised_bytes -= reader.promised_bytes

    def _room(self) -> int:
        """Bytes nobody has and nobody was promised."""
        return self.size - self._used - self._promised_bytes

    def _next_finisher(self) -> _Reader | None:
        """The first in line with an unfinished frame, if nobody finishes now and the bound leaves room for the rest.

        If it does not, a release will come and make the room. Only when none can come, because unfinished frames have
        everything (earlier finishers paused after they had overdrawn), the next in line that fits may go first: the
        latest of those finishers does fit, so somebody always goes on.
        """
        if self._finisher is not None or not self._holders_waiting:
            return None
        for reader in self._waiting.values():
            if reader.held_bytes:
                if reader.has_turn:
                    return None
                if self._fits(reader):
                    return reader
                if self._used != self._held_bytes:
                    return None
        return None

    def _fits(self, reader: _Reader) -> bool:
        """Whether the rest of its frame stays within the bound.

        Ordinary reads meanwhile do not matter: they end at the size, and from there any rest of any frame fits.
        """
        missing_bytes = reader.missing_bytes
        if reader.held_bytes < LENGTH_BYTES:
            missing_bytes = self.single_max_bytes - reader.held_bytes
        return self._used + missing_bytes < self.size + self.single_max_bytes


def _muted(reader: _Reader) -> MutedReader:
    assert reader.stopped_ns is not None, "in the queue, yet reading"
    return MutedReader(
        reader.owner, reader.stopped_ns, reader.reason, reader.want_bytes, reader.held_bytes, reader.missing_bytes
    )
