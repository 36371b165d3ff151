# SPDX-License-Identifier: Apache-2.0
"""Key_Shared, the pure part: whose a key is, what a change of consumers moves, and the order of every key."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.subscriptions.key_order import KeyOrder
from penstock.broker.subscriptions.key_ranges import (
    SLOTS,
    HashRing,
    RangeHalving,
    Selector,
    StickyRanges,
    hash_of,
    ring_slot_of,
    slot_of,
)
from penstock.core.errors import ConsumerAssignFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEYS = [b"key-%d" % number for number in range(2_000)]
names = st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=6)


class Someone:
    """A consumer: only its identity counts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def joined(selector: Selector[Someone], *consumers: str) -> list[Someone]:
    members = [Someone(name) for name in consumers]
    for member in members:
        selector.add(member, member.name)
    return members


# -- slots


@given(key=st.binary(max_size=30))
def test_no_key_has_slot_zero(key: bytes) -> None:
    assert 1 <= slot_of(key) < SLOTS
    assert 1 <= ring_slot_of(key) < SLOTS


# -- the ring


def test_consumers_stand_on_the_ring_where_pulsar_puts_them() -> None:
    ring: HashRing[Someone] = HashRing(3)
    first, second, third = joined(ring, "consumer1", "consumer2", "consumer3")
    assert ring.ranges() == [
        (1, 6668, second),
        (6669, 14358, third),
        (14359, 18366, first),
        (18367, 29990, third),
        (29991, 39817, first),
        (39818, 52979, second),
        (52980, 60442, first),
        (60443, 63679, second),
        (63680, 65183, third),
        (65184, 65535, second),
    ]


@given(consumers=names)
def test_the_ranges_of_a_ring_cover_every_slot_once_and_say_what_select_says(consumers: list[str]) -> None:
    ring: HashRing[Someone] = HashRing(5)
    joined(ring, *consumers)
    ranges = ring.ranges()
    assert [first for first, _, _ in ranges] == [1, *(last + 1 for _, last, _ in ranges[:-1])]
    assert ranges[-1][1] == SLOTS - 1
    for first, last, consumer in ranges:
        assert ring.select(first) is consumer
        assert ring.select(last) is consumer


@given(consumers=names, newcomer=st.text("abc", min_size=1, max_size=2))
def test_a_newcomer_takes_slots_only_for_itself_and_gives_them_back_when_it_leaves(
    consumers: list[str], newcomer: str
) -> None:
    ring: HashRing[Someone] = HashRing(20)
    joined(ring, *consumers)
    slots = [ring.slot(hash_of(key)) for key in KEYS]
    before = [ring.select(slot) for slot in slots]
    (new,) = joined(ring, newcomer)
    during = [ring.select(slot) for slot in slots]
    assert all(now is then or now is new for now, then in zip(during, before, strict=True))
    ring.remove(new)
    assert [ring.select(slot) for slot in slots] == before


def test_a_hundred_points_spread_keys_over_consumers_also_of_one_name() -> None:
    ring: HashRing[Someone] = HashRing(100)
    joined(ring, "same", "same", "same", "same")
    shares = Counter(id(ring.select(ring.slot(hash_of(key)))) for key in KEYS)
    assert len(shares) == 4
    assert min(shares.values()) > len(KEYS) / 4 / 2


def test_an_empty_ring_has_nobody() -> None:
    ring: HashRing[Someone] = HashRing(3)
    (only,) = joined(ring, "a")
    ring.remove(only)
    ring.remove(only)
    assert ring.select(5) is None
    assert ring.ranges() == []


# -- halving


def test_ranges_are_halved_as_pulsar_halves_them() -> None:
    halving: RangeHalving[Someone] = RangeHalving()
    first, second, third, fourth = joined(halving, "1", "2", "3", "4")
    quarter = SLOTS // 4
    assert halving.ranges() == [
        (0, quarter, third),
        (quarter + 1, 2 * quarter, second),
        (2 * quarter + 1, 3 * quarter, fourth),
        (3 * quarter + 1, SLOTS, first),
    ]


@given(leaving=st.lists(st.integers(0, 9), max_size=9), count=st.integers(1, 10))
def test_whoever_leaves_gives_its_range_to_one_neighbour(leaving: list[int], count: int) -> None:
    halving: RangeHalving[Someone] = RangeHalving()
    members = joined(halving, *map(str, range(count)))
    slots = list(range(1, SLOTS, 97))
    for index in leaving:
        if index >= len(members):
            continue
        before = [halving.select(slot) for slot in slots]
        gone = members.pop(index)
        halving.remove(gone)
        after = [halving.select(slot) for slot in slots]
        assert all(now is then for now, then in zip(after, before, strict=True) if then is not gone)
        heirs = {now for now, then in zip(after, before, strict=True) if then is gone}
        assert len(heirs) <= 1
        assert not members or None not in heirs


