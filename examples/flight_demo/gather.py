# SPDX-License-Identifier: Apache-2.0
"""From Spark's tables to plain values: the few hundred rows that a page shows and a check compares.

Where: `analysis` calls it when the queries are done; only here do rows leave Spark.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as everybody who writes Spark knows it

from examples.flight_demo import pipeline
from examples.flight_demo.findings import Delays, Findings, Movement, WorstHour
from examples.flight_demo.reference import read_airlines, read_airports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from examples.flight_demo.report import Check
    from examples.flight_demo.tally import Hours

PACKAGES = ("penstock", "pyspark", "pulsar-client")


def hours(table: DataFrame) -> Hours:
    """All hours of all airlines, as the tally has them."""
    rows = table.select("airline", F.unix_millis("hour"), *pipeline.NUMBERS).collect()
    return {(airline, hour_ms): Delays(*numbers) for airline, hour_ms, *numbers in rows}


def findings(flown: DataFrame, table: DataFrame, movements: list[Movement], checks: list[Check]) -> Findings:
    """Everything on the page, from the tables of flights and of hours."""
    months = defaultdict(list)
    for airport, month, *numbers in pipeline.by_month_and_airport(flown).collect():
        months[airport].append((month, Delays(*numbers)))
    cells = pipeline.by_hour_and_airline(table).collect()
    return Findings(
        airlines=read_airlines(),
        places=read_airports(),
        cells={(airline, hour): Delays(*numbers) for airline, hour, *numbers in cells},
        days=[(day, Delays(*numbers)) for day, *numbers in pipeline.by_day(table).collect()],
        months=dict(months),
        destinations={code: Delays(*numbers) for code, *numbers in pipeline.by_destination(flown).collect()},
        steps=[(from_min, flights) for from_min, flights in pipeline.distribution(flown).collect()],
        worst=[WorstHour(*row) for row in pipeline.worst_hours(table).collect()],
        movements=movements,
        checks=checks,
        versions=" · ".join(f"{package} {version(package)}" for package in PACKAGES),
    )
