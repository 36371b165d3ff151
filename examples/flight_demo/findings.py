# SPDX-License-Identifier: Apache-2.0
"""What the pipeline found out, as plain values: what the page shows and the checks compare.

Why: the page is drawn from these alone, so it can be drawn in a test without Spark and without a broker.
Where: `analysis` fills them from the pipeline's tables, `page` draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date, datetime

    from examples.flight_demo.report import Check

# Airlines and authorities call a flight on time that leaves less than a quarter of an hour late.
LATE_MIN: Final = 15
# The histogram: steps of so many minutes, and everything beyond its ends in the outermost.
STEP_MIN: Final = 5
EARLIEST_MIN, LATEST_MIN = -20, 120


class Delays(NamedTuple):
    """Flights, those of them that departed, those late by `LATE_MIN` or more, and the minutes of all together."""

    flights: int
    departed: int
    late: int
    delay_min: int

    @property
    def mean_min(self) -> float:
        """Mean delay of the flights that departed; 0.0 when none did."""
        return self.delay_min / self.departed if self.departed else 0.0

    @property
    def cancelled(self) -> int:
        """Flights that never departed."""
        return self.flights - self.departed

    def plus(self, other: Delays) -> Delays:
        """Both together."""
        return Delays(*map(sum, zip(self, other, strict=True)))


NONE = Delays(0, 0, 0, 0)


class WorstHour(NamedTuple):
    """An hour in which an airline's flights left very late."""

    hour: datetime  # as clocks in New York showed it
    airline: str
    flights: int
    departed: int
    mean_min: float


class Place(NamedTuple):
    """An airport."""

    name: str
    latitude: float
    longitude: float


class Lag(NamedTuple):
    """How far a stream was behind its topics: messages, and seconds since the oldest of them was published."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Movement:
    """One query: what it did, rows in, rows out, how long it took; and of each micro-batch rows, seconds and lag."""

    what: str
    rows_in: int
    rows_out: int
    elapsed_s: float
    batches: list[tuple[int, float]] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        """Rows in by the time it took, the starting of the query included."""
        return self.rows_in / max(self.elapsed_s, 0.001)


class Look(NamedTuple):
    """What an act looked like at one moment."""

    at_s: float  # since the act began
    pool_bytes: int  # of request memory in use
    resident_bytes: int  # of the broker's process
    muted: int  # connections that are not read
    published: tuple[int, ...] = ()  # flights so far, of each airline that shares the quota


@dataclass(frozen=True, slots=True)
class Flooded:
    """The flood: what was sent into a small pool of request memory."""

    connections: int
    sent_bytes: int
    pool_bytes: int
    ceiling_bytes: int  # of the pool, with one frame that may be finished
    looks: list[Look]


@dataclass(frozen=True, slots=True)
class Shared:
    """A quota that airlines share: flights per second, and why they waited, in the words of `penstock why`."""

    per_s: int
    airlines: tuple[str, ...]
    looks: list[Look]
    words: list[str]


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What the broker went through while the flights passed."""

    flooded: Flooded
    shared: Shared
    killed: str  # what became of the consumer that was killed, in a sentence


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything on the page."""

    airlines: dict[str, str]  # code: name
    places: dict[str, Place]  # code: airport
    cells: dict[tuple[str, int], Delays]  # (airline, hour of the day in New York)
    days: list[tuple[date, Delays]]
    months: dict[str, list[tuple[str, Delays]]]  # airport: (month as 2013-01, …)
    destinations: dict[str, Delays]
    steps: list[tuple[int, int]]  # (first minute of a step, flights); the outermost hold everything beyond
    worst: list[WorstHour]
    movements: list[Movement]
    checks: list[Check]
    versions: str
    meanwhile: Meanwhile | None = None  # None: nobody has looked

    @property
    def total(self) -> Delays:
        """All flights."""
        return total(self.cells.values())


def total(many: Iterable[Delays]) -> Delays:
    """All of them together."""
    together = NONE
    for one in many:
        together = together.plus(one)
    return together
