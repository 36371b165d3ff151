# SPDX-License-Identifier: Apache-2.0
"""How much of the time reading was refused for lack of memory.

Why: a pool that is sometimes empty does its work; one that is mostly empty is too small, or its journal too slow. The
number used bytes show at one moment cannot tell the two apart.
Where: `RequestMemory` starts a spell at a refusal and ends it when memory is there again; metrics read the result.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S

# The percentage looks back over the current and the previous of these: 30 to 60 seconds when somebody looks often.
WINDOW_NS: Final = 30 * NS_PER_S


class Depletion:
    """Sums the spells, and remembers enough of the recent past for a percentage."""

    __slots__ = ("_dry_ns", "_previous", "_recent", "_started_ns")

    def __init__(self) -> None:
        self._dry_ns = 0
        self._started_ns: int | None = None
        # Two samples of (when, dry_ns until then); None until somebody first looks or a first spell begins.
        self._previous: tuple[int, int] | None = None
        self._recent: tuple[int, int] | None = None

    def start(self, now_ns: int) -> None:
        """A read was refused for lack of memory. Within a spell this changes nothing."""
        if self._started_ns is None:
            self._sample(now_ns)
            self._started_ns = now_ns

    def stop(self, now_ns: int) -> None:
        """Memory is there again. Outside a spell this changes nothing."""
        if self._started_ns is not None:
            self._dry_ns += now_ns - self._started_ns
            self._started_ns = None

    def total_ns(self, now_ns: int) -> int:
        """Length of all spells so far, a running one included."""
        running_ns = 0 if self._started_ns is None else now_ns - self._started_ns
        return self._dry_ns + running_ns

    def percent(self, now_ns: int) -> float:
        """Share of the recent past, 0 to 100, that was dry."""
        since_ns, dry_ns = self._sample(now_ns)
        if now_ns <= since_ns:
            return 0.0
        return 100.0 * (self.total_ns(now_ns) - dry_ns) / (now_ns - since_ns)

    def _sample(self, now_ns: int) -> tuple[int, int]:
        """Move the window on if it is time to, and return its older end."""
        here = (now_ns, self.total_ns(now_ns))
        if self._recent is None or self._previous is None:
            self._previous = self._recent = here
        elif now_ns - self._recent[0] >= WINDOW_NS:
            self._previous, self._recent = self._recent, here
        return self._previous
