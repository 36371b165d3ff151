# SPDX-License-Identifier: Apache-2.0
"""Turns by tenant and connection, and who leaves a line that is too long."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.governance.permits import Owner
from penstock.governance.tenant_round_robin import TenantRoundRobin


def taken(line: TenantRoundRobin[int]) -> list[tuple[Owner, int]]:
    """All of it, in the order of their turns."""
    return [line.next() for _ in range(len(line))]


def test_a_connection_that_asks_often_has_one_turn_for_each_of_the_others() -> None:
    line: TenantRoundRobin[int] = TenantRoundRobin()
    greedy, modest = Owner("t", "greedy"), Owner("t", "modest")
    for number in range(5):
        line.join(greedy, number)
    for number in range(100, 102):
        line.join(modest, number)
    assert [item for _, item in taken(line)] == [0, 100, 1, 101, 2, 3, 4]


def test_a_tenant_with_many_connections_has_one_turn_for_each_of_the_others() -> None:
    line: TenantRoundRobin[int] = TenantRoundRobin()
    for number in range(4):
        line.join(Owner("many", number), number)
    line.join(Owner("few", "only"), 100)
    line.join(Owner("few", "only"), 101)
    assert [item for _, item in taken(line)] == [0, 100, 1, 101, 2, 3]


def test_who_leaves_has_no_turn() -> None:
    line: TenantRoundRobin[int] = TenantRoundRobin()
    owner = Owner("t", "c")
    for number in range(3):
        line.join(owner, number)
    line.leave(owner, 1)
    assert [item for _, item in taken(line)] == [0, 2]


def test_the_latest_of_whoever_has_most_gives_way() -> None:
    line: TenantRoundRobin[int] = TenantRoundRobin()
    for number in range(3):
        line.join(Owner("t", "greedy"), number)
    line.join(Owner("t", "modest"), 100)
    line.join(Owner("u", "other"), 200)
    assert line.gives_way() == (Owner("t", "greedy"), 2)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()), max_size=60))
def test_nobody_has_a_second_turn_while_another_of_the_same_tenant_waits_for_a_first(
    steps: list[tuple[str, str, bool]],
) -> None:
    line: TenantRoundRobin[int] = TenantRoundRobin()
    waiting: dict[int, Owner] = {}
    for number, (tenant, connection, leaves) in enumerate(steps):
        if leaves and waiting:
            gone = next(iter(waiting))
            line.leave(waiting.pop(gone), gone)
        else:
            waiting[number] = Owner(tenant, connection)
            line.join(waiting[number], number)
    assert len(line) == len(waiting)
    at_first = Counter(waiting.values())
    turns = taken(line)
    assert {item: owner for owner, item in turns} == waiting
    for tenant in "ab":
        theirs = [owner for owner, _ in turns if owner.tenant == tenant]
        round_length = len({owner for owner in at_first if owner.tenant == tenant})
        assert len(set(theirs[:round_length])) == round_length
