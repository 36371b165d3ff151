# SPDX-License-Identifier: Apache-2.0
"""Drawings made of coloured squares: the delays by hour and airline, and the days of the year.

Why: both use one scale of colours, so that one legend explains the page.
Where: `document` asks for each drawing twice, wide for desks and narrow for phones; the style shows the one that fits.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from examples.flight_demo.findings import Delays, total
from examples.flight_demo.page.svg import drawing, label, square

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from examples.flight_demo.findings import Findings

WIDE, NARROW = 1000.0, 342.0
# Level n is what lies under its bound; the last one is what lies over all of them.
LEVELS_MIN: Final = (0, 5, 10, 15, 20, 30, 40)
# Fewer departures say little about an airline's hour: a smaller square.
FEW: Final = 20
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def level(mean_min: float) -> int:
    """The step of the colour scale for a mean delay."""
    return sum(mean_min >= bound for bound in LEVELS_MIN)


def rows_of(cells: dict[tuple[str, int], Delays]) -> list[tuple[str, Delays]]:
    """The airlines, those that left latest first, each with its whole year."""
    airlines = defaultdict(list)
    for (airline, _hour), delays in cells.items():
        airlines[airline].append(delays)
    whole = [(airline, total(hours)) for airline, hours in airlines.items()]
    return sorted(whole, key=lambda row: row[1].mean_min, reverse=True)


def hours_of(cells: dict[tuple[str, int], Delays]) -> list[int]:
    """The hours of the day at which anything departed."""
    return sorted({hour for (_, hour), delays in cells.items() if delays.departed})


def legend(x: float, y: float, width: float) -> list[str]:
    """The colour scale, with its bounds."""
    names = ["early", *(f"{bound}" for bound in LEVELS_MIN[:-1]), f"{LEVELS_MIN[-1]}+"]
    step = width / len(names)
    marks = []
    for index, name in enumerate(names):
        marks.append(square(x + index * step, y, step - 1, 10, f"h{index}"))
        marks.append(label(x + index * step, y + 23, name, "small"))
    return marks


# ------------------------------------------------------------------------------------------------- hours and airlines


def heat_map(findings: Findings, *, wide: bool) -> str:
    """Mean delay by hour of the day (across) and airline (down)."""
    rows, hours = rows_of(findings.cells), hours_of(findings.cells)
    width, left, right, size = (WIDE, 168.0, 118.0, 28.0) if wide else (NARROW, 28.0, 0.0, 21.0)
    step = (width - left - right) / max(1, len(hours))
    marks = [
        label(left + (index + 0.5) * step, 12, hour, "small", "middle")
        for index, hour in enumerate(hours)
        if wide or hour % 3 == 0
    ]
    for number, (airline, whole) in enumerate(rows):
        top = 20 + number * size
        name = findings.airlines.get(airline, airline) if wide else airline
        marks.append(label(left - 8, top + size * 0.66, name, "name", "end"))
        for index, hour in enumerate(hours):
            delays = findings.cells.get((airline, hour))
            if delays is not None and delays.departed:
                box = (left + index * step, top, step - 1.5, size - 1.5)
                told = f"{name}, {hour}:00: {_told(delays)}"
                marks += _cell(box, delays, told, written=wide)
        if wide:
            marks += _summary(width - right + 14, top, size, whole, rows[0][1].mean_min)
    bottom = 20 + len(rows) * size + 12
    marks += legend(left, bottom, min(width - left - right, 420.0))
    lowest, highest = rows[-1], rows[0]
    says = (
        f"Heat map of mean departure delay in minutes by scheduled hour and airline. Latest of all on average: "
        f"{findings.airlines.get(highest[0], highest[0])}, {highest[1].mean_min:.1f}; "
        f"earliest: {findings.airlines.get(lowest[0], lowest[0])}, {lowest[1].mean_min:.1f}."
    )
    return drawing(width, bottom + 28, marks, says=says, class_="wide" if wide else "narrow")


def _cell(box: tuple[float, float, float, float], delays: Delays, told: str, *, written: bool) -> Iterator[str]:
    x, y, width, height = box
    class_ = f"h{level(delays.mean_min)}"
    if delays.departed < FEW:
        yield square(x + width * 0.3, y + height * 0.3, width * 0.4, height * 0.4, class_, told)
        return
    yield square(x, y, width, height, class_, told)
    if written:
        text = f"{delays.mean_min:.0f}".replace("-", "−")
        yield label(x + width / 2, y + height * 0.66, "0" if text == "−0" else text, f"in {class_}t", "middle")


def _summary(x: float, top: float, size: float, whole: Delays, longest_min: float) -> list[str]:
    """A bar and the mean of the airline's whole year, at the end of its row."""
    length = 62 * max(0.0, whole.mean_min) / max(longest_min, 0.1)
    told = f"the whole year: {_told(whole)}"
    return [
        square(x, top + size * 0.3, max(length, 1.0), size * 0.34, f"h{level(whole.mean_min)}", told),
        label(x + max(length, 1.0) + 6, top + size * 0.66, f"{whole.mean_min:.1f}", "name"),
    ]


