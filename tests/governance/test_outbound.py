# SPDX-License-Identifier: Apache-2.0
"""Outbound memory: the budget holds whoever stops reading, everybody's turn comes, and the books agree with the sum."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.outbound import HEADER_BYTES, STUCK_NS, TURN_NS_MAX, Outbound, Reading

ENTRY_BYTES_MAX = 200 * KIB
BUDGET_BYTES = MIB


@dataclass(eq=False)
class Peer:
    """A connection, without a socket."""

    out_bytes: int = 0
    bytes_out: int = 0
    wanted_bytes: int = 1


def outbound(budget_bytes: int = BUDGET_BYTES) -> Outbound[Peer]:
    return Outbound(budget_bytes, entry_bytes_max=ENTRY_BYTES_MAX)


def queue(books: Outbound[Peer], peer: Peer, nbytes: int) -> None:
    peer.out_bytes += nbytes
    peer.wanted_bytes = 1
    books.charge(nbytes)


def take(books: Outbound[Peer], peer: Peer, nbytes: int) -> None:
    peer.out_bytes -= nbytes
    peer.bytes_out += nbytes
    books.release(nbytes)


def test_the_reserve_holds_the_largest_entry_or_half_of_a_small_budget() -> None:
    assert outbound(64 * MIB).reserve_bytes == ENTRY_BYTES_MAX + HEADER_BYTES
    assert outbound(2 * HEADER_BYTES).reserve_bytes == HEADER_BYTES
    assert Outbound[Peer](64 * MIB).reserve_bytes == 5 * MIB + 10 * KIB + HEADER_BYTES


def test_a_connection_has_four_megabytes_where_there_is_room_for_many() -> None:
    books, peer = outbound(1024 * MIB), Peer()
    queue(books, peer, books.room_bytes(peer))
    assert peer.out_bytes == 4 * MIB
    assert books.room_bytes(peer) == 0


def test_a_read_for_connections_that_have_no_room_is_of_nothing() -> None:
    books, full = outbound(64 * MIB), Peer()
    queue(books, full, books.room_bytes(full))
    assert books.charge_read([full], 64 * KIB) == Reading(0, in_turn=False)


def test_what_is_read_in_a_turn_is_of_the_reserve_and_not_of_what_is_free() -> None:
    books, lazy, large = outbound(), Peer(), Peer(wanted_bytes=ENTRY_BYTES_MAX)
    queue(books, lazy, books.free_bytes - KIB)
    books.wait(large)
    assert books.grants() == [large]
    free_bytes = books.free_bytes
    reading = books.charge_read([large], KIB)
    assert reading == Reading(ENTRY_BYTES_MAX, in_turn=True)
    assert books.free_bytes == free_bytes
    books.release_read(reading)
    queue(books, large, ENTRY_BYTES_MAX)
    assert books.free_bytes == free_bytes


def test_who_waits_for_exactly_what_is_free_goes_on_and_leaves_nothing() -> None:
    books = outbound()
    first, second, third = Peer(wanted_bytes=books.free_bytes - 10), Peer(wanted_bytes=10), Peer(wanted_bytes=1)
    for peer in (first, second, third):
        books.wait(peer)
    assert books.grants() == [first, second, third]
    assert books.turn is third, "nothing is left but the reserve"
    assert len(books) == 0


def test_nobody_takes_all_that_is_free() -> None:
    books = outbound(64 * MIB)
    lazy = [Peer() for _ in range(16)]
    for peer in lazy:
        queue(books, peer, books.room_bytes(peer))
    assert books.used_bytes <= books.limit_bytes
    assert books.room_bytes(Peer()) > 0
    assert min(peer.out_bytes for peer in lazy) > 0


def test_the_more_wait_the_less_each_gets() -> None:
    books, first = outbound(16 * MIB), Peer()
    alone = books.room_bytes(first)
    for _ in range(100):
        books.wait(Peer(wanted_bytes=100 * MIB))
    assert books.room_bytes(first) < alone // 10


def test_an_entry_larger_than_what_is_free_goes_out_in_a_turn_of_its_own_within_the_budget() -> None:
    books, lazy, first, second = outbound(), Peer(), Peer(), Peer()
    for _ in range(10):
        queue(books, lazy, books.room_bytes(lazy))
        queue(books, second, books.room_bytes(second))
    take(books, second, second.out_bytes)
    for peer in (first, second):
        peer.wanted_bytes = ENTRY_BYTES_MAX + HEADER_BYTES
        queue(books, lazy, books.room_bytes(lazy))
        books.wait(peer)
    while books.free_bytes > ENTRY_BYTES_MAX:
        queue(books, another := Peer(), books.room_bytes(another) // 2)
    assert books.grants() == [first]
    queue(books, first, ENTRY_BYTES_MAX + HEADER_BYTES)
    assert books.used_bytes <= books.limit_bytes
    assert books.grants() == []

    take(books, first, first.out_bytes)
    assert books.ends_turn(first)
    assert books.grants() == [second]


def test_a_turn_nobody_waits_for_may_take_as_long_as_it_likes_and_one_that_is_waited_for_must_move() -> None:
    books, slow, next_one = outbound(budget_bytes=0), Peer(wanted_bytes=1_000), Peer(wanted_bytes=1_000)
    books.wait(slow)
    assert books.grants() == [slow]
    queue(books, slow, 1_000)
    assert books.overdue(0) is None
    assert books.overdue(100 * TURN_NS_MAX) is None
    books.wait(next_one)
    now_ns = 200 * TURN_NS_MAX
    assert books.overdue(now_ns) is None
    take(books, slow, 1)
    assert books.overdue(now_ns + STUCK_NS - 1) is None
    assert books.overdue(now_ns + 2 * STUCK_NS - 2) is None
    assert books.overdue(now_ns + 2 * STUCK_NS - 1) is slow


def test_a_client_that_takes_a_byte_now_and_then_does_not_keep_its_turn_for_good() -> None:
    books, slow, next_one = outbound(budget_bytes=0), Peer(wanted_bytes=1_000), Peer(wanted_bytes=1_000)
    for peer in (slow, next_one):
        books.wait(peer)
    assert books.grants() == [slow]
    queue(books, slow, 1_000)
    seconds = 0
    while books.overdue(seconds * NS_PER_S) is None:
        take(books, slow, 1)
        seconds += 1
    assert seconds == TURN_NS_MAX // NS_PER_S


class BooksAgree(RuleBasedStateMachine):
    """Connections queue, send, wait, read and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.books = outbound()
        self.peers = [Peer() for _ in range(6)]
        self.readings: list[Reading] = []
        self.answers_bytes = 0

    @rule(at=st.integers(0, 5), nbytes=st.integers(1, ENTRY_BYTES_MAX))
    def deliver(self, at: int, nbytes: int) -> None:
        peer = self.peers[at]
        if nbytes <= self.books.room_bytes(peer):
            queue(self.books, peer, nbytes)
        else:
            peer.wanted_bytes = nbytes
            if not peer.out_bytes:
                self.books.wait(peer)

    @rule(at=st.integers(0, 5), part=st.integers(1, 4))
    def send(self, at: int, part: int) -> None:
        peer = self.peers[at]
        take(self.books, peer, peer.out_bytes // part)
        self.books.ends_turn(peer)

    @rule(members=st.sets(st.integers(0, 5), min_size=1))
    def read(self, members: set[int]) -> None:
        self.readings.append(self.books.charge_read([self.peers[at] for at in members], 300 * KIB))

    @precondition(lambda self: self.readings)
    @rule()
    def come_back(self) -> None:
        self.books.release_read(self.readings.pop(0))

    @rule()
    def grant(self) -> None:
        turn = self.books.turn
        for peer in self.books.grants():
            assert self.books.room_bytes(peer) >= min(peer.wanted_bytes, 1)
        assert turn is None or self.books.turn is turn

    @rule(at=st.integers(0, 5))
    def leave(self, at: int) -> None:
        peer = self.peers[at]
        self.books.release(peer.out_bytes)
        self.books.forget(peer)
        self.peers[at] = Peer()

    @invariant()
    def the_budget_holds_and_the_books_agree_with_the_sum(self) -> None:
        held = sum(peer.out_bytes for peer in self.peers) + sum(reading.nbytes for reading in self.readings)
        assert self.books.used_bytes == held
        assert held <= BUDGET_BYTES

    @invariant()
    def whoever_waits_gets_a_turn_when_the_others_have_nothing_unsent(self) -> None:
        if len(self.books) and self.books.turn is None and not any(one.in_turn for one in self.readings):
            waiting = len(self.books)
            assert self.books.grants(), "somebody waits, and nobody's turn it is"
            assert len(self.books) < waiting

    def teardown(self) -> None:
        for reading in self.readings:
            self.books.release_read(reading)
        for peer in self.peers:
            self.books.release(peer.out_bytes)
            self.books.forget(peer)
        assert (self.books.used_bytes, len(self.books), self.books.turn) == (0, 0, None)


BooksAgree.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestBooksAgree = BooksAgree.TestCase
