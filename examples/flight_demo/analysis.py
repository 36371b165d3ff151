# SPDX-License-Identifier: Apache-2.0
"""Act three: Spark reads the year back from the broker's log, adds it up, and puts the sums back into a topic.

Why: what was acknowledged in act one must still be there when the broker has been stopped and started again, and a
pipeline is worth something only if what comes out can be reconciled with what went in.
Where: the main process, after all forking is done, since a virtual machine brings threads. `pipeline` says what is
computed, `queries` how a query is watched, `tally` what must come out; `page` draws the findings.

The queries, one after the other:

1. **flights**: all topics into a table, in micro-batches of an eighth of the year.
2. **hours**: all topics into delays by airline and hour, in event-time windows under a watermark. It takes the year in
   one micro-batch: a watermark is one clock for all topics, each of which is read at its own pace, and a topic that is
   read ahead of the others would make theirs late.
3. **delays**: the table of hours, as a stream, into a topic. The windows that the watermark had not passed when the
   stream ended are added in batch, from the table of flights.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- as everybody who writes Spark knows it

from examples.flight_demo import gather, pipeline, tally
from examples.flight_demo.accounts import account
from examples.flight_demo.findings import Movement, total
from examples.flight_demo.page.document import render
from examples.flight_demo.places import make_namespace
from examples.flight_demo.queries import follow, session
from examples.flight_demo.report import Report
from examples.flight_demo.screen import Row

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from examples.flight_demo.findings import Meanwhile
    from examples.flight_demo.flights import Year
    from examples.flight_demo.queries import Progress
    from examples.flight_demo.screen import Screen
    from penstock.testing.process import BrokerProcess

TENANT, NAMESPACE = "nyc", "delays"
TOPIC: Final = f"persistent://{TENANT}/{NAMESPACE}/by-hour"
# A fifth of the year: enough batches to see it move, few enough that what each costs does not count.
BATCHES: Final = 5
BATCH_FLIGHTS_MIN: Final = 1_000
# How late a message may come in a stream that goes on; so many hours stay open when this one ends.
WATERMARK: Final = "6 hours"
# Each batch leaves so many files in every month it touches.
WRITERS: Final = 2
FAULT_LINES: Final = 12
NO_WATERMARK: Final = "1971"
FLIGHTS, HOURS, DELAYS, READ_BACK = "flights → table", "hours → table", "hours → topic", "read back"


def plainly(text: str) -> str:
    """The last lines of an error or a log, without the hundreds that say where in Spark it happened."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return "\n".join(lines[-FAULT_LINES:])


