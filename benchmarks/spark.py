# SPDX-License-Identifier: Apache-2.0
"""Spark reads and writes topics: rows a second, beside a plain reader and beside sources and sinks that cost nothing.

Why beside them: what Spark itself takes to carry a row between its virtual machine and Python is most of the time. The
ratio to a source or sink that does nothing else says what is ours to make faster; the ratio to a loop around the
official client's reader says whether Spark is worth its while.
Where: part of `make measure`; by hand `python -m benchmarks.spark --rows 1000000 --rounds 3`. A round takes each
measure in turn; medians are compared. Payloads of 1 KiB, or records of eight fields; four partitions, two tasks
at a time. A query begins with half a second in which nothing is read, a stream with more than one: of few rows these
are most of the time.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pulsar
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks.brokers import penstock
from benchmarks.process import PeerError, ask
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PARTITIONS = 4
PAYLOAD_BYTES = 1024
MB = 1_000_000
# Rows of a batch of the free source; what the Pulsar source builds too.
FREE_ROWS = 2_000

FREE_SOURCE, FREE_SINK = "free source", "free sink"
# How messages lie in the topic that is read: as Java's client sends them unless told otherwise, and as Python's does.
BATCHED, ALONE = "batches", "one by one"
# Values that the topic's schema makes columns of, by how they are written; in batches.
RECORDS = {"records in JSON": "json", "records in Avro": "avro"}


class Measure(NamedTuple):
    """One line of the table: what is done, and what it is compared with."""

    name: str
    run: Callable[[], object]
    ceiling: str | None = None
    plain: str | None = None
    row_bytes: float = PAYLOAD_BYTES


# -- what costs nothing ----------------------------------------------------------------------------------------------


class FreeReader(DataSourceReader):
    """The same batch again and again."""

    def __init__(self, schema: StructType, rows: int) -> None:
        self.schema, self.rows = schema, rows

    def partitions(self) -> Sequence[InputPartition]:
        """As many as the topic has."""
        return [InputPartition(self.rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """So many rows."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        columns = [free_column(field, FREE_ROWS) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        for start in range(0, partition.value, FREE_ROWS):
            yield batch.slice(0, min(FREE_ROWS, partition.value - start))


def free_column(field: pa.Field, rows: int) -> pa.Array:
    """A column of plausible size, made once."""
    if pa.types.is_binary(field.type):
        nbytes = PAYLOAD_BYTES if field.name == "value" else 12
        return pa.array([random.Random(row).randbytes(nbytes) for row in range(rows)])
    if pa.types.is_map(field.type):
        return pa.array([[]] * rows, field.type)
    if pa.types.is_string(field.type):
        return pa.array(["persistent://public/default/bench-partition-0"] * rows)
    return pa.array([1_700_000_000_000_000] * rows, pa.int64()).cast(field.type)


class Done(WriterCommitMessage):
    """Nothing to say."""


class FreeWriter(DataSourceArrowWriter):
    """Takes batches and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Let them pass."""
        for _ in iterator:
            pass
        return Done()


