# SPDX-License-Identifier: Apache-2.0
"""Memory of commands under way: what each connection's waiting commands hold, and when it must stop asking.

Why: a request that has to wait (for the disk, for a thread, for another client) is twenty bytes on the wire and some
kilobytes in memory: the decoded command, a task, the stack it waits in. Without a bound a client that sends a hundred
thousand of them takes a gigabyte, and the answers to all of them after it is gone.
Where: one row of the memory budget, of which each session has an `Account`. A session takes the price of a command from
it, mutes its connection while `must_wait`, and unmutes it when a command ends and `may_go_on`.

What must hold
- A connection without a waiting command may always start one, however full the row is. So nobody waits for commands of
  others, and a muted connection is unmuted at the latest when the last of its own commands ends.
- Bytes in use are therefore at most the row, and the price of two commands for each connection. So that this is not two
  hundred times the largest schema, large commands together have as much as the row, or one of them; what does not fit
  is refused, and its client tries again.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import KIB, MIB
from penstock.governance.memory_row import MemoryRow

# A request that waits: task, coroutines, callbacks, and the answer that it makes (measured: 4 to 6 KiB).
WAITING_BYTES: Final = 6 * KIB
# A decoded command takes this many times its bytes (measured: 2 for one long text, 6 for pairs of texts, 12 for message
# ids).
DECODED_RATIO: Final = 8
# From this price on a command is large: a schema, thousands of hash ranges. 64 KiB on the wire.
LARGE_BYTES: Final = WAITING_BYTES + DECODED_RATIO * 64 * KIB
# What one connection may hold, however few others are busy.
SHARE_BYTES_MAX: Final = 4 * MIB
SHARE_BYTES_MIN: Final = 32 * KIB


def price(command_bytes: int) -> int:
    """How many bytes of memory a command of `command_bytes` holds while it waits."""
    return WAITING_BYTES + DECODED_RATIO * command_bytes


class CommandMemory(MemoryRow):
    """The row, and its division among connections."""

    __slots__ = ("busy", "large_bytes")

    def __init__(self, size_bytes: int) -> None:
        super().__init__("commands", size_bytes)
        self.busy = 0  # connections with commands under way
        self.large_bytes = 0  # what those of them take that are large

    @property
    def share_bytes(self) -> int:
        """At how many bytes of waiting commands one connection is not read any more."""
        return max(SHARE_BYTES_MIN, min(SHARE_BYTES_MAX, self.size_bytes // (1 + self.busy)))

    def account(self) -> Account:
        """The books of one more connection."""
        return Account(self)


class Account:
    """What one connection's waiting commands hold."""

    __slots__ = ("_closed", "_large_bytes", "_memory", "used_bytes")

    def __init__(self, memory: CommandMemory) -> None:
        self._memory = memory
        self.used_bytes = 0
        self._large_bytes = 0
        self._closed = False

    @property
    def must_wait(self) -> bool:
        """Whether no further command of this connection may be carried out now."""
        memory = self._memory
        return self.used_bytes > 0 and (memory.used_bytes >= memory.size_bytes or self.used_bytes >= memory.share_bytes)

    @property
    def may_go_on(self) -> bool:
        """Whether a connection that had to wait need not any more: half of its share is free, or all of it."""
        memory = self._memory
        return self.used_bytes == 0 or (
            memory.used_bytes < memory.size_bytes and 2 * self.used_bytes <= memory.share_bytes
        )

    def admits(self, nbytes: int) -> bool:
        """Whether a command of this price may begin, as far as others like it go: always, unless it is large."""
        memory = self._memory
        return nbytes < LARGE_BYTES or not memory.large_bytes or memory.large_bytes + nbytes <= memory.size_bytes

    def take(self, nbytes: int) -> None:
        """Charge a command that has begun."""
        if self._closed:
            return
        if nbytes >= LARGE_BYTES:
            self._large(nbytes)
        if self.used_bytes == 0:
            self._memory.busy += 1
        self.used_bytes += nbytes
        self._memory.take(nbytes)

    def give_back(self, nbytes: int) -> None:
        """A command has ended. After `close` this does nothing: all was given back."""
        if self._closed or nbytes == 0:
            return
        if nbytes >= LARGE_BYTES:
            self._large(-nbytes)
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0, "a connection gave back more than its commands had taken"
        if self.used_bytes == 0:
            self._memory.busy -= 1
        self._memory.give_back(nbytes)

    def close(self) -> None:
        """The connection is gone, and its commands are cancelled."""
        self._large(-self._large_bytes)
        if self.used_bytes:
            self._memory.busy -= 1
            self._memory.give_back(self.used_bytes)
            self.used_bytes = 0
        self._closed = True

    def _large(self, nbytes: int) -> None:
        self._large_bytes += nbytes
        self._memory.large_bytes += nbytes
