# SPDX-License-Identifier: Apache-2.0
"""The map: every airport of the country as a dot, and the way to each place that New York's flights went to.

Why: a thousand airfields draw the outline of a country by themselves, without a map to fetch or to ship.
Where: `document` puts it at the head of the page, once: it has no writing in it, so it may be scaled.
"""

from __future__ import annotations

from math import cos, hypot, radians, sin, sqrt
from typing import TYPE_CHECKING, Final

from examples.flight_demo.page.squares import level
from examples.flight_demo.page.svg import drawing, tag, words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.flight_demo.findings import Findings, Place

WIDTH, HEIGHT = 640.0, 408.0
NEW_YORK: Final = (40.7, -74.0)
# Albers' equal-area projection, with the parallels customary for the forty-eight states.
SOUTH, NORTH, MIDDLE, MERIDIAN = 29.5, 45.5, 37.5, -96.0
SCALE: Final = 850.0  # pixels for each radian
CENTRE: Final = (322.0, 212.0)
# The forty-eight states, roughly; what lies outside has dots of its own in no recognisable shape.
LATITUDES, LONGITUDES = (24.0, 49.5), (-125.0, -66.5)
BULGE: Final = 0.16  # how far a way bends, as a share of its length


def project(latitude: float, longitude: float) -> tuple[float, float]:
    """Where a place is on the map, in pixels."""
    n = (sin(radians(SOUTH)) + sin(radians(NORTH))) / 2
    c = cos(radians(SOUTH)) ** 2 + 2 * n * sin(radians(SOUTH))
    turn = n * radians(longitude - MERIDIAN)
    rho, rho_middle = (sqrt(c - 2 * n * sin(radians(degrees))) / n for degrees in (latitude, MIDDLE))
    return CENTRE[0] + SCALE * rho * sin(turn), CENTRE[1] - SCALE * (rho_middle - rho * cos(turn))


def route_map(findings: Findings) -> str:
    """Airports as dots and routes as arcs: as wide as there are flights, in the colour of their mean delay."""
    busiest = max((delays.flights for delays in findings.destinations.values()), default=1)
    known = sorted(
        ((delays, findings.places[code]) for code, delays in findings.destinations.items() if code in findings.places),
        key=lambda way: way[0].flights,
    )
    marks = [_dots(findings.places.values())]
    for delays, place in known:
        told = f"{place.name}: {delays.flights:,} flights, {delays.mean_min:.1f} min late on average"
        width = 0.7 + 4.3 * sqrt(delays.flights / busiest)
        marks.append(_way(place, f"way s{level(delays.mean_min)}", width, told))
    x, y = project(*NEW_YORK)
    marks.append(tag("circle", cx=x, cy=y, r=5, class_="home"))
    favourite = known[-1][1].name if known else "nowhere"
    says = f"Map of the {len(known)} places that flights from New York went to; most of all, {favourite}."
    return drawing(WIDTH, HEIGHT, marks, says=says, class_="map")


def _dots(places: Iterable[Place]) -> str:
    points = [
        project(place.latitude, place.longitude)
        for place in places
        if LATITUDES[0] < place.latitude < LATITUDES[1] and LONGITUDES[0] < place.longitude < LONGITUDES[1]
    ]
    # A line of no length with round ends is a dot; a thousand of them in one element are small.
    return tag("path", d="".join(f"M{x:.0f} {y:.0f}h0" for x, y in points), class_="dots")


def _way(place: Place, class_: str, width: float, told: str) -> str:
    """An arc from New York that bends to the north, as ways round the globe do."""
    (x1, y1), (x2, y2) = project(*NEW_YORK), project(place.latitude, place.longitude)
    length = hypot(x2 - x1, y2 - y1)
    bend = BULGE if x2 < x1 else -BULGE
    x = (x1 + x2) / 2 - bend * (y1 - y2)
    y = (y1 + y2) / 2 + bend * (x2 - x1) if length else y1
    curve = f"M{x1:.0f} {y1:.0f}Q{x:.0f} {y:.0f} {x2:.0f} {y2:.0f}"
    return tag("path", tag("title", words(told)), d=curve, class_=class_, stroke_width=width)
