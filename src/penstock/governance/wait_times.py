# SPDX-License-Identifier: Apache-2.0
"""How long requests waited: quantiles of the last minutes, and a histogram since the start.

Why our own: exact quantiles need every value. Here values fall into buckets, 32 per octave, so a quantile is at most 3
percent too high and needs few integers whatever the number of requests. The longest wait is exact. Where: `PermitQueue`
observes each request that was granted or timed out; metrics read `snapshot`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import ceil, nan
from typing import Final

from penstock.core.durations import Durations, DurationsSnapshot
from penstock.core.units import NS_PER_S

QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)

# Quantiles cover the current window and the four before it: four to five minutes, as the alert rules do.
WINDOW_NS: Final = 60 * NS_PER_S
WINDOWS: Final = 5

# log2 of the buckets in an octave.
_STEP_BITS: Final = 5


@dataclass(frozen=True, slots=True)
class WaitTimesSnapshot:
    """One moment. Quantiles are NaN when no request has waited."""

    times: DurationsSnapshot  # since the start
    shortest_ns: int  # since the start; 0 before the first
    longest_ns: int
    quantiles_ns: tuple[tuple[float, float], ...]  # (quantile, wait)

    @property
    def count(self) -> int:
        """How many requests have waited, since the start."""
        return self.times.count

    @property
    def sum_ns(self) -> int:
        """How long they have waited together, since the start."""
        return self.times.sum_ns


class _Window:
    __slots__ = ("buckets", "longest_ns", "started_ns")

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns
        self.buckets: Counter[int] = Counter()
        self.longest_ns = 0


class WaitTimes:
    """Records waiting times in nanoseconds of one monotonic clock."""

    __slots__ = ("_longest_ns", "_shortest_ns", "_times", "_windows")

    def __init__(self) -> None:
        self._times = Durations()
        self._shortest_ns: int | None = None
        self._longest_ns = 0
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)

    def observe(self, wait_ns: int, now_ns: int) -> None:
        """Record one wait."""
        self._times.observe(wait_ns)
        self._shortest_ns = wait_ns if self._shortest_ns is None else min(self._shortest_ns, wait_ns)
        self._longest_ns = max(self._longest_ns, wait_ns)
        if not self._windows or now_ns - self._windows[-1].started_ns >= WINDOW_NS:
            self._windows.append(_Window(now_ns))
        window = self._windows[-1]
        window.buckets[_bucket(wait_ns)] += 1
        window.longest_ns = max(window.longest_ns, wait_ns)

    def snapshot(self, now_ns: int) -> WaitTimesSnapshot:
        recent = [window for window in self._windows if now_ns - window.started_ns < WINDOWS * WINDOW_NS]
        buckets: Counter[int] = Counter()
        for window in recent:
            buckets.update(window.buckets)
        longest_ns = max((window.longest_ns for window in recent), default=0)
        return WaitTimesSnapshot(
            self._times.snapshot(),
            self._shortest_ns or 0,
            self._longest_ns,
            tuple(_quantiles(buckets, longest_ns)),
        )


def _quantiles(buckets: Counter[int], longest_ns: int) -> list[tuple[float, float]]:
    if not buckets:
        return [(quantile, nan) for quantile in QUANTILES]
    total = buckets.total()
    ordered = sorted(buckets.items())
    found: list[tuple[float, float]] = []
    seen = at = 0
    upper_ns = 0
    for quantile in QUANTILES:
        while seen < ceil(quantile * total):
            bucket, count = ordered[at]
            seen += count
            at += 1
            upper_ns = _upper_ns(bucket)
        found.append((quantile, min(upper_ns, longest_ns)))
    return found


def _bucket(wait_ns: int) -> int:
    """Return the number of the bucket: the octave and the bits after the leading one."""
    shift = max(0, wait_ns.bit_length() - 1 - _STEP_BITS)
    return (shift << (_STEP_BITS + 1)) + (wait_ns >> shift)


def _upper_ns(bucket: int) -> int:
    """Return the longest wait of the bucket."""
    shift, lead = divmod(bucket, 1 << (_STEP_BITS + 1))
    return ((lead + 1) << shift) - 1
