# SPDX-License-Identifier: Apache-2.0
"""How much memory of a process is really in use, although its allocator does not give freed memory back.

Why: the resident size (RSS) of a process rises in a burst and often stays there. The freed memory is used again before
the size rises further, so a throttle that looks at the size alone would never let go. What is freed is known: the rows
of the memory budget account for all large memory.

    in use = resident - kept

`kept` rises by what the rows have freed and the resident size has not lost; it falls by what the rows take without the
size rising, and when the size falls. So growth that no row accounts for counts in full (A1, A2).

Objects take more than their rows say, and what they leave is fragmented. So once the process has not grown beyond its
peak for a minute, what it has more than at its smallest, and no row accounts for, is taken for kept, too, little by
little: publishers could not free it. If the process grows again, that counts in full again.

Where: the sensor of adaptive publish throttling has one.
"""

from __future__ import annotations

from typing import Final

# Calls without a new peak before memory that nobody owns is taken for kept; and the part of it that each call takes.
SETTLED_CALLS: Final = 60
_SETTLING: Final = 0.1


class ResidentMemory:
    """Estimates the memory in use.

    Attributes:
        resident_bytes: at the last call.
        owned_bytes: accounted for by the rows of the budget.
        kept_bytes: freed, and kept by the allocator.
    """

    __slots__ = ("_base_bytes", "_peak_bytes", "_settled", "kept_bytes", "owned_bytes", "resident_bytes")

    def __init__(self) -> None:
        self._base_bytes: int | None = None  # the least that no row accounted for
        self._peak_bytes = 0
        self._settled = 0  # calls without a new peak
        self.resident_bytes = 0
        self.owned_bytes = 0
        self.kept_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Memory in use."""
        return self.resident_bytes - self.kept_bytes

    def update(self, resident_bytes: int, owned_bytes: int) -> int:
        """Take the present sizes into account; returns the memory in use, in bytes."""
        if self.resident_bytes:
            grown, taken = resident_bytes - self.resident_bytes, owned_bytes - self.owned_bytes
            unused = grown - taken  # negative: memory was used again, or given back
            change = min(unused, max(0, -taken))
            self.kept_bytes = min(max(0, self.kept_bytes + change), resident_bytes)
            if grown <= 0:
                self._settle(resident_bytes, owned_bytes)
        unowned = max(0, resident_bytes - owned_bytes)
        self._base_bytes = unowned if self._base_bytes is None else min(self._base_bytes, unowned)
        self._settled += 1
        if resident_bytes > self._peak_bytes:
            self._peak_bytes, self._settled = resident_bytes, 0
        self.resident_bytes, self.owned_bytes = resident_bytes, owned_bytes
        return self.used_bytes

    def _settle(self, resident_bytes: int, owned_bytes: int) -> None:
        """Take some of what nobody owns for kept, if the process has long been at its size."""
        excess = resident_bytes - self.kept_bytes - owned_bytes - (self._base_bytes or 0)
        if self._settled >= SETTLED_CALLS and excess > 0:
            self.kept_bytes += round(excess * _SETTLING)
