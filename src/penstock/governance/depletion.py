# SPDX-License-Identifier: Apache-2.0
"""How much of the time reads were refused for lack of memory.

Why: a memory pool that is sometimes empty does its work. One that is empty most of the time is too small, or its
journal is too slow. The used bytes at one moment do not show the difference. Where: `RequestMemory` calls `start` at a
refusal and `stop` when memory is free again; metrics read the result.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S

# The percentage covers the current and the previous window: 30 to 60 seconds if it is read often.
WINDOW_NS: Final = 30 * NS_PER_S


class Depletion:
    """The total time without memory, and the percentage of the recent past."""

    __slots__ = ("_dry_ns", "_previous", "_recent", "_started_ns")

    def __init__(self) -> None:
        self._dry_ns = 0
        self._started_ns: int | None = None
        # Two samples of (when, dry_ns until then); None until somebody first looks or a first spell begins.
        self._previous: tuple[int, int] | None = None
        self._recent: tuple[int, int] | None = None

    def start(self, now_ns: int) -> None:
        """A read was refused for lack of memory. A second call before `stop` changes nothing."""
        if self._started_ns is None:
            self._sample(now_ns)
            self._started_ns = now_ns

    def stop(self, now_ns: int) -> None:
        """Memory is free again. Without a `start` this changes nothing."""
        if self._started_ns is not None:
            self._dry_ns += now_ns - self._started_ns
            self._started_ns = None

    def total_ns(self, now_ns: int) -> int:
        """Return the total time without memory so far."""
        running_ns = 0 if self._started_ns is None else now_ns - self._started_ns
        return self._dry_ns + running_ns

    def percent(self, now_ns: int) -> float:
        """Return the percentage of the recent past, 0 to 100, without memory."""
        since_ns, dry_ns = self._sample(now_ns)
        if now_ns <= since_ns:
            return 0.0
        return 100.0 * (self.total_ns(now_ns) - dry_ns) / (now_ns - since_ns)

    def _sample(self, now_ns: int) -> tuple[int, int]:
        """Start a new window if it is time, and return the start of the older one."""
        here = (now_ns, self.total_ns(now_ns))
        if self._recent is None or self._previous is None:
            self._previous = self._recent = here
        elif now_ns - self._recent[0] >= WINDOW_NS:
            self._previous, self._recent = self._recent, here
        return self._previous
