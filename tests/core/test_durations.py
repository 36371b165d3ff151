# SPDX-License-Identifier: Apache-2.0
"""Histograms: each duration is in the first bucket that it fits, and a name is kept as long as somebody uses it."""

from __future__ import annotations

import gc

from penstock.core.durations import BOUNDS_NS, Durations, DurationsByName
from penstock.core.units import NS_PER_S


def test_a_duration_is_in_the_first_bucket_that_it_fits() -> None:
    times = Durations()
    for duration_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1], BOUNDS_NS[-1] + 1):
        times.observe(duration_ns)
    seen = times.snapshot()
    assert (seen.counts[0], seen.counts[1], seen.counts[-2], seen.counts[-1]) == (2, 1, 1, 1)
    assert seen.count == 5


def test_what_happens_several_times_at_once_counts_as_often() -> None:
    times = Durations()
    times.observe(2 * NS_PER_S, 100)
    seen = times.snapshot()
    assert (seen.count, seen.sum_ns) == (100, 200 * NS_PER_S)
    times.observe(0)
    assert seen.count == 100, "a snapshot does not change"


def test_a_name_has_one_histogram_until_nobody_keeps_it() -> None:
    by_name = DurationsByName()
    first, again = by_name.of("b"), by_name.of("b")
    other = by_name.of("a")
    assert first is again
    first.observe(1)
    assert [(name, seen.count) for name, seen in by_name.snapshot().items()] == [("a", 0), ("b", 1)]
    del first, again, other
    gc.collect()
    assert by_name.snapshot() == {}
