# SPDX-License-Identifier: Apache-2.0
"""Places of messages at the cluster to which they were copied, and what subscriptions have acknowledged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.exits import CommandFailed
from penstock.cli.migration_places import Marks, Places, Topic, source_of
from penstock.core.position import Position
from penstock.wire.pulsar_pb2 import KeyValue


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted),
    st.lists(st.integers(0, 59), max_size=5),
    st.integers(-1, 70),
    st.integers(0, 20),
)
def test_places_are_those_that_were_read(arrived: list[int], ledger_ends: list[int], at: int, length: int) -> None:
    places, there, ledger_id, entry_id = Places(), {}, 5, 0
    for number, source in enumerate(arrived):
        if number in ledger_ends:
            ledger_id, entry_id = ledger_id + 3, 0
        there[source] = Position(ledger_id, entry_id)
        places.add(source, there[source])
        entry_id += 1
    before = [source for source in arrived if source <= at]
    assert places.through(at) == (there[before[-1]] if before else None)
    within = [there[source] for source in arrived if at <= source <= at + length]
    assert list(places.within(at, at + length)) == within


def test_what_was_stored_twice_there_is_known() -> None:
    places = Places()
    for entry_id, source in enumerate([0, 1, 2, 1, 2, 3]):
        places.add(source, Position(9, entry_id))
    assert places.second_copies == [Position(9, 3), Position(9, 4)]
    assert list(places.within(0, 3)) == [Position(9, entry_id) for entry_id in (0, 1, 2, 5)]


def test_a_topic_is_read_from_its_statistics() -> None:
    def cursor(mark: int, ranges: str = "[]", state: str = "Open") -> dict[str, str]:
        return {"markDeletePosition": f"3:{mark}", "individuallyDeletedMessages": ranges, "state": state}

    stats = {
        "lastConfirmedEntry": "3:20",
        "state": "Fenced",
        "cursors": {
            "a+b": cursor(4, "[(3:5..3:7],(3:9..3:10]]"),
            "pulsar.repl.west": cursor(17),
            "reader-1": cursor(1, state="NoLedger"),
            "__compaction": cursor(0),
        },
    }
    state = Topic.of(stats, "west")
    assert state.cursors == {"a b": Marks(4, ((6, 7), (10, 10)))}
    assert (state.rests, state.behind, state.oldest()) == (True, 3, 5)


@pytest.mark.parametrize(
    ("properties", "said"),
    [([], "were published there"), ([("__MSG_PROP_REPL_SOURCE_POSITION", "4:1")], "deleted and created again")],
)
def test_what_is_no_copy_of_this_topic_stops_the_move(properties: list[tuple[str, str]], said: str) -> None:
    pairs = [KeyValue(key=key, value=value) for key, value in properties]
    with pytest.raises(CommandFailed, match=said):
        source_of(pairs, 3, "persistent://a/b/c")


@given(
    st.frozensets(st.integers(0, 40)),
    st.frozensets(st.integers(0, 40)),
    st.integers(-1, 40),
)
def test_what_was_acknowledged_before_is_not_acknowledged_again_if_it_had_arrived(
    now: frozenset[int], before: frozenset[int], arrived: int
) -> None:
    fresh = Marks(-1, ranges(now)).without(Marks(-1, ranges(before)), through=arrived)
    found = [entry_id for first, last in fresh for entry_id in range(first, last + 1)]
    assert found == sorted(now - {entry_id for entry_id in before if entry_id <= arrived})


def ranges(entry_ids: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """The longest ranges of these entries."""
    firsts = sorted(one for one in entry_ids if one - 1 not in entry_ids)
    lasts = sorted(one for one in entry_ids if one + 1 not in entry_ids)
    return tuple(zip(firsts, lasts, strict=True))
