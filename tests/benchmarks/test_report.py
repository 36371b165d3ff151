# SPDX-License-Identifier: Apache-2.0
"""The table says what the samples say, and nothing more."""

from __future__ import annotations

import pytest

from benchmarks.loads import COST, P50, RATE
from benchmarks.report import BEFORE, LIMIT, NATS, PEER, PENSTOCK, Sample, as_json, markdown, summarize

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


def test_processor_time_stands_beside_the_first_figure_of_a_load_for_each_broker() -> None:
    samples = [
        *rounds("latency-1k", P50, [0.5], [1.5]),
        *rounds("latency-1k", "p99 ms", [0.7], [2.5]),
        *rounds("latency-1k", COST, [150], [321]),
    ]

    lines = [[cell.strip() for cell in line.split("|")[1:6]] for line in markdown(summarize(samples)).splitlines()]

    assert lines[0] == ["load", "figure", "penstock", "µs/entry", "pulsar"]
    assert lines[2:] == [["latency-1k", "p50 ms", "0.5", "150", "1.5"], ["latency-1k", "p99 ms", "0.7", "", "2.5"]]
    assert "321" in markdown(summarize(samples))


@pytest.mark.parametrize(
    ("figure", "own", "before", "worse"),
    [
        (RATE, [80, 81, 82], [100, 101, 102], True),
        (RATE, [80, 90, 100], [100, 101, 102], False),  # one round was as good
        (RATE, [97, 97, 97], [100, 101, 102], False),  # within the noise
        (RATE, [80, 81], [100, 101], False),  # too few rounds
        (COST, [12, 13, 14], [9, 10, 11], True),
        (COST, [9, 10, 11], [12, 13, 14], False),
    ],
)
def test_a_row_is_worse_than_before_only_beyond_the_spread(
    figure: str, own: list[float], before: list[float], worse: bool
) -> None:
    samples = [Sample(LOAD, PENSTOCK, figure, value) for value in own]
    samples += [Sample(LOAD, BEFORE, figure, value) for value in before]

    (row,) = summarize(samples)

    assert row.is_worse is worse


def test_other_brokers_have_columns_of_their_own_and_the_machine_says_which_share_is_reached() -> None:
    load = "latency-1k"
    samples = [
        Sample(load, PENSTOCK, P50, 0.5),
        Sample(load, NATS, P50, 0.2),
        Sample(load, LIMIT, P50, 0.4),
        Sample("tail-1k", PENSTOCK, RATE, 100),
        Sample("tail-1k", LIMIT, RATE, 400),
    ]

    rows = summarize(samples)
    head, _, latency, tail = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown(rows).splitlines()]

    assert head[-2:] == ["than nats", "of the limit"]
    assert latency[-2:] == ["0.4×", "80 %"]
    assert tail[head.index("nats") :] == ["–", "", "400", "", "", "", "", "–", "25 %"]
    assert rows[0].ratio is None
    assert dict(rows[0].ratios) == {NATS: pytest.approx(0.4), LIMIT: pytest.approx(0.8)}


def test_rows_for_programs_have_medians_spreads_and_the_number_of_rounds() -> None:
    (row,) = as_json(summarize(rounds(LOAD, RATE, [100, 120, 140], [50])))

    assert (row["load"], row["figure"], row["ratio"], row["verdict"]) == (LOAD, RATE, 2.4, "floor")
    assert row["by_subject"] == {
        PENSTOCK: {"median": 120, "least": 100, "most": 140, "void": None, "rounds": 3},
        PEER: {"median": 50, "least": 50, "most": 50, "void": None, "rounds": 1},
    }
