# SPDX-License-Identifier: Apache-2.0
"""Waiting times of retries: doubled each time, up to a maximum, with jitter.

Why jitter: clients that were refused together would retry together. Where: each caller that retries has its own
`Backoff`, and resets it after a success. Pure: the random generator is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

FACTOR: Final = 2
JITTER_RATIO: Final = 0.05


class Backoff:
    """The waiting times of retries, in seconds."""

    __slots__ = ("_chance", "_first_s", "_last_s", "_next_s")

    def __init__(self, chance: Random, *, first_s: float, last_s: float) -> None:
        self._chance = chance
        self._first_s = self._next_s = first_s
        self._last_s = last_s

    def next_s(self) -> float:
        """Return the next waiting time; within 5 % of the time without jitter, and never above the maximum."""
        wait_s = self._next_s * self._chance.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        self._next_s = min(self._last_s, self._next_s * FACTOR)
        return min(self._last_s, wait_s)

    def reset(self) -> None:
        """Start again after a success."""
        self._next_s = self._first_s
