# SPDX-License-Identifier: Apache-2.0
"""Spark reads what is committed: nothing of aborted transactions, nothing behind open ones; and calls nothing lost."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.client.cluster import Cluster
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.client.short_ranges import read_many
from penstock.spark.offsets import TopicRange
from tests.spark.numbered import end_of
from tests.spark.test_client import endpoint_of, values_of
from tests.spark.transacting import Transactions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

IN_TIME_S = 5.0  # far less than after which a reader doubts that something comes


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(endpoint_of(broker.url)) as cluster:
        yield cluster


@pytest.fixture
def client(broker: BrokerProcess, topic: str) -> Iterator[Transactions]:
    with Transactions(broker.port, topic) as client:
        yield client


def first_of(cluster: Cluster, topic: str) -> MessageId:
    """The position of a topic's first entry, whether anybody may see it or not."""
    return MessageId(end_of(cluster, topic).ledger_id, 0)


def values(cluster: Cluster, topic: str, start: MessageId, end: MessageId) -> list[bytes | None]:
    return [value for found in read(cluster, topic, start, end, ReadOptions()) for value in values_of(found)]


@pytest.mark.parametrize("by_id", [False, True], ids=["earliest", "id"])
def test_aborted_messages_are_passed_over_wherever_they_are(
    cluster: Cluster, client: Transactions, topic: str, *, by_id: bool
) -> None:
    client.aborted(b"x", b"x")
    client.committed(b"a", b"b")
    client.aborted(b"x")
    client.plain(b"c")
    client.aborted(b"x")
    client.committed(b"d")
    client.aborted(b"x")
    start = first_of(cluster, topic) if by_id else EARLIEST
    began = time.monotonic()
    assert values(cluster, topic, start, end_of(cluster, topic)) == [b"a", b"b", b"c", b"d"]
    assert time.monotonic() - began < IN_TIME_S


def test_ranges_that_begin_or_end_between_aborted_messages_are_whole(
    cluster: Cluster, client: Transactions, topic: str
) -> None:
    client.aborted(*[b"x"] * 4)
    client.plain(b"a")
    client.aborted(*[b"x"] * 4)
    client.plain(b"b")
    first = first_of(cluster, topic)
    cuts = [first, *(MessageId(first.ledger_id, number) for number in (2, 4, 5, 7, 9)), end_of(cluster, topic)]
    parts = list(itertools.pairwise(cuts))
    assert [values(cluster, topic, *part) for part in parts] == [[], [], [b"a"], [], [], [b"b"]]


def test_several_ranges_of_a_task_pass_them_over_too(cluster: Cluster, broker: BrokerProcess, topic: str) -> None:
    ranges = []
    for number in range(3):
        name = f"{topic}-{number}"
        with Transactions(broker.port, name) as client:
            client.aborted(b"x")
            client.committed(b"a%d" % number)
            client.aborted(b"x")
            client.plain(b"b%d" % number)
        start = EARLIEST if number else first_of(cluster, name)
        ranges.append(TopicRange(name, start, end_of(cluster, name)))
    found = list(read_many(cluster, ranges, ReadOptions(), lambda _range, messages: values_of(messages)))
    assert found == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


def test_the_end_of_a_topic_lies_before_its_first_open_transaction(
    cluster: Cluster, client: Transactions, topic: str
) -> None:
    client.plain(b"a")
    open_one = client.open(b"b")
    client.plain(b"c")
    assert values(cluster, topic, EARLIEST, end_of(cluster, topic)) == [b"a"]
    client.end(open_one, commit=True)
    assert values(cluster, topic, EARLIEST, end_of(cluster, topic)) == [b"a", b"b", b"c"]


def frame_of(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:  # noqa: ANN401
    reading = spark.readStream if options.pop("stream", False) else spark.read
    options = {"service.url": url, "topic": topic, "startingOffsets": "earliest", **options}
    return reading.format("pulsar").options(**options).load()


def test_a_stream_with_limits_reads_each_committed_message_once(
    spark: SparkSession, broker: BrokerProcess, client: Transactions, topic: str, tmp_path: Path
) -> None:
    for number in range(40):
        client.aborted(*[b"x"] * (number % 4))
        client.committed(b"c%d" % number)
        if number % 5 == 0:
            client.plain(b"p%d" % number)
    committed = {f"c{number}" for number in range(40)} | {f"p{number}" for number in range(0, 40, 5)}
    out = str(tmp_path / "out")
    rows = frame_of(spark, broker.url, topic, stream=True, maxOffsetsPerTrigger="7").selectExpr(
        "CAST(value AS STRING) AS value"
    )
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(out)
    )
    assert query.awaitTermination(120)
    found = [row.value for row in spark.read.parquet(out).collect()]
    assert sorted(found) == sorted(committed)
    batch = frame_of(spark, broker.url, topic).selectExpr("CAST(value AS STRING) AS value").collect()
    assert sorted(row.value for row in batch) == sorted(committed)
