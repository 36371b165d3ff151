# SPDX-License-Identifier: Apache-2.0
"""The cursor against a plain set of entry ids, and what it costs."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap

from penstock.core.checksum import seal
from penstock.storage import entry_set
from penstock.storage.cursor import Cursor, CursorPart, DamagedCursorError, may_have_parts

LAST = 60  # Small enough for ranges to meet, split and join all the time.
entry_ids = st.integers(0, LAST)


class Disk:
    """What is stored of one cursor: the head, and the parts as saves have left them."""

    def __init__(self, cursor: Cursor) -> None:
        self.head = b""
        self.parts: dict[tuple[int, int], bytes] = {}
        self.save(cursor)

    def save(self, cursor: Cursor) -> list[CursorPart]:
        changes = cursor.take_changes()
        self.head = cursor.head()
        for kind, number, value in changes:
            if value is None:
                self.parts.pop((kind, number), None)
            else:
                self.parts[kind, number] = value
        return changes

    def load(self) -> Cursor:
        return Cursor.load(self.head, [(*key, value) for key, value in self.parts.items()])


def restarted(cursor: Cursor) -> Cursor:
    return Disk(cursor).load()


class CursorLikeASet(RuleBasedStateMachine):
    """The cursor and a set of acknowledged ids, told the same things, must give the same answers.

    Saves come at any time; a restart, which may be a crash, brings back exactly what the last save stored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.acked: set[int] = set()
        self.wanted: dict[int, int] = {}
        self.disk = Disk(self.cursor)
        self.saved: tuple[set[int], dict[int, int]] = (set(), {})

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

    @rule()
    def save(self) -> None:
        self.disk.save(self.cursor)
        self.saved = (set(self.acked), dict(self.wanted))

    @rule()
    def restart(self) -> None:
        self.cursor = self.disk.load()
        assert not self.cursor.lost_parts
        self.acked, self.wanted = set(self.saved[0]), dict(self.saved[1])

    @rule(first=st.integers(0, LAST + 5), last=st.integers(-1, LAST + 5))
    def walk(self, first: int, last: int) -> None:
        ranges = list(self.cursor.unacknowledged_ranges(first, last))
        walked = [entry_id for low, high in ranges for entry_id in range(low, high + 1)]
        assert walked == [entry_id for entry_id in range(first, last + 1) if entry_id not in self.acked]
        assert [self.cursor.nth_unacknowledged(nth, first) for nth in range(len(walked))] == walked
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(ranges))

    @invariant()
    def answers_agree(self) -> None:
        first_free = next(entry_id for entry_id in range(LAST + 3) if entry_id not in self.acked)
        assert self.cursor.mark_delete == first_free - 1
        assert self.cursor.backlog(LAST) == LAST + 1 - len(self.acked & set(range(LAST + 1)))
        assert self.cursor.acknowledged_above == sum(entry_id >= first_free for entry_id in self.acked)
        assert self.cursor.last_acknowledged == max(self.acked, default=-1)
        above = {entry_id for entry_id in self.acked if entry_id > first_free}
        assert self.cursor.range_count == sum(entry_id - 1 not in above for entry_id in above)
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


