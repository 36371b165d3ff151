# SPDX-License-Identifier: Apache-2.0
"""The real clock: the only place in penstock that asks the operating system what time it is.

Why: everything that decides takes time as an argument, so that a test can hold it still, jump it or turn it back.
Where: app hands one SystemClock to every edge.
"""

from __future__ import annotations

import time


class SystemClock:
    """Reads the machine's clocks. Its `wall_ms` never steps back within one process."""

    def __init__(self) -> None:
        self._wall_ms_max = 0

    def monotonic_ns(self) -> int:
        """Nanoseconds on a clock that only runs forward; for durations."""
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; for what users mean by time, never for durations."""
        self._wall_ms_max = max(self._wall_ms_max, time.time_ns() // 1_000_000)
        return self._wall_ms_max
