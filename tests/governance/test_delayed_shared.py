# SPDX-License-Identifier: Apache-2.0
"""Several subscriptions over one delayed index: what PIP-448 leaves open does not happen."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock.governance.delayed import DelayedOptions
from tests.governance.delayed_harness import NOW, STRICT, Topic, viewed


def test_one_message_is_kept_once_however_many_subscriptions_there_are() -> None:
    def used(subscriptions: int) -> int:
        topic = Topic(STRICT)
        for index in range(subscriptions):
            topic.view(str(index))
        topic.publish(*range(1_000, 601_000, 100))
        return topic.manager.topic_buffer_memory_bytes()

    assert used(1) == used(10) == used(1_000)


def test_each_subscription_gets_each_message_once_at_its_own_pace() -> None:
    topic = Topic(STRICT)
    views = [topic.view(name) for name in "abc"]
    topic.publish(*range(100, 60_000, 100))
    chance = random.Random(3)
    seen: list[list[int]] = [[], [], []]
    for _ in range(2_000):
        topic.now_ms += chance.randrange(100)
        which = chance.randrange(3)
        seen[which] += topic.take(views[which], chance.randrange(20))
    topic.now_ms += 60_000
    for view, got in zip(views, seen, strict=True):
        assert sorted(got + topic.take(view)) == list(range(599))
    assert topic.memory.used_bytes == 0


def test_a_subscription_that_stalls_gets_what_came_due_meanwhile_however_much_was_merged() -> None:
    topic = Topic(STRICT)
    stalled, brisk = topic.view("a"), topic.view("b")
    topic.publish(*range(1_000, 1_001_000, 1_000))
    for _ in range(500):
        topic.now_ms += 2_000
        topic.take(brisk)
    assert stalled.number_of_delayed_messages == 1_000
    got = topic.take(stalled, 400)
    assert stalled.number_of_delayed_messages == 600
    got += topic.take(stalled)
    assert sorted(got) == list(range(1_000))
    assert topic.memory.used_bytes == 0


def test_what_was_taken_is_not_offered_again_while_something_before_it_is_unacknowledged() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000, 1_000)
    topic.now_ms += 1_000
    assert topic.take(view) == [0, 1, 2]
    topic.acknowledge(view, [1, 2])
    assert topic.take(view) == []
    topic.publish(1_000)
    topic.now_ms += 1_000
    assert topic.take(view) == [3]


def test_what_was_acknowledged_before_its_time_is_not_offered_and_not_counted() -> None:
    topic, view = viewed()
    topic.publish(*[1_000] * 5)
    topic.acknowledge(view, [1, 3])
    assert view.number_of_delayed_messages == 3
    topic.acknowledge(view, [0])
    assert view.number_of_delayed_messages == 2
    topic.now_ms += 1_000
    assert topic.take(view) == [2, 4]
    assert view.number_of_delayed_messages == 0


def test_a_stuck_subscription_pins_no_more_than_the_memory_there_is_and_is_told_what_to_read() -> None:
    topic = Topic(STRICT)
    topic.memory.limit_bytes = 3_000
    stuck, brisk = topic.view("a"), topic.view("b")
    seen = []
    for _ in range(300):
        topic.publish(*[1_000] * 3)
        topic.stop += 40_000  # others in between, so that bitmaps gain nothing by being merged
        topic.now_ms += 1_000
        seen += topic.take(brisk)
        assert topic.memory.used_bytes <= 4_500
    assert len(seen) == 900
    lost = stuck.back_fill(topic.stop)
    assert lost is not None
    got = topic.take(stuck)
    latest = set(got)
    assert all(lost.first <= entry_id < lost.stop or entry_id in latest for entry_id in seen)
    assert got, "the latest are in the index still"
    stuck.back_filled(lost.stop)
    assert stuck.back_fill(topic.stop) is None


def test_what_is_lost_while_a_lost_range_is_read_is_read_too() -> None:
    topic = Topic(STRICT)
    stuck, brisk = topic.view("a"), topic.view("b")
    topic.publish(2_000, 2_000, 1_000, 1_000)

    def lose() -> None:
        topic.now_ms += 1_000
        assert len(topic.take(brisk)) == 2
        assert topic.manager.spill(1)

    lose()
    assert stuck.back_fill(topic.stop) == (2, 4)
    lose()
    stuck.back_filled(4)
    assert stuck.back_fill(topic.stop) == (0, 2)
    stuck.back_filled(2)
    assert stuck.back_fill(topic.stop) is None


def test_what_comes_due_later_with_lower_ids_is_not_missed_by_who_stopped_within_a_slot() -> None:
    topic = Topic(STRICT)
    stopped, brisk = topic.view("a"), topic.view("b")
    topic.publish(*range(400_000, 0, -1_000), 500, 500)
    topic.now_ms += 500
    got = topic.take(stopped, 1)
    for _ in range(400):
        topic.now_ms += 1_000
        topic.take(brisk)
    assert sorted(got + topic.take(stopped)) == list(range(402))


def test_of_what_is_lost_only_what_its_reader_has_passed_is_read_again() -> None:
    topic = Topic(STRICT)
    stuck, brisk = topic.view("a"), topic.view("b")
    topic.publish(*[1_000] * 10)
    topic.now_ms += 1_000
    topic.take(brisk)
    topic.manager.spill(1)
    assert stuck.back_fill(4) == (0, 4)
    stuck.back_filled(4)
    assert stuck.back_fill(10) is None
    assert stuck.held(4, 10) == []


def test_nothing_is_available_after_everything_due_was_taken_though_nobody_acknowledged_it() -> None:
    topic = Topic(STRICT)
    first, second = topic.view("a"), topic.view("b")
    topic.publish(*[1_000] * 4)
    topic.now_ms += 1_000
    assert topic.available(first)
    topic.take(first)
    assert not topic.available(first)
    assert topic.available(second)


def test_nothing_is_available_when_all_that_is_due_was_acknowledged() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000)
    topic.acknowledge(view, [0, 1])
    topic.now_ms += 1_000
    assert not topic.available(view)


def test_a_new_subscription_is_not_offered_what_its_reader_has_yet_to_read() -> None:
    topic = Topic(STRICT)
    old = topic.view("old")
    topic.publish(*[1_000] * 6)
    new = topic.view("new")
    assert new.held(0, 6) == [0, 1, 2, 3, 4, 5]
    topic.now_ms += 1_000
    assert topic.take(old) == [0, 1, 2, 3, 4, 5]
    assert new.get_scheduled_messages(topic.now_ms, 10, 2) == [0, 1]
    assert new.held(2, 6) == []


def test_a_new_subscription_at_the_end_counts_and_gets_nothing_of_before() -> None:
    topic = Topic(STRICT)
    topic.view("old")
    topic.publish(*[1_000] * 6)
    new = topic.view("new", mark_delete=5)
    assert new.number_of_delayed_messages == 0
    topic.now_ms += 1_000
    assert topic.take(new) == []


@pytest.mark.parametrize("tick_ms", [1, 3, 1_000, 1_024, 60_000])
def test_no_slot_is_due_before_all_of_it_is(tick_ms: int) -> None:
    topic = Topic(DelayedOptions(tick_ms=tick_ms, strict=True))
    view = topic.view()
    chance = random.Random(tick_ms)
    times = [NOW + chance.randrange(1, 100_000) for _ in range(500)]
    topic.publish_at(times)
    while (next_ms := view.next_delivery_ms()) is not None:
        topic.now_ms = next_ms
        assert all(times[entry_id] <= topic.now_ms for entry_id in topic.take(view))


def test_a_changed_tick_neither_doubles_nor_loses_what_is_held() -> None:
    topic, view = viewed()
    ids = topic.publish(*[10_300] * 5)
    for tick_ms in (10, 7_000, 300):
        topic.manager.on_options_updated(replace(STRICT, tick_ms=tick_ms))
        assert view.look(list(ids), [NOW + 10_300] * 5, NOW) == list(ids)
        assert topic.manager.topic_delayed_messages() == 5
    topic.now_ms += 20_000
    assert topic.take(view) == list(ids)
    assert not topic.available(view)
    assert topic.memory.used_bytes == 0


def test_a_subscription_that_seeks_back_looks_again_at_what_had_been_pruned() -> None:
    topic, view = viewed()
    topic.publish(60_000, 60_000, 60_000)
    topic.acknowledge(view, [0, 1])
    assert topic.manager.topic_delayed_messages() == 1
    topic.cursors["a"].reset(0)
    view.rewind()
    view.update_mark_delete_position(-1)
    assert topic.manager.unknown(0, 3)
    assert [tuple(part) for part in topic.manager.unknown_ranges(0, 3)] == [(0, 2)]
    assert view.look([0, 1, 2], [NOW + 60_000] * 3, topic.now_ms) == [0, 1, 2]
    topic.now_ms += 60_000
    assert topic.take(view) == [0, 1, 2]


def test_a_subscription_before_the_index_began_looks_at_what_it_reads() -> None:
    topic = Topic(STRICT, first=100)
    view = topic.view()
    assert topic.manager.unknown(0, 100)
    assert topic.manager.unknown(99, 101)
    assert not topic.manager.unknown(100, 10**9)
    assert view.look([10, 20, 30], [NOW + 1_000, NOW - 1, NOW + 2_000], NOW) == [10, 30]
    assert view.held(0, 100) == [10, 30]
    topic.now_ms += 2_000
    assert topic.take(view) == [10, 30]


def test_what_two_readers_come_across_is_held_for_both_and_offered_to_each_once() -> None:
    topic = Topic(STRICT, first=100)
    first, second = topic.view("a"), topic.view("b")
    assert first.add_message(5, NOW + 1_000, NOW)
    assert second.add_message(5, NOW + 1_000, NOW)
    topic.now_ms += 1_000
    assert first.get_scheduled_messages(topic.now_ms, 10, 6) == [5]
    # The second had not read it when it came due: its reader delivers it.
    assert second.get_scheduled_messages(topic.now_ms, 10, 5) == []
    assert not second.add_message(5, NOW + 1_000, topic.now_ms)


def test_what_was_due_once_is_not_held_again_by_a_clock_that_was_set_back() -> None:
    topic = Topic(STRICT, first=100)
    first, second = topic.view("a"), topic.view("b")
    first.add_message(5, NOW + 1_000, NOW)
    topic.now_ms += 1_000
    assert first.get_scheduled_messages(topic.now_ms, 10, 6) == [5]
    assert not second.has_message_available(topic.now_ms, 5)
    assert not second.add_message(5, NOW + 1_000, NOW)
    assert not topic.available(first)


def test_a_subscription_keeps_its_view_when_its_type_changes() -> None:
    topic, view = viewed()
    topic.publish(60_000)
    view.rewind()
    assert topic.manager.create_or_get_view("a", topic.cursors["a"]) is view
    assert view.held(0, 1) == [0]
    assert view.number_of_delayed_messages == 1


def test_clearing_a_backlog_leaves_nothing_delayed_for_this_subscription_alone() -> None:
    topic = Topic(STRICT)
    first, second = topic.view("a"), topic.view("b")
    topic.publish(*[1_000] * 10)
    topic.cursors["a"].acknowledge_through(9)
    first.clear()
    assert first.number_of_delayed_messages == 0
    assert second.number_of_delayed_messages == 10
    topic.now_ms += 1_000
    assert topic.take(first) == []
    assert topic.take(second) == list(range(10))


def test_when_all_have_cleared_their_backlog_the_index_is_empty() -> None:
    topic = Topic(STRICT)
    views = [topic.view(name) for name in "ab"]
    topic.publish(*[1_000] * 10)
    for view in views:
        topic.cursors[view.name].acknowledge_through(9)
        view.clear()
    assert topic.memory.used_bytes == 0
    assert topic.manager.next_delivery_ms() is None


def test_counts_are_those_of_each_subscription() -> None:
    topic = Topic(STRICT)
    views = {name: topic.view(name) for name in "abc"}
    topic.publish(*[1_000] * 10, *[9_000] * 10)
    topic.acknowledge(views["a"], [0, 1, 2, 12])
    topic.now_ms += 1_000
    topic.take(views["b"], 4)
    assert {name: view.number_of_delayed_messages for name, view in views.items()} == {"a": 16, "b": 16, "c": 20}
    assert topic.manager.topic_delayed_messages() == 10


def test_a_reader_that_starts_again_gets_what_is_due_by_reading_and_pins_nothing_until_then() -> None:
    topic, view = viewed()
    topic.publish(*[1_000] * 10, 60_000)
    view.rewind()
    other = topic.view("b")
    topic.now_ms += 1_000
    assert len(topic.take(other)) == 10
    assert topic.manager.topic_delayed_messages() == 1
    assert view.held(0, 11) == [10]
    assert not view.has_message_available(topic.now_ms, 11)


def test_a_reader_that_began_before_the_first_delayed_message_misses_none() -> None:
    topic = Topic(STRICT, first=10)
    early, other = topic.view("a"), topic.view("b")
    assert early.look([3], [NOW + 1_000], NOW) == [3]
    topic.now_ms += 1_000
    assert other.get_scheduled_messages(topic.now_ms, 10, 3) == []
    assert early.get_scheduled_messages(topic.now_ms, 10, 4) == [3]


def test_leaving_lets_the_rest_go_on_without_what_only_the_leaver_had_not_acknowledged() -> None:
    topic = Topic(STRICT)
    slow, quick = topic.view("a"), topic.view("b")
    topic.publish(*[60_000] * 100)
    topic.acknowledge(quick, range(50))
    assert topic.manager.topic_delayed_messages() == 100
    slow.close()
    assert topic.manager.topic_delayed_messages() == 50


def test_forgotten_messages_of_many_slots_are_swept_out_of_them() -> None:
    topic, view = viewed()
    topic.publish(*[1_000 + 500 * (index % 50) for index in range(20_000)])
    full_bytes = topic.manager.topic_buffer_memory_bytes()
    topic.cursors["a"].acknowledge_through(19_899)
    view.update_mark_delete_position(19_899)
    assert view.number_of_delayed_messages == 100
    for _ in range(10):
        topic.publish(60_000)
    assert topic.manager.topic_buffer_memory_bytes() < full_bytes * 0.6
    topic.now_ms += 60_000
    assert len(topic.take(view)) == 110


def test_two_that_seek_back_before_the_pruned_part_get_each_message_once_though_the_clock_is_set_back() -> None:
    topic = Topic(STRICT)
    first, second = topic.view("a"), topic.view("b")
    topic.publish(60_000)
    for view in (first, second):
        topic.cursors[view.name].acknowledge_through(0)
        view.clear()
    for view in (first, second):
        topic.cursors[view.name].reset(0)
        view.rewind()
        view.update_mark_delete_position(-1)
    assert first.add_message(0, NOW + 60_000, topic.now_ms)
    topic.now_ms += 60_000
    assert topic.take(first) == [0]
    topic.now_ms -= 60_000
    assert not second.add_message(0, NOW + 60_000, topic.now_ms)
    topic.now_ms += 60_000
    assert not topic.available(first)


def test_what_was_pruned_is_not_early_for_who_seeks_back_after_the_clock_was_set_back() -> None:
    topic, view = viewed()
    topic.publish(-1)  # the index has seen this time
    topic.now_ms -= 3_600_000
    (entry_id,) = topic.publish(60_000)
    topic.cursors["a"].acknowledge_through(entry_id)
    view.clear()
    topic.cursors["a"].reset(entry_id)
    view.rewind()
    view.update_mark_delete_position(entry_id - 1)
    assert view.add_message(entry_id, topic.now_ms + 60_000, topic.now_ms)
