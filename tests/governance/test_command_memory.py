# SPDX-License-Identifier: Apache-2.0
"""Memory of commands under way: who must wait, who need not, and that all of it comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.units import KIB, MIB
from penstock.governance.memory_pool import (
    LARGE_BYTES,
    SHARE_BYTES_MAX,
    SHARE_BYTES_MIN,
    WAITING_BYTES,
    CommandMemory,
    price,
)

if TYPE_CHECKING:
    from penstock.governance.memory_pool import Account


def test_a_command_is_charged_for_its_bytes_and_for_waiting() -> None:
    assert price(0) == WAITING_BYTES
    assert price(64 * KIB) >= 6 * 64 * KIB  # what pairs of texts take as objects


def test_one_connection_alone_leaves_half_of_a_small_row_to_others() -> None:
    memory = CommandMemory(MIB)
    account = memory.account()
    while not account.must_wait:
        account.charge(WAITING_BYTES)
    assert MIB // 2 <= account.used_bytes < MIB // 2 + WAITING_BYTES
    assert not memory.account().must_wait


def test_shares_become_smaller_as_more_connections_have_commands_waiting() -> None:
    memory = CommandMemory(64 * MIB)
    assert memory.share_bytes == SHARE_BYTES_MAX
    accounts = [memory.account() for _ in range(4_000)]
    for account in accounts:
        account.charge(WAITING_BYTES)
    assert memory.share_bytes == SHARE_BYTES_MIN
    for account in accounts:
        account.close()
    assert (memory.busy, memory.used_bytes, memory.share_bytes) == (0, 0, SHARE_BYTES_MAX)


def test_who_had_to_wait_goes_on_below_half_of_its_share_and_not_before() -> None:
    memory = CommandMemory(MIB)
    account = memory.account()
    while not account.must_wait:
        account.charge(WAITING_BYTES)
    account.release(WAITING_BYTES)
    assert not account.must_wait
    assert not account.may_go_on
    while not account.may_go_on:
        account.release(WAITING_BYTES)
    assert MIB // 4 - WAITING_BYTES < account.used_bytes <= MIB // 4


def test_a_full_row_lets_everybody_have_one_command() -> None:
    memory = CommandMemory(10 * WAITING_BYTES)
    hog, modest = memory.account(), memory.account()
    hog.charge(10 * WAITING_BYTES)
    assert hog.must_wait
    assert not modest.must_wait
    modest.charge(WAITING_BYTES)
    assert modest.must_wait
    assert not modest.may_go_on
    modest.release(WAITING_BYTES)
    assert modest.may_go_on


def test_a_closed_connection_gives_back_all_at_once_and_nothing_twice() -> None:
    memory = CommandMemory(MIB)
    account = memory.account()
    account.charge(100)
    account.charge(200)
    account.close()
    assert (memory.used_bytes, memory.busy) == (0, 0)
    account.release(100)
    account.charge(50)
    account.close()
    assert (memory.used_bytes, memory.busy) == (0, 0)


def test_large_commands_have_as_much_as_the_row_together_or_one_of_them() -> None:
    memory = CommandMemory(2 * LARGE_BYTES)
    first, second, third = memory.account(), memory.account(), memory.account()
    assert first.admits(100 * LARGE_BYTES)
    first.charge(LARGE_BYTES)
    assert second.admits(LARGE_BYTES)
    second.charge(LARGE_BYTES)
    assert not third.admits(LARGE_BYTES)
    assert third.admits(LARGE_BYTES - 1)
    assert memory.refused_total == 1
    first.release(LARGE_BYTES)
    assert third.admits(LARGE_BYTES)
    second.close()
    assert memory.large_bytes == 0


class CommandsAreConserved(RuleBasedStateMachine):
    """Commands begin and end, connections come and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = CommandMemory(20 * WAITING_BYTES)
        self.waiting: list[tuple[Account, list[int]]] = []

    @rule()
    def connect(self) -> None:
        """One more."""
        self.waiting.append((self.memory.account(), []))

    @rule(data=st.data(), nbytes=st.integers(0, 4 * KIB) | st.just(80 * KIB))
    def begin(self, data: st.DataObject, nbytes: int) -> None:
        """A command of somebody who need not wait."""
        free = [one for one in self.waiting if not one[0].must_wait]
        if free:
            account, commands = data.draw(st.sampled_from(free))
            commands.append(price(nbytes))
            account.charge(commands[-1])

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Any command."""
        busy = [one for one in self.waiting if one[1]]
        if busy:
            account, commands = data.draw(st.sampled_from(busy))
            account.release(commands.pop())

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        """Anybody."""
        if self.waiting:
            one = data.draw(st.sampled_from(self.waiting))
            self.waiting.remove(one)
            one[0].close()

    @invariant()
    def books_are_right(self) -> None:
        """What is used is what waits."""
        assert self.memory.used_bytes == sum(sum(commands) for _, commands in self.waiting)
        large = (one for _, commands in self.waiting for one in commands if one >= LARGE_BYTES)
        assert self.memory.large_bytes == sum(large)
        assert self.memory.busy == sum(bool(commands) for _, commands in self.waiting)
        assert all(account.used_bytes == sum(commands) for account, commands in self.waiting)

    @invariant()
    def the_row_is_exceeded_by_two_commands_a_connection_at_most(self) -> None:
        """One that passes a bound, and the one that everybody may have."""
        most = price(80 * KIB)
        assert self.memory.used_bytes <= self.memory.limit_bytes + 2 * most * max(1, len(self.waiting))

    @invariant()
    def nobody_waits_for_others(self) -> None:
        """Whoever has nothing under way may go on."""
        assert all(account.may_go_on and not account.must_wait for account, commands in self.waiting if not commands)


TestCommandsAreConserved = CommandsAreConserved.TestCase
TestCommandsAreConserved.settings = settings(max_examples=50, deadline=None)
