# SPDX-License-Identifier: Apache-2.0
"""`spark.readStream.format("pulsar")`: batches within limits, each message once, and a cursor that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pulsar
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

DONE_S = 60


class Job:
    """One query from a topic into Parquet files, run until it has read what is there; may be run again."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, directory: Path, **options: object) -> None:
        self.spark, self.directory = spark, directory
        self.options = {"service.url": broker.url, "startingOffsets": "earliest", **options}

    def run(self) -> list[int]:
        """Returns the rows of each batch."""
        query = self.started()
        assert query.awaitTermination(DONE_S)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def started(self) -> StreamingQuery:
        reader = self.spark.readStream.format("pulsar")
        for name, value in self.options.items():
            reader = reader.option(name, str(value))
        found = reader.load().selectExpr("cast(value as string) value", "__topic", "__messageId")
        writer = found.writeStream.format("parquet").option("path", str(self.directory / "out"))
        return writer.option("checkpointLocation", str(self.directory / "state")).trigger(availableNow=True).start()

    def values(self) -> list[int]:
        return sorted(int(row["value"]) for row in self.spark.read.parquet(str(self.directory / "out")).collect())


def publish(client: pulsar.Client, topic: str, numbers: range, **options: Any) -> None:  # noqa: ANN401
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    for number in numbers:
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def backlogs(broker: BrokerProcess, topic: str) -> dict[str, int]:
    stats = ask(broker.admin_url, "GET", f"{path_of(topic)}/stats")
    return {name: one["msgBacklog"] for name, one in stats["subscriptions"].items()}


@pytest.mark.parametrize("batched", [True, False])
def test_no_batch_holds_more_messages_than_allowed_and_none_is_lost_or_read_twice(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str, tmp_path: Path, *, batched: bool
) -> None:
    client = official(broker.url)
    publish(client, partitioned, range(1000), batching_enabled=batched)
    job = Job(spark, broker, tmp_path, topic=partitioned, maxMessagesPerTrigger=400)
    counts = job.run()
    assert max(counts) <= 400
    assert len(counts) == 3, "the budget is used in full while there is enough"
    publish(client, partitioned, range(1000, 1100), batching_enabled=batched)
    assert sum(job.run()) == 100
    assert job.values() == list(range(1100))


def test_an_idle_partition_wastes_nothing_of_the_budget(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str, tmp_path: Path
) -> None:
    publish(official(broker.url), f"{partitioned}-partition-1", range(300))
    assert Job(spark, broker, tmp_path, topic=partitioned, maxOffsetsPerTrigger=100).run() == [100, 100, 100]


def test_bytes_are_limited_too_and_one_entry_is_always_taken(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    publish(official(broker.url), topic, range(4), batching_enabled=False)
    assert Job(spark, broker, tmp_path, topic=topic, maxBytesPerTrigger=1).run() == [1, 1, 1, 1]


def test_a_durable_subscription_follows_and_its_backlog_is_gone_after_one_more_run(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    publish(official(broker.url), topic, range(100))
    job = Job(spark, broker, tmp_path, topic=topic, predefinedSubscription="follower")
    assert sum(job.run()) == 100
    assert "follower" in backlogs(broker, topic)
    assert job.run() == []
    assert backlogs(broker, topic) == {"follower": 0}
    assert job.values() == list(range(100))


def test_without_a_subscription_named_none_is_left(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    publish(official(broker.url), topic, range(10))
    assert Job(spark, broker, tmp_path, topic=topic).run() == [10]
    assert backlogs(broker, topic) == {}


def test_a_new_topic_of_a_pattern_is_read_from_its_beginning(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    client = official(broker.url)
    publish(client, f"{topic}-a", range(10))
    job = Job(spark, broker, tmp_path, topicsPattern=f"public/default/{topic.rpartition('/')[2]}-.")
    job.run()
    publish(client, f"{topic}-b", range(10, 20))
    job.run()
    assert job.values() == list(range(20))


def test_a_topic_made_anew_between_two_runs_fails_the_query_by_its_name(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    client = official(broker.url)
    publish(client, topic, range(10))
    job = Job(spark, broker, tmp_path, topic=topic)
    job.run()
    ask(broker.admin_url, "DELETE", path_of(topic))
    publish(client, topic, range(10, 13))
    with pytest.raises(StreamingQueryException, match=r"failOnDataLoss=false") as caught:
        job.run()
    assert topic in str(caught.value)
    job.options["failOnDataLoss"] = "false"
    job.run()
    assert job.values() == list(range(13))


def test_progress_says_where_topics_end(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    publish(official(broker.url), topic, range(30), batching_enabled=False)
    query = Job(spark, broker, tmp_path, topic=topic, maxMessagesPerTrigger=10).started()
    assert query.awaitTermination(DONE_S)
    first = query.recentProgress[0].sources[0]
    assert '"persistent' in first.endOffset
    assert first.latestOffset != first.endOffset
