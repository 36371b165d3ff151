# SPDX-License-Identifier: Apache-2.0
"""The cursor against a plain set of entry ids, and what it costs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.storage.cursor import RANGES_PERSISTED_MAX, Cursor, DamagedCursorError

LAST = 60  # Small enough for ranges to meet, split and join all the time.
entry_ids = st.integers(0, LAST)


class CursorLikeASet(RuleBasedStateMachine):
    """The cursor and a set of acknowledged ids, told the same things, must give the same answers."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.acked: set[int] = set()
        self.wanted: dict[int, int] = {}

    def ack(self, ids: set[int]) -> int:
        """Acknowledge whole entries in the model; how many are new."""
        new = ids - self.acked
        self.acked |= new
        for entry_id in ids:
            self.wanted.pop(entry_id, None)
        return len(new)

    @rule(entry_id=entry_ids)
    def acknowledge(self, entry_id: int) -> None:
        assert self.cursor.acknowledge(entry_id) == (self.ack({entry_id}) == 1)

    @rule(ids=st.lists(entry_ids, max_size=20))
    def acknowledge_many(self, ids: list[int]) -> None:
        assert self.cursor.acknowledge_many(ids) == self.ack(set(ids))

    @rule(first=entry_ids, length=st.integers(1, 20))
    def acknowledge_a_stretch(self, first: int, length: int) -> None:
        ids = range(first, min(first + length, LAST + 1))
        assert self.cursor.acknowledge_many(ids) == self.ack(set(ids))

    @rule(entry_id=entry_ids)
    def acknowledge_through(self, entry_id: int) -> None:
        assert self.cursor.acknowledge_through(entry_id) == self.ack(set(range(entry_id + 1)))

    @rule(entry_id=entry_ids, members=st.integers(0, 2**70))
    def acknowledge_batch(self, entry_id: int, members: int) -> None:
        words = [members & (2**64 - 1), members >> 64]
        if entry_id in self.acked:
            newly = False
        else:
            left = self.wanted.get(entry_id, -1) & members
            newly = left == 0 and self.ack({entry_id}) == 1
            if left:
                self.wanted[entry_id] = left
        assert self.cursor.acknowledge_batch(entry_id, words) == newly

    @rule(to_entry_id=st.integers(0, LAST + 1))
    def reset(self, to_entry_id: int) -> None:
        self.cursor.reset(to_entry_id)
        self.acked, self.wanted = set(range(to_entry_id)), {}

    @rule(last=st.integers(-1, LAST))
    def forget_after(self, last: int) -> None:
        self.cursor.forget_after(last)
        self.acked = {entry_id for entry_id in self.acked if entry_id <= last}
        self.wanted = {entry_id: bits for entry_id, bits in self.wanted.items() if entry_id <= last}

    @rule()
    def restart(self) -> None:
        self.cursor = Cursor.decode(self.cursor.encode())

    @rule(first=st.integers(0, LAST + 5), last=st.integers(-1, LAST + 5))
    def walk(self, first: int, last: int) -> None:
        ranges = list(self.cursor.unacknowledged_ranges(first, last))
        walked = [entry_id for low, high in ranges for entry_id in range(low, high + 1)]
        assert walked == [entry_id for entry_id in range(first, last + 1) if entry_id not in self.acked]
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(ranges))

    @invariant()
    def answers_agree(self) -> None:
        first_free = next(entry_id for entry_id in range(LAST + 3) if entry_id not in self.acked)
        assert self.cursor.mark_delete == first_free - 1
        assert self.cursor.backlog(LAST) == LAST + 1 - len(self.acked & set(range(LAST + 1)))
        assert self.cursor.acknowledged_above == sum(entry_id >= first_free for entry_id in self.acked)
        for entry_id in range(LAST + 2):
            assert self.cursor.is_acknowledged(entry_id) == (entry_id in self.acked)
            words = self.cursor.ack_set(entry_id)
            assert (words is None) == (entry_id not in self.wanted)
            assert words is None or bits_of(words) == self.wanted[entry_id]

    @invariant()
    def ranges_are_apart(self) -> None:
        edges = [self.cursor.mark_delete]
        for low, high in acknowledged_ranges(self.cursor):
            edges += (low - 1, high)
        assert all(left < right for left, right in pairwise(edges))


def bits_of(words: list[int]) -> int:
    return sum((word & (2**64 - 1)) << 64 * index for index, word in enumerate(words))


def acknowledged_ranges(cursor: Cursor) -> list[tuple[int, int]]:
    """What lies between the unacknowledged ranges above mark-delete."""
    gaps = list(cursor.unacknowledged_ranges(cursor.mark_delete + 1, LAST + 5))
    return [(high + 1, low - 1) for (_, high), (low, _) in pairwise(gaps)]


