# SPDX-License-Identifier: Apache-2.0
"""The pipeline: from messages to flights, from flights to delays by airline and hour, from those to messages again.

Why: every step is a function from one table to another, so the same code serves the stream, the batch that completes
it, and a test with a handful of rows whose answers were worked out by hand.
Where: `analysis` puts the broker before it and behind it. Nothing here knows where rows come from or go to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 -- as everybody who writes Spark knows it

from examples.flight_demo.findings import EARLIEST_MIN, LATE_MIN, LATEST_MIN, STEP_MIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The columns of the file, in its order; a message is one line of it.
LINE: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
# A line that does not fit is an error, not a row of nulls.
LINE_OPTIONS: Final = {"nullValue": "NA", "mode": "FAILFAST"}
NEW_YORK: Final = "America/New_York"
# What is known of a group of flights, all of it whole numbers that can be added up.
NUMBERS: Final = ("flights", "departed", "late", "delay_min")
# An hour of an airline with fewer flights is not a bad hour but one bad flight.
WORST_FLIGHTS_MIN: Final = 5
WORST: Final = 8


# ------------------------------------------------------------------------------------------------ messages and flights


def flights(messages: DataFrame) -> DataFrame:
    """One row for each message: who flew from where to where, when it should have left, and how late it did.

    `delay_min` is null for a cancelled flight; `checksum` is that of the message, to compare with what was sent.
    """
    line = F.from_csv(F.col("value").cast("string"), F.lit(LINE), LINE_OPTIONS)
    return messages.select(
        F.col("__eventTime").alias("departs"), line.alias("line"), F.crc32("value").alias("checksum")
    ).select(
        "departs",
        F.col("line.carrier").alias("airline"),
        F.col("line.origin").alias("airport"),
        F.col("line.dest").alias("destination"),
        F.col("line.dep_delay").alias("delay_min"),
        "checksum",
        _month("departs").alias("month"),
    )


def hourly_delays(flown: DataFrame) -> DataFrame:
    """For each airline and hour: flights, of those departed and late, and the minutes they were late together.

    All of it are whole numbers that can be added up, so that what is computed in two places can be compared exactly.
    A stream needs a watermark on `departs`; it gives out an hour once the watermark has passed its end.
    """
    hour = F.window("departs", "1 hour")
    return (
        flown.groupBy(hour.alias("window"), "airline")
        .agg(*_numbers())
        .select(
            F.col("window.start").alias("hour"),
            "airline",
            *NUMBERS,
            _month("window.start").alias("month"),
        )
    )


def as_messages(hours: DataFrame) -> DataFrame:
    """Each hour of each airline as a message: its numbers as JSON, keyed by the airline, at the hour it is about."""
    numbers = F.struct("airline", *NUMBERS)
    return hours.select(
        F.to_json(numbers).cast("binary").alias("value"),
        F.col("airline").cast("binary").alias("__key"),
        F.col("hour").alias("__eventTime"),
    )


# --------------------------------------------------------------------------------------------------- what is looked at


def by_hour_and_airline(hours: DataFrame) -> DataFrame:
    """The hours of the year laid over each other: each airline's delays by the hour of the day in New York."""
    return _summed(hours.withColumn("hour", F.hour(_local("hour"))), "airline", "hour")


def by_day(hours: DataFrame) -> DataFrame:
    """All airlines together, for each day in New York."""
    return _summed(hours.withColumn("day", F.to_date(_local("hour"))), "day").orderBy("day")


def by_destination(flown: DataFrame) -> DataFrame:
    """Each destination's flights and their delays when they left New York."""
    return flown.groupBy("destination").agg(*_numbers())


def by_month_and_airport(flown: DataFrame) -> DataFrame:
    """Mean delay at each of the three airports, for each month (`2013-01`)."""
    return flown.groupBy("airport", "month").agg(*_numbers()).orderBy("airport", "month")


def distribution(flown: DataFrame) -> DataFrame:
    """How many flights left how late: the beginning of a step in minutes, and flights. Cancelled ones are left out."""
    step = F.floor(F.col("delay_min") / STEP_MIN) * STEP_MIN
    within = F.greatest(F.lit(EARLIEST_MIN), F.least(F.lit(LATEST_MIN), step))
    departed = flown.where(F.col("delay_min").isNotNull())
    return departed.groupBy(within.cast("int").alias("from_min")).agg(F.count("*").alias("flights")).orderBy("from_min")


def worst_hours(hours: DataFrame) -> DataFrame:
    """The hours in which an airline's flights left latest on average, worst first."""
    mean = F.col("delay_min") / F.col("departed")
    return (
        hours.where(F.col("departed") >= WORST_FLIGHTS_MIN)
        .select(_local("hour").alias("hour"), "airline", "flights", "departed", mean.alias("mean_min"))
        .orderBy(F.desc("mean_min"), "hour", "airline")
        .limit(WORST)
    )


def _numbers() -> list[Column]:
    """What is known of a group of flights; `NUMBERS` are the names."""
    return [
        F.count("*").alias("flights"),
        F.count("delay_min").alias("departed"),
        F.count_if(F.col("delay_min") >= LATE_MIN).alias("late"),
        F.coalesce(F.sum("delay_min"), F.lit(0)).alias("delay_min"),
    ]


def _summed(hours: DataFrame, *keys: str) -> DataFrame:
    return hours.groupBy(*keys).agg(*(F.sum(number).alias(number) for number in NUMBERS))


def _local(column: str) -> Column:
    """A time as clocks in New York showed it."""
    return F.from_utc_timestamp(F.col(column), NEW_YORK)


def _month(column: str) -> Column:
    """The month in New York, by which tables are partitioned."""
    return F.date_format(_local(column), "yyyy-MM")
