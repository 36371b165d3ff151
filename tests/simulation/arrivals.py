# SPDX-License-Identifier: Apache-2.0
"""Messages that arrive irregularly: by chance, in batches, by a timer, in bursts. Each is a mean rate and a seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tests.simulation.quota_world import TICKS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

# Mean gaps and durations, in seconds.
BATCH_GAP_S: Final = 0.7
TIMER_S: Final = 1.0
ON_S: Final = 0.4
OFF_S: Final = 1.2


class Pattern(StrEnum):
    """How messages arrive."""

    STEADY = "steady"  # evenly
    POISSON = "Poisson"  # each by chance
    BATCH = "batches"  # many at once, by chance
    TIMER = "timer"  # many at once, by the clock
    ON_OFF = "on-off"  # evenly for a while, then not at all for a while


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What each broker's publishers send. A pattern and a mean rate (messages per second) by broker."""

    patterns: tuple[Pattern, ...]
    rates: tuple[float, ...]
    seconds: int
    seed: int = 1

    def __call__(self, broker: int, now_s: float, _: random.Random) -> float:
        """Return what arrives in the tick that ends now, as a rate."""
        pattern, rate = self.patterns[broker], self.rates[broker]
        if pattern is Pattern.STEADY:
            return rate
        counts = _by_tick(pattern, rate, self.seconds, self.seed * 1_009 + broker)
        return counts[round(now_s * TICKS_PER_S)] * TICKS_PER_S


@lru_cache(maxsize=256)
def _by_tick(pattern: Pattern, rate: float, seconds: int, seed: int) -> Counter[int]:
    counts: Counter[int] = Counter()
    for at_s, messages in _events(pattern, rate, seconds, random.Random(seed)):
        counts[int(at_s * TICKS_PER_S) + 1] += messages
    return counts


def _events(pattern: Pattern, rate: float, seconds: int, chance: random.Random) -> Iterator[tuple[float, int]]:
    """When messages arrive, and how many."""
    gap_s = {Pattern.POISSON: 1 / rate, Pattern.BATCH: BATCH_GAP_S}.get(pattern)
    at_s = chance.uniform(0, TIMER_S)
    while at_s < seconds:
        if gap_s is not None:
            yield at_s, max(1, round(rate * gap_s))
            at_s += chance.expovariate(1 / gap_s)
        elif pattern is Pattern.TIMER:
            yield at_s, max(1, round(rate * TIMER_S))
            at_s += TIMER_S
        else:
            on_s = chance.expovariate(1 / ON_S)
            burst = rate * (ON_S + OFF_S) / ON_S
            for number in range(int(on_s * burst)):
                yield at_s + number / burst, 1
            at_s += on_s + chance.expovariate(1 / OFF_S)