class Free(DataSource):
    """A source and a sink without anything behind them."""

    @classmethod
    def name(cls) -> str:
        """As `format` knows it."""
        return "free"

    def reader(self, schema: StructType) -> DataSourceReader:
        """With the columns that the caller wants."""
        return FreeReader(schema, int(self.options["rows"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 -- as called
        """For any columns."""
        return FreeWriter()


# -- what is measured ------------------------------------------------------------------------------------------------


class Bench:
    """One broker, one topic to read, and a new one for each write."""

    def __init__(self, spark: SparkSession, port: int, admin_port: int, rows: int, scratch: Path) -> None:
        self.spark, self.rows, self.scratch = spark, rows, scratch
        self.options = {"service.url": f"pulsar://127.0.0.1:{port}"}
        self.url, self.admin_port = self.options["service.url"], admin_port
        ask(
            admin_port,
            "POST",
            "namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        self.topics = {BATCHED: self.new_topic(), ALONE: self.new_topic()}
        self.write(self.topics[BATCHED], {"pulsar.producer.batchingMaxBytes": "128K"})
        self.publish(self.topics[ALONE])
        for lying, value_format in RECORDS.items():
            self.topics[lying] = self.new_topic()
            self.write(self.topics[lying], {"valueFormat": value_format}, self.flights())
        self.schema = self.read(BATCHED).schema

    def new_topic(self) -> str:
        """A partitioned topic that nothing has."""
        name = f"bench-{time.monotonic_ns()}"
        ask(self.admin_port, "PUT", f"persistent/public/default/{name}/partitions", PARTITIONS)
        return f"persistent://public/default/{name}"

    def check(self) -> None:
        """Raise RuntimeError when a topic does not hold all rows, and what was measured was something else."""
        for lying, topic in self.topics.items():
            rows = self.read(lying, columns="__partition").count()
            if rows != self.rows:
                raise RuntimeError(f"{topic} ({lying}) has {rows} rows of {self.rows}")

    def payloads(self) -> DataFrame:
        """Rows to write: made by the free source, so that making them costs next to nothing."""
        return self.free("value binary")

    def flights(self) -> DataFrame:
        """Records to write: eight fields, of which two may be missing."""
        return self.spark.range(0, self.rows, 1, PARTITIONS).selectExpr(
            "cast(id % 9973 AS int) AS flight",
            "'UA' AS carrier",
            "'EWR' AS origin",
            "'IAH' AS destination",
            "if(id % 50 = 0, NULL, cast(id % 180 AS double)) AS departure_delay",
            "if(id % 50 = 0, NULL, (id % 997) / 7) AS arrival_delay",
            "id AS number",
            "timestamp_millis(1700000000000 + id) AS at",
        )

    def read(self, lying: str, **options: str) -> DataFrame:
        """A topic as a DataFrame."""
        reader = self.spark.read.format("pulsar").options(**self.options, **options)
        return reader.option("topic", self.topics[lying]).load()

    def publish(self, topic: str) -> None:
        """Write all rows once, each message alone, with the official client."""
        payload = random.Random(0).randbytes(PAYLOAD_BYTES)
        with closing(self.client()) as client:
            for index in range(PARTITIONS):
                producer = client.create_producer(
                    f"{topic}-partition-{index}", batching_enabled=False, block_if_queue_full=True
                )
                for _ in range(self.rows // PARTITIONS):
                    producer.send_async(payload, None)
                producer.flush()

    def client(self) -> pulsar.Client:
        """The official client, which logs nothing."""
        return pulsar.Client(self.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, os.devnull))

    def write(self, topic: str, options: dict[str, str] | None = None, rows: DataFrame | None = None) -> None:
        """Write all rows once."""
        written = self.payloads() if rows is None else rows
        writer = written.write.format("pulsar").mode("append").options(**self.options, **(options or {}))
        writer.option("topic", topic).save()

    def stream(self, lying: str) -> None:
        """Read all there is as a stream, into nothing."""
        source = self.spark.readStream.format("pulsar").options(**self.options).option("topic", self.topics[lying])
        sink = source.option("startingOffsets", "earliest").load().writeStream.format("noop")
        with tempfile.TemporaryDirectory(dir=self.scratch) as checkpoint:
            query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()

    def plain(self, lying: str) -> None:
        """Read all there is with the official client, as its documentation does."""
        with closing(self.client()) as client:
            for index in range(PARTITIONS):
                reader = client.create_reader(f"{self.topics[lying]}-partition-{index}", pulsar.MessageId.earliest)
                while reader.has_message_available():
                    reader.read_next(10_000).data()

    def measures(self) -> list[Measure]:
        """In the order in which they are taken."""
        free_sink = self.payloads().write.format("free").mode("append")
        ceiling, ceiling_value = f"{FREE_SOURCE}, all columns", f"{FREE_SOURCE}, value"
        measures = [
            Measure(ceiling, lambda: consume(self.free(self.schema))),
            Measure(ceiling_value, lambda: consume(self.free("value binary"))),
        ]
        for lying in (BATCHED, ALONE):
            plain = f"plain client, one reader, {lying}"
            batch = functools.partial(self.consume_all, lying)
            stream = functools.partial(self.stream, lying)
            value = functools.partial(self.consume_all, lying, columns="value")
            measures += [
                Measure(plain, functools.partial(self.plain, lying)),
                Measure(f"batch read, all columns, {lying}", batch, ceiling, plain),
                Measure(f"streaming read, all columns, {lying}", stream, ceiling, plain),
                Measure(f"batch read, value, {lying}", value, ceiling_value, plain),
            ]
        for lying in RECORDS:
            mean = self.read(lying, valueFormat="binary").selectExpr("avg(length(value))").first()
            assert mean is not None
            batch = functools.partial(self.consume_all, lying)
            measures.append(Measure(f"batch read, {lying}", batch, row_bytes=mean[0]))
        lz4 = {"pulsar.producer.compressionType": "LZ4"}
        return [
            *measures,
            Measure(FREE_SINK, free_sink.save),
            Measure("batch write", lambda: self.write(self.new_topic()), FREE_SINK),
            Measure("batch write, LZ4", lambda: self.write(self.new_topic(), lz4), FREE_SINK),
        ]

    def free(self, schema: StructType | str) -> DataFrame:
        """As many rows that cost nothing."""
        return self.spark.read.format("free").option("rows", self.rows).schema(schema).load()

    def consume_all(self, lying: str, **options: str) -> None:
        """Plan a read anew and take all of it."""
        consume(self.read(lying, **options))


def consume(df: DataFrame) -> None:
    """Have every row made, and keep none."""
    df.write.format("noop").mode("append").save()


# -- the table -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench-spark", description="Measure Spark's reads and writes.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measures whose name holds this")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-")))
        try:
            address = stack.enter_context(penstock(scratch / "data"))
        except PeerError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        places = {"spark.local.dir": str(scratch), "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}"}
        spark = local_session("bench", settings=places)
        stack.callback(spark.stop)
        spark.dataSource.register(Free)
        bench = Bench(spark, address.port, address.admin_port, options.rows, scratch)
        measures = [one for one in bench.measures() if options.only in one.name]
        taken = rounds(measures, options.rounds)
        bench.check()
    table = markdown(measures, taken, options.rows)
    print(f"\n{table}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark.md").write_text(table)
    return 0


def rounds(measures: Sequence[Measure], count: int) -> dict[str, list[float]]:
    """Take each measure in turn, so many times, after once that does not count; seconds by name."""
    taken: dict[str, list[float]] = {one.name: [] for one in measures}
    for row in range(count + 1):
        for one in measures:
            before = time.perf_counter()
            one.run()
            took_s = time.perf_counter() - before
            print(f"{'warm-up' if not row else f'round {row}':8} {one.name:42} {took_s:6.2f} s", flush=True)
            if row:
                taken[one.name].append(took_s)
    return taken


def markdown(measures: Sequence[Measure], taken: dict[str, list[float]], rows: int) -> str:
    """The medians and what they are compared with."""
    seconds = {name: statistics.median(samples) for name, samples in taken.items()}
    lines = ["| measure | rows/s (least–most) | MB/s | × plain client | × ceiling |", "|---|---|---|---|---|"]
    for one in measures:
        rates = sorted(rows / took_s for took_s in taken[one.name])
        rate = rows / seconds[one.name]
        plain = f"{seconds[one.plain] / seconds[one.name]:.2f}" if one.plain in seconds else ""
        ceiling = f"{seconds[one.ceiling] / seconds[one.name]:.2f}" if one.ceiling in seconds else ""
        spread = f"{rate:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})"
        lines.append(f"| {one.name} | {spread} | {rate * one.row_bytes / MB:,.0f} | {plain} | {ceiling} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
