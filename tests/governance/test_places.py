# SPDX-License-Identifier: Apache-2.0
"""Who has most of the places, at any moment."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.governance.places import Places


def test_of_two_with_as_many_places_the_one_who_came_to_it_last_has_most() -> None:
    places: Places[str] = Places()
    for key in ("a", "b", "b", "a"):
        places.take(key)
    assert places.most() == "a"


def test_who_has_none_is_forgotten() -> None:
    places: Places[str] = Places()
    places.take("a")
    places.give_back("a")
    assert len(places) == 0
    assert places.of("a") == 0


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"))))
def test_whatever_is_taken_and_given_back_the_counts_are_right_and_nobody_has_more_than_the_most(
    steps: list[tuple[bool, str]],
) -> None:
    places: Places[str] = Places()
    model: Counter[str] = Counter()
    for takes, key in steps:
        if takes:
            places.take(key)
            model[key] += 1
        elif model[key]:
            places.give_back(key)
            model[key] -= 1
        assert all(places.of(key) == model[key] for key in "abcde")
        assert len(places) == len(+model)
        if places:
            assert places.of(places.most()) == max(model.values())
