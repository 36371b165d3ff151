# SPDX-License-Identifier: Apache-2.0
"""A query from a topic to a topic writes each row once, whatever fails, and whichever plan comes next.

`test_provenance` tries thousands of plans and orders without Spark; here Spark itself plans, fails and starts again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from penstock.cli.main import main
from tests.spark.test_stream_write import forget_last_commit
from tests.spark.topics import create_partitions, payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

ROWS, PARTITIONS = 6_000, 6


@pytest.fixture
def source(deduplicating: BrokerProcess, official: Official, topic: str) -> str:
    """A topic of six partitions with batches of all sizes."""
    create_partitions(deduplicating, topic, PARTITIONS)
    create_partitions(deduplicating, f"{topic}-copy", 3)
    producers = [
        official(deduplicating.url).create_producer(
            f"{topic}-partition-{number}",
            batching_enabled=True,
            batching_max_messages=7 + 5 * number,
            block_if_queue_full=True,
        )
        for number in range(PARTITIONS)
    ]
    for row in range(ROWS):
        producers[row % PARTITIONS].send_async(b"%d" % row, None, partition_key=f"key-{row % 13}")
    for producer in producers:
        producer.flush()
    return topic


def read(spark: SparkSession, broker: BrokerProcess, topic: str, **options: object) -> DataFrame:
    """The topic as a stream of micro-batches of half of it."""
    given = {"service.url": broker.url, "topic": topic, "startingOffsets": "earliest", "provenance": "true"}
    reader = spark.readStream.format("pulsar").options(**given).option("maxMessagesPerTrigger", ROWS // 2)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def run(df: DataFrame, broker: BrokerProcess, topic: str, checkpoint: Path) -> None:
    """Copy what there is, then end."""
    writer = df.writeStream.format("pulsar").option("service.url", broker.url).option("topic", f"{topic}-copy")
    writer = writer.option("pulsar.producer.batchingMaxMessages", "10")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def stumbling(directory: Path, times: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step of a query at which its task fails in the middle, so many times."""
    name = str(directory)

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        for batch in batches:
            for start in range(0, batch.num_rows, 400):
                yield batch.slice(start, 400)
                marks = Path(name)
                if start >= 400 and len(list(marks.iterdir())) < times:
                    (marks / f"{len(list(marks.iterdir()))}").touch()
                    raise RuntimeError("a cosmic ray")

    return stumble


def copied(client: pulsar.Client, topic: str) -> Counter[int]:
    return Counter(
        int(payload) for number in range(3) for payload in payloads(client, f"{topic}-copy-partition-{number}")
    )


@pytest.mark.parametrize("columns", ["value, __key, __provenance", "value, __provenance"])
def test_tasks_that_fail_and_plans_that_change_lose_no_row_and_write_none_twice(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, source: str, tmp_path: Path, columns: str
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    plans: list[dict[str, object]] = [{}, {"minPartitions": 9}, {"maxRecordsPerPartition": 300}, {"minPartitions": 2}]
    for plan in plans:
        df = read(spark, deduplicating, source, **plan).selectExpr(*columns.split(", "))
        failing = df.mapInArrow(stumbling(marks, len(plans) - 1), df.schema)
        try:
            run(failing, deduplicating, source, tmp_path / "checkpoint")
        except StreamingQueryException as error:
            assert "a cosmic ray" in str(error)  # noqa: PT017 -- it may fail, and only so
    assert len(list(marks.iterdir())) == len(plans) - 1
    forget_last_commit(tmp_path / "checkpoint")
    run(read(spark, deduplicating, source).selectExpr(*columns.split(", ")), deduplicating, source,
        tmp_path / "checkpoint")  # fmt: skip
    assert copied(official(deduplicating.url), source) == dict.fromkeys(range(ROWS), 1)
    command = ["spark", "audit", "--service-url", deduplicating.url, "--sink", f"{source}-copy", "--source", source]
    assert main(command) == 0


def test_rows_that_were_shuffled_are_written_at_least_once(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, source: str, tmp_path: Path
) -> None:
    shuffled = read(spark, deduplicating, source).select("value", "__provenance").repartition(3)
    run(shuffled, deduplicating, source, tmp_path / "checkpoint")
    forget_last_commit(tmp_path / "checkpoint")
    run(shuffled, deduplicating, source, tmp_path / "checkpoint")
    found = copied(official(deduplicating.url), source)
    assert found.keys() == set(range(ROWS))
    assert sum(found.values()) == ROWS + ROWS // 2, "the last micro-batch came twice"
