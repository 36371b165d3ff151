# SPDX-License-Identifier: Apache-2.0
"""How long to wait before trying again: twice as long each time, up to a bound, and never quite the same.

Why the jitter: those who were refused together would come back together.
Where: whoever tries again keeps one of its own (one watcher's failures say nothing of another's), and resets it when
the attempt succeeds. Pure: chance is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

FACTOR: Final = 2
JITTER_RATIO: Final = 0.05


class Backoff:
    """The waits of one who tries again, in seconds."""

    __slots__ = ("_chance", "_first_s", "_last_s", "_next_s")

    def __init__(self, chance: Random, *, first_s: float, last_s: float) -> None:
        self._chance = chance
        self._first_s = self._next_s = first_s
        self._last_s = last_s

    def next_s(self) -> float:
        """How long to wait now; within 5 % of what it would be without chance, and never beyond the last."""
        wait_s = self._next_s * self._chance.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        self._next_s = min(self._last_s, self._next_s * FACTOR)
        return min(self._last_s, wait_s)

    def reset(self) -> None:
        """It has worked: begin anew."""
        self._next_s = self._first_s
