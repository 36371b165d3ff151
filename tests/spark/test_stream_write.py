# SPDX-License-Identifier: Apache-2.0
"""A query writes each micro-batch; what happens to it or to the broker meanwhile loses nothing.

The queries read a directory of files, one file a micro-batch: such a source brings the same rows in the same order when
a micro-batch comes again, which the option `pulsar.producer.producerName` promises. `test_topic_to_topic` reads topics.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.spark.topics import create_partitions, payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


IN_ORDER = {"pulsar.producer.producerName": "files"}
# Three starts of a broker, one after another, take longer than the usual limits if the machine is busy.
PATIENT = {"operationTimeoutMs": "300000", "pulsar.producer.sendTimeoutMs": "300000"}


def lines(spark: SparkSession, directory: Path, files: int, rows: int) -> DataFrame:
    """A stream of `files` micro-batches of so many numbered rows each."""
    directory.mkdir(exist_ok=True)
    for number in range(files):
        text = "".join(f"{row}\n" for row in range(number * rows, (number + 1) * rows))
        file = directory / f"{number:04}.txt"
        file.write_text(text)
        os.utime(file, (number, number))  # Files are taken in the order of their times.
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory))


def run(df: DataFrame, broker: BrokerProcess, topic: str, checkpoint: Path, **options: str) -> None:
    """Write what there is, then end."""
    writer = df.writeStream.format("pulsar").option("service.url", broker.url).option("topic", topic)
    query = writer.options(**options).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """Let the last micro-batch look as if the driver had died before it noted the end of it."""
    last = max(
        (found for found in (checkpoint / "commits").iterdir() if found.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def numbers_in(client: pulsar.Client, topic: str, partitions: int) -> list[int]:
    """All rows that arrived, sorted."""
    return sorted(
        int(payload) for index in range(partitions) for payload in payloads(client, f"{topic}-partition-{index}")
    )


def test_every_micro_batch_is_written_in_its_order(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    run(lines(spark, tmp_path / "in", 3, 1_000), broker, topic, tmp_path / "checkpoint")
    assert [int(payload) for payload in payloads(official(broker.url), topic)] == list(range(3_000))


def test_a_micro_batch_that_comes_again_adds_nothing_where_topics_deduplicate(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    create_partitions(deduplicating, topic, 2)
    run(lines(spark, tmp_path / "in", 2, 3_000), deduplicating, topic, tmp_path / "checkpoint", **IN_ORDER)
    forget_last_commit(tmp_path / "checkpoint")
    run(lines(spark, tmp_path / "in", 3, 3_000), deduplicating, topic, tmp_path / "checkpoint", **IN_ORDER)
    assert numbers_in(official(deduplicating.url), topic, 2) == list(range(9_000))


def test_a_micro_batch_that_comes_again_loses_nothing_where_topics_do_not_deduplicate(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    run(lines(spark, tmp_path / "in", 2, 100), broker, topic, tmp_path / "checkpoint")
    forget_last_commit(tmp_path / "checkpoint")
    run(lines(spark, tmp_path / "in", 2, 100), broker, topic, tmp_path / "checkpoint")
    assert Counter(numbers_in(official(broker.url), topic, 2)) == Counter([*range(200), *range(100, 200)])


def test_a_task_that_fails_half_way_through_is_written_once_where_topics_deduplicate(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    create_partitions(deduplicating, topic, 2)
    stumbled = str(tmp_path / "stumbled")

    def stumble_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The third batch of the first run has times that the writer refuses."""
        from pathlib import Path

        import pyarrow as pa

        for number, batch in enumerate(batches):
            bad = number == 2 and not Path(stumbled).exists()
            if bad:
                Path(stumbled).touch()
            times = pa.array([-1 if bad else 1] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), times], ["value", "__eventTime"])

    df = lines(spark, tmp_path / "in", 2, 30_000).select(f.rpad("value", 200, " ").alias("value"))
    df = df.mapInArrow(stumble_once, "value string, __eventTime bigint")
    options = IN_ORDER | {"pulsar.producer.batchingMaxMessages": "70"}
    with pytest.raises(StreamingQueryException, match="a time before 1970"):
        run(df, deduplicating, topic, tmp_path / "checkpoint", **options)
    before = len(numbers_in(official(deduplicating.url), topic, 2))
    assert 0 < before < 30_000
    # The rest goes in batches of another size: what is there is recognised by row.
    options["pulsar.producer.batchingMaxMessages"] = "1000"
    run(df, deduplicating, topic, tmp_path / "checkpoint", **options)
    assert numbers_in(official(deduplicating.url), topic, 2) == list(range(60_000))


@pytest.mark.parametrize("deduplication", ["true", "false"])
def test_a_broker_killed_while_a_query_writes_loses_nothing_and_with_deduplication_adds_nothing(
    spark: SparkSession, official: Official, topic: str, tmp_path: Path, deduplication: str
) -> None:
    from penstock.testing.process import BrokerProcess

    config = tmp_path / "broker.conf"
    config.write_text(f"brokerDeduplicationEnabled={deduplication}\n")
    rows = [20_000, 3]
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        create_partitions(broker, topic, 2)
        df = lines(spark, tmp_path / "in", rows[1], rows[0]).withColumn("__key", f.col("value"))
        done = threading.Event()
        killer = threading.Thread(target=kill_and_restart, args=(broker, done, 3))
        killer.start()
        try:
            options = PATIENT | IN_ORDER | {"pulsar.producer.batchingMaxMessages": "10"}
            run(df, broker, topic, tmp_path / "checkpoint", **options)
        finally:
            done.set()
            killer.join()
        found = numbers_in(official(broker.url), topic, 2)
    assert sorted(set(found)) == list(range(rows[0] * rows[1]))
    if deduplication == "true":
        assert len(found) == len(set(found))


def kill_and_restart(broker: BrokerProcess, done: threading.Event, times: int) -> None:
    """Kill a broker that is being written to, and start it again, so many times."""
    port = broker.port
    for _ in range(times):
        if done.wait(0.7):
            return
        broker.kill()
        broker.start(port=port)


def test_what_can_only_replace_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    counts = lines(spark, tmp_path / "in", 1, 1).groupBy("value").count().select("value")
    writer = counts.writeStream.format("pulsar").outputMode("complete")
    writer = writer.options(**{"service.url": broker.url, "topic": topic, "checkpointLocation": str(tmp_path / "c")})
    with pytest.raises(StreamingQueryException, match=r"outputMode\('append'\) or \('update'\)"):
        writer.trigger(availableNow=True).start().awaitTermination()
