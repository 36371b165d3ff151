# SPDX-License-Identifier: Apache-2.0
"""Findings of the demo that are made up, of the size of the real ones."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from random import Random

from examples.flight_demo.findings import (
    Delays,
    Findings,
    Flooded,
    Lag,
    Look,
    Meanwhile,
    Movement,
    Place,
    Shared,
    WorstHour,
)
from examples.flight_demo.report import Check

MIB = 1024 * 1024
NAMES = {"UA": "United Air Lines", "XX": 'Fly <b>"Bold"</b> & Sons', "9E": "Endeavor Air"}


def some_delays(random: Random) -> Delays:
    departed = random.randrange(1, 400)
    return Delays(departed + 3, departed, departed // 4, departed * random.randrange(-4, 60))


def made_up(seed: int = 2013) -> Findings:
    """Findings of the size of the real ones, by a seed."""
    random = Random(seed)
    lags = [Lag(336_776 - 42_097 * number, 120.0 + number) for number in range(1, 9)]
    days = [date(2013, 1, 1) + timedelta(days=number) for number in range(365)]
    return Findings(
        airlines=NAMES,
        places={
            f"A{number}": Place(f"Airport {number}", random.uniform(25, 49), random.uniform(-124, -67))
            for number in range(1400)
        },
        cells={(airline, hour): some_delays(random) for airline in (*NAMES, "ZZ") for hour in range(5, 24)},
        days=[(day, some_delays(random)) for day in days],
        months={
            airport: [(f"2013-{month:02}", some_delays(random)) for month in range(1, 13)]
            for airport in ("EWR", "JFK", "LGA")
        },
        destinations={f"A{number}": some_delays(random) for number in range(100)} | {"none": some_delays(random)},
        steps=[(step, random.randrange(100_000)) for step in range(-20, 125, 5)],
        worst=[WorstHour(datetime(2013, 12, 5, 10, tzinfo=UTC), "XX", 9, 6, 333.7)] * 8,
        movements=[
            Movement("Flights, read and stored", 336_776, 336_776, 14.0, [(42_097, 1.5)] * 8, lags),
            *[Movement("Hours, summed in windows", 336_776, 115_000, 14.0, [(336_776, 9.5)], [Lag(0, 0.0)])] * 3,
        ],
        checks=[Check(True, "every flight came back", "1 of 1"), Check(False, "the sums agree", "1 and 2")],
        versions="penstock 0",
        meanwhile=Meanwhile(
            flooded=Flooded(
                64,
                1_280 * MIB,
                16 * MIB,
                21 * MIB,
                [Look(number / 20, random.randrange(20 * MIB), 90 * MIB, number % 65) for number in range(120)],
            ),
            shared=Shared(
                4_000,
                ("UA", "9E"),
                [Look(number / 4, 0, 0, 0, (500 * number, 400 * number)) for number in range(240)],
                ["producer <p> waits: the quota of group largest."],
            ),
            killed="desk-a was killed.",
        ),
    )
