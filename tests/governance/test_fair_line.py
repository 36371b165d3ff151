# SPDX-License-Identifier: Apache-2.0
"""A line whose members get equal amounts, or amounts by weight."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.governance.fair_queue import FairLine


def serve(
    line: FairLine[str], costs: dict[str, float], turns: int, weights: dict[str, float] | None = None
) -> Counter[str]:
    """Serve members that always want more; returns what each used."""
    used: Counter[str] = Counter()
    for member in costs:
        line.join(member)
    for _ in range(turns):
        member = line.pop()
        line.used(member, costs[member], (weights or {}).get(member, 1.0))
        used[member] += costs[member]  # type: ignore[assignment]
        line.join(member)
    return used


def test_equal_turns_alternate() -> None:
    line: FairLine[str] = FairLine()
    assert serve(line, {"a": 1, "b": 1, "c": 1}, 30) == {"a": 10, "b": 10, "c": 10}


def test_a_member_whose_turns_cost_more_gets_fewer() -> None:
    used = serve(FairLine(), {"large": 1_000, "small": 1}, 4_000)
    assert abs(used["large"] - used["small"]) <= 1_000


def test_leaving_and_joining_again_is_no_way_to_get_more() -> None:
    line: FairLine[str] = FairLine()
    line.join("honest")
    line.join("sly")
    served: Counter[str] = Counter()
    for _ in range(100):
        line.leave("sly")
        line.join("sly")
        member = line.pop()
        line.used(member, 10)
        served[member] += 1
        line.join(member)
    assert served["honest"] == served["sly"]


def test_amounts_are_in_proportion_to_weights() -> None:
    used = serve(FairLine(), {"a": 1, "b": 1}, 4_000, {"a": 3.0, "b": 1.0})
    assert abs(used["a"] - 3 * used["b"]) <= 4


def test_one_that_comes_back_begins_with_the_others_and_has_saved_nothing() -> None:
    line: FairLine[str] = FairLine()
    serve(line, {"a": 1, "b": 1}, 1_000)
    used = serve(line, {"a": 1, "b": 1, "late": 1}, 300)
    assert max(used.values()) - min(used.values()) <= 2


def test_what_was_used_without_waiting_is_held_against_nobody_for_long() -> None:
    line: FairLine[str] = FairLine()
    line.join("a")
    assert line.pop() == "a"
    for _ in range(10_000):
        line.used("a", 0.001)
    used = serve(line, {"a": 0.5, "b": 0.5}, 20)
    assert used["a"] >= used["b"] - 1.5


def test_an_empty_line_has_no_next() -> None:
    line: FairLine[str] = FairLine()
    line.join("a")
    line.leave("a")
    with pytest.raises(IndexError):
        line.pop()


@given(st.lists(st.tuples(st.sampled_from("jlpu"), st.integers(0, 5), st.floats(0, 10)), max_size=300))
def test_members_are_served_once_for_each_time_they_join_and_nothing_piles_up(
    steps: list[tuple[str, int, float]],
) -> None:
    line: FairLine[int] = FairLine()
    waiting: set[int] = set()
    for kind, member, cost in steps:
        if kind == "j":
            line.join(member)
            waiting.add(member)
        elif kind == "l":
            line.leave(member)
            waiting.discard(member)
        elif kind == "u":
            line.used(member, cost)
        elif waiting:
            served = line.pop()
            assert served in waiting
            waiting.discard(served)
        assert len(line) == len(waiting)
        assert all(one in line for one in waiting)
    assert len(line._heap) <= 2 * len(line) + 66  # noqa: SLF001
