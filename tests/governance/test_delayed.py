# SPDX-License-Identifier: Apache-2.0
"""One subscription and its topic's delayed index: what Pulsar's tests of a tracker ask, and what its bugs taught."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.governance.delayed import (
    TIME_MAX_MS,
    DelayedDeliveryTrackerFactory,
    DelayedMemory,
    DelayedOptions,
)
from penstock.storage.cursor import Cursor
from tests.governance.delayed_harness import LOOSE, NOW, ROOMY, STRICT, Topic, viewed

# -- order, counts, time ----------------------------------------------------------------------------------------------


def test_messages_come_when_they_are_due_earliest_first_and_the_count_falls_as_they_are_taken() -> None:
    topic, view = viewed()
    topic.publish(60_000, 10_000, 30_000, 20_000)
    assert view.number_of_delayed_messages == 4
    assert not topic.available(view)
    assert topic.take(view) == []
    topic.now_ms += 20_000
    assert topic.available(view)
    assert topic.take(view) == [1, 3]
    assert view.number_of_delayed_messages == 2
    assert not topic.available(view)
    topic.now_ms += 40_000
    assert topic.take(view) == [2, 0]
    assert view.number_of_delayed_messages == 0


def test_each_message_that_is_taken_has_the_time_of_its_own_slot() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000, 5_000)
    topic.now_ms += 9_000
    assert topic.take(view) == [0, 1, 2]
    late_ms = [(count, topic.now_ms - due_ms) for count, due_ms in view.slots_taken]
    assert late_ms == [(2, 8_000), (1, 4_000)]
    assert topic.take(view) == []
    assert view.slots_taken == []


def test_messages_of_one_slot_come_in_the_order_of_the_log() -> None:
    topic, view = viewed()
    topic.publish(500, 499, 498, 497)
    topic.now_ms += 500
    assert topic.take(view) == [0, 1, 2, 3]


def test_no_more_is_taken_than_asked_for_and_the_rest_of_a_slot_comes_next() -> None:
    topic, view = viewed()
    topic.publish(*[500] * 10)
    topic.now_ms += 500
    assert topic.take(view, 4) == [0, 1, 2, 3]
    assert view.number_of_delayed_messages == 6
    assert topic.take(view, 0) == []
    assert topic.take(view, 4) == [4, 5, 6, 7]
    assert topic.take(view, 4) == [8, 9]
    assert not topic.available(view)


def test_it_says_when_to_look_again_and_an_earlier_message_moves_that_forward() -> None:
    topic, view = viewed()
    assert view.next_delivery_ms() is None
    topic.publish(60_000)
    assert view.next_delivery_ms() == NOW + 60_000
    topic.publish(10_000)
    assert view.next_delivery_ms() == NOW + 10_000
    topic.now_ms += 10_000
    assert topic.take(view) == [1]
    assert view.next_delivery_ms() == NOW + 60_000


def test_what_was_due_and_not_taken_is_next_in_the_past() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000)
    topic.now_ms += 5_000
    topic.take(view, 1)
    assert view.next_delivery_ms() == NOW + 1_000


def test_the_furthest_delivery_is_known_and_follows_what_is_cancelled() -> None:
    topic, view = viewed()
    assert view.furthest_delivery_ms() is None
    topic.publish(5_000, 90_000, 7_000)
    assert view.furthest_delivery_ms() == NOW + 90_000
    topic.manager.cancel(1)
    assert view.furthest_delivery_ms() == NOW + 7_000


def test_a_run_with_due_and_delayed_messages_holds_the_delayed_ones() -> None:
    topic, view = viewed()
    topic.publish(-5, 10_000, 0, 20_000)
    assert view.held(0, 4) == [1, 3]
    assert view.number_of_delayed_messages == 2


def test_many_small_steps_of_time_bring_every_message_of_a_sequence_once() -> None:
    topic, view = viewed()
    topic.publish(*range(0, 60_000, 100))
    seen = list(range(1))  # entry 0 was due at once: the reader has it
    for _ in range(700):
        topic.now_ms += 100
        seen += topic.take(view, 3)
    assert sorted(seen) == list(range(600))


# -- strict or not ----------------------------------------------------------------------------------------------------


def test_not_strict_a_message_due_within_a_tick_is_not_held() -> None:
    topic, view = viewed(LOOSE)
    assert not view.add_message(0, NOW + 1_000, NOW)
    topic.publish(1_000)
    assert view.held(0, 1) == []


def test_strict_a_message_due_within_a_tick_is_held_until_then() -> None:
    topic, view = viewed()
    topic.publish(300)
    assert view.held(0, 1) == [0]
    topic.now_ms += 299
    assert not topic.available(view)
    topic.now_ms += 700
    assert topic.take(view) == [0]


@settings(deadline=None)  # other work on the machine is no failure
@given(
    after_ms=st.integers(1, 100_000), tick_ms=st.integers(1, 20_000), strict=st.booleans(), at_ms=st.integers(0, 10**13)
)
def test_a_message_is_never_early_if_strict_and_never_more_than_a_tick_early_or_late(
    after_ms: int, tick_ms: int, strict: bool, at_ms: int
) -> None:
    topic = Topic(DelayedOptions(tick_ms=tick_ms, strict=strict))
    topic.now_ms = at_ms
    view = topic.view()
    topic.publish(after_ms)
    ready_ms = view.next_delivery_ms()
    if ready_ms is None:
        assert not strict
        assert after_ms <= tick_ms
        return
    due_ms = at_ms + after_ms
    assert due_ms - (0 if strict else tick_ms) <= ready_ms <= due_ms + tick_ms
    topic.now_ms = ready_ms - 1
    assert not topic.available(view)
    topic.now_ms = ready_ms
    assert topic.take(view) == [0]


def test_strict_or_not_may_change_and_holds_at_once() -> None:
    topic, view = viewed(LOOSE)
    topic.publish(5_000)
    topic.manager.on_options_updated(STRICT)
    topic.now_ms += 4_999
    assert not topic.available(view)
    topic.manager.on_options_updated(LOOSE)
    assert topic.take(view) == [0]


# -- what bugs of the trackers in Pulsar taught -----------------------------------------------------------------------


def test_strict_there_is_something_to_wait_for_as_long_as_anything_is_held() -> None:  # apache/pulsar#25996
    topic, view = viewed()
    topic.publish(*range(1, 5_000, 7))
    while view.number_of_delayed_messages:
        next_ms = view.next_delivery_ms()
        assert next_ms is not None
        assert next_ms > topic.now_ms
        topic.now_ms = next_ms
        assert topic.take(view)


def test_not_strict_nothing_is_available_that_is_then_held_again() -> None:  # apache/pulsar#26188
    topic, view = viewed(LOOSE)
    for after_ms in range(1_001, 3_000, 13):
        topic.publish(after_ms)
        assert view.held(topic.stop - 1, topic.stop)
        assert not topic.available(view)


def test_asking_an_empty_index_for_its_next_delivery_is_no_error() -> None:  # apache/pulsar#25617
    topic, view = viewed()
    ids = topic.publish(1_000, 2_000)
    for entry_id in ids:
        topic.manager.cancel(entry_id)
    assert view.next_delivery_ms() is None
    assert view.furthest_delivery_ms() is None
    topic.now_ms += 10_000
    assert not topic.available(view)


def test_counting_costs_the_same_however_many_slots_there_are() -> None:  # apache/pulsar#23611
    few, many = Topic(STRICT), Topic(STRICT)
    few_view, many_view = few.view(), many.view()
    few.publish(*range(1_000, 11_000, 1_000))
    many.publish(*range(1_000, 5_001_000, 1_000))

    def calls(work: object) -> int:
        count = 0

        def seen(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(seen)
        try:
            _ = work.number_of_delayed_messages  # type: ignore[attr-defined]
        finally:
            sys.setprofile(None)
        return count

    assert (few_view.number_of_delayed_messages, many_view.number_of_delayed_messages) == (10, 5_000)
    assert calls(few_view) == calls(many_view)


# -- the edges of time and of numbers ---------------------------------------------------------------------------------


def test_a_deliver_time_beyond_all_times_is_held_and_never_due() -> None:
    topic, view = viewed()
    topic.publish_at([TIME_MAX_MS, TIME_MAX_MS - 1])
    assert view.held(0, 2) == [0, 1]
    assert view.furthest_delivery_ms() == TIME_MAX_MS
    topic.now_ms = TIME_MAX_MS - 2
    assert not topic.available(view)


@pytest.mark.parametrize("deliver_at_ms", [-(2**63), -1, 0, 1, NOW])
def test_a_deliver_time_in_the_past_or_none_at_all_delays_nothing(deliver_at_ms: int) -> None:
    topic, view = viewed()
    assert not view.add_message(0, deliver_at_ms, NOW)
    topic.publish_at([deliver_at_ms])
    assert topic.manager.next_delivery_ms() is None


def test_everything_is_due_while_delays_are_switched_off_and_delayed_again_afterwards() -> None:
    topic = Topic(STRICT, first=10)
    view = topic.view()
    topic.publish(60_000, 70_000)
    assert view.get_scheduled_messages(TIME_MAX_MS, 10, topic.stop) == [10, 11]
    assert view.look([3], [NOW + 60_000], TIME_MAX_MS) == []
    assert view.look([3], [NOW + 60_000], NOW) == [3]
    topic.publish(60_000)
    assert not topic.available(view)
    topic.now_ms += 60_000
    assert topic.take(view) == [3, 12]


def test_a_clock_set_forward_brings_everything_that_is_due_then() -> None:
    topic, view = viewed()
    topic.publish(*range(1_000, 1_000_000, 1_000))
    topic.now_ms += 10**9
    seen = []
    while topic.available(view):
        seen += topic.take(view, 10)
    assert sorted(seen) == list(range(999))


def test_a_clock_set_back_delays_what_comes_then_and_takes_back_nothing_that_was_due() -> None:
    topic, view = viewed()
    topic.publish(1_000, 2_000)
    topic.now_ms += 1_500
    assert topic.take(view) == [0]
    topic.now_ms -= 3_600_000
    topic.publish(1_000)
    assert not topic.available(view)
    topic.now_ms += 1_500
    assert topic.take(view) == [2]
    topic.now_ms += 3_600_000
    assert topic.take(view) == [1]


def test_a_clock_set_forward_by_a_year_holds_no_caller_up_for_all_of_it() -> None:
    topic = Topic(STRICT)
    view = topic.view("a")
    topic.publish(*range(1_000, 2_000_000, 1_000))
    topic.now_ms += 10**10
    # This reader has read nothing: all of it is left to it, slot by slot.
    calls = 0
    while view.has_message_available(topic.now_ms, 0):
        calls += 1
    assert calls == 1_999 // 256
    assert view.number_of_delayed_messages == 0


def test_entry_ids_of_more_than_32_bits_are_delayed_as_others_are() -> None:
    start = 2**32 - 3
    topic = Topic(STRICT, first=start)
    view = topic.view(mark_delete=start - 1)
    topic.publish(1_000, 1_000)
    topic.now_ms += 1_000
    assert topic.take(view, 1) == [start]
    topic.publish(1_000, 2_000, 2_000, 1_000)
    assert view.held(start, start + 10) == [start + offset for offset in (1, 2, 3, 4, 5)]
    assert view.next_wanted(start + 1, start + 10) == start + 6
    topic.now_ms += 5_000
    assert topic.take(view) == [start + offset for offset in (1, 2, 5, 3, 4)]
    assert topic.memory.used_bytes == 0


# -- the life of a view, a manager, a factory -------------------------------------------------------------------------


def test_closing_the_last_view_empties_the_index_gives_its_bytes_back_and_says_so() -> None:
    topic = Topic(STRICT)
    first, second = topic.view("a"), topic.view("b")
    topic.publish(*[60_000] * 1_000)
    assert topic.memory.used_bytes > 0
    first.close()
    assert topic.emptied == []
    second.close()
    assert topic.emptied == [topic.manager]
    assert topic.memory.used_bytes == 0
    assert topic.manager.topic_delayed_messages() == 0


def test_closing_a_view_that_lagged_lets_go_of_what_only_it_wanted() -> None:
    topic = Topic(STRICT)
    lagging, brisk = topic.view("a"), topic.view("b")
    topic.publish(*[1_000] * 1_000)
    topic.now_ms += 1_000
    assert len(topic.take(brisk)) == 1_000
    assert topic.memory.used_bytes > 0
    lagging.close()
    assert topic.memory.used_bytes == 0


def test_a_factory_keeps_one_manager_per_topic_and_forgets_it_when_it_is_empty() -> None:
    factory = DelayedDeliveryTrackerFactory(DelayedMemory(ROOMY))
    manager = factory.manager("t", 0, STRICT)
    assert factory.manager("t", 99, LOOSE) is manager
    assert factory.manager("u", 0, STRICT) is not manager
    view = manager.create_or_get_view("a", Cursor())
    assert manager.create_or_get_view("a", Cursor()) is view
    view.close()
    assert factory.find("t") is None
    assert factory.manager("t", 5, STRICT) is not manager


def test_removing_a_topic_gives_its_bytes_back() -> None:
    memory = DelayedMemory(ROOMY)
    factory = DelayedDeliveryTrackerFactory(memory)
    manager = factory.manager("t", 0, STRICT)
    manager.create_or_get_view("a", Cursor())
    manager.add_run([0, 1], [NOW + 5_000, NOW + 6_000], NOW)
    assert memory.used_bytes > 0
    factory.remove("t")
    factory.remove("t")
    assert memory.used_bytes == 0
    assert factory.find("t") is None


def test_a_broker_that_delays_nothing_does_not_load_the_index() -> None:
    program = (
        "import sys; from penstock.governance import delayed; "
        "m = delayed.TopicDelayedDeliveryTrackerManager('t', 0, delayed.DelayedOptions(), "
        "delayed.DelayedMemory(1), print); "
        "from penstock.storage.cursor import Cursor; v = m.create_or_get_view('a', Cursor()); "
        "assert v.held(0, 9) == [] and v.next_wanted(3, 9) == 3 and not v.has_message_available(1, 9); "
        "assert v.number_of_delayed_messages == 0 and not v.get_scheduled_messages(1, 9, 9); "
        "sys.exit('penstock.governance.delayed_slots' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cancelled_message_is_held_for_ever_and_never_offered() -> None:
    topic, view = viewed()
    topic.publish(1_000, 1_000, 1_000)
    assert topic.manager.cancel(1)
    assert not topic.manager.cancel(77)
    assert view.number_of_delayed_messages == 2
    topic.now_ms += 1_000
    assert topic.take(view) == [0, 2]
    assert view.held(0, 3) == [1]
    assert view.next_wanted(1, 3) == 2
    assert topic.manager.cancelled() == [1, 77]


def test_a_stretch_of_held_entries_is_skipped_whole() -> None:
    topic, view = viewed()
    topic.publish(*[60_000] * 100_000)
    topic.stop += 5
    assert view.next_wanted(10, topic.stop) == 100_000
    assert view.next_wanted(10, 50_000) == 50_000
    assert view.next_wanted(100_003, topic.stop) == 100_003
    assert view.held(99_998, 100_003) == [99_998, 99_999]


def test_a_tick_that_makes_no_sense_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tick_ms"):
        DelayedOptions(tick_ms=0)
