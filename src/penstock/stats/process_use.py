# SPDX-License-Identifier: Apache-2.0
"""What the operating system says of this process. Where: snapshots, and the sensor of adaptive throttling."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Final

from penstock.stats.server_snapshot import ProcessUse

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = resource.getpagesize()


def resident_bytes() -> int:
    """Resident memory, which is the second number in Linux's statm, in pages."""
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


def process_use() -> ProcessUse:
    return ProcessUse(resident_bytes=resident_bytes(), cpu_ns=time.process_time_ns())
