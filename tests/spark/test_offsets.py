# SPDX-License-Identifier: Apache-2.0
"""Offsets and budgets, without a broker."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.offsets import (
    Plan,
    Segment,
    TopicRange,
    cuts_in,
    cuts_of,
    entries_between,
    from_json,
    packed,
    plan_in,
    segments_by_ids,
    shares,
    to_json,
)

TOPIC = "persistent://public/default/t"
IDS = st.builds(MessageId, st.integers(0, 3), st.integers(0, 1000), st.integers(0, 5))


@given(st.dictionaries(st.sampled_from([f"{TOPIC}-partition-{index}" for index in range(4)]), IDS))
def test_offsets_come_back_from_json_as_they_were(offsets: dict[str, MessageId]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_offsets_of_another_source_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="new checkpointLocation"):
        from_json({TOPIC: "CAEQAA=="})


def test_ids_order_by_ledger_then_entry_then_place_in_the_batch() -> None:
    ids = [EARLIEST, MessageId(1, 5), MessageId(1, 5, 1), MessageId(1, 6), MessageId(2, 0)]
    assert sorted(ids) == ids


@given(st.integers(0, 10**6), st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), max_size=8))
def test_shares_use_the_whole_budget_and_give_nobody_more_than_waits(budget: int, backlogs: dict[str, int]) -> None:
    found = shares(budget, backlogs)
    assert sum(found.values()) == min(budget, sum(backlogs.values()))
    assert all(found[topic] <= waiting for topic, waiting in backlogs.items())


def test_a_partition_with_nothing_to_read_gets_nothing_of_the_budget() -> None:
    assert shares(100, {"idle": 0, "busy": 1000}) == {"idle": 0, "busy": 100}


@given(st.integers(0, 200), st.integers(1, 300), st.integers(1, 9))
def test_the_parts_of_a_range_join_to_the_range(first: int, entries: int, parts: int) -> None:
    start, end = MessageId(7, first), MessageId(7, first + entries)
    edges = [start, *cuts_in(segments_by_ids(start, end), parts), end]
    found = [entries_between(*one) for one in itertools.pairwise(edges)]
    assert sum(found) == entries
    assert max(found) - min(found) <= 1
    assert len(found) in {1, parts}


def test_a_range_over_ledgers_is_cut_where_their_lengths_are_known() -> None:
    start, end = MessageId(1, 40), MessageId(9, 50)
    assert not segments_by_ids(start, end)
    segments = [Segment(start, 10), Segment(MessageId(4, 0), 30), Segment(MessageId(9, 0), 40)]
    assert cuts_in(segments, 4) == [MessageId(4, 10), MessageId(9, 0), MessageId(9, 20)]


@pytest.mark.parametrize(
    ("start", "end", "entries"),
    [
        (MessageId(1, 0), MessageId(1, 0), 0),
        (MessageId(1, 3), MessageId(1, 5), 2),
        (MessageId(1, 3), MessageId(1, 3, 4), 1),
        (EARLIEST, MessageId(1, 5), 5),
        (MessageId(1, 900), MessageId(2, 0), 1),
    ],
)
def test_entries_are_counted_as_far_as_ids_tell(start: MessageId, end: MessageId, entries: int) -> None:
    assert entries_between(start, end) == entries


def ranges_of(messages: dict[str, int]) -> list[TopicRange]:
    return [TopicRange(topic, MessageId(1, 0), MessageId(1, count)) for topic, count in messages.items()]


def test_small_partitions_share_tasks_and_large_ones_have_their_own() -> None:
    messages = {f"small-{number:03}": 50 for number in range(200)} | {"large": 1_000_000}
    tasks = packed(ranges_of(messages), Plan(messages, {}))
    assert [one.topic for one in tasks[0]] == ["large"]
    assert len(tasks) == 2
    many = {f"t-{number}": 1_250 for number in range(16)}
    assert sorted(len(task) for task in packed(ranges_of(many), Plan(many, {}))) == [8, 8]


@given(
    counts=st.lists(st.integers(1, 50_000), min_size=1, max_size=30),
    tasks_min=st.integers(1, 40),
    task_messages_max=st.none() | st.integers(100, 20_000),
)
def test_every_message_is_in_one_task_and_bounds_of_tasks_hold(
    counts: list[int], tasks_min: int, task_messages_max: int | None
) -> None:
    messages = {f"t-{number}": count for number, count in enumerate(counts)}
    ranges = ranges_of(messages)
    cuts = cuts_of(ranges, messages, tasks_min=tasks_min, task_messages_max=task_messages_max)
    tasks = packed(ranges, Plan(messages, cuts), tasks_min=tasks_min, task_messages_max=task_messages_max)
    pieces = sorted(one for task in tasks for one in task)
    for topic, count in messages.items():
        mine = [one for one in pieces if one.topic == topic]
        assert (mine[0].start, mine[-1].end) == (MessageId(1, 0), MessageId(1, count))
        assert all(one.end == other.start for one, other in itertools.pairwise(mine))
    sizes = [sum(one.end.entry_id - one.start.entry_id for one in task) for task in tasks]
    assert len(tasks) >= min(tasks_min, sum(counts)) or len(tasks) >= len(counts)
    if task_messages_max is not None:
        assert max(sizes) <= 2 * task_messages_max


def test_the_tasks_of_a_micro_batch_are_said_by_its_offsets() -> None:
    """A driver that starts again, with other settings and on another cluster, makes the same ranges of them."""
    start, end = {"a": MessageId(1, 0), "b": MessageId(1, 0)}, {"a": MessageId(1, 900), "b": MessageId(1, 9)}
    ranges = [TopicRange(topic, start[topic], stop) for topic, stop in end.items()]
    messages = {"a": 90_000, "b": 9}
    plan = Plan(messages, cuts_of(ranges, messages, tasks_min=4))
    said = json.loads(json.dumps(to_json(end, plan)))
    assert from_json(said) == end
    assert plan_in(said, start) == plan
    lanes = {(one.topic, one.lane): one.start for task in packed(ranges, plan_in(said, start)) for one in task}
    assert lanes == {
        ("a", ""): MessageId(1, 0),
        ("a", "1"): MessageId(1, 225),
        ("a", "2"): MessageId(1, 450),
        ("a", "3"): MessageId(1, 675),
        ("b", ""): MessageId(1, 0),
    }


def test_offsets_of_an_earlier_version_have_a_plan_that_follows_from_them() -> None:
    said = to_json({"a": MessageId(1, 900)})
    assert plan_in(said, {"a": MessageId(1, 400)}) == Plan({"a": 10_000}, {})
