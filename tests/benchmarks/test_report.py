# SPDX-License-Identifier: Apache-2.0
"""The table says what the samples say, and nothing more."""

from __future__ import annotations

import pytest

from benchmarks.loads import P50, RATE
from benchmarks.report import PEER, PENSTOCK, Sample, markdown, summarize

LOAD = "publish-1k-w1000"  # floor 1.2, goal 4


def rounds(load: str, figure: str, own: list[float], peer: list[float]) -> list[Sample]:
    return [Sample(load, PENSTOCK, figure, value) for value in own] + [
        Sample(load, PEER, figure, value) for value in peer
    ]


@pytest.mark.parametrize(("own", "verdict"), [(110, "missed"), (120, "floor"), (399, "floor"), (400, "goal")])
def test_a_rate_is_judged_by_the_ratio_of_medians(own: float, verdict: str) -> None:
    (row,) = summarize(rounds(LOAD, RATE, [own, 1, 10_000], [100, 90, 5_000]))

    assert (row.ratio, row.verdict) == (own / 100, verdict)


def test_less_is_better_for_whatever_is_not_a_rate() -> None:
    (row,) = summarize(rounds("latency-1k", P50, [0.5], [1.5]))

    assert (row.ratio, row.verdict) == (3, "goal")


def test_a_bound_of_its_own_needs_no_peer() -> None:
    (row,) = summarize([Sample("idle", PENSTOCK, "core %", 0.4)])

    assert row.verdict == "floor"


def test_one_void_round_voids_the_ratio() -> None:
    samples = [*rounds(LOAD, RATE, [400, 400], [100]), Sample(LOAD, PENSTOCK, RATE, 1, "the generator was busy")]

    (row,) = summarize(samples)

    assert (row.ratio, row.verdict) == (None, "")
    assert "void" in markdown([row])


def test_the_table_shows_median_and_spread() -> None:
    table = markdown(summarize(rounds(LOAD, RATE, [100, 120, 140], [50])))

    assert "120 (100–140)" in table
    assert "2.4×" in table
