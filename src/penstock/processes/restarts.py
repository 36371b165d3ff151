# SPDX-License-Identifier: Apache-2.0
"""When a broker that crashed is started again: at once, then after longer and longer pauses, without end.

Why without end: what made it crash may end by itself, such as a disk that failed. Nobody has to restart all then.
Pure: the caller passes the time.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S

# After the first crash, the second, and so on; the last one is repeated. Clients of a killed broker are back within two
# seconds. A broker that cannot start uses a processor for a second each time: two percent of one at the end.
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
# From this crash on, the broker counts as crash-looping.
OFTEN: Final = 5
# After having served for so long, its crashes are forgotten.
FORGIVEN_S: Final = 60


class Restarts:
    """The crashes of one broker since it served for a minute."""

    def __init__(self) -> None:
        self._crashes = 0
        self._ready_ns: int | None = None  # since when it serves

    @property
    def is_crash_looping(self) -> bool:
        """Whether it crashed so often that it must not be relied on."""
        return self._crashes >= OFTEN

    def ready(self, now_ns: int) -> None:
        """Note that it serves from now on."""
        self._ready_ns = now_ns

    def pause_after_crash(self, now_ns: int) -> float:
        """Note a crash; return the pause before the next start, in seconds."""
        if self._ready_ns is not None and now_ns - self._ready_ns >= FORGIVEN_S * NS_PER_S:
            self._crashes = 0
        self._ready_ns = None
        self._crashes += 1
        return PAUSES_S[min(self._crashes, len(PAUSES_S)) - 1]
