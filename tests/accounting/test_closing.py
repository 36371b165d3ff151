# SPDX-License-Identifier: Apache-2.0
"""When minutes are closed, and what is known of brokers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.accounting.closing import ABSENT_AFTER_MS, Closed, Heard, Progresses, advance
from penstock.accounting.differences import MINUTE_MS

NOON = 1_800_000_000_000 // MINUTE_MS * MINUTE_MS
NOTHING = Progresses({})


def heard(broker: str, minute: int, first: int = 0, records: int = 1, epoch: int = 1, last: int | None = None) -> Heard:
    from_ms = NOON + minute * MINUTE_MS
    last = first + records - 1 if last is None else last
    return Heard(broker, epoch, from_ms, from_ms + MINUTE_MS + 200, first, last, records, ends=True)


def minutes(closed: list[Closed]) -> list[tuple[int, int, tuple[str, ...]]]:
    return [((one.from_ms - NOON) // MINUTE_MS, (one.until_ms - NOON) // MINUTE_MS, one.absent) for one in closed]


def test_a_minute_closes_when_all_brokers_have_recorded_past_it() -> None:
    known, closed = advance(NOTHING, [heard("a", 0), heard("b", 0), heard("a", 1, 1)])
    assert minutes(closed) == [(0, 1, ())]
    known, closed = advance(known, [heard("b", 1, 1)])
    assert minutes(closed) == [(1, 2, ())]
    assert closed[0].brokers == ("a", "b")


def test_an_interval_without_its_last_record_closes_nothing() -> None:
    known, closed = advance(NOTHING, [heard("a", 0)._replace(ends=False)])
    assert closed == []
    assert advance(known, [heard("a", 0, 1)])[1][0].until_ms == NOON + MINUTE_MS


def test_minutes_close_without_a_broker_that_never_returns_and_name_it() -> None:
    known, _ = advance(NOTHING, [heard("a", 0), heard("b", 0)])
    late = ABSENT_AFTER_MS // MINUTE_MS
    known, closed = advance(known, [heard("a", minute, minute) for minute in range(1, late + 1)])
    assert closed == []
    known, closed = advance(known, [heard("a", late + 1, late + 1)])
    assert minutes(closed) == [(1, late + 2, ("b",))]
    known, closed = advance(known, [heard("b", 1, 1)])  # hours late
    assert closed == []
    assert known.closed_ms == NOON + (late + 2) * MINUTE_MS


def test_one_clock_a_day_ahead_closes_nothing_and_one_behind_is_not_waited_for() -> None:
    ahead = heard("ahead", 1_440)
    _, closed = advance(NOTHING, [heard("a", 0), heard("b", 0), ahead])
    assert minutes(closed) == [(0, 1, ())]
    behind = heard("behind", -1_440)
    _, closed = advance(NOTHING, [heard("a", 0), heard("b", 0), behind])
    assert closed[-1].until_ms == NOON + MINUTE_MS
    assert closed[-1].absent == ("behind",)


def test_records_that_never_came_are_counted_and_repeated_ones_are_not() -> None:
    known, _ = advance(NOTHING, [heard("a", 0, 5, 3)])
    assert known.brokers["a"].lost == 0  # What was trimmed before the first reading is not lost.
    known, _ = advance(known, [heard("a", 1, 10, 2)])
    assert known.brokers["a"].lost == 2
    known, _ = advance(known, [heard("a", 1, 10, 2)])
    assert known.brokers["a"].lost == 2
    known, _ = advance(known, [heard("a", 2, 12, 2, last=14)])
    assert known.brokers["a"].lost == 3
    known, _ = advance(known, [heard("a", 3, 1, 1, epoch=2)])
    assert known.brokers["a"].lost == 4
    known, _ = advance(known, [heard("a", 1, 10, 2)])
    assert known.brokers["a"] == known.brokers["a"]._replace(epoch=2, next_sequence=2, lost=4)


reports = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 50), st.integers(0, 2)), max_size=30
)


@given(reports, st.integers(0, 30))
def test_closed_minutes_are_closed_once_and_in_order(given: list[tuple[str, int, int, int]], cut: int) -> None:
    all_heard = [heard(broker, minute, first, epoch=epoch) for broker, minute, first, epoch in given]
    known, closed = advance(NOTHING, all_heard[:cut])
    known, later = advance(known, all_heard[cut:])
    ranges = [*closed, *later]
    assert all(one.from_ms < one.until_ms for one in ranges)
    assert all(one.until_ms == next_one.from_ms for one, next_one in pairwise(ranges))
    assert not ranges or ranges[-1].until_ms == known.closed_ms
    assert all(not set(one.brokers) & set(one.absent) for one in ranges)
