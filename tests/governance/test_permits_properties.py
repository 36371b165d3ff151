# SPDX-License-Identifier: Apache-2.0
"""What must always hold in a queue for permits, whatever holders, newcomers, clocks and administrators do (PIP-442).

One set of clients is driven twice: by Hypothesis, which shrinks what it finds, and by seeded random histories, of which
`make test` runs a share and `make sim` at least ten thousand.
"""

from __future__ import annotations

import os
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.governance.permits import (
    Owner,
    Permit,
    PermitAcquireQueueFull,
    PermitAcquireTimeout,
    PermitError,
    PermitLimits,
    PermitQueue,
    Request,
)

TOTAL = 20
TIMEOUT_NS = 50
STEPS = 60
HISTORIES = int(os.environ.get("PENSTOCK_SIM_CASES", "500"))
SEED = os.environ.get("PENSTOCK_SIM_SEED")

OWNERS = [Owner(tenant, f"{tenant}-{number}") for tenant in "abc" for number in range(3)]


class Clients:
    """Those who ask, hold and leave; after each step the queue is compared with what they know."""

    def __init__(self, total: int, queue_max: int, *, always_lend: bool = False) -> None:
        self.queue = PermitQueue(PermitLimits(permits_max=total, queue_max=queue_max, timeout_ns=TIMEOUT_NS))
        self.always_lend = always_lend
        self.now_ns = 0
        self.size_before = 0
        self.held: list[Permit] = []
        self.updates: deque[Request] = deque()
        self.acquires: deque[Request] = deque()

    # Steps.

    def acquire(self, permits: int, owner: Owner, *, deadline_ns: int | None = None, cancelled: bool = False) -> None:
        self.size_before = self.queue.queue_size
        overtakes = self._bounded() and self.queue.queue_size > 0
        request = self.queue.acquire(permits, self.now_ns, owner=owner, deadline_ns=deadline_ns)
        settled = self.asked(request, self.acquires, cancelled=cancelled)
        assert not overtakes or request in settled or not isinstance(request.outcome, Permit), "overtook others"

    def update(
        self, index: int, permits: int, *, lends: bool, deadline_ns: int | None = None, cancelled: bool = False
    ) -> None:
        permit = self.held[index]
        if permit.request is not None:
            return
        self.size_before = self.queue.queue_size
        overtakes = self._bounded() and bool(self.updates) and permits > permit.size
        lends = lends or self.always_lend
        request = self.queue.update(permit, permits, self.now_ns, deadline_ns=deadline_ns, lends=lends)
        settled = self.asked(request, self.updates, cancelled=cancelled)
        assert not overtakes or request in settled or not isinstance(request.outcome, Permit), "overtook others"

    def release(self, index: int) -> None:
        permit = self.held[index]
        self.queue.release(permit, self.now_ns)
        assert permit.size == 0
        if permit.request is None:
            self.held.pop(index)
        self.settle()

    def cancel(self, request: Request) -> None:
        self.queue.cancel(request, self.now_ns)
        self.settle()
        assert isinstance(request.outcome, PermitError)

    def leave(self, owner: Owner) -> None:
        self.queue.cancel_connection(owner.connection, self.now_ns)
        self.settle()
        assert not [one for one in (*self.updates, *self.acquires) if one.owner == owner], "a place outlived its owner"

    def expire(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.queue.expire(self.now_ns)
        self.settle()
        assert not [one for one in (*self.updates, *self.acquires) if one.deadline_ns <= self.now_ns], "waits too long"

    def set_limits(self, total: int, queue_max: int) -> None:
        self.queue.set_limits(PermitLimits(permits_max=total, queue_max=queue_max, timeout_ns=TIMEOUT_NS), self.now_ns)
        self.settle()

    # What came of it.

    def asked(self, request: Request, line: deque[Request], *, cancelled: bool) -> list[Request]:
        """Cancelled: its task ends after a grant, before it has seen the permit."""
        settled = self.queue.take_settled()
        if request.outcome is None or request in settled:
            line.append(request)
        elif cancelled and isinstance(request.outcome, Permit):
            self.queue.cancel(request, self.now_ns)
        else:
            self.settled(request)
        self.settle(settled)
        self.settle()
        return settled

    def settle(self, settled: list[Request] | None = None) -> None:
        for request in settled if settled is not None else self.queue.take_settled():
            line = self.updates if request.replaces is not None else self.acquires
            if isinstance(request.outcome, Permit):
                assert line[0] is request, "not in the order in which they came"
                assert line is self.updates or not self.updates or not self._bounded(), "a new one before an update"
            line.remove(request)
            self.settled(request)

    def settled(self, request: Request) -> None:
        if isinstance(request.outcome, Permit):
            assert request.outcome.size == request.wants
            self.held.append(request.outcome)
            if request.replaces is not None:
                assert request.replaces.size == 0
                self.held.remove(request.replaces)
        elif isinstance(request.outcome, PermitAcquireTimeout):
            assert request.deadline_ns <= self.now_ns
        elif isinstance(request.outcome, PermitAcquireQueueFull):
            assert self.size_before >= self.queue.limits.queue_max > 0, "refused while there were places"

    # Invariants.

    def _bounded(self) -> bool:
        return self.queue.limits.permits_max > 0

    def check(self) -> None:
        queue = self.queue
        held = sum(permit.size for permit in self.held)
        assert all(permit.size >= 0 for permit in self.held)
        assert queue.queue_size == len(self.updates) + len(self.acquires)
        if not self._bounded():
            assert queue.queue_size == 0
            return
        assert queue.available + held == queue.limits.permits_max, "the books do not agree with the holders"
        deadlines = [one.deadline_ns for one in (*self.updates, *self.acquires)]
        assert queue.next_deadline_ns() == min(deadlines, default=None)
        if self.updates:
            first = self.updates[0]
            lendable = sum(one.replaces.size for one in list(self.updates)[1:] if one.lends and one.replaces)
            assert first.needs > queue.available + lendable, "the first could go"
        elif self.acquires:
            assert self.acquires[0].needs > max(0, queue.available), "the first could go"

    def finish(self) -> None:
        """Holders who do not wait are done one after the other: everybody must have had a turn, no time passing."""
        while self.updates or self.acquires:
            done = [index for index, permit in enumerate(self.held) if permit.request is None]
            if not done:
                assert not self.always_lend, "all wait for one another"
                self.expire(TIMEOUT_NS)
                continue
            self.release(done[0])
            self.check()
        for permit in self.held:
            self.queue.release(permit, self.now_ns)
        self.held.clear()
        self.check()
        assert self.queue.acquired == 0


def random_step(clients: Clients, chance: random.Random) -> None:
    kind = chance.random()
    permits = chance.choice((0, 1, 1, 2, 3, 5, 11, TOTAL - 1, TOTAL, TOTAL + 1))
    owner = chance.choice(OWNERS)
    deadline_ns = clients.now_ns + chance.choice((0, 5, 1_000)) if chance.random() < 0.2 else None
    cancelled = chance.random() < 0.1
    waiting = [*clients.updates, *clients.acquires]
    if kind < 0.35:
        clients.acquire(permits, owner, deadline_ns=deadline_ns, cancelled=cancelled)
    elif kind < 0.60 and clients.held:
        index = chance.randrange(len(clients.held))
        lends = chance.random() < 0.8
        clients.update(index, permits, lends=lends, deadline_ns=deadline_ns, cancelled=cancelled)
    elif kind < 0.80 and clients.held:
        clients.release(chance.randrange(len(clients.held)))
    elif kind < 0.88 and waiting:
        clients.cancel(chance.choice(waiting))
    elif kind < 0.92:
        clients.leave(owner)
    elif kind < 0.98:
        clients.expire(chance.choice((0, 1, 10, TIMEOUT_NS)))
    else:
        clients.set_limits(chance.choice((TOTAL, TOTAL, 7, 0)), chance.choice((0, 1, 6)))


@pytest.mark.parametrize("tenth", range(10))
def test_in_any_history_the_books_agree_the_lines_keep_their_order_and_nobody_waits_for_ever(tenth: int) -> None:
    seeds = [int(SEED)] if SEED else range(tenth * HISTORIES // 10, (tenth + 1) * HISTORIES // 10)
    for seed in seeds:
        chance = random.Random(seed)
        clients = Clients(TOTAL, chance.choice((0, 1, 4, 12)), always_lend=chance.random() < 0.5)
        try:
            for _ in range(STEPS):
                random_step(clients, chance)
                clients.check()
            clients.finish()
        except AssertionError as broken:
            broken.add_note(f"{seed=}")
            raise


class PermitsAreConserved(RuleBasedStateMachine):
    """The same clients in Hypothesis' hands, up to the queue's end."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = Clients(TOTAL, queue_max=5)

    @rule(permits=st.integers(0, TOTAL + 1), owner=st.sampled_from(OWNERS), cancelled=st.booleans())
    def acquire(self, permits: int, owner: Owner, cancelled: bool) -> None:
        self.clients.acquire(permits, owner, cancelled=cancelled)

    @precondition(lambda self: self.clients.held)
    @rule(data=st.data(), permits=st.integers(0, TOTAL + 1), lends=st.booleans(), cancelled=st.booleans())
    def update(self, data: st.DataObject, permits: int, lends: bool, cancelled: bool) -> None:
        self.clients.update(self.some(data, self.clients.held), permits, lends=lends, cancelled=cancelled)

    @precondition(lambda self: self.clients.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.clients.release(self.some(data, self.clients.held))

    @precondition(lambda self: self.clients.updates or self.clients.acquires)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [*self.clients.updates, *self.clients.acquires]
        self.clients.cancel(waiting[self.some(data, waiting)])

    @rule(owner=st.sampled_from(OWNERS))
    def leave(self, owner: Owner) -> None:
        self.clients.leave(owner)

    @rule(passed_ns=st.integers(0, 2 * TIMEOUT_NS))
    def expire(self, passed_ns: int) -> None:
        self.clients.expire(passed_ns)

    @rule(total=st.integers(0, TOTAL), queue_max=st.integers(0, 6))
    def set_limits(self, total: int, queue_max: int) -> None:
        self.clients.set_limits(total, queue_max)

    @rule()
    def close(self) -> None:
        self.clients.queue.close()
        self.clients.settle()
        assert not self.clients.updates
        assert not self.clients.acquires

    @invariant()
    def all_is_well(self) -> None:
        self.clients.check()

    def teardown(self) -> None:
        self.clients.finish()

    def some(self, data: st.DataObject, among: list[Any]) -> int:
        return data.draw(st.integers(0, len(among) - 1))


TestPermitsAreConserved = PermitsAreConserved.TestCase
TestPermitsAreConserved.settings = settings(
    max_examples=max(50, HISTORIES // 10),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
