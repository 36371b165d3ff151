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
from benchmarks.report import BEFORE, NAMES, PEER, PENSTOCK, RATES, SUBJECTS, short, times
from penstock.cli.plots import STYLE, WIDTH, page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]  # as `report.as_json` writes it

LABEL_WIDTH: Final = 230
RIGHT: Final = 24
TOP: Final = 62
ROW_HEIGHT: Final = 22
AXIS_HEIGHT: Final = 26
COLOURS: Final = {PENSTOCK: 0, BEFORE: 2, PEER: 1}
# Ratios have a colour of their own: they belong to no broker.
RATIO_COLOUR: Final = 3
MORE: Final = (
    ".dot{stroke:none}.spread{stroke-width:2;opacity:.5}.f0{fill:#0b62a4}.f1{fill:#c2410c}.f2{fill:#15803d}"
    ".f3{fill:#7e22ce}@media(prefers-color-scheme:dark){.f0{fill:#60a5fa}.f1{fill:#fb923c}.f2{fill:#4ade80}"
    ".f3{fill:#c084fc}}"
)
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
    compared = [row for row in rows if row["ratio"] and row["figure"] not in {COST, CORE}]
    if compared:
        title = "Times better than Apache Pulsar"
        points = [(label(row), [(RATIO_COLOUR, *spread_of_ratio(row))]) for row in compared]
        found[title] = dot_chart(title, points, {RATIO_COLOUR: "ratio of medians, and of the worst to the best rounds"})
    for title, belongs in GROUPS:
        mine = [row for row in rows if belongs(row["figure"]) and any(map(is_positive, row["by_subject"].values()))]
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


def is_positive(summary: Mapping[str, Any]) -> bool:
    """Whether a figure has a place on a logarithmic axis."""
    return bool(summary["median"] > 0)


def label(row: Row, *, with_figure: bool = True) -> str:
    """Name a row of a plot."""
    figure = row["figure"]
    return f"{row['load']}, {figure}" if with_figure and figure not in {RATE, VOLUME} else str(row["load"])


def spread_of_ratio(row: Row) -> tuple[float, float, float]:
    """The ratio of the medians, and what the least and the most of both sides make of it."""
    own, peer = (row["by_subject"][name] for name in (PENSTOCK, PEER))
    upper, lower = (own, peer) if row["figure"] in RATES else (peer, own)
    least = upper["least"] / lower["most"] if upper["least"] > 0 else row["ratio"]
    most = upper["most"] / lower["least"] if lower["least"] > 0 else row["ratio"]
    return row["ratio"], least, most


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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" ',
        f'aria-label="{escape(f"{title}: {said}")}"><style>{STYLE}{MORE}</style>',
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


def html_table(rows: Sequence[Row]) -> str:
    """The table of all rows, processor time beside the first figure of a load."""
    subjects = [name for name in SUBJECTS if any(name in row["by_subject"] for row in rows)]
    heads = ["load", "what it measures", "figure", *(part for name in subjects for part in (NAMES[name], "µs/entry"))]
    lines = [[*heads, *(["than before"] if BEFORE in subjects else []), "times better"]]
    costs = {row["load"]: row["by_subject"] for row in rows if row["figure"] == COST}
    told: set[str] = set()
    for row in (row for row in rows if row["figure"] != COST):
        cost = {} if row["load"] in told else costs.get(row["load"], {})
        cells = [cell for name in subjects for cell in (spread(row["by_subject"].get(name)), spread(cost.get(name)))]
        before = [times(row["gain"])] if BEFORE in subjects else []
        text = "" if row["load"] in told else row["text"]
        lines.append([row["load"], text, row["figure"], *cells, *before, times(row["ratio"])])
        told.add(row["load"])
    head, *body = [[escape(str(cell)) for cell in line] for line in lines]
    parts = ['<div class="wide"><table>', *(f"<th>{cell}</th>" for cell in head)]
    parts += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body]
    return "".join([*parts, "</table></div>", TABLE_STYLE])


def spread(summary: Mapping[str, Any] | None) -> str:
    """Median, and least to most."""
    if summary is None:
        return ""
    ends = "" if summary["least"] == summary["most"] else f" ({short(summary['least'])}–{short(summary['most'])})"
    return f"{short(summary['median'])}{ends}{' void' if summary['void'] else ''}"


def about_line(about: Mapping[str, Any]) -> str:
    """When, where and how often it was measured."""
    note = f" {about['note']}" if "note" in about else ""
    return f"Measured {about['at'][:10]} on {about['machine']}, Python {about['python']}; both with fsync.{note}"


def html_page(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole page."""
    return page("penstock, measured", [escape(about_line(about)), *charts(rows).values(), html_table(rows)])