def _told(delays: Delays) -> str:
    return f"{delays.mean_min:.1f} min on average, {delays.departed:,} departed"


# ----------------------------------------------------------------------------------------------------------- the days


def calendar(days: list[tuple[date, Delays]], *, wide: bool) -> str:
    """Mean delay of every day: a strip of weeks on a desk, twelve months on a phone."""
    marks, (width, height) = _strip(days) if wide else _months(days)
    worst = max(days, key=lambda day: day[1].mean_min)
    best = min(days, key=lambda day: day[1].mean_min)
    says = (
        f"Calendar of mean departure delay in minutes. Worst day: {_date(worst[0])}, {worst[1].mean_min:.0f}; "
        f"best day: {_date(best[0])}, {best[1].mean_min:.0f}."
    )
    return drawing(width, height, marks, says=says, class_="wide" if wide else "narrow")


def _strip(days: list[tuple[date, Delays]]) -> tuple[list[str], tuple[float, float]]:
    left, step = 40.0, 18.0
    first = days[0][0].toordinal() - days[0][0].weekday()
    marks = [label(left - 8, 32 + row * step + 12, WEEKDAYS[row], "small", "end") for row in (0, 2, 4, 6)]
    for day, delays in days:
        week, weekday = divmod(day.toordinal() - first, 7)
        if day.day == 1:
            marks.append(label(left + (week + (weekday > 0)) * step, 20, MONTHS[day.month - 1], "small"))
        marks.append(_day(left + week * step, 32 + weekday * step, step - 2, day, delays))
    marks += legend(left, 32 + 7 * step + 10, 420)
    return marks, (WIDE, 32 + 7 * step + 38)


def _months(days: list[tuple[date, Delays]]) -> tuple[list[str], tuple[float, float]]:
    step, across, down = 14.5, 119.0, 112.0
    marks = []
    for day, delays in days:
        row, column = divmod(day.month - 1, 3)
        x, y = column * across, row * down
        if day.day == 1:
            marks.append(label(x, y + 12, MONTHS[day.month - 1], "name"))
        week = (day.day - 1 + day.replace(day=1).weekday()) // 7
        marks.append(_day(x + day.weekday() * step, y + 18 + week * step, step - 1.5, day, delays))
    marks += legend(0, 4 * down + 8, NARROW)
    return marks, (NARROW, 4 * down + 36)


def _day(x: float, y: float, size: float, day: date, delays: Delays) -> str:
    told = f"{_date(day)}: {_told(delays)}, {delays.cancelled:,} cancelled"
    return square(x, y, size, size, f"h{level(delays.mean_min)}", told)


def _date(day: date) -> str:
    return f"{WEEKDAYS[day.weekday()]} {day.day} {MONTHS[day.month - 1]}"