class CursorOfSmallChunks(CursorLikeASet):
    """The same with 16 entries a chunk, so that everything happens across the borders of chunks, too."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, value in {"CHUNK_BITS": 4, "CHUNK_IDS": 16, "_LOW": 15, "_FULL": BitMap(range(16))}.items():
            self.patch.setattr(entry_set, name, value)
        super().__init__()

    def teardown(self) -> None:
        self.patch.undo()


TestCursorOfSmallChunks = CursorOfSmallChunks.TestCase
TestCursorOfSmallChunks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
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

    assert Disk(one_by_one).head == Disk(at_once).head
    assert Disk(one_by_one).parts == Disk(at_once).parts


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


def test_ten_million_acknowledgements_above_a_stuck_entry_cost_almost_nothing() -> None:
    cursor = Cursor()
    for first in range(1, 10_000_001, 100_000):
        cursor.acknowledge_many(range(first, first + 100_000))
    assert cursor.range_count == 1
    assert cursor.acknowledged_above == 10_000_000
    cursor.measure()
    assert cursor.nbytes < 100_000
    assert sum(map(len, Disk(cursor).parts.values())) < 5_000

    assert cursor.acknowledge(0)

    assert cursor.mark_delete == 10_000_000


def test_every_acknowledged_entry_is_stored_however_many_gaps_there_are() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 2_000_000, 2))
    disk = Disk(cursor)

    again = disk.load()

    assert again.acknowledged_above == again.range_count == 1_000_000
    assert all(again.is_acknowledged(entry_id) == bool(entry_id % 2) for entry_id in range(0, 2_000_000, 997))
    assert max(map(len, disk.parts.values())) < 9_000


def test_a_save_writes_what_changed_and_not_what_did_not() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 2_000_000, 2))
    disk = Disk(cursor)
    assert disk.save(cursor) == []

    cursor.acknowledge(1_000_000)

    (part,) = disk.save(cursor)
    assert part.number == 1_000_000 >> entry_set.CHUNK_BITS
    assert disk.load().is_acknowledged(1_000_000)


def test_whether_none_of_a_range_is_acknowledged_is_seen_at_both_of_its_ends() -> None:
    cursor = Cursor(9)
    cursor.acknowledge_many([20, 100_000])
    for first, last, none in (
        (10, 19, True), (10, 20, False), (20, 30, False), (21, 99_999, True), (21, 100_000, False),
        (100_001, 200_000, True), (9, 12, False), (0, 200_000, False),
    ):  # fmt: skip
        assert cursor.none_acknowledged(first, last) is none, (first, last)


def test_a_million_gaps_take_a_quarter_of_a_megabyte() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 2_000_000, 2))
    cursor.measure()
    assert 250_000 < cursor.nbytes < 350_000


def test_single_acknowledgements_between_ranges_never_make_a_chunk_larger_than_its_bits() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 300))
    for entry_id in range(301, 60_000, 2):
        cursor.acknowledge(entry_id)
    cursor.measure()
    assert cursor.nbytes < 11_000


def test_a_stored_part_below_the_mark_delete_position_goes_with_a_later_save() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 200_000, 2))
    disk = Disk(cursor)
    cursor.acknowledge_through(150_000)
    disk.save(cursor)
    assert {number for _, number in disk.parts} == {2, 3}
    cursor.reset(10)
    disk.save(cursor)
    assert not disk.parts
    assert disk.load().backlog(199_999) == 199_990


def test_a_part_that_is_missing_or_damaged_costs_what_it_said_and_is_counted() -> None:
    cursor = Cursor()
    cursor.acknowledge_many([5, 70_000, 70_002])
    cursor.acknowledge_batch(9, [0b10])
    disk = Disk(cursor)
    del disk.parts[0, 0]
    disk.parts[1, 9] = b""

    again = disk.load()

    assert again.lost_parts == 2
    assert not again.is_acknowledged(5)
    assert again.ack_set(9) is None
    assert again.is_acknowledged(70_000)


def test_a_cursor_of_the_first_format_is_read_and_stored_in_parts() -> None:
    ranges, ack_sets = [(7, 9), (11, 11)], [(13, 0b101)]
    body = struct.pack("<BqII", 1, 4, len(ranges), len(ack_sets))
    body += struct.pack("<4q", *(first for first, _ in ranges), *(last for _, last in ranges))
    body += b"".join(struct.pack("<qIQ", entry_id, 1, bits) for entry_id, bits in ack_sets)
    assert may_have_parts(seal(body))

    cursor = Cursor.load(seal(body))

    for one in (cursor, restarted(cursor)):
        assert one.mark_delete == 4
        assert list(one.unacknowledged_ranges(0, 14)) == [(5, 6), (10, 10), (12, 14)]
        assert one.ack_set(13) == [0b101]


def test_filling_many_holes_from_the_front_keeps_every_answer_right() -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 20_000, 2))
    for hole in range(0, 19_990, 2):
        assert cursor.acknowledge(hole)
        assert cursor.mark_delete == hole + 1
    assert cursor.range_count == 5
    assert cursor.backlog(19_999) == 5


@given(bit=st.integers(min_value=0))
def test_no_flipped_bit_of_a_stored_head_goes_unnoticed(bit: int) -> None:
    cursor = Cursor(4)
    damaged = bytearray(cursor.head())
    bit %= 8 * len(damaged)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(DamagedCursorError):
        Cursor.load(bytes(damaged))


def test_bytes_that_are_no_cursor_are_refused() -> None:
    with pytest.raises(DamagedCursorError):
        Cursor.load(b"")


def test_a_reset_into_a_batch_wants_only_the_members_named_and_keeps_that() -> None:
    cursor = Cursor(20)
    cursor.reset(7, [-8])  # all but the first three of 64
    assert cursor.mark_delete == 6
    assert cursor.ack_set(7) == [-8]
    assert cursor.wanted_of(7) == 61
    again = restarted(cursor)
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
        assert list(together.unacknowledged_ranges(0, 6_000)) == list(single.unacknowledged_ranges(0, 6_000))
        assert together.partly_acknowledged(0, 6_000) == single.partly_acknowledged(0, 6_000)
        assert (together.range_count, together.acknowledged_above) == (single.range_count, single.acknowledged_above)
    assert together.mark_delete == 5_999