def test_when_no_range_can_be_halved_the_newcomer_is_refused() -> None:
    halving: RangeHalving[int] = RangeHalving()
    halving._ends, halving._owners = [*range(1, SLOTS + 1)], [*range(SLOTS)]  # noqa: SLF001 - everybody has one slot
    with pytest.raises(
        ConsumerAssignFailed, match="No more range can assigned to new consumer, assigned consumers 65536"
    ):
        halving.add(SLOTS, "")


# -- sticky ranges


def test_sticky_consumers_own_what_they_asked_for_and_nobody_the_rest() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(0, 2), (15, 20)])
    sticky.add_ranges("b", [(3, 7)])
    assert [sticky.select(slot) for slot in (1, 2, 3, 7, 8, 14, 15, 20, 21)] == [
        "a", "a", "b", "b", None, None, "a", "a", None,
    ]  # fmt: skip
    sticky.remove("a")
    assert sticky.select(1) is None
    assert sticky.ranges() == [(3, 7, "b")]


@pytest.mark.parametrize(
    ("ranges", "complaint"),
    [
        ([], "Ranges for KeyShared policy must not be empty"),
        ([(5, 4)], r"Fixed hash range start > end for range: \[5,4\]"),
        ([(0, 10), (10, 20)], r"Consumer's own ranges conflict: \[0,10\] overlaps with \[10,20\]"),
        ([(0, SLOTS)], "not within 0..65535"),
        ([(-1, 3)], "not within 0..65535"),
        ([(90, 100)], "Range conflict with consumer a"),
        ([(100, 300)], "Range conflict with consumer a"),
        ([(150, 160)], "Range conflict with consumer a"),
    ],
)
def test_sticky_ranges_that_cannot_be_are_refused(ranges: list[tuple[int, int]], complaint: str) -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(100, 200)])
    with pytest.raises(ConsumerAssignFailed, match=complaint):
        sticky.add_ranges("b", ranges)


def test_whoever_is_in_the_way_is_named_once() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(0, 9), (20, 29)])
    sticky.add_ranges("b", [(10, 19)])
    assert sticky.conflicting([(5, 25)]) == ["a", "b"]
    assert sticky.conflicting([(30, 40)]) == []


@given(
    owned=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20), st.sampled_from("abc")), max_size=20),
    wanted=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), min_size=1, max_size=20),
)
def test_whoever_is_in_the_way_is_who_has_a_slot_that_is_wanted(
    owned: list[tuple[int, int, str]], wanted: list[tuple[int, int]]
) -> None:
    sticky: StickyRanges[str] = StickyRanges()
    slots: dict[int, str] = {}
    for start, more, owner in owned:
        taken = range(start, start + more + 1)
        if not slots.keys() & set(taken):
            sticky.add_ranges(owner, [(start, start + more)])
            slots |= dict.fromkeys(taken, owner)
    asked = {slot for start, more in wanted for slot in range(start, start + more + 1)}
    ranges = [(slot, slot) for slot in asked]
    assert set(sticky.conflicting(ranges)) == {slots[slot] for slot in asked if slot in slots}


def test_as_many_ranges_as_there_are_slots_are_compared_in_order() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    before = time.process_time()
    sticky.add_ranges("a", [(slot, slot) for slot in range(0, SLOTS, 2)])
    sticky.add_ranges("b", [(slot, slot) for slot in range(SLOTS - 1, 0, -2)])
    with pytest.raises(ConsumerAssignFailed, match="Range conflict with consumer a"):
        sticky.add_ranges("c", [(slot, slot) for slot in range(SLOTS)])
    assert time.process_time() - before < 5  # 0.2 s; every range against every other: some minutes


# -- what names and numbers cost


def test_a_long_name_is_hashed_once_and_not_for_each_of_its_points() -> None:
    ring: HashRing[Someone] = HashRing(100)
    before = time.process_time()
    joined(ring, "n" * 500_000)
    assert time.process_time() - before < 3  # 0.1 s; it was 13


def test_a_thousand_consumers_come_and_go_and_leave_nothing_on_the_ring() -> None:
    ring: HashRing[Someone] = HashRing(100)
    members = joined(ring, *(f"c{number}" for number in range(1_000)))
    assert len({id(owner) for _, _, owner in ring.ranges()}) == 1_000
    for member in members[1:]:
        ring.remove(member)
    assert ring.ranges() == [(1, SLOTS - 1, members[0])]
    ring.remove(members[0])
    assert (ring.ranges(), ring.select(1)) == ([], None)


# -- order


