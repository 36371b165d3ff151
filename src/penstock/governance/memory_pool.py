# SPDX-License-Identifier: Apache-2.0
"""Memory that is counted by connection: pools of request memory (KIP-72), and the row of pending commands.

Why: a bound on the *number* of queued requests says nothing about memory; a bound on bytes does. A pool never blocks:
it answers at once, and a connection that is refused is not read.

Where: `RequestMemory` is such a pool, and adds the order in which connections get memory.

A pool only counts; it does not hand out storage. It lends a `Lease` of an exact number of bytes. The bytes themselves
land where the parser wants them, in an arena or in a frame's own buffer, and are charged as they arrive. A lease is an
object rather than a number so that it can be released only once and only to its own pool, and so that its loss can be
detected.

A request that waits (for the disk, a thread or another client) is twenty bytes on the wire and some kilobytes in
memory: the decoded command, a task and its stack. So each session has an `Account` of the row of commands, to which it
charges their prices. It mutes its connection while `must_wait` is true, and unmutes it when a command ends and
`may_go_on` is true. Invariants:

- A connection without a pending command may always start one, even if the row is full. So no connection waits for the
  commands of others, and a muted connection is unmuted at the latest when the last of its own commands ends.
- Used bytes are therefore at most the row plus the price of two commands for each connection. To keep this small, all
  large commands together may use as much as the row, or one of them may. Other large commands are refused, and the
  client retries.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.core.units import KIB, MIB
from penstock.governance.budget import Row

if TYPE_CHECKING:
    from penstock.governance.fair_queue import Tenant


# The value of an absent bound: more than any machine has, and still a signed 64-bit gauge.
UNBOUNDED: Final = 2**63 - 1


class Lease:
    """`size_bytes` lent to `owner` by `pool` (None once released), for `requests` requests not yet answered."""

    __slots__ = ("__weakref__", "owner", "pool", "requests", "reserved_bytes", "size_bytes", "tenant")

    def __init__(self, pool: MemoryPool, size_bytes: int, owner: int = 0, requests: int = 0) -> None:
        self.pool: MemoryPool | None = pool
        self.size_bytes = size_bytes
        self.owner = owner
        self.requests = requests
        self.reserved_bytes = 0  # the part of them from the pool's reserve, if it has one
        self.tenant: Tenant | None = None  # the tenant they count for, in a pool that is divided among tenants


class ForeignLease(ValueError):
    """An object was released that is not a lease of this pool, or was released before. Always a bug of penstock."""

    def __init__(self, lease: object) -> None:
        super().__init__(f"released what this pool has not lent out, or has back already: {lease!r}")


class MemoryPool(Protocol):
    """A non-blocking pool. Every lease from `try_allocate` must be given to `release`."""

    @property
    def size(self) -> int:
        """The total number of bytes that the pool lends."""

    @property
    def available(self) -> int:
        """The number of bytes left; negative while an allocation overdraws."""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether nothing can be lent until a lease is released: `available <= 0`."""

    def try_allocate(self, size_bytes: int, owner: int = 0) -> Lease | None:
        """Lend exactly `size_bytes`, or return None when there is no memory.

        Raises ValueError for a size never lent.
        """

    def release(self, lease: Lease) -> None:
        """Take a lease back. Raises ForeignLease if it is not of this pool or was released before."""


class Leak(NamedTuple):
    """A lease that was dropped without release: its owner, bytes and requests. Always a bug of penstock."""

    owner: int
    size_bytes: int
    requests: int
    reserved_bytes: int = 0
    tenant: Tenant | None = None


class LeakDetector:
    """Detects leases that are dropped without release. A debugging aid: it costs a weak reference per lease.

    A lease may be collected in any thread, so this class only notes it; the pool corrects its counts in
    `recover_leaks`.
    """

    def __init__(self) -> None:
        self._watched: dict[weakref.ref[Lease], Leak] = {}
        self._lost: deque[Leak] = deque()

    def watch(self, lease: Lease) -> None:
        """Note when this lease is collected, unless `forget` is called before."""
        leak = Leak(lease.owner, lease.size_bytes, lease.requests, lease.reserved_bytes, lease.tenant)
        self._watched[weakref.ref(lease, self._died)] = leak

    def forget(self, lease: Lease) -> None:
        """Stop watching a lease that was released."""
        # A weak reference to a living object equals, and hashes like, any other to the same object.
        self._watched.pop(weakref.ref(lease), None)

    def take(self) -> list[Leak]:
        """Return the leaks since the last call."""
        return [self._lost.popleft() for _ in range(len(self._lost))]

    def _died(self, reference: weakref.ref[Lease]) -> None:
        leak = self._watched.pop(reference, None)
        if leak is not None:
            self._lost.append(leak)


