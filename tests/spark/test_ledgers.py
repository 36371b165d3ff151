# SPDX-License-Identifier: Apache-2.0
"""Topics that are chains of ledgers, as in Apache Pulsar: limits, lag and tasks by the entries of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.client.message_id import MessageId
from penstock.spark.offsets import TopicRange, cuts_of
from penstock.spark.options import parse_read_options
from penstock.spark.planner import Planner
from tests.spark.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPICS = [f"persistent://public/default/t-{number}" for number in range(2)]
LEDGERS, ENTRIES, ROWS = 8, 30, 5


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """Two topics with the same backlog: one has eight ledgers of 30 entries, the other one ends with one entry."""
    with ScriptedBroker(1) as made:
        for ledger in range(LEDGERS):
            made.add(TOPICS[0], [[b"x"] * ROWS] * ENTRIES, ledger_id=10 + ledger)
        made.add(TOPICS[1], [[b"x"] * ROWS] * (LEDGERS * ENTRIES - 1), ledger_id=5)
        made.add(TOPICS[1], [[b"x"] * ROWS], ledger_id=30)
        yield made


START = dict(zip(TOPICS, (MessageId(10, 0), MessageId(5, 0)), strict=True))
END = dict(zip(TOPICS, (MessageId(17, ENTRIES), MessageId(30, 1)), strict=True))


@pytest.fixture
def planner(broker: ScriptedBroker) -> Iterator[Planner]:
    made = Planner(parse_read_options({"service.url": broker.url, "topics": ",".join(TOPICS)}))
    assert made.ends(TOPICS) == END
    yield made
    made.close()


def read_to(broker: ScriptedBroker, topic: str, place: MessageId) -> int:
    """How many entries lie before a place."""
    return sum((one.ledger_id, one.entry_id) < place[:2] for one in broker.topics[topic])


def test_a_limit_is_divided_by_what_waits_in_all_ledgers(broker: ScriptedBroker, planner: Planner) -> None:
    place = START
    for turn in range(1, 5):
        place = planner.limited(place, END, 400, None)
        read = [read_to(broker, topic, place[topic]) for topic in TOPICS]
        assert max(read) - min(read) <= 4, f"of {LEDGERS * ENTRIES} entries, in turn {turn}"
        assert sum(read) * ROWS == pytest.approx(400 * turn, abs=2 * ROWS)


def test_lag_counts_all_ledgers(planner: Planner) -> None:
    reached = planner.limited(START, END, 400, None)
    lag = planner.lag(reached, END).to_json()
    assert lag["messages"] == pytest.approx(2 * LEDGERS * ENTRIES * ROWS - 400, rel=0.05)


def test_lag_counts_what_is_left_of_an_entry_that_was_begun(planner: Planner) -> None:
    reached = planner.limited(START, END, 406, None)
    assert all(place.batch_index for place in reached.values()), "both are within an entry"
    assert planner.lag(reached, END).to_json()["messages"] == 2 * LEDGERS * ENTRIES * ROWS - 406


def test_where_brokers_do_not_tell_lag_is_null_and_publish_times_divide_the_limit(
    broker: ScriptedBroker, planner: Planner
) -> None:
    broker.tells_backlogs = False
    reached = planner.limited(START, END, 400, None)
    read = [read_to(broker, topic, reached[topic]) for topic in TOPICS]
    assert max(read) - min(read) <= 20, "apart by a slice"
    lag = planner.lag(reached, END).to_json()
    assert (lag["messages"], lag["maxMessages"]) == (None, None)
    assert lag["seconds"] is not None


@pytest.mark.parametrize("start", [MessageId(10, 0), MessageId(-1, -1), MessageId(11, ENTRIES)], ids=str)
def test_every_ledger_may_begin_a_range(planner: Planner, start: MessageId) -> None:
    one = TopicRange(TOPICS[0], start, END[TOPICS[0]])
    segments = planner.segments([one])
    waiting = planner.waiting({one.topic: start}, {one.topic: one.end})[one.topic]
    assert waiting is not None
    cuts = cuts_of([one], {one.topic: waiting}, segments, tasks_min=6)
    ledgers = {segment.start.ledger_id: segment.entries for segment in segments[one.topic]}
    first = 10 if start.ledger_id < 11 else 12
    assert ledgers == dict.fromkeys(range(first, 18), ENTRIES) | ({11: 0} if first == 12 else {})
    assert len(cuts[one.topic]) == 5
