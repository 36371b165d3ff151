# SPDX-License-Identifier: Apache-2.0
"""Who has most of the places, at any moment."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.governance.permits import WaitingCounts


def test_of_two_equal_counts_the_key_that_reached_it_last_is_the_largest() -> None:
    counts: WaitingCounts[str] = WaitingCounts()
    for key in ("a", "b", "b", "a"):
        counts.add(key)
    assert counts.largest() == "a"


def test_a_key_with_count_zero_is_forgotten() -> None:
    counts: WaitingCounts[str] = WaitingCounts()
    counts.add("a")
    counts.remove("a")
    assert len(counts) == 0
    assert counts.count("a") == 0


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"))))
def test_after_any_adds_and_removes_the_counts_are_right_and_none_is_above_the_largest(
    steps: list[tuple[bool, str]],
) -> None:
    counts: WaitingCounts[str] = WaitingCounts()
    model: Counter[str] = Counter()
    for takes, key in steps:
        if takes:
            counts.add(key)
            model[key] += 1
        elif model[key]:
            counts.remove(key)
            model[key] -= 1
        assert all(counts.count(key) == model[key] for key in "abcde")
        assert len(counts) == len(+model)
        if counts:
            assert counts.count(counts.largest()) == max(model.values())
