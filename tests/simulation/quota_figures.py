# SPDX-License-Identifier: Apache-2.0
"""What a run of the simulation of quotas amounts to, in figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.quota_world import INTERVAL_S, Second

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Brokers with less than this part of the quota may differ by that part of 10 %.
_SMALL: Final = 0.02
_SETTLED_S: Final = 2 * INTERVAL_S


class Figures(NamedTuple):
    """Rates are compared over five seconds, which is one cycle; overshoot in each second.

    Attributes:
        cycles_to_10: cycles after the event until each broker's rate is within 10 % of its fair rate, and stays so.
        cycles_to_5: the same for 5 %.
        overshoot: by how much the rate of the worst second since the first event exceeds the quota, if it does.
        over_10_cycles: for how many cycles on end the rate exceeded the quota by more than 10 %.
        jain: Jain index of the brokers' parts of their fair rates, two cycles after the event; the worst.
        utilisation: served of what could have been served, two cycles after the event; the worst.
        lost_s: what could have been served since the event and was not, in seconds of the quota.
    """

    cycles_to_10: float | None
    cycles_to_5: float | None
    overshoot: float
    over_10_cycles: float
    jain: float
    utilisation: float
    lost_s: float


def figures(seconds: Sequence[Second], events_s: Sequence[float]) -> Figures:
    """Return the figures of a run; `events_s` are the seconds at which something happens after the start."""
    first, last = int(events_s[0]), int(events_s[-1])
    windows = {start: _joined(seconds[start : start + INTERVAL_S]) for start in range(len(seconds) - INTERVAL_S + 1)}
    # Two cycles after each event are exempt.
    settled = [
        window
        for start, window in windows.items()
        if all(start + INTERVAL_S <= at_s or start >= at_s + _SETTLED_S for at_s in (0, *events_s))
    ]
    return Figures(
        _cycles(windows, last, 0.1),
        _cycles(windows, last, 0.05),
        max((sum(second.served) / second.quota - 1 for second in seconds[first:] if second.quota), default=0.0),
        _longest(seconds[first:]) / INTERVAL_S,
        min(map(_jain, settled), default=1.0),
        min((sum(window.served) / window.possible for window in settled if window.possible >= 1), default=1.0),
        sum(
            max(0.0, second.possible - sum(second.served)) / (second.quota or second.possible or 1)
            for second in seconds[last:]
        ),
    )


def _joined(seconds: Sequence[Second]) -> Second:
    quotas = [second.quota for second in seconds]
    return Second(
        None if None in quotas else sum(quota or 0 for quota in quotas),
        _sums(second.demand for second in seconds),
        [int(total) for total in _sums(second.served for second in seconds)],
        _sums(second.fair for second in seconds),
    )


def _sums(rows: Iterable[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _cycles(windows: dict[int, Second], event: int, tolerance: float) -> float | None:
    wrong = [start for start, window in windows.items() if start >= event and _error(window) > tolerance]
    if not wrong:
        return 0.0
    settled = wrong[-1] + 1
    return (settled - event) / INTERVAL_S if settled in windows else None


def _error(window: Second) -> float:
    """The largest difference of a broker's rate from its fair rate, in parts of that."""
    small = max(1.0, _SMALL * window.possible)
    pairs = zip(window.served, window.fair, strict=True)
    return max(abs(served - fair) / max(fair, small) for served, fair in pairs)


def _jain(window: Second) -> float:
    parts = [
        served / fair for served, fair in zip(window.served, window.fair, strict=True) if fair > 0.001 * window.possible
    ]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / len(parts) / squares if squares else 1.0


def _longest(seconds: Sequence[Second]) -> int:
    longest = run = 0
    for second in seconds:
        over = second.quota is not None and sum(second.served) > 1.1 * second.quota
        run = run + 1 if over else 0
        longest = max(longest, run)
    return longest
