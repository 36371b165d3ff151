# SPDX-License-Identifier: Apache-2.0
"""One row of the memory budget: how many bytes one kind of thing holds, and may hold.

Why: what lasts longer than a request (names, properties, unacknowledged ids, keys) belongs to somebody and has a bound.
Each row is charged where such a thing is made and gets its bytes back where the thing ends.
Where: the broker owns one row for each kind; `/metrics` shows them all.
"""

from __future__ import annotations


class MemoryRow:
    """Bytes in use and the size of one row.

    Attributes:
        name: the row's name in metrics (`penstock_memory_used_bytes{owner=…}`).
        size_bytes: how many bytes the row has.
        used_bytes: how many are in use. Above `size_bytes` only through `take`.
        refused_total: how often `try_take` found too little.
    """

    __slots__ = ("name", "refused_total", "size_bytes", "used_bytes")

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.refused_total = 0

    @property
    def available_bytes(self) -> int:
        """How many bytes are left; negative when `take` has gone beyond the size."""
        return self.size_bytes - self.used_bytes

    def try_take(self, nbytes: int) -> bool:
        """Charge `nbytes` if they fit; otherwise count a refusal and return False."""
        if nbytes > self.size_bytes - self.used_bytes:
            self.refused_total += 1
            return False
        self.used_bytes += nbytes
        return True

    def take(self, nbytes: int) -> None:
        """Charge `nbytes` whether they fit or not: for what exists already, such as state that was stored."""
        self.used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """Take back `nbytes` that were charged before."""
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0, f"row {self.name} got back more than it had lent"
