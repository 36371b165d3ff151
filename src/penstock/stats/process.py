# SPDX-License-Identifier: Apache-2.0
"""Figures of the operating system about this process. Where: snapshots, and the sensor of adaptive throttling."""

from __future__ import annotations

import os
import resource
import time
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.governance.resident_memory import ResidentMemory
from penstock.stats.snapshot import ProcessUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_STATM: Final = "/proc/self/statm"
# Seven numbers.
_STATM_BYTES_MAX: Final = 256
_PAGE_BYTES: Final = resource.getpagesize()


def resident_bytes() -> int:
    """Resident memory, which is the second number in Linux's statm, in pages."""
    return ResidentBytes()()


class ResidentBytes:
    """Reads it again and again: a file that stays open costs a tenth of one that is opened each time."""

    __slots__ = ("__weakref__", "_statm")

    def __init__(self) -> None:
        self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._statm)

    def __call__(self) -> int:
        """Return the resident memory of the process that made this object."""
        return int(os.pread(self._statm, _STATM_BYTES_MAX, 0).split()[1]) * _PAGE_BYTES


def process_use() -> ProcessUse:
    return ProcessUse(resident_bytes=resident_bytes(), cpu_ns=time.process_time_ns())


# -- the memory of this process: what the operating system says, and what the rows of the budget account for -----------


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
