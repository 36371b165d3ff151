# SPDX-License-Identifier: Apache-2.0
"""The table as a page with plots: one dot for each broker's median, a line from its least to its most.

Why by hand: docs/adr/0014-plots-by-hand.md. Axes are logarithmic: loads differ by factors of a thousand, and equal
ratios are equally far apart.
Where: `run` leaves it beside the table; `tools/write_figures.py` puts the plots into the documentation.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any, Final

from benchmarks.loads import CORE, COST, RATE, RSS, VOLUME
from benchmarks.report import (
    BEFORE,
    KAFKA,
    KAFKA_SYNC,
    LIMIT,
    NAMES,
    NATS,
    NATS_SYNC,
    NOTHING,
    PARTS,
    PEER,
    PEERS,
    PENSTOCK,
    RATES,
    SUBJECTS,
    UNSYNCED,
    compare,
    short,
    times,
)
from penstock.cli.plots import STYLE, WIDTH, page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]  # as `report.as_json` writes it

LABEL_WIDTH: Final = 230
RIGHT: Final = 24
TOP: Final = 62
ROW_HEIGHT: Final = 22
AXIS_HEIGHT: Final = 26
COLOURS: Final = {PENSTOCK: 0, BEFORE: 2, PEER: 1, NATS: 4, NATS_SYNC: 5, KAFKA: 6, KAFKA_SYNC: 7, LIMIT: 8}
# Ratios have a colour of their own: they belong to no broker.
RATIO_COLOUR: Final = 3
# For light and dark pages; the first four colours of lines and text are the plots' own.
_FURTHER: Final = (
    ("0e7490", "22d3ee"),
    ("be123c", "fb7185"),
    ("a16207", "facc15"),
    ("4d7c0f", "a3e635"),
    ("57534e", "a8a29e"),
)


def _further(dark: int) -> str:
    return "".join(
        f".f{row},.t{row}{{fill:#{both[dark]}}}.l{row}{{stroke:#{both[dark]}}}" for row, both in enumerate(_FURTHER, 4)
    )


MORE: Final = (
    ".dot{stroke:none}.spread{stroke-width:2;opacity:.5}.f0{fill:#0b62a4}.f1{fill:#c2410c}.f2{fill:#15803d}"
    ".f3{fill:#7e22ce}@media(prefers-color-scheme:dark){.f0{fill:#60a5fa}.f1{fill:#fb923c}.f2{fill:#4ade80}"
    ".f3{fill:#c084fc}}"
)
# Where a plot has more columns than penstock and Apache Pulsar.
MORE_COLOURS: Final = f"{_further(0)}@media(prefers-color-scheme:dark){{{_further(1)}}}"
TABLE_STYLE: Final = (
    "<style>.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}"
    "th,td{text-align:left;padding:.2rem .5rem;border-bottom:1px solid #8884}</style>"
)

# What is plotted together: a title, and the figures.
GROUPS: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    ("Entries per second (more is better)", lambda figure: figure in RATES and figure != VOLUME),
    ("MB per second (more is better)", lambda figure: figure == VOLUME),
    ("Milliseconds (less is better)", lambda figure: figure.endswith(" ms")),
    ("Processor time of the broker, µs per entry (less is better)", lambda figure: figure == COST),
    ("Memory, MiB (less is better)", lambda figure: figure == RSS),
    ("Seconds to start (less is better)", lambda figure: figure.endswith(" s")),
)


def charts(rows: Sequence[Row]) -> dict[str, str]:
    """The plots of a table by title, each an SVG element."""
    found = {}
    for name in (*PEERS, LIMIT):
        compared = [row for row in rows if ratio_of(row, name) and row["figure"] not in {COST, CORE}]
        if compared:
            title = f"Times better than {NAMES[name]}" if name != LIMIT else "Share of what the machine reaches"
            points = [(label(row), [(RATIO_COLOUR, *spread_of_ratio(row, name))]) for row in compared]
            legend = {RATIO_COLOUR: "ratio of medians, and of the worst to the best rounds"}
            found[title] = dot_chart(title, points, legend)
    for title, belongs in GROUPS:
        mine = [
            row for row in rows_of(rows) if belongs(row["figure"]) and any(map(is_positive, row["by_subject"].values()))
        ]
        if mine:
            names = [name for name in SUBJECTS if any(name in row["by_subject"] for row in mine)]
            points = [
                (
                    label(row, with_figure=title.startswith(("Milli", "Entries"))),
                    [
                        (COLOURS[name], one["median"], one["least"], one["most"])
                        for name in names
                        if (one := row["by_subject"].get(name)) and is_positive(one)
                    ],
                )
                for row in mine
            ]
            found[title] = dot_chart(title, points, {COLOURS[name]: NAMES[name] for name in names})
    return found


def rows_of(rows: Sequence[Row]) -> list[Row]:
    """All rows but those about a part of the machine."""
    return [row for row in rows if row["figure"] not in PARTS]


def ratio_of(row: Row, name: str) -> float | None:
    """How many times better than another broker penstock is, or its share of the limit; None: that cannot be said."""
    found: float | None = row["ratio"] if name == PEER else row.get("ratios", {}).get(name)
    return found


def is_positive(summary: Mapping[str, Any]) -> bool:
    """Whether a figure has a place on a logarithmic axis."""
    return bool(summary["median"] > 0)


def label(row: Row, *, with_figure: bool = True) -> str:
    """Name a row of a plot."""
    figure = row["figure"]
    return f"{row['load']}, {figure}" if with_figure and figure not in {RATE, VOLUME} else str(row["load"])


def spread_of_ratio(row: Row, name: str) -> tuple[float, float, float]:
    """The ratio of the medians, and what the least and the most of both sides make of it."""
    own, peer = (row["by_subject"][side] for side in (PENSTOCK, name))
    upper, lower = (own, peer) if row["figure"] in RATES else (peer, own)
    middle = ratio_of(row, name) or 0.0
    least = upper["least"] / lower["most"] if upper["least"] > 0 else middle
    most = upper["most"] / lower["least"] if lower["least"] > 0 else middle
    return middle, least, most


def dot_chart(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[int, float, float, float]]]], legend: Mapping[int, str]
) -> str:
    """Draw rows of dots on a logarithmic axis.

    Args:
        title: what it shows.
        rows: for each, its name, and for each dot colour, median, least and most.
        legend: what the colours mean.
    """
    values = [value for _, dots in rows for _, *three in dots for value in three if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    height = TOP + ROW_HEIGHT * len(rows) + AXIS_HEIGHT

    def across(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return LABEL_WIDTH + share * (WIDTH - LABEL_WIDTH - RIGHT)

    said = "; ".join(
        f"{name}: {', '.join(f'{legend[colour]} {short(median)}' for colour, median, *_ in dots)}"
        for name, dots in rows
    )
    colours = MORE + MORE_COLOURS if max(legend) > RATIO_COLOUR else MORE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" ',
        f'aria-label="{escape(f"{title}: {said}")}"><style>{STYLE}{colours}</style>',
        f'<text class="text" x="8" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    at = 8
    for colour, name in legend.items():
        parts.append(f'<text class="t{colour}" x="{at}" y="40">● {escape(name)}</text>')
        at += 7 * len(name) + 34
    bottom = height - AXIS_HEIGHT
    for power in range(low, high + 1):
        x = across(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{bottom}"/>')
        parts.append(
            f'<text class="text" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:,.10g}</text>'
        )
    for row, (name, dots) in enumerate(rows):
        y = TOP + ROW_HEIGHT * row
        parts.append(f'<text class="text" x="{LABEL_WIDTH - 8}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        for colour, median, least, most in dots:
            parts.append(
                f'<line class="l{colour} spread" x1="{across(least):.1f}" x2="{across(most):.1f}" y1="{y}" y2="{y}"/>'
                f'<circle class="f{colour} dot" cx="{across(median):.1f}" cy="{y}" r="4">'
                f"<title>{escape(legend[colour])}: {short(median)}</title></circle>"
            )
    return "".join([*parts, "</svg>"])


def table(rows: Sequence[Row], names: Sequence[str] = SUBJECTS) -> list[list[str]]:
    """The cells of all rows, the heads first: for each broker its figure, its processor time, and the comparison.

    Processor time stands beside the first figure of a load.
    """
    found = [name for name in names if any(name in row["by_subject"] for row in rows)]
    heads = {name: [NAMES[name], "µs/entry", "ratio"] for name in found}
    heads[PENSTOCK] = [NAMES[PENSTOCK], "µs/entry"]
    heads[LIMIT] = [NAMES[LIMIT], "of the limit"]
    lines = [["load", "what it measures", "figure", *(head for name in found for head in heads[name])]]
    costs = {row["load"]: row["by_subject"] for row in rows if row["figure"] == COST}
    told: set[str] = set()
    for row in (row for row in rows_of(rows) if row["figure"] != COST):
        first = row["load"] not in told
        cost = costs.get(row["load"], {}) if first else {}
        line = [row["load"], row["text"] if first else "", row["figure"]]
        for name in found:
            line.append(spread(row["by_subject"].get(name), NOTHING))
            if name != LIMIT:
                line.append(spread(cost.get(name)))
            if name != PENSTOCK:
                line.append(times(row["gain"]) if name == BEFORE else compare(name, ratio_of(row, name)))
        lines.append(line)
        told.add(row["load"])
    return lines


def parts_table(rows: Sequence[Row]) -> list[list[str]]:
    """What each part of the machine reaches in each load, the heads first; empty without such figures."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["figure"] in PARTS:
            cells.setdefault(row["load"], {})[row["figure"]] = spread(row["by_subject"].get(LIMIT), NOTHING)
    lines = [[load, *(mine.get(part, NOTHING) for part in PARTS)] for load, mine in cells.items()]
    return [["load", *PARTS], *lines] if lines else []


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line is that of the heads."""
    head, *body = [[escape(cell) for cell in line] for line in lines]
    parts = ['<div class="wide"><table>', *(f"<th>{cell}</th>" for cell in head)]
    parts += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body]
    return "".join([*parts, "</table></div>", TABLE_STYLE])


def spread(summary: Mapping[str, Any] | None, without: str = "") -> str:
    """Median, and least to most; `without` any."""
    if summary is None:
        return without
    ends = "" if summary["least"] == summary["most"] else f" ({short(summary['least'])}–{short(summary['most'])})"
    return f"{short(summary['median'])}{ends}{' void' if summary['void'] else ''}"


def about_line(about: Mapping[str, Any], rows: Sequence[Row] = ()) -> str:
    """When and where it was measured, and who synced before receipts."""
    note = f" {about['note']}" if "note" in about else ""
    lax = [NAMES[name] for name in UNSYNCED if any(name in row["by_subject"] for row in rows)]
    synced = f"all but {' and '.join(lax)} sync before they acknowledge" if lax else "both with fsync"
    return f"Measured {about['at'][:10]} on {about['machine']}, Python {about['python']}; {synced}.{note}"


def html_page(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole page."""
    tables = [html_table(lines) for lines in (table(rows), parts_table(rows)) if lines]
    return page("penstock, measured", [escape(about_line(about, rows)), *charts(rows).values(), *tables])
