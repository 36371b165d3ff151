# SPDX-License-Identifier: Apache-2.0
"""Streams of Spark with and without limits, many small topics, and a stream that follows a producer.

Why beside `benchmarks.spark`: there a stream reads all at once. With a limit, what counts is the time between two
micro-batches: planning, starting tasks, opening connections. Each aggregation of a topic is run in turn with one of a
source that costs nothing, which has the same limit and as many tasks: what that does not reach is Spark's own.
Where: part of `make measure`; by hand `python -m benchmarks.spark_streams --messages 300000 --only 16 --rounds 3`. To
compare two versions, run it with each one's `src` first in PYTHONPATH, on the same day.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pulsar

from benchmarks import spark_free_stream
from benchmarks.brokers import penstock
from benchmarks.process import ask
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAYLOAD_BYTES = 100
LIMITS = (None, 100_000, 20_000)
SMALL_TOPICS, SMALL_ROWS = 200, 50
FOLLOWED_PER_S, FOLLOWED_S = 2_000, 15
FIRST_BATCH_MAX_S = 120


class Line(NamedTuple):
    """One line of the table."""

    name: str
    rows: int
    seconds: float
    batches: int = 0
    planning_ms: float = 0.0
    note: str = ""
    of_unlimited: float = 0.0
    of_free: float = 0.0


class Streams:
    """One broker, its topics, and one Spark session."""

    def __init__(self, spark: SparkSession, port: int, admin_port: int, scratch: Path) -> None:
        self.spark, self.scratch, self.admin_port = spark, scratch, admin_port
        self.options = {"service.url": f"pulsar://127.0.0.1:{port}"}
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        ask(admin_port, "POST", "namespaces/public/default/retention", retention)

    def client(self) -> pulsar.Client:
        """The official client, which logs nothing."""
        return pulsar.Client(self.options["service.url"], logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, os.devnull))

    def partitioned(self, name: str, partitions: int, messages: int) -> str:
        """A topic whose partitions have batches of 14 to 22 messages, one hour of event time each."""
        ask(self.admin_port, "PUT", f"persistent/public/default/{name}/partitions", partitions)
        each = messages // partitions
        with closing(self.client()) as client:
            for index in range(partitions):
                self.publish(client, f"{name}-partition-{index}", each, 14 + index % 9)
        return name

    def publish(self, client: pulsar.Client, topic: str, messages: int, batch: int) -> None:
        """Publish numbered messages in batches of so many."""
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=batch,
            batching_max_publish_delay_ms=1_000,
            block_if_queue_full=True,
            max_pending_messages=5_000,
        )
        start_ms = 1_700_000_000_000
        for number in range(messages):
            at = start_ms + number * 3_600_000 // messages
            producer.send_async(b"x" * PAYLOAD_BYTES, None, event_timestamp=at)
        producer.flush()
        producer.close()

    def stream(self, **options: str) -> DataFrame:
        """A stream from the beginning."""
        reader = self.spark.readStream.format("pulsar").options(**self.options, **options)
        return reader.option("startingOffsets", "earliest").load()

    def topic(self, name: str, limit: int | None) -> DataFrame:
        """The columns of a topic that are aggregated."""
        options = {} if limit is None else {"maxMessagesPerTrigger": str(limit)}
        return self.stream(topic=name, columns="__key,__eventTime", **options)

    def free(self, rows: int, partitions: int, limit: int | None) -> DataFrame:
        """As many rows that cost nothing."""
        options = {"rows": rows, "partitions": partitions, "limit": limit or 0}
        return self.spark.readStream.format(spark_free_stream.NAME).options(**options).load()

    def aggregate(self, name: str, read: DataFrame, rows: int) -> Line:
        """Count in windows of ten seconds, with a watermark of five minutes, until all is read."""
        counted = (
            read.withWatermark("__eventTime", "5 minutes")
            .selectExpr("window(__eventTime, '10 seconds') as at")
            .groupBy("at")
            .count()
        )
        with tempfile.TemporaryDirectory(dir=self.scratch) as checkpoint:
            writer = counted.writeStream.format("noop").outputMode("update")
            began = time.perf_counter()
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            seconds = time.perf_counter() - began
            progress = [one for one in query.recentProgress if one.numInputRows]
            late = sum(int(state.numRowsDroppedByWatermark) for one in progress for state in one.stateOperators)
            found = sum(one.numInputRows for one in progress)
        if found != rows:
            raise RuntimeError(f"{name}: {found} rows of {rows}")
        planning = statistics.median(one.durationMs.get("latestOffset", 0) for one in progress)
        return Line(name, rows, seconds, len(progress), planning, f"{late} dropped as late")

    def small_topics(self) -> list[Line]:
        """Many topics of a few rows, and one topic with as many rows."""
        rows = SMALL_TOPICS * SMALL_ROWS
        with closing(self.client()) as client:
            for number in range(SMALL_TOPICS):
                self.publish(client, f"small-{number:03}", SMALL_ROWS, 10)
            self.publish(client, "as-many-in-one", rows, 10)
        self.spark.read.format("pulsar").options(**self.options).option("topic", "as-many-in-one").load().count()
        lines = []
        for name, source in (
            ("one topic of 10,000 rows", {"topic": "as-many-in-one"}),
            ("200 topics of 50 rows", {"topicsPattern": "public/default/small-.*"}),
        ):
            samples = []
            for _ in range(3):
                began = time.perf_counter()
                found = self.spark.read.format("pulsar").options(**self.options, **source).load().count()
                samples.append(time.perf_counter() - began)
                if found != rows:
                    raise RuntimeError(f"{name}: {found} rows of {rows}")
            lines.append(Line(name, rows, statistics.median(samples)))
        return lines

    def follow(self) -> Line:
        """A producer of 2,000 messages a second, and a stream of it with a trigger of 100 ms."""
        ask(self.admin_port, "PUT", "persistent/public/default/followed/partitions", 4)
        stop = threading.Event()
        sent = 0

        def produce() -> None:
            nonlocal sent
            with closing(self.client()) as client:
                producer = client.create_producer(
                    "followed", batching_enabled=True, batching_max_publish_delay_ms=20, block_if_queue_full=True
                )
                began = time.perf_counter()
                while not stop.wait(0.02):
                    due = int((time.perf_counter() - began) * FOLLOWED_PER_S)
                    while sent < due:
                        producer.send_async(b"x" * PAYLOAD_BYTES, None)
                        sent += 1
                producer.flush()

        latencies: list[float] = []
        following = threading.Event()

        def note(batch: DataFrame, _number: int) -> None:
            oldest = batch.selectExpr("cast(min(__publishTime) as double) as at").first()
            if oldest is not None and oldest["at"] is not None:
                latencies.append(time.time() - oldest["at"])
                following.set()

        thread = threading.Thread(target=produce)
        with tempfile.TemporaryDirectory(dir=self.scratch) as checkpoint:
            read = self.stream(topic="followed", maxMessagesPerTrigger="20000", columns="__publishTime")
            writer = read.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
            query = writer.trigger(processingTime="100 milliseconds").start()
            thread.start()
            following.wait(FIRST_BATCH_MAX_S)  # The first query of a virtual machine takes its time to begin.
            began, before = time.perf_counter(), sent
            query.awaitTermination(FOLLOWED_S)
            seconds, rows = time.perf_counter() - began, sent - before
            stop.set()
            thread.join()
            query.stop()
        settled = sorted(latencies[len(latencies) // 3 :])
        note_ = f"oldest row of a micro-batch {settled[len(settled) // 2]:.2f} s old, at most {settled[-1]:.2f} s"
        return Line("followed at 2,000 messages/s, 100 ms trigger", rows, seconds, len(latencies), 0.0, note_)


def aggregations(streams: Streams, messages: int, partitions: int, rounds: int) -> Iterator[Line]:
    """Of a topic and of the free source, in turn; medians."""
    topic = streams.partitioned(f"aggregated-{partitions}", partitions, messages)
    rows = messages // partitions * partitions
    for limit in (None, rows // 4):
        streams.aggregate("warm-up", streams.topic(topic, limit), rows)
    taken: dict[tuple[int | None, str], list[Line]] = {}
    for _ in range(rounds):
        for limit in LIMITS:
            shown = f"{partitions} partitions, " + ("no limit" if limit is None else f"{limit:,}")
            ours = streams.aggregate(f"aggregation, {shown}", streams.topic(topic, limit), rows)
            free = streams.aggregate(f"free source, {shown}", streams.free(rows, partitions, limit), rows)
            taken.setdefault((limit, "ours"), []).append(ours)
            taken.setdefault((limit, "free"), []).append(free)
    median = {key: sorted(lines, key=lambda line: line.seconds)[len(lines) // 2] for key, lines in taken.items()}
    for (limit, whose), line in median.items():
        of_unlimited = median[None, whose].seconds / line.seconds
        of_free = median[limit, "free"].seconds / line.seconds
        yield line._replace(of_unlimited=of_unlimited, of_free=of_free)


def lines_of(streams: Streams, messages: int, only: str, rounds: int) -> Iterator[Line]:
    """Measure, one after the other."""
    for partitions in (1, 16):
        if not only or only in f"{partitions} partitions":
            yield from aggregations(streams, messages, partitions, rounds)
    if not only or only in "200 topics":
        yield from streams.small_topics()
    if not only or only in "followed":
        yield streams.follow()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench-spark-streams", description="Measure Spark's streams.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="1 partitions, 16 partitions, 200 topics or followed")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:1], os.environ.get("PYTHONPATH", "")])
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-streams-")))
        address = stack.enter_context(penstock(scratch / "data"))
        places = {
            "spark.local.dir": str(scratch),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -Duser.timezone=UTC",
            "spark.sql.shuffle.partitions": "2",
        }
        spark = local_session("bench", settings=places)
        stack.callback(spark.stop)
        spark.dataSource.register(spark_free_stream.FreeStream)
        streams = Streams(spark, address.port, address.admin_port, scratch)
        found = []
        for line in lines_of(streams, options.messages, options.only, options.rounds):
            print(json.dumps(line._asdict()), flush=True)
            found.append(line)
    table = markdown(found)
    print(f"\n{table}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark-streams.md").write_text(table)
    return 0


def markdown(lines: Sequence[Line]) -> str:
    """The table."""
    head = "| measure | rows/s | seconds | micro-batches | planning of one, ms | × no limit | × free source | |"
    rows = [
        f"| {one.name} | {one.rows / one.seconds:,.0f} | {one.seconds:.1f} | {one.batches or ''} | "
        f"{f'{one.planning_ms:.0f}' if one.planning_ms else ''} | {_ratio(one.of_unlimited)} | {_ratio(one.of_free)} | "
        f"{one.note} |"
        for one in lines
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows]) + "\n"


def _ratio(found: float) -> str:
    return f"{found:.2f}" if found else ""


if __name__ == "__main__":
    sys.exit(main())
