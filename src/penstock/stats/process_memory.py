# SPDX-License-Identifier: Apache-2.0
"""The memory of this process: what the operating system says, and what the rows of the budget account for.

Where: snapshots, and the sensor of adaptive throttling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.governance.resident_memory import ResidentMemory
from penstock.stats.process_use import ResidentBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def give_back() -> bool:
    """Let the allocator return free memory to the operating system; returns whether it could be asked.

    Blocks for some milliseconds; call it in a thread. Only glibc has it: others return memory by themselves, or never.
    """
    import ctypes  # noqa: PLC0415 -- half a megabyte, of which most brokers need nothing

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


class ProcessMemory(NamedTuple):
    """One measurement, in bytes."""

    limit: int  # memoryLimitMB; 0: unknown
    used: int  # without what the allocator keeps
    resident: int
    owners: Mapping[str, int]  # the rows of the budget

    @property
    def part(self) -> float:
        """The part of the limit that is in use."""
        return self.used / self.limit if self.limit > 0 else 0.0


class MemorySensor:
    """Measures when called."""

    def __init__(
        self,
        limit_bytes: int,
        owners: Callable[[], Mapping[str, int]],
        resident: Callable[[], int] | None = None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._owners = owners
        self._resident = resident or ResidentBytes()
        self._estimate = ResidentMemory()

    def __call__(self) -> ProcessMemory:
        owners, resident = self._owners(), self._resident()
        used = self._estimate.update(resident, sum(owners.values()))
        return ProcessMemory(self._limit_bytes, used, resident, owners)
