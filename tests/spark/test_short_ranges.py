# SPDX-License-Identifier: Apache-2.0
"""Many short ranges read together: the same messages as one after another, on fewer connections and round trips."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.client import short_ranges
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.connection import Connection
from penstock.spark.client.errors import ConnectionLost, DataLost, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.short_ranges import read_many
from penstock.spark.client.watch import Watch
from penstock.spark.offsets import TopicRange
from penstock.spark.options import parse_endpoint
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pulsar

    from penstock.spark.client.messages import Messages
    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

OPTIONS = ReadOptions()
TOPICS, ROWS = 20, 50


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(parse_endpoint({"service.url": broker.url})) as made:
        yield made


@pytest.fixture
def ranges(broker: BrokerProcess, official: Official, topic: str, cluster: Cluster) -> list[TopicRange]:
    """Topics of batches of 2 to 21 messages, each read whole."""
    topics = [f"{topic}-{number}" for number in range(TOPICS)]
    for number, one in enumerate(topics):
        publish(official(broker.url), one, [b"%d/%d" % (number, row) for row in range(ROWS)], batch=number + 2)
    watch = Watch(cluster)
    ends = watch.ask(dict.fromkeys(topics))
    watch.close()
    return [TopicRange(one, EARLIEST, seen.end) for one, seen in ends.items() if seen is not None]


def publish(client: pulsar.Client, topic: str, payloads: list[bytes], *, batch: int) -> None:
    """Store all, in batches of so many messages."""
    results: list[pulsar.Result] = []
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=batch,
        # Only what is full, or flushed, ends a batch. The client refuses what its queue of 1,000 has no room for.
        batching_max_publish_delay_ms=60_000,
        max_pending_messages=len(payloads),
    )
    for payload in payloads:
        producer.send_async(payload, lambda result, _: results.append(result))
    producer.flush()
    producer.close()
    assert len(results) == len(payloads)
    assert {result.name for result in results} == {"Ok"}


def values(found: Any) -> list[bytes]:  # noqa: ANN401 -- messages
    pairs = zip(found.value_starts.tolist(), found.value_stops.tolist(), strict=True)
    return [found.data[start:stop].tobytes() for start, stop in pairs]


def valued(one: TopicRange, found: Messages) -> list[tuple[str, bytes]]:
    """Values with their topics."""
    return [(one.topic, value) for value in values(found)]


def read_together(cluster: Cluster, ranges: Sequence[TopicRange]) -> dict[str, list[bytes]]:
    taken: dict[str, list[bytes]] = {one.topic: [] for one in ranges}
    for topic, value in read_many(cluster, ranges, OPTIONS, valued):
        taken[topic].append(value)
    return taken


def read_apart(cluster: Cluster, ranges: Sequence[TopicRange]) -> dict[str, list[bytes]]:
    return {
        one.topic: [value for found in read(cluster, *one[:3], OPTIONS) for value in values(found)] for one in ranges
    }


def test_ranges_are_read_in_order_and_over_few_connections(
    cluster: Cluster, ranges: list[TopicRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[str] = []
    opened = Connection.__init__

    def count(self: Connection, *given: Any, **options: Any) -> None:  # noqa: ANN401
        connections.append("another")
        opened(self, *given, **options)

    monkeypatch.setattr(Connection, "__init__", count)
    taken = read_together(cluster, ranges)
    assert list(taken.values()) == [[b"%d/%d" % (number, row) for row in range(ROWS)] for number in range(TOPICS)]
    assert len(connections) <= 1, "the one for questions is open, and one brings the messages of all topics"


def test_ranges_that_begin_and_end_within_batches_are_read_as_they_are_one_by_one(
    cluster: Cluster, ranges: list[TopicRange]
) -> None:
    cut = [
        TopicRange(
            one.topic, MessageId(one.end.ledger_id, 0, number // 3), MessageId(one.end.ledger_id, 1, number // 2)
        )
        for number, one in enumerate(ranges)
    ]
    together = read_together(cluster, cut)
    assert together == read_apart(cluster, cut)
    assert Counter(map(len, together.values()))[0] < TOPICS


def test_more_messages_than_fit_the_permits_come(
    cluster: Cluster, ranges: list[TopicRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_ranges, "_PERMITS", 3)
    monkeypatch.setattr(short_ranges, "TOGETHER_MAX", 7)
    assert read_together(cluster, ranges) == read_apart(cluster, ranges)


def test_a_broker_sends_what_the_ranges_hold_and_a_batch_more(
    cluster: Cluster, broker: BrokerProcess, official: Official, topic: str
) -> None:
    size, entries = 10, 120
    ranges = []
    for one in (f"{topic}-a", f"{topic}-b"):
        publish(official(broker.url), one, [b"x"] * (3 * entries * size), batch=size)
        watch = Watch(cluster)
        seen = watch.ask({one: None})[one]
        watch.close()
        assert seen is not None
        assert seen.end.entry_id == 3 * entries
        ranges.append(TopicRange(one, EARLIEST, MessageId(seen.end.ledger_id, entries)))
    assert [len(found) for found in read_together(cluster, ranges).values()] == [entries * size] * 2
    for part in ranges:
        sent = ask(broker.admin_url, "GET", f"{path_of(part.topic)}/stats")["msgOutCounter"]
        assert entries * size <= sent <= (entries + 2) * size, "what follows a range is not sent for nothing"


def test_a_connection_that_ends_loses_and_repeats_nothing(
    cluster: Cluster, ranges: list[TopicRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_ranges, "_PERMITS", 5)
    received = Connection.receive
    reads: list[int] = []

    def fail_once(self: Connection, timeout_s: float) -> bool:
        reads.append(1)
        if len(reads) == 4:
            raise ConnectionLost("here", "for a test")
        return received(self, timeout_s)

    monkeypatch.setattr(Connection, "receive", fail_once)
    together = read_together(cluster, ranges)
    assert len(reads) > 4
    monkeypatch.undo()
    assert together == read_apart(cluster, ranges)


def test_a_topic_that_was_deleted_fails_by_its_name_and_the_others_are_read(
    cluster: Cluster, ranges: list[TopicRange], broker: BrokerProcess, official: Official
) -> None:
    gone = ranges[3]
    ask(broker.admin_url, "DELETE", path_of(gone.topic))
    taken: list[int] = []
    with pytest.raises((Refused, DataLost), match=gone.topic):
        taken.extend(read_many(cluster, ranges, OPTIONS, lambda _, found: [len(found)]))
    assert sum(taken) == 3 * ROWS, "rows come range by range, up to the one that is gone"
    official(broker.url).create_producer(gone.topic).send(b"new")
    with pytest.raises(DataLost, match=gone.topic):
        read_together(cluster, [gone._replace(start=MessageId(gone.end.ledger_id, 0)), *ranges[4:]])
