# SPDX-License-Identifier: Apache-2.0
"""The delayed index through a restart: what was known is known again, damage is noticed, the rest is looked at."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.governance.delayed import TIME_MAX_MS, DamagedSnapshotError, DelayedMemory
from penstock.governance.delayed_ranges import Hull, Ranges
from penstock.governance.delayed_slots import Slots, first_absent, footprint, within
from penstock.governance.delayed_snapshot import decode
from tests.governance.delayed_harness import NOW, STRICT, Topic, viewed

HOUR_MS = 3_600_000


def restarted(stored: bytes, stop: int) -> Topic:
    """A topic that comes back with a snapshot and ends before `stop`."""
    topic = Topic(STRICT, first=stop)
    topic.manager.restore(decode(stored))
    return topic


def some_topic(messages: int = 2_000, seed: int = 1) -> tuple[Topic, list[int]]:
    topic = Topic(STRICT)
    topic.view()
    chance = random.Random(seed)
    times = [NOW + chance.randrange(1, HOUR_MS) for _ in range(messages)]
    topic.publish_at(times)
    return topic, times


def test_an_index_comes_back_as_it_was() -> None:
    topic, times = some_topic()
    topic.manager.cancel(7)
    again = restarted(topic.manager.snapshot(topic.stop), topic.stop)
    view = again.view()
    assert view.held(0, 2_000) == list(range(2_000))
    assert view.number_of_delayed_messages == 1_999
    assert again.manager.cancelled() == [7]
    assert again.manager.next_delivery_ms() == topic.manager.next_delivery_ms()
    assert again.manager.furthest_delivery_ms() == topic.manager.furthest_delivery_ms()
    assert not again.manager.unknown(0, 10**6)
    while (next_ms := view.next_delivery_ms()) is not None:
        again.now_ms = next_ms
        assert all(times[entry_id] <= next_ms for entry_id in again.take(view))
    assert again.memory.used_bytes == 0


def test_an_empty_index_comes_back_empty() -> None:
    topic = Topic(STRICT, first=50)
    again = restarted(topic.manager.snapshot(60), 60)
    assert again.manager.next_delivery_ms() is None
    assert [tuple(part) for part in again.manager.unknown_ranges(0, 70)] == [(0, 50)]


def test_entries_behind_the_snapshot_are_unknown_until_they_are_read() -> None:
    topic, _ = some_topic()
    again = restarted(topic.manager.snapshot(topic.stop), topic.stop + 100)
    assert [tuple(part) for part in again.manager.unknown_ranges(0, topic.stop + 100)] == [(2_000, 2_100)]
    again.manager.look_ahead(2_000, 2_100, [2_010, 2_020], [NOW + 5, NOW - 5], NOW)
    assert not again.manager.unknown(0, 2_100)
    view = again.view()
    assert view.held(1_999, 2_100) == [1_999, 2_010, 2_020]
    assert view.get_scheduled_messages(NOW, 10, 0) == []
    assert view.held(1_999, 2_100) == [1_999, 2_010], "what was due then is left to the reader"


def test_what_came_due_while_a_snapshot_lay_on_disk_is_left_to_the_reader() -> None:
    topic, times = some_topic()
    again = restarted(topic.manager.snapshot(topic.stop), topic.stop)
    again.now_ms += HOUR_MS // 2
    view = again.view()
    # The reader starts at the beginning, so all that is due is before it.
    while view.has_message_available(again.now_ms, 0):
        pass
    held = set(view.held(0, 2_000))
    assert all(times[entry_id] > again.now_ms - 500 for entry_id in held)
    assert all(times[entry_id] <= again.now_ms for entry_id in set(range(2_000)) - held)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_that_changes_while_it_is_written_is_right_all_the_same(seed: int) -> None:
    chance = random.Random(seed)
    topic, times = some_topic(3_000, seed)
    view = topic.manager.create_or_get_view("a", topic.cursors["a"])
    indexed_to = topic.stop
    pieces = []
    for piece in topic.manager.snapshot_pieces(indexed_to):
        pieces.append(piece)
        more = [topic.now_ms + chance.randrange(1, HOUR_MS) for _ in range(50)]
        topic.publish_at(more)
        times += more
        topic.now_ms += chance.randrange(HOUR_MS // 20)
        topic.take(view)
    assert len(pieces) > 4
    again = restarted(b"".join(pieces), topic.stop)
    again.now_ms = topic.now_ms
    for first, stop in again.manager.unknown_ranges(0, topic.stop):
        again.manager.look_ahead(first, stop, range(first, stop), times[first:stop], again.now_ms)
    fresh = again.view()
    while fresh.has_message_available(again.now_ms, 0):
        pass
    due = {entry_id for entry_id in range(topic.stop) if times[entry_id] <= again.now_ms - 500}
    late = {entry_id for entry_id in range(topic.stop) if times[entry_id] > again.now_ms}
    held = set(fresh.held(0, topic.stop))
    assert late <= held
    assert not held & due


def test_what_was_left_on_disk_is_left_there_after_a_restart() -> None:
    topic = Topic(STRICT, memory=DelayedMemory(5_000))
    topic.view()
    times = [NOW + 1_000 * entry_id for entry_id in range(1, 500)]
    for at_ms in times:
        topic.publish_at([at_ms])
    again = restarted(topic.manager.snapshot(topic.stop), topic.stop)
    assert again.manager.horizon.after_ms == topic.manager.horizon.after_ms
    view = again.view()
    assert view.look(range(499), times, NOW) == list(range(499))
    assert again.manager.back_fill(NOW) is not None


@pytest.mark.parametrize("damage", ["cut", "flip", "more", "nothing", "foreign"])
def test_damage_is_noticed_wherever_it_is(damage: str) -> None:
    topic, _ = some_topic(300)
    topic.manager.cancel(3)
    stored = topic.manager.snapshot(topic.stop)
    chance = random.Random(2)
    for _ in range(200):
        at = chance.randrange(len(stored))
        wrong = {
            "cut": stored[:at],
            "flip": stored[:at] + bytes([stored[at] ^ (1 << chance.randrange(8))]) + stored[at + 1 :],
            "more": stored + stored[at : at + 1],
            "nothing": b"",
            "foreign": chance.randbytes(at),
        }[damage]
        with pytest.raises(DamagedSnapshotError):
            decode(wrong)


def test_wide_ids_and_far_times_survive() -> None:
    topic = Topic(STRICT, first=2**33)
    topic.view(mark_delete=2**33 - 1)
    topic.publish_at([TIME_MAX_MS, TIME_MAX_MS, NOW + 1_000, NOW + 1_000, NOW + 9_000])
    again = restarted(topic.manager.snapshot(topic.stop), topic.stop)
    view = again.view(mark_delete=2**33 - 1)
    assert view.number_of_delayed_messages == 5
    assert again.manager.furthest_delivery_ms() == TIME_MAX_MS
    again.now_ms += 1_000
    assert again.take(view) == [2**33 + 2, 2**33 + 3]


# -- what it is made of -----------------------------------------------------------------------------------------------


@settings(deadline=None)  # other work on the machine is no failure
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), st.integers(0, 60), st.integers(0, 60))
def test_ranges_are_the_set_of_what_was_added(parts: list[tuple[int, int]], first: int, cut: int) -> None:
    ranges = Ranges()
    model: set[int] = set()
    for start, stop in parts:
        ranges.add(start, stop)
        model.update(range(start, stop))
    ranges.cut_before(cut)
    model = {one for one in model if one >= cut}
    assert {one for start, stop in ranges for one in range(start, stop)} == model
    assert all(one_stop < first for (_, one_stop), (first, _) in pairwise(ranges))
    assert all(ranges.has(one) == (one in model) for one in range(62))
    stop = first + 20
    assert ranges.covers(first, stop) == (set(range(first, stop)) <= model)
    missing = [one for start, end in ranges.missing(first, stop) for one in range(start, end)]
    assert missing == [one for one in range(first, stop) if one not in model]


def test_a_hull_is_one_range_around_all() -> None:
    hull = Hull()
    assert not hull
    assert not hull.overlaps(0, 100)
    hull.add(10, 20)
    hull.add(40, 50)
    assert (hull.first, hull.stop) == (10, 50)
    assert hull.overlaps(49, 60)
    assert not hull.overlaps(50, 60)
    hull.cut_before(45)
    hull.cut_from(44)
    assert not hull
    hull.add(3, 4)
    assert (hull.first, hull.stop) == (3, 4)


@settings(deadline=None)  # other work on the machine is no failure
@given(st.sets(st.integers(0, 400), max_size=300), st.integers(0, 420), st.integers(0, 420))
def test_bitmaps_answer_for_ranges_as_sets_do(ids: set[int], first: int, stop: int) -> None:
    slots = Slots()
    if ids:
        slots.add(sorted(ids), [5] * len(ids))
    assert slots.within(first, stop) == sorted(one for one in ids if first <= one < stop)
    expected = next((one for one in range(first, stop) if one not in ids), max(first, stop))
    assert slots.first_absent(first, stop) == expected or first >= stop
    assert slots.rank(first) == sum(one <= first for one in ids)
    bitmap = slots.members
    assert within(bitmap, first, stop) == slots.within(first, stop)
    if first < stop:
        assert first_absent(bitmap, first, stop) == expected


@settings(deadline=None)  # other work on the machine is no failure
@given(st.data())
def test_slots_keep_each_id_once_until_it_is_taken_or_forgotten(data: st.DataObject) -> None:
    slots = Slots()
    model: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        what = data.draw(st.sampled_from(["add", "take", "discard", "through", "sweep"]))
        if what == "add":
            new = {
                one: data.draw(st.integers(1, 6)) for one in sorted(data.draw(st.sets(st.integers(0, 50), min_size=1)))
            }
            added = slots.add(list(new), list(new.values()))
            assert added == len(new.keys() - model.keys())
            model = new | model
        elif what == "take" and slots.first_ms is not None:
            first_ms = slots.first_ms
            taken = set(slots.take(first_ms))
            assert taken >= {one for one, due_ms in model.items() if due_ms == first_ms}
            model = {one: due_ms for one, due_ms in model.items() if one not in taken}
        elif what == "discard":
            one = data.draw(st.integers(0, 50))
            assert slots.discard(one) == (model.pop(one, None) is not None)
        elif what == "through":
            through = data.draw(st.integers(-1, 50))
            slots.discard_through(through)
            model = {one: due_ms for one, due_ms in model.items() if one > through}
        else:
            slots.sweep(1_000)
        assert list(slots.members) == sorted(model)
        assert slots.count == len(model)
    slots.clear()
    assert slots.size_bytes == footprint(slots.members)


def restarted_full() -> tuple[Topic, list[int], list[int]]:
    """A topic that comes back with an index that was full; its times, and what is due in the first minute."""
    before = Topic(STRICT, memory=DelayedMemory(5_000))
    before.view()
    chance = random.Random(2)
    times = [NOW + chance.randrange(HOUR_MS // 2, HOUR_MS) for _ in range(1_000)]
    times[900:] = [NOW + chance.randrange(1, 60_000) for _ in range(100)]
    for first in range(0, 1_000, 100):
        before.publish_at(times[first : first + 100])
    assert before.manager.spilled
    topic = restarted(before.manager.snapshot(1_000), 1_000)
    topic.now_ms = NOW + 60_000
    return topic, times, sorted(range(900, 1_000), key=lambda entry: (-(-times[entry] // 500), entry))


def test_after_a_restart_with_a_full_index_what_is_due_does_not_wait_for_the_reader() -> None:
    topic, times, due = restarted_full()
    view = topic.view()
    assert view.has_message_available(topic.now_ms, 0)
    assert view.get_scheduled_messages(topic.now_ms, 30, 0) == due[:30]
    assert view.get_scheduled_messages(topic.now_ms, 1_000, 10) == due[30:]
    assert not view.has_message_available(topic.now_ms, 10)
    assert view.get_scheduled_messages(topic.now_ms, 1_000, 10) == []
    # The reader steps over all of it: what it was given, and what is not due.
    assert view.look(range(1_000), times, topic.now_ms) == list(range(1_000))
    assert view.next_wanted(900, 1_000) == 1_000
    assert view.size_bytes > 0
    assert view.get_scheduled_messages(topic.now_ms, 1_000, 1_000) == []
    assert view.size_bytes == 0


def test_a_reader_that_starts_again_reads_what_was_offered_ahead_of_it() -> None:
    topic, times, due = restarted_full()
    view = topic.view()
    assert view.get_scheduled_messages(topic.now_ms, 1_000, 0) == due
    view.rewind()
    assert view.size_bytes == 0
    held = view.look(range(1_000), times, topic.now_ms)
    assert held == list(range(900))


def test_where_the_index_knows_everything_what_is_due_is_left_to_the_reader() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000, 1_000)
    topic.now_ms += 1_000
    assert view.get_scheduled_messages(topic.now_ms, 10, 1) == [0]
    assert view.held(1, 3) == []


def test_what_was_due_before_the_restart_and_came_after_the_snapshot_does_not_wait_for_the_reader_either() -> None:
    topic, _, due = restarted_full()
    topic.stop = 1_010
    tail = list(range(1_000, 1_010))
    again = Topic(STRICT, first=1_010)
    again.manager.restore(decode(topic.manager.snapshot(1_000)))
    again.now_ms = topic.now_ms
    again.manager.look_ahead(1_000, 1_010, tail, [NOW + 10] * 10, again.now_ms)
    view = again.view()
    assert sorted(view.get_scheduled_messages(again.now_ms, 1_000, 0)) == sorted(due + tail)