def ordered(*consumers: str) -> tuple[KeyOrder[Someone], list[Someone]]:
    sticky: StickyRanges[Someone] = StickyRanges()
    members = [Someone(name) for name in consumers]
    for index, member in enumerate(members):
        sticky.add_ranges(member, [(10 * index, 10 * index + 9)])
    return KeyOrder(sticky, in_order=True), members


def test_an_entry_whose_consumer_has_no_room_waits_and_so_do_later_ones_of_its_slot_only() -> None:
    order, (a, b) = ordered("a", "b")
    assert order.plan([0, 1, 2, 3], [1, 11, 1, 2], None, {a: 1, b: 5}) == {a: [0], b: [1]}
    assert [entry in order for entry in range(4)] == [False, False, True, True]
    assert order.plan([4, 5], [1, 12], None, {a: 9, b: 5}) == {b: [1]}  # 2 waits, so 4 must


def test_room_is_counted_in_messages_and_a_batch_may_take_it_below_zero() -> None:
    order, (a,) = ordered("a")
    assert order.plan([0, 1, 2], [1, 2, 3], [4, 4, 4], {a: 5}) == {a: [0, 1]}


def test_what_waits_goes_lowest_first_also_when_it_is_read_out_of_order() -> None:
    order, (a,) = ordered("a")
    order.plan([0, 1, 2], [1, 1, 2], None, {a: 0})
    assert order.plan_waiting([1], None, {a: 5}) == {}  # 0 is of the same slot and still waits
    assert order.plan_waiting([0, 1, 2], None, {a: 2}) == {a: [0, 1]}
    assert order.sendable({a: 5}) == [2]


def test_a_slot_is_given_to_its_new_consumer_when_the_old_one_has_acknowledged() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(0, 9)])
    order = KeyOrder(sticky, in_order=True)
    order.plan([0, 1], [3, 3], None, {"a": 5})
    sticky.remove("a")  # as a ring would move it
    sticky.add_ranges("b", [(0, 9)])
    assert order.plan([2], [3], None, {"a": 5, "b": 5}) == {}
    assert order.draining("a") == [(3, 2)]
    assert not order.release("a", [0], again=False)
    assert order.sendable({"b": 5}) == []
    assert order.release("a", [1], again=False)
    assert order.sendable({"b": 5}) == [2]
    assert order.draining("a") == []
    assert order.cleared[id("a")] == 1


def test_who_holds_up_whom_is_known_slot_by_slot() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(0, 9)])
    sticky.add_ranges("c", [(20, 29)])
    order = KeyOrder(sticky, in_order=True)
    order.plan([0, 1, 2, 3], [3, 4, 5, 21], None, {"a": 5, "c": 5})
    sticky.remove("a")
    sticky.add_ranges("b", [(0, 4)])
    sticky.add_ranges("a", [(5, 9)])
    assert order.plan([4, 5, 6], [4, 5, 4], None, {"b": 5}) == {}
    assert sorted(order.draining("a")) == [(3, 1), (4, 1)], "the slot 5 is still its own"
    assert order.draining("b") == order.draining("c") == []
    assert sorted(order.waiting_keys()) == [("a", None, 1), ("b", "a", 2)]
    assert order.first_held(["a", "b", "c"]) == {"a": 1}, "nothing waits for the slot 3"
    assert order.first_held([]) == order.first_held(["c"]) == {}


def test_among_entries_that_nobody_holds_the_held_ones_are_released() -> None:
    for moved in (False, True):
        sticky: StickyRanges[str] = StickyRanges()
        sticky.add_ranges("a", [(0, 9)])
        order = KeyOrder(sticky, in_order=True)
        order.plan([0, 1], [3, 4], None, {"a": 5})
        if moved:
            sticky.remove("a")
            sticky.add_ranges("b", [(0, 9)])
        order.release("a", [7, 0, 8, 1], again=False)
        assert order.held == 0
        plan = order.plan([2], [3], None, {"a": 5, "b": 5})
        assert {consumer: list(rows) for consumer, rows in plan.items()} == {"b" if moved else "a": [0]}


def test_what_a_consumer_gives_back_waits_before_what_is_new() -> None:
    order, (a, b) = ordered("a", "b")
    order.plan([0, 1], [1, 11], None, {a: 5, b: 5})
    assert order.release(a, [0], again=True)
    assert order.plan([2], [1], None, {a: 5}) == {}
    assert order.sendable({a: 5, b: 5}) == [0, 2]


def test_out_of_order_delivery_asks_only_whose_the_slot_is() -> None:
    sticky: StickyRanges[str] = StickyRanges()
    sticky.add_ranges("a", [(0, 9)])
    order = KeyOrder(sticky, in_order=False)
    order.plan([0, 1], [3, 3], None, {"a": 1})
    assert order.plan([2], [3], None, {"a": 1}) == {"a": [0]}  # though 1 waits
    sticky.remove("a")
    sticky.add_ranges("b", [(0, 9)])
    assert order.plan_waiting([1], None, {"b": 1}) == {"b": [0]}  # though a holds 0