TestCursorLikeASet = CursorLikeASet.TestCase
TestCursorLikeASet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(ids=st.lists(st.integers(0, 3_000), min_size=1, max_size=3_000), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_order_of_acknowledgements_does_not_change_the_stored_cursor(ids: list[int], seed: int) -> None:
    shuffled = random.Random(seed).sample(ids, len(ids))
    one_by_one, at_once = Cursor(), Cursor()

    for entry_id in shuffled:
        one_by_one.acknowledge(entry_id)
    at_once.acknowledge_many(ids)

    assert one_by_one.encode() == at_once.encode()


def test_a_change_changes_the_version_and_a_repeated_acknowledgement_does_not() -> None:
    cursor = Cursor()
    versions = [cursor.version]
    cursor.acknowledge(5)
    versions.append(cursor.version)
    cursor.acknowledge_batch(7, [0b01])
    versions.append(cursor.version)
    cursor.reset(2)
    versions.append(cursor.version)
    cursor.acknowledge_many([3, 4])
    versions.append(cursor.version)
    assert versions == sorted(set(versions))

    cursor.acknowledge(3)
    cursor.acknowledge_through(1)
    cursor.acknowledge_batch(4, [0b10])
    assert cursor.version == versions[-1]


def test_a_batch_is_acknowledged_when_its_last_member_is() -> None:
    cursor = Cursor()
    assert not cursor.acknowledge_batch(0, [0b110])
    assert not cursor.acknowledge_batch(0, [0b011])
    assert cursor.ack_set(0) == [0b010]
    assert cursor.mark_delete == -1

    assert cursor.acknowledge_batch(0, [0b101])

    assert cursor.ack_set(0) is None
    assert cursor.mark_delete == 0


def test_ack_set_words_are_signed_as_the_wire_spells_them_whatever_sign_came_in() -> None:
    cursor = Cursor()
    cursor.acknowledge_batch(3, [-1, 1])
    assert cursor.ack_set(3) == [-1, 1]
    cursor.acknowledge_batch(3, [2**64 - 2])
    assert cursor.ack_set(3) == [-2]


def test_ten_million_acknowledgements_above_a_stuck_entry_cost_two_integers() -> None:
    cursor = Cursor()
    for first in range(1, 10_000_001, 100_000):
        cursor.acknowledge_many(range(first, first + 100_000))
    assert cursor.range_count == 1
    assert cursor.acknowledged_above == 10_000_000
    assert len(cursor.encode()) < 64

    assert cursor.acknowledge(0)

    assert cursor.mark_delete == 10_000_000


def test_more_ranges_than_are_stored_are_redelivered_after_a_restart_never_lost() -> None:
    cursor = Cursor()
    ranges = RANGES_PERSISTED_MAX + 7
    cursor.acknowledge_many(range(1, 2 * ranges, 2))
    assert cursor.range_count == ranges

    restarted = Cursor.decode(cursor.encode())

    assert restarted.range_count == RANGES_PERSISTED_MAX
    assert restarted.is_acknowledged(2 * RANGES_PERSISTED_MAX - 1)
    assert not restarted.is_acknowledged(2 * RANGES_PERSISTED_MAX + 1)
    assert restarted.mark_delete == -1


def test_filling_many_holes_from_the_front_keeps_every_answer_right() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 20_000, 2))
    for hole in range(0, 19_990, 2):
        assert cursor.acknowledge(hole)
        assert cursor.mark_delete == hole + 1
    assert cursor.range_count == 5
    assert cursor.backlog(19_999) == 5


@given(bit=st.integers(min_value=0))
def test_no_flipped_bit_of_a_stored_cursor_goes_unnoticed(bit: int) -> None:
    cursor = Cursor(4)
    cursor.acknowledge_many([7, 8, 11])
    cursor.acknowledge_batch(9, [0b101])
    damaged = bytearray(cursor.encode())
    bit %= 8 * len(damaged)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(DamagedCursorError):
        Cursor.decode(bytes(damaged))


def test_bytes_that_are_no_cursor_are_refused() -> None:
    with pytest.raises(DamagedCursorError):
        Cursor.decode(b"")


def test_a_reset_into_a_batch_wants_only_the_members_named_and_keeps_that() -> None:
    cursor = Cursor(20)
    cursor.reset(7, [-8])  # all but the first three of 64
    assert cursor.mark_delete == 6
    assert cursor.ack_set(7) == [-8]
    assert cursor.wanted_of(7) == 61
    again = Cursor.decode(cursor.encode())
    assert (again.mark_delete, again.ack_set(7)) == (6, [-8])
    again.reset(7)
    assert not again.has_ack_sets


@given(batches=st.dictionaries(st.integers(0, 40), st.integers(1, 2**70 - 1), max_size=12), data=st.data())
def test_partly_acknowledged_batches_are_found_in_any_range(batches: dict[int, int], data: st.DataObject) -> None:
    cursor = Cursor()
    for entry_id, wanted in batches.items():
        cursor.acknowledge_batch(entry_id, [wanted & (1 << 64) - 1, wanted >> 64])
    first = data.draw(st.integers(0, 40))
    last = data.draw(st.integers(first, 45))
    expected = {entry_id: wanted.bit_count() for entry_id, wanted in batches.items() if first <= entry_id <= last}
    assert cursor.partly_acknowledged(first, last) == expected
    assert cursor.has_ack_sets == bool(batches)


@pytest.mark.parametrize("seed", range(8))
def test_scattered_acknowledgements_of_many_ranges_are_taken_in_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    together, single = Cursor(), Cursor()
    acked: set[int] = set()
    left = list(range(6_000))
    chance.shuffle(left)
    for entry_id in (7, 3_001, 5_500):
        for cursor in (together, single):
            cursor.acknowledge_batch(entry_id, [1])
    while left:
        count = chance.choice((1, 40, 300, 700))
        ids = left[:count] + chance.sample(range(6_000), 5)
        del left[:count]
        newly = len(set(ids) - acked)
        acked |= set(ids)
        assert together.acknowledge_many(ids) == newly
        assert sum(single.acknowledge(entry_id) for entry_id in ids) == newly
        assert together.encode() == single.encode()
        assert (together.range_count, together.acknowledged_above) == (single.range_count, single.acknowledged_above)
    assert together.mark_delete == 5_999
