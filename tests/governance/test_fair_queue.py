# SPDX-License-Identifier: Apache-2.0
"""Who is first among those who wait: who was served least, tenant by tenant and connection by connection."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB
from penstock.governance.fair_queue import ANY, HOLDING, WHOLE, FairQueue, Reader, Tenant

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGE, SMALL = 512 * KIB, KIB


def wait(lines: FairQueue, reader: Reader, want_bytes: int) -> None:
    """Begin to wait for so many bytes."""
    reader.want_bytes, reader.frame_placed = want_bytes, False
    lines.join(reader)
    lines.enter(reader, ANY)


def serve(lines: FairQueue, nbytes: int | None = None) -> Reader:
    """The first reads what it wanted, or less."""
    reader = lines.first(ANY)
    assert reader is not None
    lines.leave(reader)
    lines.served(reader, reader.want_bytes if nbytes is None else nbytes)
    return reader


def readers(lines: FairQueue, tenant: Tenant, owners: Iterable[int], want_bytes: int) -> list[Reader]:
    """Some connections that begin to wait."""
    made = [Reader(owner, tenant) for owner in owners]
    for reader in made:
        wait(lines, reader, want_bytes)
    return made


def test_of_equals_the_one_that_came_first_is_first() -> None:
    lines, tenant = FairQueue(), Tenant("a")
    readers(lines, tenant, range(5), LARGE)
    assert [serve(lines).owner for _ in range(5)] == [0, 1, 2, 3, 4]
    assert lines.first(ANY) is None
    assert not lines.stands(ANY)


def test_who_asks_for_little_does_not_wait_behind_two_hundred_who_ask_for_much() -> None:
    lines, tenant = FairQueue(), Tenant("a")
    readers(lines, tenant, range(200), LARGE)
    modest = Reader(999, tenant)
    ahead = []
    for _ in range(50):  # It comes again and again, as a steady producer does.
        wait(lines, modest, SMALL)
        turns = 0
        while (served := serve(lines)) is not modest:
            wait(lines, served, LARGE)
            turns += 1
        ahead.append(turns)
        for _ in range(10):  # Large ones have theirs meanwhile.
            wait(lines, serve(lines), LARGE)
    assert max(ahead) <= 1


def test_a_frame_that_has_begun_keeps_its_place_until_it_is_complete() -> None:
    lines, tenant = FairQueue(), Tenant("a")
    large = readers(lines, tenant, range(3), LARGE)
    for reader in large:
        lines.ask_for(reader, 4 * LARGE)
    order = []
    for _ in range(12):
        reader = serve(lines)
        order.append(reader.owner)
        reader.held_bytes = (reader.held_bytes + LARGE) % (4 * LARGE)
        reader.frame_placed = reader.held_bytes > 0
        reader.missing_bytes = reader.held_bytes and 4 * LARGE - reader.held_bytes
        lines.join(reader)
        lines.enter(reader, ANY)
        lines.ask_for(reader, 4 * LARGE)
    assert order == [0] * 4 + [1] * 4 + [2] * 4


def test_what_was_not_asked_for_cannot_be_saved_up() -> None:
    lines, tenant = FairQueue(), Tenant("a")
    readers(lines, tenant, range(2), LARGE)
    for _ in range(100):
        wait(lines, serve(lines), LARGE)
    late = Reader(99, tenant)
    wait(lines, late, LARGE)
    turns = Counter[int]()
    for _ in range(30):
        served = serve(lines)
        turns[served.owner] += 1
        wait(lines, served, LARGE)
    assert max(turns.values()) - min(turns.values()) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_bytes_served_to_backlogged_connections_and_tenants_differ_by_a_few_reads_at_most(seed: int) -> None:
    chance, lines = random.Random(seed), FairQueue()
    tenants = [Tenant(str(row)) for row in range(4)]
    of_tenant, of_reader = Counter[str](), Counter[int]()
    for row, tenant in enumerate(tenants):
        readers(lines, tenant, range(100 * row, 100 * row + chance.randrange(1, 20)), LARGE)
    for _ in range(4_000):
        # A turn may bring less than was wanted.
        nbytes = chance.randrange(1, LARGE)
        served = serve(lines, nbytes)
        wait(lines, served, LARGE)
        of_tenant[served.tenant.name] += nbytes
        of_reader[served.owner] += nbytes
    assert max(of_tenant.values()) - min(of_tenant.values()) <= 2 * LARGE
    for row in range(4):
        of_one = [nbytes for owner, nbytes in of_reader.items() if owner // 100 == row]
        assert max(of_one) - min(of_one) <= 2 * LARGE


def test_a_tenant_is_behind_by_the_memory_it_has() -> None:
    lines, slow, quick = FairQueue(), Tenant("slow"), Tenant("quick")
    readers(lines, slow, range(3), LARGE)
    readers(lines, quick, range(10, 13), LARGE)
    slow.used_bytes = 3 * LARGE
    lines.changed(slow)
    order = []
    for _ in range(6):
        served = serve(lines)
        order.append(served.tenant.name)
        wait(lines, served, LARGE)
    assert order == ["quick", "quick", "quick", "slow", "quick", "slow"]
    slow.used_bytes = 0
    lines.changed(slow)
    assert lines.first(ANY).tenant is slow  # type: ignore[union-attr]


def test_everybody_is_served_in_the_end_however_many_come_who_ask_for_less() -> None:
    lines, tenant = FairQueue(), Tenant("a")
    (patient,) = readers(lines, tenant, [0], LARGE)
    for owner in range(1, 100_000):
        wait(lines, Reader(owner, tenant), SMALL)
        if serve(lines) is patient:
            break
    else:
        raise AssertionError("it waits for ever")
    assert owner <= 2 * LARGE // SMALL + 1


def test_a_line_gives_only_those_who_stand_in_it_and_each_line_its_own_first() -> None:
    lines, tenant, other = FairQueue(), Tenant("a"), Tenant("b")
    first, second, third = (*readers(lines, tenant, range(2), LARGE), *readers(lines, other, [2], LARGE))
    lines.enter(second, HOLDING)
    lines.enter(third, HOLDING)
    lines.enter(third, WHOLE)
    assert (lines.first(ANY), lines.first(HOLDING), lines.first(WHOLE)) == (first, second, third)
    lines.withdraw(second, HOLDING)
    lines.leave(third)
    assert (lines.first(ANY), lines.first(HOLDING), lines.first(WHOLE)) == (first, None, None)
    assert [lines.stands(line) for line in (ANY, HOLDING, WHOLE)] == [True, False, False]


def test_entries_that_no_longer_count_do_not_pile_up() -> None:
    lines, tenants = FairQueue(), [Tenant(str(row)) for row in range(5)]
    for row, tenant in enumerate(tenants):
        readers(lines, tenant, range(10 * row, 10 * row + 3), LARGE)
    chance = random.Random(1)
    for _ in range(20_000):
        tenant = chance.choice(tenants)
        tenant.used_bytes = chance.randrange(100)
        lines.changed(tenant)
        places = [place for place in tenant.heaps[ANY] if place[2].places[ANY] is place]
        reader = chance.choice(places)[2]
        lines.withdraw(reader, ANY)
        lines.enter(reader, ANY)
    assert len(lines._heaps[ANY]) < 200  # noqa: SLF001 - that is what is asked
    assert max(len(tenant.heaps[ANY]) for tenant in tenants) < 200


@pytest.mark.parametrize("seed", range(30))
def test_the_first_is_the_one_with_the_lowest_key_of_the_tenant_with_the_lowest_key(seed: int) -> None:
    chance, lines = random.Random(seed), FairQueue()
    tenants = [Tenant(str(row)) for row in range(3)]
    waiting: list[Reader] = []
    for owner in range(400):
        step = chance.randrange(4)
        if step == 0 or not waiting:
            reader = Reader(owner, chance.choice(tenants))
            wait(lines, reader, chance.choice((SMALL, LARGE)))
            waiting.append(reader)
        elif step == 1:
            reader = waiting.pop(chance.randrange(len(waiting)))
            lines.leave(reader)
            lines.served(reader, chance.randrange(1, LARGE))
        elif step == 2:
            tenant = chance.choice(tenants)
            tenant.used_bytes = chance.randrange(4 * LARGE)
            lines.changed(tenant)
        else:
            lines.ask_for(chance.choice(waiting), chance.randrange(1, LARGE))
        first = lines.first(ANY)
        if not waiting:
            assert first is None
            continue
        assert first is not None
        of_tenant = {one.tenant for one in waiting}
        assert _key(first.tenant) == min(map(_key, of_tenant))
        assert first.key == min(one.key for one in waiting if one.tenant is first.tenant)


def _key(tenant: Tenant) -> int:
    return (tenant.served_bytes or 0) + tenant.used_bytes + tenant.promised_bytes
