# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations: how many took up to a millisecond, up to ten, and so on, since the start.

Why not quantiles: histograms of several brokers, or of two moments, can be added and subtracted; quantiles cannot.
Where: who measures something observes it, metrics read `snapshot`. `governance.wait_times` adds quantiles of the last
minutes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

# Upper ends of the buckets; the last bucket has none. Disks sync in less than the first, and clients wait 30 s for an
# answer.
BOUNDS_NS: Final = tuple(
    int(ms * NS_PER_MS) for ms in (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000)
)


@dataclass(frozen=True, slots=True)
class DurationsSnapshot:
    """One moment: the count of each bucket of `BOUNDS_NS` and of the one above, and the sum."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_NS) + 1)
    sum_ns: int = 0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Durations:
    """A histogram. One thread observes; any thread may take a snapshot."""

    __slots__ = ("__weakref__", "counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count something that took so long, so many times."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += times
        self.sum_ns += duration_ns * times

    def snapshot(self) -> DurationsSnapshot:
        return DurationsSnapshot(tuple(self.counts), self.sum_ns)


class DurationsByName:
    """A histogram for each name, as long as somebody keeps it: names are the clients' choice."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[str, Durations] = WeakValueDictionary()

    def of(self, name: str) -> Durations:
        """Return the histogram of a name, which whoever observes keeps."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = Durations()
        return found

    def snapshot(self) -> Mapping[str, DurationsSnapshot]:
        return {name: one.snapshot() for name, one in sorted(self._kept.items())}
