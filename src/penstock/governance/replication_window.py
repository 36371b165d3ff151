# SPDX-License-Identifier: Apache-2.0
"""Entries on their way to other clusters: how many bytes all replicators may have there, and who gets room next.

Why a window of its own inside outbound memory: a cluster that accepts everything and answers nothing would keep as much
as there is, and the clients of this broker would wait for it. So replicators together have a part, and take turns.
Where: each replicator asks here before it takes entries, and gives back when they are acknowledged.

Theory of operation
    Room.   A replicator has up to TOPIC_BYTES_MAX. While others wait, the one that has waited longest has all that is
            free, and the others an equal part of it.
    Turns.  If what is free is too little for the next entry of the first that waits, the others get nothing until it
            is enough. An entry that is larger than the window goes when nothing else is on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core.units import MIB
from penstock.governance.outbound import Holder

if TYPE_CHECKING:
    from penstock.governance.budget import Row

# The most that one topic may have on its way to one cluster. More would wait there instead of in the log.
TOPIC_BYTES_MAX: Final = 4 * MIB
# The part of the row that all replicators have together.
PART: Final = 4


W = TypeVar("W", bound=Holder)


class ReplicationWindow(Generic[W]):
    """The bytes of all replicators, charged to the row of outbound memory.

    Attributes:
        used_bytes: on their way.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self.used_bytes = 0
        self._waiting: dict[W, None] = {}  # in order

    @property
    def limit_bytes(self) -> int:
        """The most bytes on their way, unless one entry is larger."""
        return self._row.limit_bytes // PART

    def room_bytes(self, waiter: W) -> int:
        """Return how many more bytes it may have."""
        free_bytes = max(0, min(self.limit_bytes - self.used_bytes, self._row.available_bytes))
        if not self.used_bytes:
            free_bytes = max(free_bytes, waiter.wanted_bytes)
        first = next(iter(self._waiting), waiter)
        if first is not waiter:
            free_bytes = free_bytes // (1 + len(self._waiting)) if first.wanted_bytes <= free_bytes else 0
        most_bytes = TOPIC_BYTES_MAX if waiter.out_bytes else max(TOPIC_BYTES_MAX, waiter.wanted_bytes)
        return max(0, min(most_bytes - waiter.out_bytes, free_bytes))

    def charge(self, nbytes: int) -> None:
        """Charge bytes that are on their way now."""
        self.used_bytes += nbytes
        self._row.charge(nbytes)

    def release(self, nbytes: int) -> None:
        """Release bytes that have arrived, or are given up."""
        self.used_bytes -= nbytes
        self._row.release(nbytes)

    def wait(self, waiter: W) -> None:
        """Wait for room; it keeps its place if it waits already."""
        self._waiting.setdefault(waiter)

    def forget(self, waiter: W) -> None:
        """Wait no more."""
        self._waiting.pop(waiter, None)

    def grants(self) -> list[W]:
        """Remove and return those that may continue, in their order."""
        granted: list[W] = []
        for waiter in list(self._waiting):
            if self.room_bytes(waiter) < waiter.wanted_bytes:
                break
            granted.append(waiter)
            del self._waiting[waiter]
        return granted
