# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, by hand (docs/adr/0014-plots-by-hand.md): one file, light and dark, no script.

Where: `penstock replay --plot`, and the plots of simulations in the documentation.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 720
HEIGHT: Final = 240
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 34
_BOTTOM: Final = 30
_TICKS: Final = 4
# A chart is 640 pixels wide: of more points, each pixel shows the lowest and the highest.
_COLUMNS: Final = 640

STYLE: Final = (
    "svg{font:12px system-ui,sans-serif;background:#fff;color:#222}"
    ".grid{stroke:#ddd}.text{fill:#222}.l0{stroke:#0b62a4}.l1{stroke:#c2410c}.l2{stroke:#15803d}.l3{stroke:#7e22ce}"
    ".t0{fill:#0b62a4}.t1{fill:#c2410c}.t2{fill:#15803d}.t3{fill:#7e22ce}path{fill:none;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){svg{background:#111;color:#ddd}.grid{stroke:#333}.text{fill:#ddd}"
    ".l0{stroke:#60a5fa}.l1{stroke:#fb923c}.l2{stroke:#4ade80}.l3{stroke:#c084fc}"
    ".t0{fill:#60a5fa}.t1{fill:#fb923c}.t2{fill:#4ade80}.t3{fill:#c084fc}}"
)


class Line(NamedTuple):
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, lines: Sequence[Line], *, x_unit: str = "s", style: bool = True) -> str:
    """Return a chart as an SVG element. The y axis begins at 0; at most four lines have colours of their own."""
    last_x = max((x for line in lines for x, _ in line.points), default=0.0) or 1.0
    first_x = min((x for line in lines for x, _ in line.points), default=0.0)
    top_y = max((y for line in lines for _, y in line.points), default=0.0) or 1.0
    span = (last_x - first_x) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first_x) / span * (WIDTH - _LEFT - _RIGHT)
        return _LEFT + across, HEIGHT - _BOTTOM - y / top_y * (HEIGHT - _TOP - _BOTTOM)

    said = "; ".join(f"{line.name} from {_first(line):g} to {_last(line):g}" for line in lines if line.points)
    label = escape(f"{title}: {said}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>" if style else "",
        f'<text class="text" x="{_LEFT}" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in range(_TICKS + 1):
        x, y = place(first_x + span * tick / _TICKS, top_y * tick / _TICKS)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="text" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top_y * tick / _TICKS:,.4g}</text>'
        )
        at_x = f"{first_x + span * tick / _TICKS:,.4g} {x_unit}"
        anchor = "end" if tick == _TICKS else "middle"
        parts.append(f'<text class="text" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{at_x}</text>')
    at = _LEFT
    for number, line in enumerate(lines):
        colour = number % 4
        parts.append(f'<text class="t{colour}" x="{at}" y="29">{escape(line.name)}</text>')
        at += 7 * len(line.name) + 18
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in _thinned(line.points)))
        if path:
            parts.append(f'<path class="l{colour}" d="M{path}"/>')
    return "".join([*parts, "</svg>"])


def page(title: str, charts: Sequence[str]) -> str:
    """Return an HTML page with charts, one below the other."""
    body = "\n".join(f"<p>{one}</p>" for one in charts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>body{{max-width:60rem;margin:1rem auto;'
        f"font-family:system-ui,sans-serif;color-scheme:light dark}}svg{{width:100%}}</style>"
        f"<h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= 2 * _COLUMNS:
        return points
    size = -(-len(points) // _COLUMNS)
    kept = []
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        kept += sorted({min(piece, key=lambda one: one[1]), max(piece, key=lambda one: one[1])})
    return kept


def _first(line: Line) -> float:
    return line.points[0][1]


def _last(line: Line) -> float:
    return line.points[-1][1]
