# SPDX-License-Identifier: Apache-2.0
"""From Spark's tables to plain values: the few hundred rows that a page shows and a check compares.

Where: `analysis` calls it when the queries are done; only here do rows leave Spark. The names of airlines and airports
come from the files that lie beside the flights.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as everybody who writes Spark knows it

from examples.flight_demo import pipeline
from examples.flight_demo.findings import Delays, Findings, Movement, Place, WorstHour
from examples.flight_demo.flights import data_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from examples.flight_demo.report import Check
    from examples.flight_demo.tally import Hours

PACKAGES = ("penstock", "pyspark", "pulsar-client")
# Words that no traveller would say.
LEGAL_FORMS = (" Inc.", " Co.", " Corporation")


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
        airlines={row["carrier"]: _without_legal_form(row["name"]) for row in _rows("airlines.csv")},
        places={row["faa"]: Place(row["name"], float(row["lat"]), float(row["lon"])) for row in _rows("airports.csv")},
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


def _without_legal_form(name: str) -> str:
    for form in LEGAL_FORMS:
        name = name.removesuffix(form)
    return name


def _rows(name: str) -> list[dict[str, str]]:
    with (data_directory() / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
