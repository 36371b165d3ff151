# SPDX-License-Identifier: Apache-2.0
"""What a proxy costs is judged pair by pair, against the goals."""

from __future__ import annotations

import pytest

from benchmarks.loads import COST, P50, P99, PROXY_COST, RATE, VOLUME
from benchmarks.proxy_cost import Pair, table, verdict


def pair(load: str, figure: str, direct: float, proxied: float) -> Pair:
    others = {RATE: 1_000.0, VOLUME: 1.0, P50: 1.0, P99: 2.0, COST: 4.0, PROXY_COST: 3.0, "generator core": 0.5}
    return Pair(load, {**others, figure: direct}, {**others, figure: proxied})


@pytest.mark.parametrize(("proxied", "expected"), [(79, "missed"), (80, "reached")])
def test_a_load_of_large_batches_must_reach_four_fifths_of_direct(proxied: float, expected: str) -> None:
    assert verdict("publish-128k", [pair("publish-128k", VOLUME, 100, proxied)]) == expected


@pytest.mark.parametrize(("proxied", "expected"), [(0.75, "reached"), (0.81, "missed")])
def test_receipts_may_come_three_tenths_of_a_millisecond_later(proxied: float, expected: str) -> None:
    assert verdict("latency-1k", [pair("latency-1k", P50, 0.5, proxied)]) == expected


def test_the_median_of_the_ratios_counts_and_not_the_ratio_of_the_medians() -> None:
    pairs = [pair("tail-128k", VOLUME, *one) for one in ((100, 90), (200, 100), (10, 9))]

    assert verdict("tail-128k", pairs) == "reached"
    assert "0.90× (0.50–0.90)" in table({"tail-128k": pairs})


def test_small_entries_have_no_goal() -> None:
    assert verdict("tail-1k", [pair("tail-1k", RATE, 100, 1)]) == ""