class SimpleMemoryPool:
    """A pool of `size_bytes` whose single allocations are at most `single_max_bytes`.

    Unless strict, one free byte is enough for an allocation of any size up to the maximum. So a stream of small
    requests cannot starve a large one, and at most `size_bytes + single_max_bytes - 1` are lent. A strict pool never
    lends more than its size.
    """

    __slots__ = ("_hunter", "_used", "single_max_bytes", "size", "strict")

    def __init__(
        self, size_bytes: int, single_max_bytes: int, *, strict: bool = False, hunter: LeakDetector | None = None
    ) -> None:
        if not 0 < single_max_bytes <= size_bytes:
            raise ValueError(f"want 0 < single_max_bytes <= size_bytes, got {single_max_bytes=} {size_bytes=}")
        self.size = size_bytes
        self.single_max_bytes = single_max_bytes
        self.strict = strict
        self._hunter = hunter
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def available(self) -> int:
        """The number of bytes left; negative while an allocation overdraws."""
        return self.size - self._used

    @property
    def is_out_of_memory(self) -> bool:
        return self._used >= self.size

    def try_allocate(self, size_bytes: int, owner: int = 0) -> Lease | None:
        """Lend exactly `size_bytes` (1 to `single_max_bytes`, else ValueError), or return None."""
        if not 0 < size_bytes <= self.single_max_bytes:
            raise ValueError(f"want an allocation of 1 to {self.single_max_bytes} bytes, got {size_bytes}")
        if self.size - self._used < (size_bytes if self.strict else 1):
            return None
        self._used += size_bytes
        return self._lend(size_bytes, owner, 0)

    def release(self, lease: Lease) -> None:
        """Take a lease back.

        Raises ForeignLease, and changes nothing, if it is not of this pool or was released before.
        """
        if getattr(lease, "pool", None) is not self:
            raise ForeignLease(lease)
        lease.pool = None
        self._used -= lease.size_bytes
        if self._hunter is not None:
            self._hunter.forget(lease)

    def split(self, lease: Lease, size_bytes: int, requests: int) -> Lease:
        """Move a part of a lease to a new one, which is released on its own. Reserved bytes move last."""
        if lease.pool is not self:
            raise ForeignLease(lease)
        assert 0 <= size_bytes <= lease.size_bytes, "a part is not larger than the whole"
        assert 0 <= requests <= lease.requests, "a part is not larger than the whole"
        if self._hunter is not None:
            self._hunter.forget(lease)
        part = Lease(self, size_bytes, lease.owner, requests)
        part.tenant = lease.tenant
        lease.size_bytes -= size_bytes
        lease.requests -= requests
        part.reserved_bytes = max(0, lease.reserved_bytes - lease.size_bytes)
        lease.reserved_bytes -= part.reserved_bytes
        if self._hunter is not None:
            self._hunter.watch(lease)
            self._hunter.watch(part)
        return part

    def recover_leaks(self) -> list[Leak]:
        """Take back leases that were dropped without release, and return them; always empty without a hunter."""
        leaks = self._hunter.take() if self._hunter is not None else []
        for leak in leaks:
            self._used -= leak.size_bytes
        return leaks

    def _lend(self, size_bytes: int, owner: int, requests: int) -> Lease:
        """Make the lease for bytes that `_used` includes already."""
        lease = Lease(self, size_bytes, owner, requests)
        if self._hunter is not None:
            self._hunter.watch(lease)
        return lease


class NoMemoryPool:
    """The pool of a broker without a bound: it lends any number of bytes and counts nothing."""

    size: Final = UNBOUNDED
    available: Final = UNBOUNDED
    is_out_of_memory: Final = False

    def try_allocate(self, size_bytes: int, owner: int = 0) -> Lease:
        return Lease(self, size_bytes, owner)

    def release(self, lease: Lease) -> None:
        """Do nothing: nothing was counted."""


