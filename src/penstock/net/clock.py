# SPDX-License-Identifier: Apache-2.0
"""The real clock: the only module that reads the time of the operating system.

Why: everything else takes time as an argument, so a test can stop, advance or set it back. Where: app passes one
SystemClock to every edge.
"""

from __future__ import annotations

import time


class SystemClock:
    """Reads the machine's clocks. `wall_ms` never decreases within one process."""

    def __init__(self) -> None:
        self._wall_ms_max = 0

    # Nanoseconds of a clock that only runs forward; for durations. No method: it is read nine times for each entry that
    # comes alone.
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch; for times that users see, never for durations."""
        self._wall_ms_max = max(self._wall_ms_max, time.time_ns() // 1_000_000)
        return self._wall_ms_max
