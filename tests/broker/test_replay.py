# SPDX-License-Identifier: Apache-2.0
"""The set of entries to be delivered again, against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.subscriptions.shared import Replay

ids = st.integers(0, 30)


def test_the_lowest_entries_come_first_and_wait_until_they_are_discarded() -> None:
    replay = Replay()
    for entry_id in (9, 3, 4, 7, 5):
        replay.add(entry_id)
    assert replay.next(2) == [3, 4]
    assert replay.next(10) == [3, 4, 5, 7, 9]


def test_nothing_waiting_gives_nothing() -> None:
    assert list(Replay().next(5)) == []
    assert not Replay()


@given(steps=st.lists(st.one_of(st.tuples(st.just("add"), ids), st.tuples(st.just("discard"), st.sets(ids)))))
def test_it_is_the_set_it_seems_to_be(steps: list[tuple[str, int | set[int]]]) -> None:
    replay, model = Replay(), set[int]()
    for kind, value in steps:
        if isinstance(value, int):
            replay.add(value)
            model.add(value)
        else:
            replay.discard(value)
            model -= value
        del kind
        assert bool(replay) == bool(model)
        assert all((entry_id in replay) == (entry_id in model) for entry_id in range(31))
        assert replay.next(5) == sorted(model)[:5]
