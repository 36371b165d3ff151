# SPDX-License-Identifier: Apache-2.0
"""One row of the memory budget: how many bytes one kind of object holds, and how many it may hold.

Why: objects that outlive a request (names, properties, unacknowledged ids, keys) have an owner and a bound. Each row is
charged when such an object is created, and released when it ends. Where: the broker has one row for each kind;
`/metrics` shows them all.
"""

from __future__ import annotations


class MemoryRow:
    """Bytes in use and the size of one row.

    Attributes:
        name: the row's name in metrics (`penstock_memory_used_bytes{owner=…}`).
        size_bytes: the limit of the row.
        used_bytes: bytes in use. Only `take` can exceed `size_bytes`.
        refused_total: how often `try_take` returned False.
    """

    __slots__ = ("name", "refused_total", "size_bytes", "used_bytes")

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.refused_total = 0

    @property
    def available_bytes(self) -> int:
        """Bytes left; negative after `take` has exceeded the size."""
        return self.size_bytes - self.used_bytes

    def try_take(self, nbytes: int) -> bool:
        """Charge `nbytes` if they fit; otherwise count a refusal and return False."""
        if nbytes > self.size_bytes - self.used_bytes:
            self.refused_total += 1
            return False
        self.used_bytes += nbytes
        return True

    def take(self, nbytes: int) -> None:
        """Charge `nbytes` even if they do not fit: for objects that exist already, such as stored state."""
        self.used_bytes += nbytes

    def release(self, nbytes: int) -> None:
        """Release `nbytes` that were charged before."""
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0, f"row {self.name} got back more than it had lent"
