# SPDX-License-Identifier: Apache-2.0
"""B6: tenants share the request memory by need. One alone has everything; the greedy wait for the modest."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import pytest

from penstock.governance.request_memory import NOBODY, RequestMemory
from penstock.governance.request_values import RequestLimits

if TYPE_CHECKING:
    from penstock.governance.memory_pool import Lease

FRAME = 1_000
POOL = 10 * FRAME


def pool() -> RequestMemory:
    return RequestMemory(
        RequestLimits(request_bytes_max=POOL, requests_max=-1, frame_bytes_max=FRAME, reserve_ratio=0.0)
    )


class World:
    """Connections that always want to publish one more frame, and a disk that answers the oldest `per_tick` of them."""

    def __init__(self, tenants: dict[str, int], *, per_tick: int) -> None:
        self.memory = pool()
        self.per_tick = per_tick
        self.tenant_of: dict[int, str] = {}
        self.pending: deque[Lease] = deque()
        self.asked_at: dict[int, int] = {}
        self.waits: dict[str, list[int]] = {tenant: [] for tenant in tenants}
        for tenant, connections in tenants.items():
            for _ in range(connections):
                owner = len(self.tenant_of)
                self.tenant_of[owner] = tenant
                self.memory.assign(owner, tenant)

    def ask(self, owner: int, now: int) -> None:
        self.asked_at.setdefault(owner, now)
        if self.memory.try_charge(owner, FRAME, 0, now) == FRAME:
            lease = self.memory.recharge(owner, FRAME, 0, FRAME, 1, now)
            assert lease is not None
            self.pending.append(lease)
            self.waits[self.tenant_of[owner]].append(now - self.asked_at.pop(owner))

    def wake(self, now: int) -> None:
        while owners := self.memory.wake(now):
            for owner in owners:
                self.ask(owner, now)

    def run(self, ticks: int, rng: random.Random) -> None:
        for now in range(ticks):
            order = [owner for owner in self.tenant_of if owner not in self.asked_at]
            rng.shuffle(order)
            for owner in order:
                self.ask(owner, now)
            for _ in range(min(self.per_tick, len(self.pending))):
                self.memory.release(self.pending.popleft())
                self.wake(now)


@pytest.mark.parametrize("seed", range(5))
def test_b6_a_tenant_with_a_hundred_times_the_load_does_not_raise_anothers_waits(seed: int) -> None:
    world = World({"greedy": 100, "modest": 1}, per_tick=2)
    world.run(500, random.Random(seed))
    waits = sorted(world.waits["modest"])
    assert len(waits) > 100
    assert waits[len(waits) * 99 // 100] <= 1  # it is the next that has its turn; alone it would wait for nobody
    assert max(world.waits["greedy"]) > 20


def test_b6_one_tenant_alone_borrows_the_whole_pool() -> None:
    world = World({"only": 20, "idle": 0}, per_tick=0)
    world.run(1, random.Random(0))
    assert world.memory.available == 0


def test_b6_what_was_borrowed_comes_back_as_it_is_answered() -> None:
    world = World({"first": 10, "second": 10}, per_tick=1)
    for owner in range(20):
        world.ask(owner, 0)
    assert [world.tenant_of[lease.owner] for lease in world.pending] == ["first"] * 10
    for _ in range(5):
        world.memory.release(world.pending.popleft())
        world.wake(1)
    assert [world.tenant_of[lease.owner] for lease in world.pending].count("second") == 5


def test_within_a_tenant_the_queue_keeps_its_order() -> None:
    world = World({"a": 12, "b": 12}, per_tick=0)
    for owner in range(24):
        world.ask(owner, 0)
    served: list[int] = []
    while len(served) < 14:
        world.memory.release(world.pending.popleft())
        before = len(world.pending)
        world.wake(1)
        served += [lease.owner for lease in list(world.pending)[before:]]
    for tenant in ("a", "b"):
        owners = [owner for owner in served if world.tenant_of[owner] == tenant]
        assert owners == sorted(owners)


@pytest.mark.parametrize("seed", range(20))
def test_the_tenants_books_balance_whoever_comes_and_goes(seed: int) -> None:
    rng, memory, now = random.Random(seed), pool(), 0
    leases: list[Lease] = []
    held: dict[int, int] = {}
    for now in range(400):
        owner = rng.randrange(8)
        step = rng.randrange(5)
        if step == 0:
            memory.assign(owner, rng.choice(["a", "b", "c"]))
        elif step == 1:
            memory.forget(owner, now)
            held.pop(owner, None)
        elif step == 2 and leases:
            memory.release(leases.pop(rng.randrange(len(leases))))
        else:
            granted = memory.try_charge(owner, 400, FRAME - held[owner] if held.get(owner) else 0, now)
            if granted:
                keep = rng.randrange(granted + 1) if held.get(owner, 0) + granted < FRAME else 0
                kept_all = held.get(owner, 0) + keep if keep else 0
                pending = 0 if keep else granted + held.get(owner, 0)
                lease = memory.recharge(owner, granted, kept_all, granted if pending else 0, int(bool(pending)), now)
                held[owner] = kept_all
                if lease is not None:
                    leases.append(lease)
        for woken in memory.wake(now):
            memory.pause(woken, now)
        tenants = list(memory._tenants.values())  # noqa: SLF001 - the books themselves
        live = sum(tenant.used_bytes for tenant in tenants)
        gone = sum(lease.size_bytes for lease in leases if lease.tenant not in tenants)
        assert live + gone == memory.size - memory.available
        assert all(tenant.used_bytes >= 0 and tenant.promised_bytes == 0 for tenant in tenants)
        assert sum(tenant.connections for tenant in tenants) == len(memory._readers)  # noqa: SLF001
    assert NOBODY in memory._tenants  # noqa: SLF001