class Analysis:
    """One run of the act, on a broker that holds what act one published."""

    def __init__(
        self, broker: BrokerProcess, year: Year, directory: Path, page: Path, screen: Screen, meanwhile: Meanwhile
    ) -> None:
        """Args: meanwhile: what the broker went through in the acts before."""
        self.meanwhile = meanwhile
        self.broker, self.year, self.directory, self.page, self.screen = broker, year, directory, page, screen
        self.total = len(year.flights)
        self.report = Report(f"The pipeline: {self.total:,} flights through Spark, and back")
        self.rows = {name: Row(name, 0, self.total, "") for name in (FLIGHTS, HOURS, DELAYS, READ_BACK)}
        self.movements: list[Movement] = []
        self.began_s = 0.0  # when the present query was started

    def run(self) -> Report:
        """Play the act to its end. A query that fails is a fault of the report, with the last of Spark's own words."""
        begun_s = time.monotonic()
        make_namespace(self.broker.admin_port, TENANT, NAMESPACE)
        self.screen.say("starting Spark")
        log = self.directory / "spark.log"
        try:
            with session(self.directory, log) as spark:
                self.report.figures["Spark started in"] = f"{time.monotonic() - begun_s:,.1f} s"
                self.run_queries(spark)
        except (PySparkException, Py4JError) as error:
            self.report.faults += [plainly(str(error)), plainly(log.read_text(errors="replace"))]
        self.report.figures["the act took"] = f"{time.monotonic() - begun_s:,.1f} s"
        return self.report

    def run_queries(self, spark: SparkSession) -> None:
        """Move the year through Spark, compare what came out, and draw it."""
        expected = tally.add_up(self.year)
        for name in (DELAYS, READ_BACK):
            self.rows[name] = self.rows[name]._replace(total=len(expected))
        flown = self.store_flights(spark)
        closed = self.sum_hours(spark)
        hours = self.give_back(spark, flown, closed)
        self.read_back(expected)
        self.screen.say("comparing what came out with the file, and drawing it")
        self.judge(flown, hours, expected)
        self.write_page(flown, hours)
        self.screen.say("accounting for what everybody used")
        usage = self.page.with_name("usage.html")
        account(spark, self.broker, self.year, self.directory, usage, self.report)

    # ------------------------------------------------------------------------------------------------------- queries

    def messages(self, spark: SparkSession, **options: str) -> DataFrame:
        """All airlines' topics, from their beginning, as a stream."""
        topics = ",".join(self.year.topic(airline) for airline in self.year.airlines)
        reader = spark.readStream.format("pulsar").option("service.url", self.broker.url).option("topics", topics)
        return reader.options(startingOffsets="earliest", columns="value,__eventTime", **options).load()

    def store_flights(self, spark: SparkSession) -> DataFrame:
        """Query 1."""
        batch = max(BATCH_FLIGHTS_MIN, -(-self.total // BATCHES))
        stream = pipeline.flights(self.messages(spark, maxMessagesPerTrigger=str(batch))).coalesce(WRITERS)
        progress = self.play(FLIGHTS, self.into_table(stream, "flights"))
        flown = spark.read.parquet(str(self.directory / "flights"))
        self.moved("Flights, read and stored", progress, flown.count())
        return flown

    def sum_hours(self, spark: SparkSession) -> DataFrame:
        """Query 2."""
        stream = pipeline.flights(self.messages(spark)).withWatermark("departs", WATERMARK)
        progress = self.play(HOURS, self.into_table(pipeline.hourly_delays(stream), "hours"))
        closed = spark.read.parquet(str(self.directory / "hours"))
        self.moved("Hours, summed in windows", progress, closed.count())
        self.report.check(progress.late_rows == 0, "no flight was too late for the watermark")
        return closed

    def give_back(self, spark: SparkSession, flown: DataFrame, closed: DataFrame) -> DataFrame:
        """Query 3, and in batch what the stream could not know to be complete. Returns all hours."""
        stream = spark.readStream.schema(closed.schema).parquet(str(self.directory / "hours"))
        writer = self.into_topic(pipeline.as_messages(stream))
        progress = self.play(DELAYS, writer)
        self.moved("Hours, into a topic", progress, progress.rows)
        in_batch = pipeline.hourly_delays(flown).select(closed.columns).cache()
        open_hours = in_batch.exceptAll(closed)
        untrue, left = closed.exceptAll(in_batch).count(), open_hours.count()
        pipeline.as_messages(open_hours).write.format("pulsar").mode("append").options(**self.destination()).save()
        self.report.check(
            untrue == 0,
            "the windows that the stream closed are those a batch finds",
            f"{progress.rows:,}; {left:,} were open when it ended, and were added in batch",
        )
        return in_batch

    def destination(self) -> dict[str, str]:
        """Where the hours go."""
        return {"service.url": self.broker.url, "topic": TOPIC}

    def into_table(self, stream: DataFrame, name: str) -> DataStreamWriter:
        """A table of Parquet files, a folder for each month; every row once, however often a batch is tried."""
        writer = stream.writeStream.format("parquet").partitionBy("month").option("path", str(self.directory / name))
        return writer.option("checkpointLocation", str(self.directory / f"{name}.checkpoint"))

    def into_topic(self, stream: DataFrame) -> DataStreamWriter:
        """The topic that the official client reads."""
        writer = stream.writeStream.format("pulsar").options(**self.destination())
        return writer.option("checkpointLocation", str(self.directory / "delays.checkpoint"))

    def play(self, name: str, writer: DataStreamWriter) -> Progress:
        """Run a query over all that is there, drawing it."""
        self.began_s = time.monotonic()
        query = writer.outputMode("append").trigger(availableNow=True).queryName(name).start()
        try:
            return follow(query, lambda progress: self.draw(name, progress))
        finally:
            query.stop()

    def moved(self, what: str, progress: Progress, rows_out: int) -> None:
        """Remember what a query did."""
        elapsed_s = time.monotonic() - self.began_s
        self.movements.append(Movement(what, progress.rows, rows_out, elapsed_s, progress.batches, progress.lags))
        self.report.figures[what.lower()] = f"{rows_out:,} rows in {elapsed_s:,.1f} s"

    def draw(self, name: str, progress: Progress) -> None:
        """Show how far the queries are."""
        remark = f"{progress.rows_per_s:>8,.0f}/s  batch {len(progress.batches)}" if progress.batches else "starting"
        self.rows[name] = self.rows[name]._replace(done=progress.rows, remark=remark)
        footer = f"{name}: {time.monotonic() - self.began_s:,.0f} s"
        if progress.behind:
            footer += f" · {progress.behind:,} messages behind the topics"
        if progress.watermark > NO_WATERMARK:
            footer += f" · watermark {progress.watermark[:16].replace('T', ' ')}"
        self.screen.show("Spark reads 2013", list(self.rows.values()), footer)

    # ------------------------------------------------------------------------------------------------------- verdict

    def read_back(self, expected: tally.Hours) -> None:
        """Have the official client read the topic, and compare every hour with what must be there."""
        wanted = len(expected)

        def draw(done: int) -> None:
            self.rows[READ_BACK] = self.rows[READ_BACK]._replace(done=done, remark="by pulsar-client")
            self.screen.show("Spark reads 2013", list(self.rows.values()), f"{TOPIC}")

        found = tally.read_back(self.broker.url, TOPIC, wanted, draw)
        draw(len(found.hours))
        self.movements.append(Movement("Read back by pulsar-client", wanted, len(found.hours), found.elapsed_s))
        self.report.check(
            found.hours == expected and not found.wrong,
            "the official client read every hour from the topic, once, as the file adds up in plain Python",
            f"{len(found.hours):,} of {wanted:,}",
        )
        self.report.faults += found.wrong[:3]

    def judge(self, flown: DataFrame, hours: DataFrame, expected: tally.Hours) -> None:
        """Reconcile Spark's tables with what was published."""
        stored = flown.agg(F.count("*"), F.sum("checksum")).first()
        assert stored is not None
        count, checksum = stored
        self.report.check(
            count == self.total and checksum == tally.checksum(self.year),
            "Spark's table holds every flight that was published, once, as it was sent",
            f"{count:,} of {self.total:,}, their checksums add up to {checksum:,}",
        )
        found = gather.hours(hours)
        self.report.check(
            found == expected,
            "its hours are those that the file adds up to in plain Python",
            f"{len(found):,} hours, {sum(delays.flights for delays in found.values()):,} flights, "
            f"{sum(delays.delay_min for delays in found.values()):,} minutes",
        )

    def write_page(self, flown: DataFrame, hours: DataFrame) -> None:
        """Draw the page."""
        findings = gather.findings(flown, hours, self.movements, self.report.checks)
        findings = replace(findings, meanwhile=self.meanwhile)
        self.report.check(
            findings.total.flights == self.total == total(findings.destinations.values()).flights,
            "the plots on the page add up to all flights",
            f"{findings.total.flights:,}",
        )
        self.page.parent.mkdir(parents=True, exist_ok=True)
        self.page.write_text(render(findings), encoding="utf-8")
        self.report.figures["the page"] = f"{self.page} ({self.page.stat().st_size / 1024:,.0f} KiB)"
