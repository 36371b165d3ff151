# SPDX-License-Identifier: Apache-2.0
"""What counters say was used, whatever becomes of single records."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounting.differences import (
    COUNTERS,
    MINUTE_MS,
    SPREAD_MINUTES_MAX,
    TIME_MS_MIN,
    ZERO,
    Counters,
    Increase,
    Reading,
    by_minute,
    fault_of,
    follow,
    increased,
    total,
)

NOON = 1_800_000_000_000 // MINUTE_MS * MINUTE_MS
GOOD = Reading("broker-0", 1, 0, NOON, NOON + MINUTE_MS, "topic", "t", NOON, (1, 2, 3, 4, 5, 6, 7))

some_use = st.tuples(*[st.integers(0, 10**12)] * len(COUNTERS))


def readings_of(uses: list[Counters], epochs: list[int]) -> list[Reading]:
    """The records of a broker that used this much in each minute, in these runs."""
    counters = ZERO
    found = []
    for minute, (used, epoch) in enumerate(zip(uses, epochs, strict=True)):
        counters = total([counters, used])
        from_ms = NOON + minute * MINUTE_MS
        found.append(GOOD._replace(epoch=epoch, sequence=minute, from_ms=from_ms, time_ms=from_ms + MINUTE_MS,
                                   counters=counters))  # fmt: skip
    return found


def sums(found: list[tuple[Reading, list[Increase]]]) -> Counters:
    return total([increase.counters for _, increases in found for increase in increases])


@given(uses=st.lists(some_use, min_size=1, max_size=20), data=st.data())
def test_lost_repeated_and_late_records_and_restarts_change_no_sum(uses: list[Counters], data: st.DataObject) -> None:
    epochs = sorted(data.draw(st.lists(st.integers(0, 3), min_size=len(uses), max_size=len(uses))))
    readings = readings_of(uses, epochs)
    kept = [one for one in readings[:-1] if data.draw(st.booleans())]
    chance = Random(data.draw(st.integers(0, 99)))
    shown = kept + [one for one in kept if chance.random() < 0.3]
    cut = data.draw(st.integers(0, len(shown)))
    chance.shuffle(shown)  # within what is read at once, and between
    seen: list[tuple[Reading, list[Increase]]] = []
    high = ZERO
    for part in (shown[:cut], shown[cut:], [readings[-1]], shown):
        found, high = follow(high, part)
        seen += found
    assert sums(seen) == high == total(uses)


@given(used=some_use, from_ms=st.integers(NOON, NOON + 10 * MINUTE_MS), elapsed_ms=st.integers(0, 3 * 86_400_000))
def test_minutes_add_up_and_stay_within_the_interval(used: Counters, from_ms: int, elapsed_ms: int) -> None:
    time_ms = from_ms + elapsed_ms
    found = by_minute(used, from_ms, time_ms)
    assert total([one.counters for one in found]) == used
    assert len(found) <= SPREAD_MINUTES_MAX
    assert all(min(counter for counter in one.counters) >= 0 for one in found)
    assert all(from_ms - 2 * MINUTE_MS < one.minute_ms <= time_ms for one in found)
    assert all(one.minute_ms % MINUTE_MS == 0 for one in found)


def test_a_minute_that_ended_a_moment_ago_has_all_of_its_record() -> None:
    used = (60, 600, *ZERO[2:])
    assert by_minute(used, NOON + 200, NOON + MINUTE_MS + 900) == [Increase(NOON, used)]


def test_an_interval_of_two_minutes_is_divided_by_time() -> None:
    used = (120, 1201, *ZERO[2:])
    assert by_minute(used, NOON, NOON + 2 * MINUTE_MS) == [
        Increase(NOON, (60, 600, *ZERO[2:])),
        Increase(NOON + MINUTE_MS, (60, 601, *ZERO[2:])),
    ]


def test_seconds_are_of_their_minute() -> None:
    used = (1, 0, 0, 0, 0, 0, 0)
    assert by_minute(used, NOON + 1_000, NOON + 2_000) == [Increase(NOON, used)]
    assert by_minute(used, NOON, NOON) == [Increase(NOON, used)]


def test_counters_never_go_back() -> None:
    assert increased((5,) * 7, (3, 9, 5, 5, 5, 5, 5)) == ((0, 4, 0, 0, 0, 0, 0), (5, 9, 5, 5, 5, 5, 5))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"broker": None}, "field missing"),
        ({"counters": (None,) * 7}, "field missing"),
        ({"scope": "planet"}, "unknown scope"),
        ({"broker": ""}, "no name"),
        ({"name": ""}, "no name"),
        ({"name": "", "scope": "broker"}, None),
        ({"name": "x" * 5_000}, "name too long"),
        ({"sequence": -1}, "negative number"),
        ({"from_ms": NOON + 2 * MINUTE_MS}, "impossible time"),
        ({"from_ms": TIME_MS_MIN - 1}, "impossible time"),
        ({"time_ms": 1 << 60}, "impossible time"),
        ({"counters": (-1, 0, 0, 0, 0, 0, 0)}, "impossible counter"),
        ({"counters": (1 << 62, 0, 0, 0, 0, 0, 0)}, "impossible counter"),
    ],
)
def test_records_that_cannot_be_are_refused(change: dict[str, object], reason: str | None) -> None:
    assert fault_of(GOOD._replace(**change)) == reason  # type: ignore[arg-type]
