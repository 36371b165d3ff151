# SPDX-License-Identifier: Apache-2.0
"""Whether a process does anything, as the kernel counts it.

Why: a broker that is silent because it is busy must not be killed like one that is frozen (`processes.lease`).
Where: the supervisor asks about brokers that are silent, twice a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.core.units import NS_PER_S

# Threads that only wait for something wake up now and then; a loop that works uses a processor, or what it gets of one.
WORKS_RATIO: Final = 0.05
_NS_PER_TICK: Final = NS_PER_S // os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name, which is in parentheses and may contain anything.
_STATE, _USER, _SYSTEM = 0, 11, 12
# It waits in the kernel, for a disk or for memory on one; a signal would not end it.
_UNINTERRUPTIBLE: Final = "D"


class Work:
    """Processor time that one process has used so far."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/stat")
        self._used_ns = 0

    def goes_on(self, elapsed_ns: int) -> bool:
        """Whether it has worked since the last call, which was so long ago."""
        try:
            fields = self._path.read_text().rpartition(")")[2].split()
        except OSError:  # It has ended.
            return False
        before_ns, self._used_ns = self._used_ns, (int(fields[_USER]) + int(fields[_SYSTEM])) * _NS_PER_TICK
        return fields[_STATE] == _UNINTERRUPTIBLE or self._used_ns - before_ns >= WORKS_RATIO * elapsed_ns
