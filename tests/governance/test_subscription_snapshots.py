# SPDX-License-Identifier: Apache-2.0
"""Snapshots of replicated subscriptions: never acknowledge elsewhere what was not acknowledged here."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.position import Position
from penstock.governance.subscription_snapshots import AskedSnapshot, KeptSnapshots, Snapshot

CLUSTERS = ("a", "b", "c")
ASK = "ask"


def snapshot(entry_id: int) -> Snapshot:
    return Snapshot(entry_id, {"b": Position(1, entry_id)})


# One round would not see a message of c that b has and a has not.
@example(moves=[("carry", 1), ("carry", 4), ("publish", 2), ("carry", 5), ("carry", 0), ("carry", 2)])
@given(moves=st.lists(st.tuples(st.sampled_from(["publish", "carry"]), st.integers(0, 5)), max_size=120))
def test_what_a_snapshot_says_of_other_clusters_is_here_whatever_the_lines_do(moves: list[tuple[str, int]]) -> None:
    logs: dict[str, list[int]] = {name: [] for name in CLUSTERS}
    pairs = [(one, other) for one in CLUSTERS for other in CLUSTERS if one != other]
    lines: dict[tuple[str, str], deque[int | str | Position]] = {pair: deque() for pair in pairs}
    asked, taken, published = AskedSnapshot("id", ("b", "c")), [], 0
    lines["a", "b"].append(ASK)
    lines["a", "c"].append(ASK)
    for kind, which in moves:
        if kind == "publish":
            cluster = CLUSTERS[which % 3]
            logs[cluster].append(published)
            for pair in pairs:
                if pair[0] == cluster:
                    lines[pair].append(published)
            published += 1
        elif lines[pairs[which]]:
            source, to = pairs[which]
            carried = lines[source, to].popleft()
            if carried == ASK:
                lines[to, source].append(Position(0, len(logs[to]) - 1))
            elif isinstance(carried, Position):
                if asked.answered(source, carried):
                    whole = asked.take(len(logs["a"]) - 1)
                    if whole is None:
                        lines["a", "b"].append(ASK)
                        lines["a", "c"].append(ASK)
                    else:
                        taken.append(whole)
            else:
                assert isinstance(carried, int)
                logs[to].append(carried)
    for one in taken:
        here = set(logs["a"][: one.entry_id + 1])
        for cluster, position in one.positions.items():
            assert set(logs[cluster][: position.entry_id + 1]) <= here


def test_several_clusters_are_asked_twice_and_one_once() -> None:
    one = AskedSnapshot("id", ("b",))
    assert one.answered("b", Position(1, 5))
    assert one.take(9) == Snapshot(9, {"b": Position(1, 5)})
    two = AskedSnapshot("id", ("b", "c"))
    assert not two.answered("b", Position(1, 5))
    assert not two.answered("b", Position(1, 6))
    assert not two.answered("x", Position(1, 6))
    assert two.answered("c", Position(2, 7))
    assert two.take(9) is None
    assert not two.answered("c", Position(2, 8))
    assert two.answered("b", Position(1, 8))
    assert two.take(11) == Snapshot(11, {"b": Position(1, 5), "c": Position(2, 7)})


def test_a_subscription_forgets_what_it_has_passed() -> None:
    kept = KeptSnapshots()
    for entry_id in (4, 9, 12):
        kept.add(snapshot(entry_id), most=10)
    assert kept.passed(3) is None
    assert kept.passed(10) == snapshot(9)
    assert kept.passed(11) is None
    assert kept.passed(12) == snapshot(12)
    assert len(kept) == 0


def test_a_newer_snapshot_of_the_same_entries_counts() -> None:
    kept = KeptSnapshots()
    kept.add(Snapshot(4, {"b": Position(1, 1)}), most=10)
    kept.add(Snapshot(4, {"b": Position(1, 3)}), most=10)
    assert len(kept) == 1
    assert kept.passed(4) == Snapshot(4, {"b": Position(1, 3)})


@pytest.mark.parametrize("most", [3, 10])
def test_the_snapshots_of_a_long_backlog_are_spread_over_it(most: int) -> None:
    kept = KeptSnapshots()
    for entry_id in range(0, 10_000, 10):
        kept.add(snapshot(entry_id), most=most)
        assert len(kept) <= most
    passed = [one.entry_id for at in range(10_000) if (one := kept.passed(at)) is not None]
    assert passed[0] == 0
    assert passed[-1] == 9_990
    assert max(later - earlier for earlier, later in pairwise(passed)) <= 3 * 10_000 / (most - 1)
