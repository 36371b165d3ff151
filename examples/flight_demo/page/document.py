# SPDX-License-Identifier: Apache-2.0
"""The page itself: what is said, in which order, and everything in one file.

Why: somebody who opens it next year, on a telephone, without a network, sees the same. So there is no script and
nothing to fetch; each plot is there wide and narrow, and says in words and as a table what it shows.
Where: `analysis` writes what `render` returns; it depends on `findings` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.flight_demo.page import curves, squares
from examples.flight_demo.page.routes import route_map
from examples.flight_demo.page.squares import MONTHS, rows_of
from examples.flight_demo.page.svg import tag, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from examples.flight_demo.findings import Findings, Meanwhile, Movement

MIB = 1024 * 1024
TITLE = "A year of departures"
MAP = "Where they went. Width: flights. Colour: mean delay at departure, in stronger shades of the colours below."
PATH = (
    "A message is one line of the file. Spark's streaming queries read them from the broker's log into tables, and "
    "hours back into a topic, from which Pulsar's official client read them."
)


def render(findings: Findings) -> str:
    """The whole page."""
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", words(f"{TITLE}: New York, 2013")),
        tag("style", style),
    )
    body = tag(
        "main",
        _opening(findings),
        _tiles(findings),
        _hours(findings),
        tag("div", _months(findings), _how_late(findings), class_="pair"),
        _days(findings),
        _worst(findings),
        *([_through(findings.meanwhile)] if findings.meanwhile is not None else []),
        *(_behind(step) for step in findings.movements if any(lag.messages for lag in step.lags)),
        _moved(findings),
        tag("footer", tag("p", words(findings.versions))),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


# ------------------------------------------------------------------------------------------------------------ sections


def _opening(findings: Findings) -> str:
    text = (
        f"{findings.total.flights:,} flights were to leave New York's three airports in 2013. Each was published to a "
        "penstock broker, read back by Spark and added up by airline and hour. What you see was reconciled with what "
        "was sent, to the last flight."
    )
    names = {code: place.name for code, place in findings.places.items()}
    rows = [
        [names.get(code, code), f"{delays.flights:,}", f"{delays.mean_min:.1f}"]
        for code, delays in sorted(findings.destinations.items(), key=lambda way: -way[1].flights)
    ]
    return tag(
        "header",
        tag(
            "div",
            tag("p", "penstock · the demo", class_="eyebrow"),
            tag("h1", words(TITLE)),
            tag("p", words(text), class_="lead"),
        ),
        tag("figure", route_map(findings), tag("figcaption", words(MAP))),
        _numbers(_table(["Destination", "Flights", "Mean delay"], rows)),
    )


def _tiles(findings: Findings) -> str:
    whole, first = findings.total, findings.movements[0]
    departed = max(whole.departed, 1)
    tiles = (
        (f"{whole.flights:,}", "flights, from the broker's log"),
        (f"{whole.mean_min:.1f} min", "late on average"),
        (f"{whole.late / departed:.0%}", "left 15 minutes late or more"),
        (f"{whole.cancelled / max(whole.flights, 1):.1%}", "were cancelled"),
        (f"{first.rows_per_s:,.0f}/s", "rows from broker to table"),
    )
    return tag("ul", *(tag("li", tag("b", words(number)), words(what)) for number, what in tiles), class_="tiles")


def _hours(findings: Findings) -> str:
    hours = squares.hours_of(findings.cells)
    rows = [
        [findings.airlines.get(airline, airline), *(_mean(findings, airline, hour) for hour in hours)]
        for airline, _ in rows_of(findings.cells)
    ]
    return _section(
        "Hour by hour, airline by airline",
        "Mean departure delay in minutes, by scheduled hour in New York. The airline that leaves latest stands on top. "
        f"A small square stands for fewer than {squares.FEW} departures in the whole year.",
        (squares.heat_map(findings, wide=wide) for wide in (True, False)),
        _table(["Airline", *map(str, hours)], rows),
    )


def _mean(findings: Findings, airline: str, hour: int) -> str:
    delays = findings.cells.get((airline, hour))
    return f"{delays.mean_min:.1f}" if delays is not None and delays.departed else ""


def _months(findings: Findings) -> str:
    airports = sorted(findings.months)
    means = {(airport, month): delays.mean_min for airport in airports for month, delays in findings.months[airport]}
    rows = [
        [MONTHS[int(month[-2:]) - 1], *(f"{means.get((airport, month), 0.0):.1f}" for airport in airports)]
        for month in sorted({month for _, month in means})
    ]
    return _section(
        "Summer, and the holidays",
        "Mean departure delay in minutes, month by month, at Newark (EWR), Kennedy (JFK) and LaGuardia (LGA).",
        (curves.months(findings.months, wide=wide) for wide in (True, False)),
        _table(["Month", *airports], rows),
    )


def _how_late(findings: Findings) -> str:
    rows = [[f"{from_min}", f"{flights:,}"] for from_min, flights in findings.steps]
    return _section(
        "How late is late",
        "Share of the flights that left, in steps of five minutes; the outermost hold everything beyond.",
        (curves.histogram(findings.steps, wide=wide) for wide in (True, False)),
        _table(["From minute", "Flights"], rows),
    )


def _days(findings: Findings) -> str:
    rows = [
        [f"{day:%d %B}", f"{delays.flights:,}", f"{delays.cancelled:,}", f"{delays.mean_min:.1f}"]
        for day, delays in findings.days
    ]
    return _section(
        "Every day of the year",
        "Mean departure delay of all airlines together, in the same colours.",
        (squares.calendar(findings.days, wide=wide) for wide in (True, False)),
        _table(["Day", "Flights", "Cancelled", "Mean delay"], rows),
    )


def _worst(findings: Findings) -> str:
    rows = [
        [
            f"{hour.hour:%d %b, %H:%M}",
            findings.airlines.get(hour.airline, hour.airline),
            f"{hour.departed} of {hour.flights}",
            f"{hour.mean_min:.0f}",
        ]
        for hour in findings.worst
    ]
    return tag(
        "section",
        tag("h2", "The worst hours"),
        tag(
            "p",
            "Hours in which an airline's flights left latest on average, of those with five departures or more.",
            class_="caption",
        ),
        _table(["Scheduled", "Airline", "Left", "Mean min"], rows, left=2),
    )


def _through(meanwhile: Meanwhile) -> str:
    """What the broker went through: the flood, the quota, the kill."""
    flooded, shared = meanwhile.flooded, meanwhile.shared
    most = max((look.pool_bytes for look in flooded.looks), default=0)
    muted = max((look.muted for look in flooded.looks), default=0)
    flood = _section(
        "A flood that did not drown it",
        f"{flooded.connections} connections sent {flooded.sent_bytes / MIB:,.0f} MiB at once to a broker with "
        f"{flooded.pool_bytes / MIB:,.0f} MiB for requests. It was seen to use {most / MIB:.1f} MiB, and may use "
        f"{flooded.ceiling_bytes / MIB:.1f}, because one frame may be finished. Meanwhile up to {muted} connections "
        "were not read. All messages were stored.",
        (curves.flood(flooded, wide=wide) for wide in (True, False)),
        _table(
            ["Second", "Pool, MiB", "Connections not read", "Process, MiB"],
            [
                [f"{one.at_s:.2f}", f"{one.pool_bytes / MIB:.1f}", f"{one.muted}", f"{one.resident_bytes / MIB:.0f}"]
                for one in flooded.looks
            ],
        ),
    )
    rates = curves.rates_of(shared.looks)
    quota = _section(
        "A quota for two",
        f"The airlines {' and '.join(shared.airlines)} share a quota of {shared.per_s:,} flights a second; a year was "
        f"replayed in {shared.looks[-1].at_s if shared.looks else 0:.0f} s. "
        + (
            "".join(f"In the broker's words: {one}" for one in shared.words[:1])
            or "In no look did one of them wait for it."
        ),
        (curves.shares(shared, wide=wide) for wide in (True, False)),
        _table(
            ["Second", *(f"{airline}, flights a second" for airline in shared.airlines)],
            [[f"{at_s:.1f}", *(f"{rate:,.0f}" for rate in each)] for at_s, each in rates],
        ),
    )
    killed = tag("section", tag("h2", "A consumer that was killed"), tag("p", words(meanwhile.killed)))
    return tag("div", flood, quota, class_="pair") + killed


def _behind(step: Movement) -> str:
    """How a query caught up with its topics."""
    rows = [
        (str(number), f"{rows:,}", f"{lag.messages:,}", f"{lag.seconds:,.1f}")
        for number, ((rows, _), lag) in enumerate(zip(step.batches, step.lags, strict=True), 1)
    ]
    return _section(
        f"How far Spark was behind: {step.what.lower()}",
        "Messages of the topics that the query had not read yet at the end of each micro-batch.",
        (curves.lags(step.lags, wide=True), curves.lags(step.lags, wide=False)),
        _table(["Micro-batch", "Rows", "Messages behind", "Seconds since the oldest was published"], rows),
    )


def _moved(findings: Findings) -> str:
    """Where the rows went, how fast, and what was compared."""
    steps = [
        tag("li", tag("b", words(step.what)), tag("span", words(f"{step.rows_out:,} rows")), words(_pace(step)))
        for step in findings.movements
    ]
    checks = [
        tag(
            "li",
            words(check.claim),
            tag("span", words(f": {check.detail}" if check.detail else "")),
            class_="passed" if check.passed else "failed",
        )
        for check in findings.checks
    ]
    return tag(
        "section",
        tag("h2", "How the numbers came here, and what was checked"),
        tag("p", words(PATH), class_="caption"),
        tag("ol", *steps, class_="path"),
        tag("ul", *checks, class_="checks"),
    )


def _pace(step: Movement) -> str:
    """How fast a step went: all of its time counts, that in which Spark starts it too."""
    pace = f"{step.elapsed_s:,.1f} s, {step.rows_per_s:,.0f} rows/s"
    full = [rows / elapsed_s for rows, elapsed_s in step.batches if rows and elapsed_s]
    if len(full) < 2:
        return pace
    return f"{pace}; {len(full)} micro-batches, the last at {full[-1]:,.0f} rows/s"


# --------------------------------------------------------------------------------------------------------------- pieces


def _section(title: str, caption: str, drawings: Iterable[str], table: str) -> str:
    """A plot with what it shows, wide and narrow, and its numbers for those who want them."""
    return tag(
        "section",
        tag("h2", words(title)),
        tag("p", words(caption), class_="caption"),
        tag("figure", *drawings),
        _numbers(table),
    )


def _numbers(table: str) -> str:
    """What a plot shows, as a table for those who want it or cannot see the plot."""
    return tag("details", tag("summary", "The numbers"), tag("div", table, class_="scroll"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns hold words; the others, numbers."""

    def cells(name: str, row: Sequence[str], **attributes: object) -> str:
        return tag(
            "tr",
            *(
                tag(name, words(cell), **attributes, **({"class_": "left"} if index < left else {}))
                for index, cell in enumerate(row)
            ),
        )

    return tag("table", tag("thead", cells("th", head, scope="col")), tag("tbody", *(cells("td", row) for row in rows)))
