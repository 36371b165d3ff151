# SPDX-License-Identifier: Apache-2.0
"""Drawings with axes: the delay over the months, how late flights left, and how far Spark was behind.

Where: `document` asks for each drawing twice, wide for desks and narrow for phones; the style shows the one that fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from examples.flight_demo.findings import EARLIEST_MIN, LATE_MIN, LATEST_MIN, STEP_MIN
from examples.flight_demo.page.squares import MONTHS, NARROW
from examples.flight_demo.page.svg import dot, drawing, label, line, rule, square, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.flight_demo.findings import Delays, Flooded, Lag, Look, Shared

Point: TypeAlias = "tuple[float, float]"

HALF: Final = 470.0  # two stand beside each other on a desk
HEIGHT: Final = 270.0
TOP, BOTTOM = 14.0, 34.0


def _size(*, wide: bool) -> tuple[float, str]:
    return (HALF, "wide") if wide else (NARROW, "narrow")


def _grid(left: float, width: float, highest: float, unit: str = "") -> list[str]:
    """Horizontal lines at round numbers, with the numbers."""
    marks = []
    for value in ticks(highest, 4):
        y = _y(value, highest)
        marks.append(rule(left, y, width, y))
        marks.append(label(left - 6, y + 4, f"{value:,.0f}{unit}", "small", "end"))
    return marks


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / max(highest, 1e-9)


# --------------------------------------------------------------------------------------------------------- the months


def months(airports: dict[str, list[tuple[str, Delays]]], *, wide: bool) -> str:
    """Mean delay over the months, a line for each airport."""
    width, class_ = _size(wide=wide)
    left, right = 30.0, 40.0
    highest = max(1.0, *(delays.mean_min for points in airports.values() for _, delays in points)) * 1.08
    step = (width - left - right) / 11
    marks = _grid(left, width - right + 6, highest)
    marks += [
        label(left + index * step, HEIGHT - 12, name if wide else name[0], "small", "middle")
        for index, name in enumerate(MONTHS)
    ]
    ends = []
    for number, (airport, points) in enumerate(sorted(airports.items())):
        at = [(left + (int(month[-2:]) - 1) * step, _y(max(delays.mean_min, 0.0), highest)) for month, delays in points]
        marks.append(line(at, f"line a{number}"))
        marks += [
            dot(x, y, 3, f"dot a{number}", f"{airport}, {month}: {delays.mean_min:.1f} min on average")
            for (x, y), (month, delays) in zip(at, points, strict=True)
        ]
        ends.append((at[-1][1] + 4, airport, number))
    marks += [label(width - right + 10, y, airport, f"name t{number}") for y, airport, number in _apart(ends)]
    says = f"Mean departure delay in minutes over the months of 2013, by airport: {_peaks(airports)}."
    return drawing(width, HEIGHT, marks, says=says, class_=class_)


def _peaks(airports: dict[str, list[tuple[str, Delays]]]) -> str:
    """The worst month of each airport, in words."""
    worst = {airport: max(points, key=lambda point: point[1].mean_min) for airport, points in airports.items()}
    return ", ".join(
        f"{airport} at most {delays.mean_min:.0f} in {MONTHS[int(month[-2:]) - 1]}"
        for airport, (month, delays) in sorted(worst.items())
    )


def _apart(ends: list[tuple[float, str, int]]) -> list[tuple[float, str, int]]:
    """Labels moved down until none covers another."""
    placed: list[tuple[float, str, int]] = []
    for y, airport, number in sorted(ends):
        placed.append((max(y, placed[-1][0] + 14) if placed else y, airport, number))
    return placed


# ------------------------------------------------------------------------------------------------ how late flights left


def histogram(steps: list[tuple[int, int]], *, wide: bool) -> str:
    """How many flights left how late, in steps of minutes."""
    width, class_ = _size(wide=wide)
    left, first, last = 38.0, EARLIEST_MIN, LATEST_MIN
    per_min = (width - left) / (last - first + STEP_MIN)
    departed = sum(flights for _, flights in steps)
    highest = max(flights for _, flights in steps) / departed * 100 * 1.05
    marks = _grid(left, width, highest, " %")
    for from_min, flights in steps:
        share = flights / departed * 100
        x, y = left + (from_min - first) * per_min, _y(share, highest)
        told = f"{_span(from_min)}: {flights:,} flights, {share:.1f} %"
        bar = (x, y, STEP_MIN * per_min - 1.5, HEIGHT - BOTTOM - y)
        marks.append(square(*bar, f"h{_tone(from_min)}", told, radius=1))
    for at_min in range(0, last, 30):
        marks.append(label(left + (at_min - first) * per_min, HEIGHT - 16, at_min, "small", "middle"))
    marks.append(label(width, HEIGHT - 16, f"{last}+", "small", "end"))
    marks.append(label(width, HEIGHT - 2, "minutes after schedule", "small", "end"))
    early, punctual, late = _shares(steps)
    marks += _key(left + (LATE_MIN - first) * per_min + 24, (early, punctual, late))
    says = (
        f"Histogram of departure delay. {early:.0f} % of flights left early, {punctual:.0f} % on the minute or less "
        f"than {LATE_MIN} minutes late, {late:.0f} % later."
    )
    return drawing(width, HEIGHT, marks, says=says, class_=class_)


def _shares(steps: list[tuple[int, int]]) -> tuple[float, float, float]:
    """Of the flights that left: how many percent early, how many punctual, how many late."""
    departed = sum(flights for _, flights in steps)
    early = sum(flights for from_min, flights in steps if from_min < 0)
    late = sum(flights for from_min, flights in steps if from_min >= LATE_MIN)
    return early / departed * 100, (departed - early - late) / departed * 100, late / departed * 100


def _key(x: float, shares: tuple[float, float, float]) -> list[str]:
    """What the three colours stand for and add up to."""
    marks = []
    meanings = (("left early", -1), (f"less than {LATE_MIN} min late", 0), ("later", LATE_MIN))
    for number, (share, (meaning, from_min)) in enumerate(zip(shares, meanings, strict=True)):
        y = TOP + 30 + number * 34
        marks.append(square(x, y - 11, 12, 12, f"h{_tone(from_min)}"))
        marks.append(label(x + 20, y, f"{share:.0f} %", "big"))
        marks.append(label(x + 78, y, meaning, "name"))
    return marks


def _tone(from_min: int) -> int:
    return 0 if from_min < 0 else 2 if from_min < LATE_MIN else 5


def _span(from_min: int) -> str:
    if from_min == EARLIEST_MIN:
        return f"{-EARLIEST_MIN - STEP_MIN + 1} min early and more"
    return (
        f"{LATEST_MIN} min late and more" if from_min == LATEST_MIN else f"{from_min} to {from_min + STEP_MIN - 1} min"
    )


# --------------------------------------------------------------------------------------------- how far Spark was behind


def lags(found: list[Lag], *, wide: bool) -> str:
    """How many messages a stream had not read yet at the end of each micro-batch."""
    width, class_ = _size(wide=wide)
    left = 62.0
    each = (width - left) / len(found)
    most = max(one.messages for one in found)
    marks = _grid(left, width, most * 1.05)
    for number, one in enumerate(found):
        x, y = left + number * each, _y(one.messages, most * 1.05)
        told = f"after micro-batch {number + 1}: {one.messages:,} messages and {one.seconds:,.0f} s behind"
        marks.append(square(x + each * 0.1, y, each * 0.8, HEIGHT - BOTTOM - y, "h5", told, radius=1))
    for number in {0, len(found) - 1}:
        marks.append(label(left + (number + 0.5) * each, HEIGHT - 16, number + 1, "small", "middle"))
    marks.append(label(width, HEIGHT - 2, "micro-batches", "small", "end"))
    says = (
        f"Messages that the stream had not read yet at the end of each of {len(found)} micro-batches: at first "
        f"{found[0].messages:,}, in the end {found[-1].messages:,}."
    )
    return drawing(width, HEIGHT, marks, says=says, class_=class_)


# --------------------------------------------------------------------------------------- what the broker went through

MIB: Final = 1024 * 1024
# Seconds over which a rate is taken: of less, a few receipts more or less would be all that is seen.
RATE_S: Final = 1.0


def flood(found: Flooded, *, wide: bool) -> str:
    """How full the pool of request memory was, under its ceiling."""
    points = [(look.at_s, look.pool_bytes / MIB) for look in found.looks]
    ceiling = found.ceiling_bytes / MIB
    most = max((value for _, value in points), default=0.0)
    span = f"over {_end(points):.1f} seconds of flood"
    says = f"Request memory in use, {span}: at most {most:.1f} MiB, below {ceiling:.1f} MiB."
    return _over_time([points], (ceiling, "ceiling"), says=says, wide=wide)


def shares(found: Shared, *, wide: bool) -> str:
    """How many flights a second each airline published, and the quota of both."""
    rates = rates_of(found.looks)
    lines = [[(at_s, each[number]) for at_s, each in rates] for number in range(len(found.airlines))]
    most = max((sum(each) for _, each in rates), default=0.0)
    both = " and ".join(found.airlines)
    says = f"Flights a second of {both}: together at most {most:,.0f}, with a quota of {found.per_s:,}."
    return _over_time(lines, (found.per_s, "quota"), says=says, wide=wide, names=found.airlines)


def rates_of(looks: Sequence[Look]) -> list[tuple[float, list[float]]]:
    """Rates between looks that are a second apart or more."""
    found, before = [], looks[0] if looks else None
    for look in looks:
        if before is not None and look.at_s - before.at_s >= RATE_S:
            seconds = look.at_s - before.at_s
            pairs = zip(look.published, before.published, strict=True)
            found.append((look.at_s, [(now - then) / seconds for now, then in pairs]))
            before = look
    return found


def _over_time(
    lines: Sequence[Sequence[Point]], limit: tuple[float, str], *, says: str, wide: bool, names: Sequence[str] = ()
) -> str:
    """Lines over seconds, and a limit above them."""
    width, class_ = _size(wide=wide)
    left, right = 44.0, 60.0
    highest = max(limit[0], *(value for points in lines for _, value in points), 1.0) * 1.1
    last_s = max(1.0, *(_end(points) for points in lines))
    marks = _grid(left, width - right + 6, highest)
    for at_s in ticks(last_s, 5):
        marks.append(label(left + (width - left - right) * at_s / last_s, HEIGHT - 16, f"{at_s:g}", "small", "middle"))
    marks.append(label(width - right, HEIGHT - 2, "seconds", "small", "end"))
    for number, points in enumerate(lines):
        at = [(left + (width - left - right) * at_s / last_s, _y(value, highest)) for at_s, value in points]
        if at:
            marks.append(line(at, f"line a{number}"))
    ends = [
        (_y(points[-1][1], highest) + 4, name, number)
        for number, (points, name) in enumerate(zip(lines, names, strict=False))
        if points
    ]
    marks += [label(width - right + 10, y, name, f"name t{number}") for y, name, number in _apart(ends)]
    y = _y(limit[0], highest)
    marks += [rule(left, y, width - right + 6, y, "limit"), label(width - right + 10, y + 4, limit[1], "small")]
    return drawing(width, HEIGHT, marks, says=says, class_=class_)


def _end(points: Sequence[Point]) -> float:
    return points[-1][0] if points else 0.0
