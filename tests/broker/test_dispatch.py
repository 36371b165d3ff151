# SPDX-License-Identifier: Apache-2.0
"""Dispatch plans: who is active, who gets which entries, and what no plan may ever do."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.subscriptions.dispatcher import ConsumerRank, Share, choose_active, share, take
from penstock.core.hashing import sticky_hash

TOPIC = "persistent://public/default/flights"
ranks = st.lists(st.builds(ConsumerRank, st.integers(0, 2), st.text("abc", min_size=1)), min_size=1, unique=True)
counts_lists = st.lists(st.integers(1, 9), max_size=80)
Run: TypeAlias = tuple[int, list[int] | None, list[int], list[int], int, int]  # the arguments of `share`


@pytest.mark.parametrize(
    ("key", "expected"), [(b"", 0), (b"a", 1009084850), (b"key1", 462881061), (b"hello", 613153351)]
)
def test_the_sticky_hash_is_the_one_clients_compute(key: bytes, expected: int) -> None:
    assert sticky_hash(key) == expected


# -- the active consumer


@given(consumers=ranks, partition=st.integers(-1, 9))
def test_the_active_consumer_has_the_best_priority_and_does_not_depend_on_who_came_first(
    consumers: list[ConsumerRank], partition: int
) -> None:
    active = consumers[choose_active(consumers, partition, TOPIC)]
    backwards = consumers[::-1]

    assert active.priority_level == min(rank.priority_level for rank in consumers)
    assert backwards[choose_active(backwards, partition, TOPIC)] == active


def test_partitions_take_the_best_consumers_in_name_order() -> None:
    consumers = [ConsumerRank(1, "a"), ConsumerRank(0, "d"), ConsumerRank(0, "b"), ConsumerRank(0, "c")]
    assert [consumers[choose_active(consumers, partition, TOPIC)].name for partition in range(5)] == list("bcdbc")


def test_topics_without_partitions_spread_over_the_consumers() -> None:
    consumers = [ConsumerRank(0, name) for name in ("amber", "birch", "cedar", "delta")]
    chosen = Counter(choose_active(consumers, -1, f"{TOPIC}-{number}") for number in range(2_000))
    assert set(chosen) == {0, 1, 2, 3}
    assert min(chosen.values()) > 2_000 / 4 / 2


@given(topic=st.text(max_size=20), names=st.lists(st.text(max_size=5), min_size=2, max_size=5, unique=True))
def test_a_consumer_that_leaves_moves_only_the_topics_it_served(topic: str, names: list[str]) -> None:
    consumers = [ConsumerRank(0, name) for name in names]
    active = consumers[choose_active(consumers, -1, topic)]
    for leaving in consumers:
        others = [rank for rank in consumers if rank is not leaving]
        if leaving is not active:
            assert others[choose_active(others, -1, topic)] == active


# -- entries for one consumer


@given(counts=counts_lists, start=st.integers(0, 80), permits=st.integers(-5, 500))
def test_a_consumer_gets_entries_until_its_permits_are_used_up_and_not_one_more(
    counts: list[int], start: int, permits: int
) -> None:
    entries, messages = take(counts, start, len(counts), permits)

    taken = counts[start : start + entries]
    assert len(taken) == entries
    assert messages == sum(taken)
    assert not taken or permits - sum(taken[:-1]) > 0
    assert start + entries >= len(counts) or messages >= permits


@given(length=st.integers(0, 100), start=st.integers(0, 100), permits=st.integers(-5, 150))
def test_entries_of_one_message_each_need_no_counts(length: int, start: int, permits: int) -> None:
    assert take(None, start, length, permits) == take([1] * length, start, length, permits)


def test_a_batch_larger_than_the_permits_is_sent_whole() -> None:
    assert take([100, 100], 0, 2, 1) == (1, 100)


# -- entries for many consumers


@st.composite
def runs(draw: st.DrawFn) -> Run:
    counts = draw(st.none() | counts_lists)
    n_entries = draw(st.integers(0, 200)) if counts is None else len(counts)
    permits = draw(st.lists(st.integers(-10, 120), min_size=1, max_size=8))
    priorities = draw(st.lists(st.integers(0, 2), min_size=len(permits), max_size=len(permits)))
    return n_entries, counts, permits, priorities, draw(st.integers(0, len(permits) - 1)), draw(st.integers(1, 25))


@given(run=runs())
def test_every_entry_is_planned_at_most_once_and_in_order(run: Run) -> None:
    n_entries, counts, *_ = run
    shares, _ = share(*run)

    edges = [0, *(edge for piece in shares for edge in (piece.start, piece.stop))]
    assert edges[:1] == edges[1:2] or not shares
    assert all(left.stop == right.start for left, right in pairwise(shares))
    assert all(piece.start < piece.stop <= n_entries for piece in shares)
    assert all(piece.messages == sum((counts or [1] * n_entries)[piece.start : piece.stop]) for piece in shares)


@given(run=runs())
def test_permits_bound_every_consumer_up_to_its_last_entry(run: Run) -> None:
    _, counts, permits, *_ = run
    balance = list(permits)
    for piece in share(*run)[0]:
        for entry in range(piece.start, piece.stop):
            assert balance[piece.consumer_index] > 0
            balance[piece.consumer_index] -= counts[entry] if counts else 1


@given(run=runs())
def test_entries_stay_behind_only_when_nobody_has_permits(run: Run) -> None:
    n_entries, _, permits, *_ = run
    shares, _ = share(*run)
    balance = list(permits)
    for piece in shares:
        balance[piece.consumer_index] -= piece.messages
    planned = shares[-1].stop if shares else 0
    assert planned == n_entries or max(balance) <= 0


@given(run=runs())
def test_a_worse_priority_is_served_only_when_the_better_ones_have_no_permits(run: Run) -> None:
    _, _, permits, priorities, *_ = run
    balance = list(permits)
    for piece in share(*run)[0]:
        served = priorities[piece.consumer_index]
        assert all(left <= 0 for left, level in zip(balance, priorities, strict=True) if level < served)
        balance[piece.consumer_index] -= piece.messages


def test_consumers_take_turns_of_a_batch_each() -> None:
    shares, turn = share(50, None, [100, 0, 100], [0, 0, 0], 1, 20)
    assert shares == [Share(2, 0, 20, 20), Share(0, 20, 40, 20), Share(2, 40, 50, 10)]
    assert turn == 3


def test_the_only_consumer_with_permits_gets_the_whole_run_in_one_share() -> None:
    assert share(500, None, [0, 1_000], [0, 0], 0, 20) == ([Share(1, 0, 500, 500)], 2)


def test_runs_of_one_entry_go_round() -> None:
    turn, served = 0, []
    for _ in range(6):
        shares, turn = share(1, None, [10, 10, 10], [0, 0, 0], turn, 20)
        served.append(shares[0].consumer_index)
    assert served == [0, 1, 2, 0, 1, 2]


def test_behind_the_last_consumer_the_turn_is_of_whoever_comes() -> None:
    _, turn = share(1, None, [10, 10], [0, 0], 1, 20)
    assert share(1, None, [10, 10], [0, 0], turn, 20)[0][0].consumer_index == 0
    assert share(1, None, [10, 10, 10], [0, 0, 0], turn, 20)[0][0].consumer_index == 2


def test_nothing_is_planned_and_the_turn_is_kept_when_nobody_has_permits() -> None:
    assert share(5, None, [0, -3], [0, 0], 1, 20) == ([], 1)
