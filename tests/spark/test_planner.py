# SPDX-License-Identifier: Apache-2.0
"""How far a batch of a stream goes, against a real broker, without Spark.

Where brokers count messages, and where the entries have to be read: the results must be the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark import reading_meter
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import read
from penstock.spark.client.watch import Query, Seen, Watch
from penstock.spark.options import parse_read_options
from penstock.spark.planner import Planner
from tests.spark.topics import ask, create_partitions, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pulsar

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


@pytest.fixture(params=["counting", "reading"])
def planning(
    broker: BrokerProcess, partitioned: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planner]:
    if request.param == "reading":
        monkeypatch.setattr(Watch, "counts", False)
    made = Planner(parse_read_options({"service.url": broker.url, "topic": partitioned}))
    yield made
    made.close()


def publish(client: pulsar.Client, topic: str, count: int, **options: Any) -> None:  # noqa: ANN401
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    for number in range(count):
        producer.send_async(b"%05d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def messages_between(planning: Planner, start: dict[str, MessageId], end: dict[str, MessageId]) -> dict[str, int]:
    options = planning.settings.reading
    return {
        topic: sum(len(found) for found in read(planning.cluster, topic, start[topic], stop, options))
        for topic, stop in end.items()
    }


def delivered(broker: BrokerProcess, topics: list[str]) -> int:
    return sum(ask(broker.admin_url, "GET", f"{path_of(topic)}/stats")["msgOutCounter"] for topic in topics)


@pytest.mark.parametrize("batched", [True, False])
def test_a_limit_in_messages_is_met_exactly_and_shared_by_what_waits(
    planning: Planner, broker: BrokerProcess, official: Official, *, batched: bool
) -> None:
    small, large, *_ = topics = planning.partitions()
    client = official(broker.url)
    publish(client, small, 100, batching_enabled=batched)
    publish(client, large, 900, batching_enabled=batched)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    counts = []
    for _ in range(5):
        reached = planning.limited(start, end, 300, None)
        counts.append(messages_between(planning, start, reached))
        start = reached
    totals = [sum(found.values()) for found in counts]
    assert totals == [300, 300, 300, 100, 0]
    assert sum(found[small] for found in counts) == 100
    if not batched:
        assert abs(counts[0][small] - 30) <= 1


@pytest.mark.parametrize("batched", [True, False])
def test_a_broker_is_not_asked_for_much_more_than_a_batch_and_its_planning_take(
    planning: Planner, broker: BrokerProcess, official: Official, *, batched: bool
) -> None:
    topics = planning.partitions()
    for topic in topics:
        publish(official(broker.url), topic, 12_000, batching_enabled=batched)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    for _ in range(2):
        before = delivered(broker, topics)
        reached = planning.limited(start, end, 3_000, None)
        assert delivered(broker, topics) - before < 10_000
        assert sum(messages_between(planning, start, reached).values()) == 3_000
        assert delivered(broker, topics) - before < 20_000
        start = reached


def test_a_limit_in_bytes_counts_what_is_stored(planning: Planner, broker: BrokerProcess, official: Official) -> None:
    topic, *_ = planning.partitions()
    publish(official(broker.url), topic, 50, batching_enabled=False)
    start, end = {topic: EARLIEST}, planning.ends([topic])
    one = messages_between(planning, start, planning.limited(start, end, None, 1))[topic]
    assert one == 1, "an entry that is larger than the limit is still taken, alone"
    found = messages_between(planning, start, planning.limited(start, end, None, 1_000))[topic]
    assert 5 < found < 30


def test_a_large_limit_is_reckoned_from_what_was_seen(
    planning: Planner, broker: BrokerProcess, official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, *_ = planning.partitions()
    publish(official(broker.url), topic, 2_000, batching_enabled=False)
    monkeypatch.setattr(reading_meter, "MEASURED_BYTES_MAX", 5_000)
    start, end = {topic: EARLIEST}, planning.ends([topic])
    assert messages_between(planning, start, planning.limited(start, end, 1_500, None))[topic] == 1_500


def test_nothing_waits_in_partitions_that_nobody_has_written_to(planning: Planner) -> None:
    topics = planning.partitions()
    assert planning.ends(topics) == dict.fromkeys(topics, EARLIEST)
    start = dict.fromkeys(topics, EARLIEST)
    assert planning.limited(start, start, 10, None) == start


@pytest.fixture
def planner_of(broker: BrokerProcess) -> Iterator[Callable[..., Planner]]:
    """A planner with these options; closed after the test."""
    made: list[Planner] = []

    def make(**options: str) -> Planner:
        made.append(Planner(parse_read_options({"service.url": broker.url, **options})))
        return made[-1]

    yield make
    for planning in made:
        planning.close()


PARTITIONS = 16
MESSAGES = 1_500  # of each partition
SPAN_S = 5_000  # of event time, which they have in common
WATERMARK_S = 300
LIMIT = 2_400


@pytest.mark.parametrize("aligned", ["false", "true"])
@pytest.mark.parametrize("counting", [True, False])
def test_partitions_with_batches_of_different_sizes_run_in_step_so_that_a_watermark_drops_no_row(
    broker: BrokerProcess,
    official: Official,
    topic: str,
    planner_of: Callable[..., Planner],
    monkeypatch: pytest.MonkeyPatch,
    *,
    counting: bool,
    aligned: str,
) -> None:
    """A share in entries let partitions with batches of 22 messages run ahead of those with 14, by 1,800 s."""
    if not counting:
        monkeypatch.setattr(Watch, "counts", False)
    create_partitions(broker, topic, PARTITIONS)
    planning = planner_of(topic=topic, alignPartitions=aligned)
    topics = planning.partitions()
    sizes = {one: 14 + index % 9 for index, one in enumerate(topics)}
    for one in topics:
        batches = {"batching_enabled": True, "batching_max_messages": sizes[one], "batching_max_publish_delay_ms": 500}
        publish(official(broker.url), one, MESSAGES, **batches)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    read, newest_s, late_s, steps = dict.fromkeys(topics, 0), 0.0, 0.0, 0
    while start != end and steps < 50:
        start, steps = planning.limited(start, end, LIMIT, None), steps + 1
        reached = {one: min(MESSAGES, max(0, at.entry_id) * sizes[one] + at.batch_index) for one, at in start.items()}
        assert sum(reached.values()) - sum(read.values()) <= LIMIT
        for one in topics:
            if reached[one] > read[one]:
                late_s = max(late_s, newest_s - WATERMARK_S - read[one] / MESSAGES * SPAN_S)
        newest_s, read = max(reached.values()) / MESSAGES * SPAN_S, reached
    assert set(read.values()) == {MESSAGES}
    assert steps == PARTITIONS * MESSAGES // LIMIT
    if aligned == "false":  # Partitions were published one after another here.
        assert late_s <= 0


def test_a_limit_costs_no_reading_where_brokers_count(
    broker: BrokerProcess, official: Official, partitioned: str, planner_of: Callable[..., Planner]
) -> None:
    planning = planner_of(topic=partitioned)
    topics = planning.partitions()
    for one in topics:
        publish(official(broker.url), one, 5_000)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    reached = planning.limited(start, end, 10_000, None)
    assert delivered(broker, topics) == 0
    assert planning.lag(reached, end).to_json()["messages"] == pytest.approx(10_000, rel=0.05)
    assert sum(messages_between(planning, start, reached).values()) == 10_000


def test_a_later_micro_batch_asks_each_partition_once_and_its_lag_is_as_if_asked_anew(
    broker: BrokerProcess, official: Official, partitioned: str, planner_of: Callable[..., Planner]
) -> None:
    planning = planner_of(topic=partitioned)
    topics = planning.partitions()
    for one in topics:
        # Only what is full ends a batch, also on a busy machine.
        sizes = {"batching_max_messages": 5, "batching_max_publish_delay_ms": 60_000}
        publish(official(broker.url), one, 3_000, batching_enabled=True, **sizes)
    end = planning.ends(topics)
    start = planning.limited(dict.fromkeys(topics, EARLIEST), end, 2_000, None)
    asked: list[str] = []
    ask_brokers = planning.watch.ask

    def count(queries: Mapping[str, Query | None]) -> dict[str, Seen | None]:
        asked.extend(queries)
        return ask_brokers(queries)

    planning.watch.ask = count  # type: ignore[method-assign]
    reached = planning.limited(start, end, 2_000, None)
    lag = planning.lag(reached, end).to_json()
    assert sorted(asked) == topics
    anew = planner_of(topic=partitioned)
    anew.sample(reached, end)
    assert messages_between(planning, start, reached) == dict.fromkeys(topics, 500)
    told = anew.lag(reached, end).to_json()
    assert lag["messages"] == told["messages"] == 8_000
    for one in topics:
        assert lag["partitions"][one]["seconds"] <= told["partitions"][one]["seconds"]
        assert lag["partitions"][one]["seconds"] == pytest.approx(told["partitions"][one]["seconds"], abs=60)


def test_lag_is_told_in_messages_and_seconds(planning: Planner, broker: BrokerProcess, official: Official) -> None:
    one, other, *_ = topics = planning.partitions()
    publish(official(broker.url), one, 300)
    publish(official(broker.url), other, 700)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    reached = planning.limited(start, end, 500, None)
    lag = planning.lag(reached, end).to_json()
    assert lag["messages"] == pytest.approx(500, abs=60)
    assert lag["maxMessages"] == max(found["messages"] for found in lag["partitions"].values())
    assert 0 < lag["seconds"] < 600
    assert planning.lag(end, end).to_json() == {"messages": 0, "maxMessages": 0, "seconds": 0.0, "partitions": {}}


def test_a_partition_that_holds_older_messages_is_read_first_if_partitions_are_aligned(
    broker: BrokerProcess, official: Official, partitioned: str, planner_of: Callable[..., Planner]
) -> None:
    planning = planner_of(topic=partitioned, alignPartitions="true")
    older, newer, *_ = topics = planning.partitions()
    publish(official(broker.url), older, 500)
    publish(official(broker.url), newer, 500)
    start, end = dict.fromkeys(topics, EARLIEST), planning.ends(topics)
    first = planning.limited(start, end, 400, None)
    assert messages_between(planning, start, first) == dict.fromkeys(topics, 0) | {older: 400}
    second = planning.limited(first, end, 400, None)
    assert messages_between(planning, first, second)[older] == 100


def test_a_topic_that_is_not_there_has_no_end(planning: Planner) -> None:
    topics = planning.partitions()
    missing = f"{topics[0]}-missing"
    assert planning.watch.ask({missing: None, topics[0]: None})[missing] is None
    assert planning.ends([missing]) == {missing: EARLIEST}


def test_a_pattern_leaves_out_what_pulsar_keeps_for_itself_and_a_name_does_not(
    broker: BrokerProcess, topic: str, planner_of: Callable[..., Planner]
) -> None:
    """Apache Pulsar has such topics in every namespace. They hold what is no message of its users."""
    kept = f"{topic}-s__transaction_pending_ack"
    for name in (topic, kept):
        ask(broker.admin_url, "PUT", path_of(name))
    local = topic.rpartition("/")[2]
    assert planner_of(topicsPattern=f"public/default/{local}.*").partitions() == [topic]
    assert planner_of(topic=kept).partitions() == [kept]


def test_small_topics_that_are_read_from_their_beginning_are_counted_where_brokers_have_counted_nothing_yet(
    broker: BrokerProcess, official: Official, partitioned: str, planner_of: Callable[..., Planner]
) -> None:
    planning = planner_of(topic=partitioned)
    topics = planning.partitions()
    for one in topics:
        publish(official(broker.url), one, 10, batching_enabled=False)
    assert planning.waiting(dict.fromkeys(topics, EARLIEST), planning.ends(topics)) == dict.fromkeys(topics, 200)
