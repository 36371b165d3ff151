# SPDX-License-Identifier: Apache-2.0
"""How far a batch of a stream goes, against a real broker, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark import planner
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import read
from penstock.spark.options import parse_read_options
from penstock.spark.planner import Planner
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pulsar

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


@pytest.fixture
def planning(broker: BrokerProcess, partitioned: str) -> Iterator[Planner]:
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
    monkeypatch.setattr(planner, "MEASURED_BYTES_MAX", 5_000)
    start, end = {topic: EARLIEST}, planning.ends([topic])
    assert messages_between(planning, start, planning.limited(start, end, 1_500, None))[topic] == 1_500


def test_nothing_waits_in_partitions_that_nobody_has_written_to(planning: Planner) -> None:
    topics = planning.partitions()
    assert planning.ends(topics) == dict.fromkeys(topics, EARLIEST)
    start = dict.fromkeys(topics, EARLIEST)
    assert planning.limited(start, start, 10, None) == start
