# SPDX-License-Identifier: Apache-2.0
"""Memory of pending commands: how much the waiting commands of each connection hold, and when the connection is muted.

Why: a request that waits (for the disk, a thread or another client) is twenty bytes on the wire and some kilobytes in
memory: the decoded command, a task and its stack. Without a bound, a client that sends a hundred thousand requests
takes a gigabyte.

Where: one row of the memory budget, of which each session has an `Account`. A session charges the price of a command to
its account. It mutes its connection while `must_wait` is true, and unmutes it when a command ends and `may_go_on` is
true.

Invariants:

- A connection without a pending command may always start one, even if the row is full. So no connection waits for the
  commands of others, and a muted connection is unmuted at the latest when the last of its own commands ends.
- Used bytes are therefore at most the row plus the price of two commands for each connection. To keep this small, all
  large commands together may use as much as the row, or one of them may. Other large commands are refused, and the
  client retries.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import KIB, MIB
from penstock.governance.budget import Row

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