NONE: Final[MemoryPool] = NoMemoryPool()


# A pending request: task, coroutines, callbacks and the response (measured: 4 to 6 KiB).
WAITING_BYTES: Final = 6 * KIB
# The memory of a decoded command divided by its bytes on the wire (measured: 2 for one long text, 6 for pairs of texts,
# 12 for message ids).
DECODED_RATIO: Final = 8
# A command of this price or more is large, such as a schema or thousands of hash ranges: 64 KiB on the wire.
LARGE_BYTES: Final = WAITING_BYTES + DECODED_RATIO * 64 * KIB
# Limits of one connection's share, whatever the number of connections with pending commands.
SHARE_BYTES_MAX: Final = 4 * MIB
SHARE_BYTES_MIN: Final = 32 * KIB


def price(command_bytes: int) -> int:
    """Return the bytes of memory that a command of `command_bytes` holds while it waits."""
    return WAITING_BYTES + DECODED_RATIO * command_bytes


class CommandMemory(Row):
    """The memory row of pending commands, divided among connections."""

    __slots__ = ("busy", "large_bytes")

    def __init__(self, limit_bytes: int) -> None:
        super().__init__("commands", limit_bytes)
        self.busy = 0  # connections with pending commands
        self.large_bytes = 0  # bytes of pending large commands

    @property
    def share_bytes(self) -> int:
        """The bytes of pending commands at which one connection is muted."""
        return max(SHARE_BYTES_MIN, min(SHARE_BYTES_MAX, self.limit_bytes // (1 + self.busy)))

    def account(self) -> Account:
        """Return the account of a new connection."""
        return Account(self)


class Account:
    """The bytes that one connection's pending commands hold."""

    __slots__ = ("_closed", "_large_bytes", "_memory", "used_bytes")

    def __init__(self, memory: CommandMemory) -> None:
        self._memory = memory
        self.used_bytes = 0
        self._large_bytes = 0
        self._closed = False

    @property
    def must_wait(self) -> bool:
        """Whether no further command of this connection may start now."""
        memory = self._memory
        return self.used_bytes > 0 and (
            memory.used_bytes >= memory.limit_bytes or self.used_bytes >= memory.share_bytes
        )

    @property
    def may_go_on(self) -> bool:
        """Whether a muted connection may be unmuted: at least half of its share is free, or none of it is used."""
        memory = self._memory
        return self.used_bytes == 0 or (
            memory.used_bytes < memory.limit_bytes and 2 * self.used_bytes <= memory.share_bytes
        )

    def admits(self, nbytes: int) -> bool:
        """Return whether a command of this price may start.

        A small command always may; a large one if it fits beside the other large ones.
        """
        memory = self._memory
        if nbytes < LARGE_BYTES or not memory.large_bytes or memory.large_bytes + nbytes <= memory.limit_bytes:
            return True
        memory.refused_total += 1
        return False

    def charge(self, nbytes: int) -> None:
        """Charge a command that has started."""
        if self._closed:
            return
        if nbytes >= LARGE_BYTES:
            self._large(nbytes)
        if self.used_bytes == 0:
            self._memory.busy += 1
        self.used_bytes += nbytes
        self._memory.charge(nbytes)

    def release(self, nbytes: int) -> None:
        """Release the bytes of a command that has ended. After `close` this does nothing."""
        if self._closed or nbytes == 0:
            return
        if nbytes >= LARGE_BYTES:
            self._large(-nbytes)
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0, "more was released of a connection than was charged"
        if self.used_bytes == 0:
            self._memory.busy -= 1
        self._memory.release(nbytes)

    def close(self) -> None:
        """Release all bytes: the connection is closed and its commands are cancelled."""
        self._large(-self._large_bytes)
        if self.used_bytes:
            self._memory.busy -= 1
            self._memory.release(self.used_bytes)
            self.used_bytes = 0
        self._closed = True

    def _large(self, nbytes: int) -> None:
        self._large_bytes += nbytes
        self._memory.large_bytes += nbytes
