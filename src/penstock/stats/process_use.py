# SPDX-License-Identifier: Apache-2.0
"""What the operating system says of this process. Where: snapshots, and the sensor of adaptive throttling."""

from __future__ import annotations

import os
import resource
import time
import weakref
from typing import Final

from penstock.stats.server_snapshot import ProcessUse

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
