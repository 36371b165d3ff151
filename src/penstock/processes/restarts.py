# SPDX-License-Identifier: Apache-2.0
"""When a broker that crashed is started again: at once, then after growing pauses; after five crashes a minute, never.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.core.units import NS_PER_S

CRASHES_MAX: Final = 5
CRASHES_WITHIN_S: Final = 60
# After the first crash, the second, and so on. Clients of a killed broker are back within two seconds.
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0)


class Restarts:
    """The recent crashes of one broker."""

    def __init__(self) -> None:
        self._crashes_ns: deque[int] = deque(maxlen=CRASHES_MAX)

    def after_crash(self, now_ns: int) -> float | None:
        """Return how long to wait before the next start, in seconds; None: it stays down."""
        self._crashes_ns.append(now_ns)
        while now_ns - self._crashes_ns[0] >= CRASHES_WITHIN_S * NS_PER_S:
            self._crashes_ns.popleft()
        count = len(self._crashes_ns)
        return PAUSES_S[count - 1] if count < CRASHES_MAX else None