class KeysStayInOrder(RuleBasedStateMachine):
    """Consumers come, go, take, acknowledge and give back at random, on a ring. Every key is delivered in order."""

    def __init__(self) -> None:
        super().__init__()
        self.ring: HashRing[Someone] = HashRing(4)
        self.order: KeyOrder[Someone] = KeyOrder(self.ring, in_order=True)
        self.here: list[Someone] = []
        self.holding: dict[Someone, dict[int, int]] = {}  # entry -> slot
        self.next_entry = 0
        self.done: set[int] = set()
        self.slots: dict[int, int] = {}

    def take(self, rows_of: Mapping[Someone, Sequence[int]], ids: list[int]) -> None:
        for consumer, rows in rows_of.items():
            for row in rows:
                entry, slot = ids[row], self.slots[ids[row]]
                for other, held in self.holding.items():
                    assert other is consumer or slot not in held.values(), "two consumers hold entries of one key"
                earlier = [e for e, s in self.slots.items() if s == slot and e < entry and e not in self.done]
                assert all(e in self.holding[consumer] for e in earlier), "a later entry of a key went first"
                self.holding[consumer][entry] = slot

    @rule(name=st.text("ab", min_size=1, max_size=1))
    def join(self, name: str) -> None:
        if len(self.here) < 5:
            consumer = Someone(name)
            self.ring.add(consumer, name)
            self.here.append(consumer)
            self.holding[consumer] = {}

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.here))
        self.here.remove(consumer)
        self.order.release(consumer, list(self.holding.pop(consumer)), again=True)
        self.order.forget(consumer)

    @precondition(lambda self: self.here)
    @rule(slots=st.lists(st.integers(1, 6), min_size=1, max_size=6), data=st.data())
    def read_on(self, slots: list[int], data: st.DataObject) -> None:
        ids = list(range(self.next_entry, self.next_entry + len(slots)))
        self.next_entry += len(slots)
        spread = [slot * 9_973 % (SLOTS - 1) + 1 for slot in slots]
        self.slots.update(zip(ids, spread, strict=True))
        room = {consumer: data.draw(st.integers(-1, 4)) for consumer in self.here}
        self.take(self.order.plan(ids, spread, None, room), ids)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        room = {consumer: data.draw(st.integers(0, 4)) for consumer in self.here}
        sendable = self.order.sendable(dict(room))
        if sendable:
            ids = sendable[:10]
            rows_of = self.order.plan_waiting(ids, None, room)
            assert rows_of, "nothing was sent of what might be"
            self.take(rows_of, ids)

    @precondition(lambda self: any(self.holding.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from([one for one, held in self.holding.items() if held]))
        entry = data.draw(st.sampled_from(sorted(self.holding[consumer])))
        del self.holding[consumer][entry]
        self.done.add(entry)
        self.order.release(consumer, [entry], again=False)

    @precondition(lambda self: any(self.holding.values()))
    @rule(data=st.data())
    def give_all_back(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from([one for one, held in self.holding.items() if held]))
        self.order.release(consumer, list(self.holding[consumer]), again=True)
        self.holding[consumer].clear()

    @invariant()
    def every_entry_is_held_waits_or_is_done(self) -> None:
        held = {entry for entries in self.holding.values() for entry in entries}
        waiting = {entry for entry in range(self.next_entry) if entry in self.order}
        assert not held & waiting
        assert held | waiting | self.done == set(range(self.next_entry))

    def teardown(self) -> None:
        """Whoever is left, or one who comes now, gets everything that is not acknowledged."""
        if not self.here:
            self.join("z")
        for _ in range(2 * self.next_entry + 2):
            for held_by, entries in list(self.holding.items()):
                self.order.release(held_by, list(entries), again=False)
                self.done.update(entries)
                entries.clear()
            room = dict.fromkeys(self.here, 1_000)
            sendable = self.order.sendable(dict(room))
            if not sendable:
                break
            ids = sendable[:1_000]
            self.take(self.order.plan_waiting(ids, None, room), ids)
        assert self.done == set(range(self.next_entry))


TestKeysStayInOrder = KeysStayInOrder.TestCase
TestKeysStayInOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_key_keeps_its_consumer_while_nobody_comes_or_goes() -> None:
    ring: HashRing[Someone] = HashRing(100)
    joined(ring, "a", "b", "c")
    owners = defaultdict(set)
    for _ in range(3):
        for key in KEYS:
            owners[key].add(ring.select(ring.slot(hash_of(key))))
    assert all(len(seen) == 1 for seen in owners.values())
