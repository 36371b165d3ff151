# SPDX-License-Identifier: Apache-2.0
"""The names of airlines and airports, from the files that come with the flights.

Where: the page writes them beside the codes that the messages carry.
"""

from __future__ import annotations

import csv

from examples.flight_demo.findings import Place
from examples.flight_demo.flights import data_directory

# Words that no traveller would say.
LEGAL_FORMS = (" Inc.", " Co.", " Corporation")


def read_airlines() -> dict[str, str]:
    """Each airline's name by its code. Raises FlightsMissing."""
    names = {}
    for row in _rows("airlines.csv"):
        name = row["name"]
        for form in LEGAL_FORMS:
            name = name.removesuffix(form)
        names[row["carrier"]] = name
    return names


def read_airports() -> dict[str, Place]:
    """Each airport's name and place by its code. Raises FlightsMissing."""
    return {row["faa"]: Place(row["name"], float(row["lat"]), float(row["lon"])) for row in _rows("airports.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    with (data_directory() / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
